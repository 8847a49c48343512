//! What a merge keeps of the past.
//!
//! Owns: the choice between keeping a base (its pages stay in the file) and keeping the changes (a longer
//! chain of history runs), and whether those are written anew. Promises: what history costs stays within a small
//! multiple of the bytes that were written, even with a snapshot after every commit, and near the changed pages for
//! rare ones; where snapshots are frequent, changes are not written a second time to be kept. May call: run.

use super::visibility::Needed;
use crate::codec::Reader;
use crate::run::RunMeta;

/// A past read asks the runs of a chain that are not newer than it: there are no more than this. Enough for two merges
/// of a large base, which are due when so many full memtables have gathered.
const CHAIN_RUNS_MAX: u64 = 32;

/// The intervals since the last key frame, as far as each holds everything that the next needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// How many runs they have, or 1 if they have none. 0: there is no chain to go on with.
    pub runs: u64,
    pub bytes: u64,
}

impl Chain {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.runs.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<Chain> {
        Some(Chain { runs: reader.u64()?, bytes: reader.u64()? })
    }

    /// Whether its runs are so small, on average, that they are better one. `worth_bytes` is what makes a run worth to
    /// be one of its own.
    pub fn is_scattered(&self, worth_bytes: u64) -> bool {
        self.runs > 1 && self.bytes < self.runs.saturating_mul(worth_bytes)
    }
}

/// What one merge is to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The states in the merged interval that are needed; if there are none, nothing is kept.
    pub needed: Needed,
    /// The base that the merge begins with becomes a key frame.
    pub keep_base: bool,
    /// What is kept of the changes includes every key's newest version, so that the next interval may lean on it in
    /// place of the new base.
    pub include_end: bool,
    /// The merged runs are kept as they are. Else what is needed of them goes into a run that is written.
    pub keep_runs: bool,
}

impl Plan {
    /// Plans the merge of `[from, to)`, whose changes are in these runs. `pinned_bytes` is what keeping the base is
    /// expected to cost: the pages that merges rewrite.
    pub fn new(
        needed: Needed,
        (from, to): (u64, u64),
        runs: &[RunMeta],
        chain: Chain,
        pinned_bytes: u64,
    ) -> Plan {
        let Some(last) = needed.last() else {
            return Plan { needed, keep_base: false, include_end: false, keep_runs: false };
        };
        // The end is nearly free where the last snapshot sees nearly everything anyway.
        let include_end = is_late(last, from, to);
        // A key frame is earned once the chain's deltas have cost as much: so key frames at most double the
        // deltas.
        let chained = chain.runs > 0 && chain.runs < CHAIN_RUNS_MAX && chain.bytes < pinned_bytes;
        // Flushes have dropped what nobody needs, but each run's newest versions stay in any case. These are needed as
        // well if a snapshot comes near the run's end.
        let all_needed = runs.iter().all(|run| {
            let last = needed.within(run.min_seq, run.max_seq.saturating_add(1)).last();
            last.is_some_and(|last| is_late(last, run.min_seq, run.max_seq))
        });
        let before = if chained { chain.runs } else { 0 };
        let keep_runs = include_end && all_needed && before + runs.len() as u64 <= CHAIN_RUNS_MAX;
        Plan { needed, keep_base: !chained, include_end, keep_runs }
    }

    /// The chain after the merge, for which these history runs are kept.
    pub fn chain_after(&self, chain: Chain, kept: &[RunMeta]) -> Chain {
        let runs = (kept.len() as u64).max(1);
        let bytes = RunMeta::total_bytes(kept);
        match (self.include_end, self.keep_base) {
            (false, _) => Chain::default(),
            (true, true) => Chain { runs, bytes },
            (true, false) => Chain { runs: chain.runs + runs, bytes: chain.bytes + bytes },
        }
    }
}

