//! Views: a sequence number and a stack of immutable sorted layers, pinned by a [`Snapshot`].
//!
//! Owns: the read path, the handles of tables, and the system tables' rows. Promises: a
//! snapshot of now and one of last year are the same type, read by the same code. May call: memtable, run,
//! base,
//! registry.

pub(crate) mod current;
mod cursor;
#[cfg(all(test, not(loom)))]
mod cursor_tests;
mod diff;
pub(crate) mod layers;
#[cfg(all(test, not(loom)))]
mod lifetime_tests;
pub(crate) mod present;
mod range;
pub(crate) mod rows;
pub(crate) mod scans;
mod since;
mod table;
mod unchanged;
mod watch;

use std::fmt;
use std::ops::{Bound, ControlFlow, Deref, RangeBounds};
use std::sync::Arc;

pub(crate) use cursor::MergeCursor;
pub use diff::{Change, Diff};
pub(crate) use layers::{Context, Layers, WindowStart, WindowState};
pub use range::Range;
pub(crate) use range::{Top, owned_bounds};
pub use table::Table;
pub(crate) use table::TableDirectory;
pub use watch::HeldSnapshot;
pub(crate) use watch::Limits;

use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::registry::{self, Expired, Slot};
use crate::value::Value;
use rows::TableRow;

/// A pinned view of the whole database, of now or of the past.
///
/// It keeps answering from the moment it stands for, whatever is committed, flushed, merged or dropped
/// meanwhile. Cloning it shares the pin. It may be sent to and dropped on any thread, and outlives the
/// [`Db`](crate::Db) it came from. A snapshot of the present that is held for long keeps the memtables of its
/// time in memory and the pages of its time in the file; [`Stats::held_snapshots`](crate::Stats) tells how
/// much, and [`Options::max_snapshot_age`](crate::Options::max_snapshot_age) ends those that are forgotten.
pub struct Snapshot {
    /// Pinned by this handle.
    slot: &'static Slot<Layers>,
}

impl Snapshot {
    /// # Safety
    /// The slot has a pin for this handle, and holds layers.
    unsafe fn from_pinned(slot: &'static Slot<Layers>) -> Snapshot {
        Snapshot { slot }
    }

    /// An idle slot should not keep this view's layers: they are of the past, which the next reader will not
    /// ask for.
    fn forget_when_idle(&self) {
        self.slot.mark();
    }

