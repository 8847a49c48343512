//! The part of SQLite's C interface that a VFS and an extension need.
//!
//! Owns: types, constants and layouts as in `sqlite3.h`, which promises never to change them. Nothing here links any
//! SQLite: its functions are reached through [`Api`](crate::api::Api). Promises: the layouts equal those of
//! `libsqlite3-sys`, which a test of `bygone-sql` compares. May call: nothing.
#![allow(non_camel_case_types, non_snake_case, missing_docs)]

use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};

/// A database connection.
#[repr(C)]
pub struct sqlite3 {
    _opaque: [u8; 0],
}

/// What a function is called with.
#[repr(C)]
pub struct sqlite3_context {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct sqlite3_value {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct sqlite3_stmt {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct sqlite3_file {
    pub pMethods: *const sqlite3_io_methods,
}

type File = *mut sqlite3_file;

#[repr(C)]
pub struct sqlite3_io_methods {
    pub iVersion: c_int,
    pub xClose: Option<unsafe extern "C" fn(File) -> c_int>,
    pub xRead: Option<unsafe extern "C" fn(File, *mut c_void, c_int, i64) -> c_int>,
    pub xWrite: Option<unsafe extern "C" fn(File, *const c_void, c_int, i64) -> c_int>,
    pub xTruncate: Option<unsafe extern "C" fn(File, i64) -> c_int>,
    pub xSync: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xFileSize: Option<unsafe extern "C" fn(File, *mut i64) -> c_int>,
    pub xLock: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xUnlock: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xCheckReservedLock: Option<unsafe extern "C" fn(File, *mut c_int) -> c_int>,
    pub xFileControl: Option<unsafe extern "C" fn(File, c_int, *mut c_void) -> c_int>,
    pub xSectorSize: Option<unsafe extern "C" fn(File) -> c_int>,
    pub xDeviceCharacteristics: Option<unsafe extern "C" fn(File) -> c_int>,
    pub xShmMap: Option<unsafe extern "C" fn(File, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub xShmLock: Option<unsafe extern "C" fn(File, c_int, c_int, c_int) -> c_int>,
    pub xShmBarrier: Option<unsafe extern "C" fn(File)>,
    pub xShmUnmap: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xFetch: Option<unsafe extern "C" fn(File, i64, c_int, *mut *mut c_void) -> c_int>,
    pub xUnfetch: Option<unsafe extern "C" fn(File, i64, *mut c_void) -> c_int>,
}

type Vfs = *mut sqlite3_vfs;

/// What `xDlSym` finds.
pub type Symbol = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub struct sqlite3_vfs {
    pub iVersion: c_int,
    pub szOsFile: c_int,
    pub mxPathname: c_int,
    pub pNext: Vfs,
    pub zName: *const c_char,
    pub pAppData: *mut c_void,
    pub xOpen: Option<unsafe extern "C" fn(Vfs, *const c_char, File, c_int, *mut c_int) -> c_int>,
    pub xDelete: Option<unsafe extern "C" fn(Vfs, *const c_char, c_int) -> c_int>,
    pub xAccess: Option<unsafe extern "C" fn(Vfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub xFullPathname: Option<unsafe extern "C" fn(Vfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub xDlOpen: Option<unsafe extern "C" fn(Vfs, *const c_char) -> *mut c_void>,
    pub xDlError: Option<unsafe extern "C" fn(Vfs, c_int, *mut c_char)>,
    pub xDlSym: Option<unsafe extern "C" fn(Vfs, *mut c_void, *const c_char) -> Symbol>,
    pub xDlClose: Option<unsafe extern "C" fn(Vfs, *mut c_void)>,
    pub xRandomness: Option<unsafe extern "C" fn(Vfs, c_int, *mut c_char) -> c_int>,
    pub xSleep: Option<unsafe extern "C" fn(Vfs, c_int) -> c_int>,
    pub xCurrentTime: Option<unsafe extern "C" fn(Vfs, *mut c_double) -> c_int>,
    pub xGetLastError: Option<unsafe extern "C" fn(Vfs, c_int, *mut c_char) -> c_int>,
    pub xCurrentTimeInt64: Option<unsafe extern "C" fn(Vfs, *mut i64) -> c_int>,
    pub xSetSystemCall: Option<unsafe extern "C" fn(Vfs, *const c_char, Symbol) -> c_int>,
    pub xGetSystemCall: Option<unsafe extern "C" fn(Vfs, *const c_char) -> Symbol>,
    pub xNextSystemCall: Option<unsafe extern "C" fn(Vfs, *const c_char) -> *const c_char>,
}

#[repr(C)]
pub struct sqlite3_vtab {
    pub pModule: *const sqlite3_module,
    pub nRef: c_int,
    pub zErrMsg: *mut c_char,
}

#[repr(C)]
pub struct sqlite3_vtab_cursor {
    pub pVtab: *mut sqlite3_vtab,
}

#[repr(C)]
pub struct sqlite3_index_constraint {
    pub iColumn: c_int,
    pub op: c_uchar,
    pub usable: c_uchar,
    pub iTermOffset: c_int,
}

#[repr(C)]
pub struct sqlite3_index_orderby {
    pub iColumn: c_int,
    pub desc: c_uchar,
}

#[repr(C)]
pub struct sqlite3_index_constraint_usage {
    pub argvIndex: c_int,
    pub omit: c_uchar,
}

#[repr(C)]
pub struct sqlite3_index_info {
    pub nConstraint: c_int,
    pub aConstraint: *mut sqlite3_index_constraint,
    pub nOrderBy: c_int,
    pub aOrderBy: *mut sqlite3_index_orderby,
    pub aConstraintUsage: *mut sqlite3_index_constraint_usage,
    pub idxNum: c_int,
    pub idxStr: *mut c_char,
    pub needToFreeIdxStr: c_int,
    pub orderByConsumed: c_int,
    pub estimatedCost: f64,
    pub estimatedRows: i64,
    pub idxFlags: c_int,
    pub colUsed: u64,
}

type Create = unsafe extern "C" fn(
    *mut sqlite3,
    *mut c_void,
    c_int,
    *const *const c_char,
    *mut *mut sqlite3_vtab,
    *mut *mut c_char,
) -> c_int;

type Find = unsafe extern "C" fn(
    *mut sqlite3_vtab,
    c_int,
    *const c_char,
    *mut Option<ScalarFunction>,
    *mut *mut c_void,
) -> c_int;

type Vtab = *mut sqlite3_vtab;
type Cursor = *mut sqlite3_vtab_cursor;

#[repr(C)]
pub struct sqlite3_module {
    pub iVersion: c_int,
    pub xCreate: Option<Create>,
    pub xConnect: Option<Create>,
    pub xBestIndex: Option<unsafe extern "C" fn(Vtab, *mut sqlite3_index_info) -> c_int>,
    pub xDisconnect: Option<unsafe extern "C" fn(Vtab) -> c_int>,
    pub xDestroy: Option<unsafe extern "C" fn(Vtab) -> c_int>,
    pub xOpen: Option<unsafe extern "C" fn(Vtab, *mut *mut sqlite3_vtab_cursor) -> c_int>,
    pub xClose: Option<unsafe extern "C" fn(Cursor) -> c_int>,
    pub xFilter:
        Option<unsafe extern "C" fn(Cursor, c_int, *const c_char, c_int, *mut *mut sqlite3_value) -> c_int>,
    pub xNext: Option<unsafe extern "C" fn(Cursor) -> c_int>,
    pub xEof: Option<unsafe extern "C" fn(Cursor) -> c_int>,
    pub xColumn: Option<unsafe extern "C" fn(Cursor, *mut sqlite3_context, c_int) -> c_int>,
    pub xRowid: Option<unsafe extern "C" fn(Cursor, *mut i64) -> c_int>,
    pub xUpdate: Option<unsafe extern "C" fn(Vtab, c_int, *mut *mut sqlite3_value, *mut i64) -> c_int>,
    pub xBegin: Option<unsafe extern "C" fn(Vtab) -> c_int>,
    pub xSync: Option<unsafe extern "C" fn(Vtab) -> c_int>,
    pub xCommit: Option<unsafe extern "C" fn(Vtab) -> c_int>,
    pub xRollback: Option<unsafe extern "C" fn(Vtab) -> c_int>,
    pub xFindFunction: Option<Find>,
    pub xRename: Option<unsafe extern "C" fn(Vtab, *const c_char) -> c_int>,
    pub xSavepoint: Option<unsafe extern "C" fn(Vtab, c_int) -> c_int>,
    pub xRelease: Option<unsafe extern "C" fn(Vtab, c_int) -> c_int>,
    pub xRollbackTo: Option<unsafe extern "C" fn(Vtab, c_int) -> c_int>,
    pub xShadowName: Option<unsafe extern "C" fn(*const c_char) -> c_int>,
}

/// An SQL function's implementation.
pub type ScalarFunction = unsafe extern "C" fn(*mut sqlite3_context, c_int, *mut *mut sqlite3_value);

/// What is asked for leave when a statement is prepared.
pub type Authorizer = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
) -> c_int;

/// What is called now and then while a statement runs, and ends it by an answer other than 0.
pub type ProgressHandler = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What is called with a value's memory when it is not needed any more.
pub type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;

/// `SQLITE_TRANSIENT`: the callee makes a copy of its own.
pub const SQLITE_TRANSIENT: isize = -1;

pub const SQLITE_OK: c_int = 0;
pub const SQLITE_ERROR: c_int = 1;
pub const SQLITE_ERROR_SNAPSHOT: c_int = SQLITE_ERROR | (3 << 8);
pub const SQLITE_PERM: c_int = 3;
pub const SQLITE_BUSY: c_int = 5;
pub const SQLITE_NOMEM: c_int = 7;
pub const SQLITE_READONLY: c_int = 8;
pub const SQLITE_INTERRUPT: c_int = 9;
pub const SQLITE_IOERR: c_int = 10;
pub const SQLITE_CORRUPT: c_int = 11;
pub const SQLITE_NOTFOUND: c_int = 12;
pub const SQLITE_FULL: c_int = 13;
pub const SQLITE_CANTOPEN: c_int = 14;
pub const SQLITE_TOOBIG: c_int = 18;
pub const SQLITE_MISUSE: c_int = 21;
pub const SQLITE_NOTADB: c_int = 26;
pub const SQLITE_CONSTRAINT: c_int = 19;
pub const SQLITE_ROW: c_int = 100;
pub const SQLITE_DONE: c_int = 101;
pub const SQLITE_BUSY_SNAPSHOT: c_int = SQLITE_BUSY | (2 << 8);
pub const SQLITE_IOERR_READ: c_int = SQLITE_IOERR | (1 << 8);
pub const SQLITE_IOERR_SHORT_READ: c_int = SQLITE_IOERR | (2 << 8);
pub const SQLITE_IOERR_COMMIT_ATOMIC: c_int = SQLITE_IOERR | (30 << 8);
pub const SQLITE_IOERR_DATA: c_int = SQLITE_IOERR | (32 << 8);
pub const SQLITE_OK_LOAD_PERMANENTLY: c_int = SQLITE_OK | (1 << 8);

pub const SQLITE_OPEN_READONLY: c_int = 0x0000_0001;
pub const SQLITE_OPEN_READWRITE: c_int = 0x0000_0002;
pub const SQLITE_OPEN_CREATE: c_int = 0x0000_0004;
pub const SQLITE_OPEN_URI: c_int = 0x0000_0040;
pub const SQLITE_OPEN_MEMORY: c_int = 0x0000_0080;
pub const SQLITE_OPEN_MAIN_DB: c_int = 0x0000_0100;
pub const SQLITE_OPEN_NOMUTEX: c_int = 0x0000_8000;
pub const SQLITE_OPEN_FULLMUTEX: c_int = 0x0001_0000;
pub const SQLITE_OPEN_PRIVATECACHE: c_int = 0x0004_0000;
pub const SQLITE_OPEN_WAL: c_int = 0x0008_0000;

pub const SQLITE_LOCK_NONE: c_int = 0;
pub const SQLITE_LOCK_SHARED: c_int = 1;
pub const SQLITE_LOCK_RESERVED: c_int = 2;

pub const SQLITE_IOCAP_SAFE_APPEND: c_int = 0x0000_0200;
pub const SQLITE_IOCAP_SEQUENTIAL: c_int = 0x0000_0400;
pub const SQLITE_IOCAP_POWERSAFE_OVERWRITE: c_int = 0x0000_1000;

pub const SQLITE_FCNTL_LOCKSTATE: c_int = 1;
pub const SQLITE_FCNTL_SIZE_HINT: c_int = 5;
pub const SQLITE_FCNTL_CHUNK_SIZE: c_int = 6;
pub const SQLITE_FCNTL_FILE_POINTER: c_int = 7;
pub const SQLITE_FCNTL_OVERWRITE: c_int = 11;
pub const SQLITE_FCNTL_VFSNAME: c_int = 12;
pub const SQLITE_FCNTL_PRAGMA: c_int = 14;
pub const SQLITE_FCNTL_HAS_MOVED: c_int = 20;
pub const SQLITE_FCNTL_SYNC: c_int = 21;
pub const SQLITE_FCNTL_COMMIT_PHASETWO: c_int = 22;
pub const SQLITE_FCNTL_PDB: c_int = 30;
pub const SQLITE_FCNTL_RESERVE_BYTES: c_int = 38;

pub const SQLITE_DENY: c_int = 1;
pub const SQLITE_PRAGMA: c_int = 19;
pub const SQLITE_READ: c_int = 20;
pub const SQLITE_FUNCTION: c_int = 31;

pub const SQLITE_INTEGER: c_int = 1;
pub const SQLITE_FLOAT: c_int = 2;
pub const SQLITE_TEXT: c_int = 3;
pub const SQLITE_BLOB: c_int = 4;
pub const SQLITE_NULL: c_int = 5;
pub const SQLITE_UTF8: c_int = 1;
pub const SQLITE_DIRECTONLY: c_int = 0x0008_0000;
pub const SQLITE_INNOCUOUS: c_int = 0x0020_0000;
pub const SQLITE_INDEX_CONSTRAINT_EQ: c_uchar = 2;
