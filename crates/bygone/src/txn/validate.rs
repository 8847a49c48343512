//! Whether a transaction may commit.
//!
//! Owns: the conflict table and the log of recent commits. Promises: first committer wins on written keys;
//! serializable transactions lose also when what they read was written since, ranges included; nobody loses
//! over a key that nobody wrote. May call: snapshot, and the committer's waiting.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use super::commit::{Committer, Leader, Request, lock};
use super::write_set::Writes;
use crate::error::{Error, Result};
use crate::hint::prefetch;
use crate::layer::{HashedKey, Key};
use crate::snapshot::rows::{self, TableRow};
use crate::snapshot::{Layers, MergeCursor, Snapshot};

impl Committer {
    /// Whether this commit may take its place behind all that have theirs, `earlier` being those of the same
    /// group.
    pub(super) fn validate<'r>(
        &self,
        leader: &Leader,
        request: &Request,
        earlier: impl Iterator<Item = &'r Request> + Clone,
    ) -> Result<()> {
        for table in &request.tables {
            table.check_exists(self.database())?;
        }
        if let Some(read) = &request.read {
            if read.seq().0 < leader.oldest_read {
                overtaken(request)?;
            }
            let keys = request.writes.iter().zip(&request.hashes);
            for ((table, bytes, _), hash) in keys {
                let key = HashedKey { key: Key { table, bytes }, hash: *hash };
                self.validate_key(leader, request, read, &key, earlier.clone())?;
            }
            if let Some(reads) = &request.reads {
                self.validate_reads(leader, request, read, reads, earlier.clone())?;
            }
        }
        self.validate_snapshots(leader, &request.marks, earlier)
    }

    fn validate_key<'r>(
        &self,
        leader: &Leader,
        request: &Request,
        read: &Snapshot,
        key: &HashedKey<'_>,
        mut earlier: impl Iterator<Item = &'r Request>,
    ) -> Result<()> {
        let Key { table, bytes } = key.key;
        let in_group = earlier.any(|earlier| earlier.writes.contains(table, bytes));
        let last_seq = leader.conflicts.last_seq(key.hash);
        if !in_group {
            if last_seq <= read.seq().0 {
                return Ok(());
            }
            // Somebody wrote this key, or another with the same entry. That commit may be in its way into the
            // memtable still.
            self.wait_visible(last_seq)?;
            let layers: Arc<Layers> = self.present.layers();
            if !changed_since(read, &layers, leader.numbers.next_seq - 1, key)? {
                return Ok(());
            }
        }
        Err(conflict(request, table, bytes))
    }

    fn validate_reads<'r>(
        &self,
        leader: &Leader,
        request: &Request,
        read: &Snapshot,
        reads: &ReadSet,
        earlier: impl Iterator<Item = &'r Request> + Clone,
    ) -> Result<()> {
        for (table, bytes) in &reads.keys {
            let key = HashedKey::new(*table, bytes, self.present.context().hash_seed);
            self.validate_key(leader, request, read, &key, earlier.clone())?;
        }
        if !leader.recent.are_complete_since(read.seq().0) {
            self.compare_reads(leader, request, read, reads)?;
        }
        let since = leader.recent.since(read.seq().0);
        for dropped in since.clone().filter_map(|commit| commit.dropped_table) {
            if reads.tables.iter().any(|(id, _)| *id == dropped) {
                return Err(conflict(request, dropped, reads.some_key(dropped)));
            }
        }
        let since = since.map(|commit| &commit.writes);
        for writes in since.chain(earlier.map(|request| &request.writes)) {
            if let Some((table, key)) = reads.range_hit(writes) {
                return Err(conflict(request, table, key));
            }
        }
        Ok(())
    }

    /// Validates tables and ranges without the commits in between, which were too many to keep: by what is
    /// there now.
    fn compare_reads(
        &self,
        leader: &Leader,
        request: &Request,
        read: &Snapshot,
        reads: &ReadSet,
    ) -> Result<()> {
        self.wait_visible(leader.numbers.next_seq - 1)?;
        let now = self.present.snapshot();
        for (id, name) in &reads.tables {
            let of_then = read.system_row(rows::TABLES, name.as_bytes(), TableRow::decode)?;
            let of_now = now.system_row(rows::TABLES, name.as_bytes(), TableRow::decode)?;
            if of_then.is_some() && of_then != of_now {
                return Err(conflict(request, *id, reads.some_key(*id)));
            }
        }
        for range in &reads.ranges {
            let range = lock(range);
            if let Some(key) = changed_in_range(read, &now, &range)? {
                return Err(conflict(request, range.table, &key));
            }
        }
        Ok(())
    }
}

/// What a transaction has read or is about to write may have been written since, and nobody can tell.
fn overtaken(request: &Request) -> Result<()> {
    let written = request.writes.iter().map(|(table, key, _)| (table, key));
    let reads = request.reads.iter();
    let read = reads.flat_map(|reads| reads.tables.iter().map(|(table, _)| (*table, reads.some_key(*table))));
    written.chain(read).next().map_or(Ok(()), |(table, key)| Err(conflict(request, table, key)))
}

