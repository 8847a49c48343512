//! Archiving: what only the past needs leaves the file of the present.
//!
//! Owns: which pages are to be archived, the order of the steps, and what happens when the history directory fails.
//! Promises: a slot is used again only after its page is durable in the archive and a superblock says so; a crash at
//! any point leaves each page in its slot or in the archive; whatever is wrong with the history directory is noted and
//! tried again, and harms nothing of the present. May call: everything below db.
//!
//! 1. Pages are appended to the pagelog, and the page map to them is written: all durable, see `archive/batch.rs`.
//! 2. Readers look there.
//! 3. One rebuild of the base, which changes no table, frees the slots in the space map; its superblock names the new
//!    page map.
//! 4. What that replaced is removed.
//!
//! After an opening the pages are found by comparing each key frame with the next, as far as that was not done before;
//! from then on rebuilds tell what they supersede.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Db;
use super::engine::{Counters, Engine, lock};
use super::relief::RELIEF_PAGES;
use crate::archive::{Archive, Change, MOVING, PageId};
use crate::base::DeadPage;
use crate::error::{Error, Result};
use crate::history::prune::run_ids;
use crate::io::{File, OpenMode, exists, link_anew, list, remove, sync_dir};
use crate::limits::PAGE_BYTES;
use crate::run;

/// How many pages are archived by one superblock.
const BATCH_PAGES: usize = 8192;

/// How long after a failure the history directory is left alone.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

/// What waits to be archived.
#[derive(Default)]
pub(crate) struct Pending {
    /// By id: in the order of the pages in the file, as far as they were written together.
    pages: BTreeMap<PageId, DeadPage>,
    /// Whether the pages were looked for that were superseded before the database was opened.
    is_complete: bool,
}

impl Pending {
    fn forget(&mut self, page: &DeadPage) {
        self.pages.remove(&page.id());
    }
}

impl Db {
    /// Moves what only the past needs to the [history directory](super::Options::history_dir), and returns when that
    /// is done. The background does it as well. Without a history directory there is nothing to do.
    ///
    /// # Errors
    /// What stood in the way: `HistoryUnavailable`, `Io`, `Corruption`; `ReadOnly`, `Poisoned`. The present is
    /// unharmed, and the next call tries again.
    pub fn archive(&self) -> Result<()> {
        let engine = self.engine();
        engine.writer()?;
        engine.health.check()?;
        let Some(archive) = engine.store.archive() else { return Ok(()) };
        let archived = (|| {
            while engine.archive_batch(archive, None)? {}
            while engine.store.relieve(RELIEF_PAGES)? > 0 {}
            archive.sweep();
            Ok(())
        })();
        engine.note_archiving(&archived);
        if let (Err(error), true) = (&archived, engine.store.is_poisoned()) {
            // Nobody knows which superblock is on the disk.
            engine.health.poison(error.to_string());
            engine.backlog.wake();
        }
        archived
    }
}

impl Engine {
    /// Archives a batch, if there is something to do and the last failure is some time ago; whether there may be
    /// more. A failure is noted. For the background.
    pub fn archive_some(&self) -> Result<bool> {
        let Some(archive) = self.store.archive() else { return Ok(false) };
        if self.history_failed_lately() {
            return Ok(false);
        }
        archive.sweep();
        let limit = Some(self.options.archive_bytes_per_second).filter(|limit| *limit > 0);
        let archived = self.archive_batch(archive, limit);
        self.note_archiving(&archived);
        match archived {
            Err(error) if self.store.is_poisoned() => Err(error),
            archived => Ok(archived.unwrap_or(false)),
        }
    }

