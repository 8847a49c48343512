//! Our declarations of SQLite's interface, against those of `libsqlite3-sys`.
//!
//! Owns: the comparison. May call: both.

use std::mem::{align_of, offset_of, size_of};

use bygone_sql_core::ffi as ours;
use rusqlite::ffi as theirs;

/// Compares a structure field by field.
macro_rules! same {
    ($name:ident { $($field:ident),* $(,)? }) => {
        assert_eq!(size_of::<ours::$name>(), size_of::<theirs::$name>(), stringify!($name));
        assert_eq!(align_of::<ours::$name>(), align_of::<theirs::$name>(), stringify!($name));
        $(assert_eq!(
            offset_of!(ours::$name, $field),
            offset_of!(theirs::$name, $field),
            "{}.{}", stringify!($name), stringify!($field)
        );)*
    };
}

macro_rules! equal {
    ($($name:ident),* $(,)?) => {
        $(assert_eq!(i64::from(ours::$name), i64::from(theirs::$name), stringify!($name));)*
    };
}

#[test]
fn structures_are_laid_out_as_in_sqlite() {
    same!(sqlite3_file { pMethods });
    same!(sqlite3_io_methods {
        iVersion,
        xClose,
        xRead,
        xWrite,
        xTruncate,
        xSync,
        xFileSize,
        xLock,
        xUnlock,
        xCheckReservedLock,
        xFileControl,
        xSectorSize,
        xDeviceCharacteristics,
        xShmMap,
        xShmLock,
        xShmBarrier,
        xShmUnmap,
        xFetch,
        xUnfetch,
    });
    same!(sqlite3_vfs {
        iVersion,
        szOsFile,
        mxPathname,
        pNext,
        zName,
        pAppData,
        xOpen,
        xDelete,
        xAccess,
        xFullPathname,
        xDlOpen,
        xDlError,
        xDlSym,
        xDlClose,
        xRandomness,
        xSleep,
        xCurrentTime,
        xGetLastError,
        xCurrentTimeInt64,
        xSetSystemCall,
        xGetSystemCall,
        xNextSystemCall,
    });
    same!(sqlite3_vtab { pModule, nRef, zErrMsg });
    same!(sqlite3_vtab_cursor { pVtab });
    same!(sqlite3_index_info {
        nConstraint,
        aConstraint,
        nOrderBy,
        aOrderBy,
        aConstraintUsage,
        idxNum,
        idxStr,
        needToFreeIdxStr,
        orderByConsumed,
        estimatedCost,
        estimatedRows,
        idxFlags,
        colUsed,
    });
    // The last entry came with version 4, which our tables do not have.
    assert!(size_of::<ours::sqlite3_module>() <= size_of::<theirs::sqlite3_module>());
    assert_eq!(
        offset_of!(ours::sqlite3_module, xShadowName),
        offset_of!(theirs::sqlite3_module, xShadowName)
    );
}

#[test]
fn constants_are_those_of_sqlite() {
    equal!(
        SQLITE_OK,
        SQLITE_ERROR,
        SQLITE_ERROR_SNAPSHOT,
        SQLITE_PERM,
        SQLITE_BUSY,
        SQLITE_NOMEM,
        SQLITE_READONLY,
        SQLITE_IOERR,
        SQLITE_CORRUPT,
        SQLITE_NOTFOUND,
        SQLITE_FULL,
        SQLITE_CANTOPEN,
        SQLITE_TOOBIG,
        SQLITE_CONSTRAINT,
        SQLITE_MISUSE,
        SQLITE_NOTADB,
        SQLITE_ROW,
        SQLITE_DONE,
        SQLITE_BUSY_SNAPSHOT,
        SQLITE_IOERR_READ,
        SQLITE_IOERR_SHORT_READ,
        SQLITE_IOERR_COMMIT_ATOMIC,
        SQLITE_IOERR_DATA,
        SQLITE_OK_LOAD_PERMANENTLY,
        SQLITE_OPEN_READONLY,
        SQLITE_OPEN_CREATE,
        SQLITE_OPEN_MEMORY,
        SQLITE_OPEN_MAIN_DB,
        SQLITE_OPEN_WAL,
        SQLITE_LOCK_NONE,
        SQLITE_LOCK_SHARED,
        SQLITE_LOCK_RESERVED,
        SQLITE_IOCAP_SAFE_APPEND,
        SQLITE_IOCAP_SEQUENTIAL,
        SQLITE_IOCAP_POWERSAFE_OVERWRITE,
        SQLITE_FCNTL_LOCKSTATE,
        SQLITE_FCNTL_SIZE_HINT,
        SQLITE_FCNTL_CHUNK_SIZE,
        SQLITE_FCNTL_FILE_POINTER,
        SQLITE_FCNTL_VFSNAME,
        SQLITE_FCNTL_PRAGMA,
        SQLITE_FCNTL_HAS_MOVED,
        SQLITE_FCNTL_SYNC,
        SQLITE_FCNTL_COMMIT_PHASETWO,
        SQLITE_FCNTL_PDB,
        SQLITE_FCNTL_RESERVE_BYTES,
        SQLITE_UTF8,
        SQLITE_DIRECTONLY,
        SQLITE_INNOCUOUS,
        SQLITE_INTERRUPT,
        SQLITE_OPEN_READWRITE,
        SQLITE_OPEN_URI,
        SQLITE_OPEN_NOMUTEX,
        SQLITE_DENY,
        SQLITE_PRAGMA,
        SQLITE_READ,
        SQLITE_FUNCTION,
        SQLITE_INTEGER,
        SQLITE_FLOAT,
        SQLITE_TEXT,
        SQLITE_BLOB,
        SQLITE_NULL,
        SQLITE_INDEX_CONSTRAINT_EQ,
    );
}
