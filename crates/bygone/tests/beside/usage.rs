//! What an application sees that reads beside another.

use std::sync::Arc;

use bygone::io::{Operation, SimDisk};
use bygone::{Db, Error, Options, Retention};

use crate::leases;
use crate::support::{self, PATH, open, open_read_only, options};

fn get(db: &Db, key: &str) -> Option<String> {
    let table = db.open_table("t").unwrap();
    db.get(&table, key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

#[test]
fn a_reader_sees_what_was_committed_when_it_opened_and_when_it_refreshed() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    let table = owner.table("t").unwrap();
    owner.put(&table, "k", "1").unwrap();
    owner.snapshot_now("one").unwrap();
    let reader = open_read_only(&disk).unwrap();
    let mine = reader.open_table("t").unwrap();
    let before = reader.snapshot();
    for merged in [false, true] {
        owner.put(&table, "k", if merged { "3" } else { "2" }).unwrap();
        owner.snapshot_now(if merged { "three" } else { "two" }).unwrap();
        if merged {
            owner.merge().unwrap();
        }
        let name = if merged { "three" } else { "two" };
        assert!(matches!(reader.as_of(name), Err(Error::SnapshotNotFound { .. })));
        assert_eq!(get(&reader, "k").unwrap(), if merged { "2" } else { "1" });
        assert!(reader.refresh().unwrap());
        assert!(!reader.refresh().unwrap(), "nothing has changed since");
        assert_eq!(get(&reader, "k").unwrap(), if merged { "3" } else { "2" });
        assert_eq!(reader.as_of(name).unwrap().get(&mine, "k").unwrap(), reader.get(&mine, "k").unwrap());
        assert_eq!(reader.as_of("one").unwrap().get(&mine, "k").unwrap().unwrap(), b"1");
        assert_eq!(before.get(&mine, "k").unwrap().unwrap(), b"1", "a view that is held stays");
    }
    assert_eq!(reader.snapshots().unwrap().len(), 3);
    assert_eq!(reader.diff("one", "three", &mine).unwrap().count(), 1);
    assert_eq!(reader.history(&mine, "k").unwrap().count(), 3);
    reader.verify().unwrap();
    let (theirs, mine) = (owner.stats().unwrap(), reader.stats().unwrap());
    assert_eq!((theirs.seq, theirs.snapshots, theirs.runs), (mine.seq, mine.snapshots, mine.runs));
    assert_eq!(
        theirs.base_free_bytes + theirs.base_history_bytes,
        mine.base_free_bytes + mine.base_history_bytes
    );
    assert!(!owner.refresh().unwrap(), "an owner is always up to date");
    assert_eq!(
        (theirs.other_readers, mine.other_readers),
        (2, 0),
        "one of now, and one of the view that is held"
    );
    assert!(matches!(reader.snapshot_now(None), Err(Error::ReadOnly { .. })));
    drop((before, reader));
    assert_eq!(leases(&disk).len(), 0);
}

#[test]
fn a_snapshot_that_another_process_reads_may_not_be_deleted() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    let table = owner.table("t").unwrap();
    let ids: Vec<_> = (0..3)
        .map(|n: u8| {
            owner.put(&table, "k", [n]).unwrap();
            owner.snapshot_now(None).unwrap()
        })
        .collect();
    let reader = open_read_only(&disk).unwrap();
    let view = reader.as_of(ids[1]).unwrap();
    let name = format!("process {}", std::process::id());
    match owner.delete_snapshots([ids[0], ids[1]]) {
        Err(Error::SnapshotHeld { snapshot, holders }) => {
            assert_eq!((snapshot, holders), (ids[1], vec![name.clone()]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(owner.snapshots().unwrap()[1].holders, [name.as_str()]);
    assert_eq!(owner.snapshot_info(ids[1]).unwrap().holders, [name.as_str()]);
    assert!(matches!(owner.release_snapshot(ids[1], &name), Err(Error::InvalidArgument { .. })));
    let doomed = owner.apply_retention(&Retention::new().keep_last(1)).unwrap();
    assert_eq!(doomed.iter().map(|info| info.id).collect::<Vec<_>>(), [ids[0]], "what is held is kept");
    // Refreshing does not let go what is still read.
    owner.put(&table, "k", "more").unwrap();
    assert!(reader.refresh().unwrap());
    assert!(matches!(owner.delete_snapshot(ids[1]), Err(Error::SnapshotHeld { .. })));
    drop(view);
    // Without background threads this is who looks.
    reader.stats().unwrap();
    owner.delete_snapshot(ids[1]).unwrap();
    // Whoever came before the deletion reads on.
    assert_eq!(reader.as_of(ids[1]).unwrap().get(&table_of(&reader), "k").unwrap().unwrap(), b"\x01");
    assert!(reader.refresh().unwrap());
    assert!(matches!(reader.as_of(ids[1]), Err(Error::SnapshotNotFound { deleted: Some(_), .. })));
}

fn table_of(db: &Db) -> bygone::Table {
    db.open_table("t").unwrap()
}

#[test]
fn a_view_that_is_dropped_lets_its_snapshot_go_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let owner = options().open(directory.path()).unwrap();
    owner.put(&owner.table("t").unwrap(), "k", "v").unwrap();
    let id = owner.snapshot_now(None).unwrap();
    let reader = options().background(true).read_only(true).open(directory.path()).unwrap();
    drop(reader.as_of(id).unwrap());
    let deadline = std::time::Instant::now() + support::limit();
    while let Err(error) = owner.delete_snapshot(id) {
        assert!(matches!(error, Error::SnapshotHeld { .. }), "{error}");
        assert!(std::time::Instant::now() < deadline, "it is held for ever");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn handles_of_tables_outlive_a_refresh() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    for name in ["stays", "goes", "anew"] {
        owner.put(&owner.table(name).unwrap(), "k", name).unwrap();
    }
    owner.snapshot_now("first").unwrap();
    let reader = open_read_only(&disk).unwrap();
    let [stays, goes, anew] = ["stays", "goes", "anew"].map(|name| reader.open_table(name).unwrap());
    let before = reader.snapshot();
    owner.snapshot_now("second").unwrap();
    owner.drop_table("goes").unwrap();
    owner.drop_table("anew").unwrap();
    owner.put(&owner.table("anew").unwrap(), "k", "another").unwrap();
    owner.put(&owner.table("new").unwrap(), "k", "new").unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(reader.tables().unwrap(), ["anew", "new", "stays"]);
    assert_eq!(reader.get(&stays, "k").unwrap().unwrap(), b"stays");
    assert!(matches!(reader.get(&goes, "k"), Err(Error::TableNotFound { .. })));
    assert!(matches!(reader.open_table("goes"), Err(Error::TableNotFound { .. })));
    assert_eq!(reader.get(&anew, "k").unwrap().unwrap(), b"another", "the name is looked up");
    assert_eq!(reader.get(&reader.open_table("new").unwrap(), "k").unwrap().unwrap(), b"new");
    for name in ["first", "second"] {
        let past = reader.as_of(name).unwrap();
        assert_eq!(past.get(&goes, "k").unwrap().unwrap(), b"goes", "{name}");
        assert_eq!(past.get(&anew, "k").unwrap().unwrap(), b"anew", "{name}");
    }
    assert_eq!(before.get(&goes, "k").unwrap().unwrap(), b"goes");
}

#[test]
fn without_the_right_to_write_a_reader_excludes_the_owner() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    owner.put(&owner.table("t").unwrap(), "k", "v").unwrap();
    let forbid = |disk: &SimDisk| {
        disk.fail_matching(|operation, path| {
            let lease = operation == Operation::Create && path.starts_with("db/leases");
            lease.then_some(std::io::ErrorKind::PermissionDenied)
        });
    };
    forbid(&disk);
    match open_read_only(&disk) {
        Err(Error::Io { path, .. }) => assert!(path.starts_with("db/leases")),
        other => panic!("{other:?}"),
    }
    drop(owner);
    let reader = open_read_only(&disk).unwrap();
    let beside = open_read_only(&disk).unwrap();
    assert!(!reader.refresh().unwrap());
    assert_eq!(get(&reader, "k").unwrap(), "v");
    disk.clear_faults();
    assert!(matches!(open(&disk), Err(Error::Locked { .. })));
    drop((reader, beside));
    open(&disk).unwrap();
}

#[test]
fn a_reader_goes_on_when_the_owner_is_gone_and_another_comes() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    let table = owner.table("t").unwrap();
    owner.put(&table, "k", "1").unwrap();
    let reader = open_read_only(&disk).unwrap();
    drop(owner);
    assert_eq!(get(&reader, "k").unwrap(), "1");
    assert!(!reader.refresh().unwrap());
    let owner = open(&disk).unwrap();
    owner.put(&owner.table("t").unwrap(), "k", "2").unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(get(&reader, "k").unwrap(), "2");
    let another = open_read_only(&disk).unwrap();
    assert_eq!(get(&another, "k").unwrap(), "2");
}

#[test]
fn a_database_in_place_of_another_is_noticed() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    owner.snapshot_now("s").unwrap();
    owner.export("s", "copy").unwrap();
    drop(owner);
    let reader = open_read_only(&disk).unwrap();
    let bytes = disk.read_file("copy/base.pages".as_ref()).unwrap();
    support_write(&disk, &bytes);
    assert!(matches!(reader.refresh(), Err(Error::Corruption { .. })));
}

fn support_write(disk: &SimDisk, bytes: &[u8]) {
    use bygone::io::{Disk, OpenMode};
    let path = std::path::Path::new(PATH).join("base.pages");
    let file = disk.open(&path, OpenMode::Write).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
}

#[test]
fn a_reader_of_a_directory_elsewhere_for_history_reads_it_there() {
    let disk = SimDisk::new();
    let options = || support::options().history_dir("elsewhere");
    let owner = options().open_on(Arc::new(disk.clone()), PATH).unwrap();
    let table = owner.table("t").unwrap();
    for n in 0..40u8 {
        let mut tx = owner.begin().unwrap();
        (0..50u8).for_each(|key| tx.put(&table, [key], [n; 50]).unwrap());
        tx.commit_with_snapshot(None).unwrap();
        if n % 10 == 9 {
            owner.merge().unwrap();
        }
    }
    let reader: Options = options().read_only(true);
    let reader = reader.open_on(Arc::new(disk.clone()), PATH).unwrap();
    for info in reader.snapshots().unwrap() {
        let n = u64::from(info.id) as u8 - 1;
        assert_eq!(
            reader.as_of(info.id).unwrap().get(&table_of(&reader), [7]).unwrap().unwrap()[..],
            [n; 50]
        );
    }
}
