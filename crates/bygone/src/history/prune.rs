//! What deletions make superfluous, and what is put together.
//!
//! Owns: the choice of what to remove and what to make anew. Promises: nothing goes that a living snapshot, or a
//! commit of the window, is read through; what is made anew had at least as many snapshots deleted as live, so that a
//! deletion's cost is in proportion to what only the deleted needed, or is a chain of small runs that has ended, which
//! is put together once. May call: `visibility`, `plan`.
//!
//! A *chain* is an interval with a key frame and those behind it that lean on it. A snapshot is read through its
//! own interval and all before it in the chain. So a chain without living snapshots goes as a whole, with its key
//! frame; of another its end goes, behind the last interval that has a living snapshot. Once a chain has ended,
//! because there is a later key frame, its intervals become one if its runs are small: there would be ever more files,
//! and a past read asks one run instead of several. Large ones stay: that saves writing them once more, and a past
//! read passes over those that are newer than it. The commits of the window count like snapshots, also when they
//! leave it.

use std::collections::HashSet;

use super::Interval;
use super::plan::Chain as Runs;
use super::visibility::Needed;

/// What is kept of one merged interval: the row's key, and the row.
pub(crate) type Kept = (u64, Interval);

/// What a chain becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays as it is.
    Stays,
    /// All of it goes.
    Goes,
    /// Its first so many intervals stay.
    EndsAfter(usize),
    /// Its first so many intervals become one, with a run for just these snapshots.
    Rewritten { intervals: usize, needed: Needed },
}

/// One chain of the intervals, and its fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain<'a> {
    pub intervals: &'a [Kept],
    pub fate: Fate,
}

/// Decides over all intervals, oldest first, given the states that are needed. Runs with less than `worth_bytes` are
/// small.
pub(crate) fn plan<'a>(intervals: &'a [Kept], living: &Needed, worth_bytes: u64) -> Vec<Chain<'a>> {
    let chains: Vec<_> = chains(intervals).collect();
    let last = chains.len().saturating_sub(1);
    let fate =
        |(i, chain)| Chain { intervals: chain, fate: fate(chain, living, (i < last).then_some(worth_bytes)) };
    chains.into_iter().enumerate().map(fate).collect()
}

/// Which intervals are one chain.
pub(crate) fn chains(intervals: &[Kept]) -> impl Iterator<Item = &[Kept]> {
    intervals.chunk_by(|_, (_, next)| next.key_frame.is_none())
}

/// The ids of the history runs that these rows name.
pub(crate) fn run_ids(intervals: &[Kept]) -> HashSet<u64> {
    intervals.iter().flat_map(|(_, interval)| &interval.runs).map(|run| run.id).collect()
}

