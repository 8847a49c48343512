//! Merge: the runs that wait are folded into the base.
//!
//! Owns: when to merge, and the order of a merge's steps. Promises: a crash at any point leaves the old base
//! or the new, each whole; what declared snapshots and the window need of the old state is kept. May call:
//! everything below db.
//!
//! A merge takes all runs at once, because many changes per rewritten page are what makes a copy-on-write
//! tree cheap to update. Where no snapshot was declared in the merged interval it publishes in steps: each
//! step's tree is whole, holds newer versions for the keys up to some point, and lies under the very runs
//! that hold those versions too, so every view that may be taken reads the same through it; and the pages
//! that a step replaced can be used again by the next. So a merge does not need room for a second base. Where
//! snapshots were declared, the old base is what they are read through until the merge is done, and it is
//! published once, at the end. What changed until then is kept in the merged runs themselves, if snapshots see nearly
//! all that is in them: they get second names among the history runs. Else it is written. The same holds for the
//! window, which mostly is in every interval.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use super::engine::{Counters, Engine, lock};
use super::keep::RunsUntilClosed;
use crate::base::{Progress, Updates};
use crate::error::{Error, Result};
use crate::history::Interval;
use crate::history::plan::Plan;
use crate::history::visibility::Visibility;
use crate::io::{link_anew, remove, sync_dir};
use crate::layer::{Key, Versions};
use crate::limits::PAGE_BYTES;
use crate::run::{Run, RunMeta, RunWriter, file_name};
use crate::snapshot::Layers;
use crate::snapshot::rows::{self, FIRST_TABLE, TableRow};

/// Runs that wait before a merge is worth while, whatever their size, if it is cheap.
const RUNS_DUE: usize = 8;

/// With so many runs a merge does not wait until it is quite worth it.
const RUNS_CROWDED: usize = 2 * RUNS_DUE;

/// A merge is cheap while the last one wrote at most this many bytes for each byte of the runs: where writes
/// are near each other, it rewrites few pages. Else runs are consolidated until there are enough of them.
const CHEAP_FACTOR: u64 = 4;

/// A merge is due when the runs hold this part of the base's bytes: rewriting the base then costs at most
/// twice as many bytes again as the runs hold, and space is at most half as much again as the base.
const DUE_PART: u64 = 2;

/// When nobody writes, a merge is due at this part: readers gain, and the disk has nothing better to do.
const IDLE_DUE_PART: u64 = 16;

/// A history run is worth a file of its own if it has this part of a memtable's bytes, about half of what a full one
/// gives.
const HISTORY_RUN_WORTH_PART: u64 = 4;

/// A step of a merge rewrites this part of the base, but no less than half of a memtable's bytes: each step ends with
/// syncs, and a thread that sleeps often gets little of a busy processor.
const STEP_PART: u64 = 16;

impl Engine {
    /// Whether enough runs wait, for a disk that is idle or not.
    pub fn merge_is_due(&self, idle: bool) -> bool {
        let (runs, run_bytes, cheap) = {
            let manifest = lock(&self.manifest);
            let run_bytes = RunMeta::total_bytes(&manifest.runs);
            let cheap = manifest.last_merge_bytes <= manifest.last_merged_run_bytes * CHEAP_FACTOR;
            (manifest.runs.len(), run_bytes, cheap)
        };
        let due_bytes = if idle { self.base_bytes() / IDLE_DUE_PART } else { self.due_bytes() };
        // Many small runs that are nearly enough: consolidation leaves them to the merge.
        let crowded = runs >= RUNS_CROWDED && run_bytes >= due_bytes / 2;
        runs > 0 && (run_bytes >= due_bytes || crowded || (cheap && runs >= RUNS_DUE))
    }

    /// How many bytes of runs make a merge worth its while, whatever it rewrites.
    pub fn due_bytes(&self) -> u64 {
        self.base_bytes() / DUE_PART
    }

