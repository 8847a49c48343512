//! Sizes and counts at their limits, and who is refused.
//!
//! Owns: nothing. Promises: what is within a limit comes back whole from wherever it lies, what is beyond is
//! refused by its name, and nothing is harmed by a refusal. May call: the engine's public face.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bygone::limits::{KEY_BYTES_MAX, METADATA_BYTES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use bygone::{Db, Durability, Error, Options, Result};

fn options() -> Options {
    Options::new().durability(Durability::Buffered)
}

fn is_too_large<T: std::fmt::Debug>(answer: Result<T>, size: usize, limit: usize) -> bool {
    matches!(answer, Err(Error::TooLarge { size: s, limit: l, .. }) if (s, l) == (size as u64, limit as u64))
}

fn is_not_found<T: std::fmt::Debug>(answer: Result<T>) -> bool {
    matches!(answer, Err(Error::TableNotFound { table }) if table == "t")
}

/// Every file below a directory, with its bytes.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

/// Closes, opens, flushes and merges; `check` sees each state.
fn everywhere(directory: &Path, options: &Options, db: Db, check: impl Fn(&Db)) {
    check(&db);
    drop(db);
    let db = options.clone().open(directory).unwrap();
    check(&db);
    db.flush().unwrap();
    check(&db);
    db.merge().unwrap();
    check(&db);
    drop(db);
    let db = options.clone().open(directory).unwrap();
    check(&db);
    db.verify().unwrap();
}

#[test]
fn keys_of_every_length_up_to_the_limit_come_back_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let keys: Vec<Vec<u8>> = (0..=KEY_BYTES_MAX).map(|length| vec![0xff; length]).collect();
    for key in &keys {
        db.put(&table, key, key.len().to_le_bytes()).unwrap();
    }
    everywhere(directory.path(), &options(), db, |db| {
        let table = db.open_table("t").unwrap();
        let found: Vec<_> = db.snapshot().range(&table, ..).unwrap().map(|item| item.unwrap()).collect();
        assert!(found.iter().map(|(key, _)| &key[..]).eq(keys.iter().map(|key| &key[..])));
        assert!(found.iter().all(|(key, value)| *value == &key.len().to_le_bytes()));
    });
}

#[test]
fn a_key_over_the_limit_is_refused_and_finds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let key = vec![b'k'; KEY_BYTES_MAX + 1];
    assert!(is_too_large(db.put(&table, &key, "v"), key.len(), KEY_BYTES_MAX));
    assert!(is_too_large(db.delete(&table, &key), key.len(), KEY_BYTES_MAX));
    let mut tx = db.begin().unwrap();
    assert!(is_too_large(tx.put(&table, &key, "v"), key.len(), KEY_BYTES_MAX));
    tx.put(&table, "k", "the transaction goes on").unwrap();
    tx.commit().unwrap();
    for layer in 0..3 {
        assert_eq!(db.get(&table, &key).unwrap(), None);
        assert_eq!(db.snapshot().range(&table, &key[..]..).unwrap().count(), 0);
        assert_eq!(db.snapshot().range(&table, ..&key[..]).unwrap().rev().count(), 1);
        if layer == 0 { db.flush() } else { db.merge() }.unwrap();
    }
}

#[test]
fn a_value_over_the_limit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    // Zeroed memory that nobody touches takes no room.
    let value = vec![0; VALUE_BYTES_MAX + 1];
    assert!(is_too_large(db.put(&table, "k", &value), value.len(), VALUE_BYTES_MAX));
    assert!(is_too_large(db.begin().unwrap().put(&table, "k", &value), value.len(), VALUE_BYTES_MAX));
    assert_eq!(db.get(&table, "k").unwrap(), None);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64 / 8).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

fn a_value_comes_back(length: usize, options: Options) {
    let directory = tempfile::tempdir().unwrap();
    let value = pattern(length);
    let db = options.clone().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "before", "small").unwrap();
    db.put(&table, "k", &value).unwrap();
    let declared = db.snapshot_now("large").unwrap();
    db.put(&table, "z", "small").unwrap();
    everywhere(directory.path(), &options, db, |db| {
        let table = db.open_table("t").unwrap();
        let same = db.snapshot().get_with(&table, "k", |found| found == value).unwrap();
        assert_eq!(same, Some(true));
        assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 3);
    });
    let db = options.open(directory.path()).unwrap();
    let table = db.open_table("t").unwrap();
    db.delete(&table, "k").unwrap();
    db.merge().unwrap();
    assert_eq!(db.get(&table, "k").unwrap(), None);
    let past = db.as_of(declared).unwrap();
    assert_eq!(past.get_with(&table, "k", |found| found == value).unwrap(), Some(true));
}