/// Whether a number lies in the last tenth of an interval, or behind it.
fn is_late(seq: u64, from: u64, to: u64) -> bool {
    (seq - from).saturating_mul(10) >= (to - from).saturating_mul(9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_snapshots_nothing_is_kept() {
        let chain = Chain { runs: 1, bytes: 5 };
        let plan = Plan::new(Needed::default(), (0, 100), &[run(0, 100)], chain, 1000);
        assert!(!plan.keep_base && !plan.include_end && !plan.keep_runs);
        assert_eq!(plan.chain_after(chain, &[]), Chain::default());
    }

    #[test]
    fn a_rare_snapshot_keeps_the_base_and_a_small_delta() {
        let plan = Plan::new(vec![10].into(), (0, 100), &[run(0, 100)], Chain::default(), 1000);
        assert!(plan.keep_base && !plan.include_end && !plan.keep_runs);
    }

    #[test]
    fn snapshots_all_along_share_key_frames() {
        share_key_frames(|from, to| (from..to).collect::<Vec<_>>().into());
    }

    #[test]
    fn a_window_shares_key_frames() {
        share_key_frames(|from, to| Needed::new(vec![], from..to));
        let needed = Needed::new(vec![], 97..100);
        let plan = Plan::new(needed, (0, 100), &[run(50, 100), run(0, 50)], Chain::default(), 1000);
        assert!(plan.keep_base && plan.include_end, "the next merge leans on a window that begins late");
        assert!(!plan.keep_runs, "nobody needs the older run's newest versions");
    }

    #[test]
    fn runs_are_kept_as_they_are_if_snapshots_see_their_ends() {
        let plan = |needed: Vec<u64>, runs: &[RunMeta], chained: u64| {
            let chain = Chain { runs: chained, bytes: 1 };
            Plan::new(needed.into(), (0, 100), runs, chain, 1000)
        };
        let runs = [run(51, 100), run(1, 50)];
        assert!(plan(vec![46, 96], &runs, 0).keep_runs);
        assert!(plan(vec![50, 99], &runs, 0).keep_runs);
        assert!(!plan(vec![40, 96], &runs, 0).keep_runs, "the older one has what nobody sees");
        assert!(!plan(vec![46, 80], &runs, 0).keep_runs);
        assert!(plan(vec![46, 96], &runs, CHAIN_RUNS_MAX - 2).keep_runs);
        let full = plan(vec![46, 96], &runs, CHAIN_RUNS_MAX - 1);
        assert!(
            !full.keep_runs && full.include_end && !full.keep_base,
            "one that is written takes less place"
        );
        assert!(plan(vec![46, 96], &runs, CHAIN_RUNS_MAX).keep_runs, "a new chain");
    }

    #[test]
    fn small_runs_are_scattered() {
        assert!(Chain { runs: 2, bytes: 199 }.is_scattered(100));
        assert!(!Chain { runs: 2, bytes: 200 }.is_scattered(100));
        assert!(!Chain { runs: 1, bytes: 1 }.is_scattered(100));
    }

    fn run(min_seq: u64, max_seq: u64) -> RunMeta {
        RunMeta { id: max_seq, min_seq, max_seq, records: 1, bytes: 150, footer_checksum: 0 }
    }

    fn share_key_frames(needed: impl Fn(u64, u64) -> Needed) {
        let mut chain = Chain::default();
        let (mut frames, mut delta_bytes) = (0, 0);
        for merge in 0..100u64 {
            let (from, to) = (merge * 100, merge * 100 + 100);
            let runs = [run(from + 51, to), run(from + 1, from + 50)];
            let plan = Plan::new(needed(from, to), (from, to), &runs, chain, 1000);
            assert!(plan.keep_runs);
            frames += u64::from(plan.keep_base);
            delta_bytes += 300;
            chain = plan.chain_after(chain, &runs);
            assert!(chain.runs <= CHAIN_RUNS_MAX);
        }
        assert!(frames * 1000 <= delta_bytes, "{frames} key frames for {delta_bytes} bytes of deltas");
        assert!(frames >= 200 / CHAIN_RUNS_MAX);
    }
}