    fn note_archiving<T>(&self, outcome: &Result<T>) {
        match outcome {
            // Nothing is wrong with the directory.
            Err(_) if self.closing.load(Ordering::Relaxed) => {}
            Err(error) => self.note_archive_failure(error.clone()),
            Ok(_) => {
                if lock(&self.archive_failure).take().is_some() && lock(&self.prune_failure).is_some() {
                    self.prune_wanted.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    pub fn note_archive_failure(&self, error: Error) {
        *lock(&self.archive_failure) = Some((error, Instant::now()));
    }

    /// What is wrong with the history directory.
    pub fn archive_trouble(&self) -> Option<Error> {
        let noted = lock(&self.archive_failure).as_ref().map(|(error, _)| error.clone());
        noted.or_else(|| self.store.archive().and_then(|archive| archive.missing()))
    }

    pub(super) fn history_failed_lately(&self) -> bool {
        lock(&self.archive_failure).as_ref().is_some_and(|(_, at)| at.elapsed() < RETRY_AFTER)
    }

    /// One batch, at no more than so many bytes a second; whether anything was done.
    fn archive_batch(&self, archive: &Archive, bytes_per_second: Option<u64>) -> Result<bool> {
        let _archiving = lock(&self.archiving);
        archive.prepare()?;
        if !lock(&self.manifest).archive.used {
            // Before anything is put there: if it is missing later, it is not made anew.
            self.publish_manifest(|manifest| manifest.archive.used = true)?;
        }
        self.move_local_runs()?;
        self.find_unarchived(archive)?;
        let batch_pages = bytes_per_second.map_or(BATCH_PAGES, |limit| {
            // So that who waits for the archiver waits for seconds.
            (limit as usize / PAGE_BYTES).clamp(16, BATCH_PAGES)
        });
        let pages: Vec<DeadPage> = lock(&self.pending).pages.values().take(batch_pages).copied().collect();
        let mut batch = archive.begin()?;
        if pages.is_empty() {
            return if batch.write_anew()? {
                self.publish_archived(archive, batch.finish()?, &[])?;
                Ok(true)
            } else {
                Ok(false)
            };
        }
        let started = Instant::now();
        let mut archived = Vec::with_capacity(pages.len());
        let mut damage = None;
        let mut page = [0; PAGE_BYTES];
        for pointer in &pages {
            match self.store.copy_for_archive(pointer, &mut page) {
                Ok(()) => {
                    batch.add(pointer.id(), pointer.checksum, &page)?;
                    archived.push(*pointer);
                }
                // It stays where it is: who reads it is told.
                Err(error @ Error::Corruption { .. }) => damage = Some(error),
                Err(error) => return Err(error),
            }
            self.hold_back(started, archived.len() * PAGE_BYTES, bytes_per_second)?;
        }
        let change = batch.finish()?;
        self.publish_archived(archive, change, &archived)?;
        let mut pending = lock(&self.pending);
        pages.iter().for_each(|page| pending.forget(page));
        damage.map_or(Ok(true), Err)
    }

    /// Waits until so many bytes are due.
    fn hold_back(&self, started: Instant, bytes: usize, bytes_per_second: Option<u64>) -> Result<()> {
        let Some(limit) = bytes_per_second else { return Ok(()) };
        let due = Duration::from_secs_f64(bytes as f64 / limit as f64);
        loop {
            // Relaxed: it need not be seen at once, and orders nothing.
            if self.closing.load(Ordering::Relaxed) {
                return Err(Error::Poisoned { cause: "the database is being closed".to_owned() });
            }
            match due.checked_sub(started.elapsed()) {
                Some(rest) if rest > Duration::from_millis(1) => {
                    std::thread::sleep(rest.min(Duration::from_millis(50)));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Lets the next superblock name a change of the archive, and frees the slots of what it archived.
    fn publish_archived(&self, archive: &Archive, change: Change, archived: &[DeadPage]) -> Result<()> {
        let _merging = lock(&self.merging);
        let base = self.present.layers().base.clone();
        let newest_retained = self.store.newest_retained();
        archive.publish(&change);
        let published = self.store.rebuild(&base).and_then(|mut rebuild| {
            rebuild.release_archived(archived.iter().copied());
            rebuild.finish(base.seq(), newest_retained, || {
                let mut manifest = lock(&self.manifest);
                manifest.archive = change.state.clone();
                let pending = lock(&self.pending);
                if pending.pages.len() == archived.len() && !self.store.has_newly_kept() {
                    // Nothing else was superseded since the pages were looked for.
                    manifest.archive.complete_to = base.generation();
                }
                manifest.encode()
            })
        });
        let new_base = match published {
            Ok(new_base) => new_base,
            Err(error) => {
                self.take_back(archive, change);
                return Err(error);
            }
        };
        self.superblock_written();
        archive.note_complete(lock(&self.manifest).archive.complete_to);
        self.present.publish(|layers| layers.with_merged(new_base, &[], 0));
        self.settle(archive, change);
        drop(base);
        // A file that cannot be cut stays longer until the next time.
        let _ = self.store.shrink();
        Ok(())
    }

    /// A superblock names the change.
    pub(super) fn settle(&self, archive: &Archive, change: Change) {
        Counters::add(&self.counters.archived_bytes, change.written_bytes);
        archive.settle(change);
    }

    /// A change of the archive that was not published is undone; but not if nobody knows whether it was.
    pub(super) fn take_back(&self, archive: &Archive, change: Change) {
        if !self.store.is_poisoned() {
            archive.undo(change);
        }
    }

    /// Notes what is to be archived: what rebuilds told of, and, once, what was superseded before.
    fn find_unarchived(&self, archive: &Archive) -> Result<()> {
        if lock(&self.pending).is_complete {
            let newly_kept = self.store.take_newly_kept();
            lock(&self.pending).pages.extend(newly_kept.into_iter().map(|page| (page.id(), page)));
            return Ok(());
        }
        // Frames and present must be of one moment.
        let _merging = lock(&self.merging);
        let base = self.present.layers().base.clone();
        let complete_to = archive.state().complete_to;
        let intervals = self.past.intervals(&base)?;
        let frames: Vec<_> = intervals.iter().filter_map(|(_, interval)| interval.key_frame).collect();
        let mut found = BTreeMap::new();
        for (index, frame) in frames.iter().enumerate() {
            let next = frames.get(index + 1);
            if next.is_some_and(|next| next.generation <= complete_to) {
                continue;
            }
            let next = next.map_or(Ok(base.clone()), |next| self.store.open_base(next))?;
            for page in self.store.pages_only_in(&*self.store.open_base(frame)?, &next)? {
                if !archive.contains(page.id())? {
                    found.insert(page.id(), page);
                }
            }
        }
        // Told of meanwhile, and found as well.
        self.store.take_newly_kept();
        *lock(&self.pending) = Pending { pages: found, is_complete: true };
        Ok(())
    }

    /// Of pages that only some key frames have, those that are archived and those that are in their slots.
    pub(super) fn part_given_up(&self, pages: Vec<DeadPage>) -> Result<(Vec<DeadPage>, Vec<DeadPage>)> {
        let Some(archive) = self.store.archive() else { return Ok((Vec::new(), pages)) };
        let (mut archived, mut in_file) = (Vec::new(), Vec::new());
        for page in pages {
            if archive.contains(page.id())? { archived.push(page) } else { in_file.push(page) }
        }
        Ok((archived, in_file))
    }

    /// These pages are given up: they need not be archived any more.
    pub(super) fn forget_pending(&self, pages: &[DeadPage]) {
        let mut pending = lock(&self.pending);
        if pending.is_complete {
            pending.pages.extend(self.store.take_newly_kept().into_iter().map(|page| (page.id(), page)));
            pages.iter().for_each(|page| pending.forget(page));
        }
    }

    /// Moves history runs to the history directory. A run is found in one of the places at any time.
    fn move_local_runs(&self) -> Result<()> {
        let (disk, local, directory) = (&*self.disk, &self.past.local, &self.past.directory);
        if local == directory {
            return Ok(());
        }
        let mut names = list(disk, local)?;
        names.retain(|name| run::file_id(name).is_some());
        if names.is_empty() {
            return Ok(());
        }
        // Others are in the making, or litter.
        let intervals = self.past.intervals(&self.present.layers().base)?;
        let named = run_ids(&intervals);
        names.retain(|name| run::file_id(name).is_some_and(|id| named.contains(&id)));
        for name in &names {
            let path = directory.join(name);
            if link_anew(disk, &local.join(name), &path)? {
                continue;
            }
            let moving = directory.join(format!("{name}{MOVING}"));
            if exists(disk, &moving)? {
                remove(disk, &moving)?;
            }
            let from = File::open(disk, &local.join(name), OpenMode::Read)?;
            let to = File::open(disk, &moving, OpenMode::Create)?;
            let len = from.len()?;
            let mut buffer = vec![0; (1 << 20).min(len as usize)];
            let mut at = 0;
            while at < len {
                let bytes = (len - at).min(buffer.len() as u64) as usize;
                from.read_at(&mut buffer[..bytes], at)?;
                to.write_at(&buffer[..bytes], at)?;
                at += bytes as u64;
            }
            to.sync()?;
            disk.rename(&moving, &path).map_err(|e| Error::io(&moving, "rename", e))?;
        }
        if !names.is_empty() {
            sync_dir(disk, directory)?;
            names.iter().try_for_each(|name| remove(disk, &local.join(name)))?;
            sync_dir(disk, local)?;
        }
        Ok(())
    }
}