#[test]
fn a_value_of_64_megabytes_comes_back() {
    a_value_comes_back(64 << 20, options());
    a_value_comes_back(
        64 << 20,
        options().memtable_bytes(64 << 10).log_segment_bytes(64 << 10).cache_bytes(0),
    );
}

#[test]
#[ignore = "needs several GiB of memory and disk"]
fn a_value_of_the_largest_size_comes_back() {
    a_value_comes_back(VALUE_BYTES_MAX, options());
}

#[test]
fn values_around_the_sizes_where_they_are_stored_otherwise_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let edges = [0usize, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536];
    let lengths = || edges.into_iter().flat_map(|edge| edge.saturating_sub(60)..edge + 20);
    for length in lengths() {
        db.put(&table, (length as u32).to_be_bytes(), vec![length as u8; length]).unwrap();
    }
    everywhere(directory.path(), &options(), db, |db| {
        let table = db.open_table("t").unwrap();
        for length in lengths() {
            let value = db.get(&table, (length as u32).to_be_bytes()).unwrap().unwrap();
            assert!(value.len() == length && value.iter().all(|byte| *byte == length as u8), "{length}");
        }
    });
}

#[test]
fn names_and_metadata_have_limits() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    // 255 bytes in characters of two bytes and one.
    let longest = format!("{}x", "é".repeat(NAME_BYTES_MAX / 2));
    let long = format!("{longest}y");
    assert!(is_too_large(db.table(&long), NAME_BYTES_MAX + 1, NAME_BYTES_MAX));
    assert!(is_too_large(db.snapshot_now(&*long), NAME_BYTES_MAX + 1, NAME_BYTES_MAX));
    assert!(matches!(db.table(""), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.snapshot_now(""), Err(Error::InvalidArgument { .. })));
    let with_metadata = |bytes: usize| {
        let mut tx = db.begin().unwrap();
        tx.set_snapshot_metadata(vec![9; bytes]);
        tx.commit_with_snapshot(None)
    };
    assert!(is_too_large(with_metadata(METADATA_BYTES_MAX + 1), METADATA_BYTES_MAX + 1, METADATA_BYTES_MAX));
    // What was refused has left nothing, not even a gap in the numbers.
    let table = db.table(&longest).unwrap();
    db.put(&table, "k", "v").unwrap();
    assert_eq!(u64::from(db.snapshot_now(&*longest).unwrap()), 1);
    assert_eq!(u64::from(with_metadata(METADATA_BYTES_MAX).unwrap()), 2);
    everywhere(directory.path(), &options(), db, |db| {
        assert_eq!(db.tables().unwrap(), [&*longest]);
        let list = db.snapshots().unwrap();
        assert_eq!((list.len(), list[0].name.as_deref()), (2, Some(&*longest)));
        assert_eq!(list[1].metadata, vec![9; METADATA_BYTES_MAX]);
        assert_eq!(db.as_of(&longest).unwrap().tables().unwrap(), [&*longest]);
    });
}

#[test]
fn two_thousand_tables_are_kept_apart() {
    const TABLES: u32 = 2000;
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    for number in 0..TABLES {
        let table = db.table(&format!("table-{number:05}")).unwrap();
        db.put(&table, "k", number.to_le_bytes()).unwrap();
    }
    let declared = db.snapshot_now(None).unwrap();
    for number in (0..TABLES).step_by(2) {
        db.drop_table(&format!("table-{number:05}")).unwrap();
    }
    everywhere(directory.path(), &options(), db, |db| {
        let past = db.as_of(declared).unwrap();
        assert_eq!(past.tables().unwrap().len(), TABLES as usize);
        assert_eq!(db.tables().unwrap().len(), TABLES as usize / 2);
        for number in 0..TABLES {
            let name = format!("table-{number:05}");
            let table = past.table(&name).unwrap();
            assert_eq!(past.get(&table, "k").unwrap().unwrap(), &number.to_le_bytes());
            match db.open_table(&name) {
                Ok(table) => assert_eq!(db.get(&table, "k").unwrap().unwrap(), &number.to_le_bytes()),
                Err(_) => assert_eq!(number % 2, 0),
            }
        }
    });
}

