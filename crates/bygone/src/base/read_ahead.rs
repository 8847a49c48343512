//! Reading leaves for a merge.
//!
//! Owns: a stretch of the file read at once. Promises: what a merge reads does not enter the cache, and what
//! is there is not read again. May call: the page store.

use crate::error::Result;
use crate::limits::PAGE_BYTES;

use super::page::Page;
use super::pointer::PagePointer;
use super::store::PageStore;

#[derive(Default)]
pub(super) struct ReadAhead {
    first_slot: u64,
    bytes: Vec<u8>,
}

impl ReadAhead {
    pub const PAGES_MAX: u64 = 32;

    /// Reads a page into `out`, and with it the `ahead` pages behind it in the file; whether it was cached.
    pub fn read(
        &mut self,
        store: &PageStore,
        pointer: &PagePointer,
        ahead: u64,
        out: &mut Page,
    ) -> Result<bool> {
        if store.copy_cached(pointer, out) {
            return Ok(true);
        }
        if ahead == 0 && self.stretch(pointer.slot).is_none() {
            store.read_uncached(pointer, out)?;
            return Ok(false);
        }
        if self.stretch(pointer.slot).is_none() {
            self.bytes.clear();
            let pages = (ahead + 1).min(Self::PAGES_MAX);
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.resize(pages as usize * PAGE_BYTES, 0);
            // Kept only if it was read whole.
            store.read_raw(pointer, &mut bytes)?;
            (self.first_slot, self.bytes) = (pointer.slot, bytes);
        }
        if let Some(page) = self.stretch(pointer.slot) {
            out.copy_from_slice(page);
        }
        store.check(out, pointer)?;
        Ok(false)
    }

    fn stretch(&self, slot: u64) -> Option<&[u8]> {
        let page = slot.checked_sub(self.first_slot)?;
        if page >= (self.bytes.len() / PAGE_BYTES) as u64 {
            return None;
        }
        self.bytes.get(page as usize * PAGE_BYTES..)?.get(..PAGE_BYTES)
    }
}
