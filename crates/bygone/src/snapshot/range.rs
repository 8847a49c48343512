//! The lazy, double-ended iterator over a range.
//!
//! Owns: the two ends and the rule that they do not cross. Promises: each record in the range once, whichever
//! end it is taken from; after an error the iterator ends. May call: `layers`, `cursor`.

use std::ops::{Bound, RangeBounds};

use super::layers::{is_before, is_past};
use super::{MergeCursor, Snapshot, is_empty};
use crate::error::Result;
use crate::layer::LayerCursor;
use crate::value::Value;

pub(crate) type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

pub(crate) fn owned_bounds<'k>(range: &impl RangeBounds<&'k [u8]>) -> OwnedBounds {
    (range.start_bound().map(|key| key.to_vec()), range.end_bound().map(|key| key.to_vec()))
}

pub(super) fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

type Record = (Value, Value);

/// Makes cursors over what lies above a view: a transaction's own writes.
pub(crate) type Top = Box<dyn Fn() -> Box<dyn LayerCursor> + Send + Sync>;

/// Records of a range in key order: `Result<(key, value)>`, both owned. Holds all that it reads from, so it
/// may outlive the snapshot.
pub struct Range {
    /// A pin of its own, so that the range counts among those who read.
    snapshot: Snapshot,
    /// There is nothing (more) to read.
    ended: bool,
    /// `None`: the view has no such table.
    table: Option<u32>,
    top: Option<Top>,
    /// What is left, narrowed from both ends as records are taken.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    front: Option<MergeCursor>,
    back: Option<MergeCursor>,
}

impl Range {
    pub(super) fn new(
        snapshot: &Snapshot,
        table: Option<u32>,
        (lower, upper): OwnedBounds,
        top: Option<Top>,
    ) -> Range {
        let empty = is_empty((borrowed(&lower), borrowed(&upper)));
        Range {
            snapshot: snapshot.clone(),
            ended: empty || (table.is_none() && top.is_none()),
            table,
            top,
            lower,
            upper,
            front: None,
            back: None,
        }
    }

    fn cursor(&self) -> Result<MergeCursor> {
        let top = self.top.as_ref().map(|top| top());
        match self.table {
            Some(table) => Ok(self.snapshot.layers()?.cursor_under(top, table, self.snapshot.seq().0)),
            // Not even by its id: the layers may hold what the table had before it was dropped and restored.
            None => Ok(MergeCursor::new(top.into_iter().collect())),
        }
    }

    fn step_front(&mut self) -> Result<Option<(Value, Value)>> {
        if let Some(cursor) = &mut self.front {
            cursor.next()?;
        } else {
            let mut cursor = self.cursor()?;
            cursor.seek_bound(borrowed(&self.lower))?;
            self.front = Some(cursor);
        }
        let Some(cursor) = &mut self.front else { return Ok(None) };
        cursor.skip_deleted()?;
        let Some((key, value)) = cursor.record()? else { return Ok(None) };
        if is_past(key, borrowed(&self.upper)) {
            return Ok(None);
        }
        narrow(&mut self.lower, key);
        Ok(Some((key.into(), value.into())))
    }

    fn step_back(&mut self) -> Result<Option<(Value, Value)>> {
        if let Some(cursor) = &mut self.back {
            cursor.prev()?;
        } else {
            let mut cursor = self.cursor()?;
            cursor.seek_back_bound(borrowed(&self.upper))?;
            self.back = Some(cursor);
        }
        let Some(cursor) = &mut self.back else { return Ok(None) };
        cursor.skip_deleted()?;
        let Some((key, value)) = cursor.record()? else { return Ok(None) };
        if is_before(key, borrowed(&self.lower)) {
            return Ok(None);
        }
        narrow(&mut self.upper, key);
        Ok(Some((key.into(), value.into())))
    }

    fn step(&mut self, step: fn(&mut Self) -> Result<Option<Record>>) -> Option<Result<Record>> {
        if self.ended {
            return None;
        }
        if self.snapshot.has_expired() {
            return self.give_up();
        }
        let item = step(self).transpose();
        if !matches!(item, Some(Ok(_))) {
            self.ended = true;
        }
        item
    }

    /// The snapshot has expired. The cursors keep its layers no longer than until somebody asks.
    #[cold]
    fn give_up(&mut self) -> Option<Result<Record>> {
        (self.ended, self.front, self.back) = (true, None, None);
        self.snapshot.check_alive().err().map(Err)
    }
}

/// Makes `key` the excluded end, in the bound's own buffer.
pub(super) fn narrow(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    let mut buffer = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(buffer) | Bound::Excluded(buffer) => buffer,
        Bound::Unbounded => Vec::new(),
    };
    buffer.clear();
    buffer.extend_from_slice(key);
    *bound = Bound::Excluded(buffer);
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Self::step_front)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Self::step_back)
    }
}

impl std::iter::FusedIterator for Range {}
