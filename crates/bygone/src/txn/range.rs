//! A transaction's range, which notes how far it was read.
//!
//! Owns: the note for validation. Promises: exactly what was taken counts as read, up to the last key taken
//! from either end. May call: snapshot.

use std::sync::{Arc, Mutex, PoisonError};

use super::validate::RangeRead;
use crate::error::Result;
use crate::snapshot::Range;
use crate::value::Value;

/// The records of a range as a transaction sees them, from either end.
pub struct TransactionRange {
    rows: Range,
    read: Option<Arc<Mutex<RangeRead>>>,
}

impl TransactionRange {
    pub(super) fn new(rows: Range, read: Option<Arc<Mutex<RangeRead>>>) -> TransactionRange {
        TransactionRange { rows, read }
    }

    fn note(&self, item: &Option<Result<(Value, Value)>>, end: fn(&mut RangeRead) -> &mut Option<Vec<u8>>) {
        let Some(read) = &self.read else { return };
        let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
        match item {
            Some(Ok((key, _))) => *end(&mut read) = Some(key.to_vec()),
            Some(Err(_)) => {}
            None => read.exhausted = true,
        }
    }
}

impl Iterator for TransactionRange {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.rows.next();
        self.note(&item, |read| &mut read.front);
        item
    }
}

impl DoubleEndedIterator for TransactionRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        let item = self.rows.next_back();
        self.note(&item, |read| &mut read.back);
        item
    }
}

impl std::iter::FusedIterator for TransactionRange {}
