//! LMDB, through heed: a copy-on-write B+tree in a memory map.
//!
//! Buffered commits are those of an environment with `NO_SYNC`: written to the file, not synced. The flag is
//! changed when the kind of commit changes.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;

use anyhow::{Result, ensure};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, RoTxn, WithTls};

use super::{Access, Durability, Engine, Reader, Setup};
use crate::data::{Key, Record};

/// Address space, not memory.
const MAP_BYTES: usize = 64 << 30;

const READERS_MAX: u32 = 1024;

pub struct Lmdb {
    env: Env,
    table: Database<Bytes, Bytes>,
    /// How the environment commits now. Locked around the change of its flags.
    durability: Mutex<Durability>,
}

impl Lmdb {
    pub fn open(dir: &Path, _: Setup) -> Result<Lmdb> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES).max_readers(READERS_MAX);
        // SAFETY: the file is in a directory of this process's own; nobody else changes it while it is
        // mapped.
        let env = unsafe { options.open(dir)? };
        let mut tx = env.write_txn()?;
        let table = env.create_database(&mut tx, None)?;
        tx.commit()?;
        Ok(Lmdb { env, table, durability: Mutex::new(Durability::Sync) })
    }

    fn set_durability(&self, durability: Durability) -> Result<()> {
        let mut current = self.durability.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != durability {
            let mode = match durability {
                Durability::Sync => FlagSetMode::Disable,
                Durability::Buffered => FlagSetMode::Enable,
            };
            // SAFETY: the lock lets one thread at a time do this; a file that a power cut may tear is what is
            // being measured.
            unsafe { self.env.set_flags(EnvFlags::NO_SYNC, mode)? };
            *current = durability;
        }
        Ok(())
    }
}

impl Engine for Lmdb {
    fn commit(&self, records: &[Record], durability: Durability) -> Result<()> {
        self.set_durability(durability)?;
        let mut tx = self.env.write_txn()?;
        for record in records {
            self.table.put(&mut tx, &record.key, &record.value)?;
        }
        Ok(tx.commit()?)
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Now { tx: self.env.read_txn()?, table: self.table }))
    }

    fn begin_and_drop(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.env.read_txn()?);
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }
}

struct Now<'a> {
    tx: RoTxn<'a, WithTls>,
    table: Database<Bytes, Bytes>,
}

impl Reader for Now<'_> {
    fn get_all(&self, keys: &[Key], access: Access) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            let Some(value) = self.table.get(&self.tx, key)? else { continue };
            bytes += match access {
                Access::Owned => std::hint::black_box(value.to_vec()).len(),
                Access::Borrowed => value.len(),
            } as u64;
        }
        Ok(bytes)
    }

    fn scan(&self, access: Access) -> Result<u64> {
        let (mut records, mut sum) = (0, 0u64);
        for item in self.table.iter(&self.tx)? {
            let (key, value) = item?;
            match access {
                Access::Owned => drop(std::hint::black_box((key.to_vec(), value.to_vec()))),
                Access::Borrowed => sum = sum.wrapping_add(u64::from(key[0]) + u64::from(value[0])),
            }
            records += 1;
        }
        ensure!(access == Access::Owned || std::hint::black_box(sum) > 0, "a scan that saw nothing");
        Ok(records)
    }
}
