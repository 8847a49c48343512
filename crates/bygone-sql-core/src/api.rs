//! The functions of the SQLite that hosts us, whichever it is.
//!
//! Owns: [`Api`], a table of those functions. Promises: an extension and the Rust API fill the same table, one from
//! the routines that the host passes, one from linked symbols, so that no code depends on how SQLite got here.
//! May call: nothing.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::ffi::{Authorizer, Destructor, ProgressHandler, ScalarFunction, sqlite3, sqlite3_context};
use crate::ffi::{sqlite3_module, sqlite3_stmt, sqlite3_value, sqlite3_vfs};

/// The oldest SQLite that can host us, 3.39: with `sqlite3_db_name`, and with VFSs that choose journals in memory.
pub const VERSION_MIN: c_int = 3_039_000;

macro_rules! api {
    ($($index:literal $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// SQLite's functions by their names, without the prefix `sqlite3_`.
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            pub log: unsafe extern "C" fn(c_int, *const c_char, ...),
        }

        impl Api {
            /// Takes the functions out of what a host passes to its extensions. Nothing if the host is older
            /// than [`VERSION_MIN`].
            ///
            /// # Safety
            /// `routines` is a `sqlite3_api_routines`.
            pub unsafe fn from_routines(routines: *const c_void) -> Option<Api> {
                let routines = routines.cast::<Option<unsafe extern "C" fn()>>();
                // SAFETY: the structure begins with these in every version, and is a list of pointers to functions.
                let version = unsafe { *routines.add(LIBVERSION_NUMBER) }?;
                // SAFETY: the entry's type as `sqlite3ext.h` declares it.
                let version: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(version) };
                // SAFETY: it takes nothing, and reads a constant.
                if unsafe { version() } < VERSION_MIN {
                    return None;
                }
                Some(Api {
                    // SAFETY: these entries exist since VERSION_MIN at least, and the types are those that
                    // `sqlite3ext.h` declares.
                    $($name: unsafe { std::mem::transmute::<
                        unsafe extern "C" fn(),
                        unsafe extern "C" fn($($argument),*) $(-> $result)?,
                    >((*routines.add($index))?) },)*
                    // SAFETY: as above.
                    log: unsafe { std::mem::transmute::<
                        unsafe extern "C" fn(),
                        unsafe extern "C" fn(c_int, *const c_char, ...),
                    >((*routines.add(LOG))?) },
                })
            }
        }
    };
}

const LIBVERSION_NUMBER: usize = 67;
const LOG: usize = 167;

// The numbers are places in `sqlite3_api_routines`, to which entries are only ever appended.
api! {
    0 aggregate_context(*mut sqlite3_context, c_int) -> *mut c_void;
    3 bind_double(*mut sqlite3_stmt, c_int, f64) -> c_int;
    5 bind_int64(*mut sqlite3_stmt, c_int, i64) -> c_int;
    6 bind_null(*mut sqlite3_stmt, c_int) -> c_int;
    12 bind_value(*mut sqlite3_stmt, c_int, *const sqlite3_value) -> c_int;
    16 close(*mut sqlite3) -> c_int;
    22 column_count(*mut sqlite3_stmt) -> c_int;
    29 column_int64(*mut sqlite3_stmt, c_int) -> i64;
    30 column_name(*mut sqlite3_stmt, c_int) -> *const c_char;
    39 column_value(*mut sqlite3_stmt, c_int) -> *mut sqlite3_value;
    50 declare_vtab(*mut sqlite3, *const c_char) -> c_int;
    53 errmsg(*mut sqlite3) -> *const c_char;
    57 finalize(*mut sqlite3_stmt) -> c_int;
    58 free(*mut c_void);
    60 get_autocommit(*mut sqlite3) -> c_int;
    75 progress_handler(*mut sqlite3, c_int, Option<ProgressHandler>, *mut c_void);
    77 reset(*mut sqlite3_stmt) -> c_int;
    80 result_error(*mut sqlite3_context, *const c_char, c_int);
    83 result_int64(*mut sqlite3_context, i64);
    84 result_null(*mut sqlite3_context);
    85 result_text(*mut sqlite3_context, *const c_char, c_int, Destructor);
    89 result_value(*mut sqlite3_context, *mut sqlite3_value);
    91 set_authorizer(*mut sqlite3, Option<Authorizer>, *mut c_void) -> c_int;
    94 step(*mut sqlite3_stmt) -> c_int;
    95 table_column_metadata(*mut sqlite3, *const c_char, *const c_char, *const c_char, *mut *const c_char,
        *mut *const c_char, *mut c_int, *mut c_int, *mut c_int) -> c_int;
    101 user_data(*mut sqlite3_context) -> *mut c_void;
    102 value_blob(*mut sqlite3_value) -> *const c_void;
    103 value_bytes(*mut sqlite3_value) -> c_int;
    105 value_double(*mut sqlite3_value) -> f64;
    107 value_int64(*mut sqlite3_value) -> i64;
    109 value_text(*mut sqlite3_value) -> *const u8;
    113 value_type(*mut sqlite3_value) -> c_int;
    116 prepare_v2(*mut sqlite3, *const c_char, c_int, *mut *mut sqlite3_stmt, *mut *const c_char) -> c_int;
    119 create_module_v2(*mut sqlite3, *const c_char, *const sqlite3_module, *mut c_void, Destructor) -> c_int;
    127 file_control(*mut sqlite3, *const c_char, c_int, *mut c_void) -> c_int;
    135 open_v2(*const c_char, *mut *mut sqlite3, c_int, *const c_char) -> c_int;
    141 vfs_find(*const c_char) -> *mut sqlite3_vfs;
    142 vfs_register(*mut sqlite3_vfs, c_int) -> c_int;
    144 xthreadsafe() -> c_int;
    146 result_error_code(*mut sqlite3_context, c_int);
    149 context_db_handle(*mut sqlite3_context) -> *mut sqlite3;
    162 create_function_v2(*mut sqlite3, *const c_char, c_int, c_int, *mut c_void, Option<ScalarFunction>,
        Option<ScalarFunction>, Option<unsafe extern "C" fn(*mut sqlite3_context)>, Destructor) -> c_int;
    164 db_mutex(*mut sqlite3) -> *mut c_void;
    166 extended_errcode(*mut sqlite3) -> c_int;
    185 stmt_readonly(*mut sqlite3_stmt) -> c_int;
    187 uri_boolean(*const c_char, *const c_char, c_int) -> c_int;
    189 uri_parameter(*const c_char, *const c_char) -> *const c_char;
    192 auto_extension(Option<unsafe extern "C" fn()>) -> c_int;
    193 bind_blob64(*mut sqlite3_stmt, c_int, *const c_void, u64, Destructor) -> c_int;
    194 bind_text64(*mut sqlite3_stmt, c_int, *const c_char, u64, Destructor, u8) -> c_int;
    197 malloc64(u64) -> *mut c_void;
    204 value_dup(*const sqlite3_value) -> *mut sqlite3_value;
    205 value_free(*mut sqlite3_value);
    264 db_name(*mut sqlite3, c_int) -> *const c_char;
}

