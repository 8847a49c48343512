//! The index of a run's blocks, in memory.
//!
//! Owns: its bytes in the file and its search. Promises: after decoding, blocks lie within the file one
//! behind the other, and separators ascend, so that a search ends in the one block where a version may begin.
//! May call: `codec`, `limits`, and the formats beside it.

use std::cmp::Ordering;
use std::ops::Range;

use super::block::VersionPlace;
use super::format::{BLOCK_BYTES_MAX, HEADER_BYTES};
use super::key_head::{common_prefix, head_u64};
use crate::codec::Reader;
use crate::limits::KEY_BYTES_MAX;

/// The bytes of an entry without its separator.
const ENTRY_BYTES: usize = 30;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPlace {
    /// From the beginning of the file.
    pub offset: u64,
    pub bytes: u32,
    /// CRC-32C of the block.
    pub checksum: u32,
}

/// Appends the entry of the next block. Its separator stands behind every version in the blocks before, and
/// not behind any in the block: (table, key, sequence number).
pub(super) fn encode_entry(out: &mut Vec<u8>, table: u32, block: BlockPlace, key: &[u8], seq: u64) {
    out.extend_from_slice(&table.to_le_bytes());
    out.extend_from_slice(&block.offset.to_le_bytes());
    out.extend_from_slice(&block.bytes.to_le_bytes());
    out.extend_from_slice(&block.checksum.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
}

/// The index in memory. Each block holds records of one table.
pub(super) struct Index {
    tables: Box<[TableBlocks]>,
    blocks: Box<[BlockPlace]>,
    /// Beside each other, for the search: the first eight bytes of each separator behind its table's prefix.
    heads: Box<[u64]>,
    separators: Box<[Separator]>,
    /// The keys of all separators.
    keys: Box<[u8]>,
}

struct TableBlocks {
    table: u32,
    blocks: Range<usize>,
    /// What the separators of the table have in common, except the first, which is never looked at: it
    /// stands before everything.
    prefix: Range<usize>,
}

#[derive(Clone, Copy)]
struct Separator {
    key_start: usize,
    key_bytes: u16,
    seq: u64,
}

impl Separator {
    fn key(self, keys: &[u8]) -> &[u8] {
        &keys[self.key_start..][..usize::from(self.key_bytes)]
    }
}

impl Index {
    /// Decodes the index of `count` blocks which end before `end`, the index's own offset; `None` if that is
    /// not what the bytes say.
    pub fn decode(bytes: &[u8], count: u64, end: u64) -> Option<Index> {
        // Compared before anything is allocated for them.
        let count = usize::try_from(count).ok().filter(|count| *count <= bytes.len() / ENTRY_BYTES)?;
        let key_bytes = bytes.len() - count * ENTRY_BYTES;
        let mut keys = Vec::with_capacity(key_bytes);
        let mut blocks = Vec::with_capacity(count);
        let mut separators = Vec::with_capacity(count);
        let mut tables: Vec<TableBlocks> = Vec::new();
        let mut free = HEADER_BYTES as u64;
        let mut reader = Reader::new(bytes);
        for number in 0..count {
            let table = reader.u32()?;
            let block = BlockPlace { offset: reader.u64()?, bytes: reader.u32()?, checksum: reader.u32()? };
            let seq = reader.u64()?;
            let key_bytes = reader.u16()?;
            let key = reader.bytes(usize::from(key_bytes))?;
            let fits = block.offset >= free && block.bytes as usize <= BLOCK_BYTES_MAX && block.bytes > 0;
            free = block.offset.checked_add(u64::from(block.bytes))?;
            if !fits || free > end || key.len() > KEY_BYTES_MAX {
                return None;
            }
            let separator = Separator { key_start: keys.len(), key_bytes, seq };
            match tables.last_mut() {
                Some(last) if last.table == table => {
                    let before: Separator = *separators.last()?;
                    let order = before.key(&keys).cmp(key).then(seq.cmp(&before.seq));
                    if order != Ordering::Less {
                        return None;
                    }
                    last.blocks.end = number + 1;
                }
                last => {
                    let first = key.is_empty() && seq == u64::MAX;
                    if !first || last.is_some_and(|last| last.table > table) {
                        return None;
                    }
                    tables.push(TableBlocks { table, blocks: number..number + 1, prefix: 0..0 });
                }
            }
            keys.extend_from_slice(key);
            blocks.push(block);
            separators.push(separator);
        }
        if reader.remaining() != 0 {
            return None;
        }
        let mut heads = vec![0; count];
        for table in &mut tables {
            let range = table.blocks.start + 1..table.blocks.end;
            let [first, .., last] = &separators[range.clone()] else {
                // With one separator or none, a prefix would only be another comparison.
                for number in range {
                    heads[number] = head_u64(separators[number].key(&keys));
                }
                continue;
            };
            let shared = common_prefix(first.key(&keys), last.key(&keys));
            table.prefix = first.key_start..first.key_start + shared;
            for number in range {
                heads[number] = head_u64(&separators[number].key(&keys)[shared..]);
            }
        }
        Some(Index {
            tables: tables.into(),
            blocks: blocks.into(),
            heads: heads.into(),
            separators: separators.into(),
            keys: keys.into(),
        })
    }

    pub fn block(&self, number: usize) -> Option<BlockPlace> {
        self.blocks.get(number).copied()
    }

    pub fn blocks(&self) -> &[BlockPlace] {
        &self.blocks
    }

    /// The numbers of the blocks of a table; empty if the run has none.
    #[inline]
    pub fn table_blocks(&self, table: u32) -> Range<usize> {
        self.find(table).map_or(0..0, |found| found.blocks.clone())
    }

    /// The table of a block that exists.
    pub fn table_of(&self, number: usize) -> Option<u32> {
        let at = self.tables.partition_point(|table| table.blocks.end <= number);
        self.tables.get(at).map(|table| table.table)
    }

    #[inline]
    fn find(&self, table: u32) -> Option<&TableBlocks> {
        let at = self.tables.partition_point(|other| other.table < table);
        self.tables.get(at).filter(|other| other.table == table)
    }

    /// The block in which the first record that does not stand before the place lies, or behind which it
    /// lies: then it is the first of the next block. `None` if the run has nothing of the table.
    #[inline]
    pub fn search(&self, table: u32, key: &[u8], place: VersionPlace) -> Option<usize> {
        let table = self.find(table)?;
        let (first, end) = (table.blocks.start + 1, table.blocks.end);
        let prefix = &self.keys[table.prefix.clone()];
        let Some(suffix) = key.strip_prefix(prefix) else {
            return Some(if key < prefix { first - 1 } else { end - 1 });
        };
        let head = head_u64(suffix);
        let heads = &self.heads[first..end];
        let low = heads.partition_point(|other| *other < head);
        let equal = heads[low..].partition_point(|other| *other == head);
        let equal = &self.separators[first + low..][..equal];
        let not_behind = equal.partition_point(|separator| {
            match separator.key(&self.keys)[prefix.len()..].cmp(suffix) {
                Ordering::Less => true,
                // A block that begins with the very version is the right one.
                Ordering::Equal => {
                    place.is_behind(separator.seq) || place == VersionPlace::AtMost(separator.seq)
                }
                Ordering::Greater => false,
            }
        });
        Some(first - 1 + low + not_behind)
    }

    /// Whether a block begins with a version of the key that the block before ends with: only then does a
    /// separator have the sequence number of a version.
    #[inline]
    pub fn begins_within_a_key(&self, number: usize) -> bool {
        self.separators.get(number).is_some_and(|separator| separator.seq != u64::MAX)
    }

    /// Whether the block's first record may be a version of this key of the table that the block before
    /// belongs to.
    #[inline]
    pub fn continues(&self, number: usize, table: u32, key: &[u8]) -> bool {
        let Some(separator) = self.separators.get(number) else { return false };
        separator.key(&self.keys) == key && self.table_blocks(table).contains(&number)
    }

    /// Whether a block's separator stands behind the last version before the block, if that is of the same
    /// table, and not behind the block's first.
    pub fn separates(&self, number: usize, before: Option<(&[u8], u64)>, first: (&[u8], u64)) -> bool {
        let Some(separator) = self.separators.get(number) else { return false };
        let compare =
            |(key, seq): (&[u8], u64)| key.cmp(separator.key(&self.keys)).then(separator.seq.cmp(&seq));
        compare(first).is_ge() && before.is_none_or(|before| compare(before).is_lt())
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.tables)
            + size_of_val(&*self.blocks)
            + size_of_val(&*self.heads)
            + size_of_val(&*self.separators)
            + self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 1 << 20;

    /// Blocks of 100 bytes, one behind the other.
    fn encoded(entries: &[(u32, &[u8], u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (table, key, seq)) in entries.iter().enumerate() {
            let offset = (HEADER_BYTES + number * 100) as u64;
            encode_entry(&mut out, *table, BlockPlace { offset, bytes: 100, checksum: 9 }, key, *seq);
        }
        out
    }

    fn index(entries: &[(u32, &[u8], u64)]) -> Option<Index> {
        Index::decode(&encoded(entries), entries.len() as u64, END)
    }

    #[test]
    fn an_empty_index_has_nothing() {
        let index = index(&[]).unwrap();
        assert_eq!(index.search(1, b"a", VersionPlace::FIRST), None);
        assert_eq!(index.table_blocks(1), 0..0);
        assert_eq!(index.table_of(0), None);
    }

    #[test]
    fn searches_end_in_the_last_block_that_is_not_behind() {
        let max = u64::MAX;
        let entries: &[(u32, &[u8], u64)] = &[
            (1, b"", max),
            (2, b"", max),
            (2, b"user/b", max),
            (2, b"user/c", max),
            (2, b"user/c", 70),
            (2, b"user/c", 50),
            (2, b"user/d/long/one", max),
            (2, b"user/d/long/two", max),
            (4, b"", max),
            (4, b"x", max),
        ];
        let index = index(entries).unwrap();
        let keys: [&[u8]; 11] = [
            b"",
            b"a",
            b"user",
            b"user/b",
            b"user/bb",
            b"user/c",
            b"user/cc",
            b"user/d/long/one",
            b"user/d/long/oz",
            b"user/d/long/two",
            b"z",
        ];
        for table in [0, 1, 2, 3, 4, 5] {
            for key in keys {
                for place in [10, 50, 60, 70, 71, max]
                    .map(VersionPlace::AtMost)
                    .into_iter()
                    .chain([VersionPlace::Behind])
                {
                    let expected = entries.iter().rposition(|(other, separator, seq)| {
                        *other == table
                            && match separator.cmp(&key) {
                                Ordering::Less => true,
                                Ordering::Equal => {
                                    place.is_behind(*seq) || place == VersionPlace::AtMost(*seq)
                                }
                                Ordering::Greater => false,
                            }
                    });
                    assert_eq!(index.search(table, key, place), expected, "{table} {key:?} {place:?}");
                }
            }
        }
        assert_eq!(index.table_of(0), Some(1));
        assert_eq!(index.table_of(7), Some(2));
        assert_eq!(index.table_of(8), Some(4));
        assert!(index.continues(4, 2, b"user/c"));
        assert!(!index.continues(4, 2, b"user/d"));
        assert!(!index.continues(8, 2, b""), "the next table's first block continues nothing");
    }

    #[test]
    fn a_separator_stands_between_two_versions() {
        let index = index(&[(1, b"", u64::MAX), (1, b"b", u64::MAX), (1, b"bc", 5)]).unwrap();
        assert!(index.separates(0, None, (b"", 9)));
        assert!(index.separates(1, Some((b"az", 0)), (b"b", 9)));
        assert!(!index.separates(1, Some((b"az", 0)), (b"az", 0)));
        assert!(!index.separates(1, Some((b"b", 9)), (b"b", 8)));
        assert!(index.separates(2, Some((b"bc", 6)), (b"bc", 5)));
        assert!(!index.separates(2, Some((b"bc", 5)), (b"bc", 4)));
        assert!(!index.separates(2, Some((b"bc", 7)), (b"bc", 6)));
        assert!(!index.separates(3, None, (b"", 9)));
    }

    #[test]
    fn separators_that_do_not_ascend_are_refused() {
        let max = u64::MAX;
        assert!(index(&[(1, b"", max), (1, b"b", max), (1, b"b", 4), (1, b"b", 3)]).is_some());
        assert!(index(&[(1, b"", max), (1, b"b", max), (1, b"a", max)]).is_none());
        assert!(index(&[(1, b"", max), (1, b"b", 3), (1, b"b", 3)]).is_none());
        assert!(index(&[(1, b"", max), (1, b"b", 3), (1, b"b", 4)]).is_none());
        assert!(index(&[(2, b"", max), (1, b"", max)]).is_none());
        assert!(index(&[(1, b"", max), (2, b"b", max)]).is_none());
        assert!(index(&[(1, b"", 7)]).is_none());
    }

    #[test]
    fn blocks_outside_the_file_are_refused() {
        let bytes = encoded(&[(1, b"", u64::MAX), (1, b"b", u64::MAX)]);
        let end = HEADER_BYTES as u64 + 200;
        assert!(Index::decode(&bytes, 2, end).is_some());
        assert!(Index::decode(&bytes, 2, end - 1).is_none());
        assert!(Index::decode(&bytes, 1, end).is_none());
        assert!(Index::decode(&bytes, 3, end).is_none());
        assert!(Index::decode(&bytes, u64::MAX, end).is_none());
        for len in 0..bytes.len() {
            assert!(Index::decode(&bytes[..len], 2, end).is_none());
        }
    }

    #[test]
    fn bytes_that_make_no_sense_never_panic() {
        let bytes = encoded(&[(1, b"", u64::MAX), (1, b"bcd", 8), (1, b"bcd", 7), (2, b"", u64::MAX)]);
        for at in 0..bytes.len() {
            for value in [0, 1, 3, 0x7f, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let Some(index) = Index::decode(&damaged, 4, END) else { continue };
                index.search(1, b"bcd", VersionPlace::AtMost(7));
                index.search(2, b"bcd", VersionPlace::Behind);
            }
        }
    }
}
