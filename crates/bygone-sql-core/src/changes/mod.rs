//! The table-valued functions `bygone_diff` and `bygone_history`.
//!
//! Owns: both virtual tables. Promises: rows are as the schema of their time has them, each a JSON object; what they
//! read is read on connections of their own. May call: `described`, `sets`, `functions`, `statement`.

mod described;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};

use described::{Described, differences, literal, text};

use crate::directory::Handle;
use crate::failure::{self, Failure, Result, shielded};
use crate::ffi::*;
use crate::functions::wanted_file;
use crate::host::Host;
use crate::pages::Shape;
use crate::sets::{Asker, Staging, as_of, uri};
use crate::statement::{Connection, Statement};
use crate::vfs;

/// One of the two.
struct Kind {
    name: &'static CStr,
    declaration: &'static CStr,
    /// The first hidden column, which is the first argument, and how many there are.
    first: c_int,
    arguments: c_int,
    usage: &'static str,
    ask: unsafe fn(&'static Host, *mut sqlite3, &[*mut sqlite3_value]) -> Result<Rows>,
}

static KINDS: [Kind; 2] = [
    Kind {
        name: c"bygone_diff",
        declaration:
            c"CREATE TABLE x(change TEXT, key, before TEXT, after TEXT, tbl HIDDEN, a HIDDEN, b HIDDEN)",
        first: 4,
        arguments: 3,
        usage: "bygone_diff is asked as bygone_diff('table', a, b), where a and b are moments",
        ask: ask_difference,
    },
    Kind {
        name: c"bygone_history",
        declaration: c"CREATE TABLE x(snapshot INTEGER, change TEXT, state TEXT, tbl HIDDEN, key HIDDEN)",
        first: 3,
        arguments: 2,
        usage: "bygone_history is asked as bygone_history('table', key)",
        ask: ask_history,
    },
];

static MODULE: sqlite3_module = sqlite3_module {
    iVersion: 0,
    // Without this it is there without `CREATE VIRTUAL TABLE`, and cannot be made with it.
    xCreate: None,
    xConnect: Some(connect),
    xBestIndex: Some(best_index),
    xDisconnect: Some(disconnect),
    xDestroy: None,
    xOpen: Some(open),
    xClose: Some(close),
    xFilter: Some(filter),
    xNext: Some(next),
    xEof: Some(eof),
    xColumn: Some(column),
    xRowid: Some(rowid),
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

#[repr(C)]
struct Table {
    base: sqlite3_vtab,
    connection: *mut sqlite3,
    kind: &'static Kind,
}

#[repr(C)]
struct Cursor {
    base: sqlite3_vtab_cursor,
    rows: Option<Rows>,
    at: i64,
}

/// What is found.
struct Rows {
    // It goes before the connection that it is of.
    statement: Statement,
    _source: Source,
}

/// What rows come from.
enum Source {
    #[expect(dead_code, reason = "it is there to be closed after the statement")]
    Moments(Connection),
    #[expect(dead_code, reason = "it is there to be closed after the statement")]
    Staging(Staging),
}

/// Makes the tables known to a connection.
///
/// # Safety
/// The connection is open.
pub(crate) unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    for kind in &KINDS {
        let data = std::ptr::from_ref(kind).cast_mut().cast();
        // SAFETY: the connection is open; the module and what it is told stay for ever.
        let code =
            unsafe { (host.api.create_module_v2)(connection, kind.name.as_ptr(), &MODULE, data, None) };
        if code != SQLITE_OK {
            return code;
        }
    }
    SQLITE_OK
}

/// The directory and the table of the SQL database that is meant: the session's first.
fn wanted(host: &Host, connection: *mut sqlite3) -> Result<(Handle, String)> {
    let file = wanted_file(host, connection, None)?;
    // SAFETY: the files of a connection that is in a call are borrowed by nobody else; this borrow ends here.
    let file = unsafe { &*file };
    Ok((file.directory.clone(), file.database.table.clone()))
}

/// # Safety
/// The connection is in a call of this thread's, and the values are those of the call.
unsafe fn value_text(host: &Host, value: *mut sqlite3_value) -> String {
    // SAFETY: as promised.
    unsafe { crate::api::text((host.api.value_text)(value).cast()) }.unwrap_or_default()
}

/// # Safety
/// As [`value_text`].
unsafe fn ask_difference(
    host: &'static Host,
    connection: *mut sqlite3,
    values: &[*mut sqlite3_value],
) -> Result<Rows> {
    // SAFETY: as promised.
    let words: Vec<String> = values.iter().map(|value| unsafe { value_text(host, *value) }).collect();
    let [table, before, after] = &words[..] else { return Err(Failure::code(SQLITE_MISUSE)) };
    let (directory, database) = wanted(host, connection)?;
    let moments = Connection::open(host, &uri(&directory, &database, before))?;
    moments.run(&format!("ATTACH {} AS after", text(&uri(&directory, &database, after))))?;
    let found = |schema: &str| Described::find(&moments, schema, table);
    let (a, b) = (found("main")?, found("after")?);
    let Some(mut sql) = differences(a.as_ref(), b.as_ref()) else {
        let text = format!("there is no table {table:?} as of {before:?}, nor as of {after:?}");
        return Err(Failure::new(SQLITE_ERROR, text));
    };
    let shape = |moment: &String| {
        let past = vfs::past(&directory, &database, moment.clone())?;
        let shape = past.and_then(|past| Some((past.table?, past.view)));
        shape.map(|(table, view)| Shape::load(&view, &table)).transpose().map_err(Failure::from)
    };
    // Two snapshots of one state need no reading.
    if let (Some(a), Some(b)) = (shape(before)?, shape(after)?)
        && a == b
    {
        sql = "SELECT NULL WHERE 0".to_owned();
    }
    let statement = moments.prepare(&sql)?;
    Ok(Rows { statement, _source: Source::Moments(moments) })
}

/// # Safety
/// As [`value_text`].
unsafe fn ask_history(
    host: &'static Host,
    connection: *mut sqlite3,
    values: &[*mut sqlite3_value],
) -> Result<Rows> {
    let [table, key] = *values else { return Err(Failure::code(SQLITE_MISUSE)) };
    // SAFETY: as promised.
    let table = unsafe { value_text(host, table) };
    let (directory, database) = wanted(host, connection)?;
    let db = directory.db.clone();
    let mut staging = Staging::new(host)?;
    let key = literal(staging.connection(), key)?;
    let was_there = RefCell::new(false);
    let query = |past: &Connection| {
        Ok(match Described::find(past, "main", &table)? {
            Some(table) => {
                *was_there.borrow_mut() = true;
                table.row_of(&key)
            }
            None => "SELECT NULL AS state WHERE 0".to_owned(),
        })
    };
    // SAFETY: as promised.
    let mut asker = unsafe { Asker::new(host, connection, (directory, database), Box::new(query)) }?;
    for snapshot in db.snapshots()? {
        let snapshot = u64::from(snapshot.id);
        let asked = asker.turn(snapshot).and_then(|to_be_run| {
            if to_be_run {
                asker.run(snapshot, &mut staging)?;
            }
            staging.holds_for(snapshot)
        });
        asked.map_err(|failure| as_of(&db, snapshot, failure))?;
    }
    drop(asker);
    if !was_there.into_inner() {
        let text = format!("there is no table {table:?} as of any snapshot");
        return Err(Failure::new(SQLITE_ERROR, text));
    }
    let statement = staging.changes()?;
    Ok(Rows { statement, _source: Source::Staging(staging) })
}

unsafe extern "C" fn connect(
    connection: *mut sqlite3,
    data: *mut c_void,
    _count: c_int,
    _arguments: *const *const c_char,
    out: *mut *mut sqlite3_vtab,
    _error: *mut *mut c_char,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: what SQLite passes; the data is what `register` gave.
    unsafe {
        let kind = &*data.cast::<Kind>();
        let code = (host.api.declare_vtab)(connection, kind.declaration.as_ptr());
        if code == SQLITE_OK {
            let base = sqlite3_vtab { pModule: &MODULE, nRef: 0, zErrMsg: std::ptr::null_mut() };
            *out = Box::into_raw(Box::new(Table { base, connection, kind })).cast();
        }
        code
    }
}

unsafe extern "C" fn disconnect(table: *mut sqlite3_vtab) -> c_int {
    // SAFETY: `connect` made it; SQLite calls this once.
    drop(unsafe { Box::from_raw(table.cast::<Table>()) });
    SQLITE_OK
}

/// Leaves words with a table, where SQLite finds them.
///
/// # Safety
/// `connect` made the table.
unsafe fn leave_words(host: &Host, table: *mut Table, words: &str) {
    // SAFETY: as promised; the words are in SQLite's memory.
    unsafe {
        (host.api.free)((*table).base.zErrMsg.cast());
        (*table).base.zErrMsg = host.api.text(words);
    }
}

unsafe extern "C" fn best_index(table: *mut sqlite3_vtab, info: *mut sqlite3_index_info) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: what SQLite passes; both arrays have so many elements.
    unsafe {
        let table = table.cast::<Table>();
        let kind = (*table).kind;
        let info = &mut *info;
        let mut given = 0;
        for index in 0..usize::try_from(info.nConstraint).unwrap_or(0) {
            let constraint = &*info.aConstraint.add(index);
            let argument = constraint.iColumn - kind.first;
            if constraint.op != SQLITE_INDEX_CONSTRAINT_EQ || !(0..kind.arguments).contains(&argument) {
                continue;
            }
            if constraint.usable == 0 {
                return SQLITE_CONSTRAINT;
            }
            // Of two values for one argument, SQLite checks the other.
            if given & (1 << argument) == 0 {
                let usage = &mut *info.aConstraintUsage.add(index);
                (usage.argvIndex, usage.omit) = (argument + 1, 1);
                given |= 1 << argument;
            }
        }
        if given != (1 << kind.arguments) - 1 {
            leave_words(host, table, kind.usage);
            return SQLITE_ERROR;
        }
        info.estimatedCost = 1e6;
        info.estimatedRows = 1000;
    }
    SQLITE_OK
}

