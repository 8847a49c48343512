//! What leaves and inner pages share: sorted keys with their common prefix taken out, and the search among
//! them.
//!
//! Owns: the layout of the key part. Promises: a search touches the header's cache line, a few lines of key
//! heads, and the one key that decides. May call: nothing but the page's header.
//!
//! Layout after the header: the prefix; zero bytes up to a multiple of four; for each key its head (u32: the
//! first four bytes of what follows the prefix, as a big-endian number, short ones filled with zeros); the
//! offset in the page of each key's entry, and of the end of the last (u16 each). Entries lie one behind the
//! other, in key order.

use std::cmp::Ordering;

use crate::limits::{KEY_BYTES_MAX, PAGE_BYTES};

use super::page::{self, HEADER_BYTES, Page};

#[derive(Clone, Copy)]
pub(super) struct Keyed<'a> {
    page: &'a Page,
    prefix: &'a [u8],
    heads: &'a [[u8; 4]],
    offsets: &'a [[u8; 2]],
}

/// Where the heads begin.
pub(super) const fn heads_at(prefix_len: usize) -> usize {
    (HEADER_BYTES + prefix_len + 3) & !3
}

/// The bytes that a page with these many keys takes up to the end of the offsets.
pub(super) const fn index_bytes(prefix_len: usize, keys: usize) -> usize {
    heads_at(prefix_len) + 4 * keys + 2 * (keys + 1)
}

/// The first four bytes as a number that sorts as they do.
#[inline]
pub(super) fn head_of(rest: &[u8]) -> u32 {
    match rest.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 4];
            bytes[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(bytes)
        }
    }
}

impl<'a> Keyed<'a> {
    /// The key part of a page whose structure is known to be sound.
    #[inline]
    pub fn new(page: &'a Page, keys: usize) -> Keyed<'a> {
        let prefix_len = page::prefix_len(page);
        let heads_at = heads_at(prefix_len);
        let offsets_at = heads_at + 4 * keys;
        Keyed {
            page,
            prefix: &page[HEADER_BYTES..HEADER_BYTES + prefix_len],
            heads: page[heads_at..offsets_at].as_chunks().0,
            offsets: page[offsets_at..offsets_at + 2 * (keys + 1)].as_chunks().0,
        }
    }

    /// The key part, if prefix, heads and offsets lie within the page, the offsets begin `skipped` bytes
    /// behind them, ascend, and end within the page.
    pub fn new_checked(page: &'a Page, keys: usize, skipped: usize) -> Option<Keyed<'a>> {
        let prefix_len = page::prefix_len(page);
        let entries_at = index_bytes(prefix_len, keys) + skipped;
        if prefix_len > KEY_BYTES_MAX || entries_at > PAGE_BYTES {
            return None;
        }
        let keyed = Keyed::new(page, keys);
        let sound = keyed.offset(0) == entries_at
            && (0..keys).all(|i| keyed.offset(i) <= keyed.offset(i + 1))
            && keyed.offset(keys) <= PAGE_BYTES;
        sound.then_some(keyed)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    #[inline]
    fn offset(&self, i: usize) -> usize {
        usize::from(u16::from_le_bytes(self.offsets[i]))
    }

    #[inline]
    pub fn entry(&self, i: usize) -> &'a [u8] {
        &self.page[self.offset(i)..self.offset(i + 1)]
    }

    #[inline]
    fn head(&self, i: usize) -> u32 {
        u32::from_le_bytes(self.heads[i])
    }

    /// Whether each head is its key's, and the keys ascend.
    pub fn order_is_sound(&self, suffix: impl Fn(usize) -> &'a [u8]) -> bool {
        (0..self.len()).all(|i| self.head(i) == head_of(suffix(i)))
            && (1..self.len()).all(|i| suffix(i - 1) < suffix(i))
    }

    /// The first key that is at least `key`, and whether it is equal. `suffix` gives what follows the prefix
    /// in a key.
    #[inline]
    pub fn search(&self, key: &[u8], suffix: impl Fn(usize) -> &'a [u8]) -> Result<usize, usize> {
        let Some((start, rest)) = key.split_at_checked(self.prefix.len()) else {
            return Err(if key <= self.prefix { 0 } else { self.len() });
        };
        match start.cmp(self.prefix) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.len()),
            Ordering::Equal => {}
        }
        let head = head_of(rest);
        let first = self.heads_below(head);
        if first == self.len() || self.head(first) != head {
            return Err(first);
        }
        match suffix(first).cmp(rest) {
            Ordering::Equal => return Ok(first),
            Ordering::Greater => return Err(first),
            Ordering::Less => {}
        }
        // Several keys share these four bytes: their other bytes decide.
        let (mut low, mut high) = (first + 1, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.head(middle).cmp(&head).then_with(|| suffix(middle).cmp(rest)) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// How many heads are less than `head`. Without branches on what is compared: those would be mispredicted
    /// half the time.
    #[inline]
    fn heads_below(&self, head: u32) -> usize {
        let mut base = 0;
        let mut size = self.len();
        while size > 1 {
            let half = size / 2;
            base += if self.head(base + half - 1) < head { half } else { 0 };
            size -= half;
        }
        base + usize::from(size == 1 && self.head(base) < head)
    }
}
