//! SQL with a past: SQLite, unmodified, on Bygone.
//!
//! [`Sql`] gives a [`Db`](bygone::Db) SQL databases: ordinary [`rusqlite::Connection`]s, of now or of the past. Each
//! commit of SQLite's is one commit of the engine's; a snapshot of the one is a snapshot of the other.
//!
//! ```
//! use bygone::Db;
//! use bygone_sql::Sql;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("bank");
//! let db = Db::open(&path)?;
//! let bank = db.sql("main")?;
//! bank.execute_batch("CREATE TABLE accounts(owner TEXT, balance INTEGER)")?;
//! bank.execute("INSERT INTO accounts VALUES ('alice', 100)", [])?;
//! db.snapshot_now("before-fees")?;
//! bank.execute("UPDATE accounts SET balance = balance - 5", [])?;
//!
//! let balance = |connection: &rusqlite::Connection| {
//!     connection.query_row("SELECT balance FROM accounts WHERE owner = 'alice'", [], |row| row.get::<_, i64>(0))
//! };
//! assert_eq!(balance(&bank)?, 95);
//! assert_eq!(balance(&db.sql_as_of("main", "before-fees")?)?, 100);
//!
//! // What changed, with the columns of the table.
//! bank.execute_batch("CREATE VIRTUAL TABLE temp.fees USING bygone_diff(accounts, 'before-fees', now)")?;
//! let fees = bank.query_row("SELECT sum(old_balance - balance) FROM fees", [], |row| row.get::<_, i64>(0))?;
//! assert_eq!(fees, 5);
//! # Ok(())
//! # }
//! ```
//!
//! What else there is in SQL (`snapshot_now`, `PRAGMA as_of`, `ATTACH` of the past, `bygone_snapshots`, `bygone_diff`,
//! `bygone_history`) is the same here and in every other host that has loaded the extension: `docs/sql.md` describes
//! it. [`execute`] and [`run`] add `COMMIT WITH SNAPSHOT` and `SELECT AS OF`. [`import_file`] and [`export_file`] take
//! whole databases in from SQLite's files, and out again.
#![deny(unsafe_op_in_unsafe_fn)]
#![deny(missing_docs)]

mod error;
mod files;
mod host;
mod run;
mod sets;
mod statements;

use std::os::unix::ffi::OsStrExt;

use bygone::{Db, SnapshotRef};
use bygone_sql_core::directory::{self, Handle};
use bygone_sql_core::{NUMBER_PARAMETER, failure, push_escaped};
pub use bygone_sql_core::{SetProgress, SetStats};
pub use error::{Error, Result};
pub use files::{Imported, export_file, import_file};
pub use host::register;
pub use run::{execute, run};
use rusqlite::{Connection, OpenFlags};
pub use sets::{on_set_progress, set_stats, share_sets};
pub use statements::is_complete;

/// The SQL databases of a Bygone database.
pub trait Sql {
    /// A connection to the SQL database of this name, made when it is first written to. Any number of connections, on
    /// any threads, may be open to it.
    ///
    /// Its pages lie in the table `sql/NAME`. The Bygone database stays open as long as the connection. Connections
    /// that are opened elsewhere in the program by the path of its directory (`file:DIR?vfs=bygone`) share it.
    ///
    /// # Errors
    /// If the name is empty or longer than a table's may be; as for opening any connection.
    fn sql(&self, name: &str) -> Result<Connection>;

    /// A connection to that SQL database as it was, for reading only: as of whatever [`Db::as_of`] takes. It reads that
    /// state for as long as it is open.
    ///
    /// # Errors
    /// If there is no such snapshot, or it cannot be read; if there was no such SQL database.
    fn sql_as_of(&self, name: &str, snapshot: impl Into<SnapshotRef>) -> Result<Connection>;
}

impl Sql for Db {
    fn sql(&self, name: &str) -> Result<Connection> {
        let how = if self.is_read_only() {
            OpenFlags::SQLITE_OPEN_READ_ONLY
        } else {
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
        };
        open(self, name, None, how)
    }

    fn sql_as_of(&self, name: &str, snapshot: impl Into<SnapshotRef>) -> Result<Connection> {
        let as_of = match snapshot.into() {
            SnapshotRef::Id(id) => format!("id:{id}"),
            SnapshotRef::Name(name) => format!("name:{name}"),
            SnapshotRef::Seq(seq) => format!("seq:{seq}"),
            SnapshotRef::Time(time) => format!("time:{}", bygone_sql_core::written_time(time)),
        };
        open(self, name, Some(&as_of), OpenFlags::SQLITE_OPEN_READ_ONLY)
    }
}

fn open(db: &Db, name: &str, as_of: Option<&str>, how: OpenFlags) -> Result<Connection> {
    register()?;
    // Until the connection has its own share.
    let directory: Handle = directory::share(db);
    let mut uri = "file:".to_owned();
    let path = std::path::absolute(db.path()).unwrap_or_else(|_| db.path().to_owned());
    push_escaped(&mut uri, path.as_os_str().as_bytes());
    let number = directory.number.to_string();
    let number_parameter = NUMBER_PARAMETER.to_string_lossy();
    let mut parameters = vec![("vfs", "bygone"), ("db", name), (&*number_parameter, &number)];
    parameters.extend(as_of.map(|as_of| ("as_of", as_of)));
    for (index, (parameter, value)) in parameters.into_iter().enumerate() {
        uri.push(if index == 0 { '?' } else { '&' });
        uri.push_str(parameter);
        uri.push('=');
        push_escaped(&mut uri, value.as_bytes());
    }
    failure::take_last();
    let flags = how | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(&uri, flags).map_err(Error::of)
}
