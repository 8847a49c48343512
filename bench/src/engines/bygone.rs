//! Bygone.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use bygone::{Db, Options, Snapshot, SnapshotId, Table};

use super::operations::{Direction, Log, Operations, Worker};
use super::snapshots::{Held, Snapshots, Taker};
use super::{Access, Durability, Engine, Past, Reader, Setup, Written};
use crate::data::{Key, Record};

/// A backlog is bounded that does not slow writers yet: one memtable in its way to the disk, and these many
/// runs.
const STEADY_FROZEN_MEMTABLES: u64 = 1;
const STEADY_RUNS: u64 = 20;

pub struct Bygone {
    db: Db,
    table: Table,
}

impl Bygone {
    pub fn open(dir: &Path, setup: Setup) -> Result<Bygone> {
        let mut options =
            Options::new().cache_bytes(setup.cache_bytes).durability(bygone::Durability::Buffered);
        if let Some(bytes) = setup.memtable_bytes {
            options = options.memtable_bytes(bytes);
        }
        if setup.split {
            options = options.history_dir(dir.with_extension("history"));
        }
        let db = options.open(dir)?;
        let table = db.table("bench")?;
        Ok(Bygone { db, table })
    }

    fn transaction(&self, records: &[Record], durability: Durability) -> Result<bygone::Transaction> {
        let mut tx = self.db.begin()?;
        tx.set_durability(match durability {
            Durability::Sync => bygone::Durability::Sync,
            Durability::Buffered => bygone::Durability::Buffered,
        });
        for record in records {
            tx.put(&self.table, record.key, record.value)?;
        }
        Ok(tx)
    }
}

impl Engine for Bygone {
    fn commit(&self, records: &[Record], durability: Durability) -> Result<()> {
        loop {
            match self.transaction(records, durability)?.commit() {
                // Two threads may put the same key at a time: the one that lost tries again, as an
                // application does.
                Err(bygone::Error::Conflict { .. }) => {}
                other => return other.map(|_| ()).map_err(Into::into),
            }
        }
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Now(self)))
    }

    fn begin_and_drop(&self, count: u64) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.db.snapshot());
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<()> {
        loop {
            let stats = self.db.stats()?;
            if stats.frozen_memtables <= STEADY_FROZEN_MEMTABLES && stats.runs <= STEADY_RUNS {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.merge()?)
    }

    fn written(&self) -> Result<Option<Written>> {
        let stats = self.db.stats()?;
        Ok(Some(Written { application_bytes: stats.application_bytes, file_bytes: stats.written_bytes }))
    }

    fn past(&self) -> Option<&dyn Past> {
        Some(self)
    }

    fn worker(&self) -> Option<&dyn Worker> {
        Some(self)
    }
}

impl Operations for Bygone {
    fn put(&self, key: &Key, value: &[u8], log: Log) -> Result<()> {
        ensure!(log == Log::Buffered, "there is no commit without a log");
        Ok(self.db.put(&self.table, key, value)?)
    }

    fn get(&self, key: &Key, found: impl FnOnce(&[u8])) -> Result<()> {
        self.db.snapshot().get_with(&self.table, key, found)?;
        Ok(())
    }

    fn seek(&self, key: &Key, each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        Ok(self.db.snapshot().for_each(&self.table, key.as_slice().., each)?)
    }

    fn scan(&self, direction: Direction, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let snapshot = self.db.snapshot();
        match direction {
            Direction::Forward => snapshot.for_each(&self.table, .., |key, value| {
                each(key, value);
                ControlFlow::Continue(())
            })?,
            Direction::Backward => {
                for item in snapshot.range(&self.table, ..)?.rev() {
                    let (key, value) = item?;
                    each(&key, &value);
                }
            }
        }
        Ok(())
    }

    fn is_in_memtable(&self) -> Result<bool> {
        let stats = self.db.stats()?;
        Ok(stats.frozen_memtables == 0 && stats.flushes == 0)
    }
}

