//! fjall: a log-structured merge tree.
//!
//! Its values are shared slices of cached blocks: owned without a copy, so that both kinds of access are one.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};

use super::snapshots::{Held, Snapshots, Taker};
use super::{Access, Durability, Engine, Reader, Setup};
use crate::data::{Key, Record};

/// Tables of the first level that do not slow writers yet.
const STEADY_TABLES: usize = 8;

pub struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

impl Fjall {
    pub fn open(dir: &Path, setup: Setup) -> Result<Fjall> {
        let db = Database::builder(dir).cache_size(setup.cache_bytes as u64).open()?;
        let keyspace = db.keyspace("bench", KeyspaceCreateOptions::default)?;
        Ok(Fjall { db, keyspace })
    }
}

impl Engine for Fjall {
    fn commit(&self, records: &[Record], durability: Durability) -> Result<()> {
        let persist = match durability {
            Durability::Sync => PersistMode::SyncData,
            Durability::Buffered => PersistMode::Buffer,
        };
        let mut batch = self.db.batch().durability(Some(persist));
        for record in records {
            batch.insert(&self.keyspace, record.key, record.value);
        }
        Ok(batch.commit()?)
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Now { snapshot: self.db.snapshot(), keyspace: &self.keyspace }))
    }

    fn begin_and_drop(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.db.snapshot());
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<()> {
        let behind = || self.db.outstanding_flushes() > 1 || self.keyspace.l0_table_count() > STEADY_TABLES;
        while behind() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.keyspace.rotate_memtable_and_wait()?;
        Ok(self.keyspace.major_compact()?)
    }
}

struct Now<'a> {
    snapshot: Snapshot,
    keyspace: &'a Keyspace,
}

impl Reader for Now<'_> {
    fn get_all(&self, keys: &[Key], _: Access) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            bytes += self.snapshot.get(self.keyspace, key)?.map_or(0, |value| value.len()) as u64;
        }
        Ok(bytes)
    }

    fn scan(&self, _: Access) -> Result<u64> {
        let mut records = 0;
        for item in self.snapshot.iter(self.keyspace) {
            std::hint::black_box(item.into_inner()?);
            records += 1;
        }
        Ok(records)
    }
}

impl Snapshots for Fjall {
    fn put(&self, records: &[Record]) -> Result<()> {
        self.commit(records, Durability::Buffered)
    }

    fn settle(&self) -> Result<()> {
        Engine::settle(self)
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        Ok(Box::new(Calls(self)))
    }
}

/// A snapshot is a call on the database; a thread keeps nothing.
struct Calls<'e>(&'e Fjall);

impl<'e> Taker<'e> for Calls<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.0.db.snapshot());
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            bytes += self.0.db.snapshot().get(&self.0.keyspace, key)?.map_or(0, |value| value.len()) as u64;
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.0.db.snapshot().get(&self.0.keyspace, key)?.map(|value| value.to_vec()))
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let snapshots = (0..count).map(|_| self.0.db.snapshot()).collect();
        Ok(Box::new(HeldSnapshots { snapshots, keyspace: &self.0.keyspace }))
    }
}

struct HeldSnapshots<'e> {
    snapshots: Vec<Snapshot>,
    keyspace: &'e Keyspace,
}

impl Held for HeldSnapshots<'_> {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.snapshots[index].get(self.keyspace, key)?.map(|value| value.to_vec()))
    }
}
