//! crossbeam-skiplist: a lock-free skip list. Stores a key of 16 bytes and a number, both in the node.

use std::ops::ControlFlow;

use anyhow::Result;
use crossbeam_skiplist::SkipMap;

use super::operations::{Direction, Log, Operations};
use crate::data::Key;

#[derive(Default)]
pub struct SkipList(SkipMap<Key, [u8; 8]>);

impl Operations for SkipList {
    #[inline]
    fn put(&self, key: &Key, value: &[u8], _: Log) -> Result<()> {
        self.0.insert(*key, value.try_into()?);
        Ok(())
    }

    #[inline]
    fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()> {
        if let Some(entry) = self.0.get(key) {
            found(entry.value());
        }
        Ok(())
    }

    #[inline]
    fn seek(&self, key: &Key, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let _ = self.0.range::<Key, _>(*key..).try_for_each(|entry| each(entry.key(), entry.value()));
        Ok(())
    }

    fn scan(&self, direction: Direction, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        match direction {
            Direction::Forward => self.0.iter().for_each(|entry| each(entry.key(), entry.value())),
            Direction::Backward => self.0.iter().rev().for_each(|entry| each(entry.key(), entry.value())),
        }
        Ok(())
    }

    fn is_in_memtable(&self) -> Result<bool> {
        Ok(true)
    }
}
