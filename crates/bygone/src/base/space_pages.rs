//! The pages of the space map.
//!
//! Owns: their layouts. Promises: reading a sound one cannot go out of bounds. May call: nothing but the
//! page's header.
//!
//! The index page holds `count` pointers to directory pages, 16 bytes each. A directory page holds `count`
//! entries of 20 bytes: the pointer to a chunk page (zero: no slot of the chunk is used), and how many of its
//! slots are used (u32). A chunk page is a bitmap of 32,512 slots: slot `s` of the chunk is bit `s % 8` of
//! byte `s / 8` of the payload; a set bit is a used slot.

use crate::limits::PAGE_BYTES;

use super::page::{self, HEADER_BYTES, Kind, PAYLOAD_BYTES, Page};
use super::pointer::{PagePointer, decode_optional, encode_optional};

/// How many slots a chunk has.
pub(super) const CHUNK_SLOTS: usize = PAYLOAD_BYTES * 8;

pub(super) const CHUNK_WORDS: usize = PAYLOAD_BYTES / 8;

pub(super) const DIRECTORY_ENTRY_BYTES: usize = PagePointer::BYTES + 4;

/// How many chunks a directory page has.
pub(super) const DIRECTORY_CHUNKS: usize = PAYLOAD_BYTES / DIRECTORY_ENTRY_BYTES;

/// How many directory pages the index page has.
pub(super) const INDEX_DIRECTORIES: usize = PAYLOAD_BYTES / PagePointer::BYTES;

pub(super) type Bits = [u64; CHUNK_WORDS];

pub(super) fn index_entry(page: &Page, i: usize) -> PagePointer {
    let mut bytes = [0; PagePointer::BYTES];
    bytes.copy_from_slice(&page[HEADER_BYTES + i * PagePointer::BYTES..][..PagePointer::BYTES]);
    PagePointer::decode(&bytes)
}

pub(super) fn directory_entry(page: &Page, i: usize) -> (Option<PagePointer>, u32) {
    let entry = &page[HEADER_BYTES + i * DIRECTORY_ENTRY_BYTES..][..DIRECTORY_ENTRY_BYTES];
    let mut pointer = [0; PagePointer::BYTES];
    pointer.copy_from_slice(&entry[..PagePointer::BYTES]);
    (decode_optional(&pointer), u32::from_le_bytes([entry[16], entry[17], entry[18], entry[19]]))
}

pub(super) fn encode_directory_entry(pointer: Option<PagePointer>, used: u32) -> [u8; DIRECTORY_ENTRY_BYTES] {
    let mut entry = [0; DIRECTORY_ENTRY_BYTES];
    entry[..PagePointer::BYTES].copy_from_slice(&encode_optional(pointer));
    entry[PagePointer::BYTES..].copy_from_slice(&used.to_le_bytes());
    entry
}

pub(super) fn chunk_bits(page: &Page) -> Box<Bits> {
    let mut bits = Box::new([0; CHUNK_WORDS]);
    for (word, bytes) in bits.iter_mut().zip(page[HEADER_BYTES..PAGE_BYTES].as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    bits
}

pub(super) fn encode_chunk(bits: &Bits) -> [u8; PAYLOAD_BYTES] {
    let mut bytes = [0; PAYLOAD_BYTES];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

/// Whether the structure of a page of the space map can be trusted.
pub(super) fn is_sound(page: &Page, birth: u64) -> bool {
    let count = page::count(page);
    match page[0] {
        k if k == Kind::SpaceIndex as u8 => {
            (1..=INDEX_DIRECTORIES).contains(&count)
                && (0..count).all(|i| index_entry(page, i).is_sound(birth))
        }
        k if k == Kind::SpaceDirectory as u8 => {
            (1..=DIRECTORY_CHUNKS).contains(&count)
                && (0..count).all(|i| match directory_entry(page, i) {
                    (None, used) => used == 0,
                    (Some(pointer), used) => pointer.is_sound(birth) && used as usize <= CHUNK_SLOTS,
                })
        }
        _ => true,
    }
}