impl Api {
    /// A copy of a text in SQLite's own memory, for SQLite to free; null if there is no memory.
    pub fn text(&self, text: &str) -> *mut c_char {
        let bytes = text.as_bytes();
        // What is behind an inner NUL could not be seen.
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        // SAFETY: `sqlite3_malloc64` takes any size.
        let copy = unsafe { (self.malloc64)(bytes.len() as u64 + 1) }.cast::<u8>();
        if !copy.is_null() {
            // SAFETY: the memory has room for the bytes and the NUL behind them.
            unsafe {
                copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                copy.add(bytes.len()).write(0);
            }
        }
        copy.cast()
    }

    /// Puts a line into the host's error log, if it keeps one.
    pub fn log_line(&self, code: c_int, text: &str) {
        let text = self.text(text);
        if text.is_null() {
            return;
        }
        // SAFETY: the format takes one text, which ends with a NUL; it is freed once.
        unsafe {
            (self.log)(code, c"%s".as_ptr(), text);
            (self.free)(text.cast());
        }
    }

    /// A parameter of the URI that a file was opened by.
    ///
    /// # Safety
    /// `name` is the name that SQLite passed to `xOpen` for a main database.
    pub unsafe fn parameter(&self, name: *const c_char, parameter: &CStr) -> Option<String> {
        // SAFETY: `name` is as it must be.
        let value = unsafe { (self.uri_parameter)(name, parameter.as_ptr()) };
        // SAFETY: null or a text that lives as long as `name`.
        unsafe { text(value) }
    }

    /// Whether a parameter of the URI that a file was opened by says yes, as SQLite understands that.
    ///
    /// # Safety
    /// As [`parameter`](Api::parameter).
    pub unsafe fn says_yes(&self, name: *const c_char, parameter: &CStr) -> bool {
        // SAFETY: as promised.
        unsafe { (self.uri_boolean)(name, parameter.as_ptr(), 0) != 0 }
    }

    /// Gives an SQL function its result: a text.
    ///
    /// # Safety
    /// `context` is that of a call of the function that goes on.
    pub unsafe fn answer_text(&self, context: *mut sqlite3_context, text: &str) {
        let bytes = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
        // SAFETY: the text is copied before the call returns.
        unsafe { (self.result_text)(context, text.as_ptr().cast(), bytes, transient()) };
    }

    /// Gives an SQL function its result: an error.
    ///
    /// # Safety
    /// As [`answer_text`](Api::answer_text).
    pub unsafe fn answer_error(&self, context: *mut sqlite3_context, code: c_int, text: &str) {
        let bytes = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
        // SAFETY: the text is copied before the call returns.
        unsafe {
            (self.result_error)(context, text.as_ptr().cast(), bytes);
            (self.result_error_code)(context, code);
        }
    }
}

/// Says that the callee makes a copy of its own.
pub fn transient() -> Destructor {
    // SAFETY: this is how C says SQLITE_TRANSIENT: a pointer to no function, which is compared and never called.
    unsafe { std::mem::transmute::<isize, Destructor>(crate::ffi::SQLITE_TRANSIENT) }
}

/// A text of C's, copied; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// Null, or bytes that end with a NUL.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it ends with a NUL.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
