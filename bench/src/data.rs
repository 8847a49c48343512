//! The records: deterministic, so that all engines and all runs get the same.
//!
//! Owns: keys, values and random numbers. Promises: key `i` is a bijection of `i` scattered over the whole
//! key space, so counting up is random order.

pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 100;
pub const RECORD_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

pub type Key = [u8; KEY_BYTES];
pub type Value = [u8; VALUE_BYTES];

#[derive(Clone, Copy)]
pub struct Record {
    pub key: Key,
    pub value: Value,
}

impl Record {
    pub fn new(index: u64, version: u64) -> Record {
        Record { key: key(index), value: value(index, version) }
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub fn key(index: u64) -> Key {
    let head = mix(index.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&head.to_be_bytes());
    key[8..].copy_from_slice(&mix(head).to_be_bytes());
    key
}

/// Bytes that no compressor gets smaller.
pub fn value(index: u64, version: u64) -> Value {
    let mut random = Random::new(index ^ version.rotate_left(32));
    let mut value = [0; VALUE_BYTES];
    for chunk in value.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
    value
}

/// Values that follow from their keys, for work that is over in less time than it takes to make a value: parts
/// of one pool of bytes that no compressor gets smaller.
pub struct Values {
    pool: Vec<u8>,
    bytes: usize,
}

impl Values {
    /// Small enough for the caches.
    const POOL_BYTES: usize = 1 << 18;

    /// Values of this size, at least 8.
    pub fn new(bytes: usize) -> Values {
        assert!(bytes >= 8);
        let mut random = Random::new(17);
        let mut pool = vec![0; Self::POOL_BYTES + bytes];
        for chunk in pool.chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Values { pool, bytes }
    }

    #[inline]
    pub fn of(&self, key: &Key) -> &[u8] {
        let tail = u32::from_le_bytes([key[12], key[13], key[14], key[15]]);
        let start = tail as usize % Self::POOL_BYTES;
        &self.pool[start..start + self.bytes]
    }

    /// Whether this is the value of the key: as to its size and its first eight bytes, which is quick.
    #[inline]
    pub fn is(&self, key: &Key, value: &[u8]) -> bool {
        value.len() == self.bytes && value[..8] == self.of(key)[..8]
    }
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mix(seed))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, by multiplication (Lemire 2019); its bias is below 2^-32 here.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct() {
        let mut keys: Vec<_> = (0..100_000).map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 100_000);
    }

    #[test]
    fn versions_of_a_value_differ() {
        assert_ne!(value(7, 0), value(7, 1));
        assert_eq!(value(7, 1), value(7, 1));
    }

    #[test]
    fn a_value_is_known_by_its_key() {
        for bytes in [8, 100, 1024] {
            let values = Values::new(bytes);
            for index in 0..1000 {
                let value = values.of(&key(index)).to_vec();
                assert_eq!(value.len(), bytes);
                assert!(values.is(&key(index), &value));
                assert!(!values.is(&key(index), &value[1..]), "another size");
                assert!(!values.is(&key(index + 1), &value), "another key's");
            }
        }
    }

    #[test]
    fn random_numbers_stay_below_the_limit() {
        let mut random = Random::new(1);
        assert!((0..10_000).all(|_| random.below(10) < 10));
    }
}