    /// What the view holds.
    ///
    /// # Errors
    /// `SnapshotExpired`.
    #[inline]
    pub(crate) fn layers(&self) -> Result<HeldLayers<'_>> {
        if self.slot.expires() {
            return self.lease();
        }
        // SAFETY: this handle has a pin as long as it lives, and its view does not expire.
        Ok(HeldLayers::Pinned(unsafe { self.slot.layers() }))
    }

    #[cold]
    fn lease(&self) -> Result<HeldLayers<'_>> {
        // SAFETY: this handle has a pin.
        let lease = unsafe { self.slot.lease() };
        lease.map(HeldLayers::Leased).map_err(|Expired { age, limit }| Error::SnapshotExpired {
            seq: self.seq(),
            age,
            limit,
        })
    }

    #[inline]
    fn has_expired(&self) -> bool {
        self.slot.has_expired()
    }

    /// # Errors
    /// `SnapshotExpired`.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.has_expired() { self.lease().map(|_| ()) } else { Ok(()) }
    }

    /// Which publication the layers are.
    pub(crate) fn version(&self) -> u64 {
        self.slot.version()
    }

    /// The last commit that this snapshot sees.
    pub fn seq(&self) -> Seq {
        Seq(self.slot.seq())
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `TableNotFound` if the table was dropped as of this snapshot; `Corruption` or `Io` if what it needs
    /// cannot be read.
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(table, key, |value| Value::from(value))
    }

    /// Calls `f` with the value of a key, borrowed: nothing is copied or allocated.
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let layers = self.layers()?;
        let Some(id) = self.resolve_in(&layers, table)? else { return Ok(None) };
        let mut f = Some(f);
        let mut result = None;
        layers.get(id, key.as_ref(), self.slot.seq(), &mut |value| {
            result = f.take().map(|f| f(value));
        })?;
        Ok(result)
    }

    /// Whether a key has a value.
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub fn contains_key(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get_with(table, key, |_| ())?.is_some())
    }

    /// The records whose keys lie in a range, lazily, from either end.
    ///
    /// # Errors
    /// As [`get`](Snapshot::get); errors that come up on the way are items.
    pub fn range<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Result<Range> {
        self.range_under(table, &range, None)
    }

    /// A range with another layer above the view.
    pub(crate) fn range_under<'k>(
        &self,
        table: &Table,
        range: &impl RangeBounds<&'k [u8]>,
        top: Option<Top>,
    ) -> Result<Range> {
        let id = self.resolve(table)?;
        Ok(Range::new(self, id, owned_bounds(range), top))
    }

    /// Calls `f` with each record whose key lies in a range, in order and borrowed, until it breaks: the
    /// fastest way through a range.
    ///
    /// # Errors
    /// As [`get`](Snapshot::get).
    pub fn for_each<'k>(
        &self,
        table: &Table,
        range: impl RangeBounds<&'k [u8]>,
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let layers = self.layers()?;
        let Some(id) = self.resolve_in(&layers, table)? else { return Ok(()) };
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        if is_empty(bounds) {
            return Ok(());
        }
        if !self.slot.expires() {
            return layers.for_each(id, self.slot.seq(), bounds, &mut f);
        }
        // The scan holds the layers of its own, so what it has seen is right; but it does not go on.
        let mut alive = Ok(());
        layers.for_each(id, self.slot.seq(), bounds, &mut |key, value| {
            alive = self.check_alive();
            if alive.is_err() { ControlFlow::Break(()) } else { f(key, value) }
        })?;
        alive
    }

    /// The names of the tables as of this snapshot, sorted.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn tables(&self) -> Result<Vec<String>> {
        Ok(self.table_rows()?.into_iter().map(|(name, _)| name).collect())
    }

    /// The handle of a table as of this snapshot, dropped since or not.
    ///
    /// # Errors
    /// `TableNotFound` if there was none of this name.
    pub fn table(&self, name: &str) -> Result<Table> {
        let Some(row) = self.table_row(name)? else {
            return Err(Error::TableNotFound { table: name.to_owned() });
        };
        Ok(self.layers()?.context.tables.handle(row.id, name, row.created_seq, self.slot.seq()))
    }

    /// Name and row of every table as of this snapshot.
    pub(crate) fn table_rows(&self) -> Result<Vec<(String, TableRow)>> {
        let mut tables = Vec::new();
        let mut damaged = None;
        self.layers()?.for_each(
            rows::TABLES,
            self.slot.seq(),
            (Bound::Unbounded, Bound::Unbounded),
            &mut |name, row| match (std::str::from_utf8(name), TableRow::decode(row)) {
                (Ok(name), Some(row)) => {
                    tables.push((name.to_owned(), row));
                    ControlFlow::Continue(())
                }
                _ => {
                    damaged = Some(name.escape_ascii().to_string());
                    ControlFlow::Break(())
                }
            },
        )?;
        match damaged {
            Some(name) => Err(self.bad_row("table", &name)),
            None => Ok(tables),
        }
    }

    /// The row of a system table, decoded.
    pub(crate) fn system_row<T>(
        &self,
        table: u32,
        key: &[u8],
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        self.row_in(&*self.layers()?, table, key, decode)
    }

    fn row_in<T>(
        &self,
        layers: &Layers,
        table: u32,
        key: &[u8],
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut row = None;
        let found = layers.get(table, key, self.slot.seq(), &mut |bytes| row = decode(bytes))?;
        match row {
            None if found => Err(self.bad_row("system", &key.escape_ascii().to_string())),
            row => Ok(row),
        }
    }

    pub(crate) fn bad_row(&self, kind: &str, key: &str) -> Error {
        match self.layers() {
            Ok(layers) => layers.bad_row(kind, key),
            Err(expired) => expired,
        }
    }

    fn table_row(&self, name: &str) -> Result<Option<TableRow>> {
        self.system_row(rows::TABLES, name.as_bytes(), TableRow::decode)
    }

    /// The id of the table that the handle means as of this snapshot: `None` if there was none of this name
    /// yet. A handle of a younger table stands for the one that had its name then, so that the code for
    /// the present reads the past unchanged.
    pub(crate) fn resolve(&self, table: &Table) -> Result<Option<u32>> {
        self.resolve_in(&*self.layers()?, table)
    }

    #[inline]
    fn resolve_in(&self, layers: &Layers, table: &Table) -> Result<Option<u32>> {
        if table.exists_at(layers.context.tables.database(), self.slot.seq())? {
            return Ok(Some(table.id()));
        }
        match self.row_in(layers, rows::TABLES, table.name().as_bytes(), TableRow::decode)? {
            None if table.was_there_before(self.slot.seq()) => Err(table.not_found()),
            row => Ok(row.map(|row| row.id)),
        }
    }
}

/// A view's layers for the time of a read.
pub(crate) enum HeldLayers<'s> {
    /// The handle's pin keeps them.
    Pinned(&'s Arc<Layers>),
    /// Where views may expire each read keeps them on its own account.
    Leased(Arc<Layers>),
}

impl Deref for HeldLayers<'_> {
    type Target = Arc<Layers>;

    #[inline]
    fn deref(&self) -> &Arc<Layers> {
        match self {
            HeldLayers::Pinned(layers) => layers,
            HeldLayers::Leased(layers) => layers,
        }
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        // SAFETY: this handle has a pin.
        unsafe { registry::pin_again(self.slot) };
        Snapshot { slot: self.slot }
    }
}

impl Drop for Snapshot {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the pin is this handle's, and nothing borrows from it any more.
        unsafe { registry::unpin(self.slot) }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.slot.seq()).finish()
    }
}

/// Whether no key can lie between the bounds. `BTreeMap` panics on such ranges; here they are merely empty.
pub(crate) fn is_empty((lower, upper): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match (lower, upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
        _ => false,
    }
}
