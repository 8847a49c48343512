//! Single operations: what suite `memtable` asks of engines, and of ordered maps in memory.
//!
//! Owns: [`Operations`], which an engine implements, [`Worker`], which a suite calls, and the loop between them,
//! which is compiled for each engine, so that no virtual call is measured. Promises: each get found its record,
//! each seek the records that it had to find in their order, and a scan all in order; else the work fails.

use std::ops::ControlFlow;

use anyhow::{Result, bail, ensure};

use crate::data::{Key, Values};

/// How many records a seek reads: the one that it finds, and ten more.
pub const SEEK_RECORDS: usize = 11;

/// One operation. All keys are of records that were put before.
#[derive(Clone, Copy)]
pub enum Operation {
    /// In a commit of its own.
    Put(Key),
    Get(Key),
    /// In a new view, to a key that at least ten follow; then ten times to the next.
    Seek(Key),
}

/// Where a put goes beside the memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// To a log that is handed to the operating system before the put returns.
    Buffered,
    /// Nowhere: the end of the process loses it.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

pub trait Operations: Sync {
    fn put(&self, key: &Key, value: &[u8], log: Log) -> Result<()>;

    /// Hands the newest value to `found`.
    fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()>;

    /// Hands records to `each`, from the first whose key is at least `key`, until it breaks.
    fn seek(&self, key: &Key, each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()>;

    /// Hands all records to `each`.
    fn scan(&self, direction: Direction, each: impl FnMut(&[u8], &[u8])) -> Result<()>;

    /// Whether there can be puts with [`Log::None`].
    fn works_without_log(&self) -> bool {
        false
    }

    /// Whether every record is in the one memtable that takes writes.
    fn is_in_memtable(&self) -> Result<bool>;

    /// Bytes that a structure takes that is in memory alone, if it can tell.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }
}

/// [`Operations`], many at a call.
pub trait Worker: Sync {
    /// Does these in their order.
    fn work(&self, operations: &[Operation], values: &Values, log: Log) -> Result<()>;

    /// Goes through all records; answers how many there are.
    fn scan(&self, direction: Direction, values: &Values) -> Result<u64>;

    fn works_without_log(&self) -> bool;

    fn is_in_memtable(&self) -> Result<bool>;

    fn memory_bytes(&self) -> Option<usize>;
}

impl<T: Operations> Worker for T {
    fn work(&self, operations: &[Operation], values: &Values, log: Log) -> Result<()> {
        for operation in operations {
            match operation {
                Operation::Put(key) => self.put(key, values.of(key), log)?,
                Operation::Get(key) => {
                    let mut found = false;
                    self.get(key, |value| found = values.is(key, value))?;
                    ensure!(found, "a get did not find its record");
                }
                Operation::Seek(key) => seek(self, key, values)?,
            }
        }
        Ok(())
    }

    fn scan(&self, direction: Direction, values: &Values) -> Result<u64> {
        let mut records = 0;
        let mut wrong = 0u64;
        let mut last: Option<Key> = None;
        Operations::scan(self, direction, |key, value| {
            let key = Key::try_from(key).unwrap_or_default();
            let in_order = last.is_none_or(|last| match direction {
                Direction::Forward => last < key,
                Direction::Backward => last > key,
            });
            wrong += u64::from(!in_order || !values.is(&key, value));
            last = Some(key);
            records += 1;
        })?;
        ensure!(wrong == 0, "{wrong} of {records} records of a scan are wrong or out of order");
        Ok(records)
    }

    fn works_without_log(&self) -> bool {
        Operations::works_without_log(self)
    }

    fn is_in_memtable(&self) -> Result<bool> {
        Operations::is_in_memtable(self)
    }

