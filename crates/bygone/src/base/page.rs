//! The page: its header, and the check of a page that was read against the pointer that led to it.
//!
//! Owns: the header's layout. Promises: a page that passed [`check`] is the very page its pointer means, and
//! its structure is sound, so that what reads it afterwards may index by what it says. May call: the formats
//! of the kinds of page.
//!
//! Header, 32 bytes: kind u8, format version u8, level u8, zero u8, count u16, prefix length u16, slot u64,
//! birth u64, zero u64.

use crate::limits::PAGE_BYTES;

use super::pointer::PagePointer;
use super::{inner, leaf, overflow, space_pages};

pub(super) type Page = [u8; PAGE_BYTES];

pub(super) const HEADER_BYTES: usize = 32;

/// What a page holds besides its header.
pub(super) const PAYLOAD_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

const FORMAT_VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Leaf = 1,
    Inner = 2,
    /// A part of a large value.
    Overflow = 3,
    /// Pointers to parts of a large value, or to further such pages.
    OverflowIndex = 4,
    /// Pointers to the directory pages of the space map.
    SpaceIndex = 5,
    /// Pointers to the chunks of the space map, with how many slots each says are used.
    SpaceDirectory = 6,
    /// A part of the bitmap of used slots.
    SpaceChunk = 7,
}

/// Where a page starts to be filled: everything in the header but slot and birth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub kind: Kind,
    pub level: u8,
    pub count: usize,
    pub prefix_len: usize,
}

impl Head {
    pub fn new(kind: Kind, level: u8, count: usize) -> Head {
        Head { kind, level, count, prefix_len: 0 }
    }

    /// Writes the header of a page that will stand at `slot`.
    pub fn write(self, page: &mut Page, slot: u64, birth: u64) {
        page[0] = self.kind as u8;
        page[1] = FORMAT_VERSION;
        page[2] = self.level;
        page[3] = 0;
        page[4..6].copy_from_slice(&(self.count as u16).to_le_bytes());
        page[6..8].copy_from_slice(&(self.prefix_len as u16).to_le_bytes());
        page[8..16].copy_from_slice(&slot.to_le_bytes());
        page[16..24].copy_from_slice(&birth.to_le_bytes());
        page[24..32].fill(0);
    }
}

#[inline]
pub(super) fn is(page: &Page, kind: Kind, level: u8) -> bool {
    page[0] == kind as u8 && page[2] == level
}

#[inline]
pub(super) fn level(page: &Page) -> u8 {
    page[2]
}

#[inline]
pub(super) fn count(page: &Page) -> usize {
    u16_at(page, 4)
}

#[inline]
pub(super) fn prefix_len(page: &Page) -> usize {
    u16_at(page, 6)
}

#[inline]
pub(super) fn u16_at(page: &Page, at: usize) -> usize {
    usize::from(u16::from_le_bytes([page[at], page[at + 1]]))
}

fn u64_at(page: &Page, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// Checks that `page` is what `pointer` means and is sound in itself; says what is wrong.
pub(super) fn check(page: &Page, pointer: &PagePointer) -> Result<(), &'static str> {
    // The checksum first: it covers everything, so that what follows can only fail through a bug or on
    // purpose.
    if crc32c::crc32c(page) != pointer.checksum {
        return Err(if u64_at(page, 8) == pointer.slot && u64_at(page, 16) != pointer.birth {
            "the page is of another generation than its pointer"
        } else {
            "the page's checksum is wrong"
        });
    }
    if u64_at(page, 8) != pointer.slot {
        return Err("the page belongs in another slot");
    }
    if u64_at(page, 16) != pointer.birth {
        return Err("the page is of another generation than its pointer");
    }
    if page[1] != FORMAT_VERSION || page[3] != 0 || page[24..32] != [0; 8] {
        return Err("the page's header is malformed");
    }
    let sound = match page[0] {
        k if k == Kind::Leaf as u8 => leaf::is_sound(page, pointer.birth),
        k if k == Kind::Inner as u8 => inner::is_sound(page, pointer.birth),
        k if k == Kind::Overflow as u8 => count(page) <= PAYLOAD_BYTES,
        k if k == Kind::OverflowIndex as u8 => overflow::index_is_sound(page, pointer.birth),
        k if k == Kind::SpaceIndex as u8
            || k == Kind::SpaceDirectory as u8
            || k == Kind::SpaceChunk as u8 =>
        {
            space_pages::is_sound(page, pointer.birth)
        }
        _ => false,
    };
    if sound { Ok(()) } else { Err("the page's structure is malformed") }
}

/// How long the common prefix of two keys is, in bytes.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    // Eight bytes at a time: long shared prefixes are the case that costs.
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}
