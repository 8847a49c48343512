//! RocksDB and its fork Speedb, through the C interface that they have in common: log-structured merge trees.
//!
//! The one is here with its skiplist memtable, the other with its hash memtable, which only the C interface can
//! choose. A program has one of them, since their symbols clash.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
#[cfg(feature = "rocksdb")]
use librocksdb_sys as ffi;
#[cfg(feature = "speedb")]
use libspeedb_sys as ffi;

use super::operations::{Direction, Log, Operations, Worker};
use super::{Access, Durability, Engine, Reader, Setup};
use crate::data::{Key, Record};

/// Memtables of one table, the one in use among them. Speedb's own advice; RocksDB's default is 2.
const MEMTABLES_MAX: c_int = 4;

/// As Bygone's runs have.
const FILTER_BITS_PER_KEY: f64 = 10.0;

/// So that a file's end does not bring all its writing at once; their manuals' advice.
const BYTES_PER_SYNC: u64 = 1 << 20;

/// Speedb's default.
#[cfg(feature = "speedb")]
const HASH_BUCKETS: usize = 1_000_000;

/// A backlog is bounded that does not slow writers yet: one memtable in its way to the disk, and these many
/// files of the first level.
const STEADY_FROZEN_MEMTABLES: u64 = 1;
const STEADY_FILES: u64 = 20;

pub struct Rocks {
    pub(super) db: *mut ffi::rocksdb_t,
    read: *mut ffi::rocksdb_readoptions_t,
    durable: *mut ffi::rocksdb_writeoptions_t,
    pub(super) buffered: *mut ffi::rocksdb_writeoptions_t,
    without_log: *mut ffi::rocksdb_writeoptions_t,
}

// SAFETY: the library lets any threads use one database at a time, and no call changes the options of reads and
// writes once they are made.
unsafe impl Send for Rocks {}
// SAFETY: as above.
unsafe impl Sync for Rocks {}

/// Calls a function that tells of an error in its last argument: as a string, which is the caller's then.
pub(super) fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = ptr::null_mut();
    let answer = call(&mut error);
    if error.is_null() {
        return Ok(answer);
    }
    // SAFETY: not null, so a string that ends with a zero.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: allocated by the library, and not used any more.
    unsafe { ffi::rocksdb_free(error.cast()) };
    bail!("{text}")
}

impl Rocks {
    pub fn open(dir: &Path, setup: Setup) -> Result<Rocks> {
        Rocks::open_with(dir, setup, |_| ())
    }

    /// Opens with what else is to be said in the options.
    pub(super) fn open_with(
        dir: &Path,
        setup: Setup,
        configure: impl FnOnce(*mut ffi::rocksdb_options_t),
    ) -> Result<Rocks> {
        let name = CString::new(dir.as_os_str().as_bytes())?;
        let cores = std::thread::available_parallelism()?.get().min(64) as c_int;
        // SAFETY: each object is made, given to the options, which share it, and freed once; the options are freed
        // when the database, which copies them, has been opened.
        let db = unsafe {
            let options = ffi::rocksdb_options_create();
            ffi::rocksdb_options_set_create_if_missing(options, 1);
            ffi::rocksdb_options_increase_parallelism(options, cores);
            ffi::rocksdb_options_set_max_write_buffer_number(options, MEMTABLES_MAX);
            ffi::rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
            ffi::rocksdb_options_set_bytes_per_sync(options, BYTES_PER_SYNC);
            // None: values do not compress, and Bygone does not try either.
            ffi::rocksdb_options_set_compression(options, 0);
            if let Some(bytes) = setup.memtable_bytes {
                ffi::rocksdb_options_set_write_buffer_size(options, bytes);
            }
            #[cfg(feature = "speedb")]
            ffi::rocksdb_options_set_hash_spdb_rep(options, HASH_BUCKETS);
            let cache = ffi::rocksdb_cache_create_lru(setup.cache_bytes);
            let tables = ffi::rocksdb_block_based_options_create();
            ffi::rocksdb_block_based_options_set_block_cache(tables, cache);
            let filter = ffi::rocksdb_filterpolicy_create_bloom_full(FILTER_BITS_PER_KEY);
            // Takes the filter over.
            ffi::rocksdb_block_based_options_set_filter_policy(tables, filter);
            ffi::rocksdb_options_set_block_based_table_factory(options, tables);
            ffi::rocksdb_block_based_options_destroy(tables);
            ffi::rocksdb_cache_destroy(cache);
            configure(options);
            let db = checked(|error| ffi::rocksdb_open(options, name.as_ptr(), error));
            ffi::rocksdb_options_destroy(options);
            db?
        };
        let writes = |sync: bool, log: bool| {
            // SAFETY: the object is new.
            unsafe {
                let writes = ffi::rocksdb_writeoptions_create();
                ffi::rocksdb_writeoptions_set_sync(writes, sync.into());
                ffi::rocksdb_writeoptions_disable_WAL(writes, (!log).into());
                writes
            }
        };
        Ok(Rocks {
            db,
            // SAFETY: nothing is asked of the caller.
            read: unsafe { ffi::rocksdb_readoptions_create() },
            durable: writes(true, true),
            buffered: writes(false, true),
            without_log: writes(false, false),
        })
    }

