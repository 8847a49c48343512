//! Connections of our own to the host's SQLite, and prepared statements.
//!
//! Owns: [`Connection`], [`Statement`]. Promises: each is closed once; a failure has SQLite's code and words, or the
//! words of what it comes from. May call: `host`, `failure`, `btree` for its values.

use std::ffi::{CStr, CString, c_int};

use crate::api::{Api, text, transient};
use crate::btree::Value;
use crate::failure::{self, Failure, Result};
use crate::ffi::*;
use crate::host::Host;

/// A connection that we have opened. One thread at a time uses it.
pub(crate) struct Connection {
    host: &'static Host,
    raw: *mut sqlite3,
}

impl Connection {
    /// Opens a database, with the default VFS unless the URI names another.
    pub fn open(host: &'static Host, uri: &str) -> Result<Connection> {
        let name = CString::new(uri).map_err(|_| Failure::new(SQLITE_CANTOPEN, "a name with a NUL in it"))?;
        let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
        // Where caches are shared, another moment would be read in the application's.
        let flags = flags | SQLITE_OPEN_PRIVATECACHE;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the name ends with a NUL. What is opened is closed by the drop, also after a failure.
        let code = unsafe { (host.api.open_v2)(name.as_ptr(), &mut raw, flags, std::ptr::null()) };
        let connection = Connection { host, raw };
        if code == SQLITE_OK {
            return Ok(connection);
        }
        Err(if raw.is_null() { Failure::code(code) } else { failed(host, raw) })
    }

    /// Whether connections of this SQLite may be used by several threads at one time, each its own: it can be built,
    /// and configured, for one thread alone.
    pub fn may_be_many_threads(host: &Host) -> bool {
        // SAFETY: it answers how it was built.
        if unsafe { (host.api.xthreadsafe)() } == 0 {
            return false;
        }
        let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY | SQLITE_OPEN_FULLMUTEX;
        let mut raw = std::ptr::null_mut();
        // A connection that asks for a mutex has none only where nothing has.
        // SAFETY: the name ends with a NUL; what is opened is closed, also after a failure.
        unsafe {
            let code = (host.api.open_v2)(c":memory:".as_ptr(), &mut raw, flags, std::ptr::null());
            let is_guarded = code == SQLITE_OK && !(host.api.db_mutex)(raw).is_null();
            (host.api.close)(raw);
            is_guarded
        }
    }

    /// SQLite's address of it.
    pub fn raw(&self) -> *mut sqlite3 {
        self.raw
    }

    /// The name of a column's collation.
    pub fn collation(&self, schema: &CStr, table: &str, column: &str) -> String {
        let (Ok(table), Ok(column)) = (CString::new(table), CString::new(column)) else {
            return String::new();
        };
        let mut name = std::ptr::null();
        let none = std::ptr::null_mut();
        // SAFETY: the connection is open, the names end with a NUL; what is not wanted is not written.
        let code = unsafe {
            (self.host.api.table_column_metadata)(
                self.raw,
                schema.as_ptr(),
                table.as_ptr(),
                column.as_ptr(),
                std::ptr::null_mut(),
                &mut name,
                none,
                none,
                none,
            )
        };
        // SAFETY: the name stays as long as the schema.
        if code == SQLITE_OK { unsafe { text(name) }.unwrap_or_default() } else { String::new() }
    }

    /// Prepares the one statement that a text has.
    pub fn prepare(&self, sql: &str) -> Result<Statement> {
        // SAFETY: it is open as long as `self`, which is not closed before its statements are finalized.
        unsafe { Statement::prepare(self.host, self.raw, sql) }
    }

    /// Runs one statement to its end.
    pub fn run(&self, sql: &str) -> Result<()> {
        self.prepare(sql)?.run()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: it is closed once, after its statements, which whoever has both drops first: SQLite would refuse.
        unsafe { (self.host.api.close)(self.raw) };
    }
}

/// The failure that a connection has just had.
fn failed(host: &Host, connection: *mut sqlite3) -> Failure {
    // SAFETY: the connection is open.
    let (code, words) = unsafe {
        ((host.api.extended_errcode)(connection), text((host.api.errmsg)(connection)).unwrap_or_default())
    };
    // SQLite has no words of its own for what happens below it.
    Failure::new(code, failure::take_last().unwrap_or(words))
}

/// A prepared statement.
pub(crate) struct Statement {
    host: &'static Host,
    connection: *mut sqlite3,
    raw: *mut sqlite3_stmt,
}

impl Statement {
    /// Prepares the one statement that a text has.
    ///
    /// # Safety
    /// The connection is open, stays open as long as the statement, and is used by this thread alone.
    pub unsafe fn prepare(host: &'static Host, connection: *mut sqlite3, sql: &str) -> Result<Statement> {
        // SAFETY: as promised.
        let (statement, rest) = unsafe { Statement::first(host, connection, sql) }?;
        let Some(statement) = statement else {
            return Err(Failure::new(SQLITE_ERROR, "there is no statement"));
        };
        // SAFETY: as promised.
        match unsafe { Statement::first(host, connection, rest) } {
            Ok((None, _)) => Ok(statement),
            _ => Err(Failure::new(SQLITE_ERROR, "there is more than one statement")),
        }
    }

