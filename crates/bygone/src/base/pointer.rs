//! What refers to pages: pointers, the root of a table, the root of a base, with their encodings.
//!
//! Owns: those encodings. Promises: a pointer that [`PagePointer::is_sound`] accepts names a slot that page
//! tables can be indexed by. May call: `codec`.

use crate::codec::Reader;
use crate::limits::{PAGE_BYTES, TABLES_MAX};

use super::page::HEADER_BYTES;
use super::space::SLOTS_MAX;

/// How many slots at the file's start hold superblocks, never pages.
pub(super) const SUPERBLOCK_SLOTS: u64 = 4;

/// The highest level of an inner page. Each inner page that is full has room for three separators of the
/// longest keys, so no tree that fits [`SLOTS_MAX`] comes near it.
pub(super) const LEVEL_MAX: u8 = 24;

/// Names a page and its content: where it is, which generation wrote it, and the CRC-32C of all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePointer {
    pub slot: u64,
    pub birth: u64,
    pub checksum: u32,
}

impl PagePointer {
    pub const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Self::BYTES] {
        debug_assert!(self.slot < 1 << 48 && self.birth < 1 << 48);
        let number = u128::from(self.slot) | u128::from(self.birth) << 48 | u128::from(self.checksum) << 96;
        number.to_le_bytes()
    }

    #[inline]
    pub fn decode(bytes: &[u8; Self::BYTES]) -> PagePointer {
        let number = u128::from_le_bytes(*bytes);
        PagePointer {
            slot: number as u64 & 0xffff_ffff_ffff,
            birth: (number >> 48) as u64 & 0xffff_ffff_ffff,
            checksum: (number >> 96) as u32,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<PagePointer> {
        Some(PagePointer::decode(reader.bytes(Self::BYTES)?.first_chunk()?))
    }

    /// Whether a page born at `parent_birth` can hold this pointer: a child is never younger than its parent,
    /// because its pointer is part of the parent's content.
    pub fn is_sound(&self, parent_birth: u64) -> bool {
        (SUPERBLOCK_SLOTS..SLOTS_MAX).contains(&self.slot) && (1..=parent_birth).contains(&self.birth)
    }

    /// Where the page begins in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.slot * PAGE_BYTES as u64
    }
}

/// Where an absent pointer is stored: slot 0 is a superblock, so no page has it.
const NO_POINTER: [u8; PagePointer::BYTES] = [0; PagePointer::BYTES];

pub(super) fn encode_optional(pointer: Option<PagePointer>) -> [u8; PagePointer::BYTES] {
    pointer.map_or(NO_POINTER, PagePointer::encode)
}

pub(super) fn decode_optional(bytes: &[u8; PagePointer::BYTES]) -> Option<PagePointer> {
    (*bytes != NO_POINTER).then(|| PagePointer::decode(bytes))
}

/// The tree of one table. A table without records has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRoot {
    pub root: PagePointer,
    /// The level of the root page: 0 is a leaf.
    pub level: u8,
    pub records: u64,
    /// Pages of all kinds, those of large values included.
    pub pages: u64,
    /// Pages of large values alone.
    pub overflow_pages: u64,
}

impl TableRoot {
    /// What the table takes in the file, in bytes.
    pub fn bytes_on_disk(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    pub const BYTES: usize = PagePointer::BYTES + 1 + 8 + 8 + 8;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..16].copy_from_slice(&self.root.encode());
        out[16] = self.level;
        out[17..25].copy_from_slice(&self.records.to_le_bytes());
        out[25..33].copy_from_slice(&self.pages.to_le_bytes());
        out[33..].copy_from_slice(&self.overflow_pages.to_le_bytes());
        out
    }

    /// `None` if the bytes cannot be the root of a tree in a base of this generation.
    pub fn decode(bytes: &[u8], generation: u64) -> Option<TableRoot> {
        let mut reader = Reader::new(bytes);
        let root = TableRoot {
            root: PagePointer::read(&mut reader)?,
            level: reader.u8()?,
            records: reader.u64()?,
            pages: reader.u64()?,
            overflow_pages: reader.u64()?,
        };
        let sound = reader.remaining() == 0
            && root.root.is_sound(generation)
            && root.level <= LEVEL_MAX
            && root.pages <= SLOTS_MAX
            && root.overflow_pages < root.pages
            && (1..=SLOTS_MAX * (PAGE_BYTES - HEADER_BYTES) as u64).contains(&root.records);
        sound.then_some(root)
    }
}

