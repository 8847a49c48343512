//! What transactions promise each other, alone and over threads.
//!
//! Owns: nothing. Promises: each test is one anomaly that must not be, or one refusal that must not be. May
//! call: the engine's public face.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use bygone::{Db, Durability, Error, Options, Result, Table, Transaction};

/// A database of tiny memtables, which are flushed and merged all the time.
fn open() -> (tempfile::TempDir, Db) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10);
    let db = options.durability(Durability::Buffered).open(directory.path()).unwrap();
    (directory, db)
}

fn number(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().unwrap())
}

fn read(tx: &Transaction, table: &Table, key: &str) -> i64 {
    tx.get(table, key).unwrap().map_or(0, |value| number(&value))
}

fn is_conflict<T: std::fmt::Debug>(answer: &Result<T>, table: &str, key: &[u8]) -> bool {
    matches!(answer, Err(Error::Conflict { table: t, key: k }) if t == table && k == key)
}

/// Repeats a transaction until it commits; answers how often it lost.
fn retry(mut attempt: impl FnMut() -> Result<()>) -> u64 {
    let mut lost = 0;
    loop {
        match attempt() {
            Ok(()) => return lost,
            Err(Error::Conflict { .. }) => lost += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn counters_end_at_the_exact_sum() {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 500;
    let (_directory, db) = open();
    let table = db.table("counters").unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, table) = (&db, &table);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Two of three increments are everybody's, the third is the thread's own.
                    let key = if round % 3 == 0 { format!("own-{thread}") } else { "shared".to_owned() };
                    retry(|| {
                        let mut tx = if round % 2 == 0 { db.begin()? } else { db.begin_serializable()? };
                        let count = read(&tx, table, &key) + 1;
                        // What fills the memtables, so that conflicts also meet flushes and merges.
                        tx.put(table, format!("filler-{thread}-{round}"), [7; 300])?;
                        tx.put(table, &key, count.to_le_bytes())?;
                        tx.commit().map(|_| ())
                    });
                }
            });
        }
    });
    let mut sum = number(&db.get(&table, "shared").unwrap().unwrap());
    for thread in 0..THREADS {
        sum += number(&db.get(&table, format!("own-{thread}")).unwrap().unwrap());
    }
    assert_eq!(sum, THREADS * ROUNDS);
    assert!(db.stats().unwrap().flushes > 0);
}

#[test]
fn of_two_who_read_and_write_one_key_the_second_loses() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    db.put(&table, "k", 1i64.to_le_bytes()).unwrap();
    let (mut a, mut b) = (db.begin().unwrap(), db.begin().unwrap());
    for tx in [&mut a, &mut b] {
        let value = read(tx, &table, "k");
        tx.put(&table, "k", (value + 1).to_le_bytes()).unwrap();
    }
    b.commit().unwrap();
    assert!(is_conflict(&a.commit(), "t", b"k"));
    assert_eq!(number(&db.get(&table, "k").unwrap().unwrap()), 2);
}

/// Two doctors are on call; each may leave if the other stays. Under snapshot isolation both may leave: it
/// promises nothing about what was only read. That is its documented price, and what serializable is for.
#[test]
fn write_skew_is_possible_under_snapshot_isolation_and_not_under_serializable() {
    for serializable in [false, true] {
        let (_directory, db) = open();
        let table = db.table("on call").unwrap();
        db.put(&table, "a", 1i64.to_le_bytes()).unwrap();
        db.put(&table, "b", 1i64.to_le_bytes()).unwrap();
        let begin = || if serializable { db.begin_serializable() } else { db.begin() };
        let leave = |who: &str| {
            let mut tx = begin().unwrap();
            assert_eq!(read(&tx, &table, "a") + read(&tx, &table, "b"), 2);
            tx.put(&table, who, 0i64.to_le_bytes()).unwrap();
            tx
        };
        let (a, b) = (leave("a"), leave("b"));
        a.commit().unwrap();
        assert_eq!(is_conflict(&b.commit(), "on call", b"a"), serializable);
        let left = read(&db.begin().unwrap(), &table, "a") + read(&db.begin().unwrap(), &table, "b");
        assert_eq!(left, i64::from(serializable));
    }
}

