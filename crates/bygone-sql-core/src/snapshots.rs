//! The table `bygone_snapshots`.
//!
//! Owns: that virtual table: id, name, time, bytes, and hidden the schema whose directory it lists. Promises: it lists
//! what is declared when it is read, also where the connection reads the past; what snapshots take is counted only if
//! the query asks for it. May call: `functions`, `moment`.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use bygone::SnapshotInfo;

use crate::api::text;
use crate::failure::{Failure, Result, shielded};
use crate::ffi::*;
use crate::functions::wanted_file;
use crate::host::Host;
use crate::moment;

const NAME: &CStr = c"bygone_snapshots";
const DECLARATION: &CStr =
    c"CREATE TABLE x(id INTEGER PRIMARY KEY, name TEXT, time TEXT, bytes INTEGER, schema TEXT HIDDEN)";

const BYTES: c_int = 3;
const SCHEMA: c_int = 4;

/// What `xBestIndex` tells `xFilter`: the schema is given; sizes are wanted.
const BY_SCHEMA: c_int = 1;
const WITH_BYTES: c_int = 2;

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
}

#[repr(C)]
struct Cursor {
    base: sqlite3_vtab_cursor,
    rows: Vec<SnapshotInfo>,
    bytes: HashMap<u64, u64>,
    at: usize,
}

/// Makes the table known to a connection.
///
/// # Safety
/// The connection is open.
pub unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    // SAFETY: the connection is open, and the module stays for ever.
    unsafe { (host.api.create_module_v2)(connection, NAME.as_ptr(), &MODULE, std::ptr::null_mut(), None) }
}

unsafe extern "C" fn connect(
    connection: *mut sqlite3,
    _data: *mut c_void,
    _count: c_int,
    _arguments: *const *const c_char,
    out: *mut *mut sqlite3_vtab,
    _error: *mut *mut c_char,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: what SQLite passes.
    unsafe {
        let code = (host.api.declare_vtab)(connection, DECLARATION.as_ptr());
        if code == SQLITE_OK {
            let base = sqlite3_vtab { pModule: &MODULE, nRef: 0, zErrMsg: std::ptr::null_mut() };
            *out = Box::into_raw(Box::new(Table { base, connection })).cast();
        }
        code
    }
}

unsafe extern "C" fn disconnect(table: *mut sqlite3_vtab) -> c_int {
    // SAFETY: `connect` made it; SQLite calls this once.
    drop(unsafe { Box::from_raw(table.cast::<Table>()) });
    SQLITE_OK
}

unsafe extern "C" fn best_index(_table: *mut sqlite3_vtab, info: *mut sqlite3_index_info) -> c_int {
    // SAFETY: what SQLite passes; both arrays have so many elements.
    unsafe {
        let info = &mut *info;
        let count = usize::try_from(info.nConstraint).unwrap_or(0);
        for index in 0..count {
            let constraint = &*info.aConstraint.add(index);
            if constraint.iColumn != SCHEMA || constraint.op != SQLITE_INDEX_CONSTRAINT_EQ {
                continue;
            }
            if constraint.usable == 0 {
                return SQLITE_CONSTRAINT;
            }
            let usage = &mut *info.aConstraintUsage.add(index);
            (usage.argvIndex, usage.omit) = (1, 1);
            info.idxNum |= BY_SCHEMA;
        }
        if info.colUsed & (1 << BYTES) != 0 {
            info.idxNum |= WITH_BYTES;
        }
        info.estimatedCost = if info.idxNum & WITH_BYTES != 0 { 1e6 } else { 1e3 };
        info.estimatedRows = 1000;
    }
    SQLITE_OK
}

unsafe extern "C" fn open(_table: *mut sqlite3_vtab, out: *mut *mut sqlite3_vtab_cursor) -> c_int {
    let base = sqlite3_vtab_cursor { pVtab: std::ptr::null_mut() };
    let cursor = Cursor { base, rows: Vec::new(), bytes: HashMap::new(), at: 0 };
    // SAFETY: what SQLite passes.
    unsafe { *out = Box::into_raw(Box::new(cursor)).cast() };
    SQLITE_OK
}

