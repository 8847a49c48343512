//! Random choices that a seed repeats.
//!
//! Owns: what random keys, values and bounds look like. Promises: the same seed makes the
//! same choices on every machine. May call: nothing.

use std::ops::Bound;
use std::sync::Arc;

#[path = "../support/random.rs"]
mod numbers;

pub struct Random(numbers::Random);

pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// How many different keys the test uses in a table: few, so that they are overwritten, deleted and fought
/// over.
const KEYS: u64 = 120;

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(numbers::Random(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }

    /// One of the keys: the empty one, short ones, binary ones, ones that share a prefix, ones as long as a
    /// key may be.
    pub fn key(&mut self) -> Vec<u8> {
        let number = self.next() % KEYS;
        match number % 8 {
            0 if number == 0 => Vec::new(),
            1 => {
                let mut key = vec![b'l'; bygone::limits::KEY_BYTES_MAX - 3];
                key.extend_from_slice(format!("{number:03}").as_bytes());
                key
            }
            2 => vec![number as u8],
            3 => vec![0xff, 0xff, number as u8],
            4 => vec![0, number as u8],
            _ => format!("key-{number:04}").into_bytes(),
        }
    }

    /// A value that no other call gives, but for the empty one.
    pub fn value(&mut self) -> Arc<Vec<u8>> {
        let length = match self.next() % 1000 {
            0..80 => 0,
            80..200 => 3 << 10,
            200..300 => 5 << 10,
            300..308 => 100 << 10,
            308..400 => 8 + self.below(40),
            _ => 100,
        };
        let unique = self.next().to_le_bytes();
        Arc::new(unique.iter().copied().cycle().take(length).collect())
    }

    pub fn bounds(&mut self) -> Bounds {
        (self.bound(), self.bound())
    }

    fn bound(&mut self) -> Bound<Vec<u8>> {
        match self.next() % 3 {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.key()),
            _ => Bound::Excluded(self.key()),
        }
    }
}

/// Bounds as the engine takes them.
pub fn borrowed((lower, upper): &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice))
}

/// Whether a key lies between bounds.
pub fn contains((lower, upper): &Bounds, key: &[u8]) -> bool {
    let above = match lower {
        Bound::Included(lower) => key >= &lower[..],
        Bound::Excluded(lower) => key > &lower[..],
        Bound::Unbounded => true,
    };
    let below = match upper {
        Bound::Included(upper) => key <= &upper[..],
        Bound::Excluded(upper) => key < &upper[..],
        Bound::Unbounded => true,
    };
    above && below
}