    fn memory_bytes(&self) -> Option<usize> {
        Operations::memory_bytes(self)
    }
}

fn seek(engine: &impl Operations, wanted: &Key, values: &Values) -> Result<()> {
    let mut records = 0;
    let mut right = true;
    let mut last = *wanted;
    engine.seek(wanted, |key, value| {
        let key = Key::try_from(key).unwrap_or_default();
        right &= if records == 0 { key == last } else { key > last } && values.is(&key, value);
        last = key;
        records += 1;
        if records < SEEK_RECORDS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if !right || records != SEEK_RECORDS {
        bail!("a seek found {records} records, in order and whole: {right}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::data::key;

    /// A map that can be told to leave out a record, and to hand out another's value.
    #[derive(Default)]
    struct Model {
        records: Mutex<BTreeMap<Key, Vec<u8>>>,
        left_out: Option<Key>,
        swapped: bool,
    }

    impl Model {
        fn records(&self) -> Vec<(Key, Vec<u8>)> {
            let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            let seen = records.iter().filter(|(key, _)| Some(**key) != self.left_out);
            seen.map(|(key, value)| (*key, if self.swapped { vec![0; value.len()] } else { value.clone() }))
                .collect()
        }
    }

    impl Operations for Model {
        fn put(&self, key: &Key, value: &[u8], _: Log) -> Result<()> {
            self.records.lock().unwrap_or_else(PoisonError::into_inner).insert(*key, value.to_vec());
            Ok(())
        }

        fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()> {
            if let Some((_, value)) = self.records().iter().find(|(other, _)| other == key) {
                found(value);
            }
            Ok(())
        }

        fn seek(&self, key: &Key, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
            let records = self.records();
            let mut after = records.iter().filter(|(other, _)| other >= key);
            let _ = after.try_for_each(|(key, value)| each(key, value));
            Ok(())
        }

        fn scan(&self, direction: Direction, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
            let mut records = self.records();
            if direction == Direction::Backward {
                records.reverse();
            }
            records.iter().for_each(|(key, value)| each(key, value));
            Ok(())
        }

        fn is_in_memtable(&self) -> Result<bool> {
            Ok(true)
        }
    }

    const RECORDS: u64 = 100;

    fn filled() -> (Model, Values, Vec<Key>) {
        let (model, values) = (Model::default(), Values::new(32));
        let mut keys: Vec<_> = (0..RECORDS).map(key).collect();
        let puts: Vec<_> = keys.iter().map(|key| Operation::Put(*key)).collect();
        model.work(&puts, &values, Log::Buffered).unwrap();
        keys.sort_unstable();
        (model, values, keys)
    }

    fn try_all(model: &Model, values: &Values, key: Key) -> [Result<()>; 4] {
        let work = |operation| model.work(&[operation], values, Log::Buffered);
        let scan = |direction| Worker::scan(model, direction, values).map(|_| ());
        [
            work(Operation::Get(key)),
            work(Operation::Seek(key)),
            scan(Direction::Forward),
            scan(Direction::Backward),
        ]
    }

    #[test]
    fn what_is_right_passes() {
        let (model, values, keys) = filled();
        for key in &keys[..keys.len() - SEEK_RECORDS] {
            assert!(try_all(&model, &values, *key).iter().all(Result::is_ok));
        }
        assert_eq!(Worker::scan(&model, Direction::Backward, &values).unwrap(), RECORDS);
    }

    #[test]
    fn a_record_that_is_left_out_fails_get_and_seek() {
        let (mut model, values, keys) = filled();
        model.left_out = Some(keys[5]);
        let [get, seek, ..] = try_all(&model, &values, keys[5]);
        assert!(get.is_err() && seek.is_err());
        // A scan tells by its count.
        assert_eq!(Worker::scan(&model, Direction::Forward, &values).unwrap(), RECORDS - 1);
    }

    #[test]
    fn another_value_fails_everything() {
        let (mut model, values, keys) = filled();
        model.swapped = true;
        assert!(try_all(&model, &values, keys[5]).iter().all(Result::is_err));
    }

    #[test]
    fn a_seek_that_ends_early_fails() {
        let (model, values, keys) = filled();
        assert!(model.work(&[Operation::Seek(keys[keys.len() - 2])], &values, Log::Buffered).is_err());
    }
}
