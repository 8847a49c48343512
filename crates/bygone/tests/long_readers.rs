//! Readers that hold on for long: seen, told of, and ended.
//!
//! Owns: nothing. Promises: an expired reader gets an error and never other data, and what it kept is let go
//! while its handle is still there. May call: the engine's public face.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bygone::{Db, Durability, Error, HeldSnapshot, Options, Table};

const LIMIT: Duration = Duration::from_millis(60);

fn options() -> Options {
    Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10).durability(Durability::Buffered)
}

/// Gives every key a new value.
fn churn(db: &Db, table: &Table, round: u32) {
    let mut tx = db.begin().unwrap();
    for key in 0..400u32 {
        tx.put(table, key.to_be_bytes(), round.to_be_bytes().repeat(25)).unwrap();
    }
    tx.commit().unwrap();
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn is_expired<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::SnapshotExpired { age, limit, .. }) => {
            assert!(age >= limit && limit == LIMIT);
            true
        }
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

#[test]
fn stats_list_who_holds_what_for_how_long() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().background(false).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 1);
    assert_eq!(db.stats().unwrap().held_snapshots, []);
    let old = db.snapshot();
    let clone = old.clone();
    let reader = db.clone();
    let named = thread::Builder::new().name("reporting".into());
    let beside = named.spawn(move || reader.snapshot()).unwrap().join().unwrap();
    let held = db.stats().unwrap().held_snapshots;
    assert_eq!(held.len(), 2, "clones count as one: {held:?}");
    assert!(held.iter().all(|held| held.sharing == 2 && held.kept_bytes == 0 && held.seq == old.seq()));
    assert!(held.iter().any(|held| held.thread.as_deref() == Some("reporting")));

    db.merge().unwrap();
    for round in 2..6 {
        churn(&db, &table, round);
        db.merge().unwrap();
    }
    thread::sleep(Duration::from_millis(20));
    let newer = db.snapshot();
    let held = db.stats().unwrap().held_snapshots;
    assert_eq!(held.len(), 3);
    assert!(held[0].age >= Duration::from_millis(20) && held[0].age >= held[2].age);
    assert_eq!((held[2].seq, held[2].kept_bytes, held[2].sharing), (newer.seq(), 0, 1));
    // They began before the first merge, so it is their memtable that nobody else needs.
    assert!(held[0].kept_bytes > 40_000, "{held:?}");
    assert_eq!(held[0].kept_bytes, held[1].kept_bytes);
    drop((old, beside));
    assert_eq!(db.stats().unwrap().held_snapshots.len(), 2, "a clone holds on");
    drop((clone, newer));
    assert_eq!(db.stats().unwrap().held_snapshots, []);
}

#[test]
fn the_pages_that_only_a_snapshot_keeps_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().background(false).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 1);
    db.merge().unwrap();
    let first = db.snapshot();
    churn(&db, &table, 2);
    db.merge().unwrap();
    let second = db.snapshot();
    churn(&db, &table, 3);
    db.merge().unwrap();
    let kept = || -> Vec<u64> {
        let mut held = db.stats().unwrap().held_snapshots;
        held.sort_by_key(|held| held.seq);
        held.iter().map(|held| held.kept_bytes).collect()
    };
    // 400 records of some 110 bytes: about a dozen pages each, and the memtable of then.
    let both = kept();
    assert!(both.iter().all(|bytes| (40_000..200_000).contains(bytes)), "{both:?}");
    let before = db.stats().unwrap().base_free_bytes;
    drop(first);
    assert_eq!(kept(), both[1..]);
    assert!(db.stats().unwrap().base_free_bytes > before);
    drop(second);
}

#[test]
fn a_range_that_goes_on_is_a_reader_too() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().background(false).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 1);
    let mut range = db.snapshot().range(&table, ..).unwrap();
    range.next().unwrap().unwrap();
    assert_eq!(db.stats().unwrap().held_snapshots.len(), 1);
    assert_eq!(range.count(), 399);
    assert_eq!(db.stats().unwrap().held_snapshots, []);
}

