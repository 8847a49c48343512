//! The SQLite that this crate links.
//!
//! Owns: handing its functions to `bygone_sql_core`, and what `rusqlite` does not offer of it. May call:
//! `rusqlite::ffi`.

use std::ffi::{c_char, c_int, c_void};

use bygone_sql_core::api::Api;
use bygone_sql_core::ffi::{SQLITE_OK, sqlite3};
use rusqlite::{Connection, ffi};

use crate::error::{Error, Result};

/// Makes the VFS `bygone` known to the SQLite that `rusqlite` is linked with, and SQL functions and tables to all
/// connections that are opened from then on. [`Sql`](crate::Sql) does it by itself; it is for those who open
/// `file:DIRECTORY?vfs=bygone` with [`rusqlite::Connection::open`].
///
/// # Errors
/// If SQLite refuses.
pub fn register() -> Result<()> {
    let refused = |code: c_int| Error::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
    // SAFETY: nothing is passed; it makes sure that SQLite can be used.
    match unsafe { ffi::sqlite3_initialize() } {
        SQLITE_OK => {}
        code => return Err(refused(code)),
    }
    bygone_sql_core::register(api()).map_err(refused)?;
    // SAFETY: SQLite calls it as it calls an entry point, and notes each only once.
    match unsafe { ffi::sqlite3_auto_extension(Some(prepare)) } {
        SQLITE_OK => Ok(()),
        code => Err(refused(code)),
    }
}

/// Makes a `VACUUM INTO` of this connection's main database leave so many bytes at the end of each page.
pub(crate) fn reserve_bytes(connection: &Connection, bytes: u8) -> Result<()> {
    let mut wanted = c_int::from(bytes);
    let wanted: *mut c_int = &mut wanted;
    // SAFETY: the connection is open; this control reads and writes one number.
    let code = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_RESERVE_BYTES,
            wanted.cast::<c_void>(),
        )
    };
    match code {
        SQLITE_OK => Ok(()),
        code => Err(Error::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))),
    }
}

unsafe extern "C" fn prepare(
    connection: *mut ffi::sqlite3,
    _error: *mut *mut c_char,
    _routines: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { bygone_sql_core::prepare(connection.cast::<sqlite3>()) }
}

/// Fills the table from linked symbols.
macro_rules! api {
    ($($name:ident: $symbol:ident,)*) => {
        Api {
            // SAFETY: both declare the same function of C; their types differ in the names of opaque structures.
            $($name: unsafe { std::mem::transmute::<*const (), _>(ffi::$symbol as *const ()) },)*
        }
    };
}

#[expect(clippy::missing_transmute_annotations, reason = "the field that it is assigned to has the type")]
fn api() -> Api {
    api! {
        column_int64: sqlite3_column_int64,
        declare_vtab: sqlite3_declare_vtab,
        errmsg: sqlite3_errmsg,
        finalize: sqlite3_finalize,
        free: sqlite3_free,
        get_autocommit: sqlite3_get_autocommit,
        result_error: sqlite3_result_error,
        result_int64: sqlite3_result_int64,
        result_null: sqlite3_result_null,
        result_text: sqlite3_result_text,
        step: sqlite3_step,
        value_text: sqlite3_value_text,
        value_type: sqlite3_value_type,
        prepare_v2: sqlite3_prepare_v2,
        create_module_v2: sqlite3_create_module_v2,
        file_control: sqlite3_file_control,
        vfs_find: sqlite3_vfs_find,
        vfs_register: sqlite3_vfs_register,
        result_error_code: sqlite3_result_error_code,
        context_db_handle: sqlite3_context_db_handle,
        create_function_v2: sqlite3_create_function_v2,
        uri_boolean: sqlite3_uri_boolean,
        uri_parameter: sqlite3_uri_parameter,
        auto_extension: sqlite3_auto_extension,
        malloc64: sqlite3_malloc64,
        db_name: sqlite3_db_name,
        aggregate_context: sqlite3_aggregate_context,
        bind_blob64: sqlite3_bind_blob64,
        bind_double: sqlite3_bind_double,
        bind_int64: sqlite3_bind_int64,
        bind_null: sqlite3_bind_null,
        bind_text64: sqlite3_bind_text64,
        bind_value: sqlite3_bind_value,
        column_count: sqlite3_column_count,
        column_name: sqlite3_column_name,
        column_value: sqlite3_column_value,
        progress_handler: sqlite3_progress_handler,
        reset: sqlite3_reset,
        result_value: sqlite3_result_value,
        set_authorizer: sqlite3_set_authorizer,
        table_column_metadata: sqlite3_table_column_metadata,
        user_data: sqlite3_user_data,
        value_blob: sqlite3_value_blob,
        value_bytes: sqlite3_value_bytes,
        value_double: sqlite3_value_double,
        value_int64: sqlite3_value_int64,
        open_v2: sqlite3_open_v2,
        extended_errcode: sqlite3_extended_errcode,
        close: sqlite3_close,
        stmt_readonly: sqlite3_stmt_readonly,
        xthreadsafe: sqlite3_threadsafe,
        db_mutex: sqlite3_db_mutex,
        value_dup: sqlite3_value_dup,
        value_free: sqlite3_value_free,
        log: sqlite3_log,
    }
}