/// The names come with the request: the directory of tables is locked before the leader, never by it.
fn conflict(request: &Request, table: u32, key: &[u8]) -> Error {
    let written = request.tables.iter().map(|table| (table.id(), table.name()));
    let read = request.reads.iter().flat_map(|reads| &reads.tables).map(|(id, name)| (*id, &name[..]));
    let name = written.chain(read).find(|(id, _)| *id == table).map_or("", |(_, name)| name);
    Error::Conflict { table: name.to_owned(), key: key.to_vec() }
}

/// A power of two; 8 bytes each.
const ENTRIES: usize = 1 << 16;

/// For each hash the last commit that wrote a key with it. Of fixed size: keys that share an entry are told
/// apart by asking the layers.
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

    /// Asks the processor to fetch the entry.
    pub fn prefetch(&self, hash: u64) {
        prefetch(&raw const self.last_seqs[hash as usize % ENTRIES]);
    }

    pub fn note(&mut self, hash: u64, seq: u64) {
        self.last_seqs[hash as usize % ENTRIES] = seq;
    }
}

/// Whether anybody changed `key` since the transaction's view was taken. All commits up to now must be
/// visible.
fn changed_since(read: &Snapshot, now: &Layers, now_seq: u64, key: &HashedKey<'_>) -> Result<bool> {
    let read_seq = read.seq().0;
    if let Some(seq) = now.newest_seq(key)? {
        return Ok(seq > read_seq);
    }
    if now.base.seq() <= read_seq {
        return Ok(false);
    }
    // The newest version was merged since, and the base does not say when it was written. Then the values
    // decide: one that is the same again is no change that anybody could tell.
    let Key { table, bytes } = key.key;
    let (mut before, mut after) = (None, None);
    read.layers()?.get(table, bytes, read_seq, &mut |value| before = Some(value.to_vec()))?;
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
    /// Whether this key or a later one may be covered.
    fn may_reach(&self, key: &[u8]) -> bool {
        let before_upper = match &self.upper {
            Bound::Included(upper) => key <= &upper[..],
            Bound::Excluded(upper) => key < &upper[..],
            Bound::Unbounded => true,
        };
        let read_on = self.exhausted || self.back.is_some();
        before_upper && (read_on || self.front.as_deref().is_some_and(|front| key <= front))
    }

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

/// A key that lies in what was read of a range and has another value now than in the transaction's view: the
/// answer where the commits in between are not at hand. Takes as long as reading the range twice.
fn changed_in_range(read: &Snapshot, now: &Snapshot, range: &RangeRead) -> Result<Option<Vec<u8>>> {
    let cursor = |view: &Snapshot| -> Result<MergeCursor> {
        let mut cursor = view.layers()?.cursor_under(None, range.table, view.seq().into());
        cursor.seek_bound(range.lower.as_ref().map(Vec::as_slice))?;
        cursor.skip_deleted()?;
        Ok(cursor)
    };
    let (mut before, mut after) = (cursor(read)?, cursor(now)?);
    loop {
        let order = match (before.key(), after.key()) {
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(before), Some(after)) => before.cmp(after),
        };
        let key = if order.is_le() { before.key() } else { after.key() }.unwrap_or_default();
        if !range.may_reach(key) {
            return Ok(None);
        }
        if range.covers(range.table, key) {
            let key = key.to_vec();
            if order.is_ne() || before.record()? != after.record()? {
                return Ok(Some(key));
            }
        }
        if order.is_le() {
            before.next()?;
            before.skip_deleted()?;
        }
        if order.is_ge() {
            after.next()?;
            after.skip_deleted()?;
        }
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
    pub fn range_hit<'w>(&self, writes: &'w Writes) -> Option<(u32, &'w [u8])> {
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
    pub writes: Writes,
    /// The id of the table that it dropped: a change to all that anybody read of it.
    pub dropped_table: Option<u32>,
}

/// How many bytes of keys and values recent commits may hold, however long a serializable transaction runs.
const RECENT_BYTES_MAX: usize = 64 << 20;

/// Recent commits, kept while a serializable transaction runs.
#[derive(Default)]
pub(crate) struct RecentCommits {
    commits: VecDeque<RecentCommit>,
    bytes: usize,
    /// The newest commit that was given up although somebody may ask for it.
    given_up: u64,
}

impl RecentCommits {
    pub fn push(&mut self, commit: RecentCommit) {
        self.bytes += commit.writes.bytes();
        self.commits.push_back(commit);
        while self.bytes > RECENT_BYTES_MAX {
            let Some(oldest) = self.pop() else { break };
            self.given_up = oldest.seq;
        }
    }

    fn pop(&mut self) -> Option<RecentCommit> {
        let oldest = self.commits.pop_front()?;
        self.bytes -= oldest.writes.bytes();
        Some(oldest)
    }

    /// Whether all commits behind `seq` are here.
    pub fn are_complete_since(&self, seq: u64) -> bool {
        self.given_up <= seq
    }

    /// Forgets what no running transaction can ask for: everything up to `seq`.
    pub fn forget_up_to(&mut self, seq: u64) {
        while self.commits.front().is_some_and(|first| first.seq <= seq) {
            self.pop();
        }
    }

    pub fn since(&self, seq: u64) -> impl Iterator<Item = &RecentCommit> + Clone {
        let start = self.commits.partition_point(|commit| commit.seq <= seq);
        self.commits.range(start..)
    }
}

/// The serializable transactions that run, by what was assigned when they began (at most their read point). A
/// multiset: two may begin at one number.
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
