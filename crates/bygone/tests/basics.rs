//! The engine through its public face, one promise a test.

use std::ops::ControlFlow;

use bygone::{Db, Durability, Error, Options};

fn open(path: &std::path::Path) -> Db {
    Options::new().memtable_bytes(256 << 10).log_segment_bytes(256 << 10).open(path).unwrap()
}

#[test]
fn a_commit_is_there_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    {
        let db = open(directory.path());
        let table = db.table("t").unwrap();
        db.put(&table, "a", "1").unwrap();
        db.put(&table, "b", "2").unwrap();
        db.delete(&table, "a").unwrap();
    }
    let db = open(directory.path());
    let table = db.open_table("t").unwrap();
    assert_eq!(db.get(&table, "a").unwrap(), None);
    assert_eq!(db.get(&table, "b").unwrap().unwrap(), b"2");
}

#[test]
fn the_past_stays_through_flush_merge_and_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let mut ids = Vec::new();
    {
        let db = open(directory.path());
        let table = db.table("t").unwrap();
        for round in 0..20u32 {
            let mut tx = db.begin().unwrap();
            tx.set_durability(Durability::Buffered);
            for key in 0..200u32 {
                tx.put(&table, key.to_be_bytes(), (round * 1000 + key).to_be_bytes()).unwrap();
            }
            let name = format!("round-{round}");
            ids.push(tx.commit_with_snapshot(name.as_str()).unwrap());
            match round % 4 {
                1 => db.flush().unwrap(),
                3 => db.merge().unwrap(),
                _ => {}
            }
        }
        check(&db, &ids);
    }
    let db = open(directory.path());
    check(&db, &ids);
    db.merge().unwrap();
    check(&db, &ids);
    db.verify().unwrap();

    fn check(db: &Db, ids: &[bygone::SnapshotId]) {
        let table = db.open_table("t").unwrap();
        for (round, id) in ids.iter().enumerate() {
            let past = db.as_of(*id).unwrap();
            let mut count = 0u32;
            for item in past.range(&table, ..).unwrap() {
                let (key, value) = item.unwrap();
                assert_eq!(key, &count.to_be_bytes());
                assert_eq!(value, &(round as u32 * 1000 + count).to_be_bytes());
                count += 1;
            }
            assert_eq!(count, 200);
            assert_eq!(db.as_of(format!("round-{round}")).unwrap().seq(), past.seq());
        }
    }
}

#[test]
fn a_value_may_be_given_away() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    let table = db.table("t").unwrap();
    db.put(&table, "source", [7; 50]).unwrap();
    let mut tx = db.begin().unwrap();
    for bytes in [0, 1, 22, 23, 5000] {
        tx.put_owned(&table, format!("vec {bytes}"), vec![1; bytes]).unwrap();
        tx.put_owned(&table, format!("box {bytes}"), vec![2; bytes].into_boxed_slice()).unwrap();
    }
    tx.put_owned(&table, "value", db.get(&table, "source").unwrap().unwrap()).unwrap();
    tx.put_owned(&table, "vec 22", vec![3; 30]).unwrap();
    tx.put(&table, "box 22", "last").unwrap();
    assert_eq!(tx.get(&table, "vec 22").unwrap().unwrap(), [3; 30][..]);
    let long_key = vec![0; bygone::limits::KEY_BYTES_MAX + 1];
    assert!(matches!(tx.put_owned(&table, long_key, vec![]), Err(Error::TooLarge { .. })));
    tx.commit().unwrap();
    for bytes in [0, 1, 23, 5000] {
        assert_eq!(db.get(&table, format!("vec {bytes}")).unwrap().unwrap(), vec![1; bytes]);
        assert_eq!(db.get(&table, format!("box {bytes}")).unwrap().unwrap(), vec![2; bytes]);
    }
    assert_eq!(db.get(&table, "vec 22").unwrap().unwrap(), [3; 30][..]);
    assert_eq!(db.get(&table, "box 22").unwrap().unwrap(), b"last");
    assert_eq!(db.get(&table, "value").unwrap().unwrap(), [7; 50][..]);
}

