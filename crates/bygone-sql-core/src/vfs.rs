//! The VFS `bygone`.
//!
//! Owns: what SQLite calls of it, and its registration. Promises: as `methods`. May call: `methods`, `directory`,
//! `moment`.
//!
//! A database is named by a Bygone directory; parameters of its URI say more: `db` (the SQL database in it, `main`
//! unless said), `as_of` (a moment as `moment` understands it), `history_dir`, `cache_bytes`. All else that SQLite
//! opens is temporary, and lives in memory; what has nothing to do with files is left to the system's VFS.

use std::ffi::{CStr, OsStr, c_char, c_double, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use crate::directory::{self, Handle, Opening};
use crate::failure::{self, Failure, Result, shielded};
use crate::ffi::*;
use crate::file::{MainFile, Past};
use crate::host::Host;
use crate::methods::{self, OpenFile};
use crate::moment;

/// The VFS's name.
pub const NAME: &CStr = c"bygone";

/// The parameter by which the Rust API names a directory that is open: its number.
pub const NUMBER_PARAMETER: &CStr = c"bygone_number";

/// The longest path, in bytes.
const PATH_BYTES_MAX: c_int = 4096;

/// Registers the VFS with the SQLite that we are in; again, this does nothing.
///
/// # Errors
/// SQLite's code if it refuses.
pub fn register(host: &'static Host) -> std::result::Result<(), c_int> {
    static REGISTERED: Mutex<bool> = Mutex::new(false);
    let mut registered = directory::locked(&REGISTERED);
    if *registered {
        return Ok(());
    }
    // It stays for ever, as SQLite asks of a VFS.
    let vfs = Box::leak(Box::new(sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<OpenFile>() as c_int,
        mxPathname: PATH_BYTES_MAX,
        pNext: std::ptr::null_mut(),
        zName: NAME.as_ptr(),
        pAppData: std::ptr::from_ref(host).cast_mut().cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: Some(dl_open),
        xDlError: Some(dl_error),
        xDlSym: Some(dl_sym),
        xDlClose: Some(dl_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(get_last_error),
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }));
    // SAFETY: it stays where it is, and is whole.
    match unsafe { (host.api.vfs_register)(vfs, 0) } {
        SQLITE_OK => {
            *registered = true;
            Ok(())
        }
        code => Err(code),
    }
}

/// # Safety
/// `vfs` is one that [`register`] made.
unsafe fn host(vfs: *mut sqlite3_vfs) -> &'static Host {
    // SAFETY: as promised.
    unsafe { &*(*vfs).pAppData.cast::<Host>() }
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        let host = host(vfs);
        shielded(&host.api, || {
            let mut flags = flags;
            if flags & SQLITE_OPEN_MAIN_DB == 0 {
                if flags & SQLITE_OPEN_WAL != 0 {
                    return methods::not_opened(file, Failure::code(SQLITE_CANTOPEN));
                }
                methods::open_memory(file, host);
            } else {
                let main = match open_main(host, name, file, flags) {
                    Ok(main) => main,
                    Err(failure) => return methods::not_opened(file, failure),
                };
                if main.read_only {
                    flags |= SQLITE_OPEN_READONLY;
                }
                // This says that the journal is to be kept in memory.
                flags |= SQLITE_OPEN_MEMORY;
                methods::open_main(file, main);
            }
            if !out_flags.is_null() {
                *out_flags = flags;
            }
            Ok(SQLITE_OK)
        })
    }
}

/// # Safety
/// `name` is what SQLite passes to `xOpen` of a main database.
unsafe fn open_main(
    host: &'static Host,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
) -> Result<MainFile> {
    if name.is_null() {
        return Err(Failure::new(SQLITE_CANTOPEN, "an SQL database has the name of a Bygone directory"));
    }
    // SAFETY: as promised.
    let parameter = |parameter: &CStr| unsafe { host.api.parameter(name, parameter) };
    // SAFETY: as promised.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    // SAFETY: as promised.
    let (immutable, nolock) =
        unsafe { (host.api.says_yes(name, c"immutable"), host.api.says_yes(name, c"nolock")) };
    if nolock && !immutable {
        let text = "nolock is not possible: SQLite's locks tell where transactions begin and end";
        return Err(Failure::new(SQLITE_CANTOPEN, text));
    }
    let as_of = parameter(c"as_of");
    let read_only = flags & SQLITE_OPEN_READONLY != 0 || as_of.is_some() || immutable;
    let opening = Opening {
        create: flags & SQLITE_OPEN_CREATE != 0,
        read_only,
        history_dir: parameter(c"history_dir").map(Into::into),
        cache_bytes: match parameter(c"cache_bytes") {
            None => None,
            Some(bytes) => Some(bytes.parse().map_err(|_| {
                Failure::new(SQLITE_CANTOPEN, format!("cache_bytes is a number of bytes, not {bytes:?}"))
            })?),
        },
    };
    let directory = match parameter(NUMBER_PARAMETER) {
        None => directory::open(path, &opening)?,
        Some(number) => number.parse().ok().and_then(directory::numbered).ok_or_else(|| {
            Failure::new(SQLITE_CANTOPEN, format!("no directory with the number {number} is open"))
        })?,
    };
    let name = parameter(c"db").unwrap_or_else(|| "main".to_owned());
    let database = directory.database(&name)?;
    let mut past = as_of.map(|text| past(&directory, &database.table, text)).transpose()?.flatten();
    if immutable && past.is_none() {
        // SQLite takes no locks, and never looks again whether its cache still holds.
        let view = directory.db.snapshot();
        past = Some(Past::new(format!("seq:{}", u64::from(view.seq())), view, &database.table)?);
    }
    let read_only = read_only || directory.read_only;
    let mut main = MainFile::new(host, file, directory, database, (read_only, past));
    main.is_immutable = immutable;
    if flags & SQLITE_OPEN_CREATE == 0 && !main.exists()? {
        return Err(Failure::new(
            SQLITE_CANTOPEN,
            format!("there is no SQL database {name:?} in {}", path.display()),
        ));
    }
    Ok(main)
}

