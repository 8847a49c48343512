//! Deleting declared snapshots, holding them, and retention.
//!
//! Promises: what is deleted is gone with a word of when and why, its space comes back, and everything else reads
//! as before. May call: the engine's public face.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options, Retention, Snapshot, SnapshotId, Table};

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

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Puts `count` records of a round, spread over `keys` keys.
fn put_round(db: &Db, table: &Table, rows: &mut Rows, round: u64, count: u64, keys: u64) {
    let mut tx = db.begin().unwrap();
    for n in 0..count {
        let key = format!("key-{:06}", (round * count + n) * 7919 % keys).into_bytes();
        let value = format!("{round:05}").repeat(20).into_bytes();
        tx.put(table, &key, &value).unwrap();
        rows.insert(key, value);
    }
    tx.commit().unwrap();
}

fn assert_reads(snapshot: &Snapshot, table: &Table, expected: &Rows, what: &str) {
    let found: Rows = snapshot
        .range(table, ..)
        .unwrap()
        .map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
        .collect();
    assert!(found == *expected, "{what}: {} records, not {}", found.len(), expected.len());
}

/// A database with so many rounds, a snapshot after each, merged every few.
struct Filled {
    disk: SimDisk,
    db: Db,
    table: Table,
    states: Vec<(SnapshotId, Rows)>,
}

fn filled(rounds: u64, count: u64, merge_every: u64) -> Filled {
    let disk = SimDisk::new();
    let db = open(&disk);
    let table = db.table("t").unwrap();
    let mut rows = Rows::new();
    let mut states = Vec::new();
    for round in 0..rounds {
        put_round(&db, &table, &mut rows, round, count, 2000);
        states.push((db.snapshot_now(None).unwrap(), rows.clone()));
        if round % merge_every == merge_every - 1 {
            db.merge().unwrap();
        }
    }
    Filled { disk, db, table, states }
}

impl Filled {
    fn check(&self, what: &str) {
        let ids: Vec<_> = self.db.snapshots().unwrap().iter().map(|info| info.id).collect();
        assert!(ids.iter().eq(self.states.iter().map(|(id, _)| id)), "{what}");
        for (id, rows) in &self.states {
            assert_reads(&self.db.as_of(*id).unwrap(), &self.table, rows, &format!("{what}: snapshot {id}"));
        }
        self.db.verify().unwrap();
    }

    fn delete(&mut self, is_doomed: impl Fn(usize) -> bool) {
        let mut index = 0;
        let mut doomed = Vec::new();
        self.states.retain(|(id, _)| {
            index += 1;
            if is_doomed(index - 1) {
                doomed.push(*id);
            }
            !is_doomed(index - 1)
        });
        self.db.delete_snapshots(doomed).unwrap();
    }

    fn past_bytes(&self) -> u64 {
        let stats = self.db.stats().unwrap();
        stats.history_bytes + stats.base_history_bytes
    }
}

