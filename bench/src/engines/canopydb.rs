//! canopydb: a copy-on-write B+tree over a write-ahead log. In suite `snapshots` only.
//!
//! Buffered commits are its default: in the log, not synced.

use std::path::Path;

use anyhow::{Context as _, Result};
use canopydb::{Database, DbOptions, EnvOptions, ReadTransaction};

use super::snapshots::{Held, Opening, Snapshots, Taker};
use crate::data::{Key, Record};

const TREE: &[u8] = b"bench";

pub struct Canopy {
    db: Database,
}

impl Canopy {
    pub fn open(dir: &Path, opening: Opening) -> Result<Canopy> {
        let mut options = EnvOptions::new(dir);
        options.page_cache_size = opening.cache_bytes;
        let db = Database::with_options(options, DbOptions::default())?;
        let tx = db.begin_write()?;
        tx.get_or_create_tree(TREE)?;
        tx.commit()?;
        Ok(Canopy { db })
    }
}

impl Snapshots for Canopy {
    fn put(&self, records: &[Record]) -> Result<()> {
        let tx = self.db.begin_write()?;
        {
            let mut tree = tx.get_or_create_tree(TREE)?;
            for record in records {
                tree.insert(&record.key, &record.value)?;
            }
        }
        tx.commit()?;
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        Ok(Box::new(ReadTransactions(&self.db)))
    }
}

/// A snapshot is a read transaction; trees belong to it, and a thread keeps nothing.
struct ReadTransactions<'e>(&'e Database);

impl<'e> Taker<'e> for ReadTransactions<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.0.begin_read()?);
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            let tx = self.0.begin_read()?;
            let tree = tx.get_tree(TREE)?.context("the tree was made at the opening")?;
            bytes += tree.get(key)?.map_or(0, |value| value.len()) as u64;
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        read(&self.0.begin_read()?, key)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let transactions = (0..count).map(|_| self.0.begin_read()).collect::<Result<Vec<_>, _>>()?;
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
    let tree = tx.get_tree(TREE)?.context("the tree was made at the opening")?;
    Ok(tree.get(key)?.map(|value| value.to_vec()))
}
