//! Bygone's memtable alone. Stores keys and values as bytes of any length, with table and sequence number.

use std::ops::ControlFlow;

use anyhow::Result;
use bygone::internals;

use super::operations::{Direction, Log, Operations};
use crate::data::Key;

const TABLE: u32 = 1;

/// All records are of one commit.
const SEQ: u64 = 1;

pub struct Memtable(internals::Memtable);

impl Memtable {
    /// With memory for this many bytes, touched before by choice, as that of a standby memtable is.
    pub fn new(budget_bytes: usize, touched: bool) -> Memtable {
        let mut memtable = internals::Memtable::new(budget_bytes);
        if touched {
            memtable.touch();
        }
        Memtable(memtable)
    }
}

impl Operations for Memtable {
    #[inline]
    fn put(&self, key: &Key, value: &[u8], _: Log) -> Result<()> {
        self.0.insert(SEQ, TABLE, key, Some(value));
        Ok(())
    }

    #[inline]
    fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()> {
        self.0.get_with(TABLE, key, SEQ, found);
        Ok(())
    }

    #[inline]
    fn seek(&self, key: &Key, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let mut cursor = self.0.cursor(TABLE, SEQ);
        cursor.seek(key);
        while let Some((key, value)) = cursor.key().zip(cursor.value()) {
            if each(key, value).is_break() {
                break;
            }
            cursor.next();
        }
        Ok(())
    }

    fn scan(&self, direction: Direction, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.0.cursor(TABLE, SEQ);
        match direction {
            Direction::Forward => cursor.seek(&[]),
            Direction::Backward => cursor.seek_before(None),
        }
        while let Some((key, value)) = cursor.key().zip(cursor.value()) {
            each(key, value);
            match direction {
                Direction::Forward => cursor.next(),
                Direction::Backward => cursor.prev(),
            }
        }
        Ok(())
    }

    fn is_in_memtable(&self) -> Result<bool> {
        Ok(!self.0.is_full())
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.0.memory_bytes())
    }
}
