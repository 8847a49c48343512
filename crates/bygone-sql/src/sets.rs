//! Set queries, from Rust.
//!
//! Owns: watching them. May call: `bygone_sql_core`.

use std::time::Duration;

use bygone_sql_core::ffi::sqlite3;
use bygone_sql_core::{SetProgress, SetStats};
use rusqlite::Connection;

/// Has `report` called by each set query of this connection, before it turns to a snapshot; if it answers `false`, the
/// query ends with `SQLITE_INTERRUPT`. It replaces the one before, and stays until the connection is closed.
///
/// Set queries are the SQL functions `CollateData`, `AggregateDataInVariable`, `AggregateDataInTable` and
/// `CollateDataIntoIntervals`, which `docs/sql.md` describes.
///
/// ```
/// # use bygone_sql::{SetProgress, Sql};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let db = bygone::Db::open(directory.path().join("bank"))?;
/// let bank = db.sql("main")?;
/// bank.execute_batch("CREATE TABLE accounts(owner, balance); INSERT INTO accounts VALUES ('alice', 100)")?;
/// for balance in [100, 90, 95] {
///     bank.execute("UPDATE accounts SET balance = ?1", [balance])?;
///     db.snapshot_now(None)?;
/// }
/// bygone_sql::on_set_progress(&bank, |progress: &SetProgress| {
///     eprintln!("{} of {}", progress.done, progress.total);
///     true
/// });
/// let least: i64 = bank.query_row(
///     "SELECT AggregateDataInVariable(id, 'SELECT sum(balance) FROM accounts', 'min') FROM bygone_snapshots",
///     [],
///     |row| row.get(0),
/// )?;
/// assert_eq!(least, 90);
/// assert_eq!(bygone_sql::set_stats(&bank).unwrap().snapshots, 3);
/// # Ok(())
/// # }
/// ```
pub fn on_set_progress(connection: &Connection, report: impl FnMut(&SetProgress) -> bool + Send + 'static) {
    bygone_sql_core::on_set_progress(address(connection), Some(Box::new(report)));
}

/// From how long on that it would still take (5 milliseconds, unless this is called), a set query of this connection is
/// shared between two threads that it begins, each with a connection of its own, while the one that asks waits; `None`
/// keeps it to that one. Results, failures and what is reported are the same, in the same order.
pub fn share_sets(connection: &Connection, left: Option<Duration>) {
    bygone_sql_core::share_sets(address(connection), left);
}

/// What the last set query of this connection did; `None` if there was none, or if it failed.
pub fn set_stats(connection: &Connection) -> Option<SetStats> {
    bygone_sql_core::set_stats(address(connection))
}

fn address(connection: &Connection) -> *mut sqlite3 {
    // SAFETY: the address serves to find what belongs to it, and is not followed.
    unsafe { connection.handle() }.cast()
}
