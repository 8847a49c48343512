//! redb: a copy-on-write B+tree in one file.
//!
//! It has no commits that survive the end of the process but not a power cut. `Durability::None` stays in
//! memory until the next durable commit, so
//! buffered commits are made of these, with a durable one every [`DURABLE_EVERY`]: without any, pages would
//! never be freed.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};

use super::snapshots::{Held, Snapshots, Taker};
use super::{Access, Durability, Engine, Reader, Setup};
use crate::data::{Key, Record};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("bench");

/// Commits from one durable commit to the next, when buffered ones are asked for.
const DURABLE_EVERY: u64 = 1000;

pub struct Redb {
    db: Database,
    commits: AtomicU64,
}

impl Redb {
    pub fn open(dir: &Path, setup: Setup) -> Result<Redb> {
        let db = Database::builder().set_cache_size(setup.cache_bytes).create(dir.join("redb"))?;
        let tx = db.begin_write()?;
        tx.open_table(TABLE)?;
        tx.commit()?;
        Ok(Redb { db, commits: AtomicU64::new(0) })
    }
}

impl Engine for Redb {
    fn commit(&self, records: &[Record], durability: Durability) -> Result<()> {
        let mut tx = self.db.begin_write()?;
        // Relaxed: it only spreads the durable ones.
        let commit = self.commits.fetch_add(1, Ordering::Relaxed);
        if durability == Durability::Buffered && !commit.is_multiple_of(DURABLE_EVERY) {
            tx.set_durability(redb::Durability::None)?;
        }
        {
            let mut table = tx.open_table(TABLE)?;
            for record in records {
                table.insert(record.key.as_slice(), record.value.as_slice())?;
            }
        }
        Ok(tx.commit()?)
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Now(self.db.begin_read()?.open_table(TABLE)?)))
    }

    fn begin_and_drop(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.db.begin_read()?);
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        // A durable commit with nothing in it: what was buffered is on the disk then.
        Ok(self.db.begin_write()?.commit()?)
    }
}

struct Now(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Reader for Now {
    fn get_all(&self, keys: &[Key], access: Access) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            let Some(value) = self.0.get(key.as_slice())? else { continue };
            bytes += match access {
                Access::Owned => std::hint::black_box(value.value().to_vec()).len(),
                Access::Borrowed => value.value().len(),
            } as u64;
        }
        Ok(bytes)
    }

    fn scan(&self, access: Access) -> Result<u64> {
        let mut records = 0;
        for item in self.0.iter()? {
            let (key, value) = item?;
            match access {
                Access::Owned => drop(std::hint::black_box((key.value().to_vec(), value.value().to_vec()))),
                Access::Borrowed => drop(std::hint::black_box((key.value()[0], value.value()[0]))),
            }
            records += 1;
        }
        Ok(records)
    }
}

impl Snapshots for Redb {
    fn put(&self, records: &[Record]) -> Result<()> {
        self.commit(records, Durability::Buffered)
    }

    fn settle(&self) -> Result<()> {
        Engine::settle(self)
    }

    fn make_durable(&self) -> Result<()> {
        Engine::settle(self)
    }

    fn data_files(&self) -> &'static [&'static str] {
        &["redb"]
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        Ok(Box::new(ReadTransactions(self)))
    }
}

/// A snapshot is a read transaction; tables belong to it, and a thread keeps nothing.
struct ReadTransactions<'e>(&'e Redb);

impl<'e> Taker<'e> for ReadTransactions<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.0.db.begin_read()?);
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            let table = self.0.db.begin_read()?.open_table(TABLE)?;
            bytes += table.get(key.as_slice())?.map_or(0, |value| value.value().len()) as u64;
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        read(&self.0.db.begin_read()?, key)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let transactions = (0..count).map(|_| self.0.db.begin_read()).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(HeldTransactions(transactions)))
    }
}

struct HeldTransactions(Vec<ReadTransaction>);

impl Held for HeldTransactions {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        read(&self.0[index], key)
    }
}

fn read(tx: &ReadTransaction, key: &Key) -> Result<Option<Vec<u8>>> {
    Ok(tx.open_table(TABLE)?.get(key.as_slice())?.map(|value| value.value().to_vec()))
}
