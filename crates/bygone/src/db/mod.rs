//! The database: what an application opens.
//!
//! Owns: [`Db`], and the wiring of all other modules: opening, flushing, merging, background threads.
//! Promises: the public API. May call: everything.

mod archive;
mod background;
mod backup;
mod beside;
mod bulk;
mod compare;
mod consolidate;
mod engine;
mod export;
mod flush;
mod keep;
mod large;
mod manifest;
mod merge;
mod open;
mod opened;
mod options;
mod prune;
mod relief;
mod replace;
mod restore;
mod send;
mod sizes;
mod snapshots;
mod stats;
mod window;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use background::Background;
use engine::Engine;
pub use options::Options;
pub use restore::Restored;
pub use send::Receiving;
pub use sizes::SnapshotSize;
pub use stats::{Stats, VerifyReport};

use crate::error::{Error, Result};
use crate::history::SnapshotRef;
use crate::io::Disk;
use crate::limits::TABLES_MAX;
use crate::snapshot::{Snapshot, Table};
use crate::txn::record::{Marks, TableChange, check_name};
use crate::txn::write_set::Writes;
use crate::txn::{Owner, Transaction, check_write};
use crate::value::Value;

/// An open database. Cheap to clone; the last clone that is dropped closes it.
#[derive(Clone)]
pub struct Db {
    open: Arc<Open>,
}

/// What closes the database when it goes: the threads end first.
struct Open {
    background: Option<Background>,
    engine: Arc<Engine>,
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.background.take());
        // What was `Buffered` is made durable by an orderly end, if the disk lets it; nobody is left to tell if it
        // does not.
        let _ = self.engine.close();
    }
}

