//! What happens within a transaction: reads that see its own writes, and writes.
//!
//! Owns: the image of a transaction's reads. Promises: the model notes as read exactly what was taken. May
//! call: the engine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bygone::Error;

use crate::compare::same_record;
use crate::driver::{Driver, Open};
use crate::model::{Handle, Meaning, Model, Pending, RangeRead};
use crate::random::{Random, borrowed, contains};

impl Driver {
    /// One operation in one of the open transactions.
    pub fn use_transaction(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let transaction = self.random.below(self.open.len());
        let index = self.any_handle();
        let (table, handle) = self.handles[index].clone();
        let key = self.random.key();
        let Driver { random, model, open, .. } = self;
        let Open { tx, pending } = &mut open[transaction];
        let dropped = model.is_dropped(&handle, pending.view.seq);
        match random.below(100) {
            // Enough of them to go straight into the base.
            0..2 if !dropped => {
                for _ in 0..60 {
                    let (key, value) = (random.key(), random.value());
                    tx.put(&table, &key, &value[..]).unwrap();
                    pending.write(handle.clone(), key, Some(value));
                }
            }
            0..50 => {
                let value = (!random.percent(25)).then(|| random.value());
                let answer = match &value {
                    Some(value) => tx.put(&table, &key, &value[..]),
                    None => tx.delete(&table, &key),
                };
                if dropped {
                    assert!(matches!(answer, Err(Error::TableNotFound { .. })), "{answer:?}");
                    return;
                }
                answer.unwrap();
                pending.write(handle, key, value);
            }
            50..80 => {
                let answer = tx.get(&table, &key);
                let written = pending.writes.get(&handle.identity).and_then(|(_, writes)| writes.get(&key));
                let found = answer.as_ref().ok().cloned().flatten();
                let found = found.as_ref().map(|found| (&key[..], &found[..]));
                if dropped {
                    assert!(matches!(answer, Err(Error::TableNotFound { .. })), "{answer:?}");
                } else if let Some(written) = written {
                    answer.unwrap();
                    same_record(found, written.as_ref().map(|value| (&key, value))).unwrap();
                } else {
                    pending.check_get(model, &handle, &key, found, answer.is_ok());
                }
            }
            _ => range(random, model, tx, pending, &table, &handle),
        }
    }
}

impl Pending {
    fn write(&mut self, handle: Handle, key: Vec<u8>, value: Option<Arc<Vec<u8>>>) {
        let (_, writes) =
            self.writes.entry(handle.identity).or_insert_with(|| (handle.name.clone(), BTreeMap::new()));
        writes.insert(key, value);
        self.handles.push(handle);
    }

    /// Compares what a look-up beneath the transaction's own writes gave, and notes it as read.
    fn check_get(
        &mut self,
        model: &Model,
        handle: &Handle,
        key: &Vec<u8>,
        found: Option<(&[u8], &[u8])>,
        is_ok: bool,
    ) {
        let mut identity = handle.identity;
        match model.meaning(handle, &self.view) {
            Meaning::NotFound => return assert!(!is_ok),
            Meaning::Nothing => assert!(is_ok && found.is_none()),
            Meaning::Table(table) => {
                assert!(is_ok);
                same_record(found, table.rows.get_key_value(key)).unwrap();
                identity = table.identity;
            }
        }
        if self.serializable {
            self.keys.push((identity, handle.name.clone(), key.clone()));
        }
    }
}

/// Reads a range, in part or whole, from both ends, over the transaction's own writes.
fn range(
    random: &mut Random,
    model: &Model,
    tx: &bygone::Transaction,
    pending: &mut Pending,
    table: &bygone::Table,
    handle: &Handle,
) {
    let bounds = random.bounds();
    let answer = tx.range(table, borrowed(&bounds));
    let mut identity = handle.identity;
    let mut rows = match model.meaning(handle, &pending.view) {
        Meaning::NotFound => return assert!(matches!(answer, Err(Error::TableNotFound { .. }))),
        Meaning::Nothing => BTreeMap::new(),
        Meaning::Table(table) => {
            identity = table.identity;
            table.rows.clone()
        }
    };
    if let Some((_, writes)) = pending.writes.get(&handle.identity) {
        for (key, value) in writes {
            match value {
                Some(value) => rows.insert(key.clone(), value.clone()),
                None => rows.remove(key),
            };
        }
    }
    let mut rest: VecDeque<_> = rows.iter().filter(|(key, _)| contains(&bounds, key)).collect();
    let mut found = answer.unwrap();
    let mut read = RangeRead { identity, bounds: bounds.clone(), front: None, back: None, exhausted: false };
    let steps = if random.percent(50) { usize::MAX } else { random.below(10) };
    for _ in 0..steps {
        let back = random.percent(30);
        let (found, expected) =
            if back { (found.next_back(), rest.pop_back()) } else { (found.next(), rest.pop_front()) };
        let found = found.transpose().unwrap();
        same_record(found.as_ref().map(|(key, value)| (&key[..], &value[..])), expected).unwrap();
        match expected {
            Some((key, _)) if back => read.back = Some(key.clone()),
            Some((key, _)) => read.front = Some(key.clone()),
            None => {
                read.exhausted = true;
                break;
            }
        }
    }
    if pending.serializable {
        pending.ranges.push((handle.name.clone(), read));
    }
}