    /// Bytes of the present base's pages.
    pub fn base_bytes(&self) -> u64 {
        self.present.layers().base.tables().iter().map(|(_, root)| root.bytes_on_disk()).sum()
    }

    /// Merges all runs into the base; `false` if there are none.
    pub fn merge_all(&self) -> Result<bool> {
        self.merge_holding(&lock(&self.merging))
    }

    /// As [`merge_all`](Engine::merge_all), for who merges already.
    pub fn merge_holding(&self, _merging: &MutexGuard<'_, ()>) -> Result<bool> {
        let layers = self.present.layers();
        let runs = layers.runs.clone();
        let Some(newest) = runs.first() else { return Ok(false) };
        let (from, to) = (layers.base.seq(), newest.meta().max_seq);
        let committer = &self.writer()?.committer;
        let (chain, pinned_bytes) = {
            let manifest = lock(&self.manifest);
            (manifest.chain, manifest.last_merge_bytes)
        };
        let merged: Vec<RunMeta> = runs.iter().map(|run| *run.meta()).collect();
        let mut plan = Plan::new(self.needed_between(from, to)?, (from, to), &merged, chain, pinned_bytes);
        // Before anything else: until a row names them, they are litter there.
        plan.keep_runs = plan.keep_runs && self.link_to_history(&merged)?;
        let live = self.live_tables(&layers, to)?;
        let mut updates = self.newest_versions(&runs, &plan)?;
        let step_pages = if plan.needed.is_empty() {
            let step_bytes = (self.base_bytes() / STEP_PART).max(self.options.memtable_bytes as u64 / 2);
            step_bytes as usize / PAGE_BYTES
        } else {
            usize::MAX
        };

        let mut written_pages = 0;
        let mut base = layers.base.clone();
        // A step can use the pages that the step before replaced only if nobody holds the base of then:
        // neither may this thread.
        drop(layers);
        let mut rebuild = self.store.rebuild(&base)?;
        let notes_times = self.window_start().is_some();
        let is_live = |table: u32| match table {
            rows::COMMIT_TIMES => notes_times,
            _ => table < FIRST_TABLE || live.binary_search(&table).is_ok(),
        };
        for (dropped, _) in base.tables().iter().filter(|(table, _)| !is_live(*table)) {
            rebuild.drop_table(*dropped)?;
        }
        self.drop_old_times(&base, &mut rebuild)?;
        while let Some(table) = updates.next_table()? {
            self.health.check()?;
            if !is_live(table) {
                updates.skip_table()?;
            } else if rebuild.apply(table, &mut updates, step_pages)? == Progress::BudgetReached {
                written_pages += rebuild.written_pages();
                let retained = self.store.newest_retained();
                base = rebuild.finish(from, retained, || lock(&self.manifest).encode())?;
                self.present.publish(|layers| layers.with_merged(base.clone(), &[], to));
                self.relieve();
                rebuild = self.store.rebuild(&base)?;
            }
        }
        let kept = match updates.history.take() {
            Some(writer) => self.finish_history(writer, from, to)?.into_iter().collect(),
            None if plan.keep_runs => merged.clone(),
            None => Vec::new(),
        };
        if !plan.needed.is_empty() {
            let key_frame = plan.keep_base.then(|| base.root());
            let snapshots = plan.needed.count();
            let interval = Interval { from, key_frame, runs: kept.clone(), snapshots };
            rebuild.set(rows::HISTORY, &to.to_be_bytes(), Some(&interval.encode()))?;
        }
        written_pages += rebuild.written_pages();
        let written_bytes = written_pages * PAGE_BYTES as u64;
        let retained = if plan.keep_base { base.generation() } else { self.store.newest_retained() };
        let new_base = rebuild.finish(to, retained, || {
            let mut manifest = lock(&self.manifest);
            manifest.runs.retain(|run| !runs.iter().any(|merged| merged.meta().id == run.id));
            manifest.chain = plan.chain_after(chain, &kept);
            manifest.unfinished_history_run = 0;
            manifest.last_merge_bytes = written_bytes;
            manifest.last_merged_run_bytes = RunMeta::total_bytes(&merged);
            manifest.history_runs += kept.len() as u64;
            manifest.history_bytes += RunMeta::total_bytes(&kept);
            manifest.retained_bases += u64::from(plan.keep_base);
            manifest.encode()
        })?;
        self.superblock_written();
        if plan.keep_base && chain.is_scattered(self.history_run_worth_bytes()) {
            // That chain has ended: its runs can be put together.
            self.prune_wanted.store(true, Ordering::Relaxed);
        }
        self.present.publish(|layers| layers.with_merged(new_base, &runs, to));
        self.tell_runs();
        // Only now has the merge's own view of the base before ended. A file that cannot be cut stays longer
        // until the next time.
        drop(base);
        self.relieve();
        let _ = self.store.shrink();
        self.archive_signal.raise();
        committer.forget_declared_before(to);
        self.remove_runs(&runs)?;
        Counters::add(&self.counters.merged_bytes, written_bytes);
        Counters::add(&self.counters.merges, 1);
        Ok(true)
    }

