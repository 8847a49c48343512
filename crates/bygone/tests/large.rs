//! Large transactions, which go straight into the base.
//!
//! Owns: tests of when they do, and that they are commits like others: conflicts, snapshots, the window, failures,
//! power cuts. Promises: each test sees that the way was taken that it is about. May call: the engine's public face.

mod support;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options, Result, Seq, Snapshot, Table, Transaction};

use support::{PATH, Random, options, points};

fn open() -> (SimDisk, Db, Table) {
    open_with(&options())
}

fn open_with(options: &Options) -> (SimDisk, Db, Table) {
    let disk = SimDisk::new();
    let db = options.clone().open_on(Arc::new(disk.clone()), PATH).unwrap();
    let table = db.table("t").unwrap();
    (disk, db, table)
}

/// Large enough with the memtables of these tests.
const RECORDS: u64 = 200;

fn value(round: u8) -> Vec<u8> {
    vec![round; 1000]
}

fn put_all(tx: &mut Transaction, table: &Table, keys: impl Iterator<Item = u64>, round: u8) -> Result<()> {
    for key in keys {
        tx.put(table, key.to_be_bytes(), value(round))?;
    }
    Ok(())
}

fn large(db: &Db, table: &Table, round: u8) -> Transaction {
    let mut tx = db.begin().unwrap();
    put_all(&mut tx, table, 0..RECORDS, round).unwrap();
    tx
}

/// Whether a commit goes straight into the base.
fn is_straight(db: &Db, commit: impl FnOnce()) -> bool {
    let before = db.stats().unwrap().bulk_commits;
    commit();
    db.stats().unwrap().bulk_commits > before
}

fn commits_straight(db: &Db, tx: Transaction) {
    assert!(is_straight(db, || _ = tx.commit().unwrap()));
}

/// The round that all records are of.
fn round_of(snapshot: &Snapshot, table: &Table) -> u8 {
    let rounds: Vec<u8> = snapshot.range(table, ..).unwrap().map(|record| record.unwrap().1[0]).collect();
    assert_eq!(rounds.len() as u64, RECORDS);
    assert!(rounds.iter().all(|round| *round == rounds[0]), "all or nothing: {rounds:?}");
    rounds[0]
}

#[test]
fn what_is_large_and_has_little_before_it_goes_straight() {
    // A memtable that takes all that is to wait.
    let (_disk, db, table) = open_with(&options().memtable_bytes(700 << 10));
    commits_straight(&db, large(&db, &table, 1));
    let stats = db.stats().unwrap();
    assert!(stats.written_bytes < 2 * stats.application_bytes, "{stats:?}");
    assert_eq!(stats.runs, 0, "{stats:?}");
    let small = || db.put(&table, 5u64.to_be_bytes(), value(2)).unwrap();
    assert!(!is_straight(&db, small));
    // What waits is one record. All of the table is written anew, as a merge would.
    commits_straight(&db, large(&db, &table, 3));
    assert_eq!(round_of(&db.snapshot(), &table), 3);
    for key in 0..2 * RECORDS {
        db.put(&table, (key % RECORDS).to_be_bytes(), value(4)).unwrap();
    }
    let tx = large(&db, &table, 5);
    assert!(!is_straight(&db, || _ = tx.commit().unwrap()), "more waits than there is in it");
    // A single record, blindly.
    db.merge().unwrap();
    assert!(is_straight(&db, || db.put(&table, "k", vec![7; 200_000]).unwrap()));
    assert_eq!(db.get(&table, "k").unwrap().unwrap(), vec![7; 200_000]);
    db.verify().unwrap();
}

