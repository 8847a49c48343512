//! Inner pages: pointers to children, and between them the separators.
//!
//! Owns: the layout of an inner page. Promises: reading a sound inner page cannot go out of bounds. May call:
//! the shared key part.
//!
//! A page has `count` separators and `count + 1` children. Child `i` holds the keys from separator `i - 1` on
//! (the first: from the page's own lower bound) up to but without separator `i`. Behind the offsets stand the
//! children's pointers, 16 bytes each; an entry is a separator's bytes behind the prefix.

use super::keyed::{self, Keyed};
use super::page::{self, Page};
use super::pointer::{LEVEL_MAX, PagePointer};
use crate::limits::KEY_BYTES_MAX;

#[derive(Clone, Copy)]
pub(super) struct Inner<'a> {
    keyed: Keyed<'a>,
    pointers: &'a [[u8; PagePointer::BYTES]],
}

impl<'a> Inner<'a> {
    #[inline]
    pub fn new(page: &'a Page) -> Inner<'a> {
        let keys = page::count(page);
        let pointers_at = keyed::index_bytes(page::prefix_len(page), keys);
        let pointers = &page[pointers_at..pointers_at + (keys + 1) * PagePointer::BYTES];
        Inner { keyed: Keyed::new(page, keys), pointers: pointers.as_chunks().0 }
    }

    #[inline]
    pub fn children(&self) -> usize {
        self.pointers.len()
    }

    #[inline]
    pub fn child(&self, i: usize) -> PagePointer {
        PagePointer::decode(&self.pointers[i])
    }

    /// Which child holds `key`, if any does.
    #[inline]
    pub fn child_of(&self, key: &[u8]) -> usize {
        match self.keyed.search(key, |i| self.keyed.entry(i)) {
            Ok(i) => i + 1,
            Err(i) => i,
        }
    }

    /// Writes separator `i`, which is between children `i` and `i + 1`.
    pub fn separator(&self, i: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.keyed.prefix());
        out.extend_from_slice(self.keyed.entry(i));
    }
}

/// Whether the structure of an inner page can be trusted.
pub(super) fn is_sound(page: &Page, birth: u64) -> bool {
    let keys = page::count(page);
    let Some(keyed) = Keyed::new_checked(page, keys, (keys + 1) * PagePointer::BYTES) else { return false };
    let inner = Inner::new(page);
    (1..=LEVEL_MAX).contains(&page::level(page))
        && (0..keys).all(|i| keyed.prefix().len() + keyed.entry(i).len() <= KEY_BYTES_MAX)
        && keyed.order_is_sound(|i| keyed.entry(i))
        && (0..inner.children()).all(|i| inner.child(i).is_sound(birth))
}
