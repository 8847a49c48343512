//! The rows of suite `past`: what updates write, and what reads of any state must find.
//!
//! Owns: keys in order, values that tell whose they are and of which commit, and the random updates. Promises: all
//! follows from numbers, so what a state holds can be made up again outside the clock. Keys are spread over the whole
//! key space in the order of their indexes, so that rows with neighbouring indexes share pages.

use std::ops::Range;

use anyhow::{Result, ensure};

use crate::data::{Key, Random};
use crate::engines::past::{Keeper, Row, VALUE_BYTES, View};

/// Rows in one transaction of the loading.
const LOADED_AT_ONCE: u64 = 1000;

/// Some bytes that no compressor gets smaller; more than a page, so that no page has any of them twice.
const POOL_BYTES: usize = 1 << 18;

/// Where values' random bytes begin, behind the head.
const HEAD_BYTES: usize = 8;

/// A table of so many rows.
pub struct Rows {
    pub count: u64,
    /// How far keys are from each other.
    step: u64,
    pool: Vec<u8>,
}

impl Rows {
    pub fn new(count: u64) -> Rows {
        let mut random = Random::new(23);
        let pool = (0..(POOL_BYTES + VALUE_BYTES) / 8 + 1).flat_map(|_| random.next_u64().to_le_bytes());
        Rows { count, step: u64::MAX / count, pool: pool.collect() }
    }

    pub fn key(&self, index: u64) -> Key {
        let mut random = Random::new(index);
        let head = index * self.step + random.below(self.step);
        let mut key = Key::default();
        key[..8].copy_from_slice(&head.to_be_bytes());
        key[8..].copy_from_slice(&random.next_u64().to_le_bytes());
        key
    }

    /// The head of a value: its row, and the commit that wrote it.
    pub fn head(index: u64, version: u32) -> u64 {
        index << 32 | u64::from(version)
    }

    pub fn row(&self, index: u64, version: u32) -> Row {
        let head = Rows::head(index, version);
        let place = Random::new(head).next_u64() as usize % POOL_BYTES;
        let mut value = [0; VALUE_BYTES];
        value[..HEAD_BYTES].copy_from_slice(&head.to_le_bytes());
        value[HEAD_BYTES..].copy_from_slice(&self.pool[place..place + VALUE_BYTES - HEAD_BYTES]);
        Row { key: self.key(index), value }
    }

    /// Puts all rows, of version 0, and does what that puts off.
    pub fn load(&self, engine: &dyn Keeper) -> Result<()> {
        let mut rows = Vec::new();
        let mut next = 0;
        while next < self.count {
            let end = self.count.min(next + LOADED_AT_ONCE);
            rows.clear();
            rows.extend((next..end).map(|index| self.row(index, 0)));
            engine.commit(&rows)?;
            next = end;
        }
        engine.settle()
    }
}

/// Random updates: transaction `t` writes rows of version `t`.
#[derive(Clone)]
pub struct Updates {
    /// Which rows.
    pub of: Range<u64>,
    /// So many percent of the updates go to so many percent of the rows, which are next to each other.
    pub skew: (u64, u64),
    pub per_transaction: u64,
}

impl Updates {
    /// The indexes of what a transaction writes; some may come twice.
    fn indexes(&self, transaction: u32) -> impl Iterator<Item = u64> + use<> {
        let mut random = Random::new(u64::from(transaction) << 20);
        let (start, count) = (self.of.start, self.of.end - self.of.start);
        let (updates, rows) = self.skew;
        let hot = (count * rows / 100).max(1);
        (0..self.per_transaction).map(move |_| {
            let is_hot = random.below(100) < updates;
            start + if is_hot || hot == count { random.below(hot) } else { hot + random.below(count - hot) }
        })
    }

    pub fn fill(&self, rows: &Rows, transaction: u32, out: &mut Vec<Row>) {
        out.clear();
        out.extend(self.indexes(transaction).map(|index| rows.row(index, transaction)));
    }

    /// Notes what these transactions did.
    pub fn note(&self, transactions: Range<u32>, versions: &mut [u32]) {
        for transaction in transactions {
            for index in self.indexes(transaction) {
                versions[index as usize] = transaction;
            }
        }
    }
}

/// Random rows to be read, and what was found.
pub struct Query {
    indexes: Vec<u64>,
    pub keys: Vec<Key>,
    pub heads: Vec<u64>,
}

impl Query {
    pub fn new(rows: &Rows, of: Range<u64>, count: usize, random: &mut Random) -> Query {
        let span = of.end - of.start;
        let indexes: Vec<_> = (0..count).map(|_| of.start + random.below(span)).collect();
        let keys = indexes.iter().map(|index| rows.key(*index)).collect();
        Query { indexes, keys, heads: Vec::with_capacity(count) }
    }

    pub fn run(&mut self, view: &mut dyn View) -> Result<()> {
        self.heads.clear();
        view.heads(&self.keys, &mut self.heads)
    }

    /// What was found is what these versions are.
    pub fn check(&self, versions: &[u32]) -> Result<()> {
        ensure!(self.heads.len() == self.indexes.len(), "{} of {} gets", self.heads.len(), self.keys.len());
        for (index, head) in self.indexes.iter().zip(&self.heads) {
            let expected = Rows::head(*index, versions[*index as usize]);
            ensure!(*head == expected, "row {index}: found {head:#x}, should be {expected:#x}");
        }
        Ok(())
    }
}

/// A scan saw all rows, of these versions.
pub fn check_scan(scanned: (u64, u64), versions: &[u32]) -> Result<()> {
    let heads = versions.iter().enumerate().map(|(index, version)| Rows::head(index as u64, *version));
    let sum = heads.fold(0, u64::wrapping_add);
    ensure!(
        scanned == (versions.len() as u64, sum),
        "a scan saw {scanned:?}, not {} rows, {sum}",
        versions.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_indexes() {
        for count in [1, 2, 1000] {
            let rows = Rows::new(count);
            let keys: Vec<_> = (0..count).map(|index| rows.key(index)).collect();
            assert!(keys.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn skewed_updates_go_where_they_should() {
        let updates = Updates { of: 1000..2000, skew: (80, 20), per_transaction: 10_000 };
        let indexes: Vec<_> = updates.indexes(3).collect();
        assert!(indexes.iter().all(|index| updates.of.contains(index)));
        let hot = indexes.iter().filter(|index| **index < 1200).count();
        assert!((7_700..8_300).contains(&hot), "{hot} of 10000");
        let all = Updates { skew: (50, 50), ..updates };
        assert!(all.indexes(3).any(|index| index >= 1990));
    }

    #[test]
    fn what_is_noted_is_what_is_written() {
        let rows = Rows::new(100);
        let updates = Updates { of: 0..100, skew: (50, 50), per_transaction: 7 };
        let mut versions = vec![0; 100];
        updates.note(1..3, &mut versions);
        let mut out = Vec::new();
        updates.fill(&rows, 2, &mut out);
        for row in out {
            let index = (0..100).find(|index| rows.key(*index) == row.key).unwrap();
            assert_eq!(crate::engines::past::head_of(&row.value), Rows::head(index, 2));
            assert_eq!(versions[index as usize], 2);
        }
    }
}
