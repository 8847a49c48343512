//! RocksDB's past: user-defined timestamps, through the C interface.
//!
//! Each commit gets the next timestamp, so each is a state that can be read, down to the timestamp from which on
//! history is kept in full. Where the past is not kept, that one follows the present, at some distance, and compactions
//! drop what is below. The comparator is that of RocksDB's own `BytewiseComparatorWithU64Ts`, which the C interface has
//! not: by key, then newest first.

use std::cmp::Ordering as Order;
use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use librocksdb_sys as ffi;

use super::past::{Keeper, MISSING, Opening, Row, View, head_of};
use super::rocks::{Rocks, checked};
use super::{Engine, Setup};
use crate::data::Key;

const TIMESTAMP_BYTES: usize = 8;

type Timestamp = [u8; TIMESTAMP_BYTES];

/// Commits from one change to the next of the timestamp from which on history is kept, where none is wanted: it is
/// written to the manifest each time.
const DROP_EVERY: u64 = 1000;

pub struct Timestamped {
    // Before the comparator: they are dropped in this order.
    family: Family,
    rocks: Rocks,
    _comparator: Comparator,
    keeps: bool,
    /// The timestamp of the last commit.
    last: AtomicU64,
}

impl Timestamped {
    pub fn open(dir: &Path, opening: Opening) -> Result<Timestamped> {
        let setup = Setup {
            cache_bytes: opening.cache_bytes,
            memtable_bytes: Some(opening.memtable_bytes),
            split: false,
        };
        let comparator = Comparator::new();
        // SAFETY: the options are open; the comparator outlives the database.
        let configure = |options| unsafe { ffi::rocksdb_options_set_comparator(options, comparator.0) };
        let rocks = Rocks::open_with(dir, setup, configure)?;
        // SAFETY: the database is open.
        let family = Family(unsafe { ffi::rocksdb_get_default_column_family_handle(rocks.db) });
        Ok(Timestamped {
            family,
            rocks,
            _comparator: comparator,
            keeps: opening.keeps,
            last: AtomicU64::new(0),
        })
    }

    /// Whatever is older than the last commit may go.
    fn drop_history(&self) -> Result<()> {
        let last = self.last.load(Ordering::Relaxed).to_le_bytes();
        // SAFETY: the timestamp is valid for its length, and copied.
        checked(|error| unsafe {
            let start = last.as_ptr().cast();
            ffi::rocksdb_increase_full_history_ts_low(self.rocks.db, self.family.0, start, last.len(), error);
        })
    }
}

impl Keeper for Timestamped {
    fn commit(&self, rows: &[Row]) -> Result<()> {
        self.commit_and_keep(rows).map(|_| ())
    }

    fn commit_and_keep(&self, rows: &[Row]) -> Result<u64> {
        // Relaxed: one thread writes.
        let timestamp = self.last.load(Ordering::Relaxed) + 1;
        let bytes: Timestamp = timestamp.to_le_bytes();
        // SAFETY: keys, timestamps and values are valid for their lengths, and the batch, which copies them, is
        // destroyed after its last use.
        unsafe {
            let batch = ffi::rocksdb_writebatch_create();
            for Row { key, value } in rows {
                ffi::rocksdb_writebatch_put_cf_with_ts(
                    batch,
                    self.family.0,
                    key.as_ptr().cast(),
                    key.len(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    value.as_ptr().cast(),
                    value.len(),
                );
            }
            let written =
                checked(|error| ffi::rocksdb_write(self.rocks.db, self.rocks.buffered, batch, error));
            ffi::rocksdb_writebatch_destroy(batch);
            written?;
        }
        self.last.store(timestamp, Ordering::Relaxed);
        if !self.keeps && timestamp.is_multiple_of(DROP_EVERY) {
            self.drop_history()?;
        }
        Ok(timestamp)
    }

    fn view(&self, state: Option<u64>) -> Result<Box<dyn View + '_>> {
        Ok(Box::new(AsOf::new(&self.rocks, state.unwrap_or(u64::MAX))))
    }

    fn settle(&self) -> Result<()> {
        if !self.keeps {
            self.drop_history()?;
        }
        self.rocks.settle()
    }
}

/// The one column family; to be let go before the database is closed.
struct Family(*mut ffi::rocksdb_column_family_handle_t);

// SAFETY: the library lets any threads use a handle at a time.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: destroyed once; the database is still open.
        unsafe { ffi::rocksdb_column_family_handle_destroy(self.0) }
    }
}