#[test]
fn a_deleted_snapshot_is_gone_and_its_name_is_free() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let table = db.table("t").unwrap();
    db.put(&table, "k", "1").unwrap();
    let first = db.snapshot_now("first").unwrap();
    let second = db.snapshot_now("second").unwrap();
    let before = SystemTime::now() - Duration::from_secs(1);
    db.delete_snapshot("first").unwrap();
    for answer in [db.as_of(first), db.as_of("first")] {
        match answer {
            Err(Error::SnapshotNotFound { deleted: Some(deletion), snapshot }) => {
                assert!(deletion.time >= before && deletion.rule.is_empty(), "{snapshot}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(db.snapshots().unwrap().len(), 1);
    assert_eq!(db.stats().unwrap().snapshots, 1);
    assert!(
        matches!(db.snapshot_now("second"), Err(Error::NameTaken { snapshot, .. }) if snapshot == second)
    );
    let again = db.snapshot_now("first").unwrap();
    assert!(again > second, "ids are not given twice");
    assert_eq!(db.snapshot_info("first").unwrap().id, again);
    assert!(matches!(db.delete_snapshot(first), Err(Error::SnapshotNotFound { deleted: Some(_), .. })));
}

#[test]
fn a_set_is_deleted_as_a_whole_or_not_at_all() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let ids: Vec<_> = (0..5).map(|_| db.snapshot_now(None).unwrap()).collect();
    let missing = SnapshotId::from(99);
    let answer = db.delete_snapshots([ids[0], missing]);
    assert!(matches!(answer, Err(Error::SnapshotNotFound { deleted: None, .. })));
    assert_eq!(db.snapshots().unwrap().len(), 5);
    db.delete_snapshots([ids[3], ids[0], ids[3]]).unwrap();
    assert_eq!(db.snapshots().unwrap().len(), 3);
    db.delete_snapshots(Vec::<SnapshotId>::new()).unwrap();
}

#[test]
fn a_deletion_is_there_after_a_power_cut() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let ids: Vec<_> = (0..4).map(|_| db.snapshot_now(None).unwrap()).collect();
    db.delete_snapshots([ids[1], ids[2]]).unwrap();
    let db = open(&disk.killed_image());
    let left: Vec<_> = db.snapshots().unwrap().iter().map(|info| info.id).collect();
    assert_eq!(left, [ids[0], ids[3]]);
    assert!(matches!(db.as_of(ids[2]), Err(Error::SnapshotNotFound { deleted: Some(_), .. })));
}

#[test]
fn a_held_snapshot_stays_until_all_have_let_it_go() {
    let disk = SimDisk::new();
    let db = open(&disk);
    let id = db.snapshot_now("kept").unwrap();
    db.hold_snapshot(id, "backup").unwrap();
    db.hold_snapshot("kept", "audit").unwrap();
    db.hold_snapshot("kept", "audit").unwrap();
    assert_eq!(db.snapshot_info(id).unwrap().holders, ["audit", "backup"]);
    assert_eq!(db.snapshots().unwrap()[0].holders, ["audit", "backup"]);
    match db.delete_snapshot(id) {
        Err(Error::SnapshotHeld { snapshot, holders }) => {
            assert_eq!((snapshot, holders), (id, vec!["audit".to_owned(), "backup".to_owned()]));
        }
        other => panic!("{other:?}"),
    }
    db.release_snapshot(id, "audit").unwrap();
    assert!(matches!(db.release_snapshot(id, "audit"), Err(Error::InvalidArgument { .. })));
    drop(db);
    let db = open(&disk);
    assert!(matches!(db.delete_snapshot(id), Err(Error::SnapshotHeld { .. })), "holds survive");
    db.release_snapshot(id, "backup").unwrap();
    db.delete_snapshot(id).unwrap();
    assert!(matches!(db.hold_snapshot(id, "late"), Err(Error::SnapshotNotFound { .. })));
    assert!(db.hold_snapshot(id, "").is_err());
}

#[test]
fn deleting_snapshots_that_are_not_merged_keeps_the_others() {
    let mut filled = filled(30, 50, 1000);
    filled.delete(|index| index % 3 != 0);
    filled.check("not merged");
    filled.db.flush().unwrap();
    filled.check("flushed");
    filled.delete(|index| index % 2 == 0);
    filled.db.merge().unwrap();
    filled.check("merged");
    filled.db = open(&filled.disk.killed_image());
    filled.table = filled.db.table("t").unwrap();
    filled.check("opened again");
}

#[test]
fn deleting_any_one_leaves_all_others_as_they_are() {
    for doomed in (0..40).step_by(3) {
        let mut filled = filled(40, 60, 7);
        filled.delete(|index| index == doomed);
        filled.check(&format!("without number {doomed}"));
    }
}

#[test]
fn what_is_deleted_bit_by_bit_leaves_all_others_as_they_are() {
    let mut filled = filled(60, 60, 4);
    let mut bytes = filled.past_bytes();
    for turn in 0..20 {
        filled.delete(|index| index % 5 == turn % 5);
        filled.check(&format!("turn {turn}"));
        let now = filled.past_bytes();
        assert!(now <= bytes + 64 * 1024, "turn {turn}: {now} bytes after {bytes}");
        bytes = now;
    }
    assert!(filled.states.len() < 5);
}

#[test]
fn deleting_all_gives_all_space_back() {
    let mut filled = filled(60, 200, 5);
    let before = filled.past_bytes();
    assert!(before > 1 << 20, "{before} bytes of the past");
    filled.delete(|_| true);
    filled.check("all gone");
    // What the space map and the rows take.
    let after = filled.past_bytes();
    assert!(after < 128 << 10, "{after} bytes of the past are left");
    let stats = filled.db.stats().unwrap();
    assert_eq!((stats.history_runs, stats.history_bytes, stats.retained_bases), (0, 0, 0));
    assert_eq!(stats.prune_failure, None);
    assert!(
        filled.disk.snapshot_files().iter().all(|(path, _)| path.parent() != Some(Path::new("db/history")))
    );
    // The space is used again: the file does not grow while everything is written once more.
    let file = filled.db.stats().unwrap().base_bytes;
    let mut rows = Rows::new();
    for round in 100..110 {
        put_round(&filled.db, &filled.table, &mut rows, round, 200, 2000);
        filled.db.merge().unwrap();
    }
    assert!(filled.db.stats().unwrap().base_bytes <= file);
}

#[test]
fn deleting_most_of_a_run_s_snapshots_gives_their_records_back() {
    let mut filled = filled(30, 1000, 30);
    let before = filled.db.stats().unwrap().history_bytes;
    filled.delete(|index| index % 10 != 9);
    let after = filled.db.stats().unwrap().history_bytes;
    assert!(after * 2 < before, "{after} bytes of history, {before} before");
    filled.check("one in ten left");
}

#[test]
fn open_views_of_a_deleted_snapshot_read_on() {
    let mut filled = filled(30, 100, 3);
    let rows = filled.states[10].1.clone();
    let view = filled.db.as_of(filled.states[10].0).unwrap();
    let mut range = view.range(&filled.table, ..).unwrap();
    let first = range.next().unwrap().unwrap();
    filled.delete(|_| true);
    let mut now = filled.states.last().map(|(_, rows)| rows.clone()).unwrap_or_default();
    for round in 200..220 {
        put_round(&filled.db, &filled.table, &mut now, round, 100, 2000);
        filled.db.merge().unwrap();
    }
    assert_reads(&view, &filled.table, &rows, "a view of a deleted snapshot");
    let rest: Vec<_> = std::iter::once(first).chain(range.map(Result::unwrap)).collect();
    assert_eq!(rest.len(), rows.len());
    // Once it is let go, so is its space.
    drop(view);
    drop(rest);
    filled.db.merge().unwrap();
    assert!(filled.past_bytes() < 128 << 10, "{}", filled.past_bytes());
}

#[test]
fn a_policy_deletes_what_it_does_not_keep_and_says_so() {
    let mut filled = filled(20, 50, 4);
    let policy = Retention::new().keep_last(4);
    let planned = filled.db.plan_retention(&policy).unwrap();
    assert_eq!(planned.len(), 16);
    filled.check("a dry run");
    assert_eq!(filled.db.apply_retention(&policy).unwrap(), planned);
    let gone = filled.states.drain(..16).next().unwrap().0;
    filled.check("the policy applied");
    let error = filled.db.as_of(gone).unwrap_err();
    assert!(error.to_string().contains("keep last 4"), "{error}");
    assert!(filled.db.apply_retention(&policy).unwrap().is_empty());
    assert!(matches!(filled.db.plan_retention(&Retention::new()), Err(Error::InvalidArgument { .. })));
}

#[test]
fn a_byte_budget_takes_the_oldest_and_no_more_than_it_must() {
    let mut filled = filled(60, 200, 3);
    let before = filled.past_bytes();
    let held = filled.states[0].0;
    filled.db.hold_snapshot(held, "audit").unwrap();
    let policy = Retention::new().max_bytes(before / 2);
    let deleted = filled.db.apply_retention(&policy).unwrap();
    let after = filled.past_bytes();
    assert!(after <= before / 2 + (64 << 10), "{after} bytes, {before} before");
    assert!(after >= before / 5, "{after} bytes, {before} before: more was deleted than needed");
    assert!(!deleted.iter().any(|info| info.id == held));
    filled.states.retain(|(id, _)| !deleted.iter().any(|info| info.id == *id));
    let newest_gone = deleted.last().unwrap().id;
    assert!(filled.states.iter().skip(4).all(|(id, _)| *id > newest_gone), "the oldest go first");
    filled.check("within the budget");
}

#[test]
fn snapshots_come_and_go_beside_readers_and_writers_with_threads() {
    let directory = tempfile::tempdir().unwrap();
    let db = Options::new()
        .memtable_bytes(128 << 10)
        .log_segment_bytes(128 << 10)
        .durability(Durability::Buffered)
        .open(directory.path())
        .unwrap();
    let table = db.table("t").unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        let reader = || {
            let mut read = 0;
            while std::time::Instant::now() < deadline {
                for info in db.snapshots().unwrap() {
                    match db.as_of(info.id) {
                        // Every commit before a snapshot put its number under each key.
                        Ok(past) => {
                            let values: Vec<_> =
                                past.range(&table, ..).unwrap().map(|kv| kv.unwrap().1.to_vec()).collect();
                            assert!(values.iter().all(|value| *value == info.metadata), "{}", info.id);
                            assert_eq!(values.len(), 300);
                            read += 1;
                        }
                        Err(Error::SnapshotNotFound { deleted: Some(_), .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            assert!(read > 10);
        };
        scope.spawn(reader);
        scope.spawn(reader);
        scope.spawn(|| {
            let mut round = 0u64;
            while std::time::Instant::now() < deadline {
                round += 1;
                let mut tx = db.begin().unwrap();
                for n in 0..300u64 {
                    tx.put(&table, n.to_be_bytes(), round.to_be_bytes()).unwrap();
                }
                tx.set_snapshot_metadata(round.to_be_bytes());
                tx.commit_with_snapshot(None).unwrap();
                if round.is_multiple_of(10) {
                    db.apply_retention(&Retention::new().keep_last(7)).unwrap();
                }
            }
        });
    });
    db.verify().unwrap();
    assert_eq!(db.stats().unwrap().prune_failure, None);
}

#[test]
fn a_policy_of_the_database_is_applied_in_the_background() {
    let directory = tempfile::tempdir().unwrap();
    {
        let db = Db::open(directory.path()).unwrap();
        for _ in 0..8 {
            db.snapshot_now(None).unwrap();
        }
    }
    let refused = Options::new().retention(Retention::new()).open(directory.path());
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    let db = Options::new().retention(Retention::new().keep_last(3)).open(directory.path()).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while db.snapshots().unwrap().len() > 3 {
        assert!(std::time::Instant::now() < deadline, "{} snapshots are left", db.snapshots().unwrap().len());
        std::thread::sleep(Duration::from_millis(20));
    }
    db.prune().unwrap();
}

/// What a snapshot is said to take alone comes back when it goes, and what is said to be shared does not.
#[test]
fn sizes_are_what_deletions_give_back() {
    let mut filled = filled(12, 400, 4);
    filled.db.merge().unwrap();
    let sizes = filled.db.snapshot_sizes().unwrap();
    assert!(sizes.iter().map(|size| size.id).eq(filled.states.iter().map(|(id, _)| *id)));
    // A round writes 400 records of 110 bytes, of which the next rounds overwrite some.
    let own: u64 = sizes.iter().map(|size| size.own_bytes).sum();
    assert!(own > 0 && sizes.iter().all(|size| size.own_bytes + size.shared_bytes < 4 << 20), "{sizes:?}");
    let before = filled.past_bytes();
    assert!(own <= before, "{own} of {before}");
    filled.delete(|index| index != 5);
    let left = filled.db.snapshot_sizes().unwrap();
    assert_eq!((left.len(), left[0].id, left[0].shared_bytes), (1, filled.states[0].0, 0), "{left:?}");
    assert!(left[0].own_bytes > 0 && left[0].own_bytes <= filled.past_bytes(), "{left:?}");
    filled.delete(|_| true);
    assert!(filled.db.snapshot_sizes().unwrap().is_empty());
}