/// What identifies one published state of all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseRoot {
    /// Counts published bases; 0 is the empty base of a new file.
    pub generation: u64,
    /// Everything committed up to this sequence number is in the base.
    pub seq: u64,
    /// The tree from table ids to [`TableRoot`]s; none if there are no tables.
    pub catalogue: Option<PagePointer>,
    /// How many tables the catalogue has.
    pub tables: u32,
}

impl BaseRoot {
    pub const BYTES: usize = 8 + 8 + PagePointer::BYTES + 4;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..32].copy_from_slice(&encode_optional(self.catalogue));
        out[32..].copy_from_slice(&self.tables.to_le_bytes());
        out
    }

    /// `None` if the bytes cannot be a base's root.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<BaseRoot> {
        let mut reader = Reader::new(bytes);
        let root = BaseRoot {
            generation: reader.u64()?,
            seq: reader.u64()?,
            catalogue: decode_optional(reader.bytes(PagePointer::BYTES)?.first_chunk()?),
            tables: reader.u32()?,
        };
        let sound = root.generation < 1 << 48
            && root.tables as usize <= TABLES_MAX
            && root.catalogue.is_none_or(|pointer| pointer.is_sound(root.generation))
            && root.catalogue.is_some() == (root.tables > 0);
        sound.then_some(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTER: PagePointer =
        PagePointer { slot: 0x12_3456, birth: 0xfedc_ba98_7654, checksum: 0xdead_beef };

    #[test]
    fn a_pointer_comes_back() {
        assert_eq!(PagePointer::decode(&POINTER.encode()), POINTER);
        assert_eq!(decode_optional(&encode_optional(Some(POINTER))), Some(POINTER));
        assert_eq!(decode_optional(&encode_optional(None)), None);
    }

    #[test]
    fn a_pointer_to_a_superblock_or_to_a_younger_page_is_unsound() {
        assert!(POINTER.is_sound(POINTER.birth));
        assert!(!POINTER.is_sound(POINTER.birth - 1));
        assert!(!PagePointer { slot: 3, ..POINTER }.is_sound(POINTER.birth));
        assert!(!PagePointer { slot: SLOTS_MAX, ..POINTER }.is_sound(POINTER.birth));
    }

    #[test]
    fn a_base_root_comes_back() {
        let root = BaseRoot { generation: POINTER.birth, seq: u64::MAX, catalogue: Some(POINTER), tables: 3 };
        assert_eq!(BaseRoot::decode(&root.encode()), Some(root));
        let empty = BaseRoot { generation: 0, seq: 0, catalogue: None, tables: 0 };
        assert_eq!(BaseRoot::decode(&empty.encode()), Some(empty));
    }

    #[test]
    fn a_base_root_without_sense_is_refused() {
        let root = BaseRoot { generation: POINTER.birth, seq: 1, catalogue: None, tables: 3 };
        assert_eq!(BaseRoot::decode(&root.encode()), None);
        let root = BaseRoot { generation: 1, seq: 1, catalogue: Some(POINTER), tables: 3 };
        assert_eq!(BaseRoot::decode(&root.encode()), None);
    }

    #[test]
    fn a_table_root_comes_back_and_nonsense_is_refused() {
        let root = TableRoot { root: POINTER, level: 2, records: 5, pages: 9, overflow_pages: 2 };
        assert_eq!(TableRoot::decode(&root.encode(), POINTER.birth), Some(root));
        assert_eq!(TableRoot::decode(&root.encode(), POINTER.birth - 1), None);
        assert_eq!(TableRoot::decode(&root.encode()[1..], POINTER.birth), None);
        let tall = TableRoot { level: LEVEL_MAX + 1, ..root };
        assert_eq!(TableRoot::decode(&tall.encode(), POINTER.birth), None);
    }
}
