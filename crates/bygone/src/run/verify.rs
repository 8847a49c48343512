//! Checking a whole run.
//!
//! Owns: nothing. Promises: reads every byte of the file, and finds every way in which the file could
//! contradict itself: checksums, order, counts, separators, keys that the filter does not know, bytes that
//! belong to nothing. May call: the reader and its streams.

use std::sync::Arc;

use super::format::{FOOTER_BYTES, HEADER_BYTES};
use super::reader::Run;
use crate::error::Result;
use crate::layer::{HashedKey, Versions};

/// What a run turned out to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunSummary {
    /// Versions, deletions included.
    pub records: u64,
    /// Distinct keys.
    pub keys: u64,
    pub deletions: u64,
    pub blocks: u64,
    /// Values that are stored outside the blocks.
    pub outside_values: u64,
}

/// The version before the current one.
#[derive(Default)]
struct Last {
    table: u32,
    key: Vec<u8>,
    seq: u64,
}

impl Run {
    /// Reads and checks everything.
    pub fn verify(self: &Arc<Self>) -> Result<RunSummary> {
        self.check_fixed_parts()?;
        let blocks = self.footer.blocks;
        let mut summary = RunSummary { records: 0, keys: 0, deletions: 0, blocks, outside_values: 0 };
        let mut versions = self.versions();
        let mut last: Option<Last> = None;
        // Values lie before the block whose records point to them, in the order of the records. So the file
        // can be followed from its beginning, and a byte that belongs to nothing is noticed.
        let mut followed = HEADER_BYTES as u64;
        let mut number = 0;
        while versions.advance()? {
            if versions.is_first_of_block() {
                if versions.block_number() != number {
                    followed = self.follow(followed, number)?;
                    number = versions.block_number();
                }
                let key = versions.key();
                let before = last.as_ref().filter(|last| last.table == key.table);
                let before = before.map(|last| (&*last.key, last.seq));
                if !self.index.separates(number, before, (key.bytes, versions.seq())) {
                    return Err(self.damaged_block(number));
                }
            }
            if let Some(value) = versions.outside() {
                if value.offset != followed {
                    return Err(self.corruption(followed, "these bytes belong to nothing"));
                }
                followed += u64::from(value.bytes);
                summary.outside_values += 1;
            }
            summary.records += 1;
            summary.deletions += u64::from(versions.value()?.is_none());
            let (key, seq) = (versions.key(), versions.seq());
            if !(self.meta().min_seq..=self.meta().max_seq).contains(&seq) {
                return Err(self.damaged_block(number));
            }
            if last.as_ref().is_none_or(|last| last.table != key.table || last.key != key.bytes) {
                summary.keys += 1;
                if !self.filter.may_contain(HashedKey::new(key.table, key.bytes, self.hash_seed).hash) {
                    let offset = self.footer.index_offset + self.footer.index_bytes;
                    return Err(self.corruption(offset, "the filter does not know a key of the run"));
                }
            }
            let last = last.get_or_insert_default();
            (last.table, last.seq) = (key.table, seq);
            last.key.clear();
            last.key.extend_from_slice(key.bytes);
        }
        if summary.records > 0 {
            followed = self.follow(followed, number)?;
        }
        if followed != self.footer.index_offset {
            return Err(self.corruption(followed, "these bytes belong to nothing"));
        }
        if (summary.records, summary.keys) != (self.footer.records, self.footer.keys) {
            let offset = self.meta().bytes - FOOTER_BYTES as u64;
            return Err(self.corruption(offset, "the footer counts other records than there are"));
        }
        Ok(summary)
    }

    /// Checks that a block begins where the bytes followed so far end; answers its end.
    fn follow(&self, followed: u64, number: usize) -> Result<u64> {
        match self.index.block(number) {
            Some(place) if place.offset == followed => Ok(followed + u64::from(place.bytes)),
            _ => Err(self.corruption(followed, "these bytes belong to nothing")),
        }
    }
}