    pub(super) fn get(
        &self,
        read: *mut ffi::rocksdb_readoptions_t,
        key: &Key,
        found: impl FnOnce(&[u8]),
    ) -> Result<()> {
        // SAFETY: the key is valid for its length, the database and the options are open.
        let slice = checked(|error| unsafe {
            ffi::rocksdb_get_pinned(self.db, read, key.as_ptr().cast(), key.len(), error)
        })?;
        if !slice.is_null() {
            let mut bytes = 0;
            // SAFETY: the value is valid for its length until the slice is destroyed, which is after its last use.
            unsafe {
                let value = ffi::rocksdb_pinnableslice_value(slice, &mut bytes);
                found(std::slice::from_raw_parts(value.cast(), bytes));
                ffi::rocksdb_pinnableslice_destroy(slice);
            }
        }
        Ok(())
    }

    /// Hands the values of all records to `each`.
    #[cfg(feature = "rocksdb")]
    pub(super) fn scan(
        &self,
        read: *mut ffi::rocksdb_readoptions_t,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let mut cursor = self.cursor(read);
        cursor.seek_to_end(Direction::Forward);
        while let Some((_, value)) = cursor.record() {
            each(value);
            cursor.step(Direction::Forward);
        }
        cursor.check()
    }

    fn cursor(&self, read: *mut ffi::rocksdb_readoptions_t) -> Cursor<'_> {
        // SAFETY: the cursor does not outlive the database, and copies the options.
        Cursor(unsafe { ffi::rocksdb_create_iterator(self.db, read) }, PhantomData)
    }

    /// A figure that the library tells of itself.
    pub(super) fn property(&self, name: &CStr) -> Result<u64> {
        // SAFETY: the name ends with a zero; the answer is null or such a string, the caller's to free.
        let text = unsafe {
            let value = ffi::rocksdb_property_value(self.db, name.as_ptr());
            ensure!(!value.is_null(), "no property {name:?}");
            let text = CStr::from_ptr(value).to_string_lossy().into_owned();
            ffi::rocksdb_free(value.cast());
            text
        };
        text.parse().with_context(|| format!("{name:?} is {text}"))
    }

    fn frozen_memtables(&self) -> Result<u64> {
        self.property(c"rocksdb.num-immutable-mem-table")
    }

    fn files(&self) -> Result<u64> {
        self.property(c"rocksdb.num-files-at-level0")
    }
}

impl Drop for Rocks {
    fn drop(&mut self) {
        // SAFETY: nothing of the database is in use any more; each object is destroyed once.
        unsafe {
            ffi::rocksdb_close(self.db);
            ffi::rocksdb_readoptions_destroy(self.read);
            for writes in [self.durable, self.buffered, self.without_log] {
                ffi::rocksdb_writeoptions_destroy(writes);
            }
        }
    }
}

/// An iterator of the library's, over a view of its own.
struct Cursor<'a>(*mut ffi::rocksdb_iterator_t, PhantomData<&'a Rocks>);

impl Cursor<'_> {
    fn seek(&mut self, key: &Key) {
        // SAFETY: the key is valid for its length.
        unsafe { ffi::rocksdb_iter_seek(self.0, key.as_ptr().cast(), key.len()) }
    }

    fn seek_to_end(&mut self, direction: Direction) {
        // SAFETY: of an open iterator, as all calls here.
        unsafe {
            match direction {
                Direction::Forward => ffi::rocksdb_iter_seek_to_first(self.0),
                Direction::Backward => ffi::rocksdb_iter_seek_to_last(self.0),
            }
        }
    }

    fn step(&mut self, direction: Direction) {
        // SAFETY: called where there is a record.
        unsafe {
            match direction {
                Direction::Forward => ffi::rocksdb_iter_next(self.0),
                Direction::Backward => ffi::rocksdb_iter_prev(self.0),
            }
        }
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        // SAFETY: where there is a record, key and value are valid for their lengths until the iterator moves, which
        // takes it exclusively.
        unsafe {
            if ffi::rocksdb_iter_valid(self.0) == 0 {
                return None;
            }
            let (mut key_bytes, mut value_bytes) = (0, 0);
            let key = ffi::rocksdb_iter_key(self.0, &mut key_bytes);
            let value = ffi::rocksdb_iter_value(self.0, &mut value_bytes);
            Some((
                std::slice::from_raw_parts(key.cast(), key_bytes),
                std::slice::from_raw_parts(value.cast(), value_bytes),
            ))
        }
    }

    /// The error that a cursor without a record may stand for.
    fn check(&self) -> Result<()> {
        // SAFETY: of an open iterator.
        checked(|error| unsafe { ffi::rocksdb_iter_get_error(self.0, error) })
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used any more.
        unsafe { ffi::rocksdb_iter_destroy(self.0) }
    }
}

