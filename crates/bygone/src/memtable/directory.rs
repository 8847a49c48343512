//! The hash directory: from a key to its node.
//!
//! Owns: the buckets. Promises: finding and inserting are lock-free and take O(1) expected steps; a key has
//! one node; nothing is ever taken out. May call: `entry`, `arena`, `pages`.
//!
//! A bucket is one word: a pointer to the newest node of its chain, with tags in the pointer's unused bits.
//! Each key has one tag bit, and a word's tags are those of all nodes in the chain that it leads to (as in V.
//! Leis et al., "Morsel-Driven Parallelism", SIGMOD 2014). So most look-ups of absent keys, and most
//! insertions of new ones, end at the bucket's word and touch no node.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::arena::Claim;
use super::entry::{FIRST_TAG_BIT, Node, NodeRef, TAG_BITS};
use crate::hint::prefetch;
use crate::layer::HashedKey;
use crate::pages::Pages;
use crate::sync::atomic::{AtomicPtr, Ordering};

/// The part of the budget that the buckets take. Small records (80 bytes) fill the rest with about one node
/// for each bucket.
const BUDGET_SHARE: usize = 12;

/// Its owner inserts nodes of one arena only, and keeps that arena as long as the directory.
pub(super) struct Directory {
    buckets: Buckets,
}

impl Directory {
    /// Buckets for a memtable of that size, in memory that is really there, so that no writer pays for its
    /// first touch.
    pub fn new(budget_bytes: usize) -> Directory {
        let count = (budget_bytes / BUDGET_SHARE / size_of::<AtomicPtr<Node>>()).max(1);
        Directory { buckets: Buckets::new(count) }
    }

    pub fn bytes(&self) -> usize {
        size_of_val::<[_]>(&self.buckets)
    }

    /// Asks the processor to fetch the bucket of keys with that hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.bucket(hash));
    }

    #[inline]
    pub fn find(&self, key: &HashedKey<'_>) -> Option<NodeRef<'_>> {
        // Acquire: pairs with the release in `insert`.
        find_in_chain(self.bucket(key.hash).load(Ordering::Acquire), key)
    }

    /// Adds a version to the key's node, or a node if the key has none.
    #[inline]
    pub fn insert<'m>(&'m self, claim: &mut Claim<'m>, seq: u64, key: &HashedKey<'_>, value: Option<&[u8]>) {
        let bucket = self.bucket(key.hash);
        // Acquire, here and on failure below: the chain's nodes are read.
        let mut word = bucket.load(Ordering::Acquire);
        if let Some(node) = find_in_chain(word, key) {
            return node.add_version(claim, seq, value);
        }
        // The node goes on the append list before it can be found here: whoever adds an older version to it,
        // and completes first, leaves it where sorters find it.
        let node = NodeRef::create(claim, seq, key, value);
        loop {
            // Relaxed: the release below publishes it.
            node.node().next.store(word, Ordering::Relaxed);
            let tags = word.addr() & TAG_MASK | tag(key.hash);
            let tagged = node.as_ptr().map_addr(|address| address | tags);
            // Release: who finds the node sees it whole, and on the append list.
            match bucket.compare_exchange(word, tagged, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => word = changed,
            }
            if let Some(winner) = find_in_chain(word, key) {
                node.abandon();
                return winner.add_version(claim, seq, value);
            }
        }
    }

    /// How many nodes the longest chain has.
    #[cfg(all(test, not(loom)))]
    pub fn longest_chain(&self) -> usize {
        let length = |bucket: &AtomicPtr<Node>| {
            let mut word = bucket.load(Ordering::Acquire);
            let mut length = 0;
            while let Some(node) = NonNull::new(word.map_addr(|address| address & !TAG_MASK)) {
                // SAFETY: as in `find_in_chain`.
                word = unsafe { NodeRef::from_raw(node) }.node().next.load(Ordering::Relaxed);
                length += 1;
            }
            length
        };
        self.buckets.iter().map(length).max().unwrap_or(0)
    }

    #[cfg(all(test, not(loom)))]
    pub fn bucket_index(&self, hash: u64) -> usize {
        let bucket = std::ptr::from_ref(self.bucket(hash));
        self.buckets.iter().position(|other| std::ptr::eq(other, bucket)).expect("it is one of them")
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &AtomicPtr<Node> {
        // The hash's high bits, scaled to the number of buckets: any number will do, not only powers of two.
        let index = (u128::from(hash) * self.buckets.len() as u128) >> 64;
        &self.buckets[index as usize]
    }
}

/// A slice in pages of its own.
struct Buckets {
    start: NonNull<AtomicPtr<Node>>,
    count: usize,
    /// Where the buckets are.
    _pages: Pages,
}

// SAFETY: it owns a slice of atomics.
unsafe impl Send for Buckets {}
// SAFETY: as above.
unsafe impl Sync for Buckets {}

impl Buckets {
    /// That many empty buckets.
    fn new(count: usize) -> Buckets {
        let layout = Layout::array::<AtomicPtr<Node>>(count).expect("a budget is memory there can be");
        let Some(pages) = Pages::new(layout.size()) else { handle_alloc_error(layout) };
        pages.prefer_huge();
        let start = pages.start().cast::<AtomicPtr<Node>>();
        for index in 0..count {
            // SAFETY: the piece is so large, aligned for it, and not shared yet.
            unsafe { start.add(index).write(AtomicPtr::new(ptr::null_mut())) };
        }
        Buckets { start, count, _pages: pages }
    }
}

impl Deref for Buckets {
    type Target = [AtomicPtr<Node>];

    #[inline]
    fn deref(&self) -> &[AtomicPtr<Node>] {
        // SAFETY: `new` wrote that many there, and they live as long as the pages.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

const TAG_MASK: usize = ((1usize << TAG_BITS) - 1) << FIRST_TAG_BIT;

/// The key's one tag bit, from the low end of the hash.
#[inline]
fn tag(hash: u64) -> usize {
    1 << (FIRST_TAG_BIT + u32::from(hash as u8) % TAG_BITS)
}

#[inline]
fn find_in_chain<'m>(mut word: *mut Node, key: &HashedKey<'_>) -> Option<NodeRef<'m>> {
    let tag = tag(key.hash);
    // An empty word has no tags, so this also is the end of the chain.
    while word.addr() & tag != 0 {
        let node = word.map_addr(|address| address & !TAG_MASK);
        // SAFETY: a word with tags leads to a node, which was whole when it was published and lives as long
        // as the arena, and this directory's owner keeps both together. Acquire: by who loaded the
        // bucket; the rest of the chain was published earlier.
        let node = unsafe { NodeRef::from_raw(NonNull::new_unchecked(node)) };
        if node.matches(key) {
            return Some(node);
        }
        // Relaxed: set before the node was published in the bucket.
        word = node.node().next.load(Ordering::Relaxed);
    }
    None
}
