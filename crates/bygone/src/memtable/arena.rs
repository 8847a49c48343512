//! Where entries live: memory that only grows, in shards that writers take for themselves.
//!
//! Owns: every chunk of entry memory, the count of all bytes of the memtable, and each shard's append list of
//! new nodes. Promises: claiming a shard, allocating and appending touch no memory that other writers touch,
//! unless more writers are at work than there are resident shards; nobody waits, but for the allocator when
//! the reserve is used up; memory stays in place until the arena is dropped.
//! May call: `reserve`, the allocator.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};

use super::entry::{Node, NodeRef};
use super::reserve::{self, Reserve};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Every entry begins at a multiple of this.
pub(super) const ALIGNMENT_BYTES: usize = align_of::<Node>();
/// How many shards exist from the start. Writers beyond that many at one moment add further ones.
const RESIDENT_SHARDS: usize = if cfg!(loom) { 1 } else { 32 };
const SMALLEST_CHUNK_BYTES: usize = 4 << 10;
const LARGEST_CHUNK_BYTES: usize = 1 << 20;

pub(super) struct Arena {
    shards: [Shard; RESIDENT_SHARDS],
    /// Shards added because all others were busy, linked by `next`; nothing is ever taken off.
    further: AtomicPtr<Shard>,
    /// No chunk grows beyond this, so that what shards hold in reserve stays a small part of the budget.
    chunk_bytes_max: usize,
    /// Where chunks come from as long as it lasts.
    reserve: Reserve,
    /// Bytes of all that the memtable uses.
    bytes: AtomicUsize,
    /// Of them, those of sorted vectors and cursors.
    vector_bytes: AtomicUsize,
}

/// One writer's part of the arena. Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Shard {
    busy: AtomicBool,
    /// Touched only by the one who holds `busy`, or who owns the arena.
    chunks: UnsafeCell<Chunks>,
    /// Head of the append list: the last node created here; the others hang on it by `Node::previous`.
    last_node: AtomicPtr<Node>,
    /// The `last_node` up to which all nodes are in sorted vectors. Touched only by the one sorter.
    sorted_to: AtomicPtr<Node>,
    /// How many records were inserted here. Written only by the one who holds `busy`.
    records: AtomicUsize,
    next: *mut Shard,
}

/// The chunks of one shard: a bump allocator with a single owner.
struct Chunks {
    free: *mut u8,
    free_bytes: usize,
    newest: *mut ChunkHeader,
    next_bytes: usize,
}

/// What stands at the head of every chunk that did not come from the reserve.
#[repr(C, align(16))]
struct ChunkHeader {
    previous: *mut ChunkHeader,
    bytes: usize,
}