#[test]
fn what_would_rewrite_much_for_little_goes_through_the_log() {
    let (_disk, db, table) = open();
    db.replace(&table, (0..40_000u64).map(|key| Ok((key.to_be_bytes(), [0; 30])))).unwrap();
    let scattered = |step: u64| {
        let mut tx = db.begin().unwrap();
        (0..RECORDS).for_each(|n| tx.put(&table, (n * step).to_be_bytes(), value(1)).unwrap());
        is_straight(&db, || _ = tx.commit().unwrap())
    };
    assert!(!scattered(199), "each has a page of its own");
    db.merge().unwrap();
    assert!(scattered(1), "all replace what lies in a few pages");
    let stats = db.stats().unwrap();
    let mut tx = db.begin().unwrap();
    (0..RECORDS).for_each(|n| tx.put(&table, (50_000 + n * 1000).to_be_bytes(), value(1)).unwrap());
    commits_straight(&db, tx);
    let written = db.stats().unwrap().written_bytes - stats.written_bytes;
    assert!(written < 2 * RECORDS * 1000, "{written} bytes behind the last record");
    for waiting in 0..RECORDS {
        db.put(&table, (waiting * 100).to_be_bytes(), "small").unwrap();
    }
    let mut tx = db.begin().unwrap();
    (0..RECORDS).for_each(|n| tx.put(&table, (500_000 + n).to_be_bytes(), value(1)).unwrap());
    assert!(!is_straight(&db, || _ = tx.commit().unwrap()), "what waits has many pages");
}

#[test]
fn many_tables_at_once() {
    let (_disk, db, table) = open();
    let tables: Vec<Table> = (0..30).map(|n| db.table(&format!("table {n}")).unwrap()).collect();
    db.put(&tables[3], 1u64.to_be_bytes(), "gone").unwrap();
    let mut tx = large(&db, &table, 1);
    for (n, table) in tables.iter().enumerate() {
        tx.put(table, "key", n.to_string()).unwrap();
    }
    tx.delete(&tables[3], 1u64.to_be_bytes()).unwrap();
    commits_straight(&db, tx);
    assert_eq!(db.get(&tables[3], 1u64.to_be_bytes()).unwrap(), None);
    for (n, table) in tables.iter().enumerate() {
        assert_eq!(db.get(table, "key").unwrap().unwrap(), n.to_string().as_bytes());
    }
}

#[test]
fn of_two_who_write_one_key_the_second_loses_whichever_is_large() {
    let key = 7u64.to_be_bytes();
    for merges in [false, true] {
        let (_disk, db, table) = open();
        commits_straight(&db, large(&db, &table, 1));
        let is_conflict = |answer: Result<Seq>| {
            let Err(Error::Conflict { table, key: of }) = answer else { return false };
            table == "t" && of == key
        };
        // The large one is the second.
        let second = large(&db, &table, 2);
        db.put(&table, key, value(3)).unwrap();
        if merges {
            db.merge().unwrap();
        }
        assert!(!is_straight(&db, || assert!(is_conflict(second.commit()))));
        // The first.
        let mut second = db.begin().unwrap();
        second.put(&table, key, "second").unwrap();
        let mut other = db.begin().unwrap();
        other.put(&table, 1000u64.to_be_bytes(), "other").unwrap();
        commits_straight(&db, large(&db, &table, 4));
        if merges {
            db.merge().unwrap();
        }
        assert!(is_conflict(second.commit()));
        other.commit().unwrap();
        // Both.
        let (first, second) = (large(&db, &table, 5), large(&db, &table, 6));
        commits_straight(&db, first);
        assert!(!is_straight(&db, || _ = second.commit().unwrap_err()));
        assert_eq!(db.get(&table, key).unwrap().unwrap(), value(5));
    }
}

#[test]
fn who_began_before_a_large_commit_of_other_keys_is_not_refused() {
    let (_disk, db, table) = open();
    let (other, third) = (db.table("other").unwrap(), db.table("third").unwrap());
    db.put(&other, "k", "1").unwrap();
    let mut plain = db.begin().unwrap();
    plain.put(&other, "k", "2").unwrap();
    let begin_reader = |reads_range: bool| {
        let mut tx = db.begin_serializable().unwrap();
        match reads_range {
            true => drop(tx.range(&other, ..).unwrap().next()),
            false => drop(tx.get(&other, "never").unwrap()),
        }
        tx.put(&third, [u8::from(reads_range)], "3").unwrap();
        tx
    };
    let (point, range) = (begin_reader(false), begin_reader(true));
    commits_straight(&db, large(&db, &table, 1));
    point.commit().unwrap();
    range.commit().unwrap();
    plain.commit().unwrap();
    assert_eq!(db.get(&other, "k").unwrap().unwrap(), "2".as_bytes());
}

