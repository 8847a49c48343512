//! One cursor over several layers.
//!
//! Owns: the merge by key, in which the newest layer that has a key decides. Promises: keys come in order,
//! each once; deletions are kept and marked, so that a merge may lie over another. May call: the layers' own
//! cursors.

use std::ops::Bound;

use crate::error::Result;
use crate::layer::LayerCursor;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cursor over sources that are ordered newest first. With a handful of sources a linear look at all their
/// keys is as quick as a heap, and knows at once which sources stand on the same key.
pub(crate) struct MergeCursor {
    sources: Vec<Box<dyn LayerCursor>>,
    /// The newest source among those that stand on the current key.
    current: Option<usize>,
    direction: Direction,
    /// The current key, when the direction is turned round or sources have to be moved off it.
    key: Vec<u8>,
}

impl MergeCursor {
    pub fn new(sources: Vec<Box<dyn LayerCursor>>) -> MergeCursor {
        MergeCursor { sources, current: None, direction: Direction::Forward, key: Vec::new() }
    }

    /// Moves to the first key within a lower bound.
    pub fn seek_bound(&mut self, lower: Bound<&[u8]>) -> Result<()> {
        match lower {
            Bound::Unbounded => self.seek(b""),
            Bound::Included(key) => self.seek(key),
            Bound::Excluded(key) => {
                self.seek(key)?;
                if self.key() == Some(key) { self.next() } else { Ok(()) }
            }
        }
    }

    /// Moves to the last key within an upper bound.
    pub fn seek_back_bound(&mut self, upper: Bound<&[u8]>) -> Result<()> {
        match upper {
            Bound::Unbounded => self.seek_before(None),
            Bound::Excluded(key) => self.seek_before(Some(key)),
            Bound::Included(key) => {
                // The key right behind `key` is `key` and a zero byte.
                let mut successor = std::mem::take(&mut self.key);
                successor.clear();
                successor.extend_from_slice(key);
                successor.push(0);
                let found = self.seek_before(Some(&successor));
                self.key = successor;
                found
            }
        }
    }

    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        for source in &mut self.sources {
            source.seek(key)?;
        }
        self.direction = Direction::Forward;
        self.choose();
        Ok(())
    }

    /// Moves to the last key before `key`, or to the last of all.
    pub fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        for source in &mut self.sources {
            source.seek_before(key)?;
        }
        self.direction = Direction::Backward;
        self.choose();
        Ok(())
    }

    pub fn next(&mut self) -> Result<()> {
        let Some(current) = self.current else { return Ok(()) };
        if let [source] = &mut self.sources[..] {
            source.next()?;
            self.direction = Direction::Forward;
            self.current = source.key().map(|_| 0);
            return Ok(());
        }
        self.remember(current);
        if self.direction == Direction::Backward {
            // Sources other than the current one stand before the key: bring them behind it.
            for source in &mut self.sources {
                source.seek(&self.key)?;
            }
            self.direction = Direction::Forward;
        }
        for source in &mut self.sources {
            if source.key() == Some(&self.key) {
                source.next()?;
            }
        }
        self.choose();
        Ok(())
    }

    pub fn prev(&mut self) -> Result<()> {
        let Some(current) = self.current else { return Ok(()) };
        if let [source] = &mut self.sources[..] {
            source.prev()?;
            self.direction = Direction::Backward;
            self.current = source.key().map(|_| 0);
            return Ok(());
        }
        self.remember(current);
        if self.direction == Direction::Forward {
            for source in &mut self.sources {
                source.seek_before(Some(&self.key))?;
            }
            self.direction = Direction::Backward;
        } else {
            for source in &mut self.sources {
                if source.key() == Some(&self.key) {
                    source.prev()?;
                }
            }
        }
        self.choose();
        Ok(())
    }

    pub fn key(&self) -> Option<&[u8]> {
        self.sources[self.current?].key()
    }

    /// Key and value at the cursor; `None` off the end and where the key is deleted.
    pub fn record(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some(current) = self.current else { return Ok(None) };
        self.sources[current].load()?;
        let source = &self.sources[current];
        Ok(source.key().zip(source.loaded()?))
    }

    /// Moves on past deletions, in the direction of the last move.
    pub fn skip_deleted(&mut self) -> Result<()> {
        while self.current.is_some_and(|current| self.sources[current].is_deletion()) {
            match self.direction {
                Direction::Forward => self.next()?,
                Direction::Backward => self.prev()?,
            }
        }
        Ok(())
    }

    fn remember(&mut self, current: usize) {
        self.key.clear();
        self.key.extend_from_slice(self.sources[current].key().unwrap_or_default());
    }

    /// Finds the source with the next key in the direction; of equal keys the first, which is the newest.
    fn choose(&mut self) {
        let mut best: Option<(usize, &[u8])> = None;
        for (index, source) in self.sources.iter().enumerate() {
            let Some(key) = source.key() else { continue };
            let better = match (best, self.direction) {
                (None, _) => true,
                (Some((_, best)), Direction::Forward) => key < best,
                (Some((_, best)), Direction::Backward) => key > best,
            };
            if better {
                best = Some((index, key));
            }
        }
        self.current = best.map(|(index, _)| index);
    }
}
