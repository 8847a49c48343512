//! A cached block in memory: header and bytes in one allocation.
//!
//! Owns: the allocation. Promises: a frame's bytes do not change once it is shared, and it is freed only
//! after every guard that could have seen it is gone. May call: the allocator, `slabs`, registry.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guard::{ERAS, Guard};
use super::slabs::{SLABS, SLOT_BYTES};
use crate::limits::PAGE_BYTES;
use crate::registry::Dead;

/// The bytes begin this far into the allocation, which begins on a cache line: so the header of a page, 32
/// bytes too, shares the line that a look-up touches anyway, and what follows it begins on the next.
pub(super) const DATA_OFFSET: usize = 32;
const _: () = assert!(size_of::<Header>() <= DATA_OFFSET);

/// What stands at the head of an allocation; the block's bytes follow at [`DATA_OFFSET`].
pub(super) struct Header {
    tag: u64,
    len: usize,
    /// The era in which the frame was made.
    birth: u64,
    referenced: AtomicBool,
    /// Whether the memory is a slot of [`SLABS`].
    slot: bool,
}

impl Header {
    /// What the frame takes of the budget.
    fn allocated_bytes(&self) -> usize {
        if self.slot { SLOT_BYTES } else { layout(self.len).size() }
    }
}

/// A cached block, readable while the guard lives under which it was found.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'g> {
    header: NonNull<Header>,
    guard: PhantomData<&'g Guard>,
}

impl<'g> Frame<'g> {
    /// # Safety
    /// `header` must come from [`NewFrame::into_raw`], and have been found under `guard`.
    #[inline]
    pub(super) unsafe fn from_raw(header: NonNull<Header>, _guard: &'g Guard) -> Frame<'g> {
        Frame { header, guard: PhantomData }
    }

    #[inline]
    fn header(self) -> &'g Header {
        // SAFETY: live for `'g` by the contract of `from_raw`.
        unsafe { self.header.as_ref() }
    }

    /// What the caller stored with the block: the birth of a page, so that another content of its slot is
    /// noticed.
    #[inline]
    pub fn tag(self) -> u64 {
        self.header().tag
    }

