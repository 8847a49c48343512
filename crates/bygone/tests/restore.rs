//! Going back to a declared snapshot.
//!
//! Promises: the present is the snapshot's state, by one commit, undoably; nothing of what was is lost, and nobody
//! sees a mixture. May call: the engine's public face.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options, Snapshot, SnapshotId, Table};
use support::{Random, state_of};

fn options() -> Options {
    Options::new()
        .memtable_bytes(256 << 10)
        .log_segment_bytes(256 << 10)
        .cache_bytes(4 << 20)
        .durability(Durability::Buffered)
        .background(false)
}

fn open(disk: &SimDisk) -> Db {
    options().open_on(Arc::new(disk.clone()), "db").unwrap()
}

fn fill(db: &Db, table: &Table, keys: std::ops::Range<u32>, value: &str) {
    let mut tx = db.begin().unwrap();
    for key in keys {
        tx.put(table, key.to_be_bytes(), value).unwrap();
    }
    tx.commit().unwrap();
}

#[test]
fn the_state_is_there_again_and_the_way_back_too() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let table = db.table("t").unwrap();
    fill(&db, &table, 0..2000, "first");
    let first = db.snapshot_now("first").unwrap();
    let state_1 = state_of(&db.snapshot());
    fill(&db, &table, 1000..3000, "second");
    db.delete(&table, 7u32.to_be_bytes()).unwrap();
    db.put(&table, "large", vec![9; 100_000]).unwrap();
    let middle = db.snapshot_now("middle").unwrap();
    let state_2 = state_of(&db.snapshot());
    fill(&db, &table, 0..10, "third");
    let state_3 = state_of(&db.snapshot());
    let seq = db.snapshot().seq();

    let restored = db.restore("first").unwrap();
    assert_eq!(u64::from(restored.seq), u64::from(seq) + 1, "one commit");
    assert_eq!(db.snapshot().seq(), restored.seq);
    assert_eq!(state_of(&db.snapshot()), state_1);
    assert_eq!(db.get(&table, 1500u32.to_be_bytes()).unwrap().unwrap(), b"first", "the handle stays good");
    let info = db.snapshot_info(restored.before).unwrap();
    assert_eq!((info.seq, &info.metadata[..]), (seq, &b"before restoring snapshot 1"[..]));
    for (id, state) in [(first, &state_1), (middle, &state_2), (restored.before, &state_3)] {
        assert_eq!(state_of(&db.as_of(id).unwrap()), *state, "snapshot {id}");
    }
    db.verify().unwrap();

    // Forward again, by way of a closed database.
    drop(db);
    let db = open(&disk);
    assert_eq!(state_of(&db.snapshot()), state_1);
    let again = db.restore(restored.before).unwrap();
    assert_eq!(state_of(&db.snapshot()), state_3);
    assert_eq!(state_of(&db.as_of(again.before).unwrap()), state_1);
    let table = db.open_table("t").unwrap();
    fill(&db, &table, 0..100, "fourth");
    db.merge().unwrap();
    for (id, state) in [(first, &state_1), (middle, &state_2), (restored.before, &state_3)] {
        assert_eq!(state_of(&db.as_of(id).unwrap()), *state, "snapshot {id}");
    }
    db.verify().unwrap();
}

#[test]
fn a_state_that_is_declared_already_is_not_declared_twice() {
    let db = open(&SimDisk::new());
    let table = db.table("t").unwrap();
    db.put(&table, "k", "1").unwrap();
    let first = db.snapshot_now("first").unwrap();
    db.put(&table, "k", "2").unwrap();
    let second = db.snapshot_now("second").unwrap();
    assert_eq!(db.restore(first).unwrap().before, second);
    assert_eq!(db.get(&table, "k").unwrap().unwrap(), b"1");
    assert_eq!(db.snapshots().unwrap().len(), 2);
    // What the restored state is was declared by another commit, so it is declared anew.
    let third = db.restore(second).unwrap().before;
    assert_eq!(db.snapshots().unwrap().len(), 3);
    assert_eq!(db.as_of(third).unwrap().get(&table, "k").unwrap().unwrap(), b"1");
    // Ids and names go on.
    assert_eq!(u64::from(db.snapshot_now("fourth").unwrap()), 4);
    assert!(matches!(db.snapshot_now("first"), Err(Error::NameTaken { .. })));
}

#[test]
fn the_present_can_be_restored_too() {
    let db = open(&SimDisk::new());
    let table = db.table("t").unwrap();
    db.put(&table, "k", "1").unwrap();
    let now = db.snapshot_now(None).unwrap();
    let restored = db.restore(now).unwrap();
    assert_eq!(restored.before, now);
    assert_eq!(db.get(&table, "k").unwrap().unwrap(), b"1");
    assert!(matches!(db.restore("no such"), Err(Error::SnapshotNotFound { .. })));
}

