//! What SQLite calls of an open file.
//!
//! Owns: the two tables of methods, of SQL databases and of files in memory, and their way from C to Rust. Promises:
//! no panic leaves it. May call: `file`, `memory`, `commit`, `pragmas`.

use std::ffi::{c_char, c_int, c_void};

use crate::commit;
use crate::failure::{Failure, Result, shielded};
use crate::ffi::*;
use crate::file::MainFile;
use crate::host::Host;
use crate::memory::MemoryFile;
use crate::pragmas;

/// The engine's page: writing less is not cheaper.
const SECTOR_BYTES: c_int = 4096;

/// What `szOsFile` has room for.
#[repr(C)]
pub struct OpenFile {
    base: sqlite3_file,
    host: *const Host,
    /// A `MainFile` or a `MemoryFile`, as the methods say.
    inner: *mut c_void,
}

static MAIN_METHODS: sqlite3_io_methods = sqlite3_io_methods {
    // Without what comes with version 2, shared memory, SQLite does not turn to WAL.
    iVersion: 3,
    xClose: Some(main_close),
    xRead: Some(main_read),
    xWrite: Some(main_write),
    xTruncate: Some(main_truncate),
    xSync: Some(main_sync),
    xFileSize: Some(main_file_size),
    xLock: Some(main_lock),
    xUnlock: Some(main_unlock),
    xCheckReservedLock: Some(main_check_reserved_lock),
    xFileControl: Some(main_file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: Some(main_fetch),
    xUnfetch: Some(main_unfetch),
};

static MEMORY_METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(memory_close),
    xRead: Some(memory_read),
    xWrite: Some(memory_write),
    xTruncate: Some(memory_truncate),
    xSync: Some(memory_ignore),
    xFileSize: Some(memory_file_size),
    xLock: Some(memory_ignore),
    xUnlock: Some(memory_ignore),
    xCheckReservedLock: Some(memory_check_reserved_lock),
    xFileControl: Some(memory_file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Makes what SQLite has allocated for a file one of ours.
///
/// # Safety
/// `file` has room for an [`OpenFile`].
pub unsafe fn open_main(file: *mut sqlite3_file, main: MainFile) {
    let host: *const Host = main.host;
    let inner = Box::into_raw(Box::new(main)).cast();
    let open = OpenFile { base: sqlite3_file { pMethods: &MAIN_METHODS }, host, inner };
    // SAFETY: there is room.
    unsafe { file.cast::<OpenFile>().write(open) };
}

/// Makes what SQLite has allocated for a file one in memory.
///
/// # Safety
/// `file` has room for an [`OpenFile`].
pub unsafe fn open_memory(file: *mut sqlite3_file, host: &'static Host) {
    let inner = Box::into_raw(Box::<MemoryFile>::default()).cast();
    let open = OpenFile { base: sqlite3_file { pMethods: &MEMORY_METHODS }, host, inner };
    // SAFETY: there is room.
    unsafe { file.cast::<OpenFile>().write(open) };
}

/// The SQL database behind a file, if it is one of ours.
pub fn main_file(file: *mut sqlite3_file) -> Option<*mut MainFile> {
    if file.is_null() {
        return None;
    }
    // SAFETY: a file begins with the address of its methods; with ours, it is an `OpenFile` with a `MainFile`.
    unsafe {
        std::ptr::eq((*file).pMethods, &MAIN_METHODS)
            .then(|| (*file.cast::<OpenFile>()).inner.cast::<MainFile>())
    }
}

/// Calls `body` with the SQL database that a method was called of.
///
/// # Safety
/// `file` was made by [`open_main`] and is not closed; SQLite lets one thread at a time call it.
#[inline]
unsafe fn with_main(file: *mut sqlite3_file, body: impl FnOnce(&mut MainFile) -> Result<c_int>) -> c_int {
    // SAFETY: as promised.
    let (host, main) = unsafe {
        let open = &*file.cast::<OpenFile>();
        (&*open.host, &mut *open.inner.cast::<MainFile>())
    };
    shielded(&host.api, || body(main))
}

/// Calls `body` with the file in memory that a method was called of.
///
/// # Safety
/// As [`with_main`], for [`open_memory`].
unsafe fn with_memory(file: *mut sqlite3_file, body: impl FnOnce(&mut MemoryFile) -> Result<c_int>) -> c_int {
    // SAFETY: as promised.
    let (host, memory) = unsafe {
        let open = &*file.cast::<OpenFile>();
        (&*open.host, &mut *open.inner.cast::<MemoryFile>())
    };
    shielded(&host.api, || body(memory))
}

/// The buffer that SQLite reads into.
///
/// # Safety
/// `out` has `amount` bytes.
#[inline]
unsafe fn buffer<'b>(out: *mut c_void, amount: c_int) -> &'b mut [u8] {
    let amount = usize::try_from(amount).unwrap_or(0);
    // SAFETY: as promised; SQLite's buffers are initialised, or are about to be written in whole.
    unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), amount) }
}

/// The bytes that SQLite writes.
///
/// # Safety
/// `data` has `amount` bytes.
#[inline]
unsafe fn bytes<'b>(data: *const c_void, amount: c_int) -> &'b [u8] {
    let amount = usize::try_from(amount).unwrap_or(0);
    // SAFETY: as promised.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), amount) }
}

fn whole(whole: bool) -> c_int {
    if whole { SQLITE_OK } else { SQLITE_IOERR_SHORT_READ }
}

