//! SQL functions.
//!
//! Owns: `snapshot_now` and `last_snapshot`, and what declares a snapshot. Promises: inside a transaction a snapshot is
//! declared by its commit or not at all; outside of one it is declared at once, of the latest commit. May call: `host`,
//! `file`.

use std::ffi::{CStr, CString, c_int};

use bygone::{Durability, Error};

use crate::api::text;
use crate::failure::{Failure, Result, shielded};
use crate::ffi::*;
use crate::file::MainFile;
use crate::host::Host;
use crate::pragmas::is_autocommit;

/// Makes the functions known to a connection.
///
/// # Safety
/// The connection is open.
pub unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    let functions: [(&CStr, c_int, ScalarFunction); 4] = [
        (c"snapshot_now", 0, snapshot_now),
        (c"snapshot_now", 1, snapshot_now),
        (c"snapshot_now", 2, snapshot_now),
        (c"last_snapshot", 0, last_snapshot),
    ];
    for (name, count, function) in functions {
        // Not from within views and triggers, which may come with a database from anywhere.
        let flags = SQLITE_UTF8 | SQLITE_DIRECTONLY;
        // SAFETY: the connection is open.
        let code = unsafe {
            (host.api.create_function_v2)(
                connection,
                name.as_ptr(),
                count,
                flags,
                std::ptr::null_mut(),
                Some(function),
                None,
                None,
                None,
            )
        };
        if code != SQLITE_OK {
            return code;
        }
    }
    SQLITE_OK
}

/// Runs a function's body and answers with what it gives.
///
/// # Safety
/// `context` is that of a call of a function.
unsafe fn answer(
    context: *mut sqlite3_context,
    host: &'static Host,
    body: impl FnOnce(*mut sqlite3) -> Result<Option<u64>>,
) {
    // SAFETY: as promised.
    unsafe {
        let connection = (host.api.context_db_handle)(context);
        let mut failed = None;
        let code = shielded(&host.api, || {
            match body(connection) {
                Ok(Some(id)) => (host.api.result_int64)(context, id as i64),
                Ok(None) => (host.api.result_null)(context),
                Err(failure) => failed = Some(failure),
            }
            Ok(SQLITE_OK)
        });
        match failed {
            Some(failure) => host.api.answer_error(context, failure.code, &failure.text),
            None if code != SQLITE_OK => host.api.answer_error(context, code, "a panic in Bygone"),
            None => {}
        }
    }
}

unsafe extern "C" fn snapshot_now(
    context: *mut sqlite3_context,
    count: c_int,
    values: *mut *mut sqlite3_value,
) {
    // SAFETY: what SQLite passes.
    unsafe {
        let Some(host) = Host::get() else { return };
        let argument = |index: c_int| {
            (index < count).then(|| text((host.api.value_text)(*values.add(index as usize)).cast())).flatten()
        };
        let (name, schema) = (argument(0), argument(1));
        answer(context, host, |connection| {
            let file = wanted_file(host, connection, schema)?;
            declare(file, name)
        });
    }
}

unsafe extern "C" fn last_snapshot(
    context: *mut sqlite3_context,
    _count: c_int,
    _values: *mut *mut sqlite3_value,
) {
    // SAFETY: what SQLite passes; the files of a connection that is in a call are borrowed by nobody else.
    unsafe {
        let Some(host) = Host::get() else { return };
        answer(context, host, |connection| {
            let files = host.main_files(connection);
            Ok(files.filter_map(|(_, file)| (*file).declared).max())
        });
    }
}

/// The database of this schema, or else the connection's first that is ours.
pub(crate) fn wanted_file(
    host: &Host,
    connection: *mut sqlite3,
    schema: Option<String>,
) -> Result<*mut MainFile> {
    let found = match &schema {
        Some(schema) => CString::new(&schema[..]).ok().and_then(|schema| host.main_file(connection, &schema)),
        None => host.main_files(connection).map(|(_, file)| file).next(),
    };
    found.ok_or_else(|| {
        let text = match schema {
            Some(schema) => format!("{schema:?} is not a database on Bygone"),
            None => "no database of this connection is on Bygone".to_owned(),
        };
        Failure::new(SQLITE_ERROR, text)
    })
}

/// `PRAGMA snapshot = 'name'`, which SQLite may ask for twice.
///
/// # Safety
/// As [`declare`].
pub(crate) unsafe fn declare_again(file: *mut MainFile, name: String) -> Result<String> {
    // SAFETY: as promised; the borrow ends here.
    let (db, declared) = unsafe {
        let file = &*file;
        (file.directory.db.clone(), file.declared)
    };
    if let Ok(info) = db.snapshot_info(&name)
        && declared == Some(info.id.into())
        && info.seq == db.snapshot().seq()
    {
        return Ok(info.id.to_string());
    }
    // SAFETY: as promised.
    let id = unsafe { declare(file, Some(name)) }?;
    Ok(id.map(|id| id.to_string()).unwrap_or_default())
}