#[test]
fn a_long_snapshot_is_told_of_once() {
    let directory = tempfile::tempdir().unwrap();
    let told: Arc<Mutex<Vec<HeldSnapshot>>> = Arc::default();
    let noted = told.clone();
    let note = move |held: &HeldSnapshot| {
        noted.lock().unwrap().push(held.clone());
        panic!("a callback's panic is its own");
    };
    let db = options().on_long_snapshot(LIMIT, note).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    drop(db.snapshot());
    let held = db.snapshot();
    wait_until("somebody is told", || !told.lock().unwrap().is_empty());
    thread::sleep(LIMIT * 2);
    let told = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].age >= LIMIT && told[0].seq == held.seq());
    // It is only told of.
    assert!(held.get(&table, "k").unwrap().is_none());
    db.put(&table, "k", "v").unwrap();
}

#[test]
fn an_expired_snapshot_gives_an_error_everywhere_and_lets_go() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().max_snapshot_age(LIMIT).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    for round in 0..3 {
        churn(&db, &table, round);
        db.merge().unwrap();
    }
    let declared = db.snapshot_now("declared").unwrap();
    churn(&db, &table, 3);
    db.merge().unwrap();
    let held = db.snapshot();
    let past = db.as_of(declared).unwrap();
    let (mut range, mut untouched) = (held.range(&table, ..).unwrap(), held.range(&table, ..).unwrap());
    range.next().unwrap().unwrap();
    range.next_back().unwrap().unwrap();
    let mut diff = past.diff(&held, &table).unwrap();
    diff.next().unwrap().unwrap();
    let mut tx = db.begin().unwrap();
    tx.put(&table, "own", "x").unwrap();
    assert_eq!(held.get(&table, 7u32.to_be_bytes()).unwrap().unwrap(), 3u32.to_be_bytes().repeat(25));
    assert_eq!(past.get(&table, 7u32.to_be_bytes()).unwrap().unwrap(), 2u32.to_be_bytes().repeat(25));
    churn(&db, &table, 4);
    db.merge().unwrap();
    wait_until("it expires", || is_expired(held.get(&table, "k")) && is_expired(past.get(&table, "k")));
    let clone = held.clone();
    for snapshot in [&held, &past, &clone] {
        assert!(is_expired(snapshot.get_with(&table, "k", |_| ())));
        assert!(is_expired(snapshot.contains_key(&table, "k")));
        assert!(is_expired(snapshot.range(&table, ..)));
        assert!(is_expired(snapshot.for_each(&table, .., |_, _| ControlFlow::Continue(()))));
        assert!(is_expired(snapshot.tables()));
        assert!(is_expired(snapshot.table("t")));
    }
    assert!(range.next().is_some_and(is_expired) && range.next().is_none());
    assert!(untouched.next_back().is_some_and(is_expired));
    wait_until("the transaction expires", || is_expired(tx.get(&table, "k")));
    assert!(is_expired(tx.range(&table, ..)));
    assert!(is_expired(held.diff(&db.snapshot(), &table)) && is_expired(db.snapshot().diff(&past, &table)));
    assert!(diff.next().is_some_and(is_expired) && diff.next().is_none());
    assert_eq!(tx.get(&table, "own").unwrap().unwrap(), b"x", "its own writes are no read of the view");
    // Nobody changed what it wrote, and that is known without its view.
    tx.commit().unwrap();
    // Seven handles, and nothing is kept for them.
    drop((range, diff));
    for held in db.stats().unwrap().held_snapshots {
        assert_eq!((held.kept_bytes, held.sharing), (0, 1));
    }
    // The same slots serve new views.
    drop((held, past, clone));
    assert_eq!(db.get(&table, 7u32.to_be_bytes()).unwrap().unwrap(), 4u32.to_be_bytes().repeat(25));
    let again = db.as_of(declared).unwrap();
    assert_eq!(again.get(&table, 7u32.to_be_bytes()).unwrap().unwrap(), 2u32.to_be_bytes().repeat(25));
}

