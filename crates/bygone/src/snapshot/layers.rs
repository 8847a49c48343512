//! A view's stack of layers, and reading through it.
//!
//! Owns: the order in which layers are asked. Promises: a view answers from what it holds alone, so nothing
//! that is flushed, merged or dropped later changes its answers. May call: memtable, run, base.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

use super::cursor::MergeCursor;
use super::rows::{self, FIRST_TABLE};
use super::scans::Scans;
use super::since::Since;
use super::table::TableDirectory;
use crate::base::BaseVersion;
use crate::error::{Error, Result};
use crate::ids::{Seq, Window};
use crate::layer::{HashedKey, LayerCursor, Lookup};
use crate::memtable::Memtable;
use crate::run::Run;

/// From so many runs on, their filters are fetched all at once.
const PREFETCHED_RUNS_MIN: usize = 3;

/// What all views of one open database share.
pub(crate) struct Context {
    pub hash_seed: u64,
    pub tables: TableDirectory,
    pub scans: Scans,
    /// Held as long as anything can read the files: nobody else may write them meanwhile.
    pub _lock: Box<dyn Send + Sync>,
}

/// What a scan hands each record to, borrowed.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// The immutable part of a view: sorted layers, newest first. Together with a sequence number it is a view.
pub(crate) struct Layers {
    pub context: Arc<Context>,
    /// Newest first: the active memtable, then the frozen ones. The active one still grows, by versions that
    /// are newer than any view that has this stack.
    pub memtables: Vec<Arc<Memtable>>,
    /// Newest first.
    pub runs: Vec<Arc<Run>>,
    pub base: Arc<BaseVersion>,
    /// This stack is exact for every sequence number from here on, and for the declared snapshots. Flushes
    /// and merges drop versions that only other, older numbers could see.
    pub exact_from: u64,
    /// Also for every number from here on. Whoever drops versions does so by a start that was published here
    /// before: so a view whose layers have an earlier one has all that it needs.
    pub window: Option<WindowState>,
}

/// The continuous window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowState {
    /// For how long a commit is kept at least; never 0.
    pub length_micros: u64,
    pub start: WindowStart,
}

impl WindowState {
    /// The same, beginning here, or later if it does so already: it never goes back.
    pub fn beginning_at(self, start: WindowStart) -> WindowState {
        if start.seq > self.start.seq { WindowState { start, ..self } } else { self }
    }

    pub fn until(self, last: Seq) -> Window {
        Window {
            length: Duration::from_micros(self.length_micros),
            first: Seq(self.start.seq),
            since: rows::time(self.start.time_micros),
            last,
        }
    }
}

/// Where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowStart {
    /// The first commit of it.
    pub seq: u64,
    /// When that was made.
    pub time_micros: u64,
}

impl Layers {
    /// The same stack under a new active memtable.
    pub fn with_memtable(&self, memtable: Arc<Memtable>) -> Layers {
        let memtables = std::iter::once(memtable).chain(self.memtables.iter().cloned()).collect();
        Layers { memtables, runs: self.runs.clone(), ..self.shallow() }
    }

    /// The same stack with a flushed memtable's run in its place. `exact_from` is the last commit in it:
    /// between versions of one key the flush kept only what that number or a declared snapshot can see.
    pub fn with_flushed(&self, memtable: &Arc<Memtable>, run: Option<Arc<Run>>, exact_from: u64) -> Layers {
        let memtables =
            self.memtables.iter().filter(|other| !Arc::ptr_eq(other, memtable)).cloned().collect();
        let runs = run.into_iter().chain(self.runs.iter().cloned()).collect();
        Layers { memtables, runs, exact_from: exact_from.max(self.exact_from), ..self.shallow() }
    }

    /// The same stack over a new base, without the runs that are merged into it.
    pub fn with_merged(&self, base: Arc<BaseVersion>, merged: &[Arc<Run>], exact_from: u64) -> Layers {
        let runs = self.runs.iter().filter(|run| !merged.iter().any(|other| Arc::ptr_eq(other, run)));
        let runs = runs.cloned().collect();
        let memtables = self.memtables.clone();
        Layers { memtables, runs, base, exact_from: exact_from.max(self.exact_from), ..self.shallow() }
    }

