//! Every line of the public contract that exists so far, as a program would write it: this file has to
//! compile.

use std::ops::{Bound, ControlFlow};
use std::time::{Duration, SystemTime};

use bygone::{
    Change, Db, Diff, Durability, Error, History, Options, Range, Seq, Snapshot, SnapshotId, SnapshotInfo,
    SnapshotRef, Table, Transaction, TransactionRange, Value, Window,
};

fn is_send<T: Send>() {}
fn is_shared<T: Clone + Send + Sync + 'static>() {}
fn is_number<
    T: Copy + Ord + std::hash::Hash + std::fmt::Display + std::fmt::Debug + From<u64> + Into<u64>,
>() {
}

fn open() -> (tempfile::TempDir, Db) {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path().join("bank")).unwrap();
    (directory, db)
}

#[test]
fn a_log_that_is_not_mapped_is_a_log_too() {
    let directory = tempfile::tempdir().unwrap();
    for mapped in [false, true, false] {
        let options = Options::new().mapped_log(mapped).durability(Durability::Buffered).background(false);
        let db = options.open(directory.path().join("db")).unwrap();
        let table = db.table("t").unwrap();
        let count = db.snapshot().range(&table, ..).unwrap().count();
        for number in count..count + 100 {
            db.put(&table, number.to_be_bytes(), "v").unwrap();
        }
        assert_eq!(db.snapshot().range(&table, ..).unwrap().count(), count + 100);
    }
}

#[test]
fn types_are_what_the_contract_says() {
    is_shared::<Db>();
    is_shared::<Table>();
    is_shared::<Snapshot>();
    is_shared::<Error>();
    is_shared::<Value>();
    is_shared::<SnapshotRef>();
    is_shared::<Window>();
    is_shared::<SnapshotInfo>();
    is_send::<Transaction>();
    is_send::<Range>();
    is_send::<Diff>();
    is_send::<History>();
    is_shared::<Change>();
    is_send::<TransactionRange>();
    is_number::<SnapshotId>();
    is_number::<Seq>();
    let id = SnapshotId::from(7);
    assert_eq!((id.to_string(), u64::from(id)), ("7".to_owned(), 7));
    assert!(id < SnapshotId::from(8));
    assert_eq!(format!("{:>3}", Seq::from(5)), "  5");
}

#[test]
fn options_are_a_builder() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bank");
    assert!(matches!(Options::new().create(false).open(&path), Err(Error::NotFound { .. })));
    assert!(matches!(Options::new().read_only(true).open(&path), Err(Error::NotFound { .. })));
    let options = || {
        Options::new()
            .create(true)
            .read_only(false)
            .durability(Durability::Sync)
            .memtable_bytes(64 << 20)
            .cache_bytes(256 << 20)
            .history_dir(directory.path().join("bank-history"))
    };
    let db = options().open(&path).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, b"a", b"1").unwrap();
    assert!(matches!(Db::open(&path), Err(Error::Locked { owner: Some(_), .. })));
    drop(db);
    let db = options().read_only(true).open(&path).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(db.get(&table, b"a").unwrap().unwrap(), b"1");
    assert!(matches!(db.put(&table, b"a", b"2"), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.begin(), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.table("new"), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.flush(), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.merge(), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.snapshot_now(None), Err(Error::ReadOnly { .. })));
    assert!(matches!(db.drop_table("t"), Err(Error::ReadOnly { .. })));
}