// SAFETY: the raw pointers inside lead to memory that the arena alone owns; shared parts are atomics, and the
// cell in a shard is touched only by the holder of its `busy` flag, which is taken with acquire and given
// back with release.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena that should stay within `budget_bytes` bytes.
    pub fn new(budget_bytes: usize) -> Arena {
        Arena {
            shards: [(); RESIDENT_SHARDS].map(|()| Shard::new(false)),
            further: AtomicPtr::new(ptr::null_mut()),
            chunk_bytes_max: (budget_bytes / 256).clamp(SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES),
            reserve: Reserve::new(budget_bytes.saturating_sub(size_of::<Arena>())),
            bytes: AtomicUsize::new(size_of::<Arena>()),
            vector_bytes: AtomicUsize::new(0),
        }
    }

    /// Makes the system provide the memory that the budget allows for.
    pub fn touch(&self) {
        self.reserve.touch();
    }

    /// A shard for the calling thread alone. Tries the thread's usual one first, so that its lines stay in
    /// this core's cache.
    pub fn claim(&self) -> Claim<'_> {
        let usual = usual_shard();
        for turn in 0..RESIDENT_SHARDS {
            let shard = &self.shards[(usual + turn) % RESIDENT_SHARDS];
            if shard.try_claim() {
                return Claim { arena: self, shard };
            }
        }
        if let Some(shard) = self.further().find(|shard| shard.try_claim()) {
            return Claim { arena: self, shard };
        }
        Claim { arena: self, shard: self.add_shard() }
    }

    /// Nodes appended since the last [`Arena::mark_sorted`], each shard's newest first. All nodes whose
    /// insertion happened before this call are among them. For one sorter at a time.
    pub fn unsorted(&self) -> Unsorted<'_> {
        let mut heads = Vec::new();
        for shard in self.all_shards() {
            // Acquire: pairs with the release in `append`; the node and all before it are seen whole.
            let last = shard.last_node.load(Ordering::Acquire);
            // Relaxed: one sorter at a time, and the lock that makes it so orders the stores before this.
            if last != shard.sorted_to.load(Ordering::Relaxed) {
                heads.push((shard, last));
            }
        }
        Unsorted { heads }
    }

    /// Notes that the nodes of `unsorted` are in sorted vectors that every later reader gets.
    pub fn mark_sorted(&self, unsorted: &Unsorted<'_>) {
        for (shard, last) in &unsorted.heads {
            // Relaxed: as in `unsorted`.
            shard.sorted_to.store(*last, Ordering::Relaxed);
        }
    }

    pub fn records(&self) -> usize {
        // Relaxed: a count that nothing is read through.
        self.all_shards().map(|shard| shard.records.load(Ordering::Relaxed)).sum()
    }

    pub fn bytes(&self) -> usize {
        // Relaxed, here and below: a sum of sizes; nothing is published through it.
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes.load(Ordering::Relaxed)
    }

    pub fn add_vector_bytes(&self, bytes: usize) {
        self.add_bytes(bytes);
        self.vector_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn subtract_vector_bytes(&self, bytes: usize) {
        self.vector_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// What the reserve still has.
    pub fn reserved_bytes(&self) -> usize {
        self.reserve.left_bytes()
    }

    fn all_shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().chain(self.further())
    }

    fn further(&self) -> impl Iterator<Item = &Shard> {
        // Acquire: pairs with the release in `add_shard`, and with the earlier ones too: each exchange goes
        // on with the release sequence of those before it.
        let mut at = self.further.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: shards on the list are live until the arena is dropped, and are only shared from when
            // they got there.
            let shard = unsafe { at.as_ref() }?;
            at = shard.next;
            Some(shard)
        })
    }

    /// Adds a shard that the caller holds from the start.
    fn add_shard(&self) -> &Shard {
        let shard = Box::into_raw(Box::new(Shard::new(true)));
        self.add_bytes(size_of::<Shard>());
        let mut head = self.further.load(Ordering::Relaxed);
        loop {
            // SAFETY: not shared before the exchange below succeeds.
            unsafe { (*shard).next = head };
            // Release: who finds the shard sees it whole, and by it the ones before. Relaxed on failure: the
            // head is not followed.
            match self.further.compare_exchange_weak(head, shard, Ordering::Release, Ordering::Relaxed) {
                // SAFETY: live until the arena is dropped.
                Ok(_) => return unsafe { &*shard },
                Err(newer) => head = newer,
            }
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Relaxed: whoever drops the arena owns it, so all stores happened before.
        let mut at = self.further.load(Ordering::Relaxed);
        while !at.is_null() {
            // SAFETY: made by `Box::into_raw` in `add_shard`, and on the list once.
            let shard = unsafe { Box::from_raw(at) };
            at = shard.next;
        }
    }
}

impl Shard {
    fn new(busy: bool) -> Shard {
        Shard {
            busy: AtomicBool::new(busy),
            chunks: UnsafeCell::new(Chunks {
                free: ptr::null_mut(),
                free_bytes: 0,
                newest: ptr::null_mut(),
                next_bytes: SMALLEST_CHUNK_BYTES,
            }),
            last_node: AtomicPtr::new(ptr::null_mut()),
            sorted_to: AtomicPtr::new(ptr::null_mut()),
            records: AtomicUsize::new(0),
            next: ptr::null_mut(),
        }
    }