impl Operations for Rocks {
    fn put(&self, key: &Key, value: &[u8], log: Log) -> Result<()> {
        let writes = match log {
            Log::Buffered => self.buffered,
            Log::None => self.without_log,
        };
        // SAFETY: key and value are valid for their lengths.
        checked(|error| unsafe {
            let (key_start, value_start) = (key.as_ptr().cast(), value.as_ptr().cast());
            ffi::rocksdb_put(self.db, writes, key_start, key.len(), value_start, value.len(), error);
        })
    }

    fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()> {
        Rocks::get(self, self.read, key, found)
    }

    fn seek(&self, key: &Key, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let mut cursor = self.cursor(self.read);
        cursor.seek(key);
        while let Some((key, value)) = cursor.record() {
            if each(key, value).is_break() {
                return Ok(());
            }
            cursor.step(Direction::Forward);
        }
        cursor.check()
    }

    fn scan(&self, direction: Direction, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.cursor(self.read);
        cursor.seek_to_end(direction);
        while let Some((key, value)) = cursor.record() {
            each(key, value);
            cursor.step(direction);
        }
        cursor.check()
    }

    fn works_without_log(&self) -> bool {
        true
    }

    fn is_in_memtable(&self) -> Result<bool> {
        let live_bytes = self.property(c"rocksdb.live-sst-files-size")?;
        Ok(self.frozen_memtables()? == 0 && live_bytes == 0)
    }
}

impl Engine for Rocks {
    fn commit(&self, records: &[Record], durability: Durability) -> Result<()> {
        let writes = match durability {
            Durability::Sync => self.durable,
            Durability::Buffered => self.buffered,
        };
        // SAFETY: keys and values are valid for their lengths, and the batch is destroyed after its last use.
        unsafe {
            let batch = ffi::rocksdb_writebatch_create();
            for Record { key, value } in records {
                let (key_start, value_start) = (key.as_ptr().cast(), value.as_ptr().cast());
                ffi::rocksdb_writebatch_put(batch, key_start, key.len(), value_start, value.len());
            }
            let written = checked(|error| ffi::rocksdb_write(self.db, writes, batch, error));
            ffi::rocksdb_writebatch_destroy(batch);
            written
        }
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Now(self)))
    }

    fn begin_and_drop(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            // SAFETY: released once, of the same database.
            unsafe {
                let snapshot = ffi::rocksdb_create_snapshot(self.db);
                ffi::rocksdb_release_snapshot(self.db, std::hint::black_box(snapshot));
            }
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<()> {
        while self.frozen_memtables()? > STEADY_FROZEN_MEMTABLES || self.files()? > STEADY_FILES {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        // SAFETY: the options are destroyed after their last use; no keys at all stand for the whole table.
        unsafe {
            let options = ffi::rocksdb_flushoptions_create();
            let flushed = checked(|error| ffi::rocksdb_flush(self.db, options, error));
            ffi::rocksdb_flushoptions_destroy(options);
            flushed?;
            ffi::rocksdb_compact_range(self.db, ptr::null(), 0, ptr::null(), 0);
        }
        Ok(())
    }

    fn worker(&self) -> Option<&dyn Worker> {
        Some(self)
    }
}

/// Reads the newest, without a snapshot.
struct Now<'a>(&'a Rocks);

impl Reader for Now<'_> {
    fn get_all(&self, keys: &[Key], access: Access) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            self.0.get(self.0.read, key, |value| {
                bytes += match access {
                    Access::Owned => std::hint::black_box(value.to_vec()).len(),
                    Access::Borrowed => value.len(),
                } as u64;
            })?;
        }
        Ok(bytes)
    }

    fn scan(&self, access: Access) -> Result<u64> {
        let (mut records, mut sum) = (0, 0u64);
        Operations::scan(self.0, Direction::Forward, |key, value| {
            match access {
                Access::Owned => drop(std::hint::black_box((key.to_vec(), value.to_vec()))),
                Access::Borrowed => sum = sum.wrapping_add(u64::from(key[0]) + u64::from(value[0])),
            }
            records += 1;
        })?;
        ensure!(access == Access::Owned || std::hint::black_box(sum) > 0, "a scan that saw nothing");
        Ok(records)
    }
}
