//! The segment that is appended to.
//!
//! Owns: where the next record goes, and how it gets there: by a store into the segment's mapping where the system
//! has one, the record is small and no sync follows, else by a call. Promises: what was written is in the hands of the
//! system, either way. May call: `io`, `format`.

use super::format::Place;
use super::segment::Segment;
use crate::error::Result;
use crate::io::{File, Mapping};

/// Up to so many bytes a store is quicker than a call. The first store to a page of the file costs an interruption by
/// the system, about as much as a call does that brings a page and a half: small records share it.
const STORED_BYTES_MAX: usize = 1536;

/// A segment that is ready to be appended to. Made off the write path: mapping brings the segment into memory.
#[derive(Debug)]
pub(super) struct Ready {
    pub segment: Segment,
    pub file: File,
    mapping: Option<Mapping>,
}

/// What follows a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// A sync. It brings to the disk what is dirty: of a write by a call its blocks, of a store into a mapping all
    /// that the system keeps together (a folio: tens of kilobytes, and more after it was read ahead).
    Sync,
    GoOn,
}

#[derive(Debug)]
pub(super) struct Active {
    pub file: File,
    pub segment: Segment,
    pub place: Place,
    /// Where the next record goes.
    pub offset: u64,
    mapping: Option<Mapping>,
}

impl Ready {
    /// `mapped`: whether it may be written to in memory.
    pub fn new(segment: Segment, file: File, mapped: bool) -> Ready {
        let mapping = if mapped { file.map(segment.len) } else { None };
        Ready { segment, file, mapping }
    }
}

impl Active {
    pub fn new(ready: Ready, offset: u64, database_id: u64) -> Active {
        let Ready { segment, file, mapping } = ready;
        Active { file, segment, place: Place::of_segment(database_id, segment.id), offset, mapping }
    }

    pub fn write(&mut self, bytes: &[u8], offset: u64, then: Then) -> Result<()> {
        match &mut self.mapping {
            Some(mapping) if then == Then::GoOn && bytes.len() <= STORED_BYTES_MAX => {
                self.file.write_mapped(mapping, bytes, offset)
            }
            _ => self.file.write_at(bytes, offset),
        }
    }

    /// The mapping, if nothing will be written any more. Giving it back to the system takes long.
    pub fn take_mapping(&mut self) -> Option<Mapping> {
        self.mapping.take()
    }
}