    fn try_claim(&self) -> bool {
        // Acquire: pairs with the release in `Claim::drop`; what the last holder did to the chunks is seen.
        !self.busy.swap(true, Ordering::Acquire)
    }
}

/// A shard in the hands of one writer.
pub(super) struct Claim<'a> {
    arena: &'a Arena,
    shard: &'a Shard,
}

impl<'a> Claim<'a> {
    /// Memory for an entry, not initialised, at a multiple of [`ALIGNMENT_BYTES`]; it lives as long as the
    /// arena.
    #[inline]
    pub fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        // SAFETY: this claim holds `busy`, so nobody else touches the chunks, and `&mut self` keeps the
        // claim's own calls apart.
        let chunks = unsafe { &mut *self.shard.chunks.get() };
        let bytes = bytes.next_multiple_of(ALIGNMENT_BYTES);
        if bytes > chunks.free_bytes {
            return chunks.allocate_chunk(bytes, self.arena);
        }
        // SAFETY: `free_bytes` bytes from `free` belong to the newest open chunk and are not given out yet.
        unsafe { chunks.take(bytes) }
    }

    /// Puts a node on the append list. From here on a sorter may read it.
    ///
    /// # Safety
    /// The node must be whole, live in this arena, and not be on an append list yet.
    #[inline]
    pub unsafe fn append(&mut self, node: NonNull<Node>) {
        // Relaxed: only the holder of `busy` writes here, and taking `busy` ordered earlier holders' stores
        // before this.
        let previous = self.shard.last_node.load(Ordering::Relaxed);
        // SAFETY: the node is not shared before the store below.
        unsafe { (&raw mut (*node.as_ptr()).previous).write(previous) };
        // Release: pairs with the acquire in `unsorted`.
        self.shard.last_node.store(node.as_ptr(), Ordering::Release);
    }

    #[inline]
    pub fn count_record(&mut self) {
        // A load and a store are enough: only the holder of `busy` writes. Relaxed: a figure, nothing more.
        let records = self.shard.records.load(Ordering::Relaxed);
        self.shard.records.store(records + 1, Ordering::Relaxed);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `try_claim`.
        self.shard.busy.store(false, Ordering::Release);
    }
}

