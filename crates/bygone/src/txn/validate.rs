//! Whether a transaction may commit.
//!
//! Owns: the conflict table and the log of recent commits. Promises: first committer wins on written keys; serializable transactions lose also when what
//! they read was written since, ranges included; nobody loses over a key that nobody wrote. May call: snapshot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use super::write_set::WriteSet;
use crate::error::Result;
use crate::layer::{HashedKey, Key};
use crate::snapshot::{Layers, Snapshot};

/// A power of two; 8 bytes each.
const ENTRIES: usize = 1 << 16;

/// For each hash the last commit that wrote a key with it. Of fixed size: keys that share an entry are told apart by asking the layers.
pub(crate) struct ConflictTable {
    last_seqs: Box<[u64]>,
}

impl ConflictTable {
    pub fn new() -> ConflictTable {
        ConflictTable { last_seqs: vec![0; ENTRIES].into() }
    }

    pub fn last_seq(&self, hash: u64) -> u64 {
        self.last_seqs[hash as usize % ENTRIES]
    }

    pub fn note(&mut self, hash: u64, seq: u64) {
        self.last_seqs[hash as usize % ENTRIES] = seq;
    }
}

/// Whether anybody changed `key` since the transaction's view was taken. All commits up to now must be visible.
pub(crate) fn changed_since(
    read: &Snapshot,
    now: &Layers,
    now_seq: u64,
    key: &HashedKey<'_>,
) -> Result<bool> {
    let read_seq = read.seq().0;
    if let Some(seq) = now.newest_seq(key)? {
        return Ok(seq > read_seq);
    }
    if now.base.seq() <= read_seq {
        return Ok(false);
    }
    // The newest version was merged since, and the base does not say when it was written. Then the values decide: one that
    // is the same again is no change that anybody could tell.
    let Key { table, bytes } = key.key;
    let (mut before, mut after) = (None, None);
    read.layers().get(table, bytes, read_seq, &mut |value| before = Some(value.to_vec()))?;
    now.get(table, bytes, now_seq, &mut |value| after = Some(value.to_vec()))?;
    Ok(before != after)
}

/// A range that a serializable transaction read, as far as it got.
#[derive(Clone, Debug)]
pub(crate) struct RangeRead {
    pub table: u32,
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    /// The last key taken from the front, and from the back.
    pub front: Option<Vec<u8>>,
    pub back: Option<Vec<u8>>,
    pub exhausted: bool,
}

impl RangeRead {
    fn covers(&self, table: u32, key: &[u8]) -> bool {
        let after_lower = match &self.lower {
            Bound::Included(lower) => key >= &lower[..],
            Bound::Excluded(lower) => key > &lower[..],
            Bound::Unbounded => true,
        };
        let before_upper = match &self.upper {
            Bound::Included(upper) => key <= &upper[..],
            Bound::Excluded(upper) => key < &upper[..],
            Bound::Unbounded => true,
        };
        let reached = self.exhausted
            || self.front.as_deref().is_some_and(|front| key <= front)
            || self.back.as_deref().is_some_and(|back| key >= back);
        table == self.table && after_lower && before_upper && reached
    }
}

/// What a serializable transaction has read.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    /// Ids and names of the tables that were read, each once.
    pub tables: Vec<(u32, String)>,
    /// By table and key, each once.
    pub keys: BTreeSet<(u32, Vec<u8>)>,
    pub ranges: Vec<Arc<Mutex<RangeRead>>>,
}

impl ReadSet {
    pub fn note_table(&mut self, id: u32, name: &str) {
        if !self.tables.iter().any(|(known, _)| *known == id) {
            self.tables.push((id, name.to_owned()));
        }
    }

    /// One of the keys that were read of a table, or the empty key if only ranges were.
    pub fn some_key(&self, table: u32) -> &[u8] {
        let mut keys = self.keys.range((table, Vec::new())..);
        keys.next().filter(|(other, _)| *other == table).map_or(&[], |(_, key)| key)
    }

    /// The first of these writes that lies in a range that was read.
    pub fn range_hit<'w>(&self, writes: &'w WriteSet) -> Option<(u32, &'w [u8])> {
        if self.ranges.is_empty() {
            return None;
        }
        writes.iter().map(|(table, key, _)| (table, key)).find(|(table, key)| {
            let mut ranges = self.ranges.iter();
            ranges.any(|range| range.lock().unwrap_or_else(PoisonError::into_inner).covers(*table, key))
        })
    }
}

/// A commit that a serializable transaction may have to be validated against.
pub(crate) struct RecentCommit {
    pub seq: u64,
    pub writes: WriteSet,
    /// The id of the table that it dropped: a change to all that anybody read of it.
    pub dropped_table: Option<u32>,
}

/// Recent commits, kept while a serializable transaction runs.
#[derive(Default)]
pub(crate) struct RecentCommits {
    commits: VecDeque<RecentCommit>,
}

impl RecentCommits {
    pub fn push(&mut self, commit: RecentCommit) {
        self.commits.push_back(commit);
    }

    /// Forgets what no running transaction can ask for: everything up to `seq`.
    pub fn forget_up_to(&mut self, seq: u64) {
        while self.commits.front().is_some_and(|first| first.seq <= seq) {
            self.commits.pop_front();
        }
    }

    pub fn forget_all(&mut self) {
        self.commits.clear();
    }

    pub fn since(&self, seq: u64) -> impl Iterator<Item = &RecentCommit> + Clone {
        let start = self.commits.partition_point(|commit| commit.seq <= seq);
        self.commits.range(start..)
    }
}

/// The serializable transactions that run, by what was assigned when they began (at most their read point). A multiset: two may begin at one number.
#[derive(Default)]
pub(crate) struct Running(Mutex<BTreeMap<u64, usize>>);

impl Running {
    pub fn add(&self, seq: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(seq).or_default() += 1;
    }

    pub fn remove(&self, seq: u64) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&seq) {
            *count -= 1;
            if *count == 0 {
                running.remove(&seq);
            }
        }
    }

    pub fn oldest(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().next().copied()
    }
}
