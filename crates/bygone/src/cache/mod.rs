//! The cache of immutable blocks: pages of the base and blocks of runs.
//!
//! Owns: the byte budget, the translation from a block's index to its frame, and eviction. Promises: a hit is
//! some loads under a guard: no latch, no reference count, no line that readers share except a flag
//! that is written once; what a guard has seen stays readable until the guard is dropped; the bytes of all
//! frames together exceed the budget only by what is being inserted at this moment. Knows nothing of files:
//! who misses, reads, checks and inserts. May call: registry, `pages`.

mod frame;
mod guard;
mod slabs;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use frame::{DeadFrame, Header};
pub(crate) use frame::{Frame, NewFrame};
use guard::ERAS;
pub(crate) use guard::{Guard, pin};

use crate::hint::prefetch;

/// The byte budget that all frame tables of a database share.
#[derive(Debug)]
pub(crate) struct Cache {
    budget_bytes: usize,
    used_bytes: AtomicUsize,
    /// Second-chance queue over all frames. Entries whose frame has gone since are skipped when they come
    /// up.
    queue: Mutex<VecDeque<Queued>>,
}

#[derive(Debug)]
struct Queued {
    table: Weak<FrameTable>,
    index: u64,
    /// Which frame this entry stands for; only compared, never followed.
    address: usize,
}

impl Cache {
    pub fn new(budget_bytes: usize) -> Arc<Cache> {
        Arc::new(Cache { budget_bytes, used_bytes: AtomicUsize::new(0), queue: Mutex::default() })
    }

    pub fn used_bytes(&self) -> usize {
        // Relaxed: a figure for people and for the budget; nothing is published through it.
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    fn admit(&self, entry: Queued, bytes: usize, guard: &Guard) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(entry);
        // Each frame gets at most one second chance in a call, so this ends also when every frame is in use.
        let mut chances = queue.len();
        while self.used_bytes() > self.budget_bytes {
            let Some(entry) = queue.pop_front() else { break };
            let Some(table) = entry.table.upgrade() else { continue };
            let slot = match table.slot(entry.index) {
                Some(slot) => slot,
                None => continue,
            };
            let Some(frame) = guard.load(slot) else { continue };
            if frame.as_ptr() as usize != entry.address {
                continue;
            }
            // SAFETY: it was found under `guard`.
            if chances > 0 && unsafe { Frame::from_raw(frame, guard) }.take_reference() {
                chances -= 1;
                queue.push_back(entry);
                continue;
            }
            table.evict(slot, frame);
        }
    }
}

/// How many entries the first segment of a table has; each next segment is twice as large.
const FIRST_SEGMENT_LOG2: u32 = 6;
const SEGMENTS: usize = 40;

const LINE_BYTES: usize = 64;
/// In a leaf or an inner page of short keys most of what a search for one touches.
const PREFETCHED_LINES: usize = 6;

type Segment = Box<[AtomicPtr<Header>]>;

/// From the index of a block in one file to its frame, if it is cached.
#[derive(Debug)]
pub(crate) struct FrameTable {
    cache: Arc<Cache>,
    this: Weak<FrameTable>,
    segments: [OnceLock<Segment>; SEGMENTS],
}

impl FrameTable {
    pub fn new(cache: &Arc<Cache>) -> Arc<FrameTable> {
        Arc::new_cyclic(|this| FrameTable {
            cache: cache.clone(),
            this: this.clone(),
            segments: [const { OnceLock::new() }; SEGMENTS],
        })
    }