impl Chunks {
    /// # Safety
    /// `bytes` must not exceed `free_bytes`.
    #[inline]
    unsafe fn take(&mut self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes <= self.free_bytes);
        let taken = self.free;
        // SAFETY: stays in the chunk by the contract.
        self.free = unsafe { taken.add(bytes) };
        self.free_bytes -= bytes;
        // SAFETY: a pointer into a chunk; with no chunk `free_bytes` is zero and entries are never empty.
        unsafe { NonNull::new_unchecked(taken) }
    }

    /// Memory from a new chunk: one of its own for a large entry, so that the open chunk's rest is not
    /// wasted.
    #[cold]
    fn allocate_chunk(&mut self, bytes: usize, arena: &Arena) -> NonNull<u8> {
        if bytes > self.next_bytes / 4 {
            return self.add_chunk(bytes, arena);
        }
        let chunk_bytes = self.next_bytes;
        self.free = self.add_chunk(chunk_bytes, arena).as_ptr();
        self.free_bytes = chunk_bytes;
        self.next_bytes = (chunk_bytes * 2).min(arena.chunk_bytes_max);
        // SAFETY: the entry is at most a quarter of the chunk.
        unsafe { self.take(bytes) }
    }

    /// `bytes` bytes from the reserve, or from the allocator when the reserve has no more.
    fn add_chunk(&mut self, bytes: usize, arena: &Arena) -> NonNull<u8> {
        let bytes = bytes.next_multiple_of(reserve::ALIGNMENT_BYTES);
        if let Some(memory) = arena.reserve.take(bytes) {
            arena.add_bytes(bytes);
            return memory;
        }
        let layout = Self::layout(size_of::<ChunkHeader>() + bytes);
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(chunk) = NonNull::new(memory.cast::<ChunkHeader>()) else { handle_alloc_error(layout) };
        super::entry::assert_taggable(memory.addr() + layout.size());
        arena.add_bytes(layout.size());
        // SAFETY: fresh memory with room for a header, aligned for it; what follows the header is inside it.
        unsafe {
            chunk.write(ChunkHeader { previous: self.newest, bytes: layout.size() });
            self.newest = chunk.as_ptr();
            chunk.add(1).cast()
        }
    }

    fn layout(bytes: usize) -> Layout {
        // An entry is at most a value's and a key's limit together, far below what a layout can be.
        Layout::from_size_align(bytes, align_of::<ChunkHeader>()).expect("entries are bounded")
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        while let Some(chunk) = NonNull::new(self.newest) {
            // SAFETY: a live chunk of this list, made with this layout; nobody can reach its entries any
            // more.
            unsafe {
                let ChunkHeader { previous, bytes } = chunk.read();
                self.newest = previous;
                dealloc(chunk.as_ptr().cast(), Self::layout(bytes));
            }
        }
    }
}

/// See [`Arena::unsorted`].
pub(super) struct Unsorted<'a> {
    heads: Vec<(&'a Shard, *mut Node)>,
}

impl<'a> Unsorted<'a> {
    pub fn nodes(&self) -> impl Iterator<Item = NodeRef<'a>> {
        self.heads.iter().flat_map(|(shard, last)| {
            let sorted_to = shard.sorted_to.load(Ordering::Relaxed).cast_const();
            let mut at = last.cast_const();
            std::iter::from_fn(move || {
                if at == sorted_to {
                    return None;
                }
                // SAFETY: nodes on an append list are whole, and live as long as the arena. The list leads to
                // `sorted_to`, which was once its head, or null.
                let node = unsafe { NodeRef::from_raw(NonNull::new_unchecked(at.cast_mut())) };
                at = node.previous();
                Some(node)
            })
        })
    }
}

/// Where the calling thread begins to look for a shard.
fn usual_shard() -> usize {
    // Not the sync shim's atomics: a place to begin is no part of any protocol, and a model's atomics cannot
    // be static.
    static THREADS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local! {
        static USUAL: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    USUAL.with(|usual| {
        if usual.get() == usize::MAX {
            usual.set(THREADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % RESIDENT_SHARDS);
        }
        usual.get()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_bytes_is_exact() {
        let arena = Arena::new(1 << 20);
        {
            let mut claims: Vec<_> = (0..RESIDENT_SHARDS + 3).map(|_| arena.claim()).collect();
            for n in 0..2000 {
                let claims_len = claims.len();
                claims[n % claims_len].allocate(1 + n * 7919 % 5000);
            }
        }
        let further = arena.further().count();
        assert_eq!(further, 3);
        let counted = arena.bytes();
        let mut chunk_bytes = 0;
        for shard in arena.all_shards() {
            // SAFETY: no claim is left.
            let mut at = unsafe { (*shard.chunks.get()).newest };
            // SAFETY: live chunks of this arena.
            while let Some(chunk) = unsafe { at.as_ref() } {
                chunk_bytes += chunk.bytes;
                at = chunk.previous;
            }
        }
        assert!(chunk_bytes > 0, "the reserve is used up");
        let given = arena.reserve.given_bytes();
        assert!(given > (1 << 20) - (64 << 10), "and was used before: {given}");
        assert_eq!(counted, size_of::<Arena>() + further * size_of::<Shard>() + given + chunk_bytes);
    }
}
