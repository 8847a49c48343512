//! Consolidation: several small runs become one larger run.
//!
//! Owns: the choice of the runs. Promises: reads ask a bounded number of runs, however large the base is and
//! however long a merge is put off. May call: everything below db.
//!
//! A merge rewrites every page that it changes. Under uniform writes that is all of the base, so it pays only
//! once the runs hold a good part of the base's bytes. Until then runs are gathered in tiers, as in a
//! size-tiered log-structured merge tree: a record is copied once for each tier, and there are
//! logarithmically many.

use std::sync::Arc;

use super::engine::{Counters, Engine, lock};
use super::keep::{Newest, RunsUntilClosed, keep_needed};
use crate::error::Result;
use crate::io::sync_dir;
use crate::run::{Run, RunMeta, RunWriter, file_name};

/// How many runs of one tier become one run.
const TIER_RUNS: usize = 8;

/// The sizes of one tier's runs lie within this factor.
const TIER_FACTOR: u64 = 4;

/// How many of the newest runs to make one of: all up to the last of the lowest tier that is full. `sizes` in
/// bytes, newest first.
fn full_tier(sizes: &[u64], unit_bytes: u64) -> Option<usize> {
    let tier = |bytes: u64| (bytes / unit_bytes.max(1)).max(1).ilog(TIER_FACTOR);
    let highest = sizes.iter().map(|bytes| tier(*bytes)).max()?;
    (0..=highest).find_map(|wanted| {
        // Only neighbours can become one: the first larger run ends the row.
        let row = sizes.iter().take_while(|bytes| tier(**bytes) <= wanted).count();
        let full = sizes[..row].iter().filter(|bytes| tier(**bytes) == wanted).count() >= TIER_RUNS;
        full.then_some(row)
    })
}

impl Engine {
    /// How many of the newest runs should become one now: none, if a merge will be due soon anyway.
    fn consolidation_due(&self, runs: &[Arc<Run>]) -> Option<usize> {
        let sizes: Vec<u64> = runs.iter().map(|run| run.meta().bytes).collect();
        // A flush writes about half of what a memtable takes.
        let count = full_tier(&sizes, self.options.memtable_bytes as u64 / 4)?;
        let gathered: u64 = sizes[..count].iter().sum();
        let waiting: u64 = sizes.iter().sum();
        (waiting + gathered < self.due_bytes()).then_some(count)
    }

    /// Makes one run of the newest ones if enough have gathered; `false` if not.
    pub fn consolidate(&self) -> Result<bool> {
        let _merging = lock(&self.merging);
        let layers = self.present.layers();
        let Some(count) = self.consolidation_due(&layers.runs) else { return Ok(false) };
        let runs = &layers.runs[..count];
        let meta = self.write_consolidated(runs)?;
        self.publish_manifest(|manifest| {
            // Not always the first: a flush may have come in between.
            let first = manifest.runs.iter().position(|run| run.id == runs[0].meta().id);
            let first = first.expect("only merges take runs away, and this is the only one");
            manifest.runs.splice(first..first + count, [meta]);
        })?;
        let run = self.open_run(&meta)?;
        self.present.publish(|layers| layers.with_consolidated(runs, run));
        self.tell_runs();
        self.remove_runs(runs)?;
        Counters::add(&self.counters.consolidations, 1);
        Ok(true)
    }

    fn write_consolidated(&self, runs: &[Arc<Run>]) -> Result<RunMeta> {
        let (newest, oldest) = (runs[0].meta(), runs[runs.len() - 1].meta());
        let id = lock(&self.manifest).take_run_id();
        let directory = self.runs_dir();
        let path = directory.join(file_name(id));
        let mut writer = RunWriter::create(&*self.disk, &path, id, self.present.context().hash_seed)?;
        let needed = self.needed_between(0, newest.max_seq + 1)?;
        let mut versions = RunsUntilClosed::new(runs, self.closing.clone());
        keep_needed(&mut versions, &needed, Newest::Always, &mut writer)?;
        let meta = writer.finish(Some(oldest.min_seq..=newest.max_seq))?;
        sync_dir(&*self.disk, &directory)?;
        Counters::add(&self.counters.flushed_bytes, meta.bytes);
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_full_when_it_has_enough_runs() {
        assert_eq!(full_tier(&[], 10), None);
        assert_eq!(full_tier(&[10; 7], 10), None);
        assert_eq!(full_tier(&[10; 8], 10), Some(8));
        let mut sizes = vec![10, 10, 300, 300, 300, 300, 300, 300, 300];
        assert_eq!(full_tier(&sizes, 10), None);
        sizes.push(300);
        assert_eq!(full_tier(&sizes, 10), Some(10), "smaller runs go with a full tier");
    }

    #[test]
    fn runs_stay_few_and_each_byte_is_copied_a_few_times() {
        let (mut sizes, mut copied, mut most) = (Vec::new(), 0u64, 0);
        let flushes = 100_000u64;
        for _ in 0..flushes {
            sizes.insert(0, 10);
            while let Some(count) = full_tier(&sizes, 10) {
                let sum: u64 = sizes.drain(..count).sum();
                copied += sum;
                sizes.insert(0, sum);
            }
            most = most.max(sizes.len());
        }
        let tiers = flushes.ilog(TIER_RUNS as u64) as usize + 1;
        assert!(most <= TIER_RUNS * tiers, "{most} runs");
        assert!(
            copied <= 10 * flushes * tiers as u64,
            "each byte was copied {} times",
            copied / (10 * flushes)
        );
    }
}
