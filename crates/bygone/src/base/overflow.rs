//! Large values: what refers to their pages, and reading them.
//!
//! Owns: the layout of the reference and of overflow pages. Promises: nothing is allocated for a length
//! before the pages that prove it have been read. May call: the page store.
//!
//! The reference: length (u32), level (u8), number of pointers (u8, at most 8), pointers. At level 0 they
//! lead to pages that each hold 4,064 bytes of the value (the last: the rest); at each level above, to pages
//! of 254 pointers to the level below. The level is the least that suffices and all pages but the last are
//! full, so that the length alone determines the shape.

use crate::error::Result;
use crate::limits::VALUE_BYTES_MAX;

use super::leaf::{INLINE_VALUE_BYTES_MAX, Leaf};
use super::page::{self, HEADER_BYTES, Kind, PAYLOAD_BYTES, Page};
use super::pointer::PagePointer;
use super::store::PageStore;
use crate::cache::{self, Guard};

/// How many pointers a reference may have.
const POINTERS_MAX: usize = 8;

/// How many pointers a page holds.
pub(super) const INDEX_POINTERS: usize = PAYLOAD_BYTES / PagePointer::BYTES;

/// The highest level: 8 x 254 x 254 pages of 4,064 bytes are more than any value has.
const LEVEL_MAX: u8 = 2;

const FIXED_BYTES: usize = 6;

/// A reference that is known to be sound.
#[derive(Clone, Copy)]
pub(super) struct LargeValue<'a> {
    bytes: &'a [u8],
    /// The leaf that it stands in.
    leaf: &'a Page,
    record: usize,
}

/// Stores a page of this kind, level, count and payload.
type WritePage<'a> = dyn FnMut(Kind, u8, usize, &[u8]) -> Result<PagePointer> + 'a;

/// Level and number of pointers of the reference to a value of `pages` pages.
fn shape(pages: usize) -> (u8, usize) {
    let mut level = 0;
    let mut pointers = pages;
    while pointers > POINTERS_MAX {
        pointers = pointers.div_ceil(INDEX_POINTERS);
        level += 1;
    }
    (level, pointers)
}

/// How many pages hold a value of `len` bytes.
fn data_pages(len: usize) -> usize {
    len.div_ceil(PAYLOAD_BYTES)
}

pub(super) fn is_sound(reference: &[u8], birth: u64) -> bool {
    let Some((fixed, pointers)) = reference.split_first_chunk::<FIXED_BYTES>() else { return false };
    let len = u32::from_le_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]) as usize;
    let (pointers, rest) = pointers.as_chunks::<{ PagePointer::BYTES }>();
    (INLINE_VALUE_BYTES_MAX + 1..=VALUE_BYTES_MAX).contains(&len)
        && shape(data_pages(len)) == (fixed[4], usize::from(fixed[5]))
        && fixed[4] <= LEVEL_MAX
        && pointers.len() == usize::from(fixed[5])
        && rest.is_empty()
        && pointers.iter().all(|pointer| PagePointer::decode(pointer).is_sound(birth))
}

pub(super) fn index_is_sound(page: &Page, birth: u64) -> bool {
    let count = page::count(page);
    (1..=LEVEL_MAX).contains(&page::level(page))
        && (1..=INDEX_POINTERS).contains(&count)
        && (0..count).all(|i| index_pointer(page, i).is_sound(birth))
}

fn index_pointer(page: &Page, i: usize) -> PagePointer {
    let at = HEADER_BYTES + i * PagePointer::BYTES;
    let mut bytes = [0; PagePointer::BYTES];
    bytes.copy_from_slice(&page[at..at + PagePointer::BYTES]);
    PagePointer::decode(&bytes)
}

impl<'a> LargeValue<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8], leaf: &'a Page, record: usize) -> LargeValue<'a> {
        LargeValue { bytes, leaf, record }
    }

    pub fn len(&self) -> usize {
        u32::from_le_bytes([self.bytes[0], self.bytes[1], self.bytes[2], self.bytes[3]]) as usize
    }

    fn level(&self) -> u8 {
        self.bytes[4]
    }

    fn pointers(self) -> impl ExactSizeIterator<Item = PagePointer> + Clone + 'a {
        self.bytes[FIXED_BYTES..].as_chunks().0.iter().map(PagePointer::decode)
    }

    /// The page that holds the value's first bytes, or leads to it.
    pub fn first_pointer(&self) -> Option<PagePointer> {
        self.pointers().next()
    }

    /// The value's page `i`, if `pointer` leads to it. Where it is not cached, the pages that follow may be read with
    /// it: those of this value certainly, those of the leaf's next records if these are read one after the other.
    #[inline]
    fn page<'g>(
        &self,
        i: usize,
        pointer: &PagePointer,
        store: &PageStore,
        guard: &'g Guard,
    ) -> Result<&'g Page> {
        match store.cached(pointer, guard) {
            Some(page) => Ok(page),
            None => {
                let rest = self.pointers().skip(i + 1);
                let next =
                    Leaf::new(self.leaf).large_from(self.record + 1).take_while(|next| next.level() == 0);
                let mut following = rest.clone().chain(next.flat_map(LargeValue::pointers));
                store.load_before(pointer, rest.len(), &mut following, guard)
            }
        }
    }

    /// Hands the value to `found`: where one page holds it, without a copy.
    pub fn with(&self, store: &PageStore, found: &mut dyn FnMut(&[u8])) -> Result<()> {
        let len = self.len();
        if let (true, Some(pointer)) = (len <= PAYLOAD_BYTES, self.first_pointer()) {
            let guard = cache::pin();
            let page = self.page(0, &pointer, store, &guard)?;
            found(data(page, len, store, &pointer)?);
            return Ok(());
        }
        let mut value = Vec::new();
        self.read(store, &mut value)?;
        found(&value);
        Ok(())
    }

    /// Reads the value into `out`, in place of what is there.
    pub fn read(&self, store: &PageStore, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let len = self.len();
        if self.level() == 0 {
            for (i, pointer) in self.pointers().enumerate() {
                let guard = cache::pin();
                let page = self.page(i, &pointer, store, &guard)?;
                out.extend_from_slice(data(page, (len - out.len()).min(PAYLOAD_BYTES), store, &pointer)?);
            }
            return Ok(());
        }
        // A value of many pages would push everything else out of the cache, so it is read past it.
        self.read_parts(store, &mut |part| out.extend_from_slice(part))
    }

    /// Reads the value past the cache, part by part, neighbours in the file at once.
    pub fn read_parts(&self, store: &PageStore, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut pointers = Vec::new();
        self.pages(store, &mut |pointer, level| {
            if level == 0 {
                pointers.push(pointer);
            }
        })?;
        let mut rest = self.len();
        store.read_many(&pointers, &mut |page, pointer| {
            let part = data(page, rest.min(PAYLOAD_BYTES), store, pointer)?;
            rest -= part.len();
            visit(part);
            Ok(())
        })
    }

    /// Names all pages of the value with their levels; each after the one that points to it, level 0 in the
    /// value's order. Reads only the pages that hold pointers.
    pub fn pages(&self, store: &PageStore, visit: &mut dyn FnMut(PagePointer, u8)) -> Result<()> {
        let mut rest = data_pages(self.len());
        for pointer in self.pointers() {
            visit_pages(store, pointer, self.level(), &mut rest, visit)?;
        }
        Ok(())
    }
}

