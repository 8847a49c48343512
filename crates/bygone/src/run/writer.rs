//! Writing a run.
//!
//! Owns: the file until it is finished. Promises: large sequential writes; after `finish` has answered, the
//! file's bytes are durable. May call: `io`, `layer`, `limits`, `error`, and the formats beside it.

use std::ops::RangeInclusive;
use std::path::Path;

use super::block::{BlockBuilder, Stored};
use super::filter::Filter;
use super::format::{Footer, Header, INLINE_VALUE_BYTES_MAX, OutsideValue, RunMeta};
use super::index::{self, BlockPlace};
use super::key_head::{common_prefix, head_u64};
use crate::error::Result;
use crate::io::{Disk, File, OpenMode};
use crate::layer::{HashedKey, Key};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// How many bytes are collected for one write.
const WRITE_BYTES: usize = 512 << 10;

/// Writes one run, record by record. Memory: one write, one block, the index, and eight bytes for each
/// distinct key.
///
/// After an error it can only be dropped. Dropped before [`RunWriter::finish`], it leaves an unfinished file,
/// which no [`RunMeta`] names; the caller removes it.
pub(crate) struct RunWriter {
    file: File,
    id: u64,
    hash_seed: u64,
    /// What follows `written` in the file.
    buffer: Vec<u8>,
    written: u64,
    block: BlockBuilder,
    /// The version that was added last, if any. Its key is the block's last, or `cut_key` if the block is
    /// empty.
    last: Option<Last>,
    /// The last key of the block before.
    cut_key: Vec<u8>,
    separator: Separator,
    index: Vec<u8>,
    blocks: u64,
    hashes: Vec<u64>,
    records: u64,
    min_seq: u64,
    max_seq: u64,
}

#[derive(Clone, Copy)]
struct Last {
    table: u32,
    head: u64,
    seq: u64,
}

/// What will separate the block in the making from the one before.
#[derive(Default)]
struct Separator {
    table: u32,
    key: Vec<u8>,
    seq: u64,
}

impl RunWriter {
    /// Creates the file, which must not exist. Keys are hashed under `hash_seed` for the filter.
    pub fn create(disk: &dyn Disk, path: &Path, id: u64, hash_seed: u64) -> Result<RunWriter> {
        let file = File::open(disk, path, OpenMode::Create)?;
        let mut buffer = Vec::with_capacity(WRITE_BYTES * 2);
        buffer.extend_from_slice(&Header { id, hash_seed }.encode());
        Ok(RunWriter {
            file,
            id,
            hash_seed,
            buffer,
            written: 0,
            block: BlockBuilder::default(),
            last: None,
            cut_key: Vec::new(),
            separator: Separator::default(),
            index: Vec::new(),
            blocks: 0,
            hashes: Vec::new(),
            records: 0,
            min_seq: u64::MAX,
            max_seq: 0,
        })
    }

    /// Adds the next version; `None` is a deletion.
    ///
    /// # Panics
    /// If the version does not sort behind the one before, by (table, key, sequence number descending), or
    /// exceeds a limit.
    #[inline]
    pub fn add(&mut self, key: Key<'_>, seq: u64, value: Option<&[u8]>) -> Result<()> {
        let stored_bytes = match value {
            Some(value) if value.len() <= INLINE_VALUE_BYTES_MAX => value.len(),
            Some(_) => OutsideValue::ENCODED_BYTES,
            None => 0,
        };
        let head = head_u64(key.bytes);
        if self.is_new_key(key, head, seq) {
            self.add_key(key);
        }
        if self.separator.table != key.table || !self.block.has_room(key.bytes, stored_bytes) {
            self.cut_block()?;
        }
        if self.block.is_empty() {
            self.begin_block(key, seq);
        }
        let stored = match value {
            None => Stored::Deletion,
            Some(value) if value.len() <= INLINE_VALUE_BYTES_MAX => Stored::Inline(value),
            Some(value) => Stored::Outside(self.write_outside(value)?),
        };
        self.block.push(key.bytes, seq, stored);
        self.last = Some(Last { table: key.table, head, seq });
        self.records += 1;
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        Ok(())
    }

    /// Whether the key is another than the last one. Asserts the order on the way.
    #[inline]
    fn is_new_key(&self, key: Key<'_>, head: u64, seq: u64) -> bool {
        let Some(last) = self.last else { return true };
        let heads = (key.table, head).cmp(&(last.table, last.head));
        let order = heads.then_with(|| key.bytes.cmp(self.last_key()));
        assert!(order.then(last.seq.cmp(&seq)).is_gt(), "versions must be added in their order");
        order.is_gt()
    }

