//! Streams between databases, and backups.
//!
//! Promises: what is received is what was declared; what is damaged, cut, or does not fit changes nothing, and can
//! be gone on with. May call: the engine's public face.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options, ResumePoint, SnapshotId, SnapshotRef, Table};
use support::{Random, State, state_of};

fn open(disk: &SimDisk, name: &str) -> Db {
    Options::new()
        .memtable_bytes(256 << 10)
        .log_segment_bytes(256 << 10)
        .cache_bytes(4 << 20)
        .durability(Durability::Buffered)
        .background(false)
        .open_on(Arc::new(disk.clone()), name)
        .unwrap()
}

fn fill(db: &Db, table: &Table, keys: std::ops::Range<u32>, value: &str) {
    let mut tx = db.begin().unwrap();
    for key in keys {
        tx.put(table, key.to_be_bytes(), value.repeat(1 + key as usize % 7)).unwrap();
    }
    tx.commit().unwrap();
}

/// A database with a past in which everything happens that a stream can tell: its snapshots with their states.
fn source(disk: &SimDisk) -> (Db, Vec<(SnapshotId, State)>) {
    let db = open(disk, "source");
    let mut states = Vec::new();
    let mut declare = |name: Option<&str>| {
        let mut tx = db.begin().unwrap();
        tx.set_snapshot_metadata(format!("metadata {}", states.len()));
        let id = tx.commit_with_snapshot(name).unwrap();
        states.push((id, state_of(&db.as_of(id).unwrap())));
    };
    let table = db.table("t").unwrap();
    let other = db.table("other").unwrap();
    fill(&db, &table, 0..3000, "one");
    fill(&db, &other, 0..10, "x");
    db.put(&table, "large", vec![7; 700_000]).unwrap();
    declare(Some("first"));
    fill(&db, &table, 500..600, "two");
    db.delete(&table, 3u32.to_be_bytes()).unwrap();
    db.drop_table("other").unwrap();
    declare(None);
    db.merge().unwrap();
    declare(Some("nothing changed"));
    let other = db.table("other").unwrap();
    fill(&db, &other, 5..20, "made anew");
    db.table("empty").unwrap();
    db.put(&table, "", "").unwrap();
    declare(Some("last"));
    drop(table);
    (db, states)
}

fn stream(db: &Db, from: Option<SnapshotId>, to: SnapshotId) -> Vec<u8> {
    let mut out = Vec::new();
    db.send(from.map(SnapshotRef::from), to, &mut out).unwrap();
    out
}

#[test]
fn a_chain_of_streams_makes_the_same_past() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    let copy = open(&disk, "copy");
    let mut before = None;
    let mut ids = Vec::new();
    for (id, state) in &states {
        let bytes = stream(&db, before, *id);
        let here = copy.receive(&bytes[..]).unwrap();
        assert_eq!(state_of(&copy.snapshot()), *state);
        assert_eq!(copy.receive(&bytes[..]).unwrap(), here, "a second time changes nothing");
        assert_eq!(copy.receiving().unwrap(), None);
        let (there, here_info) = (db.snapshot_info(*id).unwrap(), copy.snapshot_info(here).unwrap());
        assert_eq!((&there.name, &there.metadata), (&here_info.name, &here_info.metadata));
        assert_eq!(there.time, here_info.time);
        before = Some(*id);
        ids.push(here);
    }
    drop(copy);
    let copy = open(&disk, "copy");
    for (here, (_, state)) in ids.iter().zip(&states) {
        assert_eq!(state_of(&copy.as_of(*here).unwrap()), *state);
    }
    assert_eq!(copy.snapshots().unwrap().len(), states.len());
    copy.verify().unwrap();
    // What nothing changed in is a short stream.
    assert!(stream(&db, Some(states[1].0), states[2].0).len() < 200);
}

#[test]
fn snapshots_can_be_left_out_and_backwards_is_a_way_too() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    let copy = open(&disk, "copy");
    copy.receive(&stream(&db, None, states[3].0)[..]).unwrap();
    copy.receive(&stream(&db, Some(states[3].0), states[0].0)[..]).unwrap();
    assert_eq!(state_of(&copy.snapshot()), states[0].1);
    assert_eq!(state_of(&copy.as_of("last").unwrap()), states[3].1);
}

