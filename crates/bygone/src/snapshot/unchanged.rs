//! For how long a key stays as it is.
//!
//! Owns: [`Snapshot::unchanged_until`]. Promises: what is called unchanged is, as of every declared snapshot and every
//! commit in the window up to there; nothing is read but where the key's versions lie, and no value. May call:
//! `layers`.
//!
//! The layers of the later view have every version between its base and itself that a declared snapshot or the window
//! can see. So if the earlier view does not lie below that base, the first commit behind it that wrote the key is
//! found there, or there is none. Versions that a flush has dropped in between nobody could see who asks later.

use super::{Snapshot, Table};
use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::layer::HashedKey;

impl Snapshot {
    /// Up to which commit a key is left as it is as of this snapshot: as of each declared snapshot from this one to
    /// that commit, and each commit of the [window](crate::Options::window) there, it has the same value, or none. It
    /// is the last before the key is written again, or that of `later` if it is not written before.
    ///
    /// For who keeps what he has read, or made of it, and wants to know for which other snapshots it holds: that costs
    /// a look-up without the value, instead of one, or more, for each of them. A key that was written with the value
    /// that it had counts as changed.
    ///
    /// `None` says that this cannot be told: if `later` is older; if the table is not the same as of both; if
    /// between the two the [base](crate::Db::merge) was made anew, so that they are read in different places. Try an
    /// older `later` then.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// for name in ["a", "b", "c"] {
    ///     db.snapshot_now(name)?;
    /// }
    /// db.put(&accounts, "alice", "90")?;
    /// db.snapshot_now("d")?;
    ///
    /// let (a, d) = (db.as_of("a")?, db.as_of("d")?);
    /// let until = a.unchanged_until(&d, &accounts, "alice")?.unwrap();
    /// assert!(db.as_of("c")?.seq() <= until && until < d.seq());
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if table and snapshots are not of one database; `SnapshotExpired`, `Corruption` or `Io`.
    pub fn unchanged_until(
        &self,
        later: &Snapshot,
        table: &Table,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Seq>> {
        let layers = later.layers()?;
        let (from, last) = (self.seq().0, later.seq().0);
        let ids = match (self.resolve(table), later.resolve_in(&layers, table)) {
            (Err(Error::TableNotFound { .. }), _) | (_, Err(Error::TableNotFound { .. })) => return Ok(None),
            (from, last) => (from?, last?),
        };
        if from > last || from < layers.base.seq() {
            return Ok(None);
        }
        // Above one base no table comes back once it was dropped: that it has one number at both ends means that it
        // was there all the while.
        let (Some(id), true) = (ids.0, ids.0 == ids.1) else { return Ok(None) };
        let hashed = HashedKey::new(id, key.as_ref(), layers.context.hash_seed);
        let next = layers.next_seq(&hashed, from, last)?;
        Ok(Some(Seq(next.map_or(last, |next| next - 1))))
    }
}