/// As above with threads: of many who each see that the sum allows one more, never so many get through that
/// it does not.
#[test]
fn a_rule_over_many_keys_holds_under_serializable() {
    const LIMIT: usize = 20;
    let (_directory, db) = open();
    let table = db.table("seats").unwrap();
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (db, table, taken) = (&db, &table, &taken);
            scope.spawn(move || {
                for round in 0..40u64 {
                    retry(|| {
                        let mut tx = db.begin_serializable()?;
                        let free = LIMIT - tx.range(table, ..)?.count();
                        if free == 0 {
                            return Ok(());
                        }
                        // Everybody writes a key of his own: only the range that was read tells of the
                        // others.
                        tx.put(table, [thread.to_be_bytes(), round.to_be_bytes()].concat(), "mine")?;
                        tx.commit()?;
                        taken.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    });
                }
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), LIMIT as u64);
    assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), LIMIT);
}

#[test]
fn a_phantom_in_a_range_that_was_read_is_a_conflict_and_one_outside_is_none() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    for key in ["b", "d", "f"] {
        db.put(&table, key, "1").unwrap();
    }
    // What was read of b..=f, a key that somebody else writes meanwhile, and whether that is a conflict.
    type Reading = fn(&mut dyn DoubleEndedIterator<Item = Result<(bygone::Value, bygone::Value)>>);
    let all: Reading = |range| assert_eq!(range.count(), 3);
    let first: Reading = |range| assert_eq!(range.next().unwrap().unwrap().0, b"b");
    let last: Reading = |range| assert_eq!(range.next_back().unwrap().unwrap().0, b"f");
    let nothing: Reading = |_| {};
    let cases = [
        (all, "c", true),
        (all, "a", false),
        (all, "g", false),
        (first, "b", true),
        (first, "c", false),
        (last, "e", false),
        (last, "f", true),
        (nothing, "d", false),
    ];
    for (case, (reading, key, conflicts)) in cases.into_iter().enumerate() {
        for delete in [false, true] {
            let mut tx = db.begin_serializable().unwrap();
            reading(&mut tx.range(&table, b"b".as_slice()..=b"f".as_slice()).unwrap());
            tx.put(&table, "outside", "1").unwrap();
            let before = db.get(&table, key).unwrap();
            if delete {
                db.delete(&table, key).unwrap();
            } else {
                db.put(&table, key, "2").unwrap();
            }
            assert_eq!(is_conflict(&tx.commit(), "t", key.as_bytes()), conflicts, "case {case}");
            match before {
                Some(before) => db.put(&table, key, before).unwrap(),
                None => db.delete(&table, key).unwrap(),
            }
        }
    }
}

#[test]
fn a_table_that_was_read_and_dropped_meanwhile_is_a_conflict_under_serializable() {
    let (_directory, db) = open();
    let other = db.table("other").unwrap();
    let read: [fn(&Transaction, &Table); 2] = [
        |tx, table| assert!(tx.get(table, "k").unwrap().is_some()),
        |tx, table| assert_eq!(tx.range(table, ..).unwrap().count(), 1),
    ];
    for read in read {
        for made_again in [false, true] {
            let mut table = db.table("t").unwrap();
            db.put(&table, "k", "v").unwrap();
            let mut tx = db.begin_serializable().unwrap();
            if made_again {
                // The young handle stands for the old table in the transaction's view.
                db.drop_table("t").unwrap();
                table = db.table("t").unwrap();
            }
            read(&tx, &table);
            tx.put(&other, "copy", "v").unwrap();
            db.drop_table("t").unwrap();
            let answer = tx.commit();
            assert!(matches!(&answer, Err(Error::Conflict { table, .. }) if table == "t"), "{answer:?}");
        }
    }
}

/// Commits that wait at the same time are validated as one group: also against each other.
#[test]
fn the_first_committer_wins_within_a_group() {
    const THREADS: usize = 16;
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    let barrier = Barrier::new(THREADS);
    for round in 0..40u32 {
        let winners = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (db, table, barrier, winners) = (&db, &table, &barrier, &winners);
                scope.spawn(move || {
                    let mut tx = if thread % 2 == 0 { db.begin() } else { db.begin_serializable() }.unwrap();
                    tx.set_durability(Durability::Sync);
                    tx.put(table, round.to_be_bytes(), thread.to_be_bytes()).unwrap();
                    barrier.wait();
                    match tx.commit() {
                        Ok(_) => winners.lock().unwrap().push(thread),
                        lost => assert!(is_conflict(&lost, "t", &round.to_be_bytes())),
                    }
                });
            }
        });
        let winners = winners.into_inner().unwrap();
        assert_eq!(winners.len(), 1);
        assert_eq!(db.get(&table, round.to_be_bytes()).unwrap().unwrap(), &winners[0].to_be_bytes());
    }
}

