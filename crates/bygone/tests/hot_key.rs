//! Keys that a hash memtable could choke on: one with a million versions, and all shapes of many.
//!
//! Owns: the claim that no input makes a single read walk over what was written. Promises: times are compared with
//! those of friendly keys on the same machine, with room for its other users: what must be caught is hundreds of
//! times as slow. May call: the public API.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bygone::{Db, Durability, Options, Snapshot, Table};

/// Keys by number.
type Keys<'k> = &'k dyn Fn(u64) -> Vec<u8>;

const VERSIONS: u64 = 1_000_000;
const VIEWS: u64 = 16;
const READS: u64 = 20_000;

fn open(memtable_bytes: usize, background: bool) -> (tempfile::TempDir, Db, Table) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().durability(Durability::Buffered).memtable_bytes(memtable_bytes);
    let db = options.background(background).open(directory.path().join("db")).unwrap();
    let table = db.table("t").unwrap();
    (directory, db, table)
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

/// The hot key's value in a view, read by key, by a scan and by a scan backwards.
fn read(view: &Snapshot, table: &Table) -> u64 {
    let value = view.get(table, b"hot").unwrap().unwrap();
    number(&value)
}

fn read_by_scans(view: &Snapshot, table: &Table) -> u64 {
    let forwards = view.range(table, b"hot".as_slice()..).unwrap().next().unwrap().unwrap();
    let backwards = view.range(table, ..=b"hot".as_slice()).unwrap().next_back().unwrap().unwrap();
    assert_eq!(forwards.1, backwards.1);
    number(&forwards.1)
}

/// The least time of a few attempts.
fn time(mut work: impl FnMut()) -> Duration {
    let attempt = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..3).map(attempt).min().unwrap()
}

#[test]
fn a_key_with_a_million_versions_is_read_at_any_view_in_bounded_time() {
    // All versions stay in one memtable.
    let (_directory, db, table) = open(256 << 20, false);
    db.put(&table, b"cold", 0u64.to_le_bytes()).unwrap();
    let (mut pinned, mut declared) = (Vec::new(), Vec::new());
    for version in 1..=VERSIONS {
        db.put(&table, b"hot", version.to_le_bytes()).unwrap();
        if version % (VERSIONS / VIEWS) == 1 {
            pinned.push((version, db.snapshot()));
            declared.push((version, db.snapshot_now(None).unwrap()));
        }
        // Old and new views in turn, while it grows.
        if version % 1000 == 0 {
            let (expected, view) = &pinned[(version / 1000) as usize % pinned.len()];
            assert_eq!(read(view, &table), *expected);
            assert_eq!(read_by_scans(view, &table), *expected);
            assert_eq!(read(&db.snapshot(), &table), version);
            assert_eq!(read_by_scans(&db.snapshot(), &table), version);
            let (expected, id) = declared[(version / 1000) as usize % declared.len()];
            assert_eq!(read(&db.as_of(id).unwrap(), &table), expected);
        }
    }
    assert_eq!(db.stats().unwrap().flushes, 0, "a test of the memtable");

    let cold = time(|| {
        let view = db.snapshot();
        (0..READS).for_each(|_| assert!(view.get(&table, b"cold").unwrap().is_some()));
    });
    for (expected, view) in &pinned {
        let hot = time(|| (0..READS).for_each(|_| assert_eq!(read(view, &table), *expected)));
        assert!(
            hot <= cold * 40 + Duration::from_millis(20),
            "version {expected}: {hot:?}, a cold key {cold:?}"
        );
    }
    for (expected, id) in &declared {
        assert_eq!(read(&db.as_of(*id).unwrap(), &table), *expected);
    }
    assert_eq!(read(&db.snapshot(), &table), VERSIONS);

    // What nobody can ask for any more goes with the flush; what views and snapshots need stays.
    db.flush().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.run_bytes < 64 << 10, "{} bytes of runs for {VIEWS} versions", stats.run_bytes);
    for step in [Db::flush, Db::merge] {
        step(&db).unwrap();
        for ((expected, view), (_, id)) in pinned.iter().zip(&declared) {
            assert_eq!(read(view, &table), *expected);
            assert_eq!(read(&db.as_of(*id).unwrap(), &table), *expected);
        }
        assert_eq!(read(&db.snapshot(), &table), VERSIONS);
    }
}

