//! Transactions: private writes over a view, and an optimistic commit.
//!
//! Owns: [`Transaction`], validation, and the commit queue. Promises: snapshot isolation or serializability,
//! as asked for; a commit is all or nothing. May call: wal, memtable, snapshot.

pub(crate) mod backlog;
pub(crate) mod commit;
mod cursor;
mod declared;
mod queue;
mod range;
pub(crate) mod record;
pub(crate) mod standstill;
mod validate;
pub(crate) mod write_set;

use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError};

pub use commit::Durability;
use commit::{Committed, Committer, Request};
pub use range::TransactionRange;
use record::{Declaration, Marks, check_size};
use validate::{RangeRead, ReadSet};
use write_set::{WriteSet, Writes};

use crate::error::Result;
use crate::ids::{Seq, SnapshotId};
use crate::layer::HashedKey;
use crate::limits::{KEY_BYTES_MAX, METADATA_BYTES_MAX, VALUE_BYTES_MAX};
use crate::snapshot::{Snapshot, Table, owned_bounds};
use crate::value::Value;

/// A transaction: reads a view of the database together with its own writes, and commits them all at once or
/// not at all.
///
/// Dropping it rolls it back, which costs nothing. It may be sent to another thread.
pub struct Transaction {
    committer: Arc<Committer>,
    /// Keeps the database open.
    owner: Arc<dyn Owner>,
    view: Snapshot,
    writes: WriteSet,
    tables: Vec<Table>,
    durability: Durability,
    metadata: Vec<u8>,
    /// `None` under plain snapshot isolation.
    serializable: Option<Serializable>,
}

/// The database as its transactions know it. It stays open as long as one has it.
pub(crate) trait Owner: Send + Sync {
    /// Commits, in the way that is best for so much.
    fn commit(&self, request: Request) -> Result<Committed>;
}

/// What a serializable transaction keeps beside its writes.
struct Serializable {
    committer: Arc<Committer>,
    /// Under which number it is registered.
    registered: u64,
    reads: Mutex<ReadSet>,
}

impl Drop for Serializable {
    fn drop(&mut self) {
        self.committer.running.remove(self.registered);
    }
}

impl Transaction {
    pub(crate) fn begin(
        committer: Arc<Committer>,
        owner: Arc<dyn Owner>,
        durability: Durability,
    ) -> Result<Transaction> {
        committer.health.check()?;
        let view = committer.present.snapshot();
        Ok(Self::over(committer, owner, view, durability, None))
    }

    pub(crate) fn begin_serializable(
        committer: Arc<Committer>,
        owner: Arc<dyn Owner>,
        durability: Durability,
    ) -> Result<Transaction> {
        committer.health.check()?;
        let (view, registered) = committer.begin_serializable()?;
        let serializable = Serializable { committer: committer.clone(), registered, reads: Mutex::default() };
        Ok(Self::over(committer, owner, view, durability, Some(serializable)))
    }

    fn over(
        committer: Arc<Committer>,
        owner: Arc<dyn Owner>,
        view: Snapshot,
        durability: Durability,
        serializable: Option<Serializable>,
    ) -> Transaction {
        Transaction {
            committer,
            owner,
            view,
            writes: WriteSet::default(),
            tables: Vec::new(),
            durability,
            metadata: Vec::new(),
            serializable,
        }
    }

