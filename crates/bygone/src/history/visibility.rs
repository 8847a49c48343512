//! Which versions of a key anybody can still see.
//!
//! Owns: the rule. Promises: a version is seen by `s` if it is the newest that is not newer than `s`. May
//! call: nothing.

/// Goes through a key's versions, newest first, and tells which of them some sequence number of a set sees.
pub(crate) struct Visibility<'a> {
    /// Ascending.
    seqs: &'a [u64],
    /// The version before this one, which hides it from there on.
    newer: u64,
}

impl<'a> Visibility<'a> {
    pub fn new(seqs: &'a [u64]) -> Visibility<'a> {
        debug_assert!(seqs.is_sorted());
        Visibility { seqs, newer: u64::MAX }
    }

    /// The next version belongs to another key.
    pub fn next_key(&mut self) {
        self.newer = u64::MAX;
    }

    /// Whether the version with this number, the next older one of its key, is seen.
    pub fn sees(&mut self, seq: u64) -> bool {
        let first = self.seqs.partition_point(|s| *s < seq);
        let seen = self.seqs.get(first).is_some_and(|s| *s < self.newer);
        self.newer = seq;
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(seqs: &[u64], versions: &[u64]) -> Vec<u64> {
        let mut visibility = Visibility::new(seqs);
        versions.iter().copied().filter(|seq| visibility.sees(*seq)).collect()
    }

    #[test]
    fn each_number_sees_the_newest_version_that_is_not_newer() {
        assert_eq!(seen(&[5], &[9, 7, 5, 3]), [5]);
        assert_eq!(seen(&[6], &[9, 7, 5, 3]), [5]);
        assert_eq!(seen(&[2], &[9, 7, 5, 3]), []);
        assert_eq!(seen(&[3, 8, 100], &[9, 7, 5, 3]), [9, 7, 3]);
        assert_eq!(seen(&[], &[9, 7]), []);
        assert_eq!(seen(&[6, 6], &[9, 7, 5, 3]), [5]);
    }

    #[test]
    fn keys_do_not_hide_each_other() {
        let mut visibility = Visibility::new(&[5]);
        assert!(visibility.sees(5));
        assert!(!visibility.sees(4));
        visibility.next_key();
        assert!(visibility.sees(4));
    }
}