#[test]
fn a_hot_key_is_read_while_it_is_written() {
    let (_directory, db, table) = open(1 << 20, true);
    db.put(&table, b"hot", 0u64.to_le_bytes()).unwrap();
    let first = db.snapshot();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 1..=VERSIONS / 4 {
                db.put(&table, b"hot", version.to_le_bytes()).unwrap();
            }
        });
        let mut last = 0;
        while !writer.is_finished() {
            let view = db.snapshot();
            let now = read(&view, &table);
            assert!(now >= last, "{now} after {last}");
            assert_eq!(read_by_scans(&view, &table), now);
            assert_eq!(read(&first, &table), 0);
            last = now;
        }
    });
    assert_eq!(read(&db.snapshot(), &table), VERSIONS / 4);
}

/// Puts all, and reads all back by key, by a scan and by a scan backwards. Answers how long that took.
fn round_trip(records: impl Iterator<Item = (Vec<u8>, Vec<u8>)>, memtable_bytes: usize) -> Duration {
    let (_directory, db, table) = open(memtable_bytes, false);
    let mut model = BTreeMap::new();
    let start = Instant::now();
    let mut left_out = Duration::ZERO;
    for (key, value) in records {
        db.put(&table, &key, &value).unwrap();
        let pause = Instant::now();
        model.insert(key, value);
        left_out += pause.elapsed();
    }
    let view = db.snapshot();
    for (key, value) in &model {
        assert_eq!(view.get(&table, key).unwrap().as_deref(), Some(&value[..]));
    }
    let mut expected = model.iter();
    for record in view.range(&table, ..).unwrap() {
        let (key, value) = record.unwrap();
        assert_eq!(expected.next(), Some((&key.to_vec(), &value.to_vec())));
    }
    assert!(expected.next().is_none());
    let mut expected = model.iter().rev();
    for record in view.range(&table, ..).unwrap().rev() {
        let (key, value) = record.unwrap();
        assert_eq!(expected.next(), Some((&key.to_vec(), &value.to_vec())));
    }
    assert!(expected.next().is_none());
    start.elapsed() - left_out
}

fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn no_order_and_no_length_of_keys_is_much_slower_than_random_keys() {
    const KEYS: u64 = 20_000;
    /// Within one memtable, and over several with their runs.
    const MEMTABLES: [usize; 2] = [64 << 20, 256 << 10];
    let long = |n: u64| [&[b'p'; 1016][..], &n.to_be_bytes()].concat();
    let short = |n: u64| vec![n as u8];
    let value = || b"value".to_vec();
    for memtable_bytes in MEMTABLES {
        let friendly =
            round_trip((0..KEYS).map(|n| (scattered(n).to_be_bytes().to_vec(), value())), memtable_bytes);
        let shapes: [(&str, Keys<'_>); 5] = [
            ("ascending", &|n| n.to_be_bytes().to_vec()),
            ("descending", &|n| (KEYS - n).to_be_bytes().to_vec()),
            ("one hot key", &|_| b"hot".to_vec()),
            ("1 byte", &short),
            ("1 KiB", &long),
        ];
        for (name, key) in shapes {
            let took = round_trip((0..KEYS).map(|n| (key(n), value())), memtable_bytes);
            // Keys of 1 KiB are 64 times as long.
            let most = friendly * if name == "1 KiB" { 400 } else { 25 } + Duration::from_millis(200);
            assert!(took <= most, "{name}, {memtable_bytes}: {took:?}, random keys {friendly:?}");
        }
    }
}

#[test]
fn values_of_a_mebibyte_come_back_from_memtables_of_any_size() {
    for memtable_bytes in [64 << 20, 64 << 10] {
        round_trip((0..24).map(|n| (vec![n], vec![n; 1 << 20])), memtable_bytes);
    }
}
