//! What a transaction has written so far.
//!
//! Owns: the writes, sorted, by table. Promises: iterators over it stay as they are while the transaction
//! writes on (the set is shared and copied on write, and only if somebody still reads it). May call: nothing
//! of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::value::Value;

/// The writes to one table: `None` is a deletion.
pub(crate) type TableWrites = BTreeMap<Box<[u8]>, Option<Value>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct WriteSet {
    tables: Vec<(u32, Arc<TableWrites>)>,
    bytes: usize,
    count: usize,
}

impl WriteSet {
    pub fn put(&mut self, table: u32, key: &[u8], value: Option<&[u8]>) {
        let index = match self.tables.binary_search_by_key(&table, |(id, _)| *id) {
            Ok(index) => index,
            Err(index) => {
                self.tables.insert(index, (table, Arc::default()));
                index
            }
        };
        let writes = Arc::make_mut(&mut self.tables[index].1);
        self.bytes += value.map_or(0, <[u8]>::len);
        let value = value.map(Value::from);
        match writes.get_mut(key) {
            Some(old) => {
                self.bytes -= old.as_ref().map_or(0, |value| value.len());
                *old = value;
            }
            None => {
                self.bytes += key.len();
                self.count += 1;
                writes.insert(key.into(), value);
            }
        }
    }

    pub fn get(&self, table: u32, key: &[u8]) -> Option<&Option<Value>> {
        self.table(table)?.get(key)
    }

    pub fn table(&self, table: u32) -> Option<&Arc<TableWrites>> {
        let index = self.tables.binary_search_by_key(&table, |(id, _)| *id).ok()?;
        Some(&self.tables[index].1)
    }

    pub fn tables(&self) -> impl Iterator<Item = (u32, &TableWrites)> {
        self.tables.iter().map(|(id, writes)| (*id, &**writes))
    }

    /// All writes as (table, key, value), sorted.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Option<&[u8]>)> + Clone {
        self.tables.iter().flat_map(|(table, writes)| {
            writes.iter().map(move |(key, value)| (*table, &key[..], value.as_deref()))
        })
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_a_key_counts_and_bytes_are_exact() {
        let mut set = WriteSet::default();
        set.put(16, b"a", Some(b"123"));
        set.put(16, b"a", Some(b"4"));
        set.put(3, b"b", None);
        assert_eq!((set.bytes(), set.count()), (3, 2));
        assert_eq!(set.get(16, b"a"), Some(&Some(Value::from(&b"4"[..]))));
        assert_eq!(set.get(16, b"b"), None);
        let all: Vec<_> = set.iter().collect();
        assert_eq!(all, [(3, &b"b"[..], None), (16, &b"a"[..], Some(&b"4"[..]))]);
    }

    #[test]
    fn whoever_reads_it_keeps_what_it_saw() {
        let mut set = WriteSet::default();
        set.put(16, b"a", Some(b"1"));
        let seen = set.table(16).unwrap().clone();
        set.put(16, b"b", Some(b"2"));
        assert_eq!(seen.len(), 1);
        assert_eq!(set.table(16).unwrap().len(), 2);
    }
}
