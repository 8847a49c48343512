//! Comparing what was with what was, or is.
//!
//! Owns: nothing; the public entrances. Promises: what [`Diff`] and [`History`] promise. May call: snapshot,
//! history.

use std::ops::RangeBounds;

use super::Db;
use crate::error::Result;
use crate::history::SnapshotRef;
use crate::history::of_key::History;
use crate::snapshot::{Diff, Table};

impl Db {
    /// What differs in a table between two declared snapshots, or commits in the [window](crate::Options::window), as
    /// [`Change`](crate::Change)s from `a` (`before`) to `b` (`after`); `a` may be the later one. See
    /// [`Snapshot::diff`](crate::Snapshot::diff), which also compares with the present.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// db.snapshot_now("before-fees")?;
    /// db.put(&accounts, "alice", "90")?;
    /// db.snapshot_now("after-fees")?;
    ///
    /// let change = db.diff("before-fees", "after-fees", &accounts)?.next().unwrap()?;
    /// assert_eq!(change.key, b"alice");
    /// assert_eq!(change.before.as_deref(), Some(&b"100"[..]));
    /// assert_eq!(change.after.as_deref(), Some(&b"90"[..]));
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`as_of`](Db::as_of) and [`Snapshot::diff`](crate::Snapshot::diff).
    pub fn diff(&self, a: impl Into<SnapshotRef>, b: impl Into<SnapshotRef>, table: &Table) -> Result<Diff> {
        self.diff_range(a, b, table, ..)
    }

    /// What differs in a table between two declared snapshots, among the keys in a range.
    ///
    /// # Errors
    /// As [`diff`](Db::diff).
    pub fn diff_range<'k>(
        &self,
        a: impl Into<SnapshotRef>,
        b: impl Into<SnapshotRef>,
        table: &Table,
        range: impl RangeBounds<&'k [u8]>,
    ) -> Result<Diff> {
        self.as_of(a)?.diff_range(&self.as_of(b)?, table, range)
    }

    /// The values that a key has had: the declared snapshots at which its value differs from that at the declared
    /// snapshot before, oldest first. The first is the one at which the key first existed; `None` says that it
    /// was deleted. What no declared snapshot sees does not appear, the present included.
    ///
    /// Before it was made, and after it was dropped, the table has no values; the handle stands for tables that
    /// had its name earlier, as it does for [`Snapshot::get`](crate::Snapshot::get). The cost is proportional to
    /// the number of values and of merges in between, not to that of snapshots.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// let first = db.snapshot_now(None)?;
    /// let _same = db.snapshot_now(None)?;
    /// db.delete(&accounts, "alice")?;
    /// let gone = db.snapshot_now(None)?;
    ///
    /// let history: Vec<_> = db.history(&accounts, "alice")?.collect::<bygone::Result<_>>()?;
    /// assert_eq!(history, [(first, Some(b"100"[..].into())), (gone, None)]);
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a handle of another database; `Corruption` or `Io`. Errors that come up on the way
    /// are items, and the last ones.
    pub fn history(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<History> {
        let engine = self.engine();
        History::new(engine.past.clone(), engine.present.clone(), table, key.as_ref())
    }
}