    fn newest_versions<'a>(&self, runs: &[Arc<Run>], plan: &'a Plan) -> Result<NewestVersions<'a>> {
        let writes = !plan.needed.is_empty() && !plan.keep_runs;
        let history = if writes { Some(self.history_writer()?) } else { None };
        Ok(NewestVersions {
            versions: RunsUntilClosed::new(runs, self.closing.clone()),
            place: Place::Before,
            table: None,
            key: Vec::new(),
            history,
            visibility: Visibility::new(&plan.needed),
            include_end: plan.include_end,
        })
    }
}

impl Engine {
    /// The ids of the tables that exist at the merge's end, ascending. Others' records are not carried over: their
    /// snapshots find them in what is kept of the past.
    fn live_tables(&self, layers: &Layers, to: u64) -> Result<Vec<u32>> {
        let mut live = Vec::new();
        let mut damaged = false;
        let everything = (Bound::Unbounded, Bound::Unbounded);
        layers.for_each(rows::TABLES, to, everything, &mut |_, row| {
            match TableRow::decode(row) {
                Some(row) => live.push(row.id),
                None => damaged = true,
            }
            ControlFlow::Continue(())
        })?;
        if damaged {
            return Err(Error::corruption(
                self.store.path(),
                0,
                "a row of the catalogue of tables cannot be read",
            ));
        }
        live.sort_unstable();
        Ok(live)
    }

    /// Gives runs a second name, among the history runs of the database's own directory; `false` if the file system
    /// has no such thing.
    fn link_to_history(&self, runs: &[RunMeta]) -> Result<bool> {
        // After a crash that happened here there may be such names, which nobody else may remove any more.
        lock(&self.given_up).retain(|given_up| runs.iter().all(|run| run.id != given_up.run));
        let (from, to) = (self.runs_dir(), &self.past.local);
        for run in runs {
            let name = file_name(run.id);
            if !link_anew(&*self.disk, &from.join(&name), &to.join(&name))? {
                return Ok(false);
            }
        }
        sync_dir(&*self.disk, to)?;
        Ok(true)
    }

    /// Smaller history runs are put together.
    pub(super) fn history_run_worth_bytes(&self) -> u64 {
        self.options.memtable_bytes as u64 / HISTORY_RUN_WORTH_PART
    }

    /// In the database's own directory, wherever the past is: the present does not wait for another disk. Who
    /// archives moves it.
    pub(super) fn history_writer(&self) -> Result<RunWriter> {
        // Both at once: a superblock of a flush must not count the id as given without naming it.
        let id = {
            let mut manifest = lock(&self.manifest);
            manifest.unfinished_history_run = manifest.take_run_id();
            manifest.unfinished_history_run
        };
        let path = self.past.local.join(file_name(id));
        RunWriter::create(&*self.disk, &path, id, self.present.context().hash_seed)
    }