unsafe extern "C" fn open(_table: *mut sqlite3_vtab, out: *mut *mut sqlite3_vtab_cursor) -> c_int {
    let base = sqlite3_vtab_cursor { pVtab: std::ptr::null_mut() };
    // SAFETY: what SQLite passes.
    unsafe { *out = Box::into_raw(Box::new(Cursor { base, rows: None, at: 0 })).cast() };
    SQLITE_OK
}

unsafe extern "C" fn close(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it; SQLite calls this once.
    drop(unsafe { Box::from_raw(cursor.cast::<Cursor>()) });
    SQLITE_OK
}

/// Runs a step of a cursor, and leaves the words of its failure.
///
/// # Safety
/// `open` made the cursor, and SQLite has set its table.
unsafe fn moved(
    cursor: *mut sqlite3_vtab_cursor,
    step: impl FnOnce(&'static Host, &Table, &mut Cursor) -> Result<()>,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: as promised.
    unsafe {
        let table = (*cursor).pVtab.cast::<Table>();
        let mut failed = None;
        let code = shielded(&host.api, || {
            failed = step(host, &*table, &mut *cursor.cast::<Cursor>()).err();
            Ok(SQLITE_OK)
        });
        let Some(failure) = failed else { return code };
        leave_words(host, table, &failure.text);
        failure.code
    }
}

impl Cursor {
    fn step(&mut self) -> Result<()> {
        self.at += 1;
        if let Some(rows) = &mut self.rows
            && !rows.statement.step()?
        {
            self.rows = None;
        }
        Ok(())
    }
}

unsafe extern "C" fn filter(
    cursor: *mut sqlite3_vtab_cursor,
    _index: c_int,
    _text: *const c_char,
    count: c_int,
    values: *mut *mut sqlite3_value,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        moved(cursor, |host, table, cursor| {
            cursor.rows = None;
            failure::take_last();
            let values = std::slice::from_raw_parts(values, usize::try_from(count).unwrap_or(0));
            cursor.rows = Some((table.kind.ask)(host, table.connection, values)?);
            cursor.at = 0;
            cursor.step()
        })
    }
}

unsafe extern "C" fn next(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { moved(cursor, |_, _, cursor| cursor.step()) }
}

unsafe extern "C" fn eof(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it.
    c_int::from(unsafe { (*cursor.cast::<Cursor>()).rows.is_none() })
}

unsafe extern "C" fn column(
    cursor: *mut sqlite3_vtab_cursor,
    context: *mut sqlite3_context,
    column: c_int,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: `open` made the cursor, and the context is that of this call; the value is copied.
    unsafe {
        let table = (*cursor).pVtab.cast::<Table>();
        let cursor = &*cursor.cast::<Cursor>();
        match &cursor.rows {
            Some(rows) if column < (*table).kind.first => {
                let value = rows.statement.value(usize::try_from(column).unwrap_or(0));
                (host.api.result_value)(context, value);
            }
            _ => (host.api.result_null)(context),
        }
    }
    SQLITE_OK
}

unsafe extern "C" fn rowid(cursor: *mut sqlite3_vtab_cursor, out: *mut i64) -> c_int {
    // SAFETY: `open` made the cursor; what SQLite passes.
    unsafe { *out = (*cursor.cast::<Cursor>()).at };
    SQLITE_OK
}
