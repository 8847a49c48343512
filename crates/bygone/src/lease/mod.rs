//! Leases: what a process that only reads needs of a database that another process writes.
//!
//! Owns: the directory `leases` of a database, the files in it and their format (`docs/format.md`). Promises: a lease
//! whose reader lives is found by every later [`Leases::look`], with terms that it once had; one whose reader has
//! ended, however it ended, is found no more. Knows nothing of what the terms keep: that is
//! `docs/other-processes.md`. May call: `io`, `codec`, `limits`, `error`, `ids`.
//!
//! A lease is a file that its reader keeps locked; the system gives the lock back when the process ends. Nothing in
//! it has to survive a power cut, which ends all readers, so nothing here is ever synced.

mod format;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use self::format::{ROOT_BYTES, Terms};

use self::format::LEASE_BYTES_MAX;
use crate::error::{Error, Result};
use crate::ids::random;
use crate::io::{Disk, File, LockOutcome, OpenMode, exists};
use crate::limits::LEASED_SNAPSHOTS_MAX;

/// Of a database directory.
pub(crate) const DIRECTORY: &str = "leases";

const SUFFIX: &str = ".lease";

/// How often, and after how long, a lease is read again that its reader is just writing. A write takes microseconds.
const READS: u32 = 20;
const READ_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// How often a lease is begun anew because an owner took its file, not locked yet, for a dead one.
const ATTEMPTS: u32 = 100;

/// What is told of a process that holds a snapshot by its lease.
pub(crate) fn holder(process: u32) -> String {
    format!("process {process}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reader's own lease. Ends when it is dropped, or with the process.
pub(crate) struct Lease {
    disk: Arc<dyn Disk>,
    file: File,
    state: Mutex<State>,
    /// Given back after the file is removed.
    _lock: Box<dyn Send + Sync>,
}

#[derive(Default)]
struct State {
    terms: Option<Terms>,
    held: BTreeMap<u64, Held>,
    /// Counts calls of [`Lease::hold`].
    clock: u64,
}

/// A declared snapshot that this process reads, or did a moment ago.
struct Held {
    seq: u64,
    /// How many are opening a view of it just now.
    opening: u32,
    /// When somebody last began to.
    at: u64,
}

impl Lease {
    /// Begins a lease, as yet without terms, on the database in a directory.
    ///
    /// # Errors
    /// `Io`: of kind `PermissionDenied` or `ReadOnlyFilesystem` if this process may not write there.
    pub fn take(disk: &Arc<dyn Disk>, database: &Path) -> Result<Lease> {
        let directory = database.join(DIRECTORY);
        if !exists(&**disk, &directory)? {
            disk.create_dir_all(&directory).map_err(|e| Error::io(&directory, "create", e))?;
        }
        for _ in 0..ATTEMPTS {
            let path = directory.join(format!("{}-{:016x}{SUFFIX}", std::process::id(), random()));
            drop(File::open(&**disk, &path, OpenMode::Create)?);
            let outcome = disk.lock(&path, true).map_err(|e| Error::io(&path, "lock", e))?;
            // An owner that looked between these two steps has the lock, or has removed the file: it removes only
            // what it has locked. From here on it finds the lock taken. Opened only now, so that this is the very
            // file that is locked.
            if let LockOutcome::Held(lock) = outcome
                && exists(&**disk, &path)?
            {
                let file = File::open(&**disk, &path, OpenMode::Write)?;
                return Ok(Lease { disk: disk.clone(), file, state: Mutex::default(), _lock: lock });
            }
            // Most likely it is gone already.
            let _ = disk.remove(&path);
        }
        let busy = std::io::Error::from(ErrorKind::ResourceBusy);
        Err(Error::io(&directory, "begin a lease in", busy))
    }

    /// States which base this process is going to read. It counts from the moment that this returns; what the owner
    /// let go before, the caller has to find out.
    pub fn pin(&self, database_id: u64, generation: u64, root: [u8; ROOT_BYTES]) -> Result<()> {
        let mut state = lock(&self.state);
        let snapshots = state.held.keys().copied().collect();
        let process = std::process::id();
        let terms = Terms { database_id, process, generation, root, snapshots };
        self.file.write_at(&terms.encode(), 0)?;
        state.terms = Some(terms);
        Ok(())
    }

    /// States that this process reads a declared snapshot, given with the number of its commit.
    ///
    /// # Errors
    /// `TooLarge` for too many at a time; `Io`.
    pub fn hold(&self, id: u64, seq: u64) -> Result<Opening<'_>> {
        let mut state = lock(&self.state);
        state.clock += 1;
        let at = state.clock;
        if let Some(held) = state.held.get_mut(&id) {
            held.opening += 1;
            held.at = at;
            return Ok(Opening { lease: self, id });
        }
        if state.held.len() >= LEASED_SNAPSHOTS_MAX {
            return Err(Error::TooLarge {
                what: "the number of snapshots that one process reads beside the owner",
                size: state.held.len() as u64 + 1,
                limit: LEASED_SNAPSHOTS_MAX as u64,
            });
        }
        state.held.insert(id, Held { seq, opening: 1, at });
        if let Err(error) = self.write(&mut state) {
            state.held.remove(&id);
            // What was half written says nothing. The terms of before say the generation at least.
            let _ = self.write(&mut state);
            return Err(error);
        }
        Ok(Opening { lease: self, id })
    }

    /// The time, for [`Lease::let_go`].
    pub fn clock(&self) -> u64 {
        lock(&self.state).clock
    }

    /// Lets go the snapshots that nobody has begun to open since `clock`, and whose commits are not among those that
    /// were read when somebody looked after that.
    pub fn let_go(&self, clock: u64, is_read: impl Fn(u64) -> bool) -> Result<()> {
        let mut state = lock(&self.state);
        let before = state.held.len();
        state.held.retain(|_, held| held.opening > 0 || held.at > clock || is_read(held.seq));
        if state.held.len() < before { self.write(&mut state) } else { Ok(()) }
    }

    fn write(&self, state: &mut State) -> Result<()> {
        let State { terms, held, .. } = state;
        let Some(terms) = terms else { return Ok(()) };
        terms.snapshots = held.keys().copied().collect();
        // One call, so that nobody who reads meanwhile sees more than one write in the middle.
        self.file.write_at(&terms.encode(), 0)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If that fails, an owner finds it unlocked and removes it.
        let _ = self.disk.remove(self.file.path());
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("path", &self.file.path()).finish()
    }
}

/// While this lives, the lease names the snapshot, whoever else lets it go.
#[must_use]
pub(crate) struct Opening<'a> {
    lease: &'a Lease,
    id: u64,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(held) = lock(&self.lease.state).held.get_mut(&self.id) {
            held.opening -= 1;
        }
    }
}

