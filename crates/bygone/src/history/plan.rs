//! What a merge keeps of the past.
//!
//! Owns: the choice between keeping a base (its pages stay in the file) and keeping the changes (a longer
//! chain of history runs). Promises: what history costs stays within a small multiple of the bytes that were
//! written, even with a snapshot after every commit, and near the changed pages for rare ones. May call:
//! nothing.

use super::visibility::Needed;
use crate::codec::Reader;

/// A past read asks each run of a chain: no chain gets longer than this.
const CHAIN_LENGTH_MAX: u64 = 8;

/// The intervals since the last key frame, as far as each holds everything that the next needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// 0: there is no chain to go on with.
    pub length: u64,
    pub bytes: u64,
}

impl Chain {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<Chain> {
        Some(Chain { length: reader.u64()?, bytes: reader.u64()? })
    }
}

/// What one merge is to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The states in the merged interval that are needed; if there are none, nothing is kept.
    pub needed: Needed,
    /// The base that the merge begins with becomes a key frame.
    pub keep_base: bool,
    /// The history run also gets every key's newest version, so that the next interval may lean on it in
    /// place of the new base.
    pub include_end: bool,
}

impl Plan {
    /// Plans the merge of `[from, to)`. `pinned_bytes` is what keeping the base is expected to cost: the
    /// pages that merges rewrite.
    pub fn new(needed: Needed, from: u64, to: u64, chain: Chain, pinned_bytes: u64) -> Plan {
        let Some(last) = needed.last() else {
            return Plan { needed, keep_base: false, include_end: false };
        };
        // The end is nearly free where the last snapshot sees nearly everything anyway.
        let include_end = (last - from).saturating_mul(10) >= (to - from).saturating_mul(9);
        // A key frame is earned once the chain's deltas have cost as much: so key frames at most double the
        // deltas.
        let chained = chain.length > 0 && chain.length < CHAIN_LENGTH_MAX && chain.bytes < pinned_bytes;
        Plan { needed, keep_base: !chained, include_end }
    }

    /// The chain after the merge, whose history run has this many bytes.
    pub fn chain_after(&self, chain: Chain, run_bytes: u64) -> Chain {
        match (self.include_end, self.keep_base) {
            (false, _) => Chain::default(),
            (true, true) => Chain { length: 1, bytes: run_bytes },
            (true, false) => Chain { length: chain.length + 1, bytes: chain.bytes + run_bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_snapshots_nothing_is_kept() {
        let plan = Plan::new(Needed::default(), 0, 100, Chain { length: 1, bytes: 5 }, 1000);
        assert!(!plan.keep_base && !plan.include_end);
        assert_eq!(plan.chain_after(Chain { length: 1, bytes: 5 }, 0), Chain::default());
    }

    #[test]
    fn a_rare_snapshot_keeps_the_base_and_a_small_delta() {
        let plan = Plan::new(vec![10].into(), 0, 100, Chain::default(), 1000);
        assert!(plan.keep_base && !plan.include_end);
    }

    #[test]
    fn snapshots_all_along_share_key_frames() {
        share_key_frames(|from, to| (from..to).collect::<Vec<_>>().into());
    }

    #[test]
    fn a_window_shares_key_frames() {
        share_key_frames(|from, to| Needed::new(vec![], from..to));
        let plan = Plan::new(Needed::new(vec![], 97..100), 0, 100, Chain::default(), 1000);
        assert!(plan.keep_base && plan.include_end, "the next merge leans on a window that begins late");
    }

    fn share_key_frames(needed: impl Fn(u64, u64) -> Needed) {
        let mut chain = Chain::default();
        let (mut frames, mut delta_bytes) = (0, 0);
        for merge in 0..100u64 {
            let (from, to) = (merge * 100, merge * 100 + 100);
            let plan = Plan::new(needed(from, to), from, to, chain, 1000);
            frames += u64::from(plan.keep_base);
            delta_bytes += 300;
            chain = plan.chain_after(chain, 300);
            assert!(chain.length <= CHAIN_LENGTH_MAX);
        }
        assert!(frames * 1000 <= delta_bytes, "{frames} key frames for {delta_bytes} bytes of deltas");
        assert!(frames >= 100 / CHAIN_LENGTH_MAX);
    }
}