#[test]
fn a_serializable_transaction_loses_to_a_large_one_that_wrote_what_it_read() {
    let (_disk, db, table) = open();
    let other = db.table("other").unwrap();
    let reader = |read: &dyn Fn(&Transaction)| {
        let mut tx = db.begin_serializable().unwrap();
        read(&tx);
        tx.put(&other, "k", "1").unwrap();
        tx
    };
    let point = reader(&|tx| assert!(tx.get(&table, 7u64.to_be_bytes()).unwrap().is_none()));
    let range = reader(&|tx| assert_eq!(tx.range(&table, ..).unwrap().count(), 0));
    let beside = reader(&|tx| assert!(tx.get(&table, 1000u64.to_be_bytes()).unwrap().is_none()));
    commits_straight(&db, large(&db, &table, 1));
    assert!(matches!(point.commit(), Err(Error::Conflict { .. })));
    assert!(matches!(range.commit(), Err(Error::Conflict { .. })));
    beside.commit().unwrap();
    // A large one that has read.
    let mut tx = db.begin_serializable().unwrap();
    assert!(tx.get(&other, "never").unwrap().is_none());
    put_all(&mut tx, &table, 0..RECORDS, 2).unwrap();
    db.put(&other, "never", "was").unwrap();
    assert!(!is_straight(&db, || assert!(matches!(tx.commit(), Err(Error::Conflict { .. })))));
    assert_eq!(round_of(&db.snapshot(), &table), 1);
}

#[test]
fn a_table_that_was_dropped_meanwhile_is_not_written_to() {
    let (_disk, db, table) = open();
    let tx = large(&db, &table, 1);
    db.drop_table("t").unwrap();
    assert!(matches!(tx.commit(), Err(Error::TableNotFound { .. })));
}

#[test]
fn snapshots_and_the_window_see_every_state() {
    for options in [options(), support::windowed_options(), support::split_options()] {
        let (disk, db, table) = open_with(&options);
        let (mut named, mut times) = (Vec::new(), Vec::new());
        for round in 1..=12u8 {
            let mut tx = large(&db, &table, round);
            let name = format!("round {round}");
            tx.set_snapshot_metadata([round]);
            assert!(is_straight(&db, || {
                let id = tx.commit_with_snapshot(&*name).unwrap();
                let info = db.snapshot_info(id).unwrap();
                assert_eq!((info.seq, info.metadata), (db.snapshot().seq(), vec![round]));
                named.push((id, round));
            }));
            times.push((SystemTime::now(), db.snapshot().seq()));
            let mut again = large(&db, &table, 100);
            again.set_snapshot_metadata([0]);
            let (taken, (id, _)) = (again.commit_with_snapshot(&*name), named[round as usize - 1]);
            assert!(matches!(taken, Err(Error::NameTaken { snapshot, .. }) if snapshot == id));
            if round % 4 == 0 {
                db.snapshot_now(None).unwrap();
                db.archive().unwrap();
            }
        }
        let check = |db: &Db| {
            for (id, round) in &named {
                let past = db.as_of(*id).unwrap();
                assert_eq!(round_of(&past, &past.table("t").unwrap()), *round);
            }
            let Some(window) = db.window() else { return };
            for seq in u64::from(window.first)..=u64::from(window.last) {
                let past = db.as_of(Seq::from(seq)).unwrap();
                assert_eq!(u64::from(past.seq()), seq);
            }
            for (round, (time, seq)) in times.iter().enumerate() {
                assert_eq!(db.as_of(*time).unwrap().seq(), *seq, "round {round}");
            }
        };
        check(&db);
        db.merge().unwrap();
        check(&db);
        db.verify().unwrap();
        // A large commit is durable, whatever it asked for.
        let db = options.clone().open_on(Arc::new(disk.crash_image(0)), PATH).unwrap();
        check(&db);
        db.verify().unwrap();
    }
}

