//! What each declared snapshot takes.
//!
//! Owns: the count. Promises: bytes that are counted as a snapshot's own are given back when it alone is deleted (and
//! the window does not need them): whole key frames at once and records when their run is made anew. May call:
//! history, base, run.

use std::sync::Arc;

use super::Db;
use super::engine::{Engine, lock};
use super::keep::RunsUntilClosed;
use crate::base::BaseVersion;
use crate::error::Result;
use crate::history::SnapshotInfo;
use crate::history::prune::{Kept, chains};
use crate::ids::SnapshotId;
use crate::layer::Versions;
use crate::limits::PAGE_BYTES;
use crate::run::Run;

/// What is kept of the past for a declared snapshot, in bytes: pages of the base that the present does not have (in a
/// history directory they take less: this is before compression), and the keys and values in history runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotSize {
    /// The snapshot.
    pub id: SnapshotId,
    /// What nobody else needs.
    pub own_bytes: u64,
    /// What is kept for other declared snapshots, or for the [window](super::Options::window), as well.
    pub shared_bytes: u64,
}

/// Pages that are kept for a chain's key frame.
#[derive(Clone, Copy, Default)]
struct FramePages {
    own_bytes: u64,
    shared_bytes: u64,
}

impl Db {
    /// What each declared snapshot takes, by id. What it reads of the present counts nothing; one whose commit is not
    /// merged yet takes nothing of the past. Reads everything that is kept of the past once.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn snapshot_sizes(&self) -> Result<Vec<SnapshotSize>> {
        self.engine().snapshot_sizes()
    }
}

impl Engine {
    fn snapshot_sizes(&self) -> Result<Vec<SnapshotSize>> {
        // Frames, rows and snapshots must be of one moment; what is opened stays readable.
        let merging = lock(&self.merging);
        let layers = self.present.layers();
        let snapshots = self.past.list(&self.present.snapshot())?;
        let intervals = self.past.intervals(&layers.base)?;
        let chains: Vec<_> = chains(&intervals).collect();
        let mut opened = Vec::new();
        for chain in &chains {
            let runs = chain.iter().rev().flat_map(|(_, interval)| &interval.runs);
            let hash_seed = layers.context.hash_seed;
            opened.push(runs.map(|run| self.past.open_run(run, hash_seed)).collect::<Result<Vec<_>>>()?);
        }
        let frames = self.frame_pages(&chains, &layers.base)?;
        drop(merging);
        let mut sizes: Vec<SnapshotSize> = snapshots
            .iter()
            .map(|info| SnapshotSize { id: info.id, own_bytes: 0, shared_bytes: 0 })
            .collect();
        for ((chain, runs), frame) in chains.iter().zip(&opened).zip(frames) {
            let (from, end) = (chain[0].1.from, chain[chain.len() - 1].0);
            let first = snapshots.partition_point(|info| info.seq.0 < from);
            let behind = snapshots.partition_point(|info| info.seq.0 < end);
            let sizes = &mut sizes[first..behind];
            let window_from = layers.window.map_or(u64::MAX, |window| window.start.seq);
            self.count_records(runs, &snapshots[first..behind], window_from, sizes)?;
            let alone = sizes.len() == 1 && window_from >= end;
            for size in sizes {
                size.own_bytes += if alone { frame.own_bytes } else { 0 };
                size.shared_bytes += frame.shared_bytes + if alone { 0 } else { frame.own_bytes };
            }
        }
        Ok(sizes)
    }

    /// For each chain the pages that its key frame has and the next one has not: born after the frame before, they are
    /// its own.
    fn frame_pages(&self, chains: &[&[Kept]], present: &Arc<BaseVersion>) -> Result<Vec<FramePages>> {
        let root = |index: usize| chains.get(index).and_then(|chain: &&[Kept]| chain[0].1.key_frame);
        let mut frames = Vec::new();
        let mut before_generation = 0;
        for index in 0..chains.len() {
            let Some(frame) = root(index) else {
                frames.push(FramePages::default());
                continue;
            };
            let next = root(index + 1).map_or(Ok(present.clone()), |next| self.store.open_base(&next))?;
            let pages = self.store.pages_only_in(&*self.store.open_base(&frame)?, &next)?;
            let own = pages.iter().filter(|page| page.birth > before_generation).count();
            frames.push(FramePages {
                own_bytes: (own * PAGE_BYTES) as u64,
                shared_bytes: ((pages.len() - own) * PAGE_BYTES) as u64,
            });
            before_generation = frame.generation;
        }
        Ok(frames)
    }

    /// Adds the records of a chain's runs to the snapshots that see them.
    fn count_records(
        &self,
        runs: &[Arc<Run>],
        snapshots: &[SnapshotInfo],
        window_from: u64,
        sizes: &mut [SnapshotSize],
    ) -> Result<()> {
        let mut versions = RunsUntilClosed::new(runs, self.closing.clone());
        let (mut table, mut key) = (None, Vec::new());
        // The snapshots before this index may see the next version of the key, and so may commits before this one.
        let (mut unseen, mut newer) = (0, u64::MAX);
        // What every snapshot from an index on shares, more or less than the one before it.
        let mut shared = vec![0i64; sizes.len() + 1];
        while versions.advance()? {
            let version = versions.key();
            if table != Some(version.table) || key != version.bytes {
                table = Some(version.table);
                key.clear();
                key.extend_from_slice(version.bytes);
                (unseen, newer) = (snapshots.len(), u64::MAX);
            }
            let first = snapshots.partition_point(|info| info.seq.0 < versions.seq());
            if first < unseen {
                versions.load()?;
                let bytes = (key.len() + versions.loaded()?.map_or(0, <[u8]>::len)) as u64;
                if unseen - first == 1 && newer <= window_from {
                    sizes[first].own_bytes += bytes;
                } else {
                    shared[first] += bytes as i64;
                    shared[unseen] -= bytes as i64;
                }
                unseen = first;
            }
            newer = versions.seq();
        }
        let mut sum = 0;
        for (size, change) in sizes.iter_mut().zip(shared) {
            sum += change;
            size.shared_bytes += sum.unsigned_abs();
        }
        Ok(())
    }
}
