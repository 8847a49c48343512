//! Virtual tables: what SQLite calls of them.
//!
//! Owns: the callbacks, which all virtual tables share; a table of ours is a [`VirtualTable`]. Promises: a failure has
//! its words where SQLite finds them, and a panic ends here; whether a table's cursors are open is counted in the
//! connection's session. May call: `host`, `failure`, `session`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::text;
use crate::failure::{self, Failure, Result, shielded};
use crate::ffi::*;
use crate::host::Host;
use crate::session::Session;

/// A virtual table of a connection's.
pub(crate) trait VirtualTable: Sized + 'static {
    /// What tells tables apart that are made by the same code.
    type Kind: Sync + 'static;
    /// What a query finds in it.
    type Rows: Rows;

    /// Whether `CREATE VIRTUAL TABLE` makes more of them, beside the one that is there without it.
    const IS_CREATABLE: bool;

    /// The table, and the statement that declares its columns.
    ///
    /// # Safety
    /// The connection is in a call of this thread's.
    unsafe fn connect(host: &'static Host, kind: &'static Self::Kind, made: &Made) -> Result<(Self, String)>;

    /// Decides which constraints [`find`](VirtualTable::find) is told. Answers whether there is a way at all.
    fn plan(&self, plan: &mut Plan<'_>) -> Result<bool>;

    /// What there is for a plan's number, and the values of the constraints that it took.
    ///
    /// # Safety
    /// As [`connect`](VirtualTable::connect); the values are those of the call.
    unsafe fn find(
        &self,
        host: &'static Host,
        number: c_int,
        values: &[*mut sqlite3_value],
    ) -> Result<Self::Rows>;
}

/// Rows, one after another.
pub(crate) trait Rows {
    /// Goes to the next one, at first to the first. Answers whether there is one.
    fn step(&mut self) -> Result<bool>;

    /// Gives the value of a column.
    ///
    /// # Safety
    /// The context is that of a call.
    unsafe fn answer(&self, host: &Host, context: *mut sqlite3_context, column: c_int);

    /// What the row is named by; its place if there is nothing better.
    fn rowid(&self) -> Option<i64> {
        None
    }
}

/// How a table comes to be.
pub(crate) struct Made {
    pub connection: *mut sqlite3,
    /// In which of the connection's databases.
    pub schema: String,
    /// What stands in parentheses behind the module's name, without quotes; `None` for the table that is there by
    /// itself.
    pub arguments: Option<Vec<String>>,
}

/// A query that is being planned.
pub(crate) struct Plan<'p> {
    info: &'p mut sqlite3_index_info,
    taken: c_int,
}

/// Whether the value is known that a column is to be equal to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Equal {
    No,
    /// In another order of the tables that are joined it would be.
    NotHere,
    Yes,
}

impl Plan<'_> {
    /// Asks for the value that a column is to be equal to: if there is one, it is the next that is told. Without
    /// `checked` SQLite does not compare once more.
    pub fn equal(&mut self, column: c_int, checked: bool) -> Equal {
        let mut found = Equal::No;
        for index in 0..usize::try_from(self.info.nConstraint).unwrap_or(0) {
            // SAFETY: both arrays have so many elements.
            let constraint = unsafe { &*self.info.aConstraint.add(index) };
            if constraint.iColumn != column || constraint.op != SQLITE_INDEX_CONSTRAINT_EQ {
                continue;
            }
            if constraint.usable == 0 {
                found = Equal::NotHere;
                continue;
            }
            self.taken += 1;
            // SAFETY: as above.
            let usage = unsafe { &mut *self.info.aConstraintUsage.add(index) };
            // Of two values for one column, SQLite checks the other.
            (usage.argvIndex, usage.omit) = (self.taken, u8::from(!checked));
            return Equal::Yes;
        }
        found
    }

    /// Asks for the arguments of a call, and for one more that may be missing. Answers whether they can be told here.
    ///
    /// # Errors
    /// `usage` if one that must be there is not.
    pub fn arguments(&mut self, arguments: &[c_int], optional: c_int, usage: &str) -> Result<bool> {
        for column in arguments {
            match self.equal(*column, false) {
                Equal::No => return Err(Failure::new(SQLITE_ERROR, usage)),
                Equal::NotHere => return Ok(false),
                Equal::Yes => {}
            }
        }
        Ok(self.equal(optional, false) != Equal::NotHere)
    }

    /// Whether the query uses a column.
    pub fn uses(&self, column: c_int) -> bool {
        self.info.colUsed & (1 << column.min(63)) != 0
    }

    /// Settles what [`VirtualTable::find`] is told, and what it costs.
    pub fn settle(&mut self, number: c_int, cost: f64, rows: i64) {
        (self.info.idxNum, self.info.estimatedCost, self.info.estimatedRows) = (number, cost, rows);
    }
}

