//! The databases that this process has open for writing.
//!
//! Owns: the one list of them. Promises: it keeps none open; a database is found by whatever path leads to it. May
//! call: `io`.
//!
//! A database is known by its lock file: that file is held open as long as the directory is locked, so no other can be
//! taken for it, whatever is renamed or removed meanwhile.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::open::LOCK_FILE;
use super::{Db, Open};
use crate::io::{FileIdentity, identity};

static OPENED: Mutex<Vec<(FileIdentity, Weak<Open>)>> = Mutex::new(Vec::new());

impl Db {
    /// The database in a directory, if this process has it open for writing: another handle to it, by which parts of a
    /// program share it that know nothing of each other. `None` if it is not open here, is open for reading only, or
    /// lies on a [disk of the caller's](crate::Options::open_on).
    pub fn find_open(path: impl AsRef<Path>) -> Option<Db> {
        let identity = identity(&path.as_ref().join(LOCK_FILE)).ok()?;
        let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let found = opened.iter().filter(|(other, _)| *other == identity);
        found.filter_map(|(_, open)| open.upgrade()).map(|open| Db { open }).next()
    }

    /// Puts a database on the list that was opened for writing on the system's disk.
    pub(super) fn note_open(&self) {
        // If it cannot be told apart, nobody finds it, as if it were another process's.
        let Ok(identity) = identity(&self.path().join(LOCK_FILE)) else { return };
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(_, open)| open.strong_count() > 0);
        opened.push((identity, Arc::downgrade(&self.open)));
    }
}
