//! Archived pages that the page map does not know, or does not know any more, but an open view needs.
//!
//! Owns: their addresses, in memory only, and which segments they hold. Promises: a segment that an address here leads
//! to is not removed. May call: nothing but addresses.

use std::collections::HashMap;

use super::address::{Address, PageId};

#[derive(Debug, Default)]
pub(super) struct Overlay {
    addresses: HashMap<PageId, Address>,
    /// How many of the addresses lead to each segment.
    pins: HashMap<u64, u64>,
}

impl Overlay {
    pub fn get(&self, id: PageId) -> Option<Address> {
        self.addresses.get(&id).copied()
    }

    pub fn len(&self) -> u64 {
        self.addresses.len() as u64
    }

    pub fn insert(&mut self, id: PageId, address: Address) {
        if let Some(old) = self.addresses.insert(id, address) {
            self.unpin(old.segment);
        }
        *self.pins.entry(address.segment).or_default() += 1;
    }

    pub fn remove(&mut self, id: PageId) {
        if let Some(address) = self.addresses.remove(&id) {
            self.unpin(address.segment);
        }
    }

    fn unpin(&mut self, segment: u64) {
        if let Some(pins) = self.pins.get_mut(&segment) {
            *pins -= 1;
            if *pins == 0 {
                self.pins.remove(&segment);
            }
        }
    }

    pub fn holds(&self, segment: u64) -> bool {
        self.pins.contains_key(&segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_held_until_its_last_address_is_gone() {
        let mut overlay = Overlay::default();
        let id = |slot| PageId { birth: 1, slot };
        let at = |segment, offset| Address { segment, offset, bytes: 9 };
        overlay.insert(id(1), at(7, 32));
        overlay.insert(id(2), at(7, 41));
        overlay.insert(id(2), at(8, 32));
        assert_eq!(overlay.get(id(2)), Some(at(8, 32)));
        overlay.remove(id(1));
        overlay.remove(id(1));
        assert!(!overlay.holds(7) && overlay.holds(8));
        overlay.remove(id(2));
        assert!(!overlay.holds(8) && overlay.len() == 0);
    }
}
