//! A declared snapshot, or any other, as a database of its own.
//!
//! Owns: the sweep over failing and ending disks. Promises: a copy holds what the snapshot holds and nothing
//! else; one that was interrupted is never taken for a database; the source goes on. May call: the support.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Error, Options, Result, Seq, SnapshotId};
use support::workload::work;
use support::{Model, PATH, Random, State, check_open, contents, options, points, read_state};

const COPY: &str = "copies/one";

fn open_at(disk: &SimDisk, path: &str) -> Result<Db> {
    options().create(false).open_on(Arc::new(disk.clone()), path)
}

/// A database with some of everything.
fn source(seed: u64, steps: u64) -> (SimDisk, Db, Model) {
    let disk = SimDisk::new();
    let db = support::open(&disk).unwrap();
    let mut model = Model::new();
    work(&db, &mut model, &mut Random(seed), steps).unwrap();
    (disk, db, model)
}

fn check_state(db: &Db, expected: &State) {
    let found = read_state(&db.snapshot()).unwrap();
    assert!(found == *expected, "{:?}, not {:?}", found.keys(), expected.keys());
    db.verify().unwrap();
}

#[test]
fn every_declared_snapshot_can_be_exported() {
    let (disk, db, model) = source(5, 55);
    let living = model.living();
    assert!(living.len() > 5);
    for declared in living {
        let path = format!("copies/{}", declared.id);
        db.export(SnapshotId::from(declared.id), &path).unwrap();
        let copy = open_at(&disk, &path).unwrap();
        let state = &model.states[declared.seq as usize];
        check_state(&copy, state);
        assert_eq!(copy.snapshot().seq(), Seq::from(declared.seq));

        let original = db.snapshot_info(SnapshotId::from(declared.id)).unwrap();
        let list = copy.snapshots().unwrap();
        let [info] = &list[..] else { panic!("{list:?}") };
        assert_eq!((info.id, info.seq), (SnapshotId::from(1), original.seq));
        assert_eq!(
            (&info.name, info.time, &info.metadata),
            (&original.name, original.time, &original.metadata)
        );
        if let Some(name) = &info.name {
            assert_eq!(copy.as_of(name).unwrap().seq(), info.seq);
        }
        assert_eq!(copy.as_of(original.time).unwrap().seq(), info.seq);

        let stats = copy.stats().unwrap();
        assert_eq!(
            (stats.runs, stats.history_runs, stats.retained_bases, stats.memtable_bytes > 0),
            (0, 0, 0, true)
        );
    }
    check_open(&db, &model, "the source, afterwards");
}

#[test]
fn a_copy_is_a_database_like_any_other() {
    let (disk, db, model) = source(6, 60);
    let declared = *model.living().last().unwrap();
    db.export(SnapshotId::from(declared.id), COPY).unwrap();
    let mut state = model.states[declared.seq as usize].clone();
    let copy = open_at(&disk, COPY).unwrap();

    // Ids of tables and numbers of commits and snapshots go on.
    let table = copy.table("made in the copy").unwrap();
    copy.put(&table, "k", "v").unwrap();
    let second = copy.snapshot_now("second").unwrap();
    assert_eq!(second, SnapshotId::from(2));
    assert!(copy.snapshot().seq() > Seq::from(declared.seq));
    let old = copy.tables().unwrap().into_iter().find(|name| name != "made in the copy");
    if let Some(name) = &old {
        copy.drop_table(name).unwrap();
    }
    copy.merge().unwrap();
    let first = copy.as_of(SnapshotId::from(1)).unwrap();
    assert!(read_state(&first).unwrap() == *state);
    drop((first, table, copy));

    let copy = open_at(&disk, COPY).unwrap();
    assert!(read_state(&copy.as_of(SnapshotId::from(1)).unwrap()).unwrap() == *state);
    let records = [(b"k".to_vec(), Arc::from(&b"v"[..]))].into();
    Arc::make_mut(&mut state).insert("made in the copy".to_owned(), Arc::new(records));
    assert!(read_state(&copy.as_of(second).unwrap()).unwrap() == *state);
    if let Some(name) = &old {
        Arc::make_mut(&mut state).remove(name);
    }
    check_state(&copy, &state);

    // A copy of a copy.
    copy.export_view(&copy.snapshot(), "copies/two").unwrap();
    let two = open_at(&disk, "copies/two").unwrap();
    check_state(&two, &state);
    assert_eq!(two.snapshots().unwrap(), []);
    assert_eq!(two.snapshot_now(None).unwrap(), SnapshotId::from(1));
}

#[test]
fn the_present_and_the_empty_database_can_be_exported() {
    let disk = SimDisk::new();
    let db = support::open(&disk).unwrap();
    db.export_view(&db.snapshot(), "copies/empty").unwrap();
    check_state(&open_at(&disk, "copies/empty").unwrap(), &State::new());
    let table = db.table("t").unwrap();
    db.export_view(&db.snapshot(), "copies/table").unwrap();
    check_state(&open_at(&disk, "copies/table").unwrap(), &State::from([("t".to_owned(), Arc::default())]));
    let held = db.snapshot();
    db.put(&table, "k", "v").unwrap();
    db.merge().unwrap();
    db.export_view(&held, "copies/held").unwrap();
    check_state(&open_at(&disk, "copies/held").unwrap(), &State::from([("t".to_owned(), Arc::default())]));
}

