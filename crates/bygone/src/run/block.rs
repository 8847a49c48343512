//! A block: some tens of versions of one table's keys, in order, each of them addressable.
//!
//! Owns: the bytes of a block, its builder and its search. Promises: whatever the bytes are, reading them
//! neither panics nor leaves the block; what does not make sense is `None`, and the caller, who knows the
//! file and the offset, turns that into `Error::Corruption`. May call: `codec`, `limits`, and the formats
//! beside it.
//!
//! No record depends on the one before: instead of compressing each key against its neighbour, the block
//! stores once the prefix that all its keys share. So a binary search needs no restart points, and going
//! backwards costs what going forwards costs. The heads of the keys lie side by side, so that a search
//! touches few cache lines before it touches the record.

use std::cmp::Ordering;
use std::ops::Range;

use super::format::{BLOCK_BYTES_MAX, BLOCK_BYTES_TARGET, OutsideValue};
use super::key_head::{common_prefix, head_u32};
use crate::codec::Reader;
use crate::limits::KEY_BYTES_MAX;

const HEADER_BYTES: usize = 16;
const HEAD_BYTES: usize = 4;
const OFFSET_BYTES: usize = 2;

/// A record begins with the length of its key's suffix and, in the two upper bits, its kind.
const LENGTH_BYTES: usize = 2;
const KIND_SHIFT: u32 = 14;
const KIND_DELETION: u16 = 0;
const KIND_INLINE: u16 = 1;
const KIND_OUTSIDE: u16 = 2;

/// So many heads are compared all at once when searching, instead of halving further.
const HEADS_COUNTED_MAX: usize = 160;

/// A place among the versions of one key, which are sorted by sequence number descending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionPlace {
    /// Before the newest version that is not newer than this.
    AtMost(u64),
    /// Behind all versions.
    Behind,
}

impl VersionPlace {
    /// Before all versions.
    pub const FIRST: VersionPlace = VersionPlace::AtMost(u64::MAX);

    /// Whether the version with this sequence number stands before the place.
    #[inline]
    pub fn is_behind(self, seq: u64) -> bool {
        match self {
            VersionPlace::AtMost(limit) => seq > limit,
            VersionPlace::Behind => true,
        }
    }
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored<'a> {
    Deletion,
    Inline(&'a [u8]),
    Outside(OutsideValue),
}

/// One version. The whole key is the block's prefix followed by the suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub suffix: &'a [u8],
    pub seq: u64,
    pub stored: Stored<'a>,
}

/// Where the parts of a block lie: what has to be known to read its records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    count: u16,
    prefix_bytes: u16,
    seq_bytes: u8,
    base_seq: u64,
}

impl Layout {
    pub fn decode(bytes: &[u8]) -> Option<Layout> {
        let mut reader = Reader::new(bytes);
        let count = reader.u16()?;
        let prefix_bytes = reader.u16()?;
        let seq_bytes = match reader.u32()? {
            4 => 4,
            8 => 8,
            _ => return None,
        };
        let layout = Layout { count, prefix_bytes, seq_bytes, base_seq: reader.u64()? };
        let sensible = count > 0
            && usize::from(prefix_bytes) <= KEY_BYTES_MAX
            && layout.prefix().end <= bytes.len()
            && bytes.len() <= BLOCK_BYTES_MAX;
        sensible.then_some(layout)
    }

    fn heads(&self) -> Range<usize> {
        HEADER_BYTES..HEADER_BYTES + usize::from(self.count) * HEAD_BYTES
    }

    fn offsets(&self) -> Range<usize> {
        let start = self.heads().end;
        start..start + usize::from(self.count) * OFFSET_BYTES
    }

    fn prefix(&self) -> Range<usize> {
        let start = self.offsets().end;
        start..start + usize::from(self.prefix_bytes)
    }
}

/// A block that can be read. The records' own bounds are checked when they are looked at.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    bytes: &'a [u8],
    heads: &'a [[u8; HEAD_BYTES]],
    offsets: &'a [[u8; OFFSET_BYTES]],
    prefix: &'a [u8],
    layout: Layout,
}