#[test]
fn who_only_reads_never_loses() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    let mut tx = db.begin_serializable().unwrap();
    assert_eq!(tx.range(&table, ..).unwrap().count(), 0);
    assert_eq!(tx.get(&table, "k").unwrap(), None);
    db.put(&table, "k", "v").unwrap();
    assert_eq!(tx.get(&table, "k").unwrap(), None);
    let view = tx.seq();
    tx.set_durability(Durability::Sync);
    assert_eq!(tx.commit().unwrap(), view);
}

#[test]
fn a_blind_write_conflicts_with_nothing() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    thread::scope(|scope| {
        for thread in 0..4u8 {
            let (db, table) = (&db, &table);
            scope.spawn(move || {
                for round in 0..500u32 {
                    if round % 5 == 4 {
                        db.delete(table, "k").unwrap();
                    } else {
                        db.put(table, "k", [thread; 100]).unwrap();
                    }
                }
            });
        }
    });
}

/// The conflict table has 65,536 entries, so with more keys than that nearly every entry is shared. A writer
/// of other keys is no conflict, however many he writes; where they lie by now makes no difference.
#[test]
fn keys_that_share_an_entry_of_the_conflict_table_do_not_conflict() {
    const KEYS: u32 = 400_000;
    let directory = tempfile::tempdir().unwrap();
    let db =
        Options::new().durability(Durability::Buffered).background(false).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let own = |key: u32| [b"own".as_slice(), &key.to_be_bytes()].concat();
    for place in ["memtable", "run", "base"] {
        // Under snapshot isolation and under serializable, with keys that exist and with new ones.
        let begin = [db.begin().unwrap(), db.begin_serializable().unwrap()];
        let transactions = begin.into_iter().zip(0..).map(|(mut tx, number)| {
            for key in 0..50 {
                let key = own(2 * key + number);
                tx.get(&table, &key).unwrap();
                tx.put(&table, &key, place).unwrap();
            }
            tx
        });
        let transactions: Vec<_> = transactions.collect();
        for batch in 0..KEYS / 10_000 {
            let mut tx = db.begin().unwrap();
            for key in 0..10_000 {
                tx.put(&table, (batch * 10_000 + key).to_be_bytes(), place).unwrap();
            }
            tx.commit().unwrap();
        }
        match place {
            "run" => db.flush().unwrap(),
            "base" => db.merge().unwrap(),
            _ => {}
        }
        for tx in transactions {
            tx.commit().unwrap();
        }
    }
}

#[test]
fn a_conflict_is_noticed_also_when_the_other_write_is_flushed_or_merged_by_now() {
    for background in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new().durability(Durability::Buffered).background(background);
        let db = options.open(directory.path()).unwrap();
        let table = db.table("t").unwrap();
        let moves: [fn(&Db); 4] = [
            |_| {},
            |db| db.flush().unwrap(),
            |db| db.merge().unwrap(),
            |db| {
                db.merge().unwrap();
                db.snapshot_now(None).unwrap();
                db.merge().unwrap();
            },
        ];
        for (round, make_room) in moves.into_iter().enumerate() {
            for (other, deletes) in [("written", false), ("gone", true)] {
                db.put(&table, "gone", "x").unwrap();
                make_room(&db);
                let mut writer = db.begin().unwrap();
                writer.put(&table, other, "mine").unwrap();
                let mut reader = db.begin_serializable().unwrap();
                reader.get(&table, other).unwrap();
                reader.put(&table, "result", "of what was read").unwrap();
                let mut ranger = db.begin_serializable().unwrap();
                assert!(ranger.range(&table, ..).unwrap().count() > 0);
                ranger.put(&table, "result", "of what was read").unwrap();
                if deletes {
                    db.delete(&table, other).unwrap();
                } else {
                    db.put(&table, other, round.to_le_bytes()).unwrap();
                }
                make_room(&db);
                for tx in [writer, reader, ranger] {
                    assert!(is_conflict(&tx.commit(), "t", other.as_bytes()), "round {round}");
                }
            }
        }
    }
}

