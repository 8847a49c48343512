//! SQLite, with a write-ahead log. In suite `snapshots` only.
//!
//! A snapshot is a read transaction: `BEGIN`, which takes nothing yet, a statement that looks at the table and so takes
//! the read mark, and at the end `COMMIT`. A connection and its prepared statements are kept by their thread. Commits
//! are those of `synchronous=OFF`: handed to the operating system.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, Once, PoisonError};

use anyhow::{Result, bail};
use libsqlite3_sys as ffi;

use super::snapshots::{Held, Opening, Snapshots, Taker};
use crate::data::{Key, Record};

/// A connection for each: a thousand are two thousand open files.
const HELD_MAX: usize = 1000;

/// Writers only wait for each other here, and for the end of a checkpoint.
const BUSY_MILLIS: i32 = 60_000;

pub struct Sqlite {
    path: PathBuf,
    cache_kib: usize,
    writer: Mutex<Connection>,
}

impl Sqlite {
    pub fn open(dir: &Path, opening: Opening) -> Result<Sqlite> {
        static CONFIGURED: Once = Once::new();
        // SAFETY: before the library's first use. Its manual names counting memory, which takes a mutex at each
        // allocation, as the first thing to switch off.
        CONFIGURED.call_once(|| unsafe {
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0);
        });
        let path = dir.join("sqlite");
        let cache_kib = opening.cache_bytes / 1024;
        let writer = Connection::open(&path, cache_kib)?;
        writer.run(c"CREATE TABLE IF NOT EXISTS bench (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")?;
        drop(writer);
        // The statements can be prepared now that the table is there.
        let writer = Mutex::new(Connection::open(&path, cache_kib)?);
        Ok(Sqlite { path, cache_kib, writer })
    }
}

impl Snapshots for Sqlite {
    fn put(&self, records: &[Record]) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let statements = writer.statements()?;
        statements.begin_write.run()?;
        for Record { key, value } in records {
            statements.put.bind(1, key)?;
            statements.put.bind(2, value)?;
            statements.put.run()?;
        }
        statements.commit.run()
    }

    fn settle(&self) -> Result<()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).run(c"PRAGMA wal_checkpoint(TRUNCATE)")
    }

    fn data_files(&self) -> &'static [&'static str] {
        &["sqlite", "sqlite-wal"]
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        let mut connection = Connection::open(&self.path, self.cache_kib)?;
        connection.statements()?;
        Ok(Box::new(OneConnection { of: self, connection }))
    }

    fn held_max(&self) -> usize {
        HELD_MAX
    }

    fn can_move(&self) -> bool {
        false
    }
}

struct OneConnection<'e> {
    of: &'e Sqlite,
    connection: Connection,
}

impl<'e> Taker<'e> for OneConnection<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        let statements = self.connection.statements()?;
        for _ in 0..count {
            statements.begin_read()?;
            statements.commit.run()?;
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let statements = self.connection.statements()?;
        let mut bytes = 0;
        for key in keys {
            // The get takes the read mark.
            statements.begin.run()?;
            bytes += statements.get(key, |value| value.len() as u64)?.unwrap_or(0);
            statements.commit.run()?;
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let statements = self.connection.statements()?;
        statements.begin_read()?;
        let value = statements.get(key, <[u8]>::to_vec)?;
        statements.commit.run()?;
        Ok(value)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let mut connections = Vec::new();
        for _ in 0..count {
            let mut connection = Connection::open(&self.of.path, 0)?;
            connection.statements()?.begin_read()?;
            connections.push(connection);
        }
        Ok(Box::new(Begun(connections)))
    }
}

struct Begun(Vec<Connection>);

impl Held for Begun {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        match &self.0[index].statements {
            Some(statements) => statements.get(key, <[u8]>::to_vec),
            None => bail!("it was begun with its statements"),
        }
    }
}

/// A connection; whoever has it uses it alone.
struct Connection {
    db: *mut ffi::sqlite3,
    /// Prepared at the first use; finalized before the connection is closed.
    statements: Option<Statements>,
}

// SAFETY: a connection may go from thread to thread as long as one at a time uses it.
unsafe impl Send for Connection {}

