//! Cached archived pages, found by their ids.
//!
//! Owns: the way from an id to the places of the frame table where its page may be. Promises: what is found was cached
//! under that id; the memory of the table is in proportion to the cache's budget, whatever the ids are. May call:
//! cache.
//!
//! A set-associative table: an id leads to a set of [`WAYS`] neighbouring places. A page that finds its set full takes
//! the place of one there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::address::PageId;
use super::segment::Page;
use crate::cache::{Cache, Frame, FrameTable, Guard, NewFrame};
use crate::limits::PAGE_BYTES;

const WAYS: u64 = 4;
const SLOT_BYTES: usize = size_of::<u64>();

#[derive(Debug)]
pub(super) struct ArchivedFrames {
    table: Arc<FrameTable>,
    /// How many sets there are: a power of two.
    sets: u64,
    /// Which way of a full set is taken next.
    turn: AtomicU64,
}

impl ArchivedFrames {
    pub fn new(cache: &Arc<Cache>) -> ArchivedFrames {
        // Twice as many places as pages fit the budget: few sets are full.
        let pages = (cache.budget_bytes() / PAGE_BYTES) as u64;
        let sets = (2 * pages / WAYS).clamp(16, 1 << 24).next_power_of_two();
        ArchivedFrames { table: FrameTable::new(cache), sets, turn: AtomicU64::new(0) }
    }

    fn first_place(&self, id: PageId) -> u64 {
        // Multiplicative hashing (Knuth): the high bits depend on all of both numbers.
        let mixed = (id.slot ^ id.birth.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) & (self.sets - 1)) * WAYS
    }

    pub fn get<'g>(&self, id: PageId, guard: &'g Guard) -> Option<&'g Page> {
        let first = self.first_place(id);
        (first..first + WAYS).find_map(|place| {
            let frame = self.table.get(place, guard)?;
            page_of(frame, id)
        })
    }

    pub fn insert<'g>(&self, id: PageId, page: &Page, guard: &'g Guard) -> Option<&'g Page> {
        let mut frame = NewFrame::new(SLOT_BYTES + PAGE_BYTES, id.birth);
        frame[..SLOT_BYTES].copy_from_slice(&id.slot.to_le_bytes());
        frame[SLOT_BYTES..].copy_from_slice(page);
        let first = self.first_place(id);
        let free = (first..first + WAYS).find(|place| self.table.get(*place, guard).is_none());
        // Relaxed: any way will do.
        let place = free.unwrap_or_else(|| first + self.turn.fetch_add(1, Ordering::Relaxed) % WAYS);
        page_of(self.table.insert(place, frame, guard), id)
    }
}

/// The page in a frame, if it is this one. The tag is the birth; the slot stands before the page, where it is in the
/// processor's cache with the page's head.
fn page_of(frame: Frame<'_>, id: PageId) -> Option<&Page> {
    let (slot, page) = frame.bytes().split_first_chunk::<SLOT_BYTES>()?;
    let page = page.try_into().ok()?;
    (frame.tag() == id.birth && *slot == id.slot.to_le_bytes()).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache;

    #[test]
    fn a_page_is_found_under_its_own_id_only() {
        let cache = Cache::new(1 << 20);
        let frames = ArchivedFrames::new(&cache);
        let guard = cache::pin();
        // So many that all sets are full.
        let ids: Vec<PageId> = (0..2000).map(|n| PageId { birth: n % 7 + 1, slot: n * 977 }).collect();
        for id in &ids {
            let page = [id.slot as u8; PAGE_BYTES];
            assert_eq!(frames.insert(*id, &page, &guard), Some(&page));
        }
        let mut found = 0;
        for id in &ids {
            if let Some(page) = frames.get(*id, &guard) {
                assert_eq!(page, &[id.slot as u8; PAGE_BYTES]);
                found += 1;
            }
            assert!(frames.get(PageId { birth: id.birth + 7, slot: id.slot }, &guard).is_none());
        }
        assert!(found > 100, "{found}");
        assert!(cache.used_bytes() <= cache.budget_bytes());
    }
}
