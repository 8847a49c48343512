//! Corners of the engine that were wrong once, one a test.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Options};
use support::hooked::{Call, Hooked};

fn options() -> Options {
    Options::new()
        .background(false)
        .durability(Durability::Buffered)
        .memtable_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
}

fn on_sim() -> (Arc<SimDisk>, Db) {
    let disk = Arc::new(SimDisk::new());
    let db = options().open_on(disk.clone(), "db").unwrap();
    (disk, db)
}

fn keys(range: impl Iterator<Item = bygone::Result<(bygone::Value, bygone::Value)>>) -> Vec<String> {
    range.map(|item| String::from_utf8(item.unwrap().0.to_vec()).unwrap()).collect()
}

#[test]
fn a_range_read_from_an_included_end_that_is_deleted_goes_down_from_there() {
    let (_, db) = on_sim();
    let table = db.table("t").unwrap();
    for key in ["a", "b", "c"] {
        db.put(&table, key, "1").unwrap();
    }
    db.delete(&table, "b").unwrap();
    assert_eq!(keys(db.snapshot().range(&table, ..=b"b".as_slice()).unwrap().rev()), ["a"]);
    db.merge().unwrap();
    db.delete(&table, "c").unwrap();
    assert_eq!(keys(db.snapshot().range(&table, ..=b"c".as_slice()).unwrap().rev()), ["a"]);
}

#[test]
fn the_id_of_a_table_that_only_the_log_knew_is_not_given_away_again() {
    let (disk, db) = on_sim();
    let dropped = db.table("dropped").unwrap();
    db.put(&dropped, "k", "of the dropped table").unwrap();
    db.snapshot_now("before").unwrap();
    db.drop_table("dropped").unwrap();
    drop(db);
    let db = options().open_on(disk, "db").unwrap();
    let new = db.table("new").unwrap();
    assert_eq!(db.get(&new, "k").unwrap(), None);
    db.merge().unwrap();
    assert_eq!(db.get(&new, "k").unwrap(), None);
    let past = db.as_of("before").unwrap();
    let dropped = past.table("dropped").unwrap();
    assert_eq!(past.get(&dropped, "k").unwrap().unwrap(), b"of the dropped table");
}

#[test]
fn writing_through_the_past_handle_of_a_dropped_table_is_refused() {
    let (_, db) = on_sim();
    let table = db.table("t").unwrap();
    db.put(&table, "k", "1").unwrap();
    let before = db.snapshot();
    db.drop_table("t").unwrap();
    let handle = before.table("t").unwrap();
    assert_eq!(before.get(&handle, "k").unwrap().unwrap(), b"1");
    assert!(matches!(db.put(&handle, "k", "2"), Err(Error::TableNotFound { .. })));
    let mut tx = db.begin().unwrap();
    assert!(tx.put(&handle, "k", "2").and_then(|()| tx.commit()).is_err());
    // A new table of the same name is another one.
    db.table("t").unwrap();
    assert!(matches!(db.put(&handle, "k", "2"), Err(Error::TableNotFound { .. })));
}

/// Whether `work` ends in time.
fn ends(work: impl FnOnce() + Send + 'static) -> bool {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    wait.recv_timeout(Duration::from_secs(30)).is_ok()
}

#[test]
fn a_conflict_over_a_table_that_was_only_read_does_not_wait_for_who_makes_tables() {
    let (_, db) = on_sim();
    let (read, written) = (db.table("read").unwrap(), db.table("written").unwrap());
    assert!(ends(move || {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    db.table("other").unwrap();
                    db.drop_table("other").unwrap();
                }
            });
            for round in 0..30u32 {
                let mut tx = db.begin_serializable().unwrap();
                // Many reads make the validation long: time for the other thread to come in between.
                for key in 0..20_000u32 {
                    tx.get(&read, key.to_be_bytes()).unwrap();
                }
                tx.get(&read, "k").unwrap();
                tx.put(&written, "k", round.to_be_bytes()).unwrap();
                db.put(&read, "k", round.to_be_bytes()).unwrap();
                match tx.commit() {
                    Err(Error::Conflict { table, .. }) => assert_eq!(table, "read"),
                    other => panic!("{other:?}"),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }));
}

