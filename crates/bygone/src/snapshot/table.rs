//! Handles of tables, and which tables exist now.
//!
//! Owns: [`Table`] and the directory of living tables. Promises: a handle knows the range of sequence numbers
//! in which it is good, so that reading through it needs no look-up. May call: nothing of the engine but
//! `error`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// A handle of a table. Cheap to clone; made by `Db::table`.
#[derive(Clone)]
pub struct Table(Arc<TableState>);

struct TableState {
    /// Which open database it belongs to.
    database: u64,
    id: u32,
    name: String,
    created_seq: u64,
    /// Up to which number the table is known to exist: all, for one that lives or lived in this session.
    known_until: AtomicU64,
    /// `u64::MAX` until it is dropped.
    dropped_seq: AtomicU64,
}

impl Table {
    pub(crate) fn new(database: u64, id: u32, name: &str, created_seq: u64) -> Table {
        Self::known(database, id, name, created_seq, u64::MAX)
    }

    fn known(database: u64, id: u32, name: &str, created_seq: u64, known_until: u64) -> Table {
        let (name, dropped_seq) = (name.to_owned(), AtomicU64::new(u64::MAX));
        let known_until = AtomicU64::new(known_until);
        Table(Arc::new(TableState { database, id, name, created_seq, known_until, dropped_seq }))
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id
    }

    /// The commit that made it.
    pub(crate) fn created_seq(&self) -> u64 {
        self.0.created_seq
    }

    /// Whether the other handle is as good as this one, always.
    pub(crate) fn is_same(&self, other: &Table) -> bool {
        let known = |table: &Table| (table.0.id, table.0.created_seq, table.known_until());
        Arc::ptr_eq(&self.0, &other.0) || known(self) == known(other)
    }

    /// The commit that dropped it in this session; `u64::MAX` if none did.
    pub(crate) fn dropped_seq(&self) -> u64 {
        // Acquire: as in `exists_at`.
        self.0.dropped_seq.load(Ordering::Acquire)
    }

    /// Whether this very table exists as of `seq`; `Ok(false)` says that its name has to be looked up as of
    /// then.
    ///
    /// # Errors
    /// `TableNotFound` if it was dropped before, `InvalidArgument` if the handle is another database's.
    pub(crate) fn exists_at(&self, database: u64, seq: u64) -> Result<bool> {
        if self.0.database != database {
            return Err(Error::InvalidArgument {
                reason: format!("the handle of table {:?} belongs to another database", self.0.name),
            });
        }
        // Acquire: pairs with `set_dropped`; a reader at a later number was ordered after the drop by
        // `visible_seq` anyway.
        if seq >= self.0.dropped_seq.load(Ordering::Acquire) {
            return Err(self.not_found());
        }
        Ok((self.0.created_seq..=self.known_until()).contains(&seq))
    }

    fn known_until(&self) -> u64 {
        // Acquire: pairs with `forget_after`; a reader at a later number was ordered after it by `visible_seq`
        // anyway.
        self.0.known_until.load(Ordering::Acquire)
    }

    /// It was dropped at some time after `seq`; from there on its name has to be looked up.
    fn forget_after(&self, seq: u64) {
        // Release: pairs with `known_until`. Of several the first counts.
        self.0.known_until.fetch_min(seq, Ordering::Release);
    }

    /// Whether the table exists as of the latest commit that has its place.
    ///
    /// # Errors
    /// As [`exists_at`](Table::exists_at); `TableNotFound` also for one whose end is known only as lying
    /// behind a view.
    pub(crate) fn check_exists(&self, database: u64) -> Result<()> {
        if self.exists_at(database, u64::MAX - 1)? { Ok(()) } else { Err(self.not_found()) }
    }

    /// Whether the name, if it is not found as of `seq`, was there before.
    pub(crate) fn was_there_before(&self, seq: u64) -> bool {
        seq > self.known_until()
    }

    pub(crate) fn not_found(&self) -> Error {
        Error::TableNotFound { table: self.0.name.clone() }
    }

    pub(crate) fn set_dropped(&self, seq: u64) {
        // Release: pairs with `exists_at`.
        self.0.dropped_seq.store(seq, Ordering::Release);
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.0.name).field("id", &self.0.id).finish()
    }
}

/// The tables of the present, by name.
pub(crate) struct TableDirectory {
    database: u64,
    tables: Mutex<BTreeMap<String, Table>>,
}

impl TableDirectory {
    pub fn new(database: u64) -> TableDirectory {
        TableDirectory { database, tables: Mutex::default() }
    }

    pub fn database(&self) -> u64 {
        self.database
    }

    /// Holding this, nobody else creates or drops a table.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Table>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what tables there are (id and commit of creation by name) at some commit after `seq`, up to which
    /// this directory was right. Called before that commit can be read.
    pub fn renew(&self, seq: u64, rows: Vec<(String, (u32, u64))>) {
        let mut tables = self.lock();
        let mut old = std::mem::take(&mut *tables);
        for (name, (id, created_seq)) in rows {
            let table = match old.remove(&name) {
                Some(table) if table.id() == id && table.created_seq() == created_seq => table,
                other => {
                    // Dropped, and another was made.
                    other.iter().for_each(|table| table.forget_after(seq));
                    Table::new(self.database, id, &name, created_seq)
                }
            };
            tables.insert(name, table);
        }
        old.values().for_each(|table| table.forget_after(seq));
    }

    /// The handle for a table that a view found: the present's own if it is the same table, and was there all the
    /// time.
    pub fn handle(&self, id: u32, name: &str, created_seq: u64, seen_at: u64) -> Table {
        match self.lock().get(name) {
            Some(table) if table.id() == id && table.created_seq() == created_seq => table.clone(),
            _ => {
                // Dropped since, and nobody knows cheaply when: behind the view that found it the name is
                // looked up again.
                Table::known(self.database, id, name, created_seq, seen_at)
            }
        }
    }
}