impl<'a> Block<'a> {
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Option<Block<'a>> {
        Self::new(bytes, Layout::decode(bytes)?)
    }

    /// The block with these bytes, whose layout was decoded before.
    #[inline]
    pub fn new(bytes: &'a [u8], layout: Layout) -> Option<Block<'a>> {
        Some(Block {
            bytes,
            heads: bytes.get(layout.heads())?.as_chunks().0,
            offsets: bytes.get(layout.offsets())?.as_chunks().0,
            prefix: bytes.get(layout.prefix())?,
            layout,
        })
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    #[inline]
    pub fn count(&self) -> usize {
        self.heads.len()
    }

    /// What all keys of the block begin with.
    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    /// The first bytes of a record's suffix, as a number.
    #[inline]
    pub fn head(&self, at: usize) -> Option<u32> {
        self.heads.get(at).map(|head| u32::from_le_bytes(*head))
    }

    /// Where a record ends, which is where its value ends, from the beginning of the block.
    #[inline]
    pub fn record_end(&self, at: usize) -> usize {
        self.offsets.get(at + 1).map_or(self.bytes.len(), |next| usize::from(u16::from_le_bytes(*next)))
    }

    #[inline]
    pub fn record(&self, at: usize) -> Option<Record<'a>> {
        let start = usize::from(u16::from_le_bytes(*self.offsets.get(at)?));
        let bytes = self.bytes.get(start..self.record_end(at))?;
        let (length, bytes) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let length = u16::from_le_bytes(*length);
        let (delta, bytes) = if self.layout.seq_bytes == 4 {
            let (delta, bytes) = bytes.split_first_chunk()?;
            (u64::from(u32::from_le_bytes(*delta)), bytes)
        } else {
            let (delta, bytes) = bytes.split_first_chunk()?;
            (u64::from_le_bytes(*delta), bytes)
        };
        let (suffix, value) = bytes.split_at_checked(usize::from(length & ((1 << KIND_SHIFT) - 1)))?;
        if self.prefix.len() + suffix.len() > KEY_BYTES_MAX {
            return None;
        }
        let stored = match length >> KIND_SHIFT {
            KIND_INLINE => Stored::Inline(value),
            KIND_DELETION if value.is_empty() => Stored::Deletion,
            KIND_OUTSIDE => Stored::Outside(OutsideValue::decode(value)?),
            _ => return None,
        };
        Some(Record { suffix, seq: self.layout.base_seq.checked_add(delta)?, stored })
    }

    /// Whether the record's key is this one.
    #[inline]
    pub fn is_key(&self, record: &Record<'_>, key: &[u8]) -> bool {
        key.strip_prefix(self.prefix) == Some(record.suffix)
    }

    /// The first record that does not stand before this place; [`Block::count`] if all do.
    #[inline]
    pub fn lower_bound(&self, key: &[u8], place: VersionPlace) -> Option<usize> {
        let Some(suffix) = key.strip_prefix(self.prefix) else {
            // The key differs from the prefix, or ends within it, which sorts before.
            return Some(if key < self.prefix { 0 } else { self.count() });
        };
        let head = head_u32(suffix);
        let mut low = self.count_heads_below(head);
        let mut high = low;
        // Equal heads are few, unless a key has many versions or many keys differ late: so look near before
        // halving.
        let mut step = 1;
        while self.head(high) == Some(head) {
            high = (high + step).min(self.count());
            step *= 2;
        }
        while low < high {
            let middle = low.midpoint(high);
            if self.stands_before(middle, head, suffix, place)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// How many heads are lower than this one.
    #[inline]
    fn count_heads_below(&self, head: u32) -> usize {
        let (mut start, mut heads) = (0, self.heads);
        while heads.len() > HEADS_COUNTED_MAX {
            let (left, right) = heads.split_at(heads.len() / 2);
            match right.first() {
                Some(middle) if u32::from_le_bytes(*middle) < head => {
                    (start, heads) = (start + left.len(), right)
                }
                _ => heads = left,
            }
        }
        // Counting instead of halving: there is nothing to mispredict, and the lines are fetched side by
        // side, not each after the last.
        start + heads.iter().map(|other| u32::from(u32::from_le_bytes(*other) < head)).sum::<u32>() as usize
    }

    #[inline]
    fn stands_before(&self, at: usize, head: u32, suffix: &[u8], place: VersionPlace) -> Option<bool> {
        if self.head(at)? != head {
            // The step that ended the look around may have gone past the equal heads, never before them.
            return Some(false);
        }
        let record = self.record(at)?;
        Some(match record.suffix.cmp(suffix) {
            Ordering::Less => true,
            Ordering::Equal => place.is_behind(record.seq),
            Ordering::Greater => false,
        })
    }
}

/// Collects the records of the next block.
///
/// The records are kept as they were added until the block is full: only then is the prefix known that all
/// keys share.
#[derive(Default)]
pub(super) struct BlockBuilder {
    /// Keys and what they hold, one behind the other.
    data: Vec<u8>,
    records: Vec<Pending>,
    min_seq: u64,
    max_seq: u64,
}

struct Pending {
    seq: u64,
    start: u32,
    key_bytes: u16,
    kind: u16,
}

/// What a record takes besides its suffix and its value, at most.
const OVERHEAD_BYTES: usize = HEAD_BYTES + OFFSET_BYTES + LENGTH_BYTES + 8;

impl BlockBuilder {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn first_key(&self) -> &[u8] {
        self.records.first().map_or(&[], |first| &self.data[..usize::from(first.key_bytes)])
    }

    /// The key that was added last; empty if there is none.
    pub fn last_key(&self) -> &[u8] {
        self.records
            .last()
            .map_or(&[], |last| &self.data[last.start as usize..][..usize::from(last.key_bytes)])
    }

    /// Whether another record of the same table fits. An empty block takes any.
    #[inline]
    pub fn has_room(&self, key: &[u8], stored_bytes: usize) -> bool {
        let count = self.records.len() + 1;
        let prefix_bytes = common_prefix(self.first_key(), key);
        let bytes = HEADER_BYTES + count * OVERHEAD_BYTES + self.data.len() + key.len() + stored_bytes
            - (count - 1) * prefix_bytes;
        bytes <= BLOCK_BYTES_TARGET || self.is_empty()
    }

    /// Adds a record. The caller sees to the order and asks for room before.
    #[inline]
    pub fn push(&mut self, key: &[u8], seq: u64, stored: Stored<'_>) {
        if self.is_empty() {
            (self.min_seq, self.max_seq) = (seq, seq);
        }
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        let start = self.data.len() as u32;
        self.data.extend_from_slice(key);
        let kind = match stored {
            Stored::Deletion => KIND_DELETION,
            Stored::Inline(value) => {
                self.data.extend_from_slice(value);
                KIND_INLINE
            }
            Stored::Outside(value) => {
                self.data.extend_from_slice(&value.encode());
                KIND_OUTSIDE
            }
        };
        self.records.push(Pending { seq, start, key_bytes: key.len() as u16, kind });
    }

    /// Appends the block to `out` and begins the next.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        // The keys are sorted: what the first and the last have in common, all have.
        let prefix_bytes = common_prefix(self.first_key(), self.last_key());
        let seq_bytes = if self.max_seq - self.min_seq <= u64::from(u32::MAX) { 4 } else { 8 };
        let block = out.len();
        let count = self.records.len();
        out.extend_from_slice(&(count as u16).to_le_bytes());
        out.extend_from_slice(&(prefix_bytes as u16).to_le_bytes());
        out.extend_from_slice(&(seq_bytes as u32).to_le_bytes());
        out.extend_from_slice(&self.min_seq.to_le_bytes());
        for record in &self.records {
            let suffix = &self.data[record.start as usize..][prefix_bytes..usize::from(record.key_bytes)];
            out.extend_from_slice(&head_u32(suffix).to_le_bytes());
        }
        let first = HEADER_BYTES + count * (HEAD_BYTES + OFFSET_BYTES) + prefix_bytes;
        let shortened = LENGTH_BYTES + seq_bytes;
        for (at, record) in self.records.iter().enumerate() {
            // Each record loses the prefix and gains its own header.
            let offset = first + record.start as usize + at * shortened - at * prefix_bytes;
            debug_assert!(offset < BLOCK_BYTES_MAX);
            out.extend_from_slice(&(offset as u16).to_le_bytes());
        }
        out.extend_from_slice(&self.data[..prefix_bytes]);
        let mut ends = self.records[1..].iter().map(|next| next.start as usize);
        for record in &self.records {
            let suffix_bytes = record.key_bytes - prefix_bytes as u16;
            let length = record.kind << KIND_SHIFT | suffix_bytes;
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(&(record.seq - self.min_seq).to_le_bytes()[..seq_bytes]);
            let end = ends.next().unwrap_or(self.data.len());
            out.extend_from_slice(&self.data[record.start as usize + prefix_bytes..end]);
        }
        debug_assert!(out.len() - block <= BLOCK_BYTES_MAX);
        self.data.clear();
        self.records.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(records: &[(&[u8], u64, Stored<'_>)]) -> Vec<u8> {
        let mut builder = BlockBuilder::default();
        for (key, seq, stored) in records {
            builder.push(key, *seq, *stored);
        }
        let mut out = Vec::new();
        builder.finish(&mut out);
        assert!(builder.is_empty());
        out
    }

    const VALUE: Stored<'static> = Stored::Inline(b"value");

    #[test]
    fn records_come_back() {
        let outside = Stored::Outside(OutsideValue { offset: 32, bytes: 1 << 20, checksum: 7 });
        let records = [
            (&b"ab"[..], 5, VALUE),
            (b"ab", 4, Stored::Deletion),
            (b"abc", 9, Stored::Inline(b"")),
            (b"abd", 1, outside),
        ];
        let bytes = built(&records);
        let block = Block::decode(&bytes).unwrap();
        assert_eq!((block.count(), block.prefix()), (4, &b"ab"[..]));
        for (at, (key, seq, stored)) in records.iter().enumerate() {
            let record = block.record(at).unwrap();
            assert_eq!((record.suffix, record.seq, record.stored), (&key[2..], *seq, *stored));
            assert!(block.is_key(&record, key));
        }
        assert!(block.record(4).is_none());
    }

    #[test]
    fn sequence_numbers_far_apart_come_back() {
        let bytes = built(&[(b"a", u64::MAX, VALUE), (b"a", 0, VALUE), (b"b", 1 << 32, VALUE)]);
        let block = Block::decode(&bytes).unwrap();
        assert_eq!([0, 1, 2].map(|at| block.record(at).unwrap().seq), [u64::MAX, 0, 1 << 32]);
    }

    #[test]
    fn a_record_alone_is_all_prefix() {
        let bytes = built(&[(b"long key", 1, VALUE)]);
        let block = Block::decode(&bytes).unwrap();
        assert_eq!((block.prefix(), block.record(0).unwrap().suffix), (&b"long key"[..], &b""[..]));
        for (key, place, expected) in [
            (&b"long key"[..], VersionPlace::AtMost(1), 0),
            (b"long key", VersionPlace::AtMost(0), 1),
            (b"long key", VersionPlace::Behind, 1),
            (b"long", VersionPlace::Behind, 0),
            (b"long kez", VersionPlace::FIRST, 1),
            (b"long key ", VersionPlace::FIRST, 1),
            (b"", VersionPlace::Behind, 0),
        ] {
            assert_eq!(block.lower_bound(key, place), Some(expected), "{key:?} {place:?}");
        }
    }

    #[test]
    fn lower_bounds_are_those_of_a_sorted_list() {
        // Heads are equal for many: keys that differ only behind their first four bytes, and many versions.
        let mut entries: Vec<(Vec<u8>, u64)> = Vec::new();
        for key in ["same1", "same2", "same20", "samf", "same", "sam", "t"] {
            for seq in 0..(key.len() as u64 * 7) {
                entries.push((key.into(), seq * 2));
            }
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let records: Vec<_> = entries.iter().map(|(key, seq)| (&key[..], *seq, VALUE)).collect();
        let bytes = built(&records);
        let block = Block::decode(&bytes).unwrap();
        for key in ["", "sam", "same", "same0", "same1", "same2", "same20", "same3", "samf", "sb", "t", "u"] {
            for place in (0..80).map(VersionPlace::AtMost).chain([VersionPlace::FIRST, VersionPlace::Behind])
            {
                let expected = entries.partition_point(|(other, seq)| match other[..].cmp(key.as_bytes()) {
                    Ordering::Equal => place.is_behind(*seq),
                    unequal => unequal == Ordering::Less,
                });
                assert_eq!(block.lower_bound(key.as_bytes(), place), Some(expected), "{key} {place:?}");
            }
        }
    }

    #[test]
    fn bytes_that_make_no_sense_never_panic() {
        let outside = Stored::Outside(OutsideValue { offset: 32, bytes: 1 << 20, checksum: 7 });
        let bytes = built(&[(b"aba", 5, VALUE), (b"aba", 4, Stored::Deletion), (b"abc", 1, outside)]);
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 3, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                for len in [damaged.len(), at] {
                    let Some(block) = Block::decode(&damaged[..len]) else { continue };
                    for at in 0..block.count() {
                        block.record(at);
                    }
                    for key in [&b""[..], b"ab", b"aba", b"abb", b"abc", b"b"] {
                        block.lower_bound(key, VersionPlace::AtMost(4));
                        block.lower_bound(key, VersionPlace::Behind);
                    }
                }
            }
        }
    }

    #[test]
    fn room_counts_the_shared_prefix_once() {
        let mut builder = BlockBuilder::default();
        let mut key = vec![b'p'; KEY_BYTES_MAX];
        let mut count = 0u32;
        loop {
            key[KEY_BYTES_MAX - 4..].copy_from_slice(&count.to_be_bytes());
            if !builder.has_room(&key, 0) {
                break;
            }
            builder.push(&key, 1, Stored::Deletion);
            count += 1;
        }
        assert!(count > 100, "only {count} keys that share 1,020 bytes fit");
        let mut out = Vec::new();
        builder.finish(&mut out);
        assert!(out.len() <= BLOCK_BYTES_TARGET);
        assert_eq!(Block::decode(&out).unwrap().count(), count as usize);
    }
}