#[test]
fn a_serializable_transaction_loses_when_a_table_that_it_read_was_dropped() {
    let (_, db) = on_sim();
    let (read, written) = (db.table("read").unwrap(), db.table("written").unwrap());
    db.put(&read, "k", "1").unwrap();
    let mut tx = db.begin_serializable().unwrap();
    tx.get(&read, "k").unwrap();
    tx.put(&written, "k", "2").unwrap();
    db.drop_table("read").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    assert_eq!(db.get(&written, "k").unwrap(), None);
}

#[test]
fn flushing_more_often_than_a_superblock_has_room_for_runs_merges() {
    let (disk, db) = on_sim();
    let table = db.table("t").unwrap();
    for round in 0..120u32 {
        db.put(&table, round.to_be_bytes(), "v").unwrap();
        db.flush().unwrap();
    }
    drop(db);
    let db = options().open_on(disk, "db").unwrap();
    assert_eq!(db.snapshot().range(&table_of(&db), ..).unwrap().count(), 120);
}

fn table_of(db: &Db) -> bygone::Table {
    db.open_table("t").unwrap()
}

#[test]
fn a_long_log_is_recovered_into_many_small_memtables() {
    for background in [false, true] {
        let disk = Arc::new(SimDisk::new());
        let big = options().memtable_bytes(64 << 20).log_segment_bytes(1 << 20);
        let db = big.open_on(disk.clone(), "db").unwrap();
        let table = db.table("t").unwrap();
        for batch in 0..100u32 {
            let mut tx = db.begin().unwrap();
            for key in 0..100u32 {
                tx.put(&table, (batch * 100 + key).to_be_bytes(), [7; 800]).unwrap();
            }
            tx.commit().unwrap();
        }
        drop(db);
        let db = options().background(background).open_on(disk, "db").unwrap();
        let table = table_of(&db);
        db.put(&table, "more", "1").unwrap();
        db.flush().unwrap();
        assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 10_001);
        db.merge().unwrap();
        assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 10_001);
        assert!(db.stats().unwrap().runs == 0);
    }
}

#[test]
fn flush_returns_while_others_go_on_writing() {
    let db = options().background(true).open_on(Arc::new(SimDisk::new()), "db").unwrap();
    let table = db.table("t").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut tx_number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                tx_number += 1;
                let mut tx = db.begin().unwrap();
                for key in 0..50u64 {
                    tx.put(&table, (tx_number * 64 + key).to_be_bytes(), [1; 1000]).unwrap();
                }
                tx.commit().unwrap();
            }
        });
        let start = Instant::now();
        for _ in 0..10 {
            db.flush().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    });
}

#[test]
fn a_new_database_survives_a_power_cut_with_the_directories_that_lead_to_it() {
    let disk = Arc::new(SimDisk::new());
    let db = options().history_dir("c/d/past").open_on(disk.clone(), "a/b/db").unwrap();
    let table = db.table("t").unwrap();
    let mut tx = db.begin().unwrap();
    tx.put(&table, "k", "v").unwrap();
    tx.set_durability(Durability::Sync);
    tx.commit().unwrap();
    for seed in 0..50 {
        let image = Arc::new(disk.crash_image(seed));
        let db = options().history_dir("c/d/past").create(false).open_on(image, "a/b/db").unwrap();
        assert_eq!(db.get(&table_of(&db), "k").unwrap().unwrap(), b"v", "seed {seed}");
    }
}