#[test]
fn who_opens_for_reading_only_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    // Something in the base, something in a run, something in the log only.
    db.put(&table, "a", "1").unwrap();
    let declared = db.snapshot_now("first").unwrap();
    db.merge().unwrap();
    db.put(&table, "b", "2").unwrap();
    db.flush().unwrap();
    db.put(&table, "c", "3").unwrap();
    drop(db);
    let before = files(directory.path());
    {
        let db = options().read_only(true).open(directory.path()).unwrap();
        // A second reader may come beside the first.
        let beside = options().read_only(true).open(directory.path()).unwrap();
        let table = db.open_table("t").unwrap();
        assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 3);
        assert_eq!(db.as_of(declared).unwrap().range(&table, ..).unwrap().count(), 1);
        assert_eq!(beside.as_of("first").unwrap().seq(), db.as_of("first").unwrap().seq());
        assert_eq!(db.table("t").unwrap().name(), "t");
        let refusals = [
            db.put(&table, "k", "v"),
            db.delete(&table, "k"),
            db.begin().map(drop),
            db.begin_serializable().map(drop),
            db.table("another").map(drop),
            db.drop_table("t"),
            db.snapshot_now("second").map(drop),
            db.flush(),
            db.merge(),
        ];
        for (index, refusal) in refusals.into_iter().enumerate() {
            assert!(matches!(refusal, Err(Error::ReadOnly { .. })), "{index}: {refusal:?}");
        }
        db.verify().unwrap();
        db.stats().unwrap();
    }
    assert!(files(directory.path()) == before, "some byte of some file has changed");
    let db = options().open(directory.path()).unwrap();
    db.put(&db.table("t").unwrap(), "d", "4").unwrap();
}

#[test]
fn an_open_database_is_locked_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    match options().open(directory.path()) {
        Err(Error::Locked { path, owner }) => {
            assert!(path.starts_with(directory.path()));
            assert_eq!(owner, Some(std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    // A clone, a snapshot, a transaction: each keeps it open.
    let clone = db.clone();
    drop(db);
    assert!(matches!(options().open(directory.path()), Err(Error::Locked { .. })));
    let tx = clone.begin().unwrap();
    drop(clone);
    assert!(matches!(options().open(directory.path()), Err(Error::Locked { .. })));
    drop(tx);
    options().open(directory.path()).unwrap();
}

#[test]
fn nothing_is_made_where_nothing_should_be() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none");
    for options in
        [options().create(false), options().read_only(true), options().create(false).read_only(true)]
    {
        assert!(matches!(options.open(&path), Err(Error::NotFound { path: named }) if named == path));
        assert!(!path.exists());
    }
    options().open(&path).unwrap();
    options().create(false).open(&path).unwrap();
}

#[test]
fn budgets_that_make_no_sense_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for options in [options().memtable_bytes(1000), options().log_segment_bytes(1000)] {
        assert!(matches!(options.open(directory.path()), Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn a_handle_of_another_database_is_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (options().open(one.path()).unwrap(), options().open(other.path()).unwrap());
    let (own, foreign) = (one.table("t").unwrap(), other.table("t").unwrap());
    one.put(&own, "k", "mine").unwrap();
    other.put(&foreign, "k", "other").unwrap();
    let mut tx = one.begin().unwrap();
    let now = one.snapshot();
    let each = |_: &[u8], _: &[u8]| std::ops::ControlFlow::Continue(());
    let refusals = [
        one.get(&foreign, "k").map(drop),
        one.put(&foreign, "k", "v"),
        one.delete(&foreign, "k"),
        now.range(&foreign, ..).map(drop),
        now.for_each(&foreign, .., each),
        now.contains_key(&foreign, "k").map(drop),
        tx.get(&foreign, "k").map(drop),
        tx.range(&foreign, ..).map(drop),
        tx.put(&foreign, "k", "v"),
        tx.delete(&foreign, "k"),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        assert!(matches!(refusal, Err(Error::InvalidArgument { .. })), "{index}: {refusal:?}");
    }
    assert_eq!(one.get(&own, "k").unwrap().unwrap(), b"mine");
}

#[test]
fn a_handle_of_a_dropped_table_finds_nothing_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "k", "v").unwrap();
    let mut before = db.begin().unwrap();
    before.put(&table, "k", "of one who began before").unwrap();
    db.drop_table("t").unwrap();
    for made_again in [false, true] {
        if made_again {
            db.table("t").unwrap();
        }
        let mut tx = db.begin().unwrap();
        assert!(is_not_found(db.get(&table, "k")));
        assert!(is_not_found(db.snapshot().range(&table, ..).map(drop)));
        assert!(is_not_found(db.snapshot().contains_key(&table, "k")));
        assert!(is_not_found(db.put(&table, "k", "v")));
        assert!(is_not_found(db.delete(&table, "k")));
        assert!(is_not_found(tx.get(&table, "k")));
        assert!(is_not_found(tx.range(&table, ..).map(drop)));
        assert!(is_not_found(tx.put(&table, "k", "v")));
    }
    // Within its own view the table is there; but it is too late to write.
    assert_eq!(before.get(&table, "k").unwrap().unwrap(), b"of one who began before");
    assert!(is_not_found(before.commit()));
    let young = db.open_table("t").unwrap();
    assert_eq!(db.get(&young, "k").unwrap(), None);
    assert!(matches!(db.drop_table("none"), Err(Error::TableNotFound { .. })));
    assert!(matches!(db.open_table("none"), Err(Error::TableNotFound { .. })));
}
