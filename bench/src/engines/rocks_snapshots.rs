//! Snapshots of RocksDB and Speedb: `GetSnapshot` and `ReleaseSnapshot`, through the C interface.
//!
//! The C interface allocates a handle of eight bytes around each snapshot, as crates `rocksdb` and `speedb` do. Options
//! of reads are kept by their thread, and pointed at the snapshot for each read. `speedb-snap` is Speedb built with its
//! snapshot optimization, which its crate's build leaves out.

use std::path::Path;

use anyhow::{Result, ensure};
#[cfg(feature = "rocksdb")]
use librocksdb_sys as ffi;
#[cfg(feature = "speedb")]
use libspeedb_sys as ffi;

use super::rocks::{Rocks, checked};
use super::snapshots::{Held, Snapshots, Taker};
use super::{Durability, Engine, Setup};
use crate::data::{Key, Record};

pub fn open(name: &str, dir: &Path, setup: Setup) -> Result<Box<dyn Snapshots>> {
    let rocks = Rocks::open(dir, setup)?;
    // With the optimization two snapshots of one moment are one in the list that this counts.
    let (first, second) = (Snapshot::take(&rocks), Snapshot::take(&rocks));
    let listed = rocks.property(c"rocksdb.num-snapshots")?;
    drop((first, second));
    let expected = if name == "speedb-snap" { 1 } else { 2 };
    ensure!(
        listed == expected,
        "{name} lists {listed} snapshots: it was built with other flags than it should be"
    );
    Ok(Box::new(rocks))
}

impl Snapshots for Rocks {
    fn put(&self, records: &[Record]) -> Result<()> {
        self.commit(records, Durability::Buffered)
    }

    fn settle(&self) -> Result<()> {
        Engine::settle(self)
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        Ok(Box::new(Calls { rocks: self, read: ReadOptions::new() }))
    }
}

struct Snapshot<'e> {
    rocks: &'e Rocks,
    snapshot: *const ffi::rocksdb_snapshot_t,
}

// SAFETY: the library lets any thread use and release a snapshot.
unsafe impl Send for Snapshot<'_> {}

impl<'e> Snapshot<'e> {
    #[inline]
    fn take(rocks: &'e Rocks) -> Snapshot<'e> {
        // SAFETY: the database is open.
        Snapshot { rocks, snapshot: unsafe { ffi::rocksdb_create_snapshot(rocks.db) } }
    }
}

impl Drop for Snapshot<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken from this database, which is still open, and released once.
        unsafe { ffi::rocksdb_release_snapshot(self.rocks.db, self.snapshot) }
    }
}

struct ReadOptions(*mut ffi::rocksdb_readoptions_t);

impl ReadOptions {
    fn new() -> ReadOptions {
        // SAFETY: nothing is asked of the caller.
        ReadOptions(unsafe { ffi::rocksdb_readoptions_create() })
    }

    #[inline]
    fn get<T>(&self, snapshot: &Snapshot, key: &Key, read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        // SAFETY: the options are this thread's own; the key is valid for its length; the snapshot outlives the read.
        let slice = checked(|error| unsafe {
            ffi::rocksdb_readoptions_set_snapshot(self.0, snapshot.snapshot);
            ffi::rocksdb_get_pinned(snapshot.rocks.db, self.0, key.as_ptr().cast(), key.len(), error)
        })?;
        if slice.is_null() {
            return Ok(None);
        }
        let mut bytes = 0;
        // SAFETY: the value is valid for its length until the slice is destroyed, which is after its last use.
        unsafe {
            let value = ffi::rocksdb_pinnableslice_value(slice, &mut bytes);
            let answer = read(std::slice::from_raw_parts(value.cast(), bytes));
            ffi::rocksdb_pinnableslice_destroy(slice);
            Ok(Some(answer))
        }
    }
}

impl Drop for ReadOptions {
    fn drop(&mut self) {
        // SAFETY: destroyed once, and not used any more.
        unsafe { ffi::rocksdb_readoptions_destroy(self.0) }
    }
}

struct Calls<'e> {
    rocks: &'e Rocks,
    read: ReadOptions,
}

impl<'e> Taker<'e> for Calls<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(Snapshot::take(self.rocks));
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            let snapshot = Snapshot::take(self.rocks);
            bytes += self.read.get(&snapshot, key, |value| value.len() as u64)?.unwrap_or(0);
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.read.get(&Snapshot::take(self.rocks), key, <[u8]>::to_vec)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        Ok(Box::new(HeldSnapshots((0..count).map(|_| Snapshot::take(self.rocks)).collect())))
    }
}

struct HeldSnapshots<'e>(Vec<Snapshot<'e>>);

impl Held for HeldSnapshots<'_> {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        ReadOptions::new().get(&self.0[index], key, <[u8]>::to_vec)
    }
}
