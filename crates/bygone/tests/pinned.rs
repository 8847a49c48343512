//! Snapshots that are held for long, and what outlives what.
//!
//! Owns: nothing. Promises: a held snapshot gives identical contents for ever, whoever holds it and whatever
//! happens. May call: the engine's public face.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bygone::io::SimDisk;
use bygone::{Db, Durability, Options, Snapshot};

const KEYS: u32 = 150;
const TABLES: [&str; 3] = ["steady", "dropped now and then", "small"];

fn options() -> Options {
    Options::new()
        .memtable_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .cache_bytes(256 << 10)
        .durability(Durability::Buffered)
}

/// A number that tells any two contents apart; checks on the way that all records of a table are of one
/// round, as each commit writes them.
fn fingerprint(snapshot: &Snapshot) -> u64 {
    // FNV-1a.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for name in snapshot.tables().unwrap() {
        mix(name.as_bytes());
        let table = snapshot.table(&name).unwrap();
        let mut round = None;
        let each = |key: &[u8], value: &[u8]| {
            assert_eq!(*round.get_or_insert(value[..4].to_vec()), value[..4], "a commit in part");
            mix(key);
            mix(value);
            ControlFlow::Continue(())
        };
        snapshot.for_each(&table, .., each).unwrap();
    }
    hash
}

/// Rewrites every table, in one commit each, and gets the disk to move.
fn churn(db: &Db, round: u32) {
    for (number, name) in TABLES.into_iter().enumerate() {
        if number == 1 && round % 7 == 3 {
            db.drop_table(name).unwrap();
            continue;
        }
        let table = db.table(name).unwrap();
        let mut tx = db.begin().unwrap();
        for key in 0..KEYS >> number {
            // Every fifth key comes and goes, the others change; each round has values of another length.
            if key % 5 == round % 5 {
                tx.delete(&table, key.to_be_bytes()).unwrap();
            } else {
                let length = 8 + (key as usize * 31 + round as usize * 17) % 300;
                let value: Vec<u8> = round.to_le_bytes().iter().copied().cycle().take(length).collect();
                tx.put(&table, key.to_be_bytes(), value).unwrap();
            }
        }
        if round % 10 == 5 && number == 0 {
            tx.commit_with_snapshot(None).unwrap();
        } else {
            tx.commit().unwrap();
        }
    }
    match round % 6 {
        1 => db.flush().unwrap(),
        4 => db.merge().unwrap(),
        _ => {}
    }
}

type Held = (Snapshot, u64);

/// Readers take snapshots, read them again and again, and hand some to each other, to be read and dropped
/// elsewhere.
fn many_threads_hold(db: &Db, rounds: u32) {
    const READERS: usize = 6;
    let exchange: Mutex<Vec<Held>> = Mutex::default();
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        for reader in 0..READERS {
            let (exchange, done, reads) = (&exchange, &done, &reads);
            scope.spawn(move || {
                let mut held: Vec<Held> = Vec::new();
                for step in reader.. {
                    let snapshot = if step % 3 == 0 { past(db, step) } else { None };
                    let snapshot = snapshot.unwrap_or_else(|| db.snapshot());
                    let print = fingerprint(&snapshot);
                    held.push((snapshot, print));
                    if step % 4 == 1 {
                        exchange.lock().unwrap().push((held[0].0.clone(), held[0].1));
                    }
                    if step % 5 == 2
                        && let Some(other) = exchange.lock().unwrap().pop()
                    {
                        held.push(other);
                    }
                    for index in [step % held.len(), step * 7 % held.len()] {
                        let (snapshot, print) = &held[index];
                        assert_eq!(fingerprint(snapshot), *print, "held as of {}", snapshot.seq());
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    // The first one is held to the end.
                    while held.len() > 10 {
                        drop(held.swap_remove(1 + step % 10));
                    }
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
                for (snapshot, print) in held {
                    assert_eq!(fingerprint(&snapshot), print);
                }
            });
        }
        for round in 0..rounds {
            churn(db, round);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 50);
    for (snapshot, print) in exchange.into_inner().unwrap() {
        assert_eq!(fingerprint(&snapshot), print);
    }
}

fn past(db: &Db, step: usize) -> Option<Snapshot> {
    let count = db.stats().unwrap().snapshots;
    (count > 0).then(|| db.as_of(bygone::SnapshotId::from(1 + step as u64 * 13 % count)).unwrap())
}

#[test]
fn many_threads_hold_snapshots_through_hundreds_of_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    many_threads_hold(&db, 400);
    db.verify().unwrap();
}

#[test]
fn many_threads_hold_snapshots_while_commits_flush_and_merge() {
    let disk = SimDisk::new();
    let db = options().background(false).open_on(Arc::new(disk), Path::new("db")).unwrap();
    many_threads_hold(&db, 200);
    db.verify().unwrap();
}

#[test]
fn one_snapshot_of_every_round_is_held_to_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let mut held = Vec::new();
    for round in 0..200 {
        churn(&db, round);
        let snapshot = db.snapshot();
        let print = fingerprint(&snapshot);
        held.push((snapshot, print));
    }
    db.merge().unwrap();
    for (snapshot, print) in &held {
        assert_eq!(fingerprint(snapshot), *print);
    }
}

