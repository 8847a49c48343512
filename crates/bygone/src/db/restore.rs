//! Going back: the state of a declared snapshot becomes the present again.
//!
//! Owns: what such a commit consists of. Promises: nothing is lost: the state before is a declared snapshot, and
//! all others stay. May call: bulk commits.

use std::collections::BTreeMap;

use super::Db;
use super::bulk::Changes;
use crate::error::Result;
use crate::history::SnapshotRef;
use crate::ids::{Seq, SnapshotId};
use crate::snapshot::rows::TableRow;
use crate::txn::record::Declaration;

/// What [`Db::restore`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The commit whose state is that of the snapshot.
    pub seq: Seq,
    /// A declared snapshot of the state before: restoring it undoes what was done.
    pub before: SnapshotId,
}

impl Db {
    /// Makes the state of a declared snapshot the present again, by one new commit. Nothing is lost: all declared
    /// snapshots stay, and one more is declared of the state before (unless there is one of just this state),
    /// without a name and with the metadata `before restoring snapshot N`. The state of any commit in the
    /// [window](super::Options::window) can be restored as well (`before restoring commit N`).
    ///
    /// Tables are restored with their contents: those that were made since are dropped, and those that were
    /// dropped are there again. Handles of tables that both states have stay good; those of others have to be
    /// fetched anew. Declared snapshots and holds are not part of what is restored.
    ///
    /// The commit is durable when this returns, and as large as it may be. It costs as much as what differs between
    /// the two states, which share all else, besides flushing and merging what was committed before. Others may
    /// read meanwhile; who commits, or asks for a table, waits. Transactions that began before and commit later get
    /// `Conflict`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// let good = db.snapshot_now("before-the-accident")?;
    /// db.delete(&accounts, "alice")?;
    ///
    /// let restored = db.restore(good)?;
    /// assert_eq!(db.get(&accounts, "alice")?.unwrap(), b"100");
    ///
    /// db.restore(restored.before)?;
    /// assert_eq!(db.get(&accounts, "alice")?, None);
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `SnapshotNotFound`, `OutsideWindow`; `ReadOnly`, `Poisoned`; `Corruption` or `Io`: then nothing has happened.
    pub fn restore(&self, snapshot: impl Into<SnapshotRef>) -> Result<Restored> {
        let engine = self.engine();
        engine.writer()?;
        // Whoever deletes it now, or moves the window, does not take it from under this.
        let (then, info) = engine.as_of_with_info(&snapshot.into())?;
        let (seq, before) = engine.bulk_commit(|bulk| {
            let what = info.map_or(format!("commit {}", then.seq()), |info| format!("snapshot {}", info.id));
            let metadata = format!("before restoring {what}").into_bytes();
            let before = bulk.declare_before(Declaration { name: None, metadata })?;
            let now = bulk.now.clone();
            let rows_now: BTreeMap<String, TableRow> = now.table_rows()?.into_iter().collect();
            let rows_then: BTreeMap<String, TableRow> = then.table_rows()?.into_iter().collect();
            for name in rows_now.keys().filter(|name| !rows_then.contains_key(*name)) {
                bulk.drop_table(name)?;
            }
            for (name, TableRow { id, .. }) in &rows_then {
                bulk.table(name, *id)?;
                let id_now = rows_now.get(name).map(|row| row.id).filter(|other| other == id);
                let diff = now.diff_tables(id_now, &then, Some(*id))?;
                bulk.apply(*id, &mut Changes::new(diff)?)?;
            }
            Ok(before)
        })?;
        Ok(Restored { seq, before })
    }
}
