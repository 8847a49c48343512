//! Pruning: what deleted snapshots kept, and commits that the window has left, is given back.
//!
//! Owns: the order of its steps. Promises: a crash at any point leaves the past as it was or as it is to be, for
//! every living snapshot and the window the same; views that are open read on. May call: everything below db.
//!
//! 1. A chain that lost most of its snapshots gets a run for the others; it is litter until a row names it.
//! 2. One rebuild of the base takes the rows out, frees the pages that only given-up key frames had, and is
//!    published. 3. Views of the past are opened anew. 4. The files that no row names any more are removed, as soon
//!    as no other process reads a base whose rows name them: after a crash before that, they are litter that the
//!    next opening's first pruning finds.
//!
//! Deletions are durable before they are visible, and only visible ones are looked at here: so nothing is given
//! back on account of a deletion that a power cut undoes.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::engine::{Engine, lock};
use super::keep::{Newest, RunsUntilClosed, keep_needed};
use super::manifest::Manifest;
use crate::archive::{Archive, Change};
use crate::base::{DeadPage, Updates};
use crate::error::Result;
use crate::history::Interval;
use crate::history::past::Past;
use crate::history::plan::Chain as OpenChain;
use crate::history::prune::{Chain, Fate, Kept, plan, run_ids};
use crate::history::visibility::Needed;
use crate::io::{exists, list, remove, sync_dir};
use crate::run::{self, RunMeta, file_name};
use crate::snapshot::rows;

/// A history run that was named last by the base of this generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenUp {
    generation: u64,
    pub run: u64,
}

/// What one pass does to the rows of the history table: for each interval's end its new row, or none.
#[derive(Default)]
struct Changes {
    rows: Vec<([u8; 8], Option<Vec<u8>>)>,
    next: usize,
    frames_given_up: u64,
    /// The pages that only those frames had, by where they are.
    pages_archived: Vec<DeadPage>,
    pages_in_file: Vec<DeadPage>,
    runs_given_up: Vec<RunMeta>,
    runs_made: Vec<RunMeta>,
    /// Whether a chain was rewritten.
    rewritten: bool,
    /// The chain that the next merge may lean on is not what it was.
    ends_open_chain: bool,
}

impl Engine {
    pub fn prune_is_wanted(&self) -> bool {
        // Relaxed: as below.
        self.prune_wanted.load(Ordering::Relaxed)
    }

