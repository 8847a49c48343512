//! SQLite on Bygone, for whichever SQLite: the VFS, and what comes with it for SQL.
//!
//! Neither links an SQLite nor knows how it gets to one: `bygone-sql` gives it the one that it has linked, the loadable
//! extension the one that has loaded it. Applications use those two. This crate promises nothing to others.
//!
//! `ARCHITECTURE.md` tells how a transaction of SQLite's becomes one of the engine's.

pub mod api;
mod btree;
mod changes;
mod commit;
pub mod directory;
pub mod failure;
pub mod ffi;
mod file;
mod frames;
mod functions;
mod host;
mod memory;
mod methods;
mod moment;
pub mod pages;
mod pragmas;
#[cfg(test)]
#[path = "../../bygone/tests/support/random.rs"]
mod random;
mod repage;
mod seen;
mod session;
mod sets;
mod snapshots;
mod statement;
mod vfs;
mod vtab;
mod written;

use std::ffi::c_int;

use api::Api;
use host::Host;
pub use moment::{Moment, NoMoment, parse_time, understand, written as written_time};
pub use session::{OnProgress, SetProgress, SetStats};
pub use sets::{on_set_progress, set_stats, share_sets};
pub use vfs::{NUMBER_PARAMETER, push_escaped};

/// Registers the VFS with the SQLite of these functions. Once is enough; again it does nothing.
///
/// # Errors
/// `MISUSE` if another SQLite in this process has it; whatever code SQLite refuses it with.
pub fn register(api: Api) -> Result<(), c_int> {
    vfs::register(Host::found(api).ok_or(ffi::SQLITE_MISUSE)?)
}

/// Makes functions and tables known to a connection. Answers a code of SQLite's.
///
/// # Safety
/// The connection is one of the SQLite that was registered, and open.
pub unsafe fn prepare(connection: *mut ffi::sqlite3) -> c_int {
    let Some(host) = Host::get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: as promised.
    unsafe {
        let mut code = functions::register(host, connection);
        if code == ffi::SQLITE_OK {
            code = snapshots::register(host, connection);
        }
        if code == ffi::SQLITE_OK {
            code = sets::register(host, connection);
        }
        if code == ffi::SQLITE_OK {
            code = changes::register(host, connection);
        }
        code
    }
}