/// `worth_bytes` if the chain has ended.
fn fate(chain: &[Kept], living: &Needed, worth_bytes: Option<u64>) -> Fate {
    let last = chain.iter().rposition(|(end, interval)| living.has_any_within(interval.from, *end));
    let Some(last) = last else { return Fate::Goes };
    let staying = &chain[..=last];
    let made_for: u64 = staying.iter().map(|(_, interval)| interval.snapshots).sum();
    let needed = living.within(staying[0].1.from, staying[last].0);
    let runs = staying.iter().flat_map(|(_, interval)| &interval.runs);
    let runs =
        runs.fold(Runs::default(), |sum, run| Runs { runs: sum.runs + 1, bytes: sum.bytes + run.bytes });
    let put_together = worth_bytes.is_some_and(|worth_bytes| runs.is_scattered(worth_bytes));
    if runs.runs > 0 && (needed.count() * 2 <= made_for || put_together) {
        Fate::Rewritten { intervals: staying.len(), needed }
    } else if staying.len() < chain.len() {
        Fate::EndsAfter(staying.len())
    } else {
        Fate::Stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BaseRoot;
    use crate::run::RunMeta;

    fn interval(from: u64, to: u64, framed: bool, snapshots: u64) -> Kept {
        let frame = BaseRoot { generation: from, seq: from, catalogue: None, tables: 0 };
        let run = RunMeta { id: to, min_seq: from, max_seq: to, records: 1, bytes: 1, footer_checksum: 0 };
        let key_frame = framed.then_some(frame);
        (to, Interval { from, key_frame, runs: vec![run], snapshots })
    }

    /// Two chains: of three intervals, and of one.
    fn intervals() -> Vec<Kept> {
        vec![
            interval(0, 10, true, 4),
            interval(10, 20, false, 4),
            interval(20, 30, false, 4),
            interval(30, 40, true, 2),
        ]
    }

    fn fates(living: &[u64]) -> Vec<Fate> {
        plan(&intervals(), &living.to_vec().into(), 2).into_iter().map(|chain| chain.fate).collect()
    }

    /// The fate of the first chain as long as there is no other.
    fn open_fate(living: &[u64]) -> Fate {
        plan(&intervals()[..3], &living.to_vec().into(), 2).remove(0).fate
    }

    #[test]
    fn where_all_live_all_stays_until_the_chain_has_ended() {
        let living = [1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24, 31, 32];
        assert_eq!(open_fate(&living), Fate::Stays);
        let together = Fate::Rewritten { intervals: 3, needed: living[..12].to_vec().into() };
        assert_eq!(fates(&living), [together, Fate::Stays]);
        let large = plan(&intervals(), &living.to_vec().into(), 1).remove(0).fate;
        assert_eq!(large, Fate::Stays, "runs that are worth their place");
    }

    #[test]
    fn a_chain_of_one_interval_is_together() {
        assert_eq!(plan(&intervals()[2..], &vec![21, 22, 23, 31, 32].into(), 2)[0].fate, Fate::Stays);
    }

    #[test]
    fn a_chain_without_living_snapshots_goes() {
        assert_eq!(fates(&[31, 32]), [Fate::Goes, Fate::Stays]);
        assert_eq!(fates(&[]), [Fate::Goes, Fate::Goes]);
    }

    #[test]
    fn an_interval_goes_only_if_none_behind_it_in_its_chain_is_needed() {
        assert_eq!(open_fate(&[1, 2, 3, 4, 11, 31, 32]), Fate::EndsAfter(2));
        assert_eq!(open_fate(&[11, 12, 13, 21, 22, 23, 24, 31, 32]), Fate::Stays);
    }

    #[test]
    fn where_half_are_deleted_a_run_for_the_others_is_made() {
        let rewritten = Fate::Rewritten { intervals: 3, needed: vec![2, 12, 22, 23].into() };
        assert_eq!(
            fates(&[2, 12, 22, 23, 31]),
            [rewritten, Fate::Rewritten { intervals: 1, needed: vec![31].into() }]
        );
    }

    #[test]
    fn a_window_keeps_what_it_reaches_and_lets_go_what_it_leaves() {
        let fate = |first: u64, snapshots: u64| {
            let chain = [interval(0, 10, true, snapshots), interval(10, 20, false, snapshots)];
            plan(&chain, &Needed::new(vec![3], first..50), 2).remove(0).fate
        };
        assert_eq!(fate(0, 10), Fate::Stays);
        assert_eq!(fate(5, 10), Fate::Stays);
        let rewritten = Fate::Rewritten { intervals: 2, needed: Needed::new(vec![3], 12..20) };
        assert_eq!(fate(12, 10), rewritten, "half is gone");
        let rewritten = Fate::Rewritten { intervals: 1, needed: Needed::new(vec![3], 0..0) };
        assert_eq!(fate(20, 10), rewritten, "only what was declared stays");
        let all = intervals();
        let chains = plan(&all, &Needed::new(vec![], 40..50), 2);
        assert!(chains.iter().all(|chain| chain.fate == Fate::Goes));
    }

    #[test]
    fn snapshots_outside_of_all_intervals_do_not_matter() {
        assert_eq!(fates(&[40, 55]), [Fate::Goes, Fate::Goes]);
    }
}
