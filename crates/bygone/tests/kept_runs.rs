//! Runs that are kept for the past as they are: with frequent snapshots a merge writes nothing a second time.
//!
//! Owns: nothing. Promises: what is kept is what was merged, wherever it goes and whatever fails on the way.

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};

use bygone::io::{Disk, SimDisk};
use bygone::{Db, Options, SnapshotId};
use support::hooked::{Call, Hooked};

const KEYS: u64 = 60;
const COMMITS: u64 = 40;

fn options() -> Options {
    Options::new().memtable_bytes(1 << 20).log_segment_bytes(64 << 10).background(false)
}

fn open(disk: &dyn DiskLike) -> Db {
    options().open_on(disk.shared(), "db").unwrap()
}

/// A disk as the database takes it.
trait DiskLike {
    fn shared(&self) -> Arc<dyn Disk>;
}

impl<D: Disk + Clone + 'static> DiskLike for D {
    fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }
}

/// What a key holds after so many commits.
fn value(key: u64, commits: u64) -> Option<Vec<u8>> {
    let last = (1..=commits).rev().find(|commit| (key + commit).is_multiple_of(3))?;
    Some(vec![last as u8; 40 + (key % 50) as usize])
}

/// The commits with these numbers, each with a snapshot.
fn commit(db: &Db, numbers: std::ops::RangeInclusive<u64>) {
    let table = db.table("t").unwrap();
    for number in numbers {
        let mut tx = db.begin().unwrap();
        for key in (0..KEYS).filter(|key| (key + number).is_multiple_of(3)) {
            tx.put(&table, key.to_be_bytes(), value(key, number).unwrap()).unwrap();
        }
        tx.commit_with_snapshot(None).unwrap();
    }
}

/// Every state of the past, and the present.
fn check(db: &Db, commits: u64) {
    let table = db.open_table("t").unwrap();
    for number in 1..=commits {
        let past = db.as_of(SnapshotId::from(number)).unwrap();
        for key in 0..KEYS {
            let found = past.get(&table, key.to_be_bytes()).unwrap().map(|value| value.to_vec());
            assert_eq!(found, value(key, number), "key {key} after {number} of {commits}");
        }
    }
    assert_eq!(db.snapshots().unwrap().len() as u64, commits);
    db.verify().unwrap();
}

fn run_files(disk: &SimDisk, directory: &str) -> Vec<String> {
    let files = disk.snapshot_files().into_iter().map(|(path, _)| path);
    let inside = files.filter(|path| path.parent() == Some(&Path::new("db").join(directory)));
    inside.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn the_merged_runs_become_the_past() {
    let disk = SimDisk::new();
    let db = open(&disk);
    for half in [1..=COMMITS / 2, COMMITS / 2 + 1..=COMMITS] {
        commit(&db, half);
        db.flush().unwrap();
    }
    let merged = run_files(&disk, "runs");
    assert_eq!(merged.len(), 2);
    let before = db.stats().unwrap();
    db.merge().unwrap();
    let after = db.stats().unwrap();
    assert_eq!(run_files(&disk, "history"), merged);
    assert!(run_files(&disk, "runs").is_empty());
    assert_eq!((after.history_runs, before.history_runs), (2, 0));
    assert!(after.history_bytes > 0);
    check(&db, COMMITS);
    drop(db);
    check(&open(&disk), COMMITS);
}

#[test]
fn what_is_kept_is_put_together_when_most_snapshots_are_gone() {
    let disk = SimDisk::new();
    let db = open(&disk);
    commit(&db, 1..=COMMITS);
    db.merge().unwrap();
    let kept_bytes = db.stats().unwrap().history_bytes;
    for number in (1..=COMMITS).filter(|number| !number.is_multiple_of(4)) {
        db.delete_snapshot(SnapshotId::from(number)).unwrap();
    }
    db.prune().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.history_bytes < kept_bytes && stats.history_runs == 1, "{stats:?}");
    let table = db.open_table("t").unwrap();
    for number in (4..=COMMITS).step_by(4) {
        let past = db.as_of(SnapshotId::from(number)).unwrap();
        for key in 0..KEYS {
            let found = past.get(&table, key.to_be_bytes()).unwrap().map(|value| value.to_vec());
            assert_eq!(found, value(key, number));
        }
    }
}