#[test]
fn opening_with_a_damaged_superblock_removes_nothing() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let check = |db: Db| {
        let table = table_of(&db);
        assert_eq!(db.get(&table, "a").unwrap().unwrap(), b"1");
        assert_eq!(db.get(&table, "b").unwrap().unwrap(), b"2");
    };
    let options = || options().memtable_bytes(1 << 20);
    let db = options().open(&path).unwrap();
    let table = db.table("t").unwrap();
    for (key, value) in [("a", "1"), ("b", "2")] {
        db.put(&table, key, value).unwrap();
        db.flush().unwrap();
    }
    // Some segments of the log that were begun under the newest superblock.
    for number in 0..20u8 {
        db.put(&table, [number], [0; 10_000]).unwrap();
    }
    // Copies, as if killed here: an orderly end writes a superblock that says little more than the one before.
    // Both copies of the one superblock are damaged, then of the other, whichever pages they are on.
    let mut refused = 0;
    for copies in [[0, 1], [2, 3], [0, 2], [1, 3]] {
        let killed = directory.path().join(format!("{copies:?}"));
        for part in ["", "wal", "runs", "history"] {
            std::fs::create_dir(killed.join(part)).unwrap();
            let entries = std::fs::read_dir(path.join(part)).unwrap().map(|entry| entry.unwrap());
            for entry in entries.filter(|entry| entry.file_type().unwrap().is_file()) {
                std::fs::copy(entry.path(), killed.join(part).join(entry.file_name())).unwrap();
            }
        }
        let file = std::fs::File::options().read(true).write(true).open(killed.join("base.pages")).unwrap();
        let flip = |page: u64| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, page * 4096 + 20).unwrap();
            file.write_all_at(&[byte[0] ^ 1], page * 4096 + 20).unwrap();
        };
        copies.into_iter().for_each(flip);
        match options().open(&killed) {
            Ok(db) => check(db),
            Err(_) => refused += 1,
        }
        copies.into_iter().for_each(flip);
        check(options().open(&killed).unwrap());
    }
    assert_eq!(refused, 1, "only the newest superblock is needed");
}

#[test]
fn of_two_that_make_a_database_at_once_the_later_opens_what_the_first_made() {
    let disk = SimDisk::new();
    let raced = AtomicBool::new(false);
    // Somebody else gets the lock first, makes the database and is gone again.
    let place = disk.clone();
    let disk = Hooked::new(&disk, move |call| {
        if let Call::Lock = call
            && !raced.swap(true, Ordering::Relaxed)
        {
            let db = options().open_on(Arc::new(place.clone()), "db").unwrap();
            db.put(&db.table("t").unwrap(), "k", "v").unwrap();
        }
    });
    let db = options().open_on(Arc::new(disk), "db").unwrap();
    assert_eq!(db.get(&table_of(&db), "k").unwrap().unwrap(), b"v");
}

#[test]
fn a_serializable_transaction_is_validated_however_much_was_committed_since() {
    let db = options().memtable_bytes(64 << 20).open_on(Arc::new(SimDisk::new()), "db").unwrap();
    let (read, written, bulk) =
        (db.table("read").unwrap(), db.table("written").unwrap(), db.table("bulk").unwrap());
    for key in ["b", "d", "f"] {
        db.put(&read, key, "1").unwrap();
    }
    let dropped = db.table("dropped").unwrap();
    type Change = fn(&Db, &bygone::Table);
    let changes: [(Change, Option<&[u8]>); 8] = [
        (|_, _| {}, None),
        (|db, table| db.put(table, "c", "new").unwrap(), Some(b"c")),
        (|db, table| db.delete(table, "c").unwrap(), Some(b"c")),
        (|db, table| db.put(table, "b", "2").unwrap(), Some(b"b")),
        (|db, table| db.put(table, "a", "before the range").unwrap(), None),
        (|db, table| db.put(table, "e", "behind what was read").unwrap(), None),
        (|db, table| db.delete(table, "f").unwrap(), None),
        (|db, _| db.drop_table("dropped").unwrap(), Some(b"k")),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        let mut tx = db.begin_serializable().unwrap();
        // Reads up to "d".
        let mut range = tx.range(&read, b"b".as_slice()..b"z".as_slice()).unwrap();
        while range.next().is_some_and(|item| item.unwrap().0[..] < *b"d".as_slice()) {}
        if number == 7 {
            tx.get(&dropped, "k").unwrap();
        }
        tx.put(&written, "k", number.to_be_bytes()).unwrap();
        change(&db, &read);
        for key in 0..9u8 {
            db.put(&bulk, [key], vec![key; 8 << 20]).unwrap();
        }
        match (tx.commit(), expected) {
            (Ok(_), None) => {}
            (Err(Error::Conflict { key, .. }), Some(expected)) => assert_eq!(key, expected),
            (outcome, _) => panic!("change {number}: {outcome:?}"),
        }
    }
}
