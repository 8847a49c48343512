//! The filter: which keys a run surely does not hold.
//!
//! Owns: a blocked Bloom filter over the hashes of all distinct keys. Promises: a key that was added is
//! always found; one that was not is found about once in a hundred times; a probe touches one cache line. May
//! call: `hint`.
//!
//! The lines of 64 bytes are those of Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom
//! filters" (2007); the probes within a line are made by repeated multiplication, as RocksDB's
//! `FastLocalBloomImpl` does it.

use crate::hint::prefetch;

pub(super) const LINE_BYTES: usize = 64;
const BITS_PER_KEY: u64 = 10;
const PROBES: u32 = 6;

/// One cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; LINE_BYTES]);

/// The filter in memory.
pub(super) struct Filter {
    lines: Box<[Line]>,
}

impl Filter {
    pub fn build(hashes: &[u64]) -> Filter {
        let bits = hashes.len() as u64 * BITS_PER_KEY;
        let lines = bits.div_ceil(LINE_BYTES as u64 * 8) as usize;
        let mut filter = Filter { lines: vec![Line([0; LINE_BYTES]); lines].into() };
        for hash in hashes {
            let line = place(*hash, lines);
            let line = &mut filter.lines[line].0;
            for (byte, mask) in probes(*hash) {
                line[byte] |= mask;
            }
        }
        filter
    }

    /// The filter whose [`Filter::bytes`] these are; `None` if they are not whole lines.
    pub fn from_bytes(bytes: &[u8]) -> Option<Filter> {
        let (lines, []) = bytes.as_chunks::<LINE_BYTES>() else { return None };
        Some(Filter { lines: lines.iter().map(|line| Line(*line)).collect() })
    }

    pub fn bytes(&self) -> impl Iterator<Item = &[u8; LINE_BYTES]> {
        self.lines.iter().map(|line| &line.0)
    }

    pub fn len_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// Begins to bring what [`Filter::may_contain`] will look at.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(place(hash, self.lines.len())) {
            prefetch(line);
        }
    }

    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let Some(line) = self.lines.get(place(hash, self.lines.len())) else { return false };
        probes(hash).all(|(byte, mask)| line.0[byte] & mask != 0)
    }
}

/// Which of `lines` lines; 0 if there are none. The upper half of the hash chooses, by multiplication instead
/// of division.
#[inline]
fn place(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// The probes within the line, as byte and bit, from the lower half of the hash.
#[inline]
fn probes(hash: u64) -> impl Iterator<Item = (usize, u8)> {
    let mut state = hash as u32;
    (0..PROBES).map(move |_| {
        let bit = state >> (u32::BITS - (LINE_BYTES * 8).ilog2());
        state = state.wrapping_mul(0x9e37_79b9);
        (bit as usize / 8, 1 << (bit % 8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
        range.map(|number| xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())).collect()
    }

    #[test]
    fn what_was_added_is_found() {
        for count in [1, 2, 51, 52, 1000, 100_000] {
            let hashes = hashes(0..count);
            let filter = Filter::build(&hashes);
            assert!(hashes.iter().all(|hash| filter.may_contain(*hash)));
        }
    }

    #[test]
    fn what_was_not_added_is_seldom_found() {
        let filter = Filter::build(&hashes(0..100_000));
        let found = hashes(100_000..200_000).iter().filter(|hash| filter.may_contain(**hash)).count();
        assert!(found < 1_500, "{found} of 100,000");
    }

    #[test]
    fn an_empty_filter_has_nothing() {
        let filter = Filter::build(&[]);
        assert_eq!(filter.len_bytes(), 0);
        assert!(!filter.may_contain(0) && !filter.may_contain(u64::MAX));
    }

    #[test]
    fn it_comes_back_from_its_bytes() {
        let hashes = hashes(0..1000);
        let bytes = Filter::build(&hashes).bytes().flatten().copied().collect::<Vec<_>>();
        let filter = Filter::from_bytes(&bytes).unwrap();
        assert!(hashes.iter().all(|hash| filter.may_contain(*hash)));
        assert!(Filter::from_bytes(&bytes[1..]).is_none());
    }
}
