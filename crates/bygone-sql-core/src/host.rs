//! The SQLite that we are in.
//!
//! Owns: [`Host`], and asking a connection for its files. Promises: there is one in a process, for ever. May call:
//! `api`, `file`, `methods`.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;

use crate::api::Api;
use crate::ffi::*;
use crate::file::MainFile;
use crate::methods;
use crate::pages::reserved_bytes;

/// The SQLite library that has the VFS.
pub struct Host {
    /// Its functions.
    pub api: Api,
    /// The VFS that was the default one, for all that has to do with the system rather than with files.
    pub parent: *mut sqlite3_vfs,
}

// SAFETY: the functions may be called from any thread, and so may those of a registered VFS, which stays where it is.
unsafe impl Sync for Host {}
// SAFETY: as above.
unsafe impl Send for Host {}

static HOST: OnceLock<Host> = OnceLock::new();

impl Host {
    /// The SQLite of this process that we are in; `None` before [`found`](Host::found).
    pub fn get() -> Option<&'static Host> {
        HOST.get()
    }

    /// Takes an SQLite as the one that we are in. `None` if we are in another one already: functions, files and
    /// connections of two libraries in one process do not mix.
    pub fn found(api: Api) -> Option<&'static Host> {
        // SAFETY: null stands for the default VFS.
        let parent = || unsafe { (api.vfs_find)(std::ptr::null()) };
        let host = HOST.get_or_init(|| Host { api, parent: parent() });
        std::ptr::fn_addr_eq(host.api.vfs_register, api.vfs_register).then_some(host)
    }

    /// The names of a connection's databases: main, temp, and what is attached.
    pub fn schemas(&self, connection: *mut sqlite3) -> Vec<CString> {
        self.names(connection).collect()
    }

    /// The same, each asked for when it is needed.
    fn names(&self, connection: *mut sqlite3) -> impl Iterator<Item = CString> + '_ {
        let name = move |index: c_int| {
            // SAFETY: the connection is open; any index may be asked for.
            let name = unsafe { (self.api.db_name)(connection, index) };
            // SAFETY: null, or a text that stays until the connection is used again.
            (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
        };
        (0..).map_while(name)
    }

    /// The file of one of a connection's databases.
    fn file(&self, connection: *mut sqlite3, schema: &CStr) -> *mut sqlite3_file {
        let mut file: *mut sqlite3_file = std::ptr::null_mut();
        let out: *mut *mut sqlite3_file = &mut file;
        // SAFETY: this control writes a pointer, and does nothing else.
        let code = unsafe {
            (self.api.file_control)(
                connection,
                schema.as_ptr(),
                SQLITE_FCNTL_FILE_POINTER,
                out.cast::<c_void>(),
            )
        };
        if code == SQLITE_OK { file } else { std::ptr::null_mut() }
    }

    /// One of a connection's databases, if it is one of ours.
    pub fn main_file(&self, connection: *mut sqlite3, schema: &CStr) -> Option<*mut MainFile> {
        methods::main_file(self.file(connection, schema))
    }

    /// All databases of a connection that are ours, with their names; main first.
    pub fn main_files(
        &self,
        connection: *mut sqlite3,
    ) -> impl Iterator<Item = (CString, *mut MainFile)> + '_ {
        self.names(connection).filter_map(move |schema| {
            let file = self.main_file(connection, &schema)?;
            Some((schema, file))
        })
    }

    /// Asks SQLite to leave the end of each page to us, in a database that is empty still. SQLite calls us from within
    /// the beginning of a read transaction, before it has looked at the first page; all that the control does then is
    /// to note the number.
    pub(crate) fn reserve_bytes(&self, file: &mut MainFile) {
        let connection = file.connection();
        let wanted = reserved_bytes(file.page_bytes_wanted);
        if connection.is_null() {
            return;
        }
        let is_this = |schema: &CString| self.file(connection, schema) == file.handle;
        let Some(schema) = self.names(connection).find(is_this) else { return };
        let control = |number: &mut c_int| {
            let number: *mut c_int = number;
            // SAFETY: this control reads and writes one number.
            unsafe {
                (self.api.file_control)(
                    connection,
                    schema.as_ptr(),
                    SQLITE_FCNTL_RESERVE_BYTES,
                    number.cast::<c_void>(),
                )
            }
        };
        let mut asked_for = -1;
        // What somebody else has asked for stays.
        if control(&mut asked_for) == SQLITE_OK && asked_for == c_int::from(file.reserved_bytes) {
            control(&mut c_int::from(wanted));
            file.reserved_bytes = wanted;
        }
    }
}
