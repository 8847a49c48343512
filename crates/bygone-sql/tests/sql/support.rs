//! What the tests share.
//!
//! Owns: databases that go when they are dropped, and short ways to ask. May call: the public API.

use std::ffi::c_int;
use std::path::PathBuf;

use bygone::{Db, Options};
use bygone_sql::Sql;
use rusqlite::{Connection, ErrorCode};
use tempfile::TempDir;

#[path = "../../../bygone/tests/support/random.rs"]
mod random;

pub use random::Random;

/// A database in a directory of its own.
pub struct Place {
    pub db: Db,
    pub directory: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Self::with(Options::new())
    }

    pub fn with(options: Options) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let db = options.open(directory.path().join("bank")).unwrap();
        Place { db, directory }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("bank")
    }

    /// A connection to the SQL database `main`.
    pub fn sql(&self) -> Connection {
        self.db.sql("main").unwrap()
    }

    /// The URI of the directory, with these parameters behind the VFS.
    pub fn uri(&self, parameters: &str) -> String {
        format!("file:{}?vfs=bygone{parameters}", self.path().display())
    }
}

/// Those of a database so small that it soon flushes and merges, without threads of its own.
pub fn small_options() -> Options {
    Options::new().background(false).memtable_bytes(64 << 10).log_segment_bytes(64 << 10).cache_bytes(1 << 20)
}

/// Asks SQLite to leave so many bytes at the end of each page of the main database.
pub fn reserve(connection: &Connection, mut bytes: c_int) {
    // SAFETY: the connection is open, and the control reads and writes one number.
    let code = unsafe {
        rusqlite::ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            rusqlite::ffi::SQLITE_FCNTL_RESERVE_BYTES,
            (&raw mut bytes).cast(),
        )
    };
    assert_eq!(code, 0);
}

/// How many bytes are reserved in the SQL database in a table, by the header in its record 0.
pub fn reserved(db: &Db, table: &str) -> Option<u8> {
    let table = db.table(table).unwrap();
    db.snapshot().get_with(&table, [0; 4], |record| record[17 + 20]).unwrap()
}

/// The number that a query gives.
pub fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The text that a query gives.
pub fn text(connection: &Connection, sql: &str) -> String {
    connection.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// All rows of a query, as text.
pub fn rows(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let count = statement.column_count();
    let mut rows = statement.raw_query();
    let mut out = Vec::new();
    while let Some(row) = rows.next().unwrap_or_else(|error| panic!("{sql}: {error}")) {
        let values: Vec<String> = (0..count).map(|i| format!("{:?}", row.get_ref(i).unwrap())).collect();
        out.push(values.join("|"));
    }
    out
}

pub fn run(connection: &Connection, sql: &str) {
    connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The code and the extended code with which a script fails.
pub fn failure(connection: &Connection, sql: &str) -> (ErrorCode, i32, String) {
    match connection.execute_batch(sql) {
        Err(rusqlite::Error::SqliteFailure(error, words)) => {
            (error.code, error.extended_code, words.unwrap_or_default())
        }
        other => panic!("{sql}: {other:?}"),
    }
}

/// Whether SQLite finds the whole database sound.
pub fn check(connection: &Connection) {
    assert_eq!(rows(connection, "PRAGMA integrity_check"), ["Text([111, 107])"]);
}
