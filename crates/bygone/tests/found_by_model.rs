//! What the model test and the isolation tests have found, each in its smallest form.
//!
//! Owns: nothing. Promises: none of it comes back. May call: the engine's public face.

use std::sync::atomic::{AtomicBool, Ordering};

use bygone::{Db, Durability, Error, Options};

fn open(path: &std::path::Path) -> Db {
    Options::new().background(false).memtable_bytes(64 << 10).log_segment_bytes(64 << 10).open(path).unwrap()
}

#[test]
fn a_range_read_backward_from_a_deleted_key_goes_backward() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    let table = db.table("t").unwrap();
    db.put(&table, "a", "1").unwrap();
    db.put(&table, "c", "2").unwrap();
    db.delete(&table, "b").unwrap();
    let end = b"b".as_slice();
    let mut range = db.snapshot().range(&table, ..=end).unwrap();
    assert_eq!(range.next_back().unwrap().unwrap().0, b"a");
    assert!(range.next_back().is_none());
}

#[test]
fn a_dropped_tables_number_is_not_given_away_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let declared = {
        let db = open(directory.path());
        let table = db.table("old").unwrap();
        db.put(&table, "k", "of the old table").unwrap();
        let declared = db.snapshot_now(None).unwrap();
        db.drop_table("old").unwrap();
        declared
    };
    let db = open(directory.path());
    let table = db.table("new").unwrap();
    assert_eq!(db.get(&table, "k").unwrap(), None);
    let past = db.as_of(declared).unwrap();
    let old = past.table("old").unwrap();
    assert_eq!(past.get(&old, "k").unwrap().unwrap(), b"of the old table");
    assert_eq!(past.get(&table, "k").unwrap(), None);
}

#[test]
fn nothing_is_written_through_a_handle_that_a_snapshot_gave_of_a_table_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    db.table("t").unwrap();
    let past = db.snapshot();
    db.drop_table("t").unwrap();
    let old = past.table("t").unwrap();
    for _ in 0..2 {
        assert!(matches!(db.put(&old, "k", "v"), Err(Error::TableNotFound { .. })));
        let mut tx = db.begin().unwrap();
        // Whether the handle or the commit refuses it: it must not succeed and be lost.
        let answer = tx.put(&old, "k", "v").and_then(|()| tx.commit());
        assert!(matches!(answer, Err(Error::TableNotFound { .. })), "{answer:?}");
        // Also when there is a table of that name again.
        db.table("t").unwrap();
    }
}

#[test]
fn a_table_that_was_read_and_dropped_meanwhile_is_a_conflict_under_serializable() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    let other = db.table("other").unwrap();
    let read: [fn(&bygone::Transaction, &bygone::Table); 2] = [
        |tx, table| assert!(tx.get(table, "k").unwrap().is_some()),
        |tx, table| assert_eq!(tx.range(table, ..).unwrap().count(), 1),
    ];
    for read in read {
        let table = db.table("t").unwrap();
        db.put(&table, "k", "v").unwrap();
        let mut tx = db.begin_serializable().unwrap();
        read(&tx, &table);
        tx.put(&other, "copy", "v").unwrap();
        db.drop_table("t").unwrap();
        let answer = tx.commit();
        assert!(matches!(&answer, Err(Error::Conflict { table, .. }) if table == "t"), "{answer:?}");
    }
}

/// A conflict over a table that was only read once asked the directory of tables for its name, under the leader's lock, while whoever made a table held the
/// directory and waited for the leader.
#[test]
fn conflicts_over_tables_that_were_only_read_do_not_wait_for_who_makes_tables() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    let (read, written) = (db.table("read").unwrap(), db.table("written").unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (db, read, written, stop) = (&db, &read, &written, &stop);
            scope.spawn(move || {
                let mut conflicts = 0;
                while conflicts < 300 {
                    let mut tx = db.begin_serializable().unwrap();
                    tx.set_durability(Durability::Buffered);
                    tx.get(read, "k").unwrap();
                    tx.put(written, [thread], "v").unwrap();
                    let mut other = db.begin().unwrap();
                    other.set_durability(Durability::Buffered);
                    other.put(read, "k", "v").unwrap();
                    // The other thread may have been faster.
                    let _ = other.commit();
                    match tx.commit() {
                        Err(Error::Conflict { table, .. }) => {
                            assert_eq!(table, "read");
                            conflicts += 1;
                        }
                        answer => drop(answer.unwrap()),
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        while !stop.load(Ordering::Relaxed) {
            db.table("short-lived").unwrap();
            db.drop_table("short-lived").unwrap();
        }
    });
}
