//! The Bygone directories that are open in this process, and the SQL databases in them.
//!
//! Owns: the one list of them, and each SQL database's writer lock. Promises: all connections of a process share one
//! open database a directory, which is the application's own if it has it open; it is closed with the last that has a
//! share, and whoever opens it again waits until it is. May call: `failure`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bygone::{Db, Error, Options};

use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_BUSY, SQLITE_CANTOPEN};
use crate::file::MainFile;

/// What the names of the tables begin with that hold SQL databases.
pub const TABLE_PREFIX: &str = "sql/";

/// The longest name of an SQL database, in bytes.
const NAME_BYTES_MAX: usize = bygone::limits::NAME_BYTES_MAX - TABLE_PREFIX.len();

static OPEN: Mutex<Vec<Arc<Directory>>> = Mutex::new(Vec::new());

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// One open Bygone database.
pub struct Directory {
    /// The engine's handle.
    pub db: Db,
    /// By which a connection asks for just this one.
    pub number: u64,
    /// Whether it is open for reading only.
    pub read_only: bool,
    path: PathBuf,
    databases: Mutex<BTreeMap<String, Weak<Database>>>,
    /// Files whose transaction has come to the end of SQLite's first phase, with their connections.
    pub(crate) ready: Mutex<Vec<Ready>>,
}

/// A file that is ready to be committed with the others of its connection.
pub(crate) struct Ready {
    /// The connection's address: to compare, never to follow.
    pub connection: usize,
    pub file: *mut MainFile,
}

// SAFETY: the pointer is followed only by the thread that is in a call of the connection of the same address, which
// SQLite lets only one thread be in; a file takes itself out of the list before it goes.
unsafe impl Send for Ready {}

/// One SQL database: what its connections in this process share.
pub struct Database {
    /// The table of its pages.
    pub table: String,
    /// Whether some connection writes.
    writing: AtomicBool,
    /// Used by who writes.
    lineage: Mutex<Lineage>,
}

/// What the commits of this process's connections were, so that it shows when one does not follow on the last: another
/// state was restored.
///
/// SQLite tells by a counter, the schema cookie, whether the schema that a connection knows still holds. Two states
/// that went apart could come to one number with different schemas. So the first commit to a restored state takes a
/// number that there never was.
#[derive(Default)]
struct Lineage {
    /// The state that the last commit left.
    latest: Option<u64>,
    /// The highest cookie that there was.
    highest: u32,
    /// None may be under this one any more: what comes with less was made by a connection that does not know it yet.
    least: u32,
}

impl Database {
    /// Takes the writer's lock, if it is free.
    pub fn try_lock(&self) -> bool {
        // Acquire: pairs with `unlock`, so that who writes next sees what the last one published.
        self.writing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the writer's lock back.
    pub fn unlock(&self) {
        // Release: pairs with `try_lock`.
        self.writing.store(false, Ordering::Release);
    }

    /// The cookie that a commit is to have, if not the one that SQLite gave it.
    pub fn corrected_cookie(&self, begun: u64, cookie: u32) -> Option<u32> {
        let lineage = locked(&self.lineage);
        let follows = lineage.latest.is_none_or(|latest| latest == begun);
        if follows && cookie >= lineage.least {
            None
        } else {
            Some(lineage.highest.max(cookie).wrapping_add(1))
        }
    }

    /// A commit has left this state with this cookie; `corrected` if it was not SQLite's.
    pub fn committed(&self, state: u64, cookie: u32, corrected: bool) {
        let mut lineage = locked(&self.lineage);
        lineage.latest = Some(state);
        lineage.highest = lineage.highest.max(cookie);
        if corrected {
            lineage.least = cookie;
        }
    }

    /// Whether somebody writes just now.
    pub fn is_locked(&self) -> bool {
        // Relaxed: a figure that may be out of date when it is looked at.
        self.writing.load(Ordering::Relaxed)
    }
}

/// How a directory is to be opened, if it is not open yet.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// To make it if there is none.
    pub create: bool,
    /// To read only, also beside another process that writes.
    pub read_only: bool,
    /// As [`Options::history_dir`].
    pub history_dir: Option<PathBuf>,
    /// As [`Options::cache_bytes`].
    pub cache_bytes: Option<usize>,
}

impl Opening {
    fn options(&self) -> Options {
        let mut options = Options::new().create(self.create && !self.read_only).read_only(self.read_only);
        if let Some(history_dir) = &self.history_dir {
            options = options.history_dir(history_dir);
        }
        if let Some(bytes) = self.cache_bytes {
            options = options.cache_bytes(bytes);
        }
        options
    }
}

