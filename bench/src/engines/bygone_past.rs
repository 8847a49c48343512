//! Bygone's past. A state that is kept is a declared snapshot.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use bygone::{Db, Durability, Options, Snapshot, SnapshotId, Table, Transaction};

use super::past::{Declared, Footprint, Keeper, MISSING, Opening, Row, View, head_of};
use crate::data::Key;

pub struct Bygone {
    db: Db,
    table: Table,
}

impl Bygone {
    pub fn open(dir: &Path, opening: Opening) -> Result<Bygone> {
        let mut options = Options::new()
            .cache_bytes(opening.cache_bytes)
            .memtable_bytes(opening.memtable_bytes)
            .durability(Durability::Buffered);
        if opening.split {
            options = options.history_dir(dir.join("history"));
        }
        let db = options.open(dir.join("present"))?;
        let table = db.table("bench")?;
        Ok(Bygone { db, table })
    }

    fn transaction(&self, rows: &[Row]) -> Result<Transaction> {
        let mut tx = self.db.begin()?;
        for row in rows {
            tx.put(&self.table, row.key, row.value)?;
        }
        Ok(tx)
    }
}

impl Keeper for Bygone {
    fn commit(&self, rows: &[Row]) -> Result<()> {
        self.transaction(rows)?.commit()?;
        Ok(())
    }

    fn commit_and_keep(&self, rows: &[Row]) -> Result<u64> {
        Ok(self.transaction(rows)?.commit_with_snapshot(None)?.into())
    }

    fn view(&self, state: Option<u64>) -> Result<Box<dyn View + '_>> {
        let snapshot = match state {
            Some(id) => self.db.as_of(SnapshotId::from(id))?,
            None => self.db.snapshot(),
        };
        Ok(Box::new(OneSnapshot { snapshot, table: &self.table }))
    }

    fn settle(&self) -> Result<()> {
        self.db.merge()?;
        Ok(self.db.archive()?)
    }

    fn declared(&self) -> Option<&dyn Declared> {
        Some(self)
    }
}

struct OneSnapshot<'e> {
    snapshot: Snapshot,
    table: &'e Table,
}

impl View for OneSnapshot<'_> {
    fn heads(&mut self, keys: &[Key], heads: &mut Vec<u64>) -> Result<()> {
        for key in keys {
            heads.push(self.snapshot.get_with(self.table, key, head_of)?.unwrap_or(MISSING));
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(u64, u64)> {
        let (mut rows, mut sum) = (0, 0u64);
        self.snapshot.for_each(self.table, .., |_, value| {
            rows += 1;
            sum = sum.wrapping_add(head_of(value));
            ControlFlow::Continue(())
        })?;
        Ok((rows, sum))
    }
}

impl Declared for Bygone {
    fn open_each(&self, snapshots: &[u64]) -> Result<()> {
        for id in snapshots {
            std::hint::black_box(self.db.as_of(SnapshotId::from(*id))?);
        }
        Ok(())
    }

    fn diff(&self, before: u64, after: u64, each: &mut dyn FnMut(&[u8], u64, u64)) -> Result<()> {
        for change in self.db.diff(SnapshotId::from(before), SnapshotId::from(after), &self.table)? {
            let change = change?;
            let head = |value: Option<bygone::Value>| value.map_or(MISSING, |value| head_of(&value));
            each(&change.key, head(change.before), head(change.after));
        }
        Ok(())
    }

    fn delete(&self, snapshot: u64) -> Result<()> {
        Ok(self.db.delete_snapshot(SnapshotId::from(snapshot))?)
    }

    fn footprint(&self) -> Result<Footprint> {
        let stats = self.db.stats()?;
        Ok(Footprint {
            base: stats.base_bytes,
            kept_in_base: stats.base_history_bytes,
            history_runs: stats.history_bytes,
            pagelog: stats.archive_bytes,
            page_map: stats.page_map_bytes,
            archived_pages: stats.archived_pages,
            application: stats.application_bytes,
            written: stats.written_bytes,
        })
    }
}