/// Options of reads as of a timestamp, for one thread.
struct AsOf<'e> {
    rocks: &'e Rocks,
    read: *mut ffi::rocksdb_readoptions_t,
    /// The options point at it.
    _timestamp: Box<Timestamp>,
}

impl<'e> AsOf<'e> {
    fn new(rocks: &'e Rocks, timestamp: u64) -> AsOf<'e> {
        let timestamp: Box<Timestamp> = Box::new(timestamp.to_le_bytes());
        // SAFETY: what the options point at stays where it is as long as they.
        let read = unsafe {
            let read = ffi::rocksdb_readoptions_create();
            ffi::rocksdb_readoptions_set_timestamp(read, timestamp.as_ptr().cast(), timestamp.len());
            read
        };
        AsOf { rocks, read, _timestamp: timestamp }
    }
}

impl Drop for AsOf<'_> {
    fn drop(&mut self) {
        // SAFETY: destroyed once, and not used any more.
        unsafe { ffi::rocksdb_readoptions_destroy(self.read) }
    }
}

impl View for AsOf<'_> {
    fn heads(&mut self, keys: &[Key], heads: &mut Vec<u64>) -> Result<()> {
        for key in keys {
            let mut head = MISSING;
            self.rocks.get(self.read, key, |value| head = head_of(value))?;
            heads.push(head);
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(u64, u64)> {
        let (mut rows, mut sum) = (0, 0u64);
        self.rocks.scan(self.read, |value| {
            rows += 1;
            sum = sum.wrapping_add(head_of(value));
        })?;
        Ok((rows, sum))
    }
}

struct Comparator(*mut ffi::rocksdb_comparator_t);

// SAFETY: it has no state.
unsafe impl Send for Comparator {}
// SAFETY: as above.
unsafe impl Sync for Comparator {}

impl Comparator {
    fn new() -> Comparator {
        // SAFETY: the functions have the types that the library calls them by, and need no state.
        Comparator(unsafe {
            ffi::rocksdb_comparator_with_ts_create(
                ptr::null_mut(),
                Some(destroy_nothing),
                Some(compare),
                Some(compare_timestamps),
                Some(compare_keys),
                Some(name),
                TIMESTAMP_BYTES,
            )
        })
    }
}

impl Drop for Comparator {
    fn drop(&mut self) {
        // SAFETY: destroyed once, and the database that used it is closed.
        unsafe { ffi::rocksdb_comparator_destroy(self.0) }
    }
}

unsafe extern "C" fn destroy_nothing(_: *mut c_void) {}

unsafe extern "C" fn name(_: *mut c_void) -> *const c_char {
    c"bygone-bench.bytewise-newest-first".as_ptr()
}

/// # Safety
/// Valid for its length.
unsafe fn bytes<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

fn number(order: Order) -> c_int {
    order as c_int
}

fn split(key: &[u8]) -> (&[u8], &[u8]) {
    key.split_at(key.len().saturating_sub(TIMESTAMP_BYTES))
}

fn timestamp(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

unsafe extern "C" fn compare(
    _: *mut c_void,
    a: *const c_char,
    a_len: usize,
    b: *const c_char,
    b_len: usize,
) -> c_int {
    // SAFETY: the library's slices.
    let (a, b) = unsafe { (bytes(a, a_len), bytes(b, b_len)) };
    let ((a, a_timestamp), (b, b_timestamp)) = (split(a), split(b));
    number(a.cmp(b).then_with(|| timestamp(b_timestamp).cmp(&timestamp(a_timestamp))))
}

unsafe extern "C" fn compare_timestamps(
    _: *mut c_void,
    a: *const c_char,
    a_len: usize,
    b: *const c_char,
    b_len: usize,
) -> c_int {
    // SAFETY: the library's slices.
    let (a, b) = unsafe { (bytes(a, a_len), bytes(b, b_len)) };
    number(timestamp(a).cmp(&timestamp(b)))
}

unsafe extern "C" fn compare_keys(
    _: *mut c_void,
    a: *const c_char,
    a_len: usize,
    a_has_timestamp: c_uchar,
    b: *const c_char,
    b_len: usize,
    b_has_timestamp: c_uchar,
) -> c_int {
    // SAFETY: the library's slices.
    let (a, b) = unsafe { (bytes(a, a_len), bytes(b, b_len)) };
    let key = |bytes, has_timestamp| if has_timestamp != 0 { split(bytes).0 } else { bytes };
    number(key(a, a_has_timestamp).cmp(key(b, b_has_timestamp)))
}