/// The file does not grow because somebody holds a handle for ever.
#[test]
fn what_an_expired_snapshot_kept_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().max_snapshot_age(LIMIT).background(false).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 0);
    db.merge().unwrap();
    let held = db.snapshot();
    churn(&db, &table, 1);
    db.merge().unwrap();
    assert!(db.stats().unwrap().held_snapshots[0].kept_bytes > 40_000);
    let free = db.stats().unwrap().base_free_bytes;
    thread::sleep(LIMIT + Duration::from_millis(5));
    // Without threads of the database's own it is this that looks.
    db.stats().unwrap();
    assert!(is_expired(held.get(&table, "k")));
    assert!(db.stats().unwrap().base_free_bytes >= free + 40_000);
}

#[test]
fn a_scan_that_takes_too_long_is_broken_off() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().max_snapshot_age(LIMIT).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 0);
    let held = db.snapshot();
    let mut seen = 0;
    let scan = held.for_each(&table, .., |_, value| {
        assert_eq!(value, [0; 100]);
        seen += 1;
        thread::sleep(Duration::from_millis(5));
        ControlFlow::Continue(())
    });
    assert!(is_expired(scan));
    assert!(seen < 400);
}

#[test]
fn without_a_limit_nothing_expires_and_short_readers_never_do() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().max_snapshot_age(Duration::from_secs(3600)).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 0);
    let held = db.snapshot();
    for round in 1..10 {
        churn(&db, &table, round);
        db.merge().unwrap();
        db.stats().unwrap();
    }
    assert_eq!(held.get(&table, 7u32.to_be_bytes()).unwrap().unwrap(), &[0; 100]);
}

/// Readers of all kinds under a limit that strikes in the middle of them: right data or the error.
#[test]
fn whatever_expires_when_nobody_sees_wrong_data() {
    let directory = tempfile::tempdir().unwrap();
    let limit = Duration::from_millis(8);
    let db = options().max_snapshot_age(limit).cache_bytes(64 << 10).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    churn(&db, &table, 0);
    let (stop, expired, read) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for reader in 0..4u32 {
            let (db, table, stop, expired, read) = (&db, &table, &stop, &expired, &read);
            scope.spawn(move || {
                let outcome = |result: Result<(), Error>| match result {
                    Ok(()) => read.fetch_add(1, Ordering::Relaxed),
                    Err(Error::SnapshotExpired { .. }) => expired.fetch_add(1, Ordering::Relaxed),
                    Err(other) => panic!("{other}"),
                };
                for step in reader.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let snapshot = db.snapshot();
                    let first = snapshot.get(table, 0u32.to_be_bytes());
                    let Ok(first) = first.map(Option::unwrap) else { continue };
                    if step % 3 == 0 {
                        thread::sleep(Duration::from_millis(u64::from(step % 14)));
                    }
                    let mut count = 0;
                    if step % 2 == 0 {
                        let all = snapshot.range(table, ..).and_then(|mut range| {
                            range.try_for_each(|record| {
                                assert_eq!(record?.1, first);
                                count += 1;
                                Ok(())
                            })
                        });
                        assert!(all.is_err() || count == 400);
                        outcome(all);
                    } else {
                        let all = snapshot.for_each(table, .., |_, value| {
                            assert_eq!(first, value);
                            count += 1;
                            ControlFlow::Continue(())
                        });
                        assert!(all.is_err() || count == 400);
                        outcome(all);
                    }
                }
            });
        }
        for round in 1..150 {
            churn(&db, &table, round);
            if round % 5 == 0 {
                db.merge().unwrap();
            }
        }
        wait_until("both happened", || {
            expired.load(Ordering::Relaxed) > 0 && read.load(Ordering::Relaxed) > 100
        });
        stop.store(true, Ordering::Relaxed);
    });
    db.verify().unwrap();
}
