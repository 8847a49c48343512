//! One open database: its parts, and the state that flush and merge share.
//!
//! Owns: the parts' wiring and the manifest. Promises: one flush and one merge at a time, side by side with
//! everything else. May call: everything below.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::archive::Pending;
use super::beside::Reader;
use super::manifest::Manifest;
use super::options::Options;
use super::prune::GivenUp;
use super::relief::Relief;
use crate::base::PageStore;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::history::past::Past;
use crate::io::Disk;
use crate::lease::Leases;
use crate::run::RunMeta;
use crate::signal::Signal;
use crate::snapshot::Table;
use crate::snapshot::present::Present;
use crate::txn::backlog::Backlog;
use crate::txn::commit::{Committed, Committer, Durability, Request};
use crate::txn::hashes;
use crate::txn::record::Marks;
use crate::txn::write_set::Writes;
use crate::wal::Wal;

pub(crate) struct Engine {
    pub disk: Arc<dyn Disk>,
    pub path: PathBuf,
    pub options: Options,
    pub health: Arc<Health>,
    pub cache: Arc<Cache>,
    pub present: Arc<Present>,
    pub backlog: Arc<Backlog>,
    /// `None` when the database is open for reading only.
    pub writer: Option<Writer>,
    /// What only a database has that is open for reading only.
    pub reader: Option<Reader>,
    pub store: Arc<PageStore>,
    pub past: Arc<Past>,
    pub manifest: Mutex<Manifest>,
    /// The id that the next table gets. Changed under the lock of the directory of tables.
    pub next_table_id: AtomicU32,
    /// Held by who makes a bulk commit, before all other locks.
    pub bulk: Mutex<()>,
    /// Held by who archives or prunes, by who flushes, and by who merges. Lock order: `archiving`; `flushing` or
    /// `merging`, never both; the store's publish lock; `manifest`; `pending`; the backlog's.
    pub archiving: Mutex<()>,
    pub flushing: Mutex<()>,
    pub merging: Mutex<()>,
    pub merge_signal: Signal,
    /// Snapshots were deleted, the window was moved, or a chain of intervals has ended, since the past was last looked
    /// through.
    pub prune_wanted: AtomicBool,
    /// Nobody has looked yet for history runs that a crash left.
    pub litter_wanted: AtomicBool,
    /// Why the last pruning came to nothing.
    pub prune_failure: Mutex<Option<Error>>,
    /// History runs whose files go when no other process reads them any more.
    pub given_up: Mutex<Vec<GivenUp>>,
    /// Pages that wait to be archived. Changed under `archiving`.
    pub pending: Mutex<Pending>,
    /// Why the history directory could not be used, and when that was.
    pub archive_failure: Mutex<Option<(Error, Instant)>>,
    pub archive_signal: Signal,
    pub relief: Relief,
    pub standby_signal: Arc<Signal>,
    pub watch_signal: Signal,
    pub counters: Counters,
    /// Whether somebody waits for the background threads to end.
    pub closing: Arc<AtomicBool>,
    pub recovered_commits: u64,
}

/// What only a database has that is open for writing.
pub(crate) struct Writer {
    pub wal: Arc<Wal>,
    pub committer: Arc<Committer>,
    /// What other processes read.
    pub leases: Arc<Leases>,
}

/// Bytes since the database was opened. Relaxed everywhere: figures for people.
#[derive(Default)]
pub(crate) struct Counters {
    pub flushed_bytes: AtomicU64,
    pub merged_bytes: AtomicU64,
    pub history_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub consolidations: AtomicU64,
    pub merges: AtomicU64,
    pub bulk_commits: AtomicU64,
    pub archived_bytes: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl Engine {
    pub fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| Error::ReadOnly { path: self.path.clone() })
    }

    /// An id that no table has had. For who holds the directory of tables, under which alone it changes.
    pub fn take_table_id(&self) -> Result<u32> {
        // Relaxed: ordered by that lock.
        let id = self.next_table_id.load(Ordering::Relaxed);
        let next = id.checked_add(1).ok_or(Error::TooLarge {
            what: "the number of tables ever made",
            size: u64::from(id) + 1,
            limit: u64::from(u32::MAX),
        })?;
        self.next_table_id.store(next, Ordering::Relaxed);
        Ok(id)
    }

    /// Commits blindly: against no view.
    pub fn commit(
        &self,
        writes: Writes,
        tables: Vec<Table>,
        marks: Marks,
        durability: Durability,
    ) -> Result<Committed> {
        let hashes = hashes(&writes, self.present.context().hash_seed);
        self.commit_request(Request { writes, hashes, marks, tables, read: None, reads: None, durability })
    }

    /// Does background work. A failure leaves nobody sure what is on the disk, so it poisons the database,
    /// whoever's thread it happens on.
    pub fn guarded<T>(&self, work: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        self.health.check()?;
        let result = work(self);
        if let Err(error) = &result {
            self.health.poison(error.to_string());
            self.backlog.wake();
        }
        result
    }

    /// Flushes all that is frozen, and merges if that is due: what the background threads do, for those who
    /// have none.
    pub fn work_inline(&self) -> Result<()> {
        self.guarded(|engine| {
            engine.flush_all()?;
            engine.move_window_now(engine.window_step());
            if engine.merge_is_due(false) {
                engine.merge_all()?;
            } else {
                engine.consolidate()?;
            }
            engine.prune_if_wanted()
        })
    }

    pub fn runs_dir(&self) -> PathBuf {
        runs_dir(&self.path)
    }

    /// Changes the manifest by a superblock of its own. The manifest is changed first: should the superblock
    /// fail, nobody may write any more.
    pub fn publish_manifest(&self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        self.store.publish_manifest(|| {
            let mut manifest = lock(&self.manifest);
            change(&mut manifest);
            if let Some(writer) = &self.writer {
                manifest.durable_end = writer.wal.durable_end();
            }
            manifest.encode()
        })?;
        self.superblock_written();
        Ok(())
    }

    /// Breaks, for the tests of the tests, what recovery promises: the superblock says for a while that everything is
    /// in runs, although what was replayed is in memory alone.
    pub fn forget_replayed(&self) -> Result<()> {
        let floor = self.writer()?.wal.active_segment();
        let before = lock(&self.manifest).clone();
        self.publish_manifest(|manifest| {
            manifest.flushed_seq = self.present.visible_seq();
            manifest.wal_floor = floor;
        })?;
        *lock(&self.manifest) = before;
        Ok(())
    }

    /// Makes everything durable, and lets the superblock say up to where the log must go: so damage to the very
    /// last commits is noticed, too.
    pub fn close(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        writer.wal.close()?;
        // Also by who has not had the database open for long enough to do so in the background.
        self.move_window_now(self.window_step());
        if lock(&self.manifest).durable_end < writer.wal.durable_end() {
            self.publish_manifest(|_| ())?;
        }
        Ok(())
    }

    /// Lets the log know: its segments say under which superblock they were begun.
    pub fn superblock_written(&self) {
        if let Some(writer) = &self.writer {
            writer.wal.set_superblock_number(self.store.superblock_number());
        }
    }

    /// Tells writers how many runs wait. Counted and told under one lock: of a flush and a merge that end
    /// together, the later tells last.
    pub fn tell_runs(&self) {
        let manifest = lock(&self.manifest);
        let run_bytes = RunMeta::total_bytes(&manifest.runs);
        let scanned = self.present.context().scans.take();
        self.backlog.set_runs(manifest.runs.len(), run_bytes, self.base_bytes(), scanned);
    }
}

pub(crate) fn runs_dir(path: &std::path::Path) -> PathBuf {
    path.join("runs")
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