unsafe extern "C" fn close(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it; SQLite calls this once.
    drop(unsafe { Box::from_raw(cursor.cast::<Cursor>()) });
    SQLITE_OK
}

unsafe extern "C" fn filter(
    cursor: *mut sqlite3_vtab_cursor,
    index: c_int,
    _text: *const c_char,
    count: c_int,
    values: *mut *mut sqlite3_value,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: what SQLite passes; it has set the cursor's table.
    unsafe {
        let table = (*cursor).pVtab.cast::<Table>();
        let cursor = &mut *cursor.cast::<Cursor>();
        let schema = if index & BY_SCHEMA != 0 && count > 0 {
            text((host.api.value_text)(*values).cast())
        } else {
            None
        };
        let mut failed = None;
        let code = shielded(&host.api, || {
            match cursor.fill(host, (*table).connection, schema, index & WITH_BYTES != 0) {
                Ok(()) => return Ok(SQLITE_OK),
                Err(failure) => failed = Some(failure),
            }
            Ok(SQLITE_ERROR)
        });
        let Some(failure) = failed else { return code };
        (host.api.free)((*table).base.zErrMsg.cast());
        (*table).base.zErrMsg = host.api.text(&failure.text);
        failure.code
    }
}

impl Cursor {
    /// # Safety
    /// The connection is in a call.
    unsafe fn fill(
        &mut self,
        host: &Host,
        connection: *mut sqlite3,
        schema: Option<String>,
        with_bytes: bool,
    ) -> Result<()> {
        let file = wanted_file(host, connection, schema)?;
        // SAFETY: the files of a connection that is in a call are borrowed by nobody else; this borrow ends here.
        let db = unsafe { &*file }.directory.db.clone();
        let failed = |error: bygone::Error| Failure::from(error);
        self.rows = db.snapshots().map_err(failed)?;
        self.bytes.clear();
        if with_bytes {
            let sizes = db.snapshot_sizes().map_err(failed)?;
            self.bytes = sizes.iter().map(|size| (size.id.into(), size.own_bytes)).collect();
        }
        self.at = 0;
        Ok(())
    }
}

unsafe extern "C" fn next(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it.
    unsafe { (*cursor.cast::<Cursor>()).at += 1 };
    SQLITE_OK
}

unsafe extern "C" fn eof(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    // SAFETY: `open` made it.
    let cursor = unsafe { &*cursor.cast::<Cursor>() };
    c_int::from(cursor.at >= cursor.rows.len())
}

unsafe extern "C" fn column(
    cursor: *mut sqlite3_vtab_cursor,
    context: *mut sqlite3_context,
    column: c_int,
) -> c_int {
    let Some(host) = Host::get() else { return SQLITE_ERROR };
    // SAFETY: `open` made the cursor, and the context is that of this call.
    unsafe {
        let cursor = &*cursor.cast::<Cursor>();
        let Some(row) = cursor.rows.get(cursor.at) else { return SQLITE_OK };
        let id = u64::from(row.id);
        shielded(&host.api, || {
            match (column, &row.name) {
                (0, _) => (host.api.result_int64)(context, id as i64),
                (1, Some(name)) => host.api.answer_text(context, name),
                (2, _) => host.api.answer_text(context, &moment::written(row.time)),
                (BYTES, _) => {
                    (host.api.result_int64)(context, cursor.bytes.get(&id).copied().unwrap_or(0) as i64);
                }
                _ => (host.api.result_null)(context),
            }
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn rowid(cursor: *mut sqlite3_vtab_cursor, out: *mut i64) -> c_int {
    // SAFETY: `open` made the cursor; what SQLite passes.
    unsafe {
        let cursor = &*cursor.cast::<Cursor>();
        *out = cursor.rows.get(cursor.at).map_or(0, |row| u64::from(row.id) as i64);
    }
    SQLITE_OK
}
