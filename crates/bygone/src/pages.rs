//! Large pieces of memory, in huge pages where the system has them.
//!
//! Owns: such a piece. Promises: memory at a multiple of [`ALIGNMENT_BYTES`], from the program's own allocator,
//! that stays in place. May call: the allocator, and `madvise`.
//!
//! Memtables and cached pages are hit all over: with pages of 4 KiB, most look-ups miss the processor's table of
//! pages as well as its caches. Huge pages (2 MiB) end that, and take a quarter of the time at their first touch, and a tenth
//! when they are given back. Linux gives them to who asks; where it has none to give, or on other systems,
//! ordinary pages come.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// Enough for all that is put there.
pub(crate) const ALIGNMENT_BYTES: usize = 16;
/// No system has smaller pages.
const PAGE_BYTES: usize = 4096;
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

pub(crate) struct Pages {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, which nothing here reads.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `bytes` bytes, not initialised; `None` if it is zero, or if the system refuses.
    pub fn new(bytes: usize) -> Option<Pages> {
        let alignment = if bytes < HUGE_PAGE_BYTES { ALIGNMENT_BYTES } else { HUGE_PAGE_BYTES };
        let layout = Layout::from_size_align(bytes, alignment).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc(layout) })?;
        Some(Pages { memory, layout })
    }

    pub fn start(&self) -> NonNull<u8> {
        self.memory
    }

    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Asks for huge pages, for memory that will soon be used as a whole. Where pages are there already,
    /// they stay.
    pub fn prefer_huge(&self) {
        let whole = self.bytes() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if whole > 0 {
            advise_huge_pages(self.memory, whole);
        }
    }

    /// Makes the system provide the pages from an offset on, whose contents are lost.
    ///
    /// # Safety
    /// Nobody else may use the memory from there on meanwhile.
    pub unsafe fn touch(&self, from: usize) {
        self.prefer_huge();
        for offset in (from..self.bytes()).step_by(PAGE_BYTES) {
            // SAFETY: inside the piece, and unused by the contract. Volatile, or the compiler may leave out what
            // nobody reads.
            unsafe { self.memory.add(offset).write_volatile(0) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: made with this layout in `new`.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// For whole huge pages.
#[cfg(target_os = "linux")]
fn advise_huge_pages(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: advice on memory of the caller's own, which changes no contents. A system that has no huge
    // pages refuses, and nothing happens.
    unsafe { libc::madvise(memory.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: NonNull<u8>, _: usize) {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_sizes_are_there_to_their_last_byte() {
        assert!(Pages::new(0).is_none());
        for bytes in [1, 4096, 10_000, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5] {
            let pages = Pages::new(bytes).unwrap();
            assert_eq!(pages.bytes(), bytes);
            assert!(pages.start().addr().get().is_multiple_of(ALIGNMENT_BYTES));
            // SAFETY: the piece is so large.
            unsafe { pages.start().write_bytes(7, bytes) };
            // SAFETY: this is the only thread that has it.
            unsafe { pages.touch(bytes / 2) };
            // SAFETY: written above.
            let kept = unsafe { std::slice::from_raw_parts(pages.start().as_ptr(), bytes) };
            assert!(kept[..bytes / 2].iter().all(|byte| *byte == 7));
            assert!(kept[bytes / 2 + 1..].iter().all(|byte| [0, 7].contains(byte)));
        }
    }
}
