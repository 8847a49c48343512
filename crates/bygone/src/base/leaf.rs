//! Leaves: records in key order.
//!
//! Owns: the layout of a record. Promises: reading a sound leaf cannot go out of bounds. May call: the shared
//! key part.
//!
//! An entry is: the length of the key behind the prefix (u16; the highest bit says that the value is large),
//! those key bytes, then the value, or for a large one the reference to its overflow pages.

use super::keyed::Keyed;
use super::overflow::{self, LargeValue};
use super::page::{self, Page};
use crate::limits::KEY_BYTES_MAX;

/// The longest value that lies in the leaf itself, in bytes: two such records with keys of some 16 bytes fill
/// a page.
pub(super) const INLINE_VALUE_BYTES_MAX: usize = 2000;

pub(super) const LARGE_FLAG: u16 = 0x8000;

/// What a leaf says of a value.
#[derive(Clone, Copy)]
pub(super) enum Stored<'a> {
    Inline(&'a [u8]),
    Large(LargeValue<'a>),
}

#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    page: &'a Page,
    keyed: Keyed<'a>,
}

/// An entry's key behind the prefix, its value's bytes, and whether these refer to overflow pages.
#[inline]
fn split(entry: &[u8]) -> (&[u8], &[u8], bool) {
    let len = u16::from_le_bytes([entry[0], entry[1]]);
    let (suffix, value) = entry[2..].split_at(usize::from(len & !LARGE_FLAG));
    (suffix, value, len & LARGE_FLAG != 0)
}

impl<'a> Leaf<'a> {
    #[inline]
    pub fn new(page: &'a Page) -> Leaf<'a> {
        Leaf { page, keyed: Keyed::new(page, page::count(page)) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.keyed.len()
    }

    /// What all keys of the leaf begin with.
    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        self.keyed.prefix()
    }

    /// The key of record `i` behind the prefix, its value's bytes as stored, and whether these refer to
    /// overflow pages.
    #[inline]
    pub fn raw(&self, i: usize) -> (&'a [u8], &'a [u8], bool) {
        split(self.keyed.entry(i))
    }

    /// The key of record `i` behind the prefix, and its value.
    #[inline]
    pub fn record(&self, i: usize) -> (&'a [u8], Stored<'a>) {
        let (suffix, value, large) = self.raw(i);
        let value =
            if large { Stored::Large(LargeValue::new(value, self.page, i)) } else { Stored::Inline(value) };
        (suffix, value)
    }

    /// The large values from record `i` on, up to the first that is not large.
    pub fn large_from(self, i: usize) -> impl Iterator<Item = LargeValue<'a>> {
        (i..self.len()).map_while(move |i| match self.record(i).1 {
            Stored::Large(large) => Some(large),
            Stored::Inline(_) => None,
        })
    }

    /// The record with this key, or else where it would stand.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.keyed.search(key, |i| split(self.keyed.entry(i)).0)
    }
}

/// Whether the structure of a leaf can be trusted.
pub(super) fn is_sound(page: &Page, birth: u64) -> bool {
    let keys = page::count(page);
    let Some(keyed) = Keyed::new_checked(page, keys, 0) else { return false };
    let entries = (0..keys).all(|i| {
        let entry = keyed.entry(i);
        let Some((len, rest)) = entry.split_first_chunk::<2>() else { return false };
        let len = u16::from_le_bytes(*len);
        let key_len = usize::from(len & !LARGE_FLAG);
        match rest.split_at_checked(key_len) {
            Some((_, value)) if keyed.prefix().len() + key_len <= KEY_BYTES_MAX => {
                if len & LARGE_FLAG != 0 {
                    overflow::is_sound(value, birth)
                } else {
                    value.len() <= INLINE_VALUE_BYTES_MAX
                }
            }
            _ => false,
        }
    });
    keys > 0 && page::level(page) == 0 && entries && keyed.order_is_sound(|i| split(keyed.entry(i)).0)
}