impl Db {
    /// Opens the database in a directory with default options; makes it if there is none.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Options::new().open(path)
    }

    fn open_with(disk: Arc<dyn Disk>, path: &Path, options: Options) -> Result<Db> {
        let threads = options.background;
        let engine = Engine::open(disk, path, options)?;
        let background = if threads { Some(Background::start(&engine)?) } else { None };
        if !threads {
            let weak = Arc::downgrade(&engine);
            engine
                .backlog
                .set_inline_work(move || weak.upgrade().map_or(Ok(()), |engine| engine.work_inline()));
        }
        Ok(Db { open: Arc::new(Open { background, engine }) })
    }

    /// The directory, as it was given when the database was opened.
    pub fn path(&self) -> &Path {
        &self.engine().path
    }

    /// Whether the database is open for [reading only](Options::read_only).
    pub fn is_read_only(&self) -> bool {
        self.engine().writer.is_none()
    }

    fn engine(&self) -> &Engine {
        &self.open.engine
    }

    /// A snapshot of the present. Costs about what a function call costs.
    ///
    /// Of a database that is open for reading only it is what recovery would have found when it was opened, or last
    /// [refreshed](Db::refresh): every commit that had returned by then, in any process; perhaps some that were about
    /// to; none in part. Those were not necessarily durable yet.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        self.engine().present.snapshot()
    }

    /// A snapshot of the past: of a declared snapshot, by id, by name, or the latest declared at or before a
    /// time. If the database has a [window](Options::window): also of any commit in it by its number, and of the latest
    /// commit at or before a time in it (to the microsecond). By the number of the commit declared snapshots are found
    /// too, in the window or not.
    ///
    /// # Errors
    /// `SnapshotNotFound`; `OutsideWindow`, which says where the window is, for a commit that is neither in it nor
    /// declared, and for a time before it at which no snapshot was declared yet; `HistoryUnavailable`, `Corruption` or
    /// `Io` if what was kept cannot be read; `TooLarge` for the 65,537th snapshot that a database open for reading only
    /// reads at one time. Reading through the snapshot may also give these.
    pub fn as_of(&self, snapshot: impl Into<SnapshotRef>) -> Result<Snapshot> {
        self.engine().as_of(&snapshot.into())
    }

    /// Begins a transaction under snapshot isolation.
    ///
    /// # Errors
    /// `ReadOnly`, `Poisoned`.
    pub fn begin(&self) -> Result<Transaction> {
        let writer = self.engine().writer()?;
        Transaction::begin(writer.committer.clone(), self.owner(), self.engine().options.durability)
    }

    /// Begins a serializable transaction: it commits only if nothing that it read was changed meanwhile.
    ///
    /// # Errors
    /// `ReadOnly`, `Poisoned`.
    pub fn begin_serializable(&self) -> Result<Transaction> {
        let writer = self.engine().writer()?;
        Transaction::begin_serializable(
            writer.committer.clone(),
            self.owner(),
            self.engine().options.durability,
        )
    }

    /// What a transaction holds so that the database stays open under it.
    fn owner(&self) -> Arc<dyn Owner> {
        self.open.clone()
    }

    /// The value of a key now.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.snapshot().get(table, key)
    }

    /// Writes one record, in a transaction of its own. It conflicts with nothing: the last writer wins.
    ///
    /// # Errors
    /// `TooLarge`, `TableNotFound`, `ReadOnly`, `Io`, `Poisoned`.
    pub fn put(&self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(table, key.as_ref(), Some(value.as_ref()))
    }

    /// Deletes one record, if there is one, in a transaction of its own.
    ///
    /// # Errors
    /// As [`put`](Db::put).
    pub fn delete(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(table, key.as_ref(), None)
    }

    fn write(&self, table: &Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        check_write(key, value)?;
        let writes = Writes::one(table.id(), key, value);
        let durability = self.engine().options.durability;
        self.engine().commit(writes, vec![table.clone()], Marks::default(), durability)?;
        Ok(())
    }

    /// The table of this name; made if there is none.
    ///
    /// # Errors
    /// `TooLarge` for a name over 255 bytes or the 65,537th table; `InvalidArgument` for an empty name;
    /// `ReadOnly`, `Io`, `Poisoned`.
    pub fn table(&self, name: &str) -> Result<Table> {
        check_name("a table's name", name)?;
        let engine = self.engine();
        let mut tables = engine.present.context().tables.lock();
        if let Some(table) = tables.get(name) {
            return Ok(table.clone());
        }
        if tables.len() >= TABLES_MAX {
            let count = tables.len() as u64 + 1;
            return Err(Error::TooLarge {
                what: "the number of tables",
                size: count,
                limit: TABLES_MAX as u64,
            });
        }
        engine.writer()?;
        let id = engine.take_table_id()?;
        let change = TableChange::Create { id, name: name.to_owned() };
        let marks = Marks { table_change: Some(change), ..Marks::default() };
        let committed = engine.commit(Writes::default(), Vec::new(), marks, engine.options.durability)?;
        let database = engine.present.context().tables.database();
        let table = Table::new(database, id, name, committed.seq.into());
        tables.insert(name.to_owned(), table.clone());
        Ok(table)
    }

    /// The table of this name; none is made.
    ///
    /// # Errors
    /// `TableNotFound`.
    pub fn open_table(&self, name: &str) -> Result<Table> {
        let tables = self.engine().present.context().tables.lock();
        tables.get(name).cloned().ok_or_else(|| Error::TableNotFound { table: name.to_owned() })
    }

    /// Drops a table with all its records. Snapshots that see it go on seeing it; its handles give
    /// `TableNotFound` from then on.
    ///
    /// # Errors
    /// `TableNotFound`, `ReadOnly`, `Io`, `Poisoned`.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        let engine = self.engine();
        let mut tables = engine.present.context().tables.lock();
        let Some(table) = tables.get(name).cloned() else {
            return Err(Error::TableNotFound { table: name.to_owned() });
        };
        let change = TableChange::Drop { name: name.to_owned() };
        let marks = Marks { table_change: Some(change), ..Marks::default() };
        engine.commit(Writes::default(), vec![table], marks, engine.options.durability)?;
        tables.remove(name);
        Ok(())
    }

    /// The names of the tables, sorted.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn tables(&self) -> Result<Vec<String>> {
        self.snapshot().tables()
    }

    /// Writes everything that is in memtables to runs, and returns when that is durable.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`, `Poisoned`.
    pub fn flush(&self) -> Result<()> {
        let engine = self.engine();
        let last_seq = engine.writer()?.committer.freeze()?;
        if self.open.background.is_some() {
            return engine.backlog.wait_until_flushed(last_seq);
        }
        engine.present.look();
        engine.guarded(Engine::flush_all)
    }

    /// Flushes, merges everything into the base, so that reads run at the speed of the plain tree, and gives
    /// back what deleted snapshots kept and what has left the [window](Options::window).
    ///
    /// # Errors
    /// `ReadOnly`, `Io`, `Poisoned`; `Corruption` if something that is merged cannot be read.
    pub fn merge(&self) -> Result<()> {
        self.flush()?;
        self.engine().guarded(|engine| {
            engine.move_window_now(Duration::ZERO);
            engine.merge_all()?;
            engine.prune_if_wanted()?;
            engine.give_back();
            Ok(())
        })
    }
}

/// Handles are equal if they came from one opening.
impl PartialEq for Db {
    fn eq(&self, other: &Db) -> bool {
        Arc::ptr_eq(&self.open, &other.open)
    }
}

impl Eq for Db {}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("path", &self.engine().path).finish()
    }
}
