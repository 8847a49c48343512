//! What comparing and following a key read.
//!
//! Owns: a disk that counts what is read. Promises: it is in proportion to what differs. May call: the support.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bygone::io::{Disk, DiskFile, LockOutcome, OpenMode, SimDisk};
use bygone::{Db, Durability, Options, Table};

use crate::all;
use crate::support::PATH;

/// A disk that counts what is read.
#[derive(Clone, Debug)]
struct Counting {
    disk: SimDisk,
    reads: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn DiskFile>,
    reads: Arc<AtomicU64>,
}

impl Counting {
    fn new() -> Counting {
        Counting { disk: SimDisk::new(), reads: Arc::default() }
    }

    fn open(&self) -> Db {
        // Room for the test's own rounds in one memtable.
        let options = Options::new().memtable_bytes(32 << 20).log_segment_bytes(4 << 20).background(false);
        options.open_on(Arc::new(self.clone()), PATH).unwrap()
    }

    /// How often something was read meanwhile.
    fn count<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.reads.load(Ordering::Relaxed);
        let done = work();
        (done, self.reads.load(Ordering::Relaxed) - before)
    }
}

impl Disk for Counting {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CountingFile { file: self.disk.open(path, mode)?, reads: self.reads.clone() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path, exclusive: bool) -> io::Result<LockOutcome> {
        self.disk.lock(path, exclusive)
    }
}

impl DiskFile for CountingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

const RECORDS: u64 = 100_000;

/// Writes every `distance`-th record anew, and declares a snapshot.
fn write_round(db: &Db, table: &Table, distance: u64, name: &str) {
    let mut tx = db.begin().unwrap();
    tx.set_durability(Durability::Buffered);
    for number in (0..RECORDS).step_by(distance as usize) {
        tx.put(table, number.to_be_bytes(), [name.as_bytes(), &[b'.'; 80]].concat()).unwrap();
    }
    tx.commit_with_snapshot(name).unwrap();
}

#[test]
fn what_comparing_reads_is_in_proportion_to_what_differs() {
    let disk = Counting::new();
    let db = disk.open();
    let table = db.table("t").unwrap();
    write_round(&db, &table, 1, "all");
    db.merge().unwrap();
    write_round(&db, &table, 1000, "a");
    write_round(&db, &table, 1000, "b");
    db.merge().unwrap();
    write_round(&db, &table, 1000, "c");
    db.merge().unwrap();
    write_round(&db, &table, 1000, "d");
    drop((db, table));
    // All differ in 100 records, on as many of 2,500 pages; the largest run that is read has 200 records.
    for (a, b) in [("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"), ("a", "d"), ("d", "b"), ("all", "d")] {
        let db = disk.open();
        let table = db.open_table("t").unwrap();
        let (found, reads) = disk.count(|| all(db.diff(a, b, &table)).len());
        assert_eq!(found, 100, "{a} and {b}");
        assert!(reads < 700, "{a} and {b}: {reads} reads");
        drop((db, table));
    }
    let db = disk.open();
    let table = db.open_table("t").unwrap();
    let now = db.snapshot();
    let (found, reads) = disk.count(|| all(db.as_of("d").unwrap().diff(&now, &table)).len());
    assert_eq!(found, 0);
    assert!(reads < 20, "the newest snapshot and now: {reads} reads");
}

#[test]
fn what_a_history_reads_does_not_grow_with_the_number_of_snapshots() {
    let disk = Counting::new();
    let db = disk.open();
    let table = db.table("t").unwrap();
    let mut reads = Vec::new();
    for part in 0..3u8 {
        for number in 0..1000u32 {
            if number == 500 {
                db.put(&table, "k", [part]).unwrap();
            }
            // Each snapshot is of a commit of its own, which changes another key.
            let mut tx = db.begin().unwrap();
            tx.set_durability(Durability::Buffered);
            tx.put(&table, format!("other-{}", number % 50), [0; 20]).unwrap();
            tx.commit_with_snapshot(None).unwrap();
        }
        db.merge().unwrap();
        let values = usize::from(part) + 1;
        assert_eq!(db.history(&table, "k").unwrap().count(), values);
        let db = {
            let copy = Counting { disk: disk.disk.killed_image(), reads: disk.reads.clone() };
            copy.open()
        };
        let table = db.open_table("t").unwrap();
        reads.push(disk.count(|| db.history(&table, "k").unwrap().count()).1);
    }
    assert!(reads.iter().all(|reads| *reads < 200), "{reads:?} reads of 1,000, 2,000 and 3,000 snapshots");
}