/// Makes a table known to a connection.
///
/// # Safety
/// The connection is open.
pub(crate) unsafe fn register<T: VirtualTable>(
    host: &Host,
    connection: *mut sqlite3,
    name: &CStr,
    kind: &'static T::Kind,
) -> c_int {
    let data = std::ptr::from_ref(kind).cast_mut().cast();
    // SAFETY: the connection is open; the module and what it is told stay for ever.
    unsafe { (host.api.create_module_v2)(connection, name.as_ptr(), Methods::<T>::MODULE, data, None) }
}

struct Methods<T>(PhantomData<T>);

impl<T: VirtualTable> Methods<T> {
    const MODULE: &'static sqlite3_module = &sqlite3_module {
        iVersion: 0,
        // Where this is none or the same as the next, a table is there without `CREATE VIRTUAL TABLE`.
        xCreate: if T::IS_CREATABLE { Some(connect::<T>) } else { None },
        xConnect: Some(connect::<T>),
        xBestIndex: Some(best_index::<T>),
        xDisconnect: Some(disconnect::<T>),
        xDestroy: if T::IS_CREATABLE { Some(disconnect::<T>) } else { None },
        xOpen: Some(open::<T>),
        xClose: Some(close::<T>),
        xFilter: Some(filter::<T>),
        xNext: Some(next::<T>),
        xEof: Some(eof::<T>),
        xColumn: Some(column::<T>),
        xRowid: Some(rowid::<T>),
        xUpdate: None,
        xBegin: None,
        xSync: None,
        xCommit: None,
        xRollback: None,
        xFindFunction: None,
        xRename: None,
        xSavepoint: None,
        xRelease: None,
        xRollbackTo: None,
        xShadowName: None,
    };
}

#[repr(C)]
struct Table<T> {
    base: sqlite3_vtab,
    connection: *mut sqlite3,
    table: T,
}

#[repr(C)]
struct Cursor<T: VirtualTable> {
    base: sqlite3_vtab_cursor,
    /// `None` behind the last row.
    rows: Option<T::Rows>,
    at: i64,
    session: Option<Arc<Session>>,
}

/// An argument of a module's: SQLite passes it as it was written.
fn unquoted(argument: &str) -> String {
    let argument = argument.trim();
    let Some(first @ ('\'' | '"' | '`' | '[')) = argument.chars().next() else { return argument.to_owned() };
    let last = if first == '[' { ']' } else { first };
    let Some(inner) = argument[1..].strip_suffix(last) else { return argument.to_owned() };
    if first == '[' { inner.to_owned() } else { inner.replace(&format!("{last}{last}"), &last.to_string()) }
}

/// The words of a failure, for who asked.
///
/// # Safety
/// `out` is null, or a text in SQLite's memory.
unsafe fn leave_words(host: &Host, out: &mut *mut c_char, words: &str) {
    // SAFETY: as promised.
    unsafe { (host.api.free)((*out).cast()) };
    *out = host.api.text(words);
}

unsafe extern "C" fn connect<T: VirtualTable>(
    connection: *mut sqlite3,
    kind: *mut c_void,
    count: c_int,
    words: *const *const c_char,
    out: *mut *mut sqlite3_vtab,
    error: *mut *mut c_char,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: what SQLite passes: the names of the module, of the database and of the table, then the arguments. The
    // kind is what `register` was given.
    unsafe {
        let kind = &*kind.cast::<T::Kind>();
        let words = std::slice::from_raw_parts(words, usize::try_from(count).unwrap_or(0));
        let words: Vec<String> = words.iter().map(|word| text(*word).unwrap_or_default()).collect();
        let is_there_by_itself = words.len() == 3 && words[0] == words[2];
        let made = Made {
            connection,
            schema: words.get(1).cloned().unwrap_or_default(),
            arguments: (!is_there_by_itself)
                .then(|| words.get(3..).unwrap_or_default().iter().map(|word| unquoted(word)).collect()),
        };
        failure::take_last();
        let mut failed = None;
        let code = shielded(&host.api, || {
            let connected = T::connect(host, kind, &made).and_then(|(table, declaration)| {
                let declaration = CString::new(declaration)
                    .map_err(|_| Failure::new(SQLITE_ERROR, "the name of a column has a NUL in it"))?;
                Ok((table, (host.api.declare_vtab)(connection, declaration.as_ptr())))
            });
            match connected {
                Ok((table, SQLITE_OK)) => {
                    let base =
                        sqlite3_vtab { pModule: std::ptr::null(), nRef: 0, zErrMsg: std::ptr::null_mut() };
                    *out = Box::into_raw(Box::new(Table { base, connection, table })).cast();
                }
                Ok((_, code)) => return Ok(code),
                Err(failure) => failed = Some(failure),
            }
            Ok(SQLITE_OK)
        });
        let Some(failure) = failed else { return code };
        if !error.is_null() {
            leave_words(host, &mut *error, &failure.text);
        }
        failure.code
    }
}

unsafe extern "C" fn disconnect<T: VirtualTable>(table: *mut sqlite3_vtab) -> c_int {
    // SAFETY: `connect` made it; SQLite calls this once.
    drop(unsafe { Box::from_raw(table.cast::<Table<T>>()) });
    SQLITE_OK
}

