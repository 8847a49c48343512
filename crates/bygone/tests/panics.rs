//! A panic in a background thread is told to every writer, and nobody hangs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bygone::io::{Operation, SimDisk};
use bygone::{Durability, Error, Options, Result};

/// Writes until the database is poisoned; answers the cause.
fn poisoned_by(panics: fn(Operation, &Path) -> bool) -> String {
    let disk = SimDisk::new();
    let options = || {
        let options = Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10);
        options.durability(Durability::Buffered)
    };
    let db = options().open_on(Arc::new(disk.clone()), "db").unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "first", "1").unwrap();
    disk.fail_matching(move |operation, path| {
        assert!(!panics(operation, path), "the disk is haunted");
        None
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let put = |number: u32| -> Result<()> { db.put(&table, number.to_be_bytes(), [7; 500]) };
    let mut acknowledged = 0;
    let cause = loop {
        assert!(Instant::now() < deadline, "the writers never learn of it");
        match put(acknowledged) {
            Ok(()) => acknowledged += 1,
            Err(Error::Poisoned { cause }) => break cause,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(db.get(&table, "first").unwrap().unwrap(), b"1", "reading goes on");
    assert!(matches!(db.flush(), Err(Error::Poisoned { .. })));
    drop((db, table));
    disk.clear_faults();
    let db = options().open_on(Arc::new(disk), "db").unwrap();
    let table = db.open_table("t").unwrap();
    let rows = db.snapshot().range(&table, ..).unwrap().count();
    assert_eq!(rows, acknowledged as usize + 1, "every acknowledged record is there after reopening");
    cause
}

#[test]
fn a_panic_in_a_flush_poisons_with_its_message() {
    let cause = poisoned_by(|operation, path| operation == Operation::Write && path.starts_with("db/runs"));
    assert!(cause.contains("bygone-flush") && cause.contains("haunted"), "{cause}");
}

#[test]
fn a_panic_in_a_merge_poisons_with_its_message() {
    // The base's file is also written by a flush (its superblock), but only a merge removes runs.
    let cause = poisoned_by(|operation, path| operation == Operation::Remove && path.starts_with("db/runs"));
    assert!(cause.contains("bygone-merge") && cause.contains("haunted"), "{cause}");
}