    /// # Safety
    /// As [`prepare`](Statement::prepare).
    unsafe fn first<'t>(
        host: &'static Host,
        connection: *mut sqlite3,
        sql: &'t str,
    ) -> Result<(Option<Statement>, &'t str)> {
        let bytes = c_int::try_from(sql.len()).map_err(|_| Failure::code(SQLITE_TOOBIG))?;
        let start: *const std::ffi::c_char = sql.as_ptr().cast();
        let (mut raw, mut tail) = (std::ptr::null_mut(), start);
        // SAFETY: as promised; the text has so many bytes.
        let code = unsafe { (host.api.prepare_v2)(connection, start, bytes, &mut raw, &mut tail) };
        if code != SQLITE_OK {
            return Err(failed(host, connection));
        }
        let used = (tail as usize).wrapping_sub(start as usize);
        let statement = (!raw.is_null()).then_some(Statement { host, connection, raw });
        Ok((statement, sql.get(used..).unwrap_or_default()))
    }

    /// Whether there is another row.
    pub fn step(&mut self) -> Result<bool> {
        // SAFETY: the statement is not finalized before the drop.
        match unsafe { (self.host.api.step)(self.raw) } {
            SQLITE_ROW => Ok(true),
            SQLITE_DONE => Ok(false),
            _ => Err(failed(self.host, self.connection)),
        }
    }

    /// Ends a run, so that another may begin.
    pub fn reset(&mut self) {
        // SAFETY: as in `step`. It answers again what the last step did.
        unsafe { (self.host.api.reset)(self.raw) };
    }

    /// Steps to the end.
    pub fn run(&mut self) -> Result<()> {
        while self.step()? {}
        self.reset();
        Ok(())
    }

    /// Whether it changes no database.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: as in `step`.
        unsafe { (self.host.api.stmt_readonly)(self.raw) != 0 }
    }

    /// How many columns its rows have.
    pub fn column_count(&self) -> usize {
        // SAFETY: as in `step`.
        usize::try_from(unsafe { (self.host.api.column_count)(self.raw) }).unwrap_or(0)
    }

    /// The names of its columns.
    pub fn columns(&self) -> Vec<String> {
        let name = |column: usize| {
            // SAFETY: as in `step`; the name stays until the statement is used again.
            unsafe { text((self.host.api.column_name)(self.raw, column as c_int)) }.unwrap_or_default()
        };
        (0..self.column_count()).map(name).collect()
    }

    /// A value of the row that the last step found; valid until the next one.
    pub fn value(&self, column: usize) -> *mut sqlite3_value {
        // SAFETY: as in `step`; a column that is not there is NULL.
        unsafe { (self.host.api.column_value)(self.raw, column as c_int) }
    }

    /// A number of that row.
    pub fn number(&self, column: usize) -> i64 {
        // SAFETY: as in `value`.
        unsafe { (self.host.api.column_int64)(self.raw, column as c_int) }
    }

    /// A text of that row; of what is none, as SQLite has it as text.
    pub fn text(&self, column: usize) -> String {
        // SAFETY: as in `value`; a text ends with a NUL and stays until the value is used again.
        unsafe { text((self.host.api.value_text)(self.value(column)).cast()) }.unwrap_or_default()
    }

    /// Sets a parameter, counted from 1, to a value as it is.
    pub fn bind_value(&mut self, parameter: usize, value: *mut sqlite3_value) -> Result<()> {
        // SAFETY: as in `step`; the value, which is one of a call that goes on or of a row, is copied.
        let code = unsafe { (self.host.api.bind_value)(self.raw, parameter as c_int, value) };
        self.bound(code)
    }

    /// Sets a parameter, counted from 1.
    pub fn bind_number(&mut self, parameter: usize, number: i64) -> Result<()> {
        // SAFETY: as in `step`.
        let code = unsafe { (self.host.api.bind_int64)(self.raw, parameter as c_int, number) };
        self.bound(code)
    }

    /// Sets a parameter, counted from 1, to a value that was read in a page; texts are in the database's encoding.
    pub fn bind(&mut self, parameter: usize, value: &Value, encoding: u8) -> Result<()> {
        let (api, raw, parameter) = (&self.host.api, self.raw, parameter as c_int);
        // SAFETY: as in `step`; what is pointed to has so many bytes, and is copied.
        let code = unsafe {
            match value {
                Value::Null => (api.bind_null)(raw, parameter),
                Value::Integer(number) => (api.bind_int64)(raw, parameter, *number),
                Value::Real(number) => (api.bind_double)(raw, parameter, *number),
                Value::Text(bytes) => {
                    let count = bytes.len() as u64;
                    (api.bind_text64)(raw, parameter, bytes.as_ptr().cast(), count, transient(), encoding)
                }
                Value::Blob(bytes) => {
                    (api.bind_blob64)(raw, parameter, bytes.as_ptr().cast(), bytes.len() as u64, transient())
                }
            }
        };
        self.bound(code)
    }

    /// Sets parameters, from `first` on, to the values of a row, as they are.
    pub fn bind_row(&mut self, first: usize, row: &Row<'_>) -> Result<()> {
        for column in 0..row.len() {
            self.bind_value(first + column, row.value(column))?;
        }
        Ok(())
    }

    /// Whether a value of the row is the same as one of another's, in type and content.
    pub fn has_same(&self, column: usize, other: &Statement, other_column: usize) -> bool {
        let (a, b) = (self.value(column), other.value(other_column));
        let api = &self.host.api;
        // SAFETY: both are values of rows that were found last.
        unsafe {
            let kind = (api.value_type)(a);
            kind == (api.value_type)(b)
                && match kind {
                    SQLITE_NULL => true,
                    SQLITE_INTEGER => (api.value_int64)(a) == (api.value_int64)(b),
                    SQLITE_FLOAT => (api.value_double)(a).to_bits() == (api.value_double)(b).to_bits(),
                    kind => bytes(api, a, kind) == bytes(api, b, kind),
                }
        }
    }

    /// Whether a value of the row is NULL.
    pub fn is_null(&self, column: usize) -> bool {
        // SAFETY: as in `value`.
        unsafe { (self.host.api.value_type)(self.value(column)) == SQLITE_NULL }
    }

    fn bound(&self, code: c_int) -> Result<()> {
        if code == SQLITE_OK { Ok(()) } else { Err(failed(self.host, self.connection)) }
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: it is finalized once.
        unsafe { (self.host.api.finalize)(self.raw) };
    }
}

