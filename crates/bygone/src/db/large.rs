//! Which way a commit takes: through the log, or, if it is large, straight into the base.
//!
//! Owns: the choice, and what a large transaction's bulk commit consists of. Promises: to whoever commits, reads, or
//! goes back in time the two are the same. May call: bulk commits.
//!
//! Through the log every byte is written to the log, then to a run, then to the base. Straight into the base it is
//! written once. But then the pages in which it lies are rewritten for it alone, not for many commits at once, and so
//! are those of what waits to be merged, which has to be in the base before. So this is for what is large, has little
//! before it, and either lies close together or is so much of the base that a merge would follow at once.

use std::iter::Peekable;
use std::sync::{Mutex, TryLockError};

use super::Open;
use super::engine::Engine;
use crate::base::Updates;
use crate::error::Result;
use crate::limits::{COMMIT_BYTES_MAX, PAGE_BYTES};
use crate::txn::Owner;
use crate::txn::commit::{Committed, Request};
use crate::txn::record::check_size;
use crate::txn::write_set::Writes;

/// A commit is large if it has this part of a memtable's bytes: a bulk commit takes several syncs, and others wait for
/// it.
const LARGE_PART: usize = 4;

/// What is rewritten for a large commit alone may have this part of its bytes.
const REWRITTEN_PART: u64 = 8;

impl Owner for Open {
    fn commit(&self, request: Request) -> Result<Committed> {
        self.engine.commit_request(request)
    }
}

impl Engine {
    /// Commits.
    pub(super) fn commit_request(&self, request: Request) -> Result<Committed> {
        let is_large = request.writes.bytes() >= self.options.memtable_bytes / LARGE_PART;
        // What cannot be estimated is the base's affair, not this commit's.
        match is_large && self.suits_bulk(&request.writes).unwrap_or(false) {
            true => self.commit_in_bulk(request),
            false => self.writer()?.committer.commit(request),
        }
    }

    /// Whether a large commit costs less if it goes straight into the base.
    fn suits_bulk(&self, writes: &Writes) -> Result<bool> {
        // A merge or pruning that is under way may take long. Behind another bulk commit everybody waits.
        let is_held = |lock: &Mutex<()>| matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
        if is_held(&self.merging) && !is_held(&self.bulk) {
            return Ok(false);
        }
        let bytes = writes.bytes() as u64;
        let layers = self.present.layers();
        let filled = layers.memtables.iter().filter(|table| !table.is_empty());
        let memtables = filled.map(|table| (table.records() as u64, table.bytes().entries as u64));
        let runs = layers.runs.iter().map(|run| (run.meta().records, run.meta().bytes));
        let (waiting_records, waiting_bytes) =
            memtables.chain(runs).fold((0, 0), |sum, (records, bytes)| (sum.0 + records, sum.1 + bytes));
        if waiting_bytes > bytes {
            return Ok(false);
        }
        if bytes >= self.due_bytes() {
            return Ok(true);
        }
        // At worst each record that waits has a page of its own.
        let mut pages = waiting_records;
        let pages_max = bytes / REWRITTEN_PART / PAGE_BYTES as u64;
        for table in writes.tables() {
            let keys: Vec<&[u8]> = writes.of_table(table).map(|(key, _)| key).collect();
            pages += layers.base.reached_leaves(table, &keys, pages_max.saturating_sub(pages))?;
        }
        Ok(pages <= pages_max)
    }

    fn commit_in_bulk(&self, request: Request) -> Result<Committed> {
        // However it is committed, the same is too much.
        check_size("a commit", request.writes.bytes(), COMMIT_BYTES_MAX)?;
        // Shares the records.
        let writes = request.writes.clone();
        let declaration = request.marks.declaration.clone();
        let (seq, snapshot) = self.bulk_commit_of(request, |bulk| {
            for table in writes.tables() {
                bulk.apply(table, &mut Sorted(writes.of_table(table).peekable()))?;
            }
            let place = bulk.place;
            declaration.map(|declaration| bulk.declare(declaration, place.seq, place.time_micros)).transpose()
        })?;
        Ok(Committed { seq, snapshot })
    }
}

/// A transaction's writes to one table as updates.
struct Sorted<'w, I: Iterator<Item = (&'w [u8], Option<&'w [u8]>)>>(Peekable<I>);

impl<'w, I: Iterator<Item = (&'w [u8], Option<&'w [u8]>)>> Updates for Sorted<'w, I> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.peek().map(|(key, _)| *key))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.peek().and_then(|(_, value)| *value))
    }

    fn advance(&mut self) -> Result<()> {
        self.0.next();
        Ok(())
    }
}
