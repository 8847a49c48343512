//! What every sorted layer of a view offers: memtables, runs and the base.
//!
//! Owns: the words that the layers share: a key, its hash, the answer to a look-up, the kinds of cursor.
//! Promises: the read path can treat all layers alike. May call: nothing but `error`.

use crate::error::Result;

/// A key as the layers see it: the table's id, then the application's key. Keys sort by table, then by bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key<'a> {
    pub table: u32,
    pub bytes: &'a [u8],
}

/// A key with its hash, computed once for all layers and the conflict table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedKey<'a> {
    pub key: Key<'a>,
    pub hash: u64,
}

impl<'a> HashedKey<'a> {
    /// Hashes a key under the database's own secret seed, so that nobody outside can choose colliding keys.
    #[inline]
    pub fn new(table: u32, bytes: &'a [u8], seed: u64) -> Self {
        // A table's keys hash under a seed of their own: equal keys of two tables do not collide.
        let seed = seed ^ u64::from(table).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        HashedKey { key: Key { table, bytes }, hash: xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed) }
    }
}

/// What one layer knows of a key as of a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Nothing here: ask the next older layer.
    Absent,
    /// Deleted as of then: older layers do not matter.
    Deleted,
    /// Found; the value was handed to the callback.
    Found,
}

/// A cursor over the records of one table in one layer as of one sequence number.
///
/// Each key appears at most once, with its newest version that is not newer than the sequence number;
/// deletions appear too (see [`LayerCursor::value`]), because they hide what older layers hold. A cursor that
/// is off either end has no key; `seek` and `seek_before` may be called again at any time, and `next` or
/// `prev` off an end stay there. Moving forth and back may alternate freely.
pub(crate) trait LayerCursor: Send {
    /// Moves to the first key that is at least `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the last key that is less than `key`; with `None`, to the last key of the table.
    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()>;
    fn next(&mut self) -> Result<()>;
    fn prev(&mut self) -> Result<()>;
    /// The application's key (without the table), `None` off the end.
    fn key(&self) -> Option<&[u8]>;
    /// Brings the value at the cursor into memory, where it is not there already. Must not be called off the
    /// end.
    fn load(&mut self) -> Result<()> {
        Ok(())
    }
    /// The value at the cursor after [`load`](LayerCursor::load); `None` is a deletion. Must not be called
    /// off the end.
    fn loaded(&self) -> Result<Option<&[u8]>>;
    /// Both in one: the value at the cursor.
    #[cfg(test)]
    fn value(&mut self) -> Result<Option<&[u8]>> {
        self.load()?;
        self.loaded()
    }
    /// Whether the record at the cursor is a deletion, without loading anything.
    fn is_deletion(&self) -> bool;
}

/// A cursor over a layer that knows the sequence numbers of its records: all but the base's.
pub(crate) trait VersionCursor: LayerCursor {
    /// The sequence number of the version at the cursor. Must not be called off the end.
    fn seq(&self) -> Result<u64>;
}

/// Which way a walk goes that cannot be turned round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A stream of all versions of all keys of one layer or of several merged, by key ascending, then by sequence
/// number descending. What flush and merge read. It starts before the first record.
pub(crate) trait Versions: Send {
    /// Moves to the next version; `false` at the end.
    fn advance(&mut self) -> Result<bool>;
    fn key(&self) -> Key<'_>;
    fn seq(&self) -> u64;
    /// Brings the value into memory, where it is not there already.
    fn load(&mut self) -> Result<()> {
        Ok(())
    }
    /// The value after [`load`](Versions::load); `None` is a deletion.
    fn loaded(&self) -> Result<Option<&[u8]>>;
    /// Both in one: the value.
    fn value(&mut self) -> Result<Option<&[u8]>> {
        self.load()?;
        self.loaded()
    }
}