/// Runs a step of a table, and leaves the words of its failure.
///
/// # Safety
/// `connect` made the table.
unsafe fn moved<T: VirtualTable>(
    table: *mut sqlite3_vtab,
    step: impl FnOnce(&'static Host, &Table<T>) -> Result<c_int>,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: as promised.
    unsafe {
        let mut failed = None;
        let code = shielded(&host.api, || match step(host, &*table.cast::<Table<T>>()) {
            Ok(code) => Ok(code),
            Err(failure) => {
                failed = Some(failure);
                Ok(SQLITE_OK)
            }
        });
        let Some(failure) = failed else { return code };
        leave_words(host, &mut (*table).zErrMsg, &failure.text);
        failure.code
    }
}

unsafe extern "C" fn best_index<T: VirtualTable>(
    table: *mut sqlite3_vtab,
    info: *mut sqlite3_index_info,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        moved::<T>(table, |_, table| {
            let mut plan = Plan { info: &mut *info, taken: 0 };
            Ok(if table.table.plan(&mut plan)? { SQLITE_OK } else { SQLITE_CONSTRAINT })
        })
    }
}

unsafe extern "C" fn open<T: VirtualTable>(
    table: *mut sqlite3_vtab,
    out: *mut *mut sqlite3_vtab_cursor,
) -> c_int {
    // SAFETY: what SQLite passes; `connect` made the table.
    unsafe {
        let session = Session::of((*table.cast::<Table<T>>()).connection);
        if let Some(session) = &session {
            // Relaxed: who compares is in a call of the same connection.
            session.cursors.fetch_add(1, Ordering::Relaxed);
        }
        let base = sqlite3_vtab_cursor { pVtab: std::ptr::null_mut() };
        *out = Box::into_raw(Box::new(Cursor::<T> { base, rows: None, at: 0, session })).cast();
    }
    SQLITE_OK
}

unsafe extern "C" fn close<T: VirtualTable>(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it; SQLite calls this once.
    let cursor = unsafe { Box::from_raw(cursor.cast::<Cursor<T>>()) };
    if let Some(session) = &cursor.session {
        // Relaxed: as in `open`.
        session.cursors.fetch_sub(1, Ordering::Relaxed);
    }
    SQLITE_OK
}

impl<T: VirtualTable> Cursor<T> {
    fn step(&mut self) -> Result<c_int> {
        self.at += 1;
        if let Some(rows) = &mut self.rows
            && !rows.step()?
        {
            self.rows = None;
        }
        Ok(SQLITE_OK)
    }
}

unsafe extern "C" fn filter<T: VirtualTable>(
    cursor: *mut sqlite3_vtab_cursor,
    number: c_int,
    _text: *const c_char,
    count: c_int,
    values: *mut *mut sqlite3_value,
) -> c_int {
    // SAFETY: what SQLite passes; `open` made the cursor, and SQLite has set its table.
    unsafe {
        moved::<T>((*cursor).pVtab, |host, table| {
            let cursor = &mut *cursor.cast::<Cursor<T>>();
            cursor.rows = None;
            failure::take_last();
            let values = match usize::try_from(count).unwrap_or(0) {
                0 => &[],
                count => std::slice::from_raw_parts(values, count),
            };
            cursor.rows = Some(table.table.find(host, number, values)?);
            cursor.at = 0;
            cursor.step()
        })
    }
}

unsafe extern "C" fn next<T: VirtualTable>(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: as in `filter`.
    unsafe { moved::<T>((*cursor).pVtab, |_, _| (*cursor.cast::<Cursor<T>>()).step()) }
}

unsafe extern "C" fn eof<T: VirtualTable>(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it.
    c_int::from(unsafe { (*cursor.cast::<Cursor<T>>()).rows.is_none() })
}

unsafe extern "C" fn column<T: VirtualTable>(
    cursor: *mut sqlite3_vtab_cursor,
    context: *mut sqlite3_context,
    column: c_int,
) -> c_int {
    // SAFETY: as in `filter`; the context is that of this call.
    unsafe {
        moved::<T>((*cursor).pVtab, |host, _| {
            if let Some(rows) = &(*cursor.cast::<Cursor<T>>()).rows {
                rows.answer(host, context, column);
            }
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn rowid<T: VirtualTable>(cursor: *mut sqlite3_vtab_cursor, out: *mut i64) -> c_int {
    // SAFETY: `open` made the cursor; what SQLite passes.
    unsafe {
        let cursor = &*cursor.cast::<Cursor<T>>();
        *out = cursor.rows.as_ref().and_then(Rows::rowid).unwrap_or(cursor.at);
    }
    SQLITE_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lose_their_quotes() {
        for (written, meant) in [
            (" a b ", "a b"),
            ("'it''s'", "it's"),
            ("\"a\"\"b\"", "a\"b"),
            ("[a]", "a"),
            ("'", "'"),
            ("", ""),
        ] {
            assert_eq!(unquoted(written), meant, "{written}");
        }
    }
}
