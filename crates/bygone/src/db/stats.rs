//! Figures about a database, and checking all of it.
//!
//! Owns: [`Stats`] and [`VerifyReport`]. Promises: figures are as of one moment each, not of one moment all.
//! May call: the engine.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Db;
use super::engine::lock;
use super::open::wal_dir;
use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::memtable::MemtableBytes;
use crate::run::RunMeta;
use crate::snapshot::HeldSnapshot;
use crate::wal;

/// Figures about an open database. Sizes are in bytes; counts of written bytes begin when the database is
/// opened. Where it is open for reading only, those of files are as of when it was opened or refreshed, but the log's.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The latest commit.
    pub seq: Seq,
    /// Tables that exist now.
    pub tables: u64,
    /// Declared snapshots.
    pub snapshots: u64,
    /// Memory that the active and the frozen memtables use: the sum of the next three. It counts towards
    /// their budgets.
    pub memtable_bytes: u64,
    /// Their hash directories.
    pub memtable_directory_bytes: u64,
    /// Their records.
    pub memtable_entry_bytes: u64,
    /// Their sorted vectors, and the cursors that read them.
    pub memtable_vector_bytes: u64,
    /// Memory that memtables hold ready for records to come, and the whole standby memtable.
    pub memtable_reserved_bytes: u64,
    /// Memtables that wait for a flush.
    pub frozen_memtables: u64,
    /// Runs that wait for a merge.
    pub runs: u64,
    /// Their files.
    pub run_bytes: u64,
    /// Memory of their indexes and filters.
    pub run_memory_bytes: u64,
    /// The length of the base's file.
    pub base_bytes: u64,
    /// Of it, what may be used again.
    pub base_free_bytes: u64,
    /// Of it, what only the past needs.
    pub base_history_bytes: u64,
    /// Runs with the changes between bases that are kept for declared snapshots.
    pub history_runs: u64,
    /// Their files.
    pub history_bytes: u64,
    /// Bases that are kept as key frames.
    pub retained_bases: u64,
    /// Pages in the [history directory](super::Options::history_dir) that snapshots need.
    pub archived_pages: u64,
    /// The files that hold them.
    pub archive_bytes: u64,
    /// Of those, what is in use; the rest is given back once it is more than half of a file.
    pub archive_live_bytes: u64,
    /// The index to them.
    pub page_map_bytes: u64,
    /// Pages there that are needed only because a view is held; they go when it ends, or with the process.
    pub archived_view_pages: u64,
    /// What the history directory was last in the way of; nothing if all is well with it.
    pub archive_failure: Option<String>,
    /// The log on disk, spare segments included.
    pub wal_bytes: u64,
    /// Memory of the cached pages and blocks.
    pub cache_bytes: u64,
    /// The most it is meant to be.
    pub cache_budget_bytes: u64,
    /// Places where threads note their views, busy or idle.
    pub reader_slots: u64,
    /// The views that are being held, the longest first; one that is just being read through may be among
    /// them.
    pub held_snapshots: Vec<HeldSnapshot>,
    /// How often other processes have the database open for reading, each moment that they hold views of counted. They
    /// keep pages and history runs of then. 0 where this database is open for reading only.
    pub other_readers: u64,
    /// Keys and values that were committed.
    pub application_bytes: u64,
    /// Bytes written to files: log, runs, base, history and archived pages together.
    pub written_bytes: u64,
    /// Commits that opening found in the log.
    pub recovered_commits: u64,
    /// Why what deleted snapshots kept could not be given back; nothing if it could.
    pub prune_failure: Option<String>,
    /// How often a memtable became a run.
    pub flushes: u64,
    /// How often several runs became one.
    pub consolidations: u64,
    /// How often runs were merged into the base.
    pub merges: u64,
    /// Commits that went straight into the base: large transactions, and what restores, receives or replaces.
    pub bulk_commits: u64,
}

/// What [`Db::verify`] read and found whole.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Pages of the base, and of the retained ones.
    pub pages: u64,
    /// Pages that the page map of the history directory leads to.
    pub archived_pages: u64,
    /// Runs, and history runs.
    pub runs: u64,
    /// Records in both; one that several bases share counts once for each.
    pub records: u64,
    /// Bases read: the current one and the retained ones.
    pub bases: u64,
}

