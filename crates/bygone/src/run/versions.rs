//! All versions of a run, one after the other.
//!
//! Owns: a buffer of blocks read ahead. Promises: large sequential reads beside the cache; every block's
//! checksum and the order of all versions are checked, so that a merge can rely on them. May call: the
//! reader, `layer`, `error`.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::block::{Block, Layout, Stored};
use super::format::OutsideValue;
use super::key_head::head_u32;
use super::reader::Run;
use crate::error::{Error, Result};
use crate::layer::{Key, Versions};

/// How many bytes are read at once, unless a single block is larger.
const READ_BYTES: usize = 512 << 10;

/// A stream of all versions of a run. After an error it must not be used any more.
pub(crate) struct RunVersions {
    run: Arc<Run>,
    /// The blocks `buffered` lie side by side in `buffer`.
    buffer: Vec<u8>,
    buffered: Range<usize>,
    /// Where the current block lies in `buffer`, its number, and the record that comes next.
    block: Range<usize>,
    layout: Layout,
    number: usize,
    next: usize,
    count: usize,
    table: u32,
    prefix_bytes: usize,
    key: Vec<u8>,
    head: u32,
    seq: u64,
    value: Value,
}

enum Value {
    Deletion,
    /// Where it lies in the buffer.
    Inline(Range<usize>),
    Outside(OutsideValue),
    Loaded(Vec<u8>),
}

impl RunVersions {
    pub(super) fn new(run: Arc<Run>) -> RunVersions {
        RunVersions {
            run,
            buffer: Vec::new(),
            buffered: 0..0,
            block: 0..0,
            layout: Layout::default(),
            number: 0,
            next: 0,
            count: 0,
            table: 0,
            prefix_bytes: 0,
            key: Vec::new(),
            head: 0,
            seq: 0,
            value: Value::Deletion,
        }
    }

    /// The number of the block that the current version lies in.
    pub(super) fn block_number(&self) -> usize {
        self.number
    }

    /// The place of the current value, if it is stored outside the blocks and not loaded yet.
    pub(super) fn outside(&self) -> Option<OutsideValue> {
        match self.value {
            Value::Outside(value) => Some(value),
            _ => None,
        }
    }

    /// Whether the version is the first of its block.
    pub(super) fn is_first_of_block(&self) -> bool {
        self.next == 1
    }

    /// Goes to the next block; `false` at the end.
    fn next_block(&mut self) -> Result<bool> {
        // Before the first block nothing is counted.
        let number = if self.count == 0 { 0 } else { self.number + 1 };
        let Some(place) = self.run.index.block(number) else { return Ok(false) };
        if !self.buffered.contains(&number) {
            self.read_ahead(number)?;
        }
        let first = self.run.index.block(self.buffered.start).map_or(place.offset, |first| first.offset);
        let start = (place.offset - first) as usize;
        self.block = start..start + place.bytes as usize;
        self.number = number;
        let bytes = &self.buffer[self.block.clone()];
        self.run.check_block(place, bytes)?;
        self.layout = Layout::decode(bytes).ok_or_else(|| self.damaged())?;
        let block = Block::new(bytes, self.layout).ok_or_else(|| self.damaged())?;
        let table = self.run.index.table_of(number).ok_or_else(|| self.damaged())?;
        let first = block.record(0).ok_or_else(|| self.damaged())?;
        if self.count > 0 {
            let order = self.table.cmp(&table).then_with(|| {
                let first_key = block.prefix().iter().chain(first.suffix);
                self.key.iter().cmp(first_key).then(first.seq.cmp(&self.seq))
            });
            if order != Ordering::Less {
                return Err(self.disordered());
            }
        }
        self.count = block.count();
        self.prefix_bytes = block.prefix().len();
        self.key.clear();
        self.key.extend_from_slice(block.prefix());
        self.table = table;
        self.next = 0;
        Ok(true)
    }

    /// Reads the block and as many behind it as lie side by side with it, up to [`READ_BYTES`].
    fn read_ahead(&mut self, number: usize) -> Result<()> {
        let places = self.run.index.blocks().get(number..).unwrap_or_default();
        let Some(first) = places.first() else { return Err(self.damaged()) };
        let mut bytes = first.bytes as usize;
        let mut count = 1;
        for place in &places[1..] {
            let more = bytes + place.bytes as usize;
            if place.offset != first.offset + bytes as u64 || more > READ_BYTES {
                break;
            }
            bytes = more;
            count += 1;
        }
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        self.buffered = 0..0;
        self.run.read_blocks(&mut self.buffer[..bytes], first.offset)?;
        self.buffered = number..number + count;
        Ok(())
    }

    #[cold]
    fn damaged(&self) -> Error {
        self.run.damaged_block(self.number)
    }

    #[cold]
    fn disordered(&self) -> Error {
        let offset = self.run.index.block(self.number).map_or(0, |place| place.offset);
        self.run.corruption(offset, "the versions in this block are not in order")
    }
}

impl Versions for RunVersions {
    #[inline]
    fn advance(&mut self) -> Result<bool> {
        if self.next == self.count && !self.next_block()? {
            return Ok(false);
        }
        let bytes = &self.buffer[self.block.clone()];
        let block = Block::new(bytes, self.layout).ok_or_else(|| self.damaged())?;
        let (Some(record), Some(head)) = (block.record(self.next), block.head(self.next)) else {
            return Err(self.damaged());
        };
        // Searches go by the heads: a head that is not its key's would hide the key.
        if head != head_u32(record.suffix) {
            return Err(self.damaged());
        }
        if self.next > 0 && head <= self.head {
            let key = &self.key[self.prefix_bytes..];
            let order =
                self.head.cmp(&head).then_with(|| key.cmp(record.suffix)).then(record.seq.cmp(&self.seq));
            if order != Ordering::Less {
                return Err(self.disordered());
            }
        }
        self.key.truncate(self.prefix_bytes);
        self.key.extend_from_slice(record.suffix);
        self.head = head;
        self.seq = record.seq;
        self.value = match record.stored {
            Stored::Deletion => Value::Deletion,
            Stored::Inline(value) => {
                let end = self.block.start + block.record_end(self.next);
                Value::Inline(end - value.len()..end)
            }
            Stored::Outside(value) => Value::Outside(value),
        };
        self.next += 1;
        Ok(true)
    }

    fn key(&self) -> Key<'_> {
        Key { table: self.table, bytes: &self.key }
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn load(&mut self) -> Result<()> {
        if let Value::Outside(value) = self.value {
            let mut bytes = Vec::new();
            self.run.read_outside(value, &mut bytes)?;
            self.value = Value::Loaded(bytes);
        }
        Ok(())
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        Ok(match &self.value {
            Value::Inline(place) => Some(&self.buffer[place.clone()]),
            Value::Loaded(bytes) => Some(bytes),
            Value::Deletion | Value::Outside(_) => None,
        })
    }
}