#[test]
fn a_stream_that_does_not_fit_is_refused() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    let copy = open(&disk, "copy");
    let (all, changes) = (stream(&db, None, states[0].0), stream(&db, Some(states[0].0), states[1].0));
    let nothing = |copy: &Db| state_of(&copy.snapshot());
    assert!(matches!(copy.receive(&changes[..]), Err(Error::InvalidArgument { .. })));
    assert!(nothing(&copy).is_empty());
    let first = copy.receive(&all[..]).unwrap();
    assert!(matches!(copy.receive(&stream(&db, None, states[1].0)[..]), Err(Error::NotEmpty { .. })));
    // Changed here, and undone.
    let table = copy.open_table("t").unwrap();
    copy.put(&table, "mine", "1").unwrap();
    let seq = copy.snapshot().seq();
    match copy.receive(&changes[..]) {
        Err(Error::InvalidArgument { reason }) => {
            assert!(reason.contains("changed since snapshot 1"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(copy.snapshot().seq(), seq);
    copy.restore(first).unwrap();
    copy.receive(&changes[..]).unwrap();
    assert_eq!(state_of(&copy.snapshot()), states[1].1);
    copy.snapshot_now("last").unwrap();
    let named = stream(&db, Some(states[1].0), states[3].0);
    assert!(matches!(copy.receive(&named[..]), Err(Error::NameTaken { .. })));
    copy.delete_snapshot("last").unwrap();
    copy.receive(&named[..]).unwrap();
    assert_eq!(state_of(&copy.snapshot()), states[3].1);
    assert!(matches!(copy.receive(&b""[..]), Err(Error::StreamIncomplete { at: None })));
    assert!(matches!(copy.receive(&b"not a stream at all, but text"[..]), Err(Error::Corruption { .. })));
    assert!("no point".parse::<ResumePoint>().is_err());
}

#[test]
fn a_stream_that_breaks_off_anywhere_is_gone_on_with() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    let (first, last) = (states[0].0, states[3].0);
    let all = stream(&db, None, first);
    let changes = stream(&db, Some(first), last);
    let ready = {
        let copy = open(&disk, "copy");
        copy.receive(&all[..]).unwrap();
        drop(copy);
        disk.crash_image(0)
    };
    let mut random = Random(3);
    for (from, to, bytes, disk) in [(None, first, &all, &disk), (Some(first), last, &changes, &ready)] {
        let name = if from.is_some() { "copy" } else { "new" };
        for round in 0..40 {
            let cut = if round < 20 { round as usize * 9 } else { random.below(bytes.len() as u64) as usize };
            let cut = cut.min(bytes.len() - 1);
            let disk = disk.crash_image(0);
            let copy = open(&disk, name);
            let at = match copy.receive(&bytes[..cut]) {
                Err(Error::StreamIncomplete { at }) => at,
                other => panic!("cut at {cut}: {other:?}"),
            };
            drop(copy);
            // What has come is there after a power cut, too.
            let disk = disk.crash_image(round);
            let copy = open(&disk, name);
            let receiving = copy.receiving().unwrap();
            assert_eq!(receiving.as_ref().map(|receiving| receiving.at), at, "cut at {cut}");
            let point = at.map_or(ResumePoint::default(), |at| at.to_string().parse().unwrap());
            let mut rest = Vec::new();
            db.send_rest(from.map(SnapshotRef::from), to, point, &mut rest).unwrap();
            if cut > bytes.len() / 2 && bytes.len() > 1 << 20 {
                assert!(rest.len() < bytes.len() * 3 / 4, "cut at {cut}: {} bytes more", rest.len());
            }
            copy.receive(&rest[..]).unwrap();
            let expected = &states.iter().find(|(id, _)| *id == to).unwrap().1;
            assert_eq!(state_of(&copy.snapshot()), *expected, "cut at {cut}");
        }
    }
    // The rest of another stream.
    let copy = open(&ready, "copy");
    assert!(copy.receive(&changes[..changes.len() - 1]).is_err());
    let at = copy.receiving().unwrap().unwrap().at;
    let mut rest = Vec::new();
    let wrong = db.send_rest(Some(states[1].0.into()), last, at, &mut rest);
    assert!(matches!(wrong, Err(Error::InvalidArgument { .. })), "{wrong:?}");
    assert!(copy.receive(&rest[..]).is_err());
}

#[test]
fn a_changed_byte_anywhere_is_noticed() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    let copy = open(&disk, "copy");
    copy.receive(&stream(&db, None, states[0].0)[..]).unwrap();
    let before = state_of(&copy.snapshot());
    let bytes = stream(&db, Some(states[0].0), states[3].0);
    for place in 0..bytes.len() {
        if place > 600 && place % 97 != 0 && place + 100 < bytes.len() {
            continue;
        }
        let mut changed = bytes.clone();
        changed[place] ^= 1 << (place % 8);
        match copy.receive(&changed[..]) {
            Err(Error::Corruption { .. } | Error::StreamIncomplete { .. }) => {}
            other => panic!("byte {place}: {other:?}"),
        }
    }
    assert_eq!(state_of(&copy.snapshot()), before);
    copy.receive(&bytes[..]).unwrap();
    assert_eq!(state_of(&copy.snapshot()), states[3].1);
}

#[test]
fn a_cut_while_receiving_leaves_the_state_before_or_behind() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    open(&disk, "copy").receive(&stream(&db, None, states[0].0)[..]).unwrap();
    let bytes = stream(&db, Some(states[0].0), states[3].0);
    let run = |cut: Option<u64>| {
        let image = disk.crash_image(0);
        let copy = open(&image, "copy");
        let start = image.operations();
        if let Some(cut) = cut {
            image.crash_at(start + cut);
        }
        let received = copy.receive(&bytes[..]);
        assert_eq!(received.is_err(), cut.is_some(), "{received:?}");
        (image.operations() - start, image)
    };
    let (operations, _) = run(None);
    let (mut before, mut behind) = (0, 0);
    for cut in 0..operations {
        let (_, image) = run(Some(cut));
        for seed in 0..3 {
            let image = image.crash_image(cut * 3 + seed);
            let copy = open(&image, "copy");
            let found = state_of(&copy.snapshot());
            if found == states[3].1 {
                behind += 1;
            } else {
                assert!(found == states[0].1, "cut at {cut}: neither state");
                before += 1;
            }
            copy.receive(&bytes[..]).unwrap();
            assert!(state_of(&copy.snapshot()) == states[3].1, "cut at {cut}");
            assert_eq!(copy.snapshots().unwrap().len(), 2);
            copy.verify().unwrap();
        }
    }
    assert!(before > 0 && behind > 0, "{before} before, {behind} behind");
}

