//! The sorted hash memtable: records of recent commits, in memory.
//!
//! Owns: the directory, the arena and the sorted vectors, and the count of their bytes. Promises: inserting
//! and looking up take O(1) expected steps, are lock-free, and write to no memory that threads share but the
//! key's bucket; nothing is sorted on the write path; a cursor sees exactly the commits up to its sequence
//! number while writers go on. May call: `layer`, `limits`, `sync`.
//!
//! The order is made for readers, when they need it. Each new key's node is on an append list; who opens a
//! cursor, and finds nodes there that no vector holds, sorts them into a new one. A vector holds nodes, not
//! versions: a node leads to all its versions, so writes to keys that are already there leave the order as it
//! is.

mod arena;
mod cursor;
mod directory;
mod entry;
#[cfg(all(test, not(loom)))]
mod measure;
#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod random_tests;
mod reserve;
#[cfg(all(test, not(loom)))]
mod tests;
mod vectors;
#[cfg(all(test, not(loom)))]
mod work_tests;

use std::sync::PoisonError;

use arena::Arena;
pub(crate) use cursor::{MemtableCursor, MemtableVersions};
use directory::Directory;
use vectors::{View, Work};

use crate::layer::{HashedKey, Lookup};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

pub(crate) struct Memtable {
    budget_bytes: usize,
    /// What [`Memtable::memory_bytes`] is as long as nothing was inserted, nor read in order.
    new_bytes: usize,
    directory: Directory,
    arena: Arc<Arena>,
    order: Mutex<Order>,
    /// The highest sequence number that anybody has asked for a view of.
    wanted_seq: AtomicU64,
    /// Held by the one who sorts, for all who want an order at that time. They wait for it here; who finds
    /// the order that he needs does not come here, nor do writers.
    sorting: Mutex<Work>,
}

/// How many buckets are asked for at once: memory answers many requests at a time.
const PREFETCH_RECORDS: usize = 8;

/// Bytes in use, by what they are for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemtableBytes {
    pub directory: usize,
    pub entries: usize,
    /// Sorted vectors and the cursors that read them.
    pub vectors: usize,
    /// Held ready for entries to come; in the budget, but not in use.
    pub reserved: usize,
}

/// The newest view, and how far it reaches.
struct Order {
    view: Arc<View>,
    /// The view holds every node that has a version up to here.
    covered_seq: Option<u64>,
}

impl MemtableBytes {
    pub fn used(&self) -> usize {
        self.directory + self.entries + self.vectors
    }

    pub fn add(&mut self, other: MemtableBytes) {
        self.directory += other.directory;
        self.entries += other.entries;
        self.vectors += other.vectors;
        self.reserved += other.reserved;
    }
}

impl Memtable {
    /// An empty memtable whose directory, entries and vectors together should take `budget_bytes` bytes.
    /// Costs the allocation and the first touch of the directory: done ahead, off the write path.
    pub fn new(budget_bytes: usize) -> Memtable {
        let directory = Directory::new(budget_bytes);
        let arena = Arena::new(budget_bytes.saturating_sub(directory.bytes()));
        arena.add_bytes(size_of::<Memtable>() + directory.bytes());
        let arena = Arc::new(arena);
        let view = Arc::new(View::new(Vec::new(), arena.clone()));
        Memtable {
            budget_bytes,
            new_bytes: arena.bytes(),
            directory,
            arena,
            order: Mutex::new(Order { view, covered_seq: None }),
            wanted_seq: AtomicU64::new(0),
            sorting: Mutex::new(Work::default()),
        }
    }

    /// Touches the memory that entries will take, so that no writer pays for its first touch; by far the
    /// largest part of what insertion costs otherwise. For a standby memtable, which is sure to be
    /// filled.
    pub fn touch(&mut self) {
        self.arena.touch();
    }

