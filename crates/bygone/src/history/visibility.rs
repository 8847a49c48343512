//! Which states anybody still asks for, and which versions of a key those see.
//!
//! Owns: the rule. Promises: a version is seen by `s` if it is the newest that is not newer than `s`. May
//! call: `mutation`.

use std::ops::Range;

use crate::mutation::{self, Mutation};

/// The states that are needed, by the numbers of their commits: those of declared snapshots, and every one of the
/// continuous window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needed {
    /// Of declared snapshots, ascending.
    declared: Vec<u64>,
    /// All of these as well; `0..0` if there are none.
    every: Range<u64>,
}

impl Needed {
    /// `declared` in ascending order.
    pub fn new(declared: Vec<u64>, every: Range<u64>) -> Needed {
        debug_assert!(declared.is_sorted());
        let every = if every.is_empty() || mutation::is_on(Mutation::ForgetWindow) { 0..0 } else { every };
        Needed { declared, every }
    }

    pub fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.every.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        let inside = self.index(self.every.end) - self.index(self.every.start);
        (self.declared.len() - inside) as u64 + (self.every.end - self.every.start)
    }

    /// The greatest.
    pub fn last(&self) -> Option<u64> {
        let last_of_every = (!self.every.is_empty()).then(|| self.every.end - 1);
        self.declared.last().copied().max(last_of_every)
    }

    /// Those in an interval.
    pub fn within(&self, from: u64, to: u64) -> Needed {
        let declared = self.declared[self.index(from)..self.index(to).max(self.index(from))].to_vec();
        Needed::new(declared, self.every.start.max(from)..self.every.end.min(to))
    }

    /// Whether there are any in an interval.
    pub fn has_any_within(&self, from: u64, to: u64) -> bool {
        self.index(from) < self.index(to) || self.every.start.max(from) < self.every.end.min(to)
    }

    /// How many declared ones are less.
    fn index(&self, seq: u64) -> usize {
        // With a snapshot of each commit the numbers are a row without gaps, and the place is known.
        if let Some(guess) = self.declared.first().and_then(|first| seq.checked_sub(*first)?.checked_sub(1)) {
            let guess = guess as usize;
            if let Some([before, at]) = self.declared.get(guess..).and_then(|rest| rest.first_chunk())
                && *before < seq
                && *at == seq
            {
                return guess + 1;
            }
        }
        self.declared.partition_point(|declared| *declared < seq)
    }
}

/// Declared snapshots without a window, by their numbers in ascending order.
impl From<Vec<u64>> for Needed {
    fn from(declared: Vec<u64>) -> Needed {
        Needed::new(declared, 0..0)
    }
}

/// Goes through a key's versions, newest first, and tells which of them some needed state sees.
pub(crate) struct Visibility<'a> {
    needed: &'a Needed,
    /// The version before this one, which hides it from there on.
    newer: u64,
}

impl<'a> Visibility<'a> {
    pub fn new(needed: &'a Needed) -> Visibility<'a> {
        Visibility { needed, newer: u64::MAX }
    }

    /// The next version belongs to another key.
    pub fn next_key(&mut self) {
        self.newer = u64::MAX;
    }

    /// Whether the version with this number, the next older one of its key, is seen.
    pub fn sees(&mut self, seq: u64) -> bool {
        let Needed { declared, every } = self.needed;
        let first = self.needed.index(seq);
        let hidden_from = if mutation::is_on(Mutation::HideTooEarly) { self.newer - 1 } else { self.newer };
        let seen = declared.get(first).is_some_and(|s| *s < hidden_from)
            || every.start.max(seq) < every.end.min(hidden_from);
        self.newer = seq;
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(needed: impl Into<Needed>, versions: &[u64]) -> Vec<u64> {
        let needed = needed.into();
        let mut visibility = Visibility::new(&needed);
        versions.iter().copied().filter(|seq| visibility.sees(*seq)).collect()
    }

    #[test]
    fn the_index_is_how_many_are_less() {
        for declared in [vec![], vec![4], vec![3, 4, 5, 6], vec![3, 4, 6, 7], vec![3, 5, 5], vec![2, 2, 4, 5]]
        {
            for seq in (0..9).chain([u64::MAX]) {
                let less = declared.iter().filter(|declared| **declared < seq).count();
                assert_eq!(Needed::from(declared.clone()).index(seq), less, "{seq} in {declared:?}");
            }
        }
    }

    #[test]
    fn each_number_sees_the_newest_version_that_is_not_newer() {
        assert_eq!(seen(vec![5], &[9, 7, 5, 3]), [5]);
        assert_eq!(seen(vec![6], &[9, 7, 5, 3]), [5]);
        assert_eq!(seen(vec![2], &[9, 7, 5, 3]), []);
        assert_eq!(seen(vec![3, 8, 100], &[9, 7, 5, 3]), [9, 7, 3]);
        assert_eq!(seen(vec![], &[9, 7]), []);
        assert_eq!(seen(vec![6, 6], &[9, 7, 5, 3]), [5]);
    }

    #[test]
    fn keys_do_not_hide_each_other() {
        let needed = Needed::from(vec![5]);
        let mut visibility = Visibility::new(&needed);
        assert!(visibility.sees(5));
        assert!(!visibility.sees(4));
        visibility.next_key();
        assert!(visibility.sees(4));
    }

    #[test]
    fn in_a_window_every_version_is_seen_and_the_one_before_it() {
        assert_eq!(seen(Needed::new(vec![], 5..100), &[9, 7, 5, 3]), [9, 7, 5]);
        assert_eq!(seen(Needed::new(vec![], 6..100), &[9, 7, 5, 3]), [9, 7, 5]);
        assert_eq!(seen(Needed::new(vec![], 6..9), &[9, 7, 5, 3]), [7, 5]);
        assert_eq!(seen(Needed::new(vec![3], 7..9), &[9, 7, 5, 3]), [7, 3]);
        assert_eq!(seen(Needed::new(vec![], 7..7), &[9, 7, 5, 3]), []);
    }

    /// A window is the same as a list of all its numbers.
    #[test]
    fn a_window_is_short_for_its_numbers() {
        let declared = [vec![], vec![0, 3, 4], vec![2, 9]];
        for list in &declared {
            for (start, end) in (0..10).flat_map(|start| (start..11).map(move |end| (start, end))) {
                let needed = Needed::new(list.clone(), start..end);
                let mut all: Vec<u64> = list.iter().copied().chain(start..end).collect();
                all.sort_unstable();
                all.dedup();
                let what = format!("{list:?} and {start}..{end}");
                assert_eq!(needed.count(), all.len() as u64, "{what}");
                assert_eq!(needed.last(), all.last().copied(), "{what}");
                assert_eq!(needed.is_empty(), all.is_empty(), "{what}");
                for (from, to) in (0..12).flat_map(|from| (0..12).map(move |to| (from, to))) {
                    let inside: Vec<u64> = all.iter().copied().filter(|s| (from..to).contains(s)).collect();
                    let within = needed.within(from, to);
                    assert_eq!(within.count(), inside.len() as u64, "{what} within {from}..{to}");
                    assert_eq!(needed.has_any_within(from, to), !inside.is_empty(), "{what} in {from}..{to}");
                    let versions: Vec<u64> = (0..12).rev().step_by(2).collect();
                    assert_eq!(seen(within, &versions), seen(inside, &versions), "{what} in {from}..{to}");
                }
            }
        }
    }
}
