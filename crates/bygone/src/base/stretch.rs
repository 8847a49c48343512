//! Reading more than the page that was missed, with one call.
//!
//! Owns: which neighbours in the file are read with a page. Promises: who reads here and there reads nothing but what
//! he asks for, and the leaves of large values; a page that was read along enters the cache only if it is the very page
//! its pointer means, and damage in it is an error for who asks for it, and for nobody else. May call: the page store,
//! `cache`.
//!
//! That somebody reads one page after the other is told by the cache: right before the page in the file lie others
//! that were read. As many as these are read ahead. So it takes no state that threads would share, and reads that go
//! through several places in turn do not disturb each other.
//!
//! Who asks for an archived page goes the way that leads there. If one is named among the neighbours, there may be
//! another in its slot, which its pointer does not accept.

use super::inner::Inner;
use super::page::Page;
use super::pointer::{PagePointer, TableRoot};
use super::store::PageStore;
use crate::cache::{Guard, NewFrame};
use crate::error::Result;
use crate::limits::PAGE_BYTES;

/// How many pages are read at once at most.
const PAGES_MAX: usize = 32;

/// So many pages in a row must have been read before more is read than was asked for.
const ROW_MIN: usize = 4;

/// In a table where the pages of large values are so many times as many as all others, leaves are read together.
const FEW_LEAVES: u64 = 16;

impl TableRoot {
    /// Whether leaves are so small a part of the table that reading many for one costs nothing: each leads to a
    /// hundred pages.
    fn has_few_leaves(&self) -> bool {
        let others = self.pages.saturating_sub(self.overflow_pages);
        self.overflow_pages > 0 && self.overflow_pages >= others.saturating_mul(FEW_LEAVES)
    }
}

impl PageStore {
    /// A page that is not cached, and behind which these follow: the first `sure` of them will be asked for.
    #[cold]
    pub(super) fn load_before<'g>(
        &self,
        pointer: &PagePointer,
        sure: usize,
        following: &mut dyn Iterator<Item = PagePointer>,
        guard: &'g Guard,
    ) -> Result<&'g Page> {
        if let Some(page) = self.load_elsewhere(pointer, guard) {
            return page;
        }
        let ahead = self.ahead_of(pointer).max(sure).min(PAGES_MAX - 1);
        let mut stretch = [*pointer; PAGES_MAX];
        let mut count = 1;
        for (next, place) in following.take(ahead).zip(&mut stretch[1..]) {
            if next.slot != pointer.slot + count as u64 || self.is_cached(&next) {
                break;
            }
            *place = next;
            count += 1;
        }
        match self.load_stretch(&stretch[..count], 0, guard) {
            Some(page) => Ok(page),
            None => self.load(pointer, guard),
        }
    }

    /// A leaf that is not cached: child `i` of this page. `onwards` says that its neighbours may be next.
    #[cold]
    pub(super) fn load_leaf<'g>(
        &self,
        root: &TableRoot,
        inner: &Inner<'_>,
        i: usize,
        onwards: bool,
        guard: &'g Guard,
    ) -> Result<&'g Page> {
        let leaf = inner.child(i);
        if !root.has_few_leaves() {
            let ahead = if onwards { inner.children() } else { 0 };
            let mut following = (i + 1..ahead).map(|next| inner.child(next));
            return self.load_before(&leaf, 0, &mut following, guard);
        }
        if let Some(page) = self.load_elsewhere(&leaf, guard) {
            return page;
        }
        let belongs = |other: usize| {
            let pointer = inner.child(other);
            let is_neighbour = pointer.slot.wrapping_sub(other as u64) == leaf.slot.wrapping_sub(i as u64);
            (is_neighbour && !self.is_cached(&pointer)).then_some(pointer)
        };
        let block = i - i % PAGES_MAX;
        let first = (block..i).rev().take_while(|other| belongs(*other).is_some()).last().unwrap_or(i);
        let end = inner.children().min(block + PAGES_MAX);
        let mut stretch = [leaf; PAGES_MAX];
        let mut count = 0;
        for (pointer, place) in (first..end).map_while(belongs).zip(&mut stretch) {
            *place = pointer;
            count += 1;
        }
        match self.load_stretch(&stretch[..count], i - first, guard) {
            Some(page) => Ok(page),
            None => self.load(&leaf, guard),
        }
    }

    /// A page that may lie somewhere else than in its slot, where its neighbours would say nothing.
    fn load_elsewhere<'g>(&self, pointer: &PagePointer, guard: &'g Guard) -> Option<Result<&'g Page>> {
        let archive = self.archive()?;
        if let Some(page) = archive.cached(pointer.id(), guard) {
            return Some(Ok(page));
        }
        (!matches!(archive.contains(pointer.id()), Ok(false))).then(|| self.load(pointer, guard))
    }

    /// How many pages are to be read behind this one, for how many lie cached right before it.
    fn ahead_of(&self, pointer: &PagePointer) -> usize {
        let row = self.frames.row_before(pointer.slot, PAGES_MAX);
        if row < ROW_MIN { 0 } else { row - 1 }
    }

    /// Reads pages in neighbouring slots into the cache, as far as they are there; answers the one that is `wanted`.
    /// None if there is but one, or if it is for others to say why it cannot be read.
    fn load_stretch<'g>(&self, stretch: &[PagePointer], wanted: usize, guard: &'g Guard) -> Option<&'g Page> {
        let (first, last) = (stretch.first()?, stretch.last()?);
        if stretch.len() == 1 || !self.is_in_file(last) {
            return None;
        }
        let mut bytes = vec![0; stretch.len() * PAGE_BYTES];
        self.read_raw(first, &mut bytes).ok()?;
        let mut found = None;
        for (i, (page, pointer)) in bytes.as_chunks::<PAGE_BYTES>().0.iter().zip(stretch).enumerate() {
            if self.check(page, pointer).is_err() {
                continue;
            }
            let frame = self.frames.insert(pointer.slot, NewFrame::of(page, pointer.birth), guard);
            if i == wanted {
                found = frame.bytes().first_chunk();
            }
        }
        found
    }
}