#[test]
fn the_page_of_the_contract_runs() {
    let (_directory, db) = open();
    let accounts = db.table("accounts").unwrap();
    db.put(&accounts, b"alice", b"100").unwrap();
    let value: Option<Value> = db.get(&accounts, b"alice").unwrap();
    assert_eq!(value.as_deref(), Some(&b"100"[..]));
    db.delete(&accounts, b"bob").unwrap();

    let mut tx = db.begin().unwrap();
    tx.get(&accounts, b"alice").unwrap();
    tx.put(&accounts, b"alice", b"90").unwrap();
    assert_eq!(tx.range(&accounts, b"a".as_slice()..).unwrap().count(), 1);
    assert_eq!(tx.range(&accounts, ..).unwrap().next_back().unwrap().unwrap().1, b"90");
    tx.set_durability(Durability::Sync);
    let seq: Seq = tx.commit().unwrap();
    assert_eq!(db.snapshot().seq(), seq);

    let mut tx = db.begin_serializable().unwrap();
    tx.put(&accounts, "carol", String::from("5")).unwrap();
    let s: SnapshotId = tx.commit_with_snapshot("before-fees").unwrap();
    let unnamed = db.begin().unwrap().commit_with_snapshot(None).unwrap();
    assert!(s < unnamed);
    let name = String::from("end-of-day");
    let end = db.snapshot_now(name.as_str()).unwrap();
    db.snapshot_now(None).unwrap();
    db.put(&accounts, b"alice", vec![1u8, 2]).unwrap();

    let now: Snapshot = db.snapshot();
    let past = db.as_of(s).unwrap();
    assert_eq!(db.as_of("before-fees").unwrap().seq(), past.seq());
    assert_eq!(db.as_of(name).unwrap().seq(), db.as_of(end).unwrap().seq());
    assert_eq!(db.as_of(SystemTime::now()).unwrap().get(&accounts, b"carol").unwrap().unwrap(), b"5");
    assert!(matches!(
        db.as_of(SystemTime::now() - Duration::from_secs(3600)),
        Err(Error::SnapshotNotFound { .. })
    ));
    assert!(db.as_of(SystemTime::UNIX_EPOCH - Duration::from_secs(1)).is_err());
    assert!(now.get(&accounts, b"alice").unwrap() != past.get(&accounts, b"alice").unwrap());

    let mut keys = Vec::new();
    for kv in past.range(&accounts, ..).unwrap().rev() {
        let (key, value) = kv.unwrap();
        assert!(!value.is_empty());
        keys.push(key);
    }
    assert_eq!(keys, [b"carol".as_slice(), b"alice".as_slice()]);
    let length: Option<usize> = past.get_with(&accounts, b"alice", |value| value.len()).unwrap();
    assert_eq!(length, Some(2));
    let mut count = 0;
    past.for_each(&accounts, .., |_key, _value| {
        count += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(count, 2);
    assert_eq!(past.tables().unwrap(), ["accounts"]);

    let infos: Vec<SnapshotInfo> = db.snapshots().unwrap();
    let first = &infos[0];
    assert_eq!((first.id, first.name.as_deref(), first.seq), (s, Some("before-fees"), past.seq()));
    assert!(first.time <= SystemTime::now() && first.metadata.is_empty());
    assert_eq!(db.as_of(first).unwrap().seq(), first.seq);
    assert_eq!(infos.len(), 4);
    assert!(db.verify().unwrap().bases > 0);
    assert_eq!(db.stats().unwrap().snapshots, 4);
}

#[test]
fn ranges_take_every_kind_of_bounds() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    for key in ["a", "b", "c", "d"] {
        db.put(&table, key, key).unwrap();
    }
    let now = db.snapshot();
    let (b, c) = (b"b".as_slice(), b"c".as_slice());
    assert_eq!(now.range(&table, ..).unwrap().count(), 4);
    assert_eq!(now.range(&table, b..).unwrap().count(), 3);
    assert_eq!(now.range(&table, ..b).unwrap().count(), 1);
    assert_eq!(now.range(&table, ..=b).unwrap().count(), 2);
    assert_eq!(now.range(&table, b..c).unwrap().count(), 1);
    assert_eq!(now.range(&table, b..=c).unwrap().count(), 2);
    assert_eq!(now.range(&table, (Bound::Excluded(b), Bound::Unbounded)).unwrap().count(), 2);
    assert_eq!(now.range(&table, c..b).unwrap().count(), 0, "a range turned round is empty");
    assert_eq!(now.range(&table, (Bound::Excluded(b), Bound::Excluded(b))).unwrap().rev().count(), 0);
    let key = String::from("c");
    assert_eq!(now.range(&table, key.as_bytes()..).unwrap().count(), 2);
    let long = vec![b'b'; 5000];
    assert_eq!(now.range(&table, &long[..]..).unwrap().count(), 2);
    assert_eq!(now.range(&table, ..=&long[..]).unwrap().rev().count(), 2);
}

#[test]
fn the_past_can_be_compared_followed_and_copied() {
    let (directory, db) = open();
    let accounts = db.table("accounts").unwrap();
    db.put(&accounts, b"alice", b"100").unwrap();
    let a: SnapshotId = db.snapshot_now("a").unwrap();
    db.put(&accounts, b"alice", b"90").unwrap();
    let b = db.snapshot_now("b").unwrap();
    let diff: Diff = db.diff(a, b, &accounts).unwrap();
    for change in diff.rev() {
        let Change { key, before, after } = change.unwrap();
        assert_eq!(
            (&key[..], before.unwrap(), after.unwrap()),
            (&b"alice"[..], b"100"[..].into(), b"90"[..].into())
        );
    }
    assert_eq!(db.diff_range("a", "b", &accounts, b"b".as_slice()..).unwrap().count(), 0);
    let past = db.as_of(a).unwrap();
    assert_eq!(past.diff(&db.snapshot(), &accounts).unwrap().count(), 1);
    assert_eq!(past.diff_range(&db.snapshot(), &accounts, ..).unwrap().count(), 1);
    let history: History = db.history(&accounts, b"alice").unwrap();
    let values: Vec<(SnapshotId, Option<Value>)> = history.rev().collect::<bygone::Result<_>>().unwrap();
    assert_eq!(values, [(b, Some(b"90"[..].into())), (a, Some(b"100"[..].into()))]);
    db.export(a, directory.path().join("copy")).unwrap();
    db.export_view(&db.snapshot(), directory.path().join("now")).unwrap();
    assert!(matches!(db.export(a, directory.path().join("copy")), Err(Error::NotEmpty { .. })));
}

#[test]
fn what_is_read_outlives_the_database() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    db.put(&table, "k", "v").unwrap();
    db.merge().unwrap();
    let now = db.snapshot();
    let again = now.clone();
    let mut range: Range = now.range(&table, ..).unwrap();
    drop((now, db));
    let (key, value) = std::thread::spawn(move || range.next().unwrap().unwrap()).join().unwrap();
    assert_eq!((&key[..], value.into_vec()), (&b"k"[..], b"v".to_vec()));
    assert_eq!(again.get(&table, "k").unwrap().unwrap(), b"v");
}

