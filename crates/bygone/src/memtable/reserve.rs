//! The memory that a memtable expects to use, asked for in one piece ahead of time.
//!
//! Owns: that piece. Promises: handing out is one exchange and never waits; what is handed out stays in place
//! until the reserve is dropped. May call: `pages`.
//!
//! The system provides memory page by page at the first store to each, and that costs more than inserting the
//! records that fill a page. [`Reserve::touch`] pays this ahead; untouched, the reserve is address space and
//! nothing more.

use std::ptr::NonNull;

use crate::pages::{self, Pages};
use crate::sync::atomic::{AtomicUsize, Ordering};

pub(super) const ALIGNMENT_BYTES: usize = pages::ALIGNMENT_BYTES;

pub(super) struct Reserve {
    pages: Option<Pages>,
    given_bytes: AtomicUsize,
}

impl Reserve {
    /// About `bytes` bytes, or nothing if the system refuses: users of a reserve can do without.
    pub fn new(bytes: usize) -> Reserve {
        let pages = Pages::new(bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES);
        if let Some(pages) = &pages {
            super::entry::assert_taggable(pages.start().addr().get() + pages.bytes());
            // Also for who is not touched ahead: the first memtable of an open database.
            pages.prefer_huge();
        }
        Reserve { pages, given_bytes: AtomicUsize::new(0) }
    }

    /// Memory that nobody else has, not initialised, at a multiple of [`ALIGNMENT_BYTES`], which `bytes` must
    /// be too; `None` when there is not so much left.
    pub fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        debug_assert!(bytes.is_multiple_of(ALIGNMENT_BYTES));
        let pages = self.pages.as_ref()?;
        // Relaxed, here and below: the exchange alone makes ranges disjoint; the memory was there before the
        // reserve was shared.
        let mut given = self.given_bytes.load(Ordering::Relaxed);
        loop {
            if bytes > pages.bytes() - given {
                return None;
            }
            let taken = self.given_bytes.compare_exchange_weak(
                given,
                given + bytes,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match taken {
                // SAFETY: `given + bytes` does not exceed the size.
                Ok(_) => return Some(unsafe { pages.start().add(given) }),
                Err(changed) => given = changed,
            }
        }
    }

    #[cfg(all(test, not(loom)))]
    pub fn given_bytes(&self) -> usize {
        self.given_bytes.load(Ordering::Relaxed)
    }

    /// What is not handed out yet.
    pub fn left_bytes(&self) -> usize {
        self.pages.as_ref().map_or(0, Pages::bytes) - self.given_bytes.load(Ordering::Relaxed)
    }

    /// Makes the system provide all pages that are not handed out yet. Meanwhile nothing is.
    pub fn touch(&self) {
        let Some(pages) = &self.pages else { return };
        let given = self.given_bytes.swap(pages.bytes(), Ordering::Relaxed);
        // SAFETY: what is from there on is taken, by the line above, and given back by the one below.
        unsafe { pages.touch(given) };
        self.given_bytes.store(given, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_is_disjoint_and_ends_with_the_reserve() {
        let reserve = Reserve::new(10_007);
        reserve.touch();
        let mut taken = Vec::new();
        while let Some(memory) = reserve.take(1600) {
            assert!(memory.addr().get().is_multiple_of(ALIGNMENT_BYTES));
            // SAFETY: 1600 bytes were handed out there.
            unsafe { memory.write_bytes(taken.len() as u8, 1600) };
            taken.push(memory);
        }
        assert_eq!(taken.len(), 6);
        reserve.touch();
        for (n, memory) in taken.iter().enumerate() {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), 1600) };
            assert!(bytes.iter().all(|byte| *byte == n as u8));
        }
        assert!(reserve.take(400).is_some(), "10,000 bytes less 9,600 are left");
        assert!(reserve.take(16).is_none());
        assert!(Reserve::new(0).take(16).is_none());
    }
}
