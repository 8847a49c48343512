//! Pages that are not in their slots any more.
//!
//! Owns: the way from a pointer to a page that was archived, and the moving of pages which only open views need.
//! Promises: a pointer leads to its page for as long as anybody has a right to follow it, wherever the page is; a slot
//! is given back only when its page is found in the archive; without an archive nothing here does anything. May call:
//! the page store, archive.
//!
//! The present's pages are never archived, so a page of the present is found in its slot. Who misses the cache asks the
//! archive first, because a slot that was used again says nothing. A page may be archived, and its slot be used again,
//! between the two looks: then what is found in the slot is not the page, and the archive is asked once more.

use std::sync::Arc;

use super::live::{Dead, DeadPage};
use super::page::Page;
use super::pointer::PagePointer;
use super::store::PageStore;
use crate::archive::{Archive, PageId};
use crate::error::{Error, Result};
use crate::limits::PAGE_BYTES;

/// Where a page was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    File,
    Archive,
}

impl PagePointer {
    pub fn id(&self) -> PageId {
        PageId { birth: self.birth, slot: self.slot }
    }
}

impl PageStore {
    /// From now on pages may be in this archive. Set once, before anything of the past is read.
    pub fn set_archive(&self, archive: Arc<Archive>) {
        // A second one would be a bug that tests find; nothing is done about it.
        let _ = self.archive.set(archive);
    }

    pub fn archive(&self) -> Option<&Arc<Archive>> {
        self.archive.get()
    }

    /// Whether a page was archived; `false` where there is no archive.
    pub fn is_archived(&self, pointer: &PagePointer) -> Result<bool> {
        self.archive().map_or(Ok(false), |archive| archive.contains(pointer.id()))
    }

    /// Reads a page past the cache.
    pub(super) fn read_uncached(&self, pointer: &PagePointer, page: &mut Page) -> Result<Source> {
        let Some(archive) = self.archive() else {
            self.read_slot(pointer, page)?;
            return Ok(Source::File);
        };
        // What is wrong with the archive does not matter while the page is in its slot.
        if self.read_archived(archive, pointer, page) == Some(()) {
            return Ok(Source::Archive);
        }
        let Err(error) = self.read_slot(pointer, page) else { return Ok(Source::File) };
        if !archive.read(pointer.id(), page)? {
            return Err(error);
        }
        self.check(page, pointer)?;
        Ok(Source::Archive)
    }

    fn read_archived(&self, archive: &Archive, pointer: &PagePointer, page: &mut Page) -> Option<()> {
        let found = archive.read(pointer.id(), page).ok()?;
        (found && self.check(page, pointer).is_ok()).then_some(())
    }

    /// Reads a page from its slot, past the cache.
    pub(super) fn read_slot(&self, pointer: &PagePointer, page: &mut Page) -> Result<()> {
        self.read_raw(pointer, page)?;
        self.check(page, pointer)
    }

    /// Checks the archive's copy of a page, if it has one: that the page may also be in its slot still says nothing.
    pub(super) fn check_archived(&self, pointer: &PagePointer) -> Result<()> {
        let Some(archive) = self.archive() else { return Ok(()) };
        let mut page = [0; PAGE_BYTES];
        if archive.read(pointer.id(), &mut page)? { self.check(&page, pointer) } else { Ok(()) }
    }

    /// Copies a page that is still in its slot, to be archived.
    pub fn copy_for_archive(&self, pointer: &PagePointer, page: &mut [u8; PAGE_BYTES]) -> Result<()> {
        if self.copy_cached(pointer, page) { Ok(()) } else { self.read_slot(pointer, page) }
    }

    /// The pages that key frames keep and that were superseded since this was last asked.
    pub fn take_newly_kept(&self) -> Vec<DeadPage> {
        std::mem::take(&mut *self.newly_kept())
    }

    /// Whether there are such.
    pub fn has_newly_kept(&self) -> bool {
        !self.newly_kept().is_empty()
    }

    /// How many pages are kept in their slots only because open views need them.
    pub fn kept_for_views(&self) -> u64 {
        self.collect();
        self.live().kept()
    }

    /// Moves up to `limit` pages that only open views need to the archive, the longest kept first, and makes their
    /// slots free; answers how many. If the archive cannot take them, they stay where they are.
    pub fn relieve(&self, limit: usize) -> Result<usize> {
        let Some(archive) = self.archive() else { return Ok(0) };
        if self.is_leased() {
            // What other processes read, they look for in its slot.
            return Ok(0);
        }
        self.collect();
        let taken = self.live().take_kept(limit);
        let mut copies: Vec<(DeadPage, Box<Page>)> = Vec::new();
        let mut failure = None;
        for (_, pointer) in &taken {
            let mut page = Box::new([0; PAGE_BYTES]);
            match self.copy_for_archive(pointer, &mut page) {
                Ok(()) => copies.push((*pointer, page)),
                Err(error) => failure = Some(error),
            }
        }
        let put = archive
            .put_for_views(copies.iter().map(|(pointer, page)| (pointer.id(), pointer.checksum, &**page)));
        let moved = match put {
            Ok(()) => copies.iter().map(|(pointer, _)| pointer.slot).collect(),
            Err(error) => {
                failure = Some(error);
                Vec::new()
            }
        };
        drop(copies);
        let count = moved.len();
        self.return_taken(taken, moved);
        match failure {
            Some(error) if count == 0 => Err(error),
            _ => Ok(count),
        }
    }

    /// Puts pages on the lists again that were taken off them; `moved` are the slots of those that are in the archive
    /// now, which become free.
    fn return_taken(&self, taken: Vec<(u64, DeadPage)>, mut moved: Vec<u64>) {
        moved.sort_unstable();
        let mut free = Dead::default();
        {
            let mut space = self.space();
            let mut live = self.live();
            for pages in taken.chunk_by(|(one, _), (other, _)| one == other) {
                let is_moved = |page: &DeadPage| moved.binary_search(&page.slot).is_ok();
                let pages_of = pages.iter().map(|(_, page)| *page);
                let (archived, in_file) = pages_of.partition(is_moved);
                live.bury(pages[0].0 + 1, Dead { in_file, archived }, &mut free);
            }
            moved.extend(free.in_file.iter().map(|page| page.slot));
            self.forget(&moved);
            space.release(moved);
        }
        self.forget_archived(&free.archived);
    }

    /// Lets archived pages go that nobody needs any more. Called without the locks of space and live generations.
    pub(super) fn forget_archived(&self, pages: &[DeadPage]) {
        if let Some(archive) = self.archive() {
            archive.forget(pages.iter().map(PagePointer::id));
        }
    }

    /// Reads pages one by one where a stretch of the file does not hold them all.
    pub(super) fn read_each(
        &self,
        pointers: &[PagePointer],
        visit: &mut dyn FnMut(&Page, &PagePointer) -> Result<()>,
    ) -> Result<()> {
        let mut page = [0; PAGE_BYTES];
        for pointer in pointers {
            self.read_uncached(pointer, &mut page)?;
            visit(&page, pointer)?;
        }
        Ok(())
    }

    /// Whether what was read of a slot is for the archive to say: there is one, and the page is damaged or elsewhere.
    pub(super) fn may_be_archived(&self, error: &Error) -> bool {
        self.archive().is_some() && matches!(error, Error::Corruption { .. })
    }
}
