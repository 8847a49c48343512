//! Flush: a frozen memtable becomes a run.
//!
//! Owns: the order of its steps. Promises: a crash between any two leaves the same data, in the log, in the
//! run, or in both. May call: everything below db.
//!
//! 1. The run is written and synced, then its directory. Until the superblock names it, it is litter.
//! 2. A superblock names the run and moves the log's floor behind it.
//! 3. Views get the run in the memtable's place. 4. Log segments before the floor are let go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::engine::{Counters, Engine, lock};
use super::keep::{Newest, keep_needed};
use crate::error::Result;
use crate::io::sync_dir;
use crate::limits::RUNS_MAX;
use crate::run::{Run, RunMeta, RunWriter, file_name};
use crate::txn::backlog::Frozen;

impl Engine {
    /// Flushes the oldest frozen memtable; `false` if there is none.
    pub fn flush_one(&self) -> Result<bool> {
        let (_flushing, frozen) = loop {
            let flushing = lock(&self.flushing);
            let Some(frozen) = self.backlog.oldest() else { return Ok(false) };
            if lock(&self.manifest).runs.len() < RUNS_MAX {
                break (flushing, frozen);
            }
            // A superblock has no room for one more. Writers are stopped before, but a long log may be
            // recovered into many memtables, and anybody may call for flushes as often as he
            // likes.
            drop(flushing);
            self.merge_all()?;
        };
        let writer = self.writer()?;
        // Its last members may still be inserting.
        writer.committer.wait_visible(frozen.last_seq)?;
        let meta = if frozen.memtable.is_empty() { None } else { Some(self.write_run(&frozen)?) };
        self.publish_manifest(|manifest| {
            if let Some(meta) = &meta {
                manifest.runs.insert(0, *meta);
            }
            manifest.flushed_seq = frozen.last_seq;
            manifest.wal_floor = frozen.next_segment;
            manifest.next_snapshot_id = frozen.next_snapshot_id;
            manifest.next_table_id = self.next_table_id.load(Ordering::Relaxed);
            manifest.last_time_micros = frozen.last_time_micros;
        })?;
        let run = meta.map(|meta| self.open_run(&meta)).transpose()?;
        self.present.publish(|layers| layers.with_flushed(&frozen.memtable, run, frozen.last_seq));
        self.tell_runs();
        self.backlog.pop();
        writer.wal.release_before(frozen.next_segment)?;
        Counters::add(&self.counters.flushes, 1);
        self.merge_signal.raise();
        Ok(true)
    }

    /// Flushes all that is frozen.
    pub fn flush_all(&self) -> Result<()> {
        while self.flush_one()? {}
        Ok(())
    }

    fn write_run(&self, frozen: &Frozen) -> Result<RunMeta> {
        let (flushed_seq, id) = {
            let mut manifest = lock(&self.manifest);
            (manifest.flushed_seq, manifest.take_run_id())
        };
        let directory = self.runs_dir();
        let mut run = RunWriter::create(
            &*self.disk,
            &directory.join(file_name(id)),
            id,
            self.present.context().hash_seed,
        )?;
        let needed = self.needed_between(0, frozen.last_seq + 1)?;
        keep_needed(&mut frozen.memtable.versions(), &needed, Newest::Always, &mut run)?;
        let meta = run.finish(Some(flushed_seq + 1..=frozen.last_seq))?;
        sync_dir(&*self.disk, &directory)?;
        Counters::add(&self.counters.flushed_bytes, meta.bytes);
        Ok(meta)
    }

    /// Opens a run that the manifest names.
    pub fn open_run(&self, meta: &RunMeta) -> Result<Arc<Run>> {
        let path = self.runs_dir().join(file_name(meta.id));
        Run::open(&*self.disk, &path, meta, self.present.context().hash_seed, &self.cache)
    }
}
