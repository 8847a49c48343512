//! What the model test and the isolation tests have found, each in its smallest form.
//!
//! Owns: nothing. Promises: none of it comes back. May call: the engine's public face.

use bygone::{Db, Options};

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