#[test]
fn snapshots_and_iterators_outlive_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    for round in 0..20 {
        churn(&db, round);
    }
    let steady = db.open_table("steady").unwrap();
    let (now, past) = (db.snapshot(), db.as_of(bygone::SnapshotId::from(1)).unwrap());
    let prints = (fingerprint(&now), fingerprint(&past));
    let expected: Vec<_> = now.range(&steady, ..).unwrap().map(|item| item.unwrap()).collect();
    let mut begun = now.range(&steady, ..).unwrap();
    let first = begun.next().unwrap().unwrap();
    let untouched = now.range(&steady, ..).unwrap();
    for round in 20..60 {
        churn(&db, round);
    }
    drop(db);
    assert_eq!((fingerprint(&now), fingerprint(&past)), prints);
    drop((now, past));
    // On another thread, which never saw the database.
    let rest: Vec<_> = thread::spawn(move || begun.map(|item| item.unwrap()).collect()).join().unwrap();
    assert_eq!((&first, &rest[..]), (&expected[0], &expected[1..]));
    let reversed: Vec<_> = untouched.rev().map(|item| item.unwrap()).collect();
    assert!(reversed.iter().rev().eq(&expected));
    // Nothing is held any more: it opens again.
    options().open(directory.path()).unwrap();
}

#[test]
fn a_transaction_keeps_the_database_open() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let mut tx = db.begin_serializable().unwrap();
    drop(db);
    tx.put(&table, "k", "v").unwrap();
    tx.commit().unwrap();
    let db = options().open(directory.path()).unwrap();
    assert_eq!(db.get(&db.table("t").unwrap(), "k").unwrap().unwrap(), b"v");
}

#[test]
fn a_dropped_table_stays_in_the_snapshots_that_see_it() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let old = db.table("t").unwrap();
    db.put(&old, "k", "old").unwrap();
    let (held, declared) = (db.snapshot(), db.snapshot_now(None).unwrap());
    db.drop_table("t").unwrap();
    let between = db.snapshot();
    let young = db.table("t").unwrap();
    db.put(&young, "k", "young").unwrap();
    for _ in 0..3 {
        db.merge().unwrap();
        db.put(&young, "other", "x").unwrap();
        for past in [held.clone(), db.as_of(declared).unwrap()] {
            // Through either handle, and through its own.
            for handle in [&old, &young, &past.table("t").unwrap()] {
                assert_eq!(past.get(handle, "k").unwrap().unwrap(), b"old");
                assert_eq!(past.range(handle, ..).unwrap().count(), 1);
            }
        }
        assert_eq!(between.get(&young, "k").unwrap(), None);
        assert!(between.get(&old, "k").is_err());
        assert_eq!(db.get(&young, "k").unwrap().unwrap(), b"young");
    }
}

/// What nobody can see any more takes no room: a merge leaves a dropped table's records out of the base.
#[test]
fn a_dropped_table_leaves_the_base() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let mut tx = db.begin().unwrap();
    for key in 0..5000u32 {
        tx.put(&table, key.to_be_bytes(), "v").unwrap();
    }
    tx.commit().unwrap();
    db.merge().unwrap();
    assert!(db.verify().unwrap().records > 5000);
    db.drop_table("t").unwrap();
    // In a later merge as well as in the one that also has writes to it.
    let table = db.table("another").unwrap();
    db.put(&table, "k", "v").unwrap();
    db.drop_table("another").unwrap();
    db.merge().unwrap();
    assert!(db.verify().unwrap().records < 10);
}