unsafe extern "C" fn main_close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite calls it once, with a file that `open_main` made.
    unsafe {
        let host = &*(*file.cast::<OpenFile>()).host;
        let main = Box::from_raw((*file.cast::<OpenFile>()).inner.cast::<MainFile>());
        (*file).pMethods = std::ptr::null();
        shielded(&host.api, || {
            drop(main);
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn main_read(
    file: *mut sqlite3_file,
    out: *mut c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_main(file, |main| Ok(whole(main.read(buffer(out, amount), offset)?))) }
}

unsafe extern "C" fn main_write(
    file: *mut sqlite3_file,
    data: *const c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_main(file, |main| main.write(bytes(data, amount), offset).map(|()| SQLITE_OK)) }
}

unsafe extern "C" fn main_truncate(file: *mut sqlite3_file, bytes: i64) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_main(file, |main| main.truncate(bytes).map(|()| SQLITE_OK)) }
}

unsafe extern "C" fn main_sync(file: *mut sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        with_main(file, |main| {
            main.sync();
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn main_file_size(file: *mut sqlite3_file, out: *mut i64) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        with_main(file, |main| {
            *out = main.bytes()?;
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn main_lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_main(file, |main| main.lock(level).map(|()| SQLITE_OK)) }
}

unsafe extern "C" fn main_unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        with_main(file, |main| {
            main.unlock(level);
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn main_check_reserved_lock(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        with_main(file, |main| {
            *out = c_int::from(main.database.is_locked());
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn main_fetch(
    file: *mut sqlite3_file,
    offset: i64,
    amount: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        *out = std::ptr::null_mut();
        with_main(file, |main| {
            *out = main.fetch(offset, amount)?;
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn main_unfetch(_file: *mut sqlite3_file, _offset: i64, _page: *mut c_void) -> c_int {
    // An image stays until SQLite has let go all pages, and goes with the file at the latest.
    SQLITE_OK
}

unsafe extern "C" fn main_file_control(
    file: *mut sqlite3_file,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: what SQLite passes; the argument is of the type that belongs to the operation.
    unsafe {
        if operation == SQLITE_FCNTL_PRAGMA {
            let OpenFile { host, inner, .. } = *file.cast::<OpenFile>();
            return shielded(&(*host).api, || Ok(pragmas::pragma(inner.cast(), argument.cast())));
        }
        with_main(file, |main| {
            match operation {
                SQLITE_FCNTL_LOCKSTATE => *argument.cast::<c_int>() = main.level,
                SQLITE_FCNTL_HAS_MOVED => *argument.cast::<c_int>() = 0,
                SQLITE_FCNTL_SIZE_HINT | SQLITE_FCNTL_CHUNK_SIZE => {}
                SQLITE_FCNTL_OVERWRITE => commit::made_anew(main),
                SQLITE_FCNTL_VFSNAME => *argument.cast::<*mut c_char>() = main.host.api.text("bygone"),
                SQLITE_FCNTL_PDB => main.set_connection(argument.cast::<*mut sqlite3>()),
                SQLITE_FCNTL_SYNC => commit::phase_one(main),
                SQLITE_FCNTL_COMMIT_PHASETWO => commit::phase_two(main)?,
                _ => return Ok(SQLITE_NOTFOUND),
            }
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn sector_size(_file: *mut sqlite3_file) -> c_int {
    SECTOR_BYTES
}

unsafe extern "C" fn device_characteristics(_file: *mut sqlite3_file) -> c_int {
    // A commit is whole or not there, whatever was written in it in which order.
    SQLITE_IOCAP_SAFE_APPEND | SQLITE_IOCAP_SEQUENTIAL | SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn memory_close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite calls it once, with a file that `open_memory` made.
    unsafe {
        drop(Box::from_raw((*file.cast::<OpenFile>()).inner.cast::<MemoryFile>()));
        (*file).pMethods = std::ptr::null();
    }
    SQLITE_OK
}

unsafe extern "C" fn memory_read(
    file: *mut sqlite3_file,
    out: *mut c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_memory(file, |memory| Ok(whole(memory.read(buffer(out, amount), offset)?))) }
}

unsafe extern "C" fn memory_write(
    file: *mut sqlite3_file,
    data: *const c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_memory(file, |memory| memory.write(bytes(data, amount), offset).map(|()| SQLITE_OK)) }
}

unsafe extern "C" fn memory_truncate(file: *mut sqlite3_file, bytes: i64) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { with_memory(file, |memory| memory.truncate(bytes).map(|()| SQLITE_OK)) }
}

unsafe extern "C" fn memory_file_size(file: *mut sqlite3_file, out: *mut i64) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        with_memory(file, |memory| {
            *out = memory.bytes();
            Ok(SQLITE_OK)
        })
    }
}

unsafe extern "C" fn memory_ignore(_file: *mut sqlite3_file, _what: c_int) -> c_int {
    SQLITE_OK
}

unsafe extern "C" fn memory_check_reserved_lock(_file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe { *out = 0 };
    SQLITE_OK
}

unsafe extern "C" fn memory_file_control(
    _file: *mut sqlite3_file,
    operation: c_int,
    _argument: *mut c_void,
) -> c_int {
    match operation {
        SQLITE_FCNTL_SIZE_HINT | SQLITE_FCNTL_CHUNK_SIZE => SQLITE_OK,
        _ => SQLITE_NOTFOUND,
    }
}

/// What SQLite must be told when a file could not be opened: that there is nothing to close.
///
/// # Safety
/// `file` has room for a `sqlite3_file`.
pub unsafe fn not_opened(file: *mut sqlite3_file, failure: Failure) -> Result<c_int> {
    // SAFETY: there is room.
    unsafe { (*file).pMethods = std::ptr::null() };
    Err(failure)
}