fn visit_pages(
    store: &PageStore,
    pointer: PagePointer,
    level: u8,
    rest: &mut usize,
    visit: &mut dyn FnMut(PagePointer, u8),
) -> Result<()> {
    visit(pointer, level);
    if level == 0 {
        *rest = rest.saturating_sub(1);
        return Ok(());
    }
    let mut page = [0; crate::limits::PAGE_BYTES];
    store.read_uncached(&pointer, &mut page)?;
    let below = INDEX_POINTERS.pow(u32::from(level) - 1);
    let expected = rest.div_ceil(below).min(INDEX_POINTERS);
    if !page::is(&page, Kind::OverflowIndex, level) || page::count(&page) != expected {
        return Err(store.corruption(&pointer, "not the page of pointers that a large value has here"));
    }
    (0..expected).try_for_each(|i| visit_pages(store, index_pointer(&page, i), level - 1, rest, visit))
}

/// The `len` bytes of a value that `page` must hold.
pub(super) fn data<'p>(
    page: &'p Page,
    len: usize,
    store: &PageStore,
    pointer: &PagePointer,
) -> Result<&'p [u8]> {
    if !page::is(page, Kind::Overflow, 0) || page::count(page) != len {
        return Err(store.corruption(pointer, "not the part of a large value that belongs here"));
    }
    Ok(&page[HEADER_BYTES..HEADER_BYTES + len])
}

/// Writes a large value through `write`, which stores a page with this kind, level, count and payload and
/// gives its pointer; appends the reference to `out`.
pub(super) fn write(value: &[u8], out: &mut Vec<u8>, write: &mut WritePage<'_>) -> Result<()> {
    let mut pointers = Vec::with_capacity(data_pages(value.len()));
    for part in value.chunks(PAYLOAD_BYTES) {
        pointers.push(write(Kind::Overflow, 0, part.len(), part)?);
    }
    let mut level = 0;
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
    while pointers.len() > POINTERS_MAX {
        level += 1;
        let mut above = Vec::with_capacity(pointers.len().div_ceil(INDEX_POINTERS));
        for part in pointers.chunks(INDEX_POINTERS) {
            payload.clear();
            part.iter().for_each(|pointer| payload.extend_from_slice(&pointer.encode()));
            above.push(write(Kind::OverflowIndex, level, part.len(), &payload)?);
        }
        pointers = above;
    }
    debug_assert_eq!(shape(data_pages(value.len())), (level, pointers.len()));
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&[level, pointers.len() as u8]);
    pointers.iter().for_each(|pointer| out.extend_from_slice(&pointer.encode()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_fits_the_highest_level() {
        let (level, pointers) = shape(data_pages(VALUE_BYTES_MAX));
        assert!(level == LEVEL_MAX && pointers <= POINTERS_MAX);
    }

    #[test]
    fn a_level_is_used_only_where_the_one_below_does_not_suffice() {
        assert_eq!(shape(8), (0, 8));
        assert_eq!(shape(9), (1, 1));
        assert_eq!(shape(8 * INDEX_POINTERS), (1, 8));
        assert_eq!(shape(8 * INDEX_POINTERS + 1), (2, 1));
    }

    #[test]
    fn a_reference_whose_shape_contradicts_its_length_is_unsound() {
        let mut out = Vec::new();
        let mut slot = 9;
        write(&[7; 5000], &mut out, &mut |_, _, _, _| {
            slot += 1;
            Ok(PagePointer { slot, birth: 2, checksum: 5 })
        })
        .unwrap();
        assert!(is_sound(&out, 2));
        assert!(!is_sound(&out, 1), "pages younger than what points to them");
        assert!(!is_sound(&out[..out.len() - 1], 2));
        out[1] = 0x7f;
        assert!(!is_sound(&out, 2));
    }
}
