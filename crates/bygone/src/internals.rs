//! Parts of the engine on their own, so that a benchmark can measure them alone: the feature `internals`.
//!
//! Owns: thin wrappers. Promises: nothing to anybody. Names and meanings change without notice, and sizes are
//! not checked as the database checks them. May call: `memtable`, `layer`.
#![allow(missing_docs)]

use crate::layer::{HashedKey, LayerCursor, Lookup};
use crate::memtable;

/// The memtable without log, commit queue and flush. All calls hash the key, as commits and reads do.
///
/// Keys longer than [`crate::limits::KEY_BYTES_MAX`] and values longer than
/// [`crate::limits::VALUE_BYTES_MAX`] panic.
pub struct Memtable {
    memtable: memtable::Memtable,
    hash_seed: u64,
}

/// A cursor over one table of a [`Memtable`] as of a sequence number.
pub struct Cursor(memtable::MemtableCursor);

impl Memtable {
    pub fn new(budget_bytes: usize) -> Memtable {
        Memtable { memtable: memtable::Memtable::new(budget_bytes), hash_seed: 0x9e6c_63d0_876a_9a7d }
    }

    /// What the database does to a standby memtable: pays ahead for the first touch of its memory.
    pub fn touch(&mut self) {
        self.memtable.touch();
    }

    /// Inserts a record under a sequence number; `None` is a deletion. Any threads may insert at one time.
    #[inline]
    pub fn insert(&self, seq: u64, table: u32, key: &[u8], value: Option<&[u8]>) {
        self.memtable.insert_batch(seq, [(HashedKey::new(table, key, self.hash_seed), value)]);
    }

    /// Inserts the records of one commit; each key at most once.
    #[inline]
    pub fn insert_batch<'a>(
        &self,
        seq: u64,
        table: u32,
        records: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) {
        let hashed = |(key, value)| (HashedKey::new(table, key, self.hash_seed), value);
        self.memtable.insert_batch(seq, records.into_iter().map(hashed));
    }

    /// Hands `found` the value of the newest version that is not newer than `seq`; `None` if there is no such
    /// version, or if it is a deletion.
    #[inline]
    pub fn get_with<R>(&self, table: u32, key: &[u8], seq: u64, found: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (mut found, mut answer) = (Some(found), None);
        let lookup = self.memtable.get(&HashedKey::new(table, key, self.hash_seed), seq, &mut |value| {
            answer = found.take().map(|found| found(value));
        });
        if lookup == Lookup::Found { answer } else { None }
    }

    /// A cursor, off the end, as of `seq`. All insertions up to `seq` must have returned before this call.
    #[inline]
    pub fn cursor(&self, table: u32, seq: u64) -> Cursor {
        Cursor(self.memtable.cursor(table, seq))
    }

    pub fn memory_bytes(&self) -> usize {
        self.memtable.memory_bytes()
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.memtable.is_full()
    }
}

impl Cursor {
    /// Moves to the first key that is at least `key`.
    #[inline]
    pub fn seek(&mut self, key: &[u8]) {
        infallible(self.0.seek(key));
    }

    /// Moves to the last key that is less than `key`; with `None`, to the last key of the table.
    #[inline]
    pub fn seek_before(&mut self, key: Option<&[u8]>) {
        infallible(self.0.seek_before(key));
    }

    #[inline]
    pub fn next(&mut self) {
        infallible(self.0.next());
    }

    #[inline]
    pub fn prev(&mut self) {
        infallible(self.0.prev());
    }

    /// `None` off the end.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    /// `None` off the end, and of a deletion.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        self.0.key()?;
        self.0.loaded().ok().flatten()
    }
}

/// A memtable's cursor reads memory alone.
#[inline]
fn infallible(moved: crate::Result<()>) {
    debug_assert!(moved.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let mut memtable = Memtable::new(1 << 20);
        memtable.touch();
        memtable.insert(1, 7, b"b", Some(b"1"));
        memtable.insert_batch(2, 7, [(&b"a"[..], Some(&b"2"[..])), (b"b", None), (b"c", Some(b"3"))]);
        assert_eq!(memtable.get_with(7, b"b", 1, <[u8]>::to_vec), Some(b"1".to_vec()));
        assert_eq!(memtable.get_with(7, b"b", 2, <[u8]>::to_vec), None);
        assert_eq!(memtable.get_with(8, b"a", 2, <[u8]>::to_vec), None);
        let mut cursor = memtable.cursor(7, 2);
        assert_eq!((cursor.key(), cursor.value()), (None, None));
        cursor.seek(b"");
        assert_eq!((cursor.key(), cursor.value()), (Some(&b"a"[..]), Some(&b"2"[..])));
        cursor.next();
        assert_eq!((cursor.key(), cursor.value()), (Some(&b"b"[..]), None), "a deletion");
        cursor.seek_before(None);
        assert_eq!(cursor.key(), Some(&b"c"[..]));
        cursor.prev();
        cursor.prev();
        assert_eq!(cursor.key(), Some(&b"a"[..]));
        assert!(memtable.memory_bytes() > 0 && !memtable.is_full());
    }
}