/// The past that a text means; `None` for the present.
pub(crate) fn past(directory: &Handle, table: &str, text: String) -> Result<Option<Past>> {
    let Some(view) = moment::find(&directory.db, &text)? else { return Ok(None) };
    Past::new(text, view, table).map(Some)
}

/// Writes a part of a URI in such a way that nothing in it means anything.
pub fn push_escaped(uri: &mut String, part: &[u8]) {
    for byte in part {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            uri.push_str(&format!("%{byte:02x}"));
        }
    }
}

unsafe extern "C" fn delete(_vfs: *mut sqlite3_vfs, _name: *const c_char, _sync: c_int) -> c_int {
    // Only files that live in memory are deleted, and nothing is left of those that are closed.
    SQLITE_OK
}

unsafe extern "C" fn access(
    _vfs: *mut sqlite3_vfs,
    _name: *const c_char,
    _flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SQLite asks for journals that a crash left. There are none.
    // SAFETY: what SQLite passes.
    unsafe { *out = 0 };
    SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: what SQLite passes.
    unsafe {
        shielded(&host(vfs).api, || {
            let name = CStr::from_ptr(name);
            let path = std::path::absolute(OsStr::from_bytes(name.to_bytes()))
                .map_err(|error| Failure::new(SQLITE_CANTOPEN, format!("{name:?}: {error}")))?;
            let bytes = path.as_os_str().as_bytes();
            if bytes.len() >= usize::try_from(room).unwrap_or(0) {
                return Err(Failure::new(
                    SQLITE_CANTOPEN,
                    format!("the path is too long: {}", path.display()),
                ));
            }
            out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            out.add(bytes.len()).write(0);
            Ok(SQLITE_OK)
        })
    }
}

/// Hands a call to the system's VFS, if there is one that has this method.
macro_rules! delegated {
    ($name:ident, $method:ident, ($($argument:ident: $type:ty),*) -> $result:ty, $else:expr) => {
        unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs, $($argument: $type),*) -> $result {
            // SAFETY: what SQLite passes to us is what it would pass to the other one, which stays registered.
            unsafe {
                let parent = host(vfs).parent;
                match parent.as_ref().and_then(|parent| parent.$method) {
                    Some(method) => method(parent, $($argument),*),
                    None => $else,
                }
            }
        }
    };
}

delegated!(dl_open, xDlOpen, (name: *const c_char) -> *mut c_void, std::ptr::null_mut());
delegated!(dl_error, xDlError, (room: c_int, out: *mut c_char) -> (), ());
delegated!(dl_sym, xDlSym, (library: *mut c_void, name: *const c_char) -> Symbol, None);
delegated!(dl_close, xDlClose, (library: *mut c_void) -> (), ());
delegated!(randomness, xRandomness, (count: c_int, out: *mut c_char) -> c_int, 0);
delegated!(sleep, xSleep, (microseconds: c_int) -> c_int, 0);
delegated!(current_time, xCurrentTime, (out: *mut c_double) -> c_int, SQLITE_ERROR);
delegated!(current_time_int64, xCurrentTimeInt64, (out: *mut i64) -> c_int, SQLITE_ERROR);

unsafe extern "C" fn get_last_error(_vfs: *mut sqlite3_vfs, room: c_int, out: *mut c_char) -> c_int {
    let text = failure::last();
    let room = usize::try_from(room).unwrap_or(0);
    if room > 0 && !out.is_null() {
        let count = text.floor_char_boundary(room - 1);
        // SAFETY: there is room for the text and its end.
        unsafe {
            out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
            out.add(count).write(0);
        }
    }
    0
}
