//! Bulk commits: a commit of any size that is written straight into the base.
//!
//! Owns: the order of its steps. Promises: the commit is one like every other, durable and visible all at once or
//! not at all; what declared snapshots and the window see of the state before it is kept. May call: everything
//! below db.
//!
//! 1. What was committed is flushed and merged while others go on committing, unless it is a transaction that has
//!    lost already. 2. Nobody commits or makes tables from here on; a transaction is validated; the little that came
//!    meanwhile is flushed and merged, too, so that the base is the present.
//! 3. One rebuild applies the commit's updates; the old base is kept as a key frame if a declared snapshot or the
//!    window needs it. 4. The superblock that names the new base is the commit: it also says that the commit's
//!    number is used, and that the log goes on behind it. 5. Views get base and number at once.
//!
//! A failure before step 4 leaves everything as it was; step 4 either happens or poisons, as it does for a merge.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use super::engine::{Counters, Engine, lock};
use crate::base::{BaseVersion, Rebuild, Updates};
use crate::error::Result;
use crate::history::Interval;
use crate::history::visibility::Needed;
use crate::ids::{Seq, SnapshotId};
use crate::limits::PAGE_BYTES;
use crate::snapshot::rows::{self, FIRST_TABLE, TableRow};
use crate::snapshot::{Change, Diff, Snapshot, Table};
use crate::txn::commit::Request;
use crate::txn::record::{Declaration, Marks, Place, system_records};
use crate::txn::standstill::Standstill;

/// A commit that is being written straight into the base. Nobody else commits meanwhile.
pub(super) struct Bulk<'e> {
    engine: &'e Engine,
    /// The state before it.
    pub now: Snapshot,
    base: Arc<BaseVersion>,
    rebuild: Rebuild,
    /// `None` for a commit that neither makes nor drops any: then nobody who asks for a table waits for it.
    tables: Option<Tables<'e>>,
    /// The place that it has.
    pub place: Place,
    next_snapshot_id: u64,
    next_table_id: u32,
    /// The numbers of the declared snapshots that see the state before.
    declared: Vec<u64>,
    /// The commits of the window that do.
    window: Range<u64>,
    /// Whether one is declared of the state behind.
    declares: bool,
}

/// The tables that a bulk commit finds, makes and drops.
struct Tables<'e> {
    /// The handles by their names: as they are to be afterwards.
    handles: MutexGuard<'e, BTreeMap<String, Table>>,
    created: Vec<(String, Table)>,
    dropped: Vec<String>,
}

