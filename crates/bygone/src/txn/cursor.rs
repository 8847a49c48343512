//! A transaction's writes to one table as the topmost layer of a range.
//!
//! Owns: the place in the write set. Promises: what every [`LayerCursor`] promises; never fails. May call:
//! `layer`.

use std::ops::Bound;
use std::sync::Arc;

use super::write_set::TableWrites;
use crate::error::Result;
use crate::layer::LayerCursor;
use crate::snapshot::Top;
use crate::value::Value;

/// Makes cursors over these writes.
pub(super) fn over(writes: Arc<TableWrites>) -> Top {
    Box::new(move || Box::new(WriteCursor { writes: writes.clone(), place: None }))
}

/// A B-tree map has no cursor that may be kept, so each step finds its place anew from the key.
struct WriteCursor {
    writes: Arc<TableWrites>,
    place: Option<(Box<[u8]>, Option<Value>)>,
}

impl WriteCursor {
    fn first(&mut self, lower: Bound<&[u8]>) {
        let next = self.writes.range::<[u8], _>((lower, Bound::Unbounded)).next();
        self.place = next.map(|(key, value)| (key.clone(), value.clone()));
    }

    fn last(&mut self, upper: Bound<&[u8]>) {
        let previous = self.writes.range::<[u8], _>((Bound::Unbounded, upper)).next_back();
        self.place = previous.map(|(key, value)| (key.clone(), value.clone()));
    }
}

impl LayerCursor for WriteCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.first(Bound::Included(key));
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.last(key.map_or(Bound::Unbounded, Bound::Excluded));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if let Some((key, _)) = self.place.take() {
            self.first(Bound::Excluded(&key));
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if let Some((key, _)) = self.place.take() {
            self.last(Bound::Excluded(&key));
        }
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        self.place.as_ref().map(|(key, _)| &key[..])
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        Ok(self.place.as_ref().and_then(|(_, value)| value.as_deref()))
    }

    fn is_deletion(&self) -> bool {
        matches!(&self.place, Some((_, None)))
    }
}
