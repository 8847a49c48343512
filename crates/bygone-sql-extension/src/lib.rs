//! The loadable extension `libbygone_sql`: the VFS `bygone` for any SQLite, from 3.39 on.
//!
//! Owns: the entry points. Promises: once loaded it stays, for the connection that loaded it and for all that are
//! opened later; no SQLite is in it. May call: `bygone_sql_core`.
#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;

use bygone_sql_core::api::Api;
use bygone_sql_core::ffi::{SQLITE_ERROR, SQLITE_OK, SQLITE_OK_LOAD_PERMANENTLY, sqlite3};

type EntryPoint = unsafe extern "C" fn(*mut sqlite3, *mut *mut c_char, *const c_void) -> c_int;

/// What SQLite calls when it loads the file by its name.
///
/// # Safety
/// As SQLite calls an extension's entry point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_bygonesql_init(
    connection: *mut sqlite3,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { load(connection, error, routines) }
}

/// What SQLite looks for first.
///
/// # Safety
/// As SQLite calls an extension's entry point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    connection: *mut sqlite3,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { load(connection, error, routines) }
}

/// # Safety
/// As SQLite calls an extension's entry point.
unsafe fn load(connection: *mut sqlite3, error: *mut *mut c_char, routines: *const c_void) -> c_int {
    // SAFETY: what SQLite passes.
    let loaded = catch_unwind(|| unsafe { try_to_load(connection, routines) });
    match loaded.unwrap_or(Err("a panic in Bygone; its message is on standard error")) {
        Ok(()) => SQLITE_OK_LOAD_PERMANENTLY,
        Err(reason) => {
            // SAFETY: where SQLite passes a place for it, the reason is to be in its memory.
            unsafe {
                if let (Some(api), false) = (Api::from_routines(routines), error.is_null()) {
                    *error = api.text(reason);
                }
            }
            SQLITE_ERROR
        }
    }
}

/// # Safety
/// As SQLite calls an extension's entry point.
unsafe fn try_to_load(connection: *mut sqlite3, routines: *const c_void) -> Result<(), &'static str> {
    if routines.is_null() {
        return Err("this SQLite does not pass its functions to extensions");
    }
    // SAFETY: it is what SQLite passes.
    let api = unsafe { Api::from_routines(routines) }.ok_or("Bygone needs SQLite 3.39 or later")?;
    bygone_sql_core::register(api)
        .map_err(|_| "Bygone is in use by another SQLite library of this process")?;
    let entry: EntryPoint = prepare;
    // SAFETY: SQLite calls it as it calls an entry point, whatever type it has here.
    let code = unsafe {
        (api.auto_extension)(Some(std::mem::transmute::<EntryPoint, unsafe extern "C" fn()>(entry)))
    };
    // SAFETY: the connection that loads us is open, and was not yet prepared.
    if code != SQLITE_OK || unsafe { bygone_sql_core::prepare(connection) } != SQLITE_OK {
        return Err("SQLite refused Bygone's functions");
    }
    Ok(())
}

/// What SQLite calls for every connection that is opened later.
unsafe extern "C" fn prepare(
    connection: *mut sqlite3,
    _error: *mut *mut c_char,
    _routines: *const c_void,
) -> c_int {
    // SAFETY: what SQLite passes.
    catch_unwind(|| unsafe { bygone_sql_core::prepare(connection) }).unwrap_or(SQLITE_ERROR)
}