    /// The same stack with one run in the place of several neighbours.
    pub fn with_consolidated(&self, old: &[Arc<Run>], new: Arc<Run>) -> Layers {
        let mut runs = self.runs.clone();
        let first = runs.iter().position(|run| Arc::ptr_eq(run, &old[0]));
        let first = first.expect("the runs that were consolidated are in the stack");
        let exact_from = new.meta().max_seq.max(self.exact_from);
        runs.splice(first..first + old.len(), [new]);
        Layers { memtables: self.memtables.clone(), runs, exact_from, ..self.shallow() }
    }

    /// The same stack, with the window beginning here, or later if it does so already.
    pub fn with_window_from(&self, start: WindowStart) -> Layers {
        let window = self.window.map(|window| window.beginning_at(start));
        Layers { memtables: self.memtables.clone(), runs: self.runs.clone(), window, ..self.shallow() }
    }

    pub fn bad_row(&self, kind: &str, key: &str) -> Error {
        let reason = format!("the row of {kind} {key:?} cannot be read");
        Error::corruption(self.base.store().path(), 0, reason)
    }

    fn shallow(&self) -> Layers {
        Layers {
            context: self.context.clone(),
            memtables: Vec::new(),
            runs: Vec::new(),
            base: self.base.clone(),
            exact_from: self.exact_from,
            window: self.window,
        }
    }

    /// The newest version of a key that is not newer than `seq`; its value goes to `found`.
    pub fn get(&self, table: u32, key: &[u8], seq: u64, found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let hashed = HashedKey::new(table, key, self.context.hash_seed);
        for memtable in &self.memtables {
            match memtable.get(&hashed, seq, found) {
                Lookup::Absent => {}
                other => return Ok(other == Lookup::Found),
            }
        }
        if self.runs.len() >= PREFETCHED_RUNS_MIN {
            // One after the other their filters would be waited for one after the other.
            self.runs.iter().for_each(|run| run.prefetch(&hashed, seq));
        }
        for run in &self.runs {
            match run.get(&hashed, seq, found)? {
                Lookup::Absent => {}
                other => return Ok(other == Lookup::Found),
            }
        }
        Ok(self.base.get(table, key, found)? == Lookup::Found)
    }