    /// The cached block at `index`. The caller compares [`Frame::tag`] with what it expects there.
    #[inline]
    pub fn get<'g>(&self, index: u64, guard: &'g Guard) -> Option<Frame<'g>> {
        let frame = guard.load(self.slot(index)?)?;
        // Its header is waited for next. What is looked at behind it is on its way by then.
        for line in 1..=PREFETCHED_LINES {
            prefetch(frame.as_ptr().cast::<u8>().wrapping_add(line * LINE_BYTES));
        }
        // SAFETY: found under `guard`.
        let frame = unsafe { Frame::from_raw(frame, guard) };
        frame.set_reference();
        Some(frame)
    }

    /// Caches a block, in place of what was there, and makes room for it. The table grows to `index`, so the
    /// caller checks that the file really has such a block. The frame is usable even if it is
    /// evicted at once.
    pub fn insert<'g>(&self, index: u64, frame: NewFrame, guard: &'g Guard) -> Frame<'g> {
        let bytes = frame.allocated_bytes();
        let frame = frame.into_raw();
        let slot = self.slot_or_grow(index);
        // Before anybody can find it, and take it out again.
        guard.extend();
        // AcqRel: publishes the frame's bytes, and sees the frame that it replaces.
        let old = slot.swap(frame.as_ptr(), Ordering::AcqRel);
        self.retire(old);
        self.cache.admit(
            Queued { table: self.this.clone(), index, address: frame.as_ptr() as usize },
            bytes,
            guard,
        );
        // SAFETY: the guard covers what was put there since it was extended.
        unsafe { Frame::from_raw(frame, guard) }
    }

    /// Whether a block with this tag is cached, without counting as a use.
    pub fn contains(&self, index: u64, tag: u64, guard: &Guard) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        let Some(frame) = guard.load(slot) else { return false };
        // SAFETY: as in `get`.
        unsafe { Frame::from_raw(frame, guard) }.tag() == tag
    }

    /// How many blocks lie cached right before `index`, up to `max`; a guess by the time it is answered.
    pub fn row_before(&self, index: u64, max: usize) -> usize {
        // Relaxed: nothing is looked at there.
        let is_cached =
            |index: u64| self.slot(index).is_some_and(|slot| !slot.load(Ordering::Relaxed).is_null());
        (0..index).rev().take(max).take_while(|index| is_cached(*index)).count()
    }

    /// Forgets the block at `index`.
    pub fn remove(&self, index: u64) {
        if let Some(slot) = self.slot(index) {
            let old = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
            self.retire(old);
        }
    }

    fn place(index: u64) -> (usize, usize) {
        let shifted = index + (1 << FIRST_SEGMENT_LOG2);
        let log2 = shifted.ilog2();
        ((log2 - FIRST_SEGMENT_LOG2) as usize, (shifted - (1 << log2)) as usize)
    }

    #[inline]
    fn slot(&self, index: u64) -> Option<&AtomicPtr<Header>> {
        let (segment, offset) = Self::place(index);
        Some(&self.segments[segment].get()?[offset])
    }

    fn slot_or_grow(&self, index: u64) -> &AtomicPtr<Header> {
        let (segment, offset) = Self::place(index);
        let entries = 1usize << (segment as u32 + FIRST_SEGMENT_LOG2);
        &self.segments[segment]
            .get_or_init(|| (0..entries).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect())[offset]
    }

    fn evict(&self, slot: &AtomicPtr<Header>, frame: NonNull<Header>) {
        let frame = frame.as_ptr();
        if slot.compare_exchange(frame, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.retire(frame);
        }
    }

    fn retire(&self, frame: *mut Header) {
        if let Some(frame) = NonNull::new(frame) {
            // SAFETY: it was just taken out of its slot by this thread alone, so it is retired once, and
            // nobody finds it again.
            let dead = unsafe { DeadFrame::new(frame) };
            self.cache.used_bytes.fetch_sub(dead.bytes(), Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { ERAS.retire(dead) };
        }
    }
}