    fn last_key(&self) -> &[u8] {
        if self.block.is_empty() { &self.cut_key } else { self.block.last_key() }
    }

    #[inline]
    fn add_key(&mut self, key: Key<'_>) {
        assert!(key.bytes.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.bytes.len());
        self.hashes.push(HashedKey::new(key.table, key.bytes, self.hash_seed).hash);
    }

    /// Chooses the shortest separator between the last version added and this one.
    fn begin_block(&mut self, key: Key<'_>, seq: u64) {
        let before = self.last.filter(|last| last.table == key.table);
        let (bytes, seq) = match before {
            // A table's first block stands behind nothing of the table.
            None => (0, u64::MAX),
            Some(_) => match common_prefix(&self.cut_key, key.bytes) {
                shared if shared < key.bytes.len() => (shared + 1, u64::MAX),
                // The same key: it is the sequence numbers that differ.
                shared => (shared, seq),
            },
        };
        self.separator.table = key.table;
        self.separator.key.clear();
        self.separator.key.extend_from_slice(&key.bytes[..bytes]);
        self.separator.seq = seq;
    }

    fn cut_block(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.cut_key.clear();
        self.cut_key.extend_from_slice(self.block.last_key());
        let start = self.buffer.len();
        self.block.finish(&mut self.buffer);
        let bytes = &self.buffer[start..];
        let place = BlockPlace {
            offset: self.written + start as u64,
            bytes: bytes.len() as u32,
            checksum: crc32c::crc32c(bytes),
        };
        let Separator { table, key, seq } = &self.separator;
        index::encode_entry(&mut self.index, *table, place, key, *seq);
        self.blocks += 1;
        if self.buffer.len() >= WRITE_BYTES { self.write_buffer() } else { Ok(()) }
    }

    fn write_outside(&mut self, value: &[u8]) -> Result<OutsideValue> {
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes", value.len());
        let offset = self.written + self.buffer.len() as u64;
        let outside = OutsideValue { offset, bytes: value.len() as u32, checksum: crc32c::crc32c(value) };
        if value.len() >= WRITE_BYTES {
            // Too large to be copied first.
            self.write_buffer()?;
            self.file.write_at(value, self.written)?;
            self.written += value.len() as u64;
            return Ok(outside);
        }
        self.buffer.extend_from_slice(value);
        if self.buffer.len() >= WRITE_BYTES {
            self.write_buffer()?;
        }
        Ok(outside)
    }

    fn write_buffer(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes what is left, index, filter and footer, and syncs the file; syncing its directory is the
    /// caller's.
    ///
    /// A run may cover more sequence numbers than its records have; without a range it covers theirs (`0..=0`
    /// if there are none).
    ///
    /// # Panics
    /// If a record has a sequence number outside of the range.
    pub fn finish(mut self, seqs: Option<RangeInclusive<u64>>) -> Result<RunMeta> {
        let own = if self.records == 0 { 0..=0 } else { self.min_seq..=self.max_seq };
        let (min_seq, max_seq) = seqs.unwrap_or(own.clone()).into_inner();
        assert!(
            self.records == 0 || (min_seq <= *own.start() && *own.end() <= max_seq),
            "the run covers {min_seq} to {max_seq}, but has records from {} to {}",
            own.start(),
            own.end()
        );
        self.cut_block()?;
        let filter = Filter::build(&self.hashes);
        let mut footer = Footer {
            id: self.id,
            min_seq,
            max_seq,
            records: self.records,
            keys: self.hashes.len() as u64,
            blocks: self.blocks,
            index_offset: self.written + self.buffer.len() as u64,
            index_bytes: self.index.len() as u64,
            filter_bytes: filter.len_bytes() as u64,
            index_checksum: crc32c::crc32c(&self.index),
            filter_checksum: 0,
        };
        self.buffer.append(&mut self.index);
        for line in filter.bytes() {
            footer.filter_checksum = crc32c::crc32c_append(footer.filter_checksum, line);
            self.buffer.extend_from_slice(line);
            if self.buffer.len() >= WRITE_BYTES {
                self.write_buffer()?;
            }
        }
        let (bytes, footer_checksum) = footer.encode();
        self.buffer.extend_from_slice(&bytes);
        self.write_buffer()?;
        self.file.sync()?;
        Ok(RunMeta {
            id: self.id,
            min_seq,
            max_seq,
            records: self.records,
            bytes: self.written,
            footer_checksum,
        })
    }
}