/// A value that outlives the row in which it was found.
pub(crate) struct Kept {
    host: &'static Host,
    raw: *mut sqlite3_value,
}

// SAFETY: it is memory of its own, that of no connection, and who has it is the only one.
unsafe impl Send for Kept {}

impl Kept {
    /// A copy of a value of a call that goes on or of a row.
    pub fn of(host: &'static Host, value: *mut sqlite3_value) -> Result<Kept> {
        // SAFETY: as promised; the copy is freed by the drop.
        let raw = unsafe { (host.api.value_dup)(value) };
        if raw.is_null() { Err(Failure::code(SQLITE_NOMEM)) } else { Ok(Kept { host, raw }) }
    }

    /// The value, for as long as this lives.
    pub fn value(&self) -> *mut sqlite3_value {
        self.raw
    }

    /// How much memory it takes, roughly.
    pub fn bytes(&self) -> usize {
        const VALUE_BYTES: usize = 64;
        // SAFETY: the value is this one's. Of what is neither, the length would be that of it as text.
        let content = unsafe {
            match (self.host.api.value_type)(self.raw) {
                SQLITE_TEXT | SQLITE_BLOB => (self.host.api.value_bytes)(self.raw),
                _ => 0,
            }
        };
        VALUE_BYTES + usize::try_from(content).unwrap_or(0)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: it is freed once.
        unsafe { (self.host.api.value_free)(self.raw) };
    }
}

/// A row of values.
pub(crate) enum Row<'r> {
    /// What a statement's last step has found.
    Found(&'r Statement),
    Kept(&'r [Kept]),
}

impl Row<'_> {
    pub fn len(&self) -> usize {
        match self {
            Row::Found(statement) => statement.column_count(),
            Row::Kept(values) => values.len(),
        }
    }

    /// A value, which is there as long as the row.
    pub fn value(&self, column: usize) -> *mut sqlite3_value {
        match self {
            Row::Found(statement) => statement.value(column),
            Row::Kept(values) => values.get(column).map_or(std::ptr::null_mut(), Kept::value),
        }
    }
}

/// The bytes of a value that is a text or a blob.
///
/// # Safety
/// The value stays as it is as long as the bytes are used.
unsafe fn bytes<'v>(api: &Api, value: *mut sqlite3_value, kind: c_int) -> &'v [u8] {
    // SAFETY: as promised. The length is asked for behind the content, which may be converted.
    unsafe {
        let content: *const u8 = match kind {
            SQLITE_TEXT => (api.value_text)(value),
            _ => (api.value_blob)(value).cast(),
        };
        let count = usize::try_from((api.value_bytes)(value)).unwrap_or(0);
        if content.is_null() { &[] } else { std::slice::from_raw_parts(content, count) }
    }
}

/// A name as SQL has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The main database of a connection that we have opened.
pub(crate) const MAIN: &CStr = c"main";