#[test]
fn the_first_committer_wins() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    let table = db.table("t").unwrap();
    let mut first = db.begin().unwrap();
    let mut second = db.begin().unwrap();
    first.put(&table, "k", "1").unwrap();
    second.put(&table, "k", "2").unwrap();
    first.commit().unwrap();
    match second.commit() {
        Err(Error::Conflict { table, key }) => assert_eq!((table.as_str(), &key[..]), ("t", &b"k"[..])),
        other => panic!("{other:?}"),
    }
    assert_eq!(db.get(&table, "k").unwrap().unwrap(), b"1");
}

#[test]
fn ranges_go_both_ways_and_borrow() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(directory.path());
    let table = db.table("t").unwrap();
    for key in 0..100u8 {
        db.put(&table, [key], [key]).unwrap();
        if key == 50 {
            db.merge().unwrap();
        }
        if key == 70 {
            db.flush().unwrap();
        }
    }
    let now = db.snapshot();
    let keys = |range: &mut dyn Iterator<Item = bygone::Result<(bygone::Value, bygone::Value)>>| {
        range.map(|item| item.unwrap().0[0]).collect::<Vec<u8>>()
    };
    assert_eq!(keys(&mut now.range(&table, ..).unwrap()), (0..100).collect::<Vec<_>>());
    assert_eq!(keys(&mut now.range(&table, ..).unwrap().rev()), (0..100).rev().collect::<Vec<_>>());
    let (low, high) = ([10u8], [80u8]);
    let mut range = now.range(&table, &low[..]..&high[..]).unwrap();
    assert_eq!(range.next().unwrap().unwrap().0, &[10]);
    assert_eq!(range.next_back().unwrap().unwrap().0, &[79]);
    assert_eq!(range.count(), 68);
    let mut seen = Vec::new();
    now.for_each(&table, .., |key, _| {
        seen.push(key[0]);
        if key[0] == 90 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(seen, (0..=90).collect::<Vec<_>>());
}

#[test]
fn a_table_made_after_reopening_has_nothing_of_one_that_was_dropped_before() {
    let directory = tempfile::tempdir().unwrap();
    {
        let db = open(directory.path());
        let table = db.table("t").unwrap();
        db.put(&table, "k", "old").unwrap();
        db.drop_table("t").unwrap();
    }
    let db = open(directory.path());
    let table = db.table("t").unwrap();
    assert_eq!(db.get(&table, "k").unwrap(), None);
    db.merge().unwrap();
    assert_eq!(db.get(&table, "k").unwrap(), None);
}

#[test]
fn closing_in_the_middle_of_flushes_and_merges_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options::new().durability(Durability::Buffered).memtable_bytes(8 << 20);
    let db = options().open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    for batch in 0..6_000u32 {
        let mut tx = db.begin().unwrap();
        for key in 0..100u32 {
            let key = (batch * 100 + key).wrapping_mul(2_654_435_761);
            tx.put(&table, key.to_be_bytes(), [1; 100]).unwrap();
        }
        tx.commit().unwrap();
    }
    drop((db, table));
    let db = options().open(directory.path()).unwrap();
    let table = db.open_table("t").unwrap();
    assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), 600_000);
    db.verify().unwrap();
}

#[test]
fn verifying_beside_merges_finds_nothing_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().durability(Durability::Buffered).memtable_bytes(64 << 10);
    let db = options.open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48).to_be_bytes();
                db.put(&table, key, [7; 100]).unwrap();
            }
        });
        let mut verified = Ok(());
        while verified.is_ok() && db.stats().unwrap().merges < 60 {
            verified = db.verify().map(|_| ());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        verified.unwrap();
    });
}

#[test]
fn a_handle_knows_what_it_is_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Db::open(&path).unwrap();
    assert_eq!(db.path(), path);
    assert!(!db.is_read_only());
    assert_eq!(db, db.clone());
    let reader = bygone::Options::new().read_only(true).open(&path).unwrap();
    assert!(reader.is_read_only());
    assert_ne!(db, reader, "one directory, opened twice");
}
