//! The declared snapshots of one view, found by id and by sequence number.
//!
//! Owns: the searches. Promises: a search costs logarithmically many rows of the distance that it goes; ids may
//! have gaps. May call: snapshot.

use crate::error::Result;
use crate::snapshot::rows::{self, SnapshotRow};
use crate::snapshot::{MergeCursor, Snapshot};

/// A declared snapshot. Both numbers ascend together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub id: u64,
    pub seq: u64,
}

/// The list of declared snapshots as of a view of the present.
pub(super) struct Declared {
    now: Snapshot,
    cursor: MergeCursor,
}

impl Declared {
    pub fn new(now: Snapshot) -> Result<Declared> {
        let cursor = now.layers()?.cursor_under(None, rows::SNAPSHOTS, now.seq().0);
        Ok(Declared { now, cursor })
    }

    pub fn now(&self) -> &Snapshot {
        &self.now
    }

    /// The last one whose id is not greater.
    pub fn at_or_before(&mut self, id: u64) -> Result<Option<Place>> {
        match id.checked_add(1) {
            Some(end) => self.cursor.seek_before(Some(&end.to_be_bytes()))?,
            None => self.cursor.seek_before(None)?,
        }
        self.place()
    }

    /// The first one whose id is not less.
    pub fn at_or_after(&mut self, id: u64) -> Result<Option<Place>> {
        self.cursor.seek(&id.to_be_bytes())?;
        self.place()
    }

    fn place(&mut self) -> Result<Option<Place>> {
        self.now.check_alive()?;
        self.cursor.skip_deleted()?;
        let Some((key, row)) = self.cursor.record()? else { return Ok(None) };
        match rows::decode_id(key).zip(SnapshotRow::decode(row)) {
            Some((id, row)) => Ok(Some(Place { id, seq: row.seq })),
            None => Err(self.now.bad_row("snapshot", &key.escape_ascii().to_string())),
        }
    }

    /// The first one of commit `seq` or a later one, given one of them.
    pub fn first_since(&mut self, seq: u64, known: Place) -> Result<Place> {
        let mut first = known;
        // Ids up to `before` belong to earlier commits. Steps double, because the one looked for is mostly near.
        let mut distance = 1;
        let mut before = loop {
            let probe = first.id.saturating_sub(distance);
            match self.at_or_before(probe)? {
                Some(place) if place.seq >= seq && place.id < first.id => first = place,
                _ => break probe,
            }
            distance = distance.saturating_mul(2);
        };
        while before + 1 < first.id {
            let probe = before.midpoint(first.id);
            match self.at_or_before(probe)? {
                Some(place) if place.seq >= seq => first = place,
                _ => before = probe,
            }
        }
        Ok(first)
    }

    /// The last one with an id up to `id` whose commit comes before `end`, given one of them.
    pub fn last_before(&mut self, end: u64, id: u64, known: Place) -> Result<Place> {
        let Some(last) = self.at_or_before(id)? else { return Ok(known) };
        if last.seq < end {
            return Ok(last);
        }
        let behind = self.first_since(end, last)?;
        Ok(self.at_or_before(behind.id - 1)?.unwrap_or(known))
    }
}