impl Past for Bygone {
    fn commit_and_declare(&self, records: &[Record]) -> Result<u64> {
        Ok(self.transaction(records, Durability::Buffered)?.commit_with_snapshot(None)?.into())
    }

    fn as_of(&self, id: u64) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Then { snapshot: self.db.as_of(SnapshotId::from(id))?, table: &self.table }))
    }

    fn history_bytes(&self) -> Result<u64> {
        let stats = self.db.stats()?;
        let archived = stats.archive_bytes + stats.page_map_bytes;
        Ok(stats.base_history_bytes + stats.history_bytes + archived)
    }
}

/// Each get takes a view of its own: what it reads is the newest always.
struct Now<'a>(&'a Bygone);

impl Reader for Now<'_> {
    fn get_all(&self, keys: &[Key], access: Access) -> Result<u64> {
        let Bygone { db, table } = self.0;
        let mut bytes = 0;
        for key in keys {
            let value_bytes = match access {
                Access::Owned => db.get(table, key)?.map(|value| value.len()),
                Access::Borrowed => db.snapshot().get_with(table, key, <[u8]>::len)?,
            };
            bytes += value_bytes.unwrap_or(0) as u64;
        }
        Ok(bytes)
    }

    fn scan(&self, access: Access) -> Result<u64> {
        scan(&self.0.db.snapshot(), &self.0.table, access)
    }
}

struct Then<'a> {
    snapshot: Snapshot,
    table: &'a Table,
}

impl Reader for Then<'_> {
    fn get_all(&self, keys: &[Key], access: Access) -> Result<u64> {
        let mut bytes = 0;
        for key in keys {
            let value_bytes = match access {
                Access::Owned => self.snapshot.get(self.table, key)?.map(|value| value.len()),
                Access::Borrowed => self.snapshot.get_with(self.table, key, <[u8]>::len)?,
            };
            bytes += value_bytes.unwrap_or(0) as u64;
        }
        Ok(bytes)
    }

    fn scan(&self, access: Access) -> Result<u64> {
        scan(&self.snapshot, self.table, access)
    }
}

fn scan(snapshot: &Snapshot, table: &Table, access: Access) -> Result<u64> {
    let (mut records, mut sum) = (0, 0u64);
    match access {
        Access::Owned => {
            for item in snapshot.range(table, ..)? {
                let (key, value) = item?;
                sum = sum.wrapping_add(u64::from(key[0]) + u64::from(value[0]));
                records += 1;
            }
        }
        Access::Borrowed => snapshot.for_each(table, .., |key, value| {
            sum = sum.wrapping_add(u64::from(key[0]) + u64::from(value[0]));
            records += 1;
            ControlFlow::Continue(())
        })?,
    }
    ensure!(std::hint::black_box(sum) > 0, "a scan that saw nothing");
    Ok(records)
}

impl Snapshots for Bygone {
    fn put(&self, records: &[Record]) -> Result<()> {
        self.commit(records, Durability::Buffered)
    }

    fn settle(&self) -> Result<()> {
        Engine::settle(self)
    }

    fn data_files(&self) -> &'static [&'static str] {
        &["base.pages"]
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        Ok(Box::new(Calls(self)))
    }
}

/// A snapshot is a call on the database; a thread keeps nothing.
struct Calls<'e>(&'e Bygone);

impl<'e> Taker<'e> for Calls<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            std::hint::black_box(self.0.db.snapshot());
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let Bygone { db, table } = self.0;
        let mut bytes = 0;
        for key in keys {
            bytes += db.snapshot().get_with(table, key, <[u8]>::len)?.unwrap_or(0) as u64;
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.0.db.snapshot().get_with(&self.0.table, key, <[u8]>::to_vec)?)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let snapshots = (0..count).map(|_| self.0.db.snapshot()).collect();
        Ok(Box::new(HeldSnapshots { snapshots, table: &self.0.table }))
    }
}

struct HeldSnapshots<'e> {
    snapshots: Vec<Snapshot>,
    table: &'e Table,
}

impl Held for HeldSnapshots<'_> {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.snapshots[index].get_with(self.table, key, <[u8]>::to_vec)?)
    }
}