    /// The value of a key: as this transaction wrote it, else as of its view.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(table, key, |value| Value::from(value))
    }

    /// Calls `f` with the value of a key, borrowed.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let key = key.as_ref();
        self.check_table(table)?;
        if let Some(written) = self.writes.get(table.id(), key) {
            return Ok(written.as_deref().map(f));
        }
        if let Some(serializable) = &self.serializable {
            let id = self.table_read(table)?;
            let mut reads = serializable.reads.lock().unwrap_or_else(PoisonError::into_inner);
            reads.note_table(id, table.name());
            reads.keys.insert((id, key.to_vec()));
        }
        self.view.get_with(table, key, f)
    }

    /// Whether a key has a value.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get_with(table, key, |_| ())?.is_some())
    }

    /// The records whose keys lie in a range, lazily, from either end: with this transaction's own writes as
    /// they are at this moment.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn range<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Result<TransactionRange> {
        self.check_table(table)?;
        let writes = self.writes.table(table.id()).cloned();
        let rows = self.view.range_under(table, &range, writes.map(cursor::over))?;
        let mut read = None;
        if let Some(serializable) = &self.serializable {
            let id = self.table_read(table)?;
            let (lower, upper) = owned_bounds(&range);
            let range = RangeRead { table: id, lower, upper, front: None, back: None, exhausted: false };
            let range = Arc::new(Mutex::new(range));
            let mut reads = serializable.reads.lock().unwrap_or_else(PoisonError::into_inner);
            reads.note_table(id, table.name());
            reads.ranges.push(range.clone());
            read = Some(range);
        }
        Ok(TransactionRange::new(rows, read))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// `TooLarge` for a key over 1,024 bytes or a value over 1 GiB; `TableNotFound` if the table was dropped.
    pub fn put(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(table, key.as_ref(), Some(Value::from(value.as_ref())))
    }

    /// Writes a record whose value is given away: a large one is not copied, as [`put`](Transaction::put) has to.
    ///
    /// # Errors
    /// As [`put`](Transaction::put).
    pub fn put_owned(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl Into<Value>) -> Result<()> {
        self.write(table, key.as_ref(), Some(value.into()))
    }

    /// Deletes a record, if there is one.
    ///
    /// # Errors
    /// As [`put`](Transaction::put).
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(table, key.as_ref(), None)
    }

    /// When this transaction's commit is durable; the database's default otherwise.
    pub fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    /// Bytes of the application's own, at most 64 KiB, to be kept with the snapshot that this transaction's
    /// commit declares.
    pub fn set_snapshot_metadata(&mut self, metadata: impl Into<Vec<u8>>) {
        self.metadata = metadata.into();
    }

    /// The last commit that this transaction sees.
    pub fn seq(&self) -> Seq {
        self.view.seq()
    }

    /// Commits; answers the commit's number, or that of the view if there was nothing to write.
    ///
    /// A large transaction (from a quarter of a [memtable](crate::Options::memtable_bytes) on) is not written to the
    /// log, to a run and to the base, but to the base alone, if little was committed since the last merge, and its keys
    /// lie so close together that few other records are written anew for it, or it is half as large as the base. Then
    /// it is durable when this returns, whatever it [asked for](Transaction::set_durability), and other commits wait
    /// until it is, as they do behind one that is written to the log and synced.
    ///
    /// # Errors
    /// `Conflict` if another transaction changed what this one wrote (or, serializable, read) first: nothing
    /// was written, begin anew. `Io` or `Poisoned` if the log failed; then whether the commit survives
    /// shows when the database is opened again.
    pub fn commit(self) -> Result<Seq> {
        if self.writes.is_empty() {
            return Ok(self.view.seq());
        }
        Ok(self.finish(None)?.seq)
    }

    /// Commits and declares a snapshot of exactly this commit, atomically with it. The name must be new.
    ///
    /// # Errors
    /// As [`commit`](Transaction::commit); `NameTaken`; `TooLarge` for names over 255 bytes and metadata over
    /// 64 KiB.
    pub fn commit_with_snapshot<'n>(self, name: impl Into<Option<&'n str>>) -> Result<SnapshotId> {
        let name = name.into().map(str::to_owned);
        if let Some(name) = &name {
            record::check_name("a snapshot's name", name)?;
        }
        check_size("a snapshot's metadata", self.metadata.len(), METADATA_BYTES_MAX)?;
        let metadata = self.metadata.clone();
        let committed = self.finish(Some(Declaration { name, metadata }))?;
        Ok(committed.snapshot.expect("a commit that declares a snapshot has its id"))
    }

    fn write(&mut self, table: &Table, key: &[u8], value: Option<Value>) -> Result<()> {
        self.check_table(table)?;
        check_write(key, value.as_deref())?;
        if !self.tables.iter().any(|known| known.is_same(table)) {
            self.tables.push(table.clone());
        }
        self.writes.put(table.id(), key, value);
        Ok(())
    }

    /// A table that is made later than the view is written to by its id, and read by its name.
    fn check_table(&self, table: &Table) -> Result<()> {
        let database = self.committer.present.context().tables.database();
        table.exists_at(database, self.view.seq().0).map(|_| ())
    }

    /// The id of the table that is read through this handle: the handle's own, unless it stands for the one
    /// that had its name as of the view.
    fn table_read(&self, table: &Table) -> Result<u32> {
        Ok(self.view.resolve(table)?.unwrap_or(table.id()))
    }

    fn finish(self, declaration: Option<Declaration>) -> Result<Committed> {
        let Transaction { committer, owner, view, writes, tables, durability, serializable, .. } = self;
        let reads = serializable.as_ref().map(|serializable| {
            std::mem::take(&mut *serializable.reads.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let writes = Writes::from(writes);
        owner.commit(Request {
            hashes: hashes(&writes, committer.present.context().hash_seed),
            writes,
            marks: Marks { declaration, ..Marks::default() },
            tables,
            read: Some(view),
            reads,
            durability,
        })
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("view", &self.view).field("writes", &self.writes.count()).finish()
    }
}

/// The hashes of a write set's keys, in its order.
pub(crate) fn hashes(writes: &Writes, seed: u64) -> Vec<u64> {
    writes.iter().map(|(table, key, _)| HashedKey::new(table, key, seed).hash).collect()
}

/// Whether a record is within the limits.
pub(crate) fn check_write(key: &[u8], value: Option<&[u8]>) -> Result<()> {
    check_size("a key", key.len(), KEY_BYTES_MAX)?;
    check_size("a value", value.map_or(0, <[u8]>::len), VALUE_BYTES_MAX)
}