#[test]
fn a_copy_is_compact() {
    let disk = SimDisk::new();
    let db = support::open(&disk).unwrap();
    let table = db.table("t").unwrap();
    for round in 0..10u8 {
        for number in 0..500u32 {
            db.put(&table, number.to_be_bytes(), [round; 100]).unwrap();
        }
        db.snapshot_now(None).unwrap();
    }
    db.export(SnapshotId::from(10), COPY).unwrap();
    let size = |part: &str| -> usize {
        contents(&disk).iter().filter(|(path, _)| path.starts_with(part)).map(|(_, bytes)| bytes.len()).sum()
    };
    let bytes = size(&format!("{COPY}/base.pages"));
    assert!(bytes < 500 * 110 * 5 / 4 + 16 * 4096, "{bytes} bytes for 500 records of 104 bytes");
}

#[test]
fn a_directory_that_holds_anything_is_refused() {
    let (disk, db, _) = source(7, 20);
    let id = db.snapshot_now(None).unwrap();
    let refused = |path: &str| match db.export(id, path) {
        Err(Error::NotEmpty { path: named }) => assert_eq!(named, Path::new(path)),
        other => panic!("{path}: {other:?}"),
    };
    let before = contents(&disk);
    refused(PATH);
    refused("");
    assert!(contents(&disk) == before, "nothing was touched");
    db.export(id, COPY).unwrap();
    refused(COPY);
    refused("copies");
    let other_db = support::open(&SimDisk::new()).unwrap();
    let foreign = db.export_view(&other_db.snapshot(), "copies/foreign");
    assert!(matches!(foreign, Err(Error::InvalidArgument { .. })), "{foreign:?}");
    assert!(matches!(db.export("none", "copies/none"), Err(Error::SnapshotNotFound { .. })));
    assert!(!contents(&disk).keys().any(|path| path.starts_with("copies/none")));
}

#[test]
fn real_directories_work_as_the_simulated_ones_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let db = Db::open(path("db")).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "k", "v").unwrap();
    db.snapshot_now("s").unwrap();
    db.put(&table, "k", "w").unwrap();

    std::fs::create_dir_all(path("empty")).unwrap();
    db.export("s", path("empty")).unwrap();
    db.export("s", path("some/where")).unwrap();
    for name in ["empty", "some/where"] {
        let copy = Db::open(path(name)).unwrap();
        assert_eq!(copy.get(&copy.open_table("t").unwrap(), "k").unwrap().unwrap(), b"v");
        assert!(matches!(db.export("s", path(name)), Err(Error::NotEmpty { .. })));
    }
    std::fs::create_dir_all(path("only/directories")).unwrap();
    assert!(matches!(db.export("s", path("only")), Err(Error::NotEmpty { .. })));
    std::fs::write(path("file"), "x").unwrap();
    assert!(db.export("s", path("file")).is_err());
    assert_eq!(std::fs::read(path("file")).unwrap(), b"x");
}

#[test]
fn a_read_only_database_can_be_exported() {
    let (disk, db, model) = source(8, 40);
    drop(db);
    let db = support::open_read_only(&disk).unwrap();
    db.export_view(&db.snapshot(), COPY).unwrap();
    check_state(&open_at(&disk, COPY).unwrap(), model.now());
}

/// The operations of an export.
fn operations(disk: &SimDisk, id: SnapshotId) -> u64 {
    let copy = disk.crash_image(1);
    let db = support::open(&copy).unwrap();
    let before = copy.operations();
    db.export(id, COPY).unwrap();
    copy.operations() - before
}

/// What an export that did not come to its end must have left: nothing that opens, or all of it.
fn check_left(disk: &SimDisk, expected: &State, context: &str) -> bool {
    match open_at(disk, COPY) {
        Ok(copy) => {
            check_state(&copy, expected);
            true
        }
        Err(Error::NotFound { .. }) => {
            let unfinished: PathBuf = [COPY, "base.pages.unfinished"].iter().collect();
            let left = contents(disk);
            let made = options().open_on(Arc::new(disk.clone()), COPY);
            match made {
                // Nothing of the export is there: it is a directory like any other.
                Ok(db) => {
                    assert!(!left.keys().any(|path| path.starts_with(COPY)), "{context}: {left:?}");
                    assert_eq!(db.tables().unwrap(), Vec::<String>::new(), "{context}");
                }
                Err(Error::Corruption { path, reason, .. }) => {
                    assert_eq!(path, unfinished, "{context}");
                    assert!(reason.contains("export"), "{context}: {reason}");
                }
                Err(other) => panic!("{context}: {other}"),
            }
            false
        }
        Err(other) => panic!("{context}: {other}"),
    }
}

