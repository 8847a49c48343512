//! artmap's arena trie: an adaptive radix tree with optimistic locks. Stores a key of 16 bytes and a number, both
//! in the leaf.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use artmap::ArenaArtMap;
use artmap::arena::Arena;

use super::operations::{Direction, Log, Operations};
use crate::data::{self, Key};

pub struct Art(ArenaArtMap<Key, [u8; 8]>);

impl Art {
    /// With memory for this many bytes, touched before by choice: by a map that was in it.
    pub fn new(arena_bytes: usize, touched: bool) -> Result<Art> {
        let mut arena = Arena::with_capacity(arena_bytes);
        if touched {
            let map = ArenaArtMap::new(arena.clone());
            let mut index = 0;
            while map.try_insert(data::key(index), [0; 8]).is_ok() {
                index += 1;
            }
            drop(map);
            Arc::get_mut(&mut arena).context("the map is gone, and nobody else has the arena")?.reset();
        }
        Ok(Art(ArenaArtMap::new(arena)))
    }
}

impl Operations for Art {
    #[inline]
    fn put(&self, key: &Key, value: &[u8], _: Log) -> Result<()> {
        self.0.insert(*key, value.try_into()?);
        Ok(())
    }

    #[inline]
    fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()> {
        if let Some(entry) = self.0.get_entry(key) {
            found(entry.value());
        }
        Ok(())
    }

    #[inline]
    fn seek(&self, key: &Key, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let _ = self.0.range::<_, Key>(*key..).try_for_each(|entry| each(entry.key(), entry.value()));
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

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.0.arena().size())
    }
}