/// Declares a snapshot: by the commit of the transaction that is open, else at once, answering its id.
///
/// # Safety
/// `file` is one of the connection's that is in this call, and nobody has it borrowed: SQLite may call its methods.
pub(crate) unsafe fn declare(file: *mut MainFile, name: Option<String>) -> Result<Option<u64>> {
    // SAFETY: as promised; these borrows end before SQLite is called.
    let (host, connection, db, number, autocommit, sync) = unsafe {
        let file = &*file;
        if file.read_only || file.past().is_some() {
            let text =
                "a snapshot is declared of the present, and this database reads the past or reads only";
            return Err(Failure::new(SQLITE_READONLY, text));
        }
        let db = file.directory.db.clone();
        (file.host, file.connection(), db, file.directory.number, is_autocommit(file), file.sync_commits)
    };
    if let Some(name) = &name {
        match db.snapshot_info(name) {
            Err(Error::SnapshotNotFound { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(info) => return Err(Error::NameTaken { name: name.clone(), snapshot: info.id }.into()),
        }
    }
    let files = host.main_files(connection);
    // SAFETY: all are the connection's; the borrows end here.
    let in_directory = |file: &*mut MainFile| unsafe { &**file }.directory.number == number;
    // SAFETY: as above.
    let writes = |file: &*mut MainFile| unsafe { &**file }.write.is_some();
    let files: Vec<_> = files.filter(|(_, file)| in_directory(file)).collect();
    let mut writer = files.iter().map(|(_, file)| *file).find(writes);
    if writer.is_none() && autocommit {
        let mut transaction = db.begin()?;
        transaction.set_durability(if sync { Durability::Sync } else { Durability::Buffered });
        let id = u64::from(transaction.commit_with_snapshot(name.as_deref())?);
        // SAFETY: as above.
        unsafe { (*file).declared = Some(id) };
        return Ok(Some(id));
    }
    if writer.is_none() {
        // A transaction that has written nothing has no commit that could declare anything.
        if let Some((schema, _)) = files.iter().find(|(_, other)| *other == file) {
            touch(host, connection, schema)?;
        }
        writer = files.iter().map(|(_, file)| *file).find(writes);
    }
    // SAFETY: as above.
    let write = |file: *mut MainFile| unsafe { &*file }.write.as_ref();
    let pending = files.iter().find_map(|(_, file)| write(*file)?.declaration.clone());
    match (writer, pending) {
        (Some(_), Some(pending)) if pending == name => Ok(None),
        (Some(_), Some(_)) => {
            Err(Failure::new(SQLITE_ERROR, "this transaction declares another snapshot already"))
        }
        (Some(writer), None) => {
            // SAFETY: as above.
            if let Some(write) = unsafe { &mut (*writer).write } {
                write.declaration = Some(name);
            }
            Ok(None)
        }
        (None, _) => Err(Failure::new(SQLITE_ERROR, "the transaction could not be made one that writes")),
    }
}

/// Makes the open transaction one that writes to a database, and changes nothing in it.
fn touch(host: &Host, connection: *mut sqlite3, schema: &CStr) -> Result<()> {
    let schema = schema.to_string_lossy().replace('"', "\"\"");
    let version = run(host, connection, &format!("PRAGMA \"{schema}\".user_version"))?;
    run(host, connection, &format!("PRAGMA \"{schema}\".user_version = {version}"))?;
    Ok(())
}

/// Runs a statement, and answers the number in its first row.
fn run(host: &Host, connection: *mut sqlite3, sql: &str) -> Result<i64> {
    let api = &host.api;
    let mut statement = std::ptr::null_mut();
    let bytes = c_int::try_from(sql.len()).unwrap_or(c_int::MAX);
    // SAFETY: the connection is open and in this thread's hands; the statement is finalized once.
    unsafe {
        let mut code =
            (api.prepare_v2)(connection, sql.as_ptr().cast(), bytes, &mut statement, std::ptr::null_mut());
        let mut number = 0;
        while code == SQLITE_OK || code == SQLITE_ROW {
            code = (api.step)(statement);
            if code == SQLITE_ROW {
                number = (api.column_int64)(statement, 0);
            }
        }
        let words = text((api.errmsg)(connection)).unwrap_or_default();
        (api.finalize)(statement);
        if code == SQLITE_DONE { Ok(number) } else { Err(Failure::new(code, words)) }
    }
}