/// Cuts at each operation of a merge, then the merge again: the names that the first one gave are there already.
#[test]
fn a_cut_at_any_operation_of_the_merge_leaves_every_state() {
    let disk = SimDisk::new();
    let db = open(&disk);
    commit(&db, 1..=COMMITS);
    db.flush().unwrap();
    drop(db);
    let mut cut = 0;
    loop {
        cut += 1;
        let copy = disk.crash_image(1);
        let db = open(&copy);
        copy.crash_at(copy.operations() + cut);
        let ended = db.merge().is_ok();
        drop(db);
        for seed in [0, 1, 2 + 4 * cut] {
            let crashed = copy.crash_image(seed);
            let db = open(&crashed);
            check(&db, COMMITS);
            db.merge().unwrap();
            check(&db, COMMITS);
            commit(&db, COMMITS + 1..=COMMITS + 15);
            db.merge().unwrap();
            db.prune().unwrap();
            check(&db, COMMITS + 15);
            drop(db);
            let files = run_files(&crashed, "history").len() as u64;
            let db = open(&crashed);
            assert_eq!(db.stats().unwrap().history_runs, files, "nothing else is left there");
            check(&db, COMMITS + 15);
        }
        if ended {
            break;
        }
    }
    assert!(cut > 8, "the merge has more operations than {cut}");
}

/// The history runs that were opened since the last time.
type Opened = Arc<Mutex<Vec<String>>>;

fn taken(opened: &Opened) -> Vec<String> {
    std::mem::take(&mut *opened.lock().unwrap())
}

/// A disk that tells which history runs are opened.
fn watched(disk: &SimDisk) -> (Hooked, Opened) {
    let opened = Opened::default();
    let names = opened.clone();
    let disk = Hooked::new(disk, move |call| {
        if let Call::Open(path) = call
            && path.parent().is_some_and(|directory| directory.ends_with("history"))
        {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            names.lock().unwrap().push(name);
        }
    });
    (disk, opened)
}

#[test]
fn a_state_opens_the_runs_up_to_it_and_each_once() {
    let disk = SimDisk::new();
    let db = open(&disk);
    for part in 0..4 {
        commit(&db, part * 20 + 1..=part * 20 + 20);
        db.flush().unwrap();
    }
    db.merge().unwrap();
    let runs = run_files(&disk, "history");
    assert_eq!(runs.len(), 4);
    drop(db);
    let (disk, opened) = watched(&disk);
    let db = open(&disk);
    let table = db.open_table("t").unwrap();
    let read = |number: u64| {
        let past = db.as_of(SnapshotId::from(number)).unwrap();
        assert_eq!(past.get(&table, 0u64.to_be_bytes()).unwrap().unwrap()[..], value(0, number).unwrap());
        taken(&opened)
    };
    assert_eq!(read(35), [&runs[1][..], &runs[0]], "the newest first");
    assert!(read(25).is_empty());
    assert!(read(5).is_empty());
    assert_eq!(read(75), [&runs[3][..], &runs[2]]);
    assert!(read(50).is_empty() && read(35).is_empty());
}

#[test]
fn where_files_have_one_name_it_is_written() {
    let disk = SimDisk::new();
    let db = open(&watched(&disk).0.without_links());
    commit(&db, 1..=COMMITS);
    db.flush().unwrap();
    let merged = run_files(&disk, "runs");
    db.merge().unwrap();
    let kept = run_files(&disk, "history");
    assert_eq!(kept.len(), 1);
    assert!(!merged.contains(&kept[0]));
    check(&db, COMMITS);
}

#[test]
fn archived_runs_are_moved_without_being_copied_if_they_can_be() {
    for links in [true, false] {
        let disk = SimDisk::new();
        let (place, opened) = watched(&disk);
        let place = if links { place } else { place.without_links() };
        let db = options().history_dir("past").open_on(place.shared(), "db").unwrap();
        commit(&db, 1..=COMMITS);
        db.merge().unwrap();
        assert_eq!(run_files(&disk, "history").len(), 1);
        taken(&opened);
        db.archive().unwrap();
        assert_eq!(taken(&opened).is_empty(), links, "who copies it opens it");
        assert!(run_files(&disk, "history").is_empty());
        check(&db, COMMITS);
        drop(db);
        check(&options().open_on(disk.shared(), "db").unwrap(), COMMITS);
    }
}