#[test]
fn an_export_that_was_cut_off_is_not_taken_for_a_database() {
    let (disk, db, mut model) = source(9, 60);
    let id = db.snapshot_now(None).unwrap();
    model.push(model.now().clone());
    model.declare(None, Vec::new());
    drop(db);
    model.all_durable();
    let disk = disk.crash_image(1);
    let count = operations(&disk, id);
    let mut random = Random(10);
    println!("{count} operations in the export");
    let mut whole = 0;
    for n in points(count, 40, &mut random) {
        let cut = disk.crash_image(1);
        let db = support::open(&cut).unwrap();
        cut.crash_at(cut.operations() + n);
        assert!(db.export(id, COPY).is_err());
        for seed in [0, 1, random.next(), random.next()] {
            let context = format!("export cut at {n} of {count}, image {seed}");
            let image = cut.crash_image(seed);
            let source = support::open(&image).unwrap();
            assert!(read_state(&source.snapshot()).unwrap() == *model.now(), "{context}");
            whole += u64::from(check_left(&image, model.now(), &context));
        }
    }
    println!("{whole} images held the whole copy");
    let exported = disk.crash_image(1);
    let db = support::open(&exported).unwrap();
    db.export(id, COPY).unwrap();
    // Durable when it returned: even an image that keeps only what was synced has it.
    assert!(check_left(&exported.crash_image(0), model.now(), "whole"));
}

#[test]
fn an_export_that_fails_harms_nothing_and_can_be_tried_again() {
    let (disk, db, model) = source(11, 60);
    drop(db);
    let disk = disk.crash_image(1);
    let last = *model.living().last().unwrap();
    let id = SnapshotId::from(last.id);
    let expected = &model.states[last.seq as usize];
    let count = operations(&disk, id);
    let mut again = 0;
    for n in points(count, 40, &mut Random(12)) {
        let context = format!("export failing at {n} of {count}");
        let failing = disk.crash_image(1);
        let db = support::open(&failing).unwrap();
        failing.fail_at(failing.operations() + n, std::io::ErrorKind::StorageFull);
        let failed = db.export(id, COPY);
        assert!(matches!(failed, Err(Error::Io { .. })), "{context}: {failed:?}");
        assert!(
            !contents(&failing).keys().any(|path| path.starts_with(COPY)),
            "{context}: something is left"
        );
        match db.export(id, COPY) {
            Ok(()) => again += 1,
            // Empty directories of the log and the runs are left, which a disk cannot remove.
            Err(Error::NotEmpty { .. }) => db.export(id, "copies/two").unwrap(),
            Err(other) => panic!("{context}: {other}"),
        }
        let path = if open_at(&failing, COPY).is_ok() { COPY } else { "copies/two" };
        check_state(&open_at(&failing, path).unwrap(), expected);
        check_open(&db, &model, &context);
    }
    assert!(again > count / 4, "{again} of {count} were repeated in the same place");
}

#[test]
fn damage_in_the_source_ends_an_export() {
    let (disk, db, model) = source(13, 60);
    db.merge().unwrap();
    drop(db);
    let disk = disk.crash_image(1);
    let mut random = Random(14);
    let base: PathBuf = [PATH, "base.pages"].iter().collect();
    let length = contents(&disk)[&base].len() as u64;
    let mut noticed = 0;
    for _ in 0..60 {
        let damaged = disk.crash_image(1);
        damaged.flip(&base, random.below(length), 1 << random.below(8)).unwrap();
        let exported = options()
            .read_only(true)
            .open_on(Arc::new(damaged.clone()), PATH)
            .and_then(|db| db.export_view(&db.snapshot(), COPY));
        match exported {
            Ok(()) => check_state(&open_at(&damaged, COPY).unwrap(), model.now()),
            Err(Error::Corruption { path, .. }) => {
                assert_eq!(path, base);
                assert!(!contents(&damaged).keys().any(|path| path.starts_with(COPY)));
                noticed += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(noticed > 5, "{noticed} of 60 were noticed");
}

#[test]
fn writing_goes_on_beside_an_export() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10);
    let db = options().open(directory.path().join("db")).unwrap();
    let table = db.table("t").unwrap();
    let round = |round: u8| {
        for hundred in 0..50u32 {
            let mut tx = db.begin().unwrap();
            tx.set_durability(bygone::Durability::Buffered);
            for number in hundred * 100..hundred * 100 + 100 {
                tx.put(&table, number.to_be_bytes(), [round; 60]).unwrap();
            }
            tx.commit().unwrap();
        }
    };
    round(0);
    db.snapshot_now("s").unwrap();
    std::thread::scope(|scope| {
        let exports = scope.spawn(|| {
            for copy in 0..4 {
                let path = directory.path().join(format!("copy-{copy}"));
                db.export("s", &path).unwrap();
                let copy = Db::open(&path).unwrap();
                let table = copy.open_table("t").unwrap();
                let range = copy.snapshot().range(&table, ..).unwrap();
                assert_eq!(range.map(Result::unwrap).filter(|(_, value)| **value == [0u8; 60]).count(), 5000);
            }
        });
        for number in 1..6 {
            round(number);
            db.merge().unwrap();
        }
        exports.join().unwrap();
    });
}