#[test]
fn a_name_is_given_once_and_numbers_follow_the_commits() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 60;
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    let won = Mutex::new(vec![0; ROUNDS]);
    let mut ids = BTreeSet::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, table, won) = (&db, &table, &won);
                scope.spawn(move || {
                    let mut ids = Vec::new();
                    for round in 0..ROUNDS {
                        let mut tx = db.begin().unwrap();
                        tx.put(table, [thread as u8], round.to_le_bytes()).unwrap();
                        tx.set_snapshot_metadata([thread as u8, round as u8]);
                        match tx.commit_with_snapshot(format!("round-{round}").as_str()) {
                            Ok(id) => {
                                won.lock().unwrap()[round] += 1;
                                ids.push(id);
                            }
                            Err(Error::NameTaken { name, .. }) => assert_eq!(name, format!("round-{round}")),
                            Err(other) => panic!("{other}"),
                        }
                        ids.push(db.snapshot_now(None).unwrap());
                    }
                    assert!(ids.is_sorted(), "a thread's own snapshots are in its order");
                    ids
                })
            })
            .collect();
        for worker in workers {
            ids.extend(worker.join().unwrap());
        }
    });
    assert!(won.into_inner().unwrap().iter().all(|winners| *winners == 1));
    assert!(ids.iter().map(|id| u64::from(*id)).eq(1..=(THREADS * ROUNDS + ROUNDS) as u64));
    let list = db.snapshots().unwrap();
    assert!(list.is_sorted_by_key(|info| (info.id, info.seq, info.time)));
    assert!(list.iter().map(|info| info.id).eq(ids));
    for info in list {
        let past = db.as_of(info.id).unwrap();
        assert_eq!(past.seq(), info.seq);
        if let Some(name) = &info.name {
            // The snapshot's commit is the one that declared it: it holds what that thread wrote.
            let value = past.get(&table, &info.metadata[..1]).unwrap().unwrap();
            assert_eq!(*name, format!("round-{}", usize::from_le_bytes(value[..].try_into().unwrap())));
        }
    }
}

/// A bank: money moves, its sum never changes, whoever looks at it however.
#[test]
fn commits_become_visible_whole() {
    const ACCOUNTS: u32 = 40;
    const TOTAL: i64 = ACCOUNTS as i64 * 1000;
    let (_directory, db) = open();
    let table = db.table("accounts").unwrap();
    let mut tx = db.begin().unwrap();
    for account in 0..ACCOUNTS {
        tx.put(&table, account.to_be_bytes(), 1000i64.to_le_bytes()).unwrap();
    }
    tx.commit().unwrap();
    let done = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    thread::scope(|scope| {
        let (db, table, done, looks) = (&db, &table, &done, &looks);
        let transfer = |random: &mut u64, round: u32| {
            let mut pick = || {
                *random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((*random >> 33) as u32 % ACCOUNTS).to_be_bytes()
            };
            let (from, to, amount) = (pick(), pick(), i64::from(round % 90));
            if from == to {
                return;
            }
            retry(|| {
                let mut tx = db.begin()?;
                let taken = number(&tx.get(table, from)?.unwrap()) - amount;
                let given = number(&tx.get(table, to)?.unwrap()) + amount;
                tx.put(table, from, taken.to_le_bytes())?;
                tx.put(table, to, given.to_le_bytes())?;
                if round.is_multiple_of(20) {
                    tx.commit_with_snapshot(None).map(|_| ())
                } else {
                    tx.commit().map(|_| ())
                }
            });
        };
        let movers: Vec<_> = (1..=2u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = thread;
                    (0..2500).for_each(|round| transfer(&mut random, round));
                })
            })
            .collect();
        let look = |view: &bygone::Snapshot, how: u64| {
            let mut sum = 0;
            match how % 3 {
                0 => (0..ACCOUNTS).for_each(|account| {
                    sum += view.get_with(table, account.to_be_bytes(), number).unwrap().unwrap();
                }),
                1 => view.range(table, ..).unwrap().for_each(|item| sum += number(&item.unwrap().1)),
                _ => {
                    let add = |_: &[u8], value: &[u8]| {
                        sum += number(value);
                        ControlFlow::Continue(())
                    };
                    view.for_each(table, .., add).unwrap();
                }
            }
            assert_eq!(sum, TOTAL, "as of {}", view.seq());
            looks.fetch_add(1, Ordering::Relaxed);
        };
        scope.spawn(move || {
            for how in 0.. {
                look(&db.snapshot(), how);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        scope.spawn(move || {
            for how in 0u64.. {
                let count = db.stats().unwrap().snapshots;
                if count > 0 {
                    look(&db.as_of(bygone::SnapshotId::from(1 + how * 7 % count)).unwrap(), how);
                }
                let tx = db.begin().unwrap();
                let sum: i64 = tx.range(table, ..).unwrap().rev().map(|item| number(&item.unwrap().1)).sum();
                assert_eq!(sum, TOTAL);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for mover in movers {
            mover.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(looks.load(Ordering::Relaxed) > 10);
    db.merge().unwrap();
    for info in db.snapshots().unwrap() {
        let past = db.as_of(info.id).unwrap();
        let sum: i64 = past.range(&table, ..).unwrap().map(|item| number(&item.unwrap().1)).sum();
        assert_eq!(sum, TOTAL);
    }
}
