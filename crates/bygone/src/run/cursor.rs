//! A cursor over one table of a run, as of a sequence number.
//!
//! Owns: a copy of the block it stands in, so that it holds no guard of the cache between calls. Promises:
//! what [`LayerCursor`] says, both ways at the same cost; versions that are not to be seen are passed by a
//! few steps, and by a search if they are many. May call: the reader, `layer`, `error`.

use std::sync::Arc;

use super::block::{Block, Layout, Record, Stored, VersionPlace};
use super::reader::Run;
use crate::error::{Error, Result};
use crate::layer::{LayerCursor, VersionCursor};

/// After so many steps over versions that are not to be seen, a search is cheaper.
const STEPS_BEFORE_SEARCH: usize = 8;

/// A cursor over one table of a run.
pub(crate) struct RunCursor {
    run: Arc<Run>,
    table: u32,
    seq: u64,
    /// The table's first and last block, if it has any.
    bounds: Option<(usize, usize)>,
    /// The block that is copied here; `None` if there is none, or reading one failed.
    number: Option<usize>,
    bytes: Vec<u8>,
    layout: Layout,
    /// The record the cursor stands on, in the block that is copied.
    at: usize,
    /// Off either end, the rest says nothing.
    on_record: bool,
    deletion: bool,
    key: Vec<u8>,
    /// The value of the record, if it had to be loaded.
    outside: Option<Vec<u8>>,
}

impl RunCursor {
    pub(super) fn new(run: Arc<Run>, table: u32, seq: u64) -> RunCursor {
        let blocks = run.index.table_blocks(table);
        RunCursor {
            table,
            seq,
            bounds: (!blocks.is_empty()).then(|| (blocks.start, blocks.end - 1)),
            run,
            number: None,
            bytes: Vec::new(),
            layout: Layout::default(),
            at: 0,
            on_record: false,
            deletion: false,
            key: Vec::new(),
            outside: None,
        }
    }

    /// Copies a block, unless it is the one that is here.
    fn load(&mut self, number: usize) -> Result<()> {
        if self.number == Some(number) {
            return Ok(());
        }
        self.number = None;
        let (bytes, layout) = (&mut self.bytes, &mut self.layout);
        self.run.with_block(number, |block| {
            bytes.clear();
            bytes.extend_from_slice(block.bytes());
            *layout = block.layout();
            Some(())
        })?;
        self.number = Some(number);
        Ok(())
    }