impl Connection {
    fn open(path: &Path, cache_kib: usize) -> Result<Connection> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_NOMUTEX;
        let mut db = null_mut();
        // SAFETY: the path is a C string, and the answer goes to a place of its type.
        let code = unsafe { ffi::sqlite3_open_v2(path.as_ptr(), &mut db, flags, std::ptr::null()) };
        let connection = Connection { db, statements: None };
        check(db, code)?;
        // SAFETY: the connection is open.
        unsafe { ffi::sqlite3_busy_timeout(db, BUSY_MILLIS) };
        connection.run(c"PRAGMA journal_mode=WAL")?;
        connection.run(c"PRAGMA synchronous=OFF")?;
        if cache_kib > 0 {
            connection.run(&CString::new(format!("PRAGMA cache_size=-{cache_kib}"))?)?;
        }
        Ok(connection)
    }

    fn statements(&mut self) -> Result<&Statements> {
        if self.statements.is_none() {
            self.statements = Some(Statements::prepare(self.db)?);
        }
        match &self.statements {
            Some(statements) => Ok(statements),
            None => bail!("just made"),
        }
    }

    fn run(&self, sql: &CStr) -> Result<()> {
        // SAFETY: the connection is open and the text a C string; no callback.
        let code = unsafe { ffi::sqlite3_exec(self.db, sql.as_ptr(), None, null_mut(), null_mut()) };
        check(self.db, code)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.statements = None;
        // SAFETY: its statements are finalized, and nobody has it after this.
        unsafe { ffi::sqlite3_close(self.db) };
    }
}

struct Statements {
    begin: Statement,
    begin_write: Statement,
    commit: Statement,
    /// Takes the read mark, and looks at no more than the table's first record.
    look: Statement,
    get: Statement,
    put: Statement,
}

impl Statements {
    fn prepare(db: *mut ffi::sqlite3) -> Result<Statements> {
        Ok(Statements {
            begin: Statement::prepare(db, c"BEGIN")?,
            begin_write: Statement::prepare(db, c"BEGIN IMMEDIATE")?,
            commit: Statement::prepare(db, c"COMMIT")?,
            look: Statement::prepare(db, c"SELECT 1 FROM bench LIMIT 1")?,
            get: Statement::prepare(db, c"SELECT value FROM bench WHERE key = ?1")?,
            put: Statement::prepare(db, c"INSERT OR REPLACE INTO bench VALUES (?1, ?2)")?,
        })
    }

    fn begin_read(&self) -> Result<()> {
        self.begin.run()?;
        self.look.run()
    }

    fn get<T>(&self, key: &Key, read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.get.bind(1, key)?;
        let found = self.get.step()? == ffi::SQLITE_ROW;
        let value = found.then(|| {
            // SAFETY: the statement stands on a row; what the column points at stays until it is reset.
            let bytes = unsafe {
                let data = ffi::sqlite3_column_blob(self.get.0, 0);
                let size = ffi::sqlite3_column_bytes(self.get.0, 0);
                if size == 0 { &[] } else { std::slice::from_raw_parts(data.cast::<u8>(), size as usize) }
            };
            read(bytes)
        });
        self.get.reset();
        Ok(value)
    }
}

struct Statement(*mut ffi::sqlite3_stmt);

impl Statement {
    fn prepare(db: *mut ffi::sqlite3, sql: &CStr) -> Result<Statement> {
        let mut statement = null_mut();
        let flags = ffi::SQLITE_PREPARE_PERSISTENT;
        // SAFETY: the connection is open and the text a C string.
        let code =
            unsafe { ffi::sqlite3_prepare_v3(db, sql.as_ptr(), -1, flags, &mut statement, null_mut()) };
        check(db, code)?;
        Ok(Statement(statement))
    }

    /// The bytes must stay where they are until the statement has run.
    fn bind(&self, place: i32, bytes: &[u8]) -> Result<()> {
        // SAFETY: the statement is reset; SQLite reads the bytes while the statement runs, which the callers see to.
        let code = unsafe {
            let data = bytes.as_ptr().cast();
            ffi::sqlite3_bind_blob(self.0, place, data, bytes.len() as i32, ffi::SQLITE_STATIC())
        };
        self.check(code)
    }

    fn step(&self) -> Result<i32> {
        // SAFETY: the statement is prepared, and its connection is this thread's at the moment.
        let code = unsafe { ffi::sqlite3_step(self.0) };
        if code != ffi::SQLITE_ROW && code != ffi::SQLITE_DONE {
            self.reset();
            self.check(code)?;
        }
        Ok(code)
    }

    fn reset(&self) {
        // SAFETY: as in `step`. Its code is that of the step before.
        unsafe { ffi::sqlite3_reset(self.0) };
    }

    fn run(&self) -> Result<()> {
        self.step()?;
        self.reset();
        Ok(())
    }

    fn check(&self, code: i32) -> Result<()> {
        if code == ffi::SQLITE_OK {
            return Ok(());
        }
        // SAFETY: the statement is prepared.
        check(unsafe { ffi::sqlite3_db_handle(self.0) }, code)
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: nobody has it after this, and its connection is still open.
        unsafe { ffi::sqlite3_finalize(self.0) };
    }
}

fn check(db: *mut ffi::sqlite3, code: i32) -> Result<()> {
    if code == ffi::SQLITE_OK {
        return Ok(());
    }
    // SAFETY: SQLite has a text even for a connection that could not be opened.
    let text = unsafe { CStr::from_ptr(ffi::sqlite3_errmsg(db)) };
    bail!("SQLite: {} ({code})", text.to_string_lossy())
}
