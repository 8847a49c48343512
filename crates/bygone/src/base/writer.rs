//! The pages that a rebuild writes and the ones it supersedes.
//!
//! Owns: the write buffer and the accounts of one rebuild. Promises: pages in neighbouring slots go out in
//! one write of up to 1 MiB; dropped before it was published, it gives back every slot and leaves nothing of
//! them in the cache. May call: the page store.

use std::sync::Arc;

use crate::cache::{self, NewFrame};
use crate::error::Result;
use crate::limits::PAGE_BYTES;

use super::live::DeadPage;
use super::page::{Head, Page};
use super::pointer::PagePointer;
use super::store::PageStore;

const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct PageWriter {
    pub store: Arc<PageStore>,
    pub generation: u64,
    /// Pages not yet written, for the slots from `buffer_slot` on.
    buffer: Vec<u8>,
    buffer_slot: u64,
    /// Every slot taken for this rebuild.
    pub taken: Vec<u64>,
    /// Superseded pages of earlier generations.
    pub dead: Vec<DeadPage>,
    /// Pages that this rebuild wrote and superseded itself. Their slots are not used again before it ends,
    /// because the cache could not tell the two contents apart.
    pub own_dead: Vec<u64>,
    /// How many pages were written so far.
    pub written: u64,
    /// Whether the slots may be given back: not once a superblock that leads to them may be on disk.
    pub published: bool,
}

impl PageWriter {
    pub fn new(store: Arc<PageStore>, generation: u64) -> PageWriter {
        PageWriter {
            store,
            generation,
            buffer: Vec::new(),
            buffer_slot: 0,
            taken: Vec::new(),
            dead: Vec::new(),
            own_dead: Vec::new(),
            written: 0,
            published: false,
        }
    }

    /// Writes a page, whose payload `fill` makes in zeroed bytes, to a new slot; `cached` also puts it in the
    /// cache.
    pub fn write(&mut self, head: Head, cached: bool, fill: impl FnOnce(&mut Page)) -> Result<PagePointer> {
        let slot = self.store.take_slot()?;
        self.taken.push(slot);
        self.write_at(slot, head, cached, fill)
    }

    /// The same with a slot that was taken before.
    pub fn write_at(
        &mut self,
        slot: u64,
        head: Head,
        cached: bool,
        fill: impl FnOnce(&mut Page),
    ) -> Result<PagePointer> {
        let pages = (self.buffer.len() / PAGE_BYTES) as u64;
        if self.buffer.len() >= BUFFER_BYTES || (pages > 0 && self.buffer_slot + pages != slot) {
            self.flush()?;
        }
        if self.buffer.is_empty() {
            self.buffer_slot = slot;
        }
        let mut page = [0; PAGE_BYTES];
        head.write(&mut page, slot, self.generation);
        fill(&mut page);
        self.buffer.extend_from_slice(&page);
        self.written += 1;
        if cached {
            let frame = NewFrame::of(&page, self.generation);
            self.store.frames.insert(slot, frame, &cache::pin());
        }
        Ok(PagePointer { slot, birth: self.generation, checksum: crc32c::crc32c(&page) })
    }

    /// Hands everything to the operating system.
    pub fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.store.file.write_at(&self.buffer, self.buffer_slot * PAGE_BYTES as u64)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Notes that the new base does not have this page.
    pub fn supersede(&mut self, pointer: &PagePointer) {
        if pointer.birth == self.generation {
            self.own_dead.push(pointer.slot);
        } else {
            self.dead.push(*pointer);
        }
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        if !self.published {
            self.store.give_back(std::mem::take(&mut self.taken));
        }
    }
}