#[test]
fn tables_come_and_go_with_the_state() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let [dropped, remade, stays] = ["dropped", "remade", "stays"].map(|name| db.table(name).unwrap());
    for table in [&dropped, &remade, &stays] {
        fill(&db, table, 0..500, table.name());
    }
    let then = db.snapshot_now("then").unwrap();
    let state = state_of(&db.snapshot());
    db.drop_table("dropped").unwrap();
    db.drop_table("remade").unwrap();
    let made_anew = db.table("remade").unwrap();
    fill(&db, &made_anew, 0..5, "other");
    let new = db.table("new").unwrap();
    fill(&db, &new, 0..5, "new");
    db.merge().unwrap();
    let state_2 = state_of(&db.snapshot());

    let restored = db.restore(then).unwrap();
    assert_eq!(state_of(&db.snapshot()), state);
    assert_eq!(db.tables().unwrap(), ["dropped", "remade", "stays"]);
    for gone in [&new, &made_anew, &dropped] {
        assert!(matches!(db.get(gone, "k"), Err(Error::TableNotFound { .. })), "{gone:?}");
        assert!(matches!(db.put(gone, "k", "v"), Err(Error::TableNotFound { .. })), "{gone:?}");
    }
    assert_eq!(db.get(&stays, 3u32.to_be_bytes()).unwrap().unwrap(), b"stays");
    let again = db.open_table("dropped").unwrap();
    db.put(&again, "k", "written behind").unwrap();
    assert_eq!(db.as_of(then).unwrap().get(&again, 3u32.to_be_bytes()).unwrap().unwrap(), b"dropped");
    assert_eq!(state_of(&db.as_of(then).unwrap()), state);
    // A new table's id is nobody else's.
    let newer = db.table("newer").unwrap();
    assert_eq!(db.snapshot().range(&newer, ..).unwrap().count(), 0);
    db.restore(restored.before).unwrap();
    assert_eq!(state_of(&db.snapshot()), state_2);
    drop(db);
    let db = open(&disk);
    assert_eq!(state_of(&db.snapshot()), state_2);
    db.verify().unwrap();
}

#[test]
fn transactions_from_before_lose() {
    let db = open(&SimDisk::new());
    let table = db.table("t").unwrap();
    db.put(&table, "k", "1").unwrap();
    let then = db.snapshot_now(None).unwrap();
    db.put(&table, "k", "2").unwrap();
    let mut writes = db.begin().unwrap();
    writes.put(&table, "other", "x").unwrap();
    let mut reads = db.begin_serializable().unwrap();
    assert_eq!(reads.get(&table, "k").unwrap().unwrap(), b"2");
    reads.put(&table, "sum", "2").unwrap();
    let only_reads = db.begin_serializable().unwrap();
    assert_eq!(only_reads.get(&table, "k").unwrap().unwrap(), b"2");
    db.restore(then).unwrap();
    assert_eq!(only_reads.get(&table, "k").unwrap().unwrap(), b"2", "its view stays what it was");
    only_reads.commit().unwrap();
    assert!(matches!(writes.commit(), Err(Error::Conflict { key, .. }) if key == b"other"));
    assert!(matches!(reads.commit(), Err(Error::Conflict { .. })));
    let mut later = db.begin_serializable().unwrap();
    assert_eq!(later.get(&table, "k").unwrap().unwrap(), b"1");
    later.put(&table, "sum", "1").unwrap();
    later.commit().unwrap();
}

#[test]
fn deleting_afterwards_gives_back_what_only_the_deleted_kept() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let table = db.table("t").unwrap();
    let mut states = Vec::new();
    for round in 0..12u32 {
        fill(&db, &table, round * 50..round * 50 + 400, &format!("round {round}"));
        states.push((db.snapshot_now(None).unwrap(), state_of(&db.snapshot())));
        if round % 3 == 2 {
            let (id, state) = &states[round as usize / 2];
            let before = db.restore(*id).unwrap().before;
            assert_eq!(before, states[round as usize].0);
            assert_eq!(state_of(&db.snapshot()), *state);
        }
    }
    let mut random = Random(5);
    while !states.is_empty() {
        let (id, _) = states.swap_remove(random.below(states.len() as u64) as usize);
        db.delete_snapshot(id).unwrap();
        for (id, state) in &states {
            assert_eq!(state_of(&db.as_of(*id).unwrap()), *state, "snapshot {id}");
        }
        db.verify().unwrap();
    }
    db.merge().unwrap();
    let stats = db.stats().unwrap();
    assert_eq!((stats.history_bytes, stats.retained_bases), (0, 0), "{stats:?}");
    // Superblocks, the catalogue and the map of free space.
    assert!(stats.base_history_bytes <= 10 * 4096, "{stats:?}");
}

