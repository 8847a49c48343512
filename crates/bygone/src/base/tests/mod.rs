//! Tests of the base against a plain model, on a small disk in memory.

mod cache_and_speed;
mod crash;
mod damage;
mod diff;
mod disk;
mod format;
mod rebuilds;
mod space;
mod stretches;
mod values;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use super::cursor::BaseCursor;
use super::pointer::PagePointer;
use super::verify::Verified;
use super::version::BaseVersion;
use super::*;
use crate::cache::Cache;
use crate::error::Result;
use crate::io::Disk;
use crate::layer::{LayerCursor, Lookup};
use crate::random::Random;
use disk::MemoryDisk;

const PATH: &str = "base.pages";

/// The records of all tables.
type Model = BTreeMap<u32, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Updates of one table, from a map.
pub(super) struct MapUpdates {
    updates: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    next: usize,
}

impl MapUpdates {
    fn new(updates: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>) -> Self {
        MapUpdates { updates: updates.into_iter().collect(), next: 0 }
    }
}

impl Updates for MapUpdates {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.updates.get(self.next).map(|(key, _)| key.as_slice()))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.updates.get(self.next).and_then(|(_, value)| value.as_deref()))
    }

    fn advance(&mut self) -> Result<()> {
        self.next += 1;
        Ok(())
    }
}

struct Fixture {
    disk: Arc<MemoryDisk>,
    store: Arc<PageStore>,
    base: Arc<BaseVersion>,
}

impl Fixture {
    fn new() -> Fixture {
        let disk = Arc::new(MemoryDisk::default());
        let dyn_disk: Arc<dyn Disk> = disk.clone();
        let (store, base) =
            PageStore::create(&dyn_disk, Path::new(PATH), &Cache::new(64 << 20), 7, b"").unwrap();
        Fixture { disk, store, base }
    }

    fn open(disk: &Arc<MemoryDisk>) -> Result<Fixture> {
        let dyn_disk: Arc<dyn Disk> = disk.clone();
        let (store, superblock) = PageStore::open(&dyn_disk, Path::new(PATH), &Cache::new(64 << 20))?;
        let base = store.open_base(&superblock.root)?;
        Ok(Fixture { disk: disk.clone(), store, base })
    }

    fn reopen(self) -> Fixture {
        let disk = self.disk.clone();
        drop(self);
        Fixture::open(&disk).unwrap()
    }

    /// Applies updates in one rebuild and publishes.
    fn update(
        &mut self,
        table: u32,
        updates: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>,
        newest_retained: u64,
    ) {
        let mut rebuild = self.store.rebuild(&self.base).unwrap();
        let mut updates = MapUpdates::new(updates);
        assert_eq!(rebuild.apply(table, &mut updates, usize::MAX).unwrap(), Progress::Done);
        self.base = rebuild.finish(self.base.seq() + 1, newest_retained, || (b"m").to_vec()).unwrap();
    }

    fn get(&self, table: u32, key: &[u8]) -> Option<Vec<u8>> {
        get(&self.base, table, key)
    }

    fn verify(&self) -> Verified {
        self.store.verify(&self.base.root()).unwrap()
    }

    /// Checks everything, and that the file holds nothing that is not reachable.
    fn verify_without_leaks(&self) {
        let verified = self.verify();
        let used = self.store.space_stats().used_bytes / 4096;
        assert_eq!(used, verified.pages + verified.space_pages + 4);
    }
}

fn get(base: &BaseVersion, table: u32, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    let lookup = base.get(table, key, &mut |found| value = Some(found.to_vec())).unwrap();
    assert_eq!(lookup == Lookup::Found, value.is_some());
    value
}

fn contents(base: &BaseVersion, table: u32) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut records = BTreeMap::new();
    let mut last: Option<Vec<u8>> = None;
    base.for_each(table, Bound::Unbounded, Bound::Unbounded, &mut |key, value| {
        assert!(last.as_deref().is_none_or(|last| last < key), "keys ascend");
        last = Some(key.to_vec());
        records.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

/// Checks that a base holds exactly what the model does, however it is read.
fn assert_equals(base: &Arc<BaseVersion>, model: &Model, random: &mut Random) {
    let tables: Vec<u32> = base.tables().iter().map(|(id, _)| *id).collect();
    let expected: Vec<u32> =
        model.iter().filter(|(_, records)| !records.is_empty()).map(|(id, _)| *id).collect();
    assert_eq!(tables, expected);
    for (table, records) in model {
        assert!(contents(base, *table).unwrap() == *records, "table {table} differs");
        let keys: Vec<&Vec<u8>> = records.keys().collect();
        let mut cursor = base.cursor(*table);
        for _ in 0..20 {
            let mut key = match keys.len() {
                0 => Vec::new(),
                len => keys[random.below(len as u64) as usize].clone(),
            };
            match random.below(4) {
                0 => key.push(0),
                1 => drop(key.pop()),
                _ => {}
            }
            assert_eq!(get(base, *table, &key), records.get(&key).cloned());
            walk(&mut cursor, records, &key, random);
        }
    }
}

/// Moves a cursor about from `key`, and a model of it too.
fn walk(cursor: &mut BaseCursor, records: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8], random: &mut Random) {
    let range = |lower: Bound<&[u8]>, upper: Bound<&[u8]>| records.range::<[u8], _>((lower, upper));
    let mut expected = if random.below(2) == 0 {
        cursor.seek(key).unwrap();
        range(Bound::Included(key), Bound::Unbounded).next()
    } else {
        let before = (random.below(5) > 0).then_some(key);
        cursor.seek_before(before).unwrap();
        range(Bound::Unbounded, before.map_or(Bound::Unbounded, Bound::Excluded)).next_back()
    };
    for _ in 0..random.below(100) {
        assert_eq!(cursor.key(), expected.map(|(key, _)| key.as_slice()));
        let Some((key, value)) = expected else { break };
        assert_eq!(cursor.value().unwrap(), Some(value.as_slice()));
        expected = if random.below(3) > 0 {
            cursor.next().unwrap();
            range(Bound::Excluded(key.as_slice()), Bound::Unbounded).next()
        } else {
            cursor.prev().unwrap();
            range(Bound::Unbounded, Bound::Excluded(key.as_slice())).next_back()
        };
    }
}

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:012}").into_bytes()
}

fn value(i: u64, len: usize) -> Vec<u8> {
    let mut random = Random(i);
    (0..len).map(|_| random.next() as u8).collect()
}