impl Drop for FrameTable {
    fn drop(&mut self) {
        for segment in self.segments.iter().filter_map(OnceLock::get) {
            for slot in segment {
                self.retire(slot.swap(std::ptr::null_mut(), Ordering::AcqRel));
            }
        }
        // Of a database that is closed nobody retires more.
        ERAS.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(tag: u64, len: usize) -> NewFrame {
        let mut frame = NewFrame::new(len, tag);
        frame.fill(tag as u8);
        frame
    }

    #[test]
    fn a_block_is_found_by_its_index_and_told_apart_by_its_tag() {
        let cache = Cache::new(1 << 20);
        let table = FrameTable::new(&cache);
        let guard = pin();
        for index in [0, 1, 63, 64, 65, 1000, 1 << 16] {
            assert!(table.get(index, &guard).is_none());
            table.insert(index, block(index + 7, 100), &guard);
            let frame = table.get(index, &guard).unwrap();
            assert_eq!(frame.tag(), index + 7);
            assert_eq!(frame.bytes(), &[(index + 7) as u8; 100][..]);
        }
        table.remove(64);
        assert!(table.get(64, &guard).is_none());
    }

    #[test]
    fn a_row_ends_where_nothing_is_cached() {
        let table = FrameTable::new(&Cache::new(1 << 20));
        let guard = pin();
        for index in [0, 1, 2, 60, 61, 62, 63, 64, 65] {
            assert_eq!(table.insert(index, NewFrame::of(&[7; 100], 3), &guard).bytes(), &[7; 100][..]);
        }
        let rows = [0, 2, 3, 4, 63, 64, 66, 1000].map(|index| table.row_before(index, 5));
        assert_eq!(rows, [0, 2, 3, 0, 3, 4, 5, 0]);
    }

    #[test]
    fn the_budget_holds_and_used_blocks_stay_longer() {
        let cache = Cache::new(64 << 10);
        let table = FrameTable::new(&cache);
        let guard = pin();
        table.insert(0, block(1, 1000), &guard);
        for index in 1..1000 {
            assert!(table.get(0, &guard).is_some(), "the block in use was evicted at {index}");
            table.insert(index, block(1, 1000), &guard);
            assert!(cache.used_bytes() <= cache.budget_bytes());
        }
        assert!(table.get(1, &guard).is_none());
        drop(table);
        assert_eq!(cache.used_bytes(), 0);
    }

    #[test]
    fn a_guard_keeps_an_evicted_block_readable() {
        let cache = Cache::new(0);
        let table = FrameTable::new(&cache);
        let guard = pin();
        let frame = table.insert(3, block(9, 4096), &guard);
        assert!(table.get(3, &guard).is_none(), "nothing fits a budget of nothing");
        assert_eq!(frame.bytes(), &[9u8; 4096][..]);
    }

    #[test]
    fn guards_may_lie_in_each_other() {
        let cache = Cache::new(0);
        let table = FrameTable::new(&cache);
        let outer = pin();
        let frame = table.insert(1, block(5, 4096), &outer);
        for index in 0..1000 {
            let inner = pin();
            table.insert(index % 7, block(6, 4096), &inner);
        }
        assert_eq!(frame.bytes(), &[5u8; 4096][..]);
    }

    /// A thread may read in the destructor of a thread-local, when its own record is gone.
    #[test]
    fn a_thread_that_is_torn_down_reads_too() {
        struct Last(Arc<FrameTable>);
        impl Drop for Last {
            fn drop(&mut self) {
                let guard = pin();
                let frame = self.0.insert(2, block(7, 100), &guard);
                assert_eq!(frame.bytes(), &[7u8; 100][..]);
            }
        }
        thread_local! {
            static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
        }
        let table = FrameTable::new(&Cache::new(1 << 20));
        let last = Last(table.clone());
        std::thread::spawn(move || {
            LAST.with(|place| *place.borrow_mut() = Some(last));
            drop(pin());
        })
        .join()
        .unwrap();
        assert_eq!(table.get(2, &pin()).unwrap().tag(), 7);
    }

    #[test]
    fn threads_that_read_replace_and_evict_see_whole_blocks() {
        let cache = Cache::new(40_000);
        let table = FrameTable::new(&cache);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000u64 {
                        let index = (round * 7 + thread * 13) % 97;
                        let guard = pin();
                        match table.get(index, &guard) {
                            Some(frame) => assert!(frame.bytes().iter().all(|b| *b == frame.tag() as u8)),
                            None => {
                                table.insert(index, block(round % 200, 512), &guard);
                            }
                        }
                    }
                });
            }
        });
        drop(table);
        assert_eq!(cache.used_bytes(), 0);
    }
}