    #[inline]
    pub fn bytes(self) -> &'g [u8] {
        // SAFETY: `NewFrame::filled` allocated and initialised `len` bytes there, and nobody writes to them once
        // the frame is shared.
        unsafe {
            let data = self.header.as_ptr().cast::<u8>().add(DATA_OFFSET);
            std::slice::from_raw_parts(data, self.header().len)
        }
    }

    /// Notes a use. Written only when it is not set, so that readers of a hot block do not fight for its
    /// line.
    #[inline]
    pub(super) fn set_reference(self) {
        // Relaxed: a hint for eviction; it orders nothing.
        let referenced = &self.header().referenced;
        if !referenced.load(Ordering::Relaxed) {
            referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last call.
    pub(super) fn take_reference(self) -> bool {
        // Relaxed: as in `set_reference`.
        self.header().referenced.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("tag", &self.tag()).field("len", &self.bytes().len()).finish()
    }
}

/// A frame that nobody can find any more.
pub(super) struct DeadFrame(NonNull<Header>);

// SAFETY: it is nothing but memory, and freeing it needs no certain thread.
unsafe impl Send for DeadFrame {}

impl DeadFrame {
    /// # Safety
    /// `header` must come from [`NewFrame::into_raw`], must have been made unreachable before, and dies only
    /// once.
    pub(super) unsafe fn new(header: NonNull<Header>) -> DeadFrame {
        DeadFrame(header)
    }

    /// How many bytes its end will free.
    pub(super) fn bytes(&self) -> usize {
        // SAFETY: it lives until `free`.
        unsafe { self.0.as_ref() }.allocated_bytes()
    }
}

impl Dead for DeadFrame {
    fn birth(&self) -> u64 {
        // SAFETY: it lives until `free`.
        unsafe { self.0.as_ref() }.birth
    }

    fn free(self) {
        // SAFETY: nobody reads it any more, and it came from `NewFrame::new`.
        unsafe { free(self.0) }
    }
}

/// # Safety
/// It must come from [`NewFrame::new`], and not be used any more.
unsafe fn free(frame: NonNull<Header>) {
    // SAFETY: by the contract.
    let &Header { len, slot, .. } = unsafe { frame.as_ref() };
    if slot {
        // SAFETY: `new` took it there.
        return unsafe { SLABS.give_back(frame.cast()) };
    }
    // SAFETY: `new` allocated it with this layout.
    unsafe { dealloc(frame.as_ptr().cast(), layout(len)) };
    if len == PAGE_BYTES {
        SLABS.forget();
    }
}

fn layout(len: usize) -> Layout {
    // Blocks are at most some MiB, so neither addition nor rounding can overflow; an absurd length ends here,
    // not in memory.
    Layout::from_size_align(DATA_OFFSET + len, 64).expect("a block's length is bounded")
}

/// A frame that is still being filled, by its only owner.
pub(crate) struct NewFrame {
    frame: NonNull<Header>,
}

// SAFETY: it is the only owner of its allocation, like a `Box<[u8]>`.
unsafe impl Send for NewFrame {}

impl NewFrame {
    /// A frame of `len` zero bytes.
    pub fn new(len: usize, tag: u64) -> NewFrame {
        // SAFETY: there is room for so many bytes.
        unsafe { NewFrame::filled(len, tag, |data| data.write_bytes(0, len)) }
    }

    /// A frame of these bytes.
    pub fn of(bytes: &[u8], tag: u64) -> NewFrame {
        // SAFETY: there is room for so many bytes, in memory that is not theirs.
        unsafe {
            NewFrame::filled(bytes.len(), tag, |data| {
                data.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            })
        }
    }

    /// # Safety
    /// `fill` must initialise `len` bytes from where it is told, for which there is room, and must not panic.
    unsafe fn filled(len: usize, tag: u64, fill: impl FnOnce(NonNull<u8>)) -> NewFrame {
        let layout = layout(len);
        // SAFETY: the layout's size is not zero; it, and a slot, which only pages get, has room for the header and
        // `len` bytes behind `DATA_OFFSET`, and its alignment is at least the header's.
        unsafe {
            let slot = if len == PAGE_BYTES { SLABS.take() } else { None };
            let Some(memory) = slot.or_else(|| NonNull::new(alloc(layout))) else {
                handle_alloc_error(layout)
            };
            let frame = memory.cast::<Header>();
            let referenced = AtomicBool::new(false);
            frame.write(Header { tag, len, birth: ERAS.now(), referenced, slot: slot.is_some() });
            fill(memory.add(DATA_OFFSET));
            NewFrame { frame }
        }
    }

    /// What the frame takes of the budget.
    pub fn allocated_bytes(&self) -> usize {
        // SAFETY: `filled` wrote it.
        unsafe { self.frame.as_ref() }.allocated_bytes()
    }

    pub(super) fn into_raw(self) -> NonNull<Header> {
        let frame = self.frame;
        std::mem::forget(self);
        frame
    }
}

impl Deref for NewFrame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `filled` allocated and initialised `len` bytes there, and `self` is the only owner.
        unsafe {
            let len = self.frame.as_ref().len;
            std::slice::from_raw_parts(self.frame.as_ptr().cast::<u8>().add(DATA_OFFSET), len)
        }
    }
}

impl DerefMut for NewFrame {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the pointer is the allocation's own, not derived from a reference to the
        // header.
        unsafe {
            let len = self.frame.as_ref().len;
            std::slice::from_raw_parts_mut(self.frame.as_ptr().cast::<u8>().add(DATA_OFFSET), len)
        }
    }
}

impl Drop for NewFrame {
    fn drop(&mut self) {
        // SAFETY: it comes from `new`, and was not given away by `into_raw`.
        unsafe { free(self.frame) };
    }
}