/// A share in an open directory.
pub struct Handle {
    directory: Option<Arc<Directory>>,
}

impl Handle {
    fn new(directory: &Arc<Directory>) -> Handle {
        Handle { directory: Some(directory.clone()) }
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        Handle { directory: self.directory.clone() }
    }
}

impl Deref for Handle {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        match &self.directory {
            Some(directory) => directory,
            None => unreachable!("a handle lets its directory go only when it is dropped"),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Under the lock, so that whoever opens the directory again meets it closed.
        let mut open = locked(&OPEN);
        let Some(directory) = self.directory.take() else { return };
        // The list's share and this one.
        if Arc::strong_count(&directory) == 2 {
            open.retain(|other| !Arc::ptr_eq(other, &directory));
        }
        drop(directory);
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directory at a path, opened if it is not open.
///
/// # Errors
/// As [`Options::open`].
pub fn open(path: &Path, opening: &Opening) -> Result<Handle> {
    let mut open = locked(&OPEN);
    let key = key(path);
    let find = |read_only| open.iter().find(|other| other.path == key && other.read_only == read_only);
    let found = find(false).or_else(|| if opening.read_only { find(true) } else { None });
    if let Some(directory) = found {
        return Ok(Handle::new(directory));
    }
    if let Some(db) = Db::find_open(path) {
        return Ok(share_in(&mut open, &db));
    }
    match opening.options().open(path) {
        Ok(db) => Ok(push(&mut open, db, opening.read_only)),
        // By the application itself, with a copy of the engine that is not ours, or it is about to close it.
        Err(Error::Locked { path, owner: Some(owner) }) if owner == std::process::id() => {
            let text = format!(
                "{} is open in this process, by another library than this one: it must open connections itself, \
                 in Rust by `Db::sql`",
                path.display()
            );
            Err(Failure::new(SQLITE_BUSY, text))
        }
        // Where nobody may write, it is opened for reading, as SQLite does with files.
        Err(error) if !opening.read_only && error.forbids_writing() => {
            if let Some(directory) = find(true) {
                return Ok(Handle::new(directory));
            }
            let opening = Opening { read_only: true, ..opening.clone() };
            match opening.options().open(path) {
                Ok(db) => Ok(push(&mut open, db, true)),
                Err(_) => Err(error.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// The directory of a database that the application has opened itself.
pub fn share(db: &Db) -> Handle {
    share_in(&mut locked(&OPEN), db)
}

fn share_in(open: &mut Vec<Arc<Directory>>, db: &Db) -> Handle {
    if let Some(directory) = open.iter().find(|directory| directory.db == *db) {
        return Handle::new(directory);
    }
    let read_only = db.is_read_only();
    push(open, db.clone(), read_only)
}

/// The directory that has this number.
pub fn numbered(number: u64) -> Option<Handle> {
    locked(&OPEN).iter().find(|directory| directory.number == number).map(Handle::new)
}

fn push(open: &mut Vec<Arc<Directory>>, db: Db, read_only: bool) -> Handle {
    // Now that it exists the path can be looked up.
    let path = key(db.path());
    let directory = Arc::new(Directory {
        db,
        // Relaxed: only that no two are equal counts.
        number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        read_only,
        path,
        databases: Mutex::default(),
        ready: Mutex::default(),
    });
    open.push(directory.clone());
    Handle { directory: Some(directory) }
}

/// What a path is compared by.
fn key(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

impl Directory {
    /// The SQL database of this name, whether there is anything in it or not.
    ///
    /// # Errors
    /// For a name that no table can have.
    pub fn database(&self, name: &str) -> Result<Arc<Database>> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let text =
                format!("the name of an SQL database has 1 to {NAME_BYTES_MAX} bytes, not {}", name.len());
            return Err(Failure::new(SQLITE_CANTOPEN, text));
        }
        let mut databases = locked(&self.databases);
        if let Some(database) = databases.get(name).and_then(Weak::upgrade) {
            return Ok(database);
        }
        databases.retain(|_, database| database.strong_count() > 0);
        let table = format!("{TABLE_PREFIX}{name}");
        let database =
            Arc::new(Database { table, writing: AtomicBool::new(false), lineage: Mutex::default() });
        databases.insert(name.to_owned(), Arc::downgrade(&database));
        Ok(database)
    }
}