    /// The sequence number of the newest commit that wrote this key; `None` if only the base knows, whose
    /// versions are all older than any transaction's read point that this is asked for.
    pub fn newest_seq(&self, key: &HashedKey<'_>) -> Result<Option<u64>> {
        for memtable in &self.memtables {
            if let Some(seq) = memtable.newest_seq(key) {
                return Ok(Some(seq));
            }
        }
        for run in &self.runs {
            if let Some(seq) = run.newest_seq(key)? {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }

    /// The number of the commit that wrote the value, or the lack of one, that a key has as of `seq`; `None` if
    /// only the base knows.
    pub fn version_seq(&self, key: &HashedKey<'_>, seq: u64) -> Result<Option<u64>> {
        for memtable in &self.memtables {
            if let Some(seq) = memtable.version_seq(key, seq) {
                return Ok(Some(seq));
            }
        }
        for run in &self.runs {
            if let Some(seq) = run.version_seq(key, seq)? {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }

    /// The number of the first commit behind `after`, and not behind `last`, that wrote a key, as far as that matters
    /// to declared snapshots and in the window. `after` is not older than the base.
    pub fn next_seq(&self, key: &HashedKey<'_>, after: u64, last: u64) -> Result<Option<u64>> {
        let within = |seq: &u64| *seq <= last;
        // The oldest layer first: each has only what is newer than all below it.
        for run in self.runs.iter().rev().filter(|run| run.meta().min_seq <= last) {
            if let Some(seq) = run.next_seq(key, after)?.filter(within) {
                return Ok(Some(seq));
            }
        }
        let memtables = self.memtables.iter().rev();
        Ok(memtables.filter_map(|memtable| memtable.next_seq(key, after)).find(within))
    }

    /// A cursor over one table as of `seq`, through all layers, and through `top` above them.
    pub fn cursor_under(&self, top: Option<Box<dyn LayerCursor>>, table: u32, seq: u64) -> MergeCursor {
        let mut cursors: Vec<_> = top.into_iter().chain(self.overlay(table, seq)).collect();
        cursors.push(Box::new(self.base.cursor(table)));
        MergeCursor::new(cursors)
    }

    /// The cursors over everything that lies above the base, newest first.
    pub(super) fn overlay(&self, table: u32, seq: u64) -> Vec<Box<dyn LayerCursor>> {
        let memtables = self.memtables.iter().filter(|memtable| !memtable.is_empty());
        let memtables = memtables.map(|m| Box::new(m.cursor(table, seq)) as Box<dyn LayerCursor>);
        if !self.runs.is_empty() && table >= FIRST_TABLE {
            self.context.scans.note();
        }
        let runs = self.runs.iter().filter(|run| run.meta().min_seq <= seq);
        let runs = runs.map(|run| Box::new(run.cursor(table, seq)) as Box<dyn LayerCursor>);
        memtables.chain(runs).collect()
    }

    /// The cursors over what lies above the base and was written after the commit `after`, newest first, as of
    /// `seq`.
    pub(super) fn overlay_since(&self, after: u64, table: u32, seq: u64) -> Vec<Box<dyn LayerCursor>> {
        let memtables = self.memtables.iter().filter(|memtable| !memtable.is_empty());
        let memtables = memtables.map(|memtable| Since::boxed(memtable.cursor(table, seq), after));
        let written = |run: &&Arc<Run>| run.meta().min_seq <= seq && run.meta().max_seq > after;
        let runs = self.runs.iter().filter(written);
        let runs = runs.map(|run| Since::boxed(run.cursor(table, seq), after));
        memtables.chain(runs).collect()
    }

    /// Calls `f` with each record between the bounds, in order, borrowed.
    ///
    /// The base is walked page by page; the few records of the layers above it are woven in.
    pub fn for_each(
        &self,
        table: u32,
        seq: u64,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        f: Visit<'_>,
    ) -> Result<()> {
        let mut overlay = MergeCursor::new(self.overlay(table, seq));
        overlay.seek_bound(lower)?;
        if overlay.key().is_none() {
            return self.base.for_each(table, lower, upper, f);
        }
        let mut failed = Ok(());
        let mut stopped = false;
        self.base.for_each(table, lower, upper, &mut |key, value| {
            match emit_before(&mut overlay, Some(key), upper, f) {
                Ok(Woven::Stop) => stopped = true,
                Ok(Woven::Replaced) => {}
                Ok(Woven::Continue) => stopped = f(key, value).is_break(),
                Err(error) => {
                    failed = Err(error);
                    stopped = true;
                }
            }
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failed?;
        if !stopped {
            emit_before(&mut overlay, None, upper, f)?;
        }
        Ok(())
    }
}

enum Woven {
    Stop,
    /// The record of the base is hidden by a newer one, which was handed out (or is a deletion).
    Replaced,
    Continue,
}

/// Hands out the overlay's records up to and including `key`, or to the upper bound if there is no key.
fn emit_before(
    overlay: &mut MergeCursor,
    key: Option<&[u8]>,
    upper: Bound<&[u8]>,
    f: Visit<'_>,
) -> Result<Woven> {
    while let Some(next) = overlay.key() {
        let order = match key {
            Some(key) => next.cmp(key),
            None if is_past(next, upper) => return Ok(Woven::Continue),
            None => std::cmp::Ordering::Less,
        };
        if order.is_gt() {
            return Ok(Woven::Continue);
        }
        if let Some((key, value)) = overlay.record()?
            && f(key, value).is_break()
        {
            return Ok(Woven::Stop);
        }
        overlay.next()?;
        if order.is_eq() {
            return Ok(Woven::Replaced);
        }
    }
    Ok(Woven::Continue)
}

/// Whether a key lies behind the upper bound.
pub(super) fn is_past(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(upper) => key > upper,
        Bound::Excluded(upper) => key >= upper,
        Bound::Unbounded => false,
    }
}

/// Whether a key lies before the lower bound.
pub(super) fn is_before(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Included(lower) => key < lower,
        Bound::Excluded(lower) => key <= lower,
        Bound::Unbounded => false,
    }
}