#[test]
fn a_backup_has_every_snapshot_and_is_brought_up_to_date() {
    let disk = SimDisk::new();
    let (db, states) = source(&disk);
    let latest = db.backup("backup").unwrap();
    let check = |latest: SnapshotId, count: usize| {
        let backup = open(&disk, "backup");
        assert_eq!(state_of(&backup.snapshot()), state_of(&db.as_of(latest).unwrap()));
        let list = backup.snapshots().unwrap();
        assert_eq!(list.len(), count);
        for (here, (_, state)) in list.iter().zip(&states) {
            assert_eq!(state_of(&backup.as_of(here).unwrap()), *state);
        }
        backup.verify().unwrap();
    };
    check(latest, states.len());
    assert!(matches!(db.delete_snapshot(latest), Err(Error::SnapshotHeld { .. })));
    let table = db.open_table("t").unwrap();
    for round in 0..3 {
        fill(&db, &table, round * 10..round * 10 + 30, "more");
        db.snapshot_now(format!("round {round}").as_str()).unwrap();
    }
    fill(&db, &table, 0..5, "undeclared");
    // One that the backup has and one that it has not are gone by now.
    db.delete_snapshots(["first", "round 1"]).unwrap();
    let second = db.backup("backup").unwrap();
    check(second, states.len() + 3);
    db.delete_snapshot(latest).unwrap();
    assert_eq!(db.snapshot_info(second).unwrap().metadata, b"backup");
    // Into something else, never.
    let other = open(&disk, "other");
    other.put(&other.table("t").unwrap(), "k", "v").unwrap();
    assert!(matches!(db.backup("other"), Err(Error::Locked { .. })));
    drop(other);
    assert!(matches!(db.backup("other"), Err(Error::NotEmpty { .. })));
}

#[test]
fn a_backup_goes_on_beside_writers() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(1 << 20).durability(Durability::Buffered);
    let db = options.open(directory.path().join("db")).unwrap();
    let table = db.table("t").unwrap();
    fill(&db, &table, 0..20_000, "start");
    let over = AtomicBool::new(false);
    let backup: &Path = &directory.path().join("backup");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                fill(&db, &table, round % 200 * 100..round % 200 * 100 + 100, "while");
                if round % 200 == 0 && round < 4000 {
                    db.snapshot_now(None).unwrap();
                }
                round += 1;
            }
        });
        for _ in 0..3 {
            let latest = db.backup(backup).unwrap();
            let copy = Db::open(backup).unwrap();
            assert_eq!(state_of(&copy.snapshot()), state_of(&db.as_of(latest).unwrap()));
        }
        over.store(true, Ordering::Relaxed);
    });
    let copy = Db::open(backup).unwrap();
    for info in copy.snapshots().unwrap() {
        copy.as_of(&info).unwrap();
    }
    copy.verify().unwrap();
}
