//! Where the history directory is: named, remembered, moved, missing.
//!
//! Owns: nothing. Promises: the present opens without it; the past says what is missing, and comes back with it.

use std::path::Path;

use bygone::{Db, Error, Options, Result, SnapshotId};

fn options() -> Options {
    Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10).background(false)
}

/// A database with ten snapshots, of which the pages are archived.
fn make(directory: &Path) {
    let db = options().history_dir(directory.join("past")).open(directory.join("db")).unwrap();
    let table = db.table("t").unwrap();
    for round in 0..10u32 {
        for key in 0..400u32 {
            db.put(&table, key.to_be_bytes(), vec![round as u8; 200]).unwrap();
        }
        db.snapshot_now(None).unwrap();
        db.merge().unwrap();
    }
    db.archive().unwrap();
    assert!(db.stats().unwrap().archived_pages > 0);
    // The slots are used again: what was there is in the history directory alone.
    for key in 0..400u32 {
        db.put(&table, key.to_be_bytes(), vec![9; 300]).unwrap();
    }
    db.merge().unwrap();
}

fn check_past(db: &Db) {
    let table = db.open_table("t").unwrap();
    for round in 0..10u32 {
        let past = db.as_of(SnapshotId::from(u64::from(round) + 1)).unwrap();
        for key in [0, 17, 399u32] {
            assert_eq!(past.get(&table, key.to_be_bytes()).unwrap().unwrap()[..], [round as u8; 200]);
        }
    }
    db.verify().unwrap();
}

/// What the oldest snapshot gives.
fn read_oldest(db: &Db) -> Result<()> {
    let table = db.open_table("t")?;
    let past = db.as_of(SnapshotId::from(1))?;
    past.range(&table, ..)?.try_for_each(|record| record.map(drop))
}

fn check_present(db: &Db) {
    let table = db.open_table("t").unwrap();
    assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 400);
    db.put(&table, 0u32.to_be_bytes(), vec![9; 200]).unwrap();
    db.snapshot_now(None).unwrap();
    db.put(&table, 0u32.to_be_bytes(), vec![9; 200]).unwrap();
    db.merge().unwrap();
    db.merge().unwrap();
}

fn is_unavailable(result: Result<()>) {
    match result {
        Err(error @ Error::HistoryUnavailable { .. }) => {
            assert!(error.to_string().contains("past"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_directory_is_remembered() {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path());
    check_past(&options().open(directory.path().join("db")).unwrap());
    check_past(&options().read_only(true).open(directory.path().join("db")).unwrap());
}

#[test]
fn a_moved_directory_is_named_once() {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path());
    let (old, new) = (directory.path().join("past"), directory.path().join("past-elsewhere"));
    std::fs::rename(old, &new).unwrap();
    let path = directory.path().join("db");
    is_unavailable(read_oldest(&options().open(&path).unwrap()));
    check_past(&options().history_dir(&new).open(&path).unwrap());
    check_past(&options().open(&path).unwrap());
}

#[test]
fn a_missing_directory_is_no_harm_to_the_present_and_may_come_back() {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path());
    let (past, away) = (directory.path().join("past"), directory.path().join("away"));
    std::fs::rename(&past, &away).unwrap();
    let path = directory.path().join("db");
    let db = options().open(&path).unwrap();
    check_present(&db);
    is_unavailable(read_oldest(&db));
    is_unavailable(db.archive());
    assert!(db.stats().unwrap().archive_failure.is_some());
    assert!(!past.exists(), "nothing is made in its place");
    // A deletion stands, and what it frees is given back later.
    db.delete_snapshot(SnapshotId::from(2)).unwrap();
    std::fs::rename(&away, &past).unwrap();
    db.archive().unwrap();
    read_oldest(&db).unwrap();
    assert!(db.stats().unwrap().archive_failure.is_none());
    db.prune().unwrap();
    db.verify().unwrap();
    assert_eq!(db.snapshots().unwrap().len(), 10);
}

#[test]
fn another_directory_does_not_pass_for_it() {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path());
    let other = directory.path().join("another-past");
    std::fs::create_dir(&other).unwrap();
    let path = directory.path().join("db");
    let db = options().history_dir(&other).open(&path).unwrap();
    check_present(&db);
    is_unavailable(read_oldest(&db));
    drop(db);
    assert!(other.read_dir().unwrap().next().is_none(), "nothing is put there");
    let db = options().open(&path).unwrap();
    read_oldest(&db).unwrap();
    db.verify().unwrap();
}

#[test]
fn two_databases_share_a_history_directory() {
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path().join("past");
    for name in ["one", "two"] {
        let own = directory.path().join(name);
        std::fs::create_dir(&own).unwrap();
        std::os::unix::fs::symlink(&shared, own.join("past")).unwrap();
        std::fs::create_dir_all(&shared).unwrap();
        make(&own);
    }
    for name in ["one", "two"] {
        check_past(&options().open(directory.path().join(name).join("db")).unwrap());
    }
}

#[test]
fn senseless_options_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let refused = [
        options().archive_segment_bytes(1000),
        options().archive_segment_bytes(2 << 30),
        options().history_dir("x/".repeat(300)),
    ];
    for options in refused {
        assert!(matches!(options.open(&path), Err(Error::InvalidArgument { .. })));
    }
}