    /// Asks the processor to fetch what inserting or looking up a key of that hash begins with.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.directory.prefetch(hash);
    }

    /// Inserts the records of one commit under its sequence number; `None` is a deletion. Each key at most
    /// once. Any threads may insert at one time, also versions of one key in any order.
    pub fn insert_batch<'a>(
        &self,
        seq: u64,
        records: impl IntoIterator<Item = (HashedKey<'a>, Option<&'a [u8]>)>,
    ) {
        let mut claim = self.arena.claim();
        let records = records.into_iter();
        if records.size_hint().1 == Some(1) {
            for (key, value) in records {
                self.directory.insert(&mut claim, seq, &key, value);
                claim.count_record();
            }
            return;
        }
        let mut records = records.fuse();
        loop {
            let window: [_; PREFETCH_RECORDS] = std::array::from_fn(|_| {
                let record = records.next()?;
                self.directory.prefetch(record.0.hash);
                Some(record)
            });
            for (key, value) in window.iter().flatten() {
                self.directory.insert(&mut claim, seq, key, *value);
                claim.count_record();
            }
            if window[PREFETCH_RECORDS - 1].is_none() {
                return;
            }
        }
    }

    /// Looks up the newest version that is not newer than `seq`, and hands its value to `found`.
    #[inline]
    pub fn get(&self, key: &HashedKey<'_>, seq: u64, found: &mut dyn FnMut(&[u8])) -> Lookup {
        // Where much is read and nothing written, a bucket would be fetched from memory for nothing. A record that
        // this view sees was inserted, and the bytes for it counted, before the view's number was published.
        if self.memory_bytes() == self.new_bytes {
            return Lookup::Absent;
        }
        let Some(version) = self.directory.find(key).and_then(|node| node.version_at(seq)) else {
            return Lookup::Absent;
        };
        match version.value() {
            Some(value) => {
                found(value);
                Lookup::Found
            }
            None => Lookup::Deleted,
        }
    }

    /// The sequence number of the key's newest version, however new.
    pub fn newest_seq(&self, key: &HashedKey<'_>) -> Option<u64> {
        Some(self.directory.find(key)?.newest()?.seq())
    }

    /// The sequence number of the key's newest version that is not newer than `seq`.
    pub fn version_seq(&self, key: &HashedKey<'_>, seq: u64) -> Option<u64> {
        Some(self.directory.find(key)?.version_at(seq)?.seq())
    }

    /// The sequence number of the key's oldest version that is newer than `seq`.
    pub fn next_seq(&self, key: &HashedKey<'_>, seq: u64) -> Option<u64> {
        Some(self.directory.find(key)?.version_after(seq)?.seq())
    }

    /// A cursor, off the end, over a table as of `seq`. Every commit up to `seq` must be wholly inserted: the
    /// published sequence number says so. Sorts what needs to be sorted for that.
    pub fn cursor(&self, table: u32, seq: u64) -> MemtableCursor {
        MemtableCursor::new(self.view(Some(seq)), table, seq)
    }

    /// All versions of all keys, for the flush. Nobody may be inserting any more.
    pub fn versions(&self) -> MemtableVersions {
        MemtableVersions::new(self.view(None))
    }

    /// All bytes in use: directory, chunks of entries, cursors, and every vector that somebody still holds. What is
    /// reserved within the budget for chunks to come does not count.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// The same by what it is for, and what is reserved.
    pub fn bytes(&self) -> MemtableBytes {
        let (directory, vectors) = (self.directory.bytes(), self.arena.vector_bytes());
        MemtableBytes {
            directory,
            entries: self.memory_bytes().saturating_sub(directory + vectors),
            vectors,
            reserved: self.arena.reserved_bytes(),
        }
    }

    /// Whether the budget is used up. Never true of an empty memtable, however small its budget.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.memory_bytes() >= self.budget_bytes && !self.is_empty()
    }

    /// Whether half of the budget is used up.
    #[inline]
    pub fn is_half_full(&self) -> bool {
        self.memory_bytes() >= self.budget_bytes / 2 && !self.is_empty()
    }

    /// How many versions were inserted.
    pub fn records(&self) -> usize {
        self.arena.records()
    }

    pub fn is_empty(&self) -> bool {
        self.records() == 0
    }

    /// A view with every node that has a version up to `seq`; with `None`, with every node inserted before
    /// this call.
    fn view(&self, seq: Option<u64>) -> Arc<View> {
        if let Some(view) = self.covering_view(seq) {
            return view;
        }
        if let Some(seq) = seq {
            // Release: pairs with the acquire below. The caller has seen all insertions up to `seq`.
            self.wanted_seq.fetch_max(seq, Ordering::Release);
        }
        // Goes when the lock is given back: this may free vectors.
        let _replaced;
        let mut work = self.sorting.lock().unwrap_or_else(PoisonError::into_inner);
        // The one before may have sorted what is needed here.
        if let Some(view) = self.covering_view(seq) {
            return view;
        }
        // Acquire: whoever asked for that number had seen all insertions up to it, so they are seen below,
        // and all who wait for the lock are served at once.
        let covered_seq = seq.max(Some(self.wanted_seq.load(Ordering::Acquire)));
        let unsorted = self.arena.unsorted();
        // Published only once the new vector is whole, and marked only after that: should this thread die on
        // the way, the next one sorts these nodes again.
        let last = self.lock_order().view.clone();
        let view = match last.with(unsorted.nodes()) {
            Some((view, added)) => {
                work.add(added);
                Arc::new(view)
            }
            None => last,
        };
        let mut order = self.lock_order();
        order.covered_seq = order.covered_seq.max(covered_seq);
        _replaced = std::mem::replace(&mut order.view, view.clone());
        drop(order);
        self.arena.mark_sorted(&unsorted);
        view
    }

    fn covering_view(&self, seq: Option<u64>) -> Option<Arc<View>> {
        let order = self.lock_order();
        (seq.is_some() && order.covered_seq >= seq).then(|| order.view.clone())
    }

    fn lock_order(&self) -> crate::sync::MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
