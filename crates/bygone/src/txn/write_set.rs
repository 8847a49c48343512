//! What a transaction has written so far.
//!
//! Owns: the writes, sorted, by table. Promises: iterators over it stay as they are while the transaction
//! writes on (the set is shared and copied on write, and only if somebody still reads it). May call: memtable.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::layer::{HashedKey, Key};
use crate::memtable::Memtable;
use crate::value::Value;

/// The writes to one table: `None` is a deletion.
pub(crate) type TableWrites = BTreeMap<Box<[u8]>, Option<Value>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct WriteSet {
    tables: Vec<(u32, Arc<TableWrites>)>,
    bytes: usize,
    count: usize,
}

/// What a commit writes. A single write needs no tree: it is most of what there is to a commit of one.
#[derive(Clone, Debug)]
pub(crate) enum Writes {
    One(OneWrite),
    Set(WriteSet),
}

#[derive(Clone, Debug)]
pub(crate) struct OneWrite {
    table: u32,
    /// The key, and behind it the value.
    bytes: Box<[u8]>,
    key_bytes: usize,
    deletes: bool,
}

impl Writes {
    pub fn one(table: u32, key: &[u8], value: Option<&[u8]>) -> Writes {
        let bytes = [key, value.unwrap_or_default()].concat().into();
        Writes::One(OneWrite { table, bytes, key_bytes: key.len(), deletes: value.is_none() })
    }

    /// All writes as (table, key, value), sorted.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Option<&[u8]>)> + Clone {
        let (one, set) = self.either();
        one.map(OneWrite::write).into_iter().chain(set.into_iter().flat_map(WriteSet::iter))
    }

    /// The tables written to.
    pub fn tables(&self) -> impl Iterator<Item = u32> {
        let (one, set) = self.either();
        one.into_iter()
            .map(|one| one.table)
            .chain(set.into_iter().flat_map(WriteSet::tables).map(|(table, _)| table))
    }

    /// The writes to one table as (key, value), sorted.
    pub fn of_table(&self, table: u32) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let (one, set) = self.either();
        let one = one.filter(|one| one.table == table).map(OneWrite::write);
        let set = set.and_then(|set| set.table(table)).into_iter().flat_map(|writes| writes.iter());
        let set = set.map(|(key, value)| (&key[..], value.as_deref()));
        one.into_iter().map(|(_, key, value)| (key, value)).chain(set)
    }

    fn either(&self) -> (Option<&OneWrite>, Option<&WriteSet>) {
        match self {
            Writes::One(one) => (Some(one), None),
            Writes::Set(set) => (None, Some(set)),
        }
    }

    pub fn contains(&self, table: u32, key: &[u8]) -> bool {
        match self {
            Writes::One(one) => one.table == table && one.write().1 == key,
            Writes::Set(set) => set.get(table, key).is_some(),
        }
    }

    /// Inserts all under a commit's number; `hashes` are those of the keys, in order.
    pub fn insert_into(&self, memtable: &Memtable, seq: u64, hashes: &[u64]) {
        match self {
            Writes::One(one) => {
                let (table, bytes, value) = one.write();
                let records =
                    hashes.iter().map(|hash| (HashedKey { key: Key { table, bytes }, hash: *hash }, value));
                memtable.insert_batch(seq, records);
            }
            Writes::Set(set) => {
                let records = set.iter().zip(hashes).map(|((table, bytes, value), hash)| {
                    (HashedKey { key: Key { table, bytes }, hash: *hash }, value)
                });
                memtable.insert_batch(seq, records);
            }
        }
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        match self {
            Writes::One(one) => one.bytes.len(),
            Writes::Set(set) => set.bytes(),
        }
    }

    pub fn count(&self) -> usize {
        match self {
            Writes::One(_) => 1,
            Writes::Set(set) => set.count(),
        }
    }
}

impl Default for Writes {
    fn default() -> Writes {
        Writes::Set(WriteSet::default())
    }
}

impl From<WriteSet> for Writes {
    fn from(set: WriteSet) -> Writes {
        Writes::Set(set)
    }
}

impl OneWrite {
    /// Table, key and value.
    pub fn write(&self) -> (u32, &[u8], Option<&[u8]>) {
        let (key, value) = self.bytes.split_at(self.key_bytes);
        (self.table, key, (!self.deletes).then_some(value))
    }
}

impl WriteSet {
    pub fn put(&mut self, table: u32, key: &[u8], value: Option<Value>) {
        let index = match self.tables.binary_search_by_key(&table, |(id, _)| *id) {
            Ok(index) => index,
            Err(index) => {
                self.tables.insert(index, (table, Arc::default()));
                index
            }
        };
        let writes = Arc::make_mut(&mut self.tables[index].1);
        self.bytes += value.as_ref().map_or(0, |value| value.len());
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
    fn one_write_is_what_a_set_of_one_is() {
        for value in [Some(&b"value"[..]), Some(b""), None] {
            let mut set = WriteSet::default();
            set.put(16, b"key", value.map(Value::from));
            let (one, set) = (Writes::one(16, b"key", value), Writes::from(set));
            assert_eq!(one.iter().collect::<Vec<_>>(), set.iter().collect::<Vec<_>>());
            assert_eq!(one.tables().collect::<Vec<_>>(), set.tables().collect::<Vec<_>>());
            for table in [16, 17] {
                let of_table =
                    |writes: &Writes| writes.of_table(table).map(|(key, _)| key.to_vec()).collect::<Vec<_>>();
                assert_eq!(of_table(&one), of_table(&set));
            }
            assert_eq!(one.bytes(), set.bytes());
            for (table, key) in [(16, &b"key"[..]), (17, b"key"), (16, b"ke"), (16, b"keyv")] {
                assert_eq!(one.contains(table, key), set.contains(table, key));
            }
        }
    }

    #[test]
    fn the_last_write_of_a_key_counts_and_bytes_are_exact() {
        let mut set = WriteSet::default();
        set.put(16, b"a", Some(Value::from(&b"123"[..])));
        set.put(16, b"a", Some(Value::from(&b"4"[..])));
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
        set.put(16, b"a", Some(Value::from(&b"1"[..])));
        let seen = set.table(16).unwrap().clone();
        set.put(16, b"b", Some(Value::from(&b"2"[..])));
        assert_eq!(seen.len(), 1);
        assert_eq!(set.table(16).unwrap().len(), 2);
    }
}