    #[inline]
    fn block(&self) -> Result<Block<'_>> {
        Block::new(&self.bytes, self.layout).ok_or_else(|| self.damaged())
    }

    #[inline]
    fn record(&self) -> Result<(Block<'_>, Record<'_>)> {
        let block = self.block()?;
        let record = block.record(self.at).ok_or_else(|| self.damaged())?;
        Ok((block, record))
    }

    #[cold]
    fn damaged(&self) -> Error {
        self.run.damaged_block(self.number.unwrap_or(0))
    }

    /// Where the cursor is. Every move changes it in the move's own direction, or fails: so a scan ends, also
    /// if the records of a file are not in the order that they should be in.
    fn position(&self) -> (Option<usize>, usize) {
        (self.number, self.at)
    }

    /// Goes to the record behind; `false` at the table's end.
    #[inline]
    fn step(&mut self) -> Result<bool> {
        self.at += 1;
        self.enter_next_if_behind()
    }

    /// From behind a block's last record to the next block's first; `false` at the table's end.
    #[inline]
    fn enter_next_if_behind(&mut self) -> Result<bool> {
        if self.at < self.block()?.count() {
            return Ok(true);
        }
        let (Some(number), Some((_, last))) = (self.number, self.bounds) else { return Ok(false) };
        if number == last {
            return Ok(false);
        }
        self.load(number + 1)?;
        self.at = 0;
        Ok(true)
    }

    /// Goes to the last record of the block before; `false` in the table's first block.
    fn enter_previous(&mut self) -> Result<bool> {
        let (Some(number), Some((first, _))) = (self.number, self.bounds) else { return Ok(false) };
        if number == first {
            return Ok(false);
        }
        self.load(number - 1)?;
        self.at = self.block()?.count() - 1;
        Ok(true)
    }

    /// Goes to the first record that does not stand before the place, or behind the last of its block;
    /// `false` if the run has nothing of the table.
    fn search(&mut self, key: &[u8], place: VersionPlace) -> Result<bool> {
        let Some(number) = self.run.index.search(self.table, key, place) else { return Ok(false) };
        self.load(number)?;
        self.at = self.block()?.lower_bound(key, place).ok_or_else(|| self.damaged())?;
        Ok(true)
    }

    /// Like [`Self::search`] for a place of the key in `self.key`, going on to the next block; `false` at the
    /// table's end.
    fn search_own(&mut self, place: VersionPlace) -> Result<bool> {
        let key = std::mem::take(&mut self.key);
        let found = self.search(&key, place);
        self.key = key;
        Ok(found? && self.enter_next_if_behind()?)
    }

    fn copy_key(&mut self) -> Result<()> {
        let block = Block::new(&self.bytes, self.layout);
        let record = block.and_then(|block| Some((block.prefix(), block.record(self.at)?.suffix)));
        let Some((prefix, suffix)) = record else { return Err(self.damaged()) };
        self.key.clear();
        self.key.extend_from_slice(prefix);
        self.key.extend_from_slice(suffix);
        Ok(())
    }

    /// Ends a move on the record the cursor is at.
    #[inline]
    fn land(&mut self) -> Result<()> {
        self.copy_key()?;
        self.land_on_own_key()
    }

    /// Ends a move on the record the cursor is at, whose key is in `self.key` already.
    #[inline]
    fn land_on_own_key(&mut self) -> Result<()> {
        self.deletion = self.record()?.1.stored == Stored::Deletion;
        self.on_record = true;
        Ok(())
    }

    /// From a key's first version, or from its newest that is to be seen, forward to the first record that is
    /// to be seen, and lands there.
    ///
    /// Versions of a key are sorted newest first, so whichever comes first that is old enough is the right
    /// one of its key.
    fn land_forward(&mut self) -> Result<()> {
        let mut steps = 0;
        while self.record()?.1.seq > self.seq {
            steps += 1;
            let more = if steps % STEPS_BEFORE_SEARCH != 0 {
                self.step()?
            } else {
                let before = self.position();
                self.copy_key()?;
                let more = self.search_own(VersionPlace::AtMost(self.seq))?;
                if more && self.position() <= before {
                    return Err(self.damaged());
                }
                more
            };
            if !more {
                return Ok(());
            }
        }
        self.land()
    }

    /// From a key's oldest version to its newest one that is to be seen, or to that of a key before, and
    /// lands there.
    fn land_backward(&mut self) -> Result<()> {
        loop {
            self.copy_key()?;
            if self.record()?.1.seq <= self.seq {
                self.go_to_newest_seen()?;
                return self.land_on_own_key();
            }
            if !self.leave_key_backward()? {
                return Ok(());
            }
        }
    }

    /// From a version of the key in `self.key` that is to be seen to the newest such version.
    fn go_to_newest_seen(&mut self) -> Result<()> {
        for _ in 0..STEPS_BEFORE_SEARCH {
            if self.at == 0 {
                if !self.begins_within_a_key() {
                    return Ok(());
                }
                break;
            }
            let block = self.block()?;
            let before = block.record(self.at - 1).ok_or_else(|| self.damaged())?;
            if before.seq > self.seq || !block.is_key(&before, &self.key) {
                return Ok(());
            }
            self.at -= 1;
        }
        let before = self.position();
        let found = self.search_own(VersionPlace::AtMost(self.seq))?;
        let (block, record) = self.record()?;
        if !found || self.position() > before || !block.is_key(&record, &self.key) {
            return Err(self.damaged());
        }
        Ok(())
    }

    /// From a version of the key in `self.key` to the last record before all versions of it; `false` if there
    /// is none.
    fn leave_key_backward(&mut self) -> Result<bool> {
        let mut steps = 0;
        loop {
            if self.at == 0 && !self.begins_within_a_key() {
                return self.enter_previous();
            }
            if self.at > 0 {
                let block = self.block()?;
                let before = block.record(self.at - 1).ok_or_else(|| self.damaged())?;
                if !block.is_key(&before, &self.key) {
                    self.at -= 1;
                    return Ok(true);
                }
                if steps < STEPS_BEFORE_SEARCH {
                    steps += 1;
                    self.at -= 1;
                    continue;
                }
            }
            let before = self.position();
            if !self.search_own(VersionPlace::FIRST)? || self.position() >= before {
                return Err(self.damaged());
            }
        }
    }

    /// Whether the versions of the block's first key begin in a block before.
    fn begins_within_a_key(&self) -> bool {
        self.number.is_some_and(|number| self.run.index.begins_within_a_key(number))
    }

    /// Notes that the cursor is nowhere, until it lands.
    fn depart(&mut self) {
        self.on_record = false;
        self.outside = None;
    }
}

impl LayerCursor for RunCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.depart();
        if self.search(key, VersionPlace::FIRST)? && self.enter_next_if_behind()? {
            self.land_forward()?;
        }
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.depart();
        let Some((_, last)) = self.bounds else { return Ok(()) };
        match key {
            Some(key) => {
                self.search(key, VersionPlace::FIRST)?;
            }
            None => {
                self.load(last)?;
                self.at = self.block()?.count();
            }
        }
        let found = match self.at.checked_sub(1) {
            Some(before) => {
                self.at = before;
                true
            }
            None => self.enter_previous()?,
        };
        if found { self.land_backward() } else { Ok(()) }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if !self.on_record {
            return Ok(());
        }
        self.depart();
        for _ in 0..STEPS_BEFORE_SEARCH {
            if !self.step()? {
                return Ok(());
            }
            let (block, record) = self.record()?;
            if !block.is_key(&record, &self.key) {
                return self.land_forward();
            }
        }
        let before = self.position();
        if !self.search_own(VersionPlace::Behind)? {
            return Ok(());
        }
        if self.position() <= before { Err(self.damaged()) } else { self.land_forward() }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if !self.on_record {
            return Ok(());
        }
        self.depart();
        if self.leave_key_backward()? {
            self.land_backward()?;
        }
        Ok(())
    }

    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.on_record.then_some(&*self.key)
    }

    fn load(&mut self) -> Result<()> {
        assert!(self.on_record, "a cursor off the end has no value");
        if let Stored::Outside(value) = self.record()?.1.stored
            && self.outside.is_none()
        {
            let mut bytes = Vec::new();
            self.run.read_outside(value, &mut bytes)?;
            self.outside = Some(bytes);
        }
        Ok(())
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        Ok(match self.record()?.1.stored {
            Stored::Deletion => None,
            Stored::Inline(value) => Some(value),
            Stored::Outside(_) => self.outside.as_deref(),
        })
    }

    fn is_deletion(&self) -> bool {
        self.on_record && self.deletion
    }
}

impl VersionCursor for RunCursor {
    fn seq(&self) -> Result<u64> {
        Ok(self.record()?.1.seq)
    }
}