    /// Gives back what deleted snapshots kept, if any were deleted since the last time. Where the past cannot be
    /// read or its directory not be written, that is noted for [`Stats`](super::Stats), and tried again after the
    /// next deletion: it is no harm to the present.
    pub fn prune_if_wanted(&self) -> Result<()> {
        // Taken first: who finds nothing to do has waited for who was at it.
        let _archiving = lock(&self.archiving);
        // Relaxed, here and where it is set: the deletion itself is found through a view taken later.
        while self.prune_wanted.swap(false, Ordering::Relaxed) {
            let outcome = self.remove_history_litter().and_then(|()| self.prune());
            *lock(&self.prune_failure) = outcome.as_ref().err().cloned();
            match outcome {
                Err(error) if self.store.is_poisoned() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn prune(&self) -> Result<()> {
        let _merging = lock(&self.merging);
        let layers = self.present.layers();
        let now = self.present.snapshot();
        let deleted_up_to = self.past.last_deletion(&now)?;
        let window_start = self.window_start();
        let window = window_start.map_or(0..0, |start| start.seq..u64::MAX);
        let living = Needed::new(self.past.living(&now)?, window);
        drop(now);
        let base = layers.base.clone();
        drop(layers);
        let intervals = self.past.intervals(&base)?;
        let chains = plan(&intervals, &living, self.history_run_worth_bytes());
        // Where it is moved meanwhile, there is more to give back.
        let is_left = |manifest: &Manifest| manifest.window.map(|window| window.start) != window_start;
        if chains.iter().all(|chain| chain.fate == Fate::Stays) && !self.has_old_times(&base)? {
            return self.publish_manifest(|manifest| {
                manifest.pruned_seq = deleted_up_to;
                manifest.window_left = is_left(manifest);
            });
        }
        let open_chain = lock(&self.manifest).chain.runs > 0;
        let mut changes = Changes::default();
        let mut rebuild = self.store.rebuild(&base)?;
        let mut kept_generation = 0;
        let mut put_off = false;
        for (index, chain) in chains.iter().enumerate() {
            let is_open = open_chain && index + 1 == chains.len();
            if matches!(chain.fate, Fate::Rewritten { .. }) && changes.rewritten {
                // A superblock knows one unfinished run.
                put_off = true;
            } else {
                self.decide(chain, is_open, &mut changes)?;
            }
            let Some(frame) = &chain.intervals[0].1.key_frame else { continue };
            if chain.fate != Fate::Goes {
                kept_generation = frame.generation;
                continue;
            }
            let next = chains.get(index + 1).and_then(|next| next.intervals[0].1.key_frame);
            let next = next.map_or(Ok(base.clone()), |next| self.store.open_base(&next))?;
            let older = self.store.open_base(frame)?;
            let pages = self.store.pages_only_in(&older, &next)?;
            // What was born by then is the frame before's, too.
            let pages = pages.into_iter().filter(|page| page.birth > kept_generation).collect();
            let (archived, in_file) = self.part_given_up(pages)?;
            changes.pages_archived.extend(archived);
            changes.pages_in_file.extend(in_file);
            changes.frames_given_up += 1;
        }
        rebuild.apply(rows::HISTORY, &mut changes, usize::MAX)?;
        self.drop_old_times(&base, &mut rebuild)?;
        let archive_change = self.take_out_of_archive(&changes.pages_archived)?;
        rebuild.release_kept(changes.pages_in_file.iter().copied());
        rebuild.give_up_archived(changes.pages_archived.iter().copied());
        let published = rebuild.finish(base.seq(), kept_generation, || {
            let mut manifest = lock(&self.manifest);
            if let Some((_, change)) = &archive_change {
                manifest.archive = change.state.clone();
            }
            manifest.pruned_seq = deleted_up_to;
            manifest.window_left = put_off || is_left(&manifest);
            manifest.unfinished_history_run = 0;
            manifest.retained_bases -= changes.frames_given_up;
            manifest.history_runs += changes.runs_made.len() as u64;
            manifest.history_runs -= changes.runs_given_up.len() as u64;
            manifest.history_bytes += RunMeta::total_bytes(&changes.runs_made);
            manifest.history_bytes -= RunMeta::total_bytes(&changes.runs_given_up);
            if changes.ends_open_chain {
                manifest.chain = OpenChain::default();
            }
            manifest.encode()
        });
        let new_base = match (published, archive_change) {
            (Ok(new_base), archive_change) => {
                self.forget_pending(&changes.pages_in_file);
                archive_change.into_iter().for_each(|(archive, change)| self.settle(archive, change));
                new_base
            }
            (Err(error), archive_change) => {
                archive_change.into_iter().for_each(|(archive, change)| self.take_back(archive, change));
                return Err(error);
            }
        };
        self.superblock_written();
        self.present.publish(|layers| layers.with_merged(new_base, &[], 0));
        let ends: Vec<u64> = intervals.iter().map(|(end, _)| *end).collect();
        self.past.forget_opened(&ends);
        self.give_up(base.generation(), changes.runs_given_up.iter().map(|run| run.id));
        drop(base);
        self.remove_given_up()?;
        // A file that cannot be cut stays longer until the next time.
        let _ = self.store.shrink();
        if let Some(archive) = self.store.archive() {
            archive.sweep();
        }
        if put_off {
            self.prune_wanted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Notes what becomes of a chain's rows; makes its new run, if it is to have one.
    fn decide(&self, chain: &Chain<'_>, is_open: bool, changes: &mut Changes) -> Result<()> {
        let staying = match &chain.fate {
            Fate::Stays => return Ok(()),
            Fate::Goes => 0,
            Fate::EndsAfter(intervals) => *intervals,
            Fate::Rewritten { intervals, needed } => {
                let old = &chain.intervals[..*intervals];
                let new = self.rewrite(old, needed)?;
                changes.give_up(old);
                changes.rewritten = true;
                changes.runs_made.extend_from_slice(&new.1.runs);
                changes.set(&new);
                *intervals
            }
        };
        changes.ends_open_chain |= is_open;
        changes.give_up(&chain.intervals[staying..]);
        Ok(())
    }

    /// One interval in the place of a chain's first ones, which only these states are read through.
    fn rewrite(&self, old: &[Kept], needed: &Needed) -> Result<Kept> {
        let (from, end) = (old[0].1.from, old[old.len() - 1].0);
        let hash_seed = self.present.context().hash_seed;
        let metas = old.iter().rev().flat_map(|(_, interval)| &interval.runs);
        let runs = metas.map(|meta| self.past.open_run(meta, hash_seed)).collect::<Result<Vec<_>>>()?;
        let mut writer = self.history_writer()?;
        let mut versions = RunsUntilClosed::new(&runs, self.closing.clone());
        keep_needed(&mut versions, needed, Newest::IfSeen, &mut writer)?;
        let run = self.finish_history(writer, from, end)?;
        let key_frame = old[0].1.key_frame;
        Ok((end, Interval { from, key_frame, runs: run.into_iter().collect(), snapshots: needed.count() }))
    }

    /// Once, removes history runs that no row names: a crash left them.
    fn remove_history_litter(&self) -> Result<()> {
        let _merging = lock(&self.merging);
        if !self.litter_wanted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let base = self.present.layers().base.clone();
        let intervals = self.past.intervals(&base)?;
        let named = run_ids(&intervals);
        let mut ids = Vec::new();
        for directory in self.history_directories() {
            let names = list(&*self.disk, directory)?;
            ids.extend(names.iter().filter_map(|name| run::file_id(name)).filter(|id| !named.contains(id)));
        }
        // Named by some older base perhaps, which another process read before this one was opened.
        self.give_up(base.generation().saturating_sub(1), ids.into_iter());
        self.remove_given_up()?;
        self.litter_wanted.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Notes history runs that only bases up to `generation` name.
    fn give_up(&self, generation: u64, runs: impl Iterator<Item = u64>) {
        let mut given_up = lock(&self.given_up);
        for run in runs {
            // Litter is found again where the first attempt failed.
            if !given_up.iter().any(|other| other.run == run) {
                given_up.push(GivenUp { generation, run });
            }
        }
    }

    /// Removes the files of history runs that no base names any more, neither the published one nor any that another
    /// process reads. Called after the base is published that does not name them: who leases a base after this look
    /// at the leases, leases that one or a later one.
    pub fn remove_given_up(&self) -> Result<()> {
        let mut given_up = lock(&self.given_up);
        if given_up.is_empty() {
            return Ok(());
        }
        let look = self.writer()?.leases.look()?;
        if look.unread.is_some() {
            return Ok(());
        }
        let oldest = look.terms.iter().map(|terms| terms.generation).min().unwrap_or(u64::MAX);
        let mut failed = None;
        let before = given_up.len();
        given_up.retain(|GivenUp { generation, run }| {
            if *generation >= oldest || failed.is_some() {
                return true;
            }
            failed = self.remove_history_run(*run).err();
            failed.is_some()
        });
        match failed {
            Some(error) => Err(error),
            None if given_up.len() < before => {
                self.history_directories().try_for_each(|directory| sync_dir(&*self.disk, directory))
            }
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Removes the file of a history run, wherever it is.
    fn remove_history_run(&self, id: u64) -> Result<()> {
        for directory in self.history_directories() {
            let path = directory.join(file_name(id));
            if exists(&*self.disk, &path)? {
                remove(&*self.disk, &path)?;
            }
        }
        Ok(())
    }

    /// Where history runs may be.
    fn history_directories(&self) -> impl Iterator<Item = &Path> {
        let Past { directory, local, .. } = &*self.past;
        let elsewhere = Some(local).filter(|local| *local != directory);
        std::iter::once(directory).chain(elsewhere).map(|directory| &**directory)
    }

    /// Takes pages out of the page map, for the superblock that is to come. Open views find them still.
    fn take_out_of_archive(&self, pages: &[DeadPage]) -> Result<Option<(&Archive, Change)>> {
        let Some(archive) = self.store.archive().filter(|_| !pages.is_empty()) else { return Ok(None) };
        let mut batch = archive.begin()?;
        pages.iter().try_for_each(|page| batch.take_out(page.id()))?;
        let change = batch.finish()?;
        archive.publish(&change);
        Ok(Some((archive, change)))
    }
}

impl Changes {
    fn set(&mut self, (end, interval): &Kept) {
        let key = end.to_be_bytes();
        // The last one that was given up has the same end.
        let replaced = self.rows.pop();
        assert!(replaced.is_some_and(|(end, _)| end == key), "a rewritten chain keeps its end");
        self.rows.push((key, Some(interval.encode())));
    }

    fn give_up(&mut self, intervals: &[Kept]) {
        for (end, interval) in intervals {
            self.rows.push((end.to_be_bytes(), None));
            self.runs_given_up.extend_from_slice(&interval.runs);
        }
    }
}

impl Updates for Changes {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.rows.get(self.next).map(|(key, _)| &key[..]))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.rows.get(self.next).and_then(|(_, row)| row.as_deref()))
    }

    fn advance(&mut self) -> Result<()> {
        self.next += 1;
        Ok(())
    }
}
