//! Memory for the frames of pages.
//!
//! Owns: slots of one size in huge pages. Promises: a slot begins on a cache line, and is nobody else's until it is
//! given back; what is free of it altogether goes back to the program's allocator, but for one piece. May call:
//! `pages`.
//!
//! A cache of a gigabyte is hit all over: in pages of 4 KiB nearly each look-up waits for the processor's table of
//! pages, too, which took a fifth of its time. The first frames come from the program's allocator all the same: a
//! small database needs no huge page.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::frame::DATA_OFFSET;
use crate::limits::PAGE_BYTES;
use crate::pages::{HUGE_PAGE_BYTES, Pages};

const LINE_BYTES: usize = 64;
/// Frames of other lengths lie elsewhere.
pub(super) const SLOT_BYTES: usize = (DATA_OFFSET + PAGE_BYTES).next_multiple_of(LINE_BYTES);
const SLOTS: usize = HUGE_PAGE_BYTES / SLOT_BYTES;

/// So many frames lie elsewhere before there are slots.
const ELSEWHERE_MAX: usize = 256;

/// Of all databases of the process.
pub(super) static SLABS: Slabs = Slabs { state: Mutex::new(State::new()) };

pub(super) struct Slabs {
    state: Mutex<State>,
}

struct State {
    /// Frames that could not have a slot, or needed none.
    elsewhere: usize,
    /// By their address, which is a multiple of a huge page's size.
    slabs: BTreeMap<usize, Slab>,
    /// Those that have free slots. The lowest is filled first, so that others become free altogether.
    open: BTreeSet<usize>,
}

/// One huge page, cut into slots.
struct Slab {
    memory: Pages,
    free: Vec<u16>,
}

impl Slabs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot, not initialised. `None` if the frame is to lie elsewhere, which is counted.
    pub fn take(&self) -> Option<NonNull<u8>> {
        let mut state = self.lock();
        if state.elsewhere < ELSEWHERE_MAX || !state.has_open() {
            state.elsewhere += 1;
            return None;
        }
        state.take()
    }

    /// A frame that got no slot is gone.
    pub fn forget(&self) {
        self.lock().elsewhere -= 1;
    }

    /// Takes a slot back.
    ///
    /// # Safety
    /// It came from [`Slabs::take`], and nobody uses it any more.
    pub unsafe fn give_back(&self, slot: NonNull<u8>) {
        // Freed when the lock is given back.
        let _unused = self.lock().give_back(slot);
    }
}

impl State {
    const fn new() -> State {
        State { elsewhere: 0, slabs: BTreeMap::new(), open: BTreeSet::new() }
    }

    /// Whether there is a free slot; there is none only if the system gives no memory.
    fn has_open(&mut self) -> bool {
        if !self.open.is_empty() {
            return true;
        }
        let Some(memory) = Pages::new(HUGE_PAGE_BYTES) else { return false };
        memory.prefer_huge();
        let address = memory.start().addr().get();
        self.slabs.insert(address, Slab { memory, free: (0..SLOTS as u16).rev().collect() });
        self.open.insert(address);
        true
    }

    fn take(&mut self) -> Option<NonNull<u8>> {
        let address = *self.open.first()?;
        let slab = self.slabs.get_mut(&address)?;
        let index = slab.free.pop()?;
        if slab.free.is_empty() {
            self.open.remove(&address);
        }
        // SAFETY: slots lie within the piece.
        Some(unsafe { slab.memory.start().add(usize::from(index) * SLOT_BYTES) })
    }

    /// Answers what is free altogether, if there is more that is free.
    fn give_back(&mut self, slot: NonNull<u8>) -> Option<Slab> {
        let offset = slot.addr().get() % HUGE_PAGE_BYTES;
        let address = slot.addr().get() - offset;
        let slab = self.slabs.get_mut(&address)?;
        slab.free.push((offset / SLOT_BYTES) as u16);
        let all_free = slab.free.len() == SLOTS;
        self.open.insert(address);
        if all_free && self.open.len() > 1 {
            self.open.remove(&address);
            return self.slabs.remove(&address);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_disjoint_and_what_is_free_goes_back() {
        let mut state = State::new();
        let count = SLOTS * 2 + 7;
        let mut slots = Vec::new();
        for n in 0..count {
            assert!(state.has_open());
            let slot = state.take().unwrap();
            assert!(slot.addr().get().is_multiple_of(LINE_BYTES));
            // SAFETY: a slot has so many bytes.
            unsafe { slot.write_bytes(n as u8, SLOT_BYTES) };
            slots.push(slot);
        }
        assert_eq!((state.slabs.len(), state.open.len()), (3, 1));
        for (n, slot) in slots.iter().enumerate() {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(slot.as_ptr(), SLOT_BYTES) };
            assert!(bytes.iter().all(|byte| *byte == n as u8));
        }
        let freed = slots.drain(..).filter(|slot| state.give_back(*slot).is_some()).count();
        assert_eq!((freed, state.slabs.len(), state.open.len()), (2, 1, 1), "one stays");
        assert!(state.has_open() && state.take().is_some() && state.slabs.len() == 1);
    }

    #[test]
    fn the_lowest_is_filled_first() {
        let mut state = State::new();
        let slots: Vec<_> =
            (0..SLOTS * 2).map(|_| state.has_open().then(|| state.take().unwrap()).unwrap()).collect();
        let lowest = *slots.iter().min().unwrap();
        let highest = *slots.iter().max().unwrap();
        for slot in [highest, lowest] {
            assert!(state.give_back(slot).is_none());
        }
        assert_eq!(state.take(), Some(lowest));
        assert_eq!(state.take(), Some(highest));
    }

    #[test]
    fn the_first_frames_lie_elsewhere() {
        let slabs = Slabs { state: Mutex::new(State::new()) };
        assert!((0..ELSEWHERE_MAX).all(|_| slabs.take().is_none()));
        let slot = slabs.take().unwrap();
        slabs.forget();
        assert!(slabs.take().is_none());
        // SAFETY: it was taken above.
        unsafe { slabs.give_back(slot) };
        assert_eq!(slabs.take(), Some(slot));
    }
}