impl Db {
    /// Figures about the database as it is now.
    ///
    /// # Errors
    /// `Corruption` or `Io`: the number of snapshots is read from the database.
    pub fn stats(&self) -> Result<Stats> {
        // Relaxed: figures for people.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let engine = self.engine();
        // First, so that the view which is taken here is not among them.
        let held_snapshots = engine.look();
        let now = self.snapshot();
        let layers = now.layers()?;
        let manifest = lock(&engine.manifest).clone();
        let space = engine.store.space_stats();
        let archive = engine.store.archive().map(|archive| archive.stats()).unwrap_or_default();
        let counters = &engine.counters;
        let standby = engine.backlog.standby_bytes();
        let mut memtables =
            MemtableBytes { reserved: standby.used() + standby.reserved, ..MemtableBytes::default() };
        layers.memtables.iter().for_each(|memtable| memtables.add(memtable.bytes()));
        let (wal_bytes, logged, other_readers) = match &engine.writer {
            Some(writer) => {
                let other_readers = writer.leases.look()?.terms.len() as u64;
                (writer.wal.bytes(), count(&writer.committer.logged_bytes), other_readers)
            }
            None => (wal::bytes(&*engine.disk, &wal_dir(&engine.path))?, 0, 0),
        };
        Ok(Stats {
            seq: now.seq(),
            tables: engine.present.context().tables.lock().len() as u64,
            snapshots: engine.past.living(&now)?.len() as u64,
            memtable_bytes: memtables.used() as u64,
            memtable_directory_bytes: memtables.directory as u64,
            memtable_entry_bytes: memtables.entries as u64,
            memtable_vector_bytes: memtables.vectors as u64,
            memtable_reserved_bytes: memtables.reserved as u64,
            frozen_memtables: layers.memtables.len() as u64 - 1,
            runs: manifest.runs.len() as u64,
            run_bytes: RunMeta::total_bytes(&manifest.runs),
            run_memory_bytes: layers.runs.iter().map(|run| run.memory_bytes() as u64).sum(),
            base_bytes: space.file_bytes,
            base_free_bytes: space.free_bytes,
            base_history_bytes: space.used_bytes.saturating_sub(engine.base_bytes()),
            history_runs: manifest.history_runs,
            history_bytes: manifest.history_bytes,
            retained_bases: manifest.retained_bases,
            archived_pages: archive.pages,
            archive_bytes: archive.segment_bytes,
            archive_live_bytes: archive.live_bytes,
            page_map_bytes: archive.map_bytes,
            archived_view_pages: archive.view_pages,
            archive_failure: engine.archive_trouble().map(|error| error.to_string()),
            wal_bytes,
            cache_bytes: engine.cache.used_bytes() as u64,
            cache_budget_bytes: engine.cache.budget_bytes() as u64,
            reader_slots: engine.present.reader_slots() as u64,
            held_snapshots,
            other_readers,
            application_bytes: engine
                .writer
                .as_ref()
                .map_or(0, |writer| count(&writer.committer.application_bytes)),
            written_bytes: logged
                + count(&counters.flushed_bytes)
                + count(&counters.merged_bytes)
                + count(&counters.history_bytes)
                + count(&counters.archived_bytes),
            recovered_commits: engine.recovered_commits,
            prune_failure: lock(&engine.prune_failure).as_ref().map(Error::to_string),
            flushes: count(&counters.flushes),
            consolidations: count(&counters.consolidations),
            merges: count(&counters.merges),
            bulk_commits: count(&counters.bulk_commits),
        })
    }

    /// Reads everything that any view of now or of a declared snapshot can reach, and checks every checksum
    /// and every order.
    ///
    /// # Errors
    /// `Corruption` names the first damage found; `Io`.
    pub fn verify(&self) -> Result<VerifyReport> {
        let engine = self.engine();
        let mut report = VerifyReport::default();
        let (bases, runs) = {
            // Opened before a merge or a pruning can change what is kept; from then on it stays readable.
            let _merging = lock(&engine.merging);
            let layers = engine.present.layers();
            let mut bases = vec![layers.base.clone()];
            let mut runs = layers.runs.clone();
            for (_, interval) in engine.past.intervals(&layers.base)? {
                if let Some(root) = &interval.key_frame {
                    bases.push(engine.store.open_base(root)?);
                }
                for meta in &interval.runs {
                    runs.push(engine.past.open_run(meta, layers.context.hash_seed)?);
                }
            }
            (bases, runs)
        };
        for base in &bases {
            let verified = engine.store.verify(&base.root())?;
            report.pages += verified.pages;
            report.records += verified.records;
            report.bases += 1;
        }
        if let Some(archive) = engine.store.archive() {
            report.archived_pages = archive.verify()?;
        }
        for run in runs {
            report.records += run.verify()?.records;
            report.runs += 1;
        }
        Ok(report)
    }
}