#[test]
fn a_buffered_one_is_durable() {
    let (disk, db, table) = open();
    let mut tx = large(&db, &table, 1);
    tx.set_durability(Durability::Buffered);
    commits_straight(&db, tx);
    let left = options().open_on(Arc::new(disk.crash_image(0)), PATH).unwrap();
    assert_eq!(round_of(&left.snapshot(), &left.open_table("t").unwrap()), 1);
}

#[test]
fn views_that_are_held_stay_as_they_are() {
    let (_disk, db, table) = open();
    let mut views = vec![];
    for round in 1..20 {
        commits_straight(&db, large(&db, &table, round));
        views.push(db.snapshot());
        db.put(&table, 3u64.to_be_bytes(), value(round)).unwrap();
    }
    for (round, view) in (1..).zip(&views) {
        assert_eq!(round_of(view, &table), round);
    }
}

/// A large commit beside others: whatever their order, what each wrote is there, and nobody is refused.
#[test]
fn large_commits_beside_small_ones() {
    let directory = tempfile::tempdir().unwrap();
    let options = options().background(true).durability(Durability::Buffered);
    let db = options.open(directory.path()).unwrap();
    let tables: Vec<Table> = (0..3).map(|n| db.table(&format!("t{n}")).unwrap()).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=30 {
                large(&db, &tables[0], round).commit().unwrap();
                assert_eq!(round_of(&db.snapshot(), &tables[0]), round);
            }
        });
        for table in &tables[1..] {
            let db = &db;
            scope.spawn(move || {
                for round in 0..300u64 {
                    let mut tx = db.begin_serializable().unwrap();
                    let before = tx
                        .get(table, "count")
                        .unwrap()
                        .map_or(0, |count| u64::from_be_bytes(count[..].try_into().unwrap()));
                    assert_eq!(before, round);
                    tx.put(table, "count", (round + 1).to_be_bytes()).unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    assert!(db.stats().unwrap().bulk_commits > 3);
    db.verify().unwrap();
}

/// Before its superblock a failure leaves nothing, and all goes on; from then on the database is poisoned.
#[test]
fn a_failing_call_leaves_nothing_or_poisons() {
    let prepared = || {
        let (disk, db, table) = open();
        large(&db, &table, 1).commit().unwrap();
        (disk, db, table)
    };
    let (disk, db, table) = prepared();
    let begun = disk.operations();
    commits_straight(&db, large(&db, &table, 2));
    let operations = disk.operations() - begun;
    let (mut went_on, mut poisoned) = (0, 0);
    for n in 1..=operations {
        let (disk, db, table) = prepared();
        disk.fail_at(disk.operations() + n, ErrorKind::Other);
        let answer = large(&db, &table, 2).commit();
        let is_done = answer.is_ok();
        match db.put(&table, 1u64.to_be_bytes(), value(1 + u8::from(is_done))) {
            Ok(()) => went_on += 1,
            Err(Error::Poisoned { .. }) => poisoned += 1,
            Err(other) => panic!("call {n}: {other}"),
        }
        assert_eq!(round_of(&db.snapshot(), &table), 1 + u8::from(is_done), "call {n} of {operations}");
        drop(db);
        let db = options().open_on(Arc::new(disk.crash_image(1)), PATH).unwrap();
        let found = round_of(&db.snapshot(), &db.open_table("t").unwrap());
        assert!(found == 2 || !is_done, "call {n} of {operations}");
    }
    assert!(went_on > 2 && poisoned > 0, "{went_on} and {poisoned}");
}

#[test]
fn a_power_cut_leaves_the_state_before_or_the_one_behind() {
    let work = |disk: &SimDisk, begun: &mut u64| -> Result<()> {
        let db = options().open_on(Arc::new(disk.clone()), PATH)?;
        let table = db.table("t")?;
        large(&db, &table, 1).commit_with_snapshot("one")?;
        // What waits.
        db.put(&table, 3u64.to_be_bytes(), value(1))?;
        *begun = disk.operations();
        large(&db, &table, 2).commit_with_snapshot("two")?;
        Ok(())
    };
    let whole = SimDisk::new();
    let mut begun = 0;
    work(&whole, &mut begun).unwrap();
    let operations = whole.operations() - begun;
    let mut left = [0; 2];
    for cut in points(operations, operations, &mut Random(1)) {
        let disk = SimDisk::new();
        disk.crash_at(begun + cut);
        let done = work(&disk, &mut 0).is_ok();
        for seed in 0..4 {
            let db = options().open_on(Arc::new(disk.crash_image(seed)), PATH).unwrap();
            let table = db.open_table("t").unwrap();
            let round = round_of(&db.snapshot(), &table);
            let context = format!("cut at {cut} of {operations}, image {seed}");
            assert!(round == 2 || !done, "{context}");
            left[usize::from(round) - 1] += 1;
            for (round, there) in [(1, true), (2, round == 2)] {
                match db.as_of(["one", "two"][round - 1]) {
                    Ok(past) => assert!(there && round_of(&past, &table) as usize == round, "{context}"),
                    Err(error) => assert!(!there, "{context}: {error}"),
                }
            }
            // The number is not given twice.
            let next = db.begin().unwrap();
            let seq = u64::from(next.seq());
            db.put(&table, 1u64.to_be_bytes(), value(9)).unwrap();
            assert_eq!(u64::from(db.snapshot().seq()), seq + 1);
        }
    }
    assert!(left.iter().all(|count| *count > 0), "before and behind: {left:?}");
}

/// `cargo test --release -p bygone --test large -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, on the disk of the machine"]
fn how_long_others_wait_for_a_large_commit_is_measured() {
    const ROUNDS: usize = 7;
    const RECORD_BYTES: usize = 4000;
    let way = |large_bytes: usize, memtable_bytes: usize| {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new().durability(Durability::Buffered).memtable_bytes(memtable_bytes);
        let db = options.open(directory.path().join("db")).unwrap();
        let (large, small) = (db.table("large").unwrap(), db.table("small").unwrap());
        let done = AtomicBool::new(false);
        let (mut times, mut slowest) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let mut tx = db.begin().unwrap();
            let keys = round * large_bytes / RECORD_BYTES..(round + 1) * large_bytes / RECORD_BYTES;
            keys.for_each(|key| tx.put(&large, key.to_be_bytes(), vec![1; RECORD_BYTES]).unwrap());
            done.store(false, Ordering::Relaxed);
            let waited = thread::scope(|scope| {
                let beside = scope.spawn(|| {
                    let mut waited = Duration::ZERO;
                    let mut keys = 0u64..;
                    while !done.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        let key = (keys.next().unwrap() % 1000).to_be_bytes();
                        db.put(&small, key, "small").unwrap();
                        waited = waited.max(begun.elapsed());
                    }
                    waited
                });
                thread::sleep(Duration::from_millis(20));
                let begun = Instant::now();
                tx.commit().unwrap();
                times.push(begun.elapsed());
                done.store(true, Ordering::Relaxed);
                beside.join().unwrap()
            });
            slowest.push(waited);
        }
        let begun = Instant::now();
        db.merge().unwrap();
        times.sort_unstable();
        slowest.sort_unstable();
        println!(
            "{} MiB, {} of {ROUNDS} straight: commit {:.0?}, slowest beside it {:.0?} (medians), merged after {:.0?}",
            large_bytes >> 20,
            db.stats().unwrap().bulk_commits,
            times[ROUNDS / 2],
            slowest[ROUNDS / 2],
            begun.elapsed(),
        );
    };
    for _ in 0..2 {
        for large_bytes in [16 << 20, 48 << 20] {
            way(large_bytes, 64 << 20);
            // So that it is not large.
            way(large_bytes, 256 << 20);
        }
    }
}
