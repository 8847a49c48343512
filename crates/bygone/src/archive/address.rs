//! What an archived page is called, and where it lies.
//!
//! Owns: [`PageId`] and [`Address`] with their encodings in the page map. Promises: ids sort by birth, then by slot:
//! pages that one rebuild wrote side by side are neighbours. May call: `codec`.

use crate::codec::Reader;

/// Names one page for ever: which rebuild wrote it, and into which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageId {
    pub birth: u64,
    pub slot: u64,
}

/// Births and slots have 48 bits.
const NUMBER_BYTES: usize = 6;

impl PageId {
    pub const BYTES: usize = 2 * NUMBER_BYTES;

    /// The key in the page map: both numbers big-endian.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut key = [0; Self::BYTES];
        key[..NUMBER_BYTES].copy_from_slice(&self.birth.to_be_bytes()[8 - NUMBER_BYTES..]);
        key[NUMBER_BYTES..].copy_from_slice(&self.slot.to_be_bytes()[8 - NUMBER_BYTES..]);
        key
    }
}

/// Where a record lies in the pagelog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The segment's id.
    pub segment: u64,
    /// Where the record begins in it.
    pub offset: u32,
    /// How long the record is, its head included.
    pub bytes: u32,
}

impl Address {
    pub const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.segment.to_le_bytes());
        out[8..12].copy_from_slice(&self.offset.to_le_bytes());
        out[12..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Address> {
        let mut reader = Reader::new(bytes);
        let address = Address { segment: reader.u64()?, offset: reader.u32()?, bytes: reader.u32()? };
        (reader.remaining() == 0).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_ids_do() {
        let ids = [(1, 2), (1, 1 << 47), (2, 1), (255, 9), (256, 0), ((1 << 48) - 1, 5)];
        let ids = ids.map(|(birth, slot)| PageId { birth, slot });
        assert!(ids.is_sorted());
        assert!(ids.map(PageId::encode).is_sorted());
    }

    #[test]
    fn an_address_comes_back_and_a_cut_one_is_refused() {
        let address = Address { segment: u64::MAX - 3, offset: 77, bytes: 4000 };
        assert_eq!(Address::decode(&address.encode()), Some(address));
        assert_eq!(Address::decode(&address.encode()[1..]), None);
    }
}