#[test]
fn the_cost_is_that_of_the_difference() {
    let db = open(&SimDisk::new());
    let table = db.table("t").unwrap();
    for part in 0..40u32 {
        fill(&db, &table, part * 2500..part * 2500 + 2500, &"v".repeat(100));
    }
    db.merge().unwrap();
    let then = db.snapshot_now(None).unwrap();
    fill(&db, &table, 5000..5100, "changed");
    let used_bytes = || {
        let stats = db.stats().unwrap();
        stats.base_bytes - stats.base_free_bytes
    };
    db.merge().unwrap();
    let before = used_bytes();
    db.restore(then).unwrap();
    let grown = used_bytes() - before;
    assert!(grown < 200 << 10, "{grown} bytes of {before}");
}

/// Writers and readers go on beside restores: each state that is seen is one of the states there were, whole.
#[test]
fn nobody_sees_a_mixture() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(1 << 20).durability(Durability::Buffered);
    let db = options.open(directory.path().join("db")).unwrap();
    let table = db.table("t").unwrap();
    const KEYS: u32 = 64;
    // Every commit writes the same number to all keys.
    let write = |number: u64| -> bygone::Result<u64> {
        let mut tx = db.begin()?;
        for key in 0..KEYS {
            tx.put(&table, key.to_be_bytes(), number.to_be_bytes())?;
        }
        tx.commit().map(u64::from)
    };
    let read = |snapshot: &Snapshot| -> Vec<u64> {
        let rows = snapshot.range(&table, ..).unwrap();
        rows.map(|kv| u64::from_be_bytes(kv.unwrap().1[..].try_into().unwrap())).collect()
    };
    write(0).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !over.load(Ordering::Relaxed) {
                match write(number) {
                    Ok(_) => {}
                    Err(Error::Conflict { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                number += 1;
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    let numbers = read(&snapshot);
                    assert_eq!(numbers.len(), KEYS as usize);
                    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
                    assert_eq!(read(&snapshot), numbers, "commit {}", snapshot.seq());
                }
            });
        }
        let mut declared: Vec<(SnapshotId, Vec<u64>)> = Vec::new();
        let mut random = Random(11);
        for round in 0..12 {
            let id = db.snapshot_now(None).unwrap();
            declared.push((id, read(&db.as_of(id).unwrap())));
            let (id, numbers) = &declared[random.below(declared.len() as u64) as usize];
            let restored = db.restore(*id).unwrap();
            let seen = db.snapshot();
            if seen.seq() == restored.seq {
                assert_eq!(read(&seen), *numbers, "round {round}");
            }
            let before = db.as_of(restored.before).unwrap();
            assert_eq!(u64::from(before.seq()) + 1, u64::from(restored.seq));
            declared.push((restored.before, read(&before)));
        }
        over.store(true, Ordering::Relaxed);
        for (id, numbers) in &declared {
            assert_eq!(read(&db.as_of(*id).unwrap()), *numbers);
        }
    });
    db.verify().unwrap();
}

#[test]
fn a_cut_at_any_operation_leaves_one_state_or_the_other() {
    let disk = SimDisk::new();
    let (then, states) = {
        let db = open(&disk);
        let table = db.table("t").unwrap();
        fill(&db, &table, 0..300, "first");
        let then = db.snapshot_now("then").unwrap();
        let first = state_of(&db.snapshot());
        fill(&db, &table, 100..400, "second");
        db.table("another").unwrap();
        let mut tx = db.begin().unwrap();
        tx.put(&table, "last", "word").unwrap();
        tx.set_durability(Durability::Sync);
        tx.commit().unwrap();
        (then, [first, state_of(&db.snapshot())])
    };
    let run = |cut: Option<u64>| {
        let copy = disk.crash_image(1);
        let db = open(&copy);
        let start = copy.operations();
        if let Some(n) = cut {
            copy.crash_at(start + n);
        }
        let restored = db.restore(then);
        assert_eq!(restored.is_err(), cut.is_some(), "{restored:?}");
        (copy.operations() - start, copy)
    };
    let (operations, _) = run(None);
    let (mut before, mut behind) = (0, 0);
    for cut in 0..operations {
        let (_, copy) = run(Some(cut));
        // What was not synced may be there or not: at the last sync, which is the commit, that decides.
        for seed in 0..if cut + 3 > operations { 12 } else { 2 } {
            let image = copy.crash_image(cut + seed);
            let db = open(&image);
            let found = state_of(&db.snapshot());
            let at = states.iter().position(|state| *state == found);
            match at {
                Some(0) => {
                    behind += 1;
                    let last = db.snapshots().unwrap().pop().unwrap();
                    assert_eq!(state_of(&db.as_of(&last).unwrap()), states[1], "cut at {cut}: lost");
                }
                Some(_) => before += 1,
                None => panic!("cut at {cut}: neither state"),
            }
            assert_eq!(state_of(&db.as_of(then).unwrap()), states[0], "cut at {cut}");
            db.verify().unwrap();
            // And it goes on.
            let restored = db.restore(then).unwrap();
            assert_eq!(state_of(&db.snapshot()), states[0]);
            db.restore(restored.before).unwrap();
            assert_eq!(state_of(&db.snapshot()), found, "cut at {cut}");
        }
    }
    assert!(before > 0 && behind > 0, "{before} before, {behind} behind");
}