    /// Makes a history run durable; `None` if there was nothing to keep but the base.
    pub(super) fn finish_history(&self, writer: RunWriter, from: u64, to: u64) -> Result<Option<RunMeta>> {
        let directory = &self.past.local;
        let meta = writer.finish(Some(from + 1..=to))?;
        let empty = meta.records == 0;
        if empty {
            let path = directory.join(file_name(meta.id));
            remove(&*self.disk, &path)?;
        }
        // For an empty one, too: no superblock will call it unfinished, so it must not come back.
        sync_dir(&*self.disk, directory)?;
        if empty {
            return Ok(None);
        }
        Counters::add(&self.counters.history_bytes, meta.bytes);
        Ok(Some(meta))
    }

    /// Lets merged runs' files go. Views that still read them have them open.
    pub fn remove_runs(&self, runs: &[Arc<Run>]) -> Result<()> {
        let directory = self.runs_dir();
        for run in runs {
            let path = directory.join(file_name(run.meta().id));
            remove(&*self.disk, &path)?;
        }
        sync_dir(&*self.disk, &directory)
    }
}

/// Where a stream of versions stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    /// Between calls: on the newest version of the key that comes next.
    On,
    End,
}

/// The newest version of each key of one table after another, as updates to the base; what the plan keeps
/// goes to the history run on the way.
struct NewestVersions<'a> {
    versions: RunsUntilClosed,
    place: Place,
    /// The table whose updates are asked for; `None` at the end.
    table: Option<u32>,
    /// The key whose older versions are being passed.
    key: Vec<u8>,
    history: Option<RunWriter>,
    visibility: Visibility<'a>,
    include_end: bool,
}

impl NewestVersions<'_> {
    /// The table of the next update.
    fn next_table(&mut self) -> Result<Option<u32>> {
        if self.place == Place::Before {
            self.step()?;
        }
        self.table = self.current().map(|key| key.table);
        Ok(self.table)
    }

    fn step(&mut self) -> Result<()> {
        self.place = if self.versions.advance()? { Place::On } else { Place::End };
        Ok(())
    }

    /// The key at hand.
    fn current(&self) -> Option<Key<'_>> {
        (self.place == Place::On).then(|| self.versions.key())
    }

    /// Hands the version at hand to the history run.
    fn keep(&mut self) -> Result<()> {
        let seq = self.versions.seq();
        let Some(history) = &mut self.history else { return Ok(()) };
        if self.versions.key().table == rows::COMMIT_TIMES {
            // Only the present is asked for times.
            return Ok(());
        }
        self.versions.load()?;
        history.add(self.versions.key(), seq, self.versions.loaded()?)
    }

    /// Passes all updates of the table: it is gone, only the past sees it.
    fn skip_table(&mut self) -> Result<()> {
        while self.peek()?.is_some() {
            self.advance()?;
        }
        Ok(())
    }
}

impl Updates for NewestVersions<'_> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        let key = self.current().filter(|key| Some(key.table) == self.table);
        Ok(key.map(|key| key.bytes))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        self.versions.value()
    }

    /// Passes the key with all its versions.
    fn advance(&mut self) -> Result<()> {
        self.key.clear();
        self.key.extend_from_slice(self.versions.key().bytes);
        let writes = self.history.is_some();
        if writes {
            self.visibility.next_key();
            if self.visibility.sees(self.versions.seq()) || self.include_end {
                self.keep()?;
            }
        }
        loop {
            self.step()?;
            let same = self.current();
            let same = same.is_some_and(|key| Some(key.table) == self.table && key.bytes == self.key);
            if !same {
                return Ok(());
            }
            if writes && self.visibility.sees(self.versions.seq()) {
                self.keep()?;
            }
        }
    }
}