#[test]
fn a_transaction_outlives_the_handle_of_its_database_and_moves_between_threads() {
    let (directory, db) = open();
    let table = db.table("t").unwrap();
    let mut tx = db.begin().unwrap();
    tx.put(&table, "k", "v").unwrap();
    drop(db);
    std::thread::spawn(move || tx.commit().unwrap()).join().unwrap();
    let db = Db::open(directory.path().join("bank")).unwrap();
    assert_eq!(db.get(&db.open_table("t").unwrap(), "k").unwrap().unwrap(), b"v");
}

#[test]
fn arguments_beyond_the_limits_give_errors_that_say_so() {
    let (_directory, db) = open();
    let table = db.table("t").unwrap();
    let long = vec![0; 1025];
    assert!(matches!(db.put(&table, &long, "v"), Err(Error::TooLarge { size: 1025, limit: 1024, .. })));
    assert!(matches!(db.begin().unwrap().put(&table, &long, "v"), Err(Error::TooLarge { .. })));
    assert_eq!(db.get(&table, vec![0; 100_000]).unwrap(), None);
    db.put(&table, vec![0; 1024], "v").unwrap();
    db.put(&table, "", "").unwrap();
    assert_eq!(db.get(&table, "").unwrap().unwrap(), b"");
    assert!(matches!(db.table(""), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.table(&"x".repeat(256)), Err(Error::TooLarge { .. })));
    assert!(matches!(db.open_table("none"), Err(Error::TableNotFound { .. })));
    assert!(matches!(db.drop_table("none"), Err(Error::TableNotFound { .. })));
    assert!(matches!(db.snapshot_now(""), Err(Error::InvalidArgument { .. })));
    let id = db.snapshot_now("n").unwrap();
    assert!(matches!(db.snapshot_now("n"), Err(Error::NameTaken { snapshot, .. }) if snapshot == id));
    assert!(matches!(db.as_of("none"), Err(Error::SnapshotNotFound { .. })));
    assert!(matches!(db.as_of(SnapshotId::from(99)), Err(Error::SnapshotNotFound { .. })));
    let mut tx = db.begin().unwrap();
    tx.set_snapshot_metadata(vec![0; (64 << 10) + 1]);
    assert!(matches!(tx.commit_with_snapshot(None), Err(Error::TooLarge { .. })));
    let (_other, other) = open();
    assert!(matches!(other.get(&table, "k"), Err(Error::InvalidArgument { .. })));
    assert!(matches!(other.put(&table, "k", "v"), Err(Error::InvalidArgument { .. })));
}

#[test]
fn a_database_that_is_open_is_found_by_its_path() {
    let (directory, db) = open();
    let path = directory.path().join("bank");
    assert_eq!(Db::find_open(&path).as_ref(), Some(&db));
    assert!(Db::find_open(directory.path()).is_none());
    let found = Db::find_open(&path).unwrap();
    drop(db);
    let table = found.table("t").unwrap();
    found.put(&table, b"a", b"1").unwrap();
    drop((found, table));
    assert!(Db::find_open(&path).is_none());
    // A simulated disk has nothing to do with the system's paths.
    let disk = std::sync::Arc::new(bygone::io::SimDisk::new());
    let simulated = Options::new().open_on(disk, &path).unwrap();
    assert!(Db::find_open(&path).is_none());
    drop(simulated);
}
