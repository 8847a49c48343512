//! The bytes of a lease.
//!
//! Owns: the layout (`docs/format.md`, "Leases"). Promises: what decodes was written whole by a process that reads;
//! nothing is used before its checksum and its bounds were checked. May call: `codec`, `limits`.

use crate::codec::Reader;
use crate::limits::LEASED_SNAPSHOTS_MAX;

const MAGIC: &[u8; 8] = b"BygonLse";
const VERSION: u32 = 1;

/// The bytes that identify a base: what a superblock has as its root.
pub(crate) const ROOT_BYTES: usize = 36;

/// The most that a lease takes, in bytes.
pub(super) const LEASE_BYTES_MAX: usize =
    MAGIC.len() + 4 + 4 + 8 + 8 + ROOT_BYTES + 4 + 8 * LEASED_SNAPSHOTS_MAX + 4;

/// What a process that reads says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub database_id: u64,
    /// The number that the system knows the process by.
    pub process: u32,
    /// The generation of the base that it reads: everything that was reachable through this base stays.
    pub generation: u64,
    /// That base.
    pub root: [u8; ROOT_BYTES],
    /// The ids of the declared snapshots that it reads just now, ascending: they may not be deleted.
    pub snapshots: Vec<u64>,
}

impl Terms {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.process.to_le_bytes());
        out.extend_from_slice(&self.database_id.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.root);
        out.extend_from_slice(&(self.snapshots.len() as u32).to_le_bytes());
        self.snapshots.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Whether these bytes are those of a lease at all, whole or not.
    pub fn are_begun(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// `None` if these are not the bytes of a whole lease. What follows them is of longer ones that were there
    /// before.
    pub fn decode(bytes: &[u8]) -> Option<Terms> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC || reader.u32()? != VERSION {
            return None;
        }
        let (process, database_id, generation) = (reader.u32()?, reader.u64()?, reader.u64()?);
        let root = *reader.bytes(ROOT_BYTES)?.first_chunk()?;
        let count = reader.u32()? as usize;
        if count > LEASED_SNAPSHOTS_MAX {
            return None;
        }
        let mut ids = Reader::new(reader.bytes(count * 8)?);
        let snapshots = std::iter::from_fn(|| ids.u64()).collect();
        let covered = bytes.len() - reader.remaining();
        (reader.u32()? == crc32c::crc32c(&bytes[..covered])).then_some(Terms {
            database_id,
            process,
            generation,
            root,
            snapshots,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(snapshots: &[u64]) -> Terms {
        let root = std::array::from_fn(|i| i as u8);
        Terms { database_id: 7, process: 8, generation: 9, root, snapshots: snapshots.to_vec() }
    }

    #[test]
    fn terms_come_back_also_over_longer_ones() {
        for snapshots in [&[][..], &[1], &[1, 5, u64::MAX]] {
            let mut bytes = terms(snapshots).encode();
            assert_eq!(Terms::decode(&bytes), Some(terms(snapshots)));
            bytes.extend_from_slice(b"older");
            assert_eq!(Terms::decode(&bytes), Some(terms(snapshots)));
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_refused() {
        let bytes = terms(&[1, 2]).encode();
        for length in 0..bytes.len() {
            assert_eq!(Terms::decode(&bytes[..length]), None);
        }
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                assert_eq!(Terms::decode(&changed), None, "bit {bit} of byte {place}");
            }
        }
    }

    #[test]
    fn the_largest_lease_is_as_long_as_it_says() {
        let all: Vec<u64> = (0..LEASED_SNAPSHOTS_MAX as u64).collect();
        assert_eq!(terms(&all).encode().len(), LEASE_BYTES_MAX);
    }
}