/// All leases on one database, as its owner sees them.
#[derive(Debug)]
pub(crate) struct Leases {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    database_id: u64,
    /// By the file's name, the terms that were read last. Held while somebody looks: what one look has removed, an
    /// earlier one must not find in its list, and by locking it make it anew.
    known: Mutex<HashMap<String, Terms>>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub terms: Vec<Terms>,
    /// A lease that lives, as far as one can know, and cannot be read: nobody knows what it keeps.
    pub unread: Option<PathBuf>,
}

impl Look {
    /// Whether anybody reads, as far as one can know.
    pub fn is_any(&self) -> bool {
        !self.terms.is_empty() || self.unread.is_some()
    }
}

enum Reading {
    Terms(Terms),
    /// Begun, but its reader has not stated anything yet, and so relies on nothing yet.
    WithoutTerms,
    /// It is being written, or was half written.
    Torn,
}

impl Leases {
    pub fn new(disk: Arc<dyn Disk>, database: &Path, database_id: u64) -> Leases {
        Leases { disk, directory: database.join(DIRECTORY), database_id, known: Mutex::default() }
    }

    /// The leases whose readers live; removes the others.
    ///
    /// # Errors
    /// `Io`: nothing is known then.
    pub fn look(&self) -> Result<Look> {
        let mut known = lock(&self.known);
        let names = match self.disk.list(&self.directory) {
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(|e| Error::io(&self.directory, "list", e))?,
        };
        known.retain(|name, _| names.contains(name));
        let mut look = Look::default();
        for name in names.into_iter().filter(|name| name.ends_with(SUFFIX)) {
            let path = self.directory.join(&name);
            match self.disk.lock(&path, false) {
                Ok(LockOutcome::Held(guard)) => {
                    known.remove(&name);
                    // Under the lock. What cannot be removed now, the next look tries again.
                    let _ = self.disk.remove(&path);
                    drop(guard);
                    continue;
                }
                Ok(LockOutcome::Taken(_)) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                // Another user's, who keeps it to himself. That he lives is all that can be assumed of him.
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    look.unread = Some(path);
                    continue;
                }
                Err(e) => return Err(Error::io(&path, "lock", e)),
            }
            match self.read(&path)? {
                Reading::Terms(terms) => {
                    known.insert(name.clone(), terms);
                }
                Reading::WithoutTerms => continue,
                // The terms differ in the snapshots at most: the generation is stated before anything is read.
                Reading::Torn if known.contains_key(&name) => {}
                Reading::Torn => look.unread = Some(path),
            }
            let terms = known.get(&name).filter(|terms| terms.database_id == self.database_id);
            look.terms.extend(terms.cloned());
        }
        Ok(look)
    }

    /// The processes that read a declared snapshot, as holders' names.
    pub fn holders(terms: &[Terms], id: u64) -> Vec<String> {
        let reads = |terms: &&Terms| terms.snapshots.binary_search(&id).is_ok();
        let mut processes: Vec<u32> = terms.iter().filter(reads).map(|terms| terms.process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes.into_iter().map(holder).collect()
    }

    fn read(&self, path: &Path) -> Result<Reading> {
        let mut reads = READS;
        loop {
            let reading = self.read_once(path)?;
            reads -= 1;
            if !matches!(reading, Reading::Torn) || reads == 0 {
                return Ok(reading);
            }
            std::thread::sleep(READ_AGAIN_AFTER);
        }
    }

    fn read_once(&self, path: &Path) -> Result<Reading> {
        let failed = |e| Error::io(path, "read", e);
        let file = match self.disk.open(path, OpenMode::Read) {
            // Removed by its reader a moment ago.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Reading::WithoutTerms),
            opened => opened.map_err(failed)?,
        };
        let len = file.len().map_err(failed)?.min(LEASE_BYTES_MAX as u64);
        let mut bytes = vec![0; len as usize];
        match file.read_at(&mut bytes, 0) {
            // It has been cut since its length was asked for: its reader ends it.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(Reading::Torn),
            read => read.map_err(failed)?,
        }
        Ok(match Terms::decode(&bytes) {
            Some(terms) => Reading::Terms(terms),
            None if Terms::are_begun(&bytes) => Reading::Torn,
            None => Reading::WithoutTerms,
        })
    }
}
