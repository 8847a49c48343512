//! How much room a database takes on the real disk.
//!
//! Owns: the bounds. Promises: figures are printed (`--nocapture`), and their bounds hold at every sample,
//! not just at the end. May call: the engine's public face only.

#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bygone::{Db, Durability, Options, Stats};
use support::{Random, full};

const KEY_BYTES: u64 = 16;
const VALUE_BYTES: u64 = 500;
const BATCH: u64 = 100;

fn open(path: &Path, background: bool) -> Db {
    let options = Options::new().memtable_bytes(2 << 20).log_segment_bytes(2 << 20).cache_bytes(16 << 20);
    options.background(background).durability(Durability::Buffered).open(path).unwrap()
}

fn key(number: u64) -> [u8; KEY_BYTES as usize] {
    let mut key = [b'k'; KEY_BYTES as usize];
    // Spread, so that neighbours in time are none in the tree.
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

/// The lengths of all files below a directory, without the log. Files that vanish meanwhile count as nothing.
fn bytes_without_log(path: &Path) -> u64 {
    let Ok(entries) = path.read_dir() else { return 0 };
    entries
        .filter_map(|entry| {
            let (path, kind) = entry.ok().map(|entry| (entry.path(), entry.file_type()))?;
            if kind.ok()?.is_dir() {
                let is_log = path.file_name().is_some_and(|name| name == "wal");
                return Some(if is_log { 0 } else { bytes_without_log(&path) });
            }
            Some(path.metadata().ok()?.len())
        })
        .sum()
}

/// Writes `count` records: those that `number` says.
fn write(db: &Db, count: u64, random: &mut Random, mut number: impl FnMut(&mut Random, u64) -> u64) {
    let table = db.table("t").unwrap();
    for batch in 0..count / BATCH {
        let mut tx = db.begin().unwrap();
        for i in 0..BATCH {
            let number = number(random, batch * BATCH + i);
            // Nothing that anybody could compress.
            let value: Vec<u8> =
                (0..VALUE_BYTES.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
            tx.put(&table, key(number), &value[..VALUE_BYTES as usize]).unwrap();
        }
        tx.commit().unwrap();
    }
}

/// Overwrites a working set for many rounds while a thread of its own looks at the directory all the time.
fn overwrite(background: bool) {
    let keys: u64 = 40_000;
    let live_bytes = keys * (KEY_BYTES + VALUE_BYTES);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path, background);
    let mut random = Random(1);
    write(&db, keys, &mut random, |_, i| i);
    let (done, most_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = if full() { 60 } else { 10 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most_bytes.fetch_max(bytes_without_log(&path), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        for round in 0..rounds {
            write(&db, keys, &mut random, |random, _| random.below(keys));
            let bytes = bytes_without_log(&path);
            let ratio = bytes as f64 / live_bytes as f64;
            println!("threads: {background}, round {round}: {ratio:.2} times the live data");
        }
        done.store(true, Ordering::Relaxed);
    });
    let stats = db.stats().unwrap();
    let most = most_bytes.into_inner() as f64 / live_bytes as f64;
    println!("threads: {background}: at most {most:.2} times the live data; {stats:?}");
    assert!(most <= 2.5, "{most:.2} times the live data; {stats:?}");
    assert!(stats.wal_bytes <= live_bytes, "{stats:?}");

    let table = db.table("t").unwrap();
    for batch in 0..keys / BATCH {
        let mut tx = db.begin().unwrap();
        for i in 0..BATCH {
            tx.delete(&table, key(batch * BATCH + i)).unwrap();
        }
        tx.commit().unwrap();
    }
    db.merge().unwrap();
    let left = || bytes_without_log(&path) as f64 / live_bytes as f64;
    // While the last merge ran, a background thread may have held the base of before: then a page or two of
    // the new one went to the file's end, and go from there with one of the next merges.
    for _ in 0..5 {
        if background && left() >= 0.25 {
            db.put(&table, "k", "v").unwrap();
            db.delete(&table, "k").unwrap();
            db.merge().unwrap();
        }
    }
    let left = left();
    println!("threads: {background}: everything deleted, {left:.3} of the live data is left");
    assert!(left < 0.25, "{left}");
    assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 0);
}

#[test]
fn overwriting_a_working_set_takes_bounded_room() {
    overwrite(false);
}

#[test]
fn overwriting_a_working_set_takes_bounded_room_with_threads() {
    overwrite(true);
}

/// What the past takes for each byte that was written.
fn history_cost(keys: u64, commits_between: u64) -> (f64, Stats) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path, false);
    let mut random = Random(2);
    write(&db, keys, &mut random, |_, i| i);
    db.merge().unwrap();
    let before = bytes_without_log(&path);
    let written = db.stats().unwrap().application_bytes;
    let commits = if full() { 4000 } else { 1000 };
    for commit in 0..commits {
        write(&db, BATCH, &mut random, |random, _| random.below(keys));
        if commit % commits_between == 0 {
            db.snapshot_now(None).unwrap();
        }
    }
    db.merge().unwrap();
    let stats = db.stats().unwrap();
    let grown = bytes_without_log(&path).saturating_sub(before);
    let cost = grown as f64 / (stats.application_bytes - written) as f64;
    println!(
        "{keys} keys, a snapshot each {commits_between} commits: {cost:.2} bytes for each one written; {stats:?}"
    );
    (cost, stats)
}

#[test]
fn a_snapshot_after_every_commit_costs_a_small_multiple_of_what_was_written() {
    for keys in [2_000, 40_000] {
        let (cost, stats) = history_cost(keys, 1);
        assert!(cost <= 3.0, "{keys} keys: {cost:.2}; {stats:?}");
    }
}

#[test]
fn rare_snapshots_cost_no_more_than_what_was_written() {
    for between in [10, 100] {
        let (cost, stats) = history_cost(10_000, between);
        assert!(cost <= 3.0, "a snapshot each {between} commits: {cost:.2}; {stats:?}");
    }
}