impl Engine {
    /// Makes a bulk commit of what `apply` does.
    pub fn bulk_commit<T>(&self, apply: impl FnOnce(&mut Bulk<'_>) -> Result<T>) -> Result<(Seq, T)> {
        let _bulk = lock(&self.bulk);
        self.merge_ahead(None)?;
        let handles = self.present.context().tables.lock();
        let tables = Tables { handles, created: Vec::new(), dropped: Vec::new() };
        self.commit_at_standstill(Some(tables), None, apply)
    }

    /// Makes a bulk commit of a transaction, whose writes `apply` applies; it makes and drops no table.
    pub fn bulk_commit_of<T>(
        &self,
        transaction: Request,
        apply: impl FnOnce(&mut Bulk<'_>) -> Result<T>,
    ) -> Result<(Seq, T)> {
        let _bulk = lock(&self.bulk);
        self.merge_ahead(Some(&transaction))?;
        self.commit_at_standstill(None, Some(transaction), apply)
    }

    /// Flushes and merges what is there, unless the transaction is refused already.
    fn merge_ahead(&self, transaction: Option<&Request>) -> Result<()> {
        let committer = &self.writer()?.committer;
        let mut standstill = committer.stand_still()?;
        transaction.map_or(Ok(()), |transaction| standstill.validate(transaction))?;
        standstill.freeze()?;
        drop(standstill);
        self.guarded(|engine| {
            engine.flush_all()?;
            engine.merge_all()
        })?;
        Ok(())
    }

    fn commit_at_standstill<T>(
        &self,
        tables: Option<Tables<'_>>,
        mut transaction: Option<Request>,
        apply: impl FnOnce(&mut Bulk<'_>) -> Result<T>,
    ) -> Result<(Seq, T)> {
        let committer = &self.writer()?.committer;
        let merging = lock(&self.merging);
        let mut standstill = committer.stand_still()?;
        if let Some(transaction) = &mut transaction {
            standstill.validate(transaction)?;
            // It is asked for no more, and would keep pages that may be used again.
            transaction.read = None;
        }
        // What is flushed now needs room among the runs.
        self.guarded(|engine| engine.merge_holding(&merging))?;
        standstill.freeze()?;
        self.guarded(|engine| {
            engine.flush_all()?;
            engine.merge_holding(&merging)
        })?;
        let log_segment = standstill.roll_log()?;
        let mut bulk = Bulk::begin(self, &mut standstill, tables)?;
        let applied = apply(&mut bulk)?;
        let place = bulk.place;
        let published = bulk.publish(log_segment, standstill, transaction.as_ref());
        if let Err(error) = &published
            && self.store.is_poisoned()
        {
            self.health.poison(error.to_string());
        }
        published?;
        drop(merging);
        self.tell_runs();
        // As behind a merge. The commit stands, whatever fails now: the next one is told, because the database is
        // poisoned.
        self.relieve();
        let _ = self.store.shrink();
        self.archive_signal.raise();
        let _ = self.guarded(|engine| engine.writer()?.wal.release_before(log_segment));
        Ok((Seq(place.seq), applied))
    }
}

impl<'e> Bulk<'e> {
    fn begin(
        engine: &'e Engine,
        standstill: &mut Standstill<'_>,
        tables: Option<Tables<'e>>,
    ) -> Result<Bulk<'e>> {
        let place = standstill.next_place();
        let base = engine.present.layers().base.clone();
        let declared = engine.writer()?.committer.declared_between(base.seq(), place.seq);
        let window = engine.window_start().map_or(0..0, |start| start.seq.max(base.seq())..place.seq);
        Ok(Bulk {
            engine,
            now: engine.present.snapshot(),
            rebuild: engine.store.rebuild(&base)?,
            base,
            tables,
            place,
            next_snapshot_id: place.snapshot_id,
            next_table_id: 0,
            declared,
            window,
            declares: false,
        })
    }

    /// Declares a snapshot of the state before the commit, unless one is declared of it already; answers it.
    pub fn declare_before(&mut self, declaration: Declaration) -> Result<SnapshotId> {
        let before = self.now.seq().0;
        if self.declared.last() == Some(&before) {
            // The last one that was declared.
            return Ok(SnapshotId(self.next_snapshot_id - 1));
        }
        self.declared.push(before);
        self.declare(declaration, before, self.place.time_micros)
    }

    /// Declares a snapshot of the state at `seq`: before the commit, or behind it.
    pub fn declare(&mut self, declaration: Declaration, seq: u64, time_micros: u64) -> Result<SnapshotId> {
        let id = self.next_snapshot_id;
        self.next_snapshot_id += 1;
        self.declares |= seq == self.place.seq;
        let marks = Marks { declaration: Some(declaration), ..Marks::default() };
        let place = Place { seq, snapshot_id: id, time_micros };
        for (table, key, value) in system_records(&marks, place) {
            self.rebuild.set(table, &key, value.as_deref())?;
        }
        Ok(SnapshotId(id))
    }

    fn tables(&mut self) -> &mut Tables<'e> {
        self.tables.as_mut().expect("no transaction makes or drops a table")
    }

    /// Sees to it that the table of this name has this id: makes it if there is none or only one with another.
    pub fn table(&mut self, name: &str, id: u32) -> Result<()> {
        if self.tables().handles.get(name).is_some_and(|table| table.id() == id) {
            return Ok(());
        }
        self.drop_table(name)?;
        let row = TableRow { id, created_seq: self.place.seq };
        self.rebuild.set(rows::TABLES, name.as_bytes(), Some(&row.encode()))?;
        let database = self.engine.present.context().tables.database();
        let table = Table::new(database, id, name, self.place.seq);
        self.tables().created.push((name.to_owned(), table));
        self.next_table_id = self.next_table_id.max(id.saturating_add(1));
        Ok(())
    }

    /// The id of the table of this name; made if there is none.
    pub fn table_named(&mut self, name: &str) -> Result<u32> {
        let tables = self.tables();
        if let Some((_, made)) = tables.created.iter().find(|(other, _)| other == name) {
            return Ok(made.id());
        }
        let there = tables.handles.get(name).filter(|_| !tables.dropped.iter().any(|other| other == name));
        if let Some(table) = there {
            return Ok(table.id());
        }
        // What a commit does not use that fails is left out.
        let id = self.engine.take_table_id()?;
        self.table(name, id)?;
        Ok(id)
    }

    /// Writes a row of a system table.
    pub fn set_row(&mut self, table: u32, key: &[u8], row: &[u8]) -> Result<()> {
        debug_assert!(table < FIRST_TABLE);
        self.rebuild.set(table, key, Some(row))
    }

    /// Drops the table of this name, if there is one.
    pub fn drop_table(&mut self, name: &str) -> Result<()> {
        let tables = self.tables();
        if tables.dropped.iter().any(|other| other == name) {
            return Ok(());
        }
        let Some(id) = tables.handles.get(name).map(Table::id) else { return Ok(()) };
        tables.dropped.push(name.to_owned());
        self.rebuild.drop_table(id)?;
        self.rebuild.set(rows::TABLES, name.as_bytes(), None)
    }

    /// Applies updates to a table.
    pub fn apply(&mut self, table: u32, updates: &mut dyn Updates) -> Result<()> {
        debug_assert!(table >= FIRST_TABLE);
        self.rebuild.apply(table, updates, usize::MAX)?;
        Ok(())
    }

    /// The commit happens.
    fn publish(
        mut self,
        log_segment: u64,
        standstill: Standstill<'_>,
        transaction: Option<&Request>,
    ) -> Result<()> {
        let Bulk { engine, place, base, .. } = &self;
        let (engine, place, from, root) = (*engine, *place, base.seq(), base.root());
        let needed = Needed::new(std::mem::take(&mut self.declared), self.window.clone());
        let keeps_base = !needed.is_empty();
        if keeps_base {
            let snapshots = needed.count();
            let interval = Interval { from, key_frame: Some(root), runs: Vec::new(), snapshots };
            self.rebuild.set(rows::HISTORY, &place.seq.to_be_bytes(), Some(&interval.encode()))?;
        }
        if !self.window.is_empty() {
            let key = rows::time_key(place.time_micros, place.seq);
            self.rebuild.set(rows::COMMIT_TIMES, &key, Some(b""))?;
        }
        let retained = if keeps_base { root.generation } else { engine.store.newest_retained() };
        let (next_snapshot_id, next_table_id) = (self.next_snapshot_id, self.next_table_id);
        let written_bytes = self.rebuild.written_pages() * PAGE_BYTES as u64;
        let new_base = self.rebuild.finish(place.seq, retained, || {
            let mut manifest = lock(&engine.manifest);
            manifest.flushed_seq = place.seq;
            manifest.durable_end = place.seq + 1;
            manifest.wal_floor = log_segment;
            manifest.next_snapshot_id = next_snapshot_id;
            manifest.next_table_id = manifest.next_table_id.max(next_table_id);
            manifest.last_time_micros = place.time_micros;
            // Nothing leads on from the history before to what comes. Its runs can be put together.
            let chain = std::mem::take(&mut manifest.chain);
            if chain.is_scattered(engine.history_run_worth_bytes()) {
                // Relaxed: who prunes looks again and again.
                engine.prune_wanted.store(true, Ordering::Relaxed);
            }
            manifest.retained_bases += u64::from(keeps_base);
            manifest.encode()
        })?;
        engine.superblock_written();
        Counters::add(&engine.counters.merged_bytes, written_bytes);
        Counters::add(&engine.counters.bulk_commits, 1);
        if let Some(tables) = &mut self.tables {
            for name in tables.dropped.drain(..) {
                if let Some(table) = tables.handles.remove(&name) {
                    table.set_dropped(place.seq);
                }
            }
            tables.handles.extend(tables.created.drain(..));
        }
        standstill.committed(place, next_snapshot_id, new_base, transaction);
        let committer = &engine.writer()?.committer;
        committer.forget_declared_before(place.seq);
        if self.declares {
            committer.note_declared(place.seq);
        }
        Ok(())
    }
}

/// The changes from one state to another as updates of the first.
pub(super) struct Changes {
    diff: Diff,
    next: Option<Change>,
}

impl Changes {
    pub fn new(diff: Diff) -> Result<Changes> {
        let mut changes = Changes { diff, next: None };
        changes.advance()?;
        Ok(changes)
    }
}

impl Updates for Changes {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.next.as_ref().map(|change| &change.key[..]))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.next.as_ref().and_then(|change| change.after.as_deref()))
    }

    fn advance(&mut self) -> Result<()> {
        self.next = self.diff.next().transpose()?;
        Ok(())
    }
}
