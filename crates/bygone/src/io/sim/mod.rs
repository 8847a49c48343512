//! A disk in memory that fails, crashes, and forgets what was not synced: for tests of everything that must
//! survive that.
//!
//! Owns: what the running program sees, beside it what is durable, and the list of what lies between.
//! Promises: a crash image is one of the states that [`Disk`]'s contract allows after a power cut, and every
//! such state has a seed (up to torn sectors, which are whole or old). Faults strike at exactly the counted
//! call that was asked for, so a failing test can be repeated. May call: nothing.

mod content;
mod crash;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::content::{Content, Data};
use self::names::NameChange;
use super::{Disk, DiskFile, LockOutcome, OpenMode};

/// What a counted call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes a file, or a directory that did not exist.
    Create,
    /// Writes bytes.
    Write,
    /// Sets a file's length.
    SetLen,
    /// Makes a file durable.
    Sync,
    /// Gives a file another name.
    Rename,
    /// Gives a file a second name.
    Link,
    /// Takes a file's name away.
    Remove,
    /// Makes a directory's names durable.
    SyncDir,
}

/// A simulated disk; clones are the same disk.
///
/// Calls that change something are counted from 1: creating (a file, or a directory that did not exist),
/// writing, setting the length, syncing, renaming, linking, removing, syncing a directory. Reading, opening and
/// locking are not.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

type Predicate = dyn Fn(Operation, &Path) -> Option<ErrorKind> + Send + Sync;
type FileRef = Arc<Mutex<FileState>>;

#[derive(Default)]
struct State {
    names: BTreeMap<PathBuf, FileRef>,
    durable_names: BTreeMap<PathBuf, FileRef>,
    /// What leads from `durable_names` to `names`, in order.
    pending_names: Vec<NameChange>,
    /// Each directory, and whether its own name is durable.
    directories: BTreeMap<PathBuf, bool>,
    locks: BTreeMap<PathBuf, Lock>,
    locks_taken: u64,
    operations: u64,
    dead: bool,
    crash_at: Option<u64>,
    failures: BTreeMap<u64, ErrorKind>,
    predicate: Option<Arc<Predicate>>,
    capacity_bytes: Option<u64>,
}

/// Taken only while the disk's own mutex is held, so there is one order of all calls.
#[derive(Default)]
struct FileState {
    content: Content,
    durable: Content,
    /// What leads from `durable` to `content`, in order.
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: u64, data: Data },
    SetLen(u64),
}

struct Lock {
    /// Tells it from another one that is taken when this one is broken.
    number: u64,
    exclusive: bool,
    holders: usize,
}

/// How a counted call goes on.
enum Fate {
    Works,
    /// Power goes off in its middle: what it did may or may not be on the disk.
    Dies,
    Fails(ErrorKind),
}

fn died() -> Error {
    Error::other("the simulated machine is off")
}

fn locked(file: &FileRef) -> MutexGuard<'_, FileState> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl SimDisk {
    /// An empty disk that works.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many counted calls there were.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Power goes off at the `n`-th counted call: it and every later call, reading included, fails.
    pub fn crash_at(&self, n: u64) {
        self.state().crash_at = Some(n);
    }

    /// The `n`-th counted call fails; later ones work again. A write may have been done in part. A sync that
    /// fails loses some of what it should have made durable: it stays readable here, and no later sync
    /// brings it to the disk.
    pub fn fail_at(&self, n: u64, kind: ErrorKind) {
        self.state().failures.insert(n, kind);
    }

    /// Every counted call for which `predicate` gives an error fails with it. A rename is asked about with
    /// its old name.
    pub fn fail_matching(
        &self,
        predicate: impl Fn(Operation, &Path) -> Option<ErrorKind> + Send + Sync + 'static,
    ) {
        self.state().predicate = Some(Arc::new(predicate));
    }

    /// Takes back `crash_at`, `fail_at` and `fail_matching`; a disk that is off stays off.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.crash_at = None;
        state.failures.clear();
        state.predicate = None;
    }

    /// From now on a call that makes all files together longer than `bytes` fails with `StorageFull` and does
    /// nothing.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity_bytes = Some(bytes);
    }

    /// Gives back the locks on a file, as if the process that has them had been killed: who held them does not
    /// notice. Answers whether there were any.
    pub fn break_locks(&self, path: &Path) -> bool {
        self.state().locks.remove(path).is_some()
    }

    /// The lengths of all files together.
    pub fn bytes(&self) -> u64 {
        self.state().bytes()
    }

    /// Inverts the bits of `mask` in one byte, durably: damage, not a write.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) -> Result<()> {
        let file = self.state().find(path)?;
        let mut file = locked(&file);
        let FileState { content, durable, .. } = &mut *file;
        for content in [content, durable] {
            let mut byte = [0];
            if content.read(&mut byte, offset) {
                content.write(&Data::new(&[byte[0] ^ mask]), offset);
            }
        }
        Ok(())
    }

    /// All of a file, as the running program sees it. Works also when the machine is off.
    pub fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        let file = self.state().find(path)?;
        let file = locked(&file);
        let mut bytes = vec![0; file.content.len() as usize];
        file.content.read(&mut bytes, 0);
        Ok(bytes)
    }

    /// Every file's path and length, as the running program sees them. Works also when the machine is off.
    pub fn snapshot_files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state();
        state.names.iter().map(|(path, file)| (path.clone(), locked(file).content.len())).collect()
    }
}

impl State {
    fn bytes(&self) -> u64 {
        let mut files: Vec<&FileRef> = self.names.values().collect();
        files.sort_unstable_by_key(|file| Arc::as_ptr(file));
        files.dedup_by(|file, other| Arc::ptr_eq(file, other));
        files.iter().map(|file| locked(file).content.len()).sum()
    }

    fn find(&self, path: &Path) -> Result<FileRef> {
        self.names.get(path).cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn alive(&self) -> Result<()> {
        if self.dead { Err(died()) } else { Ok(()) }
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.parent().is_none() || path == Path::new(".") || self.directories.contains_key(path)
    }

    /// Counts a call and decides how it goes on.
    fn count(&mut self, operation: Operation, path: &Path) -> Result<Fate> {
        self.alive()?;
        self.operations += 1;
        if self.crash_at.is_some_and(|n| self.operations >= n) {
            self.dead = true;
            return Ok(Fate::Dies);
        }
        if let Some(kind) = self.failures.remove(&self.operations) {
            return Ok(Fate::Fails(kind));
        }
        Ok(match self.predicate.as_ref().and_then(|predicate| predicate(operation, path)) {
            Some(kind) => Fate::Fails(kind),
            None => Fate::Works,
        })
    }

    /// Whether `more` bytes fit.
    fn make_room(&self, more: u64) -> Result<()> {
        match self.capacity_bytes {
            Some(capacity) if more > 0 && self.bytes().saturating_add(more) > capacity => {
                Err(ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    /// Does a change of names, unless it failed; a change in whose middle the power went off is only pending.
    fn change_names(&mut self, fate: Fate, change: NameChange) -> Result<()> {
        if let Fate::Fails(kind) = fate {
            return Err(kind.into());
        }
        change.apply(&mut self.names);
        self.pending_names.push(change);
        if let Fate::Dies = fate { Err(died()) } else { Ok(()) }
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.alive()?;
        let file = if mode == OpenMode::Create {
            if !state.is_directory(parent(path)) {
                return Err(ErrorKind::NotFound.into());
            }
            if state.names.contains_key(path) || state.is_directory(path) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let fate = state.count(Operation::Create, path)?;
            let file = FileRef::default();
            state.change_names(fate, NameChange::Create { path: path.to_owned(), file: file.clone() })?;
            file
        } else {
            state.find(path)?
        };
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            path: path.to_owned(),
            file,
            writable: mode != OpenMode::Read,
        }))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        state.alive()?;
        let mut missing: Vec<&Path> = path.ancestors().take_while(|dir| !state.is_directory(dir)).collect();
        missing.reverse();
        for dir in missing {
            if state.names.contains_key(dir) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let fate = state.count(Operation::Create, dir)?;
            if let Fate::Fails(kind) = fate {
                return Err(kind.into());
            }
            state.directories.insert(dir.to_owned(), false);
            if let Fate::Dies = fate {
                return Err(died());
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let state = self.state();
        state.alive()?;
        if !state.is_directory(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let inside = state.names.keys().filter(|path| parent(path) == dir);
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn is_vacant(&self, dir: &Path) -> Result<bool> {
        let state = self.state();
        state.alive()?;
        if !state.is_directory(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let inside = |path: &Path| path != dir && parent(path) == dir;
        let files = state.names.keys().any(|path| inside(path));
        Ok(!files && !state.directories.keys().any(|path| inside(path)))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let state = self.state();
        state.alive()?;
        Ok(state.names.contains_key(path) || state.is_directory(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        state.alive()?;
        let file = state.find(from)?;
        if !state.is_directory(parent(to)) {
            return Err(ErrorKind::NotFound.into());
        }
        let fate = state.count(Operation::Rename, from)?;
        state.change_names(fate, NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file })
    }

    fn link(&self, from: &Path, to: &Path) -> Result<bool> {
        let mut state = self.state();
        state.alive()?;
        let file = state.find(from)?;
        if !state.is_directory(parent(to)) {
            return Err(ErrorKind::NotFound.into());
        }
        if state.names.contains_key(to) || state.is_directory(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let fate = state.count(Operation::Link, from)?;
        state.change_names(fate, NameChange::Create { path: to.to_owned(), file })?;
        Ok(true)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        state.alive()?;
        let file = state.find(path)?;
        let fate = state.count(Operation::Remove, path)?;
        state.change_names(fate, NameChange::Remove { path: path.to_owned(), file })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let mut state = self.state();
        state.alive()?;
        if !state.is_directory(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        match state.count(Operation::SyncDir, dir)? {
            Fate::Works => {}
            Fate::Dies => return Err(died()),
            Fate::Fails(kind) => return Err(kind.into()),
        }
        // A path without a directory in front is in the current one.
        let dir = if dir == Path::new(".") { Path::new("") } else { dir };
        let State { pending_names, durable_names, directories, .. } = &mut *state;
        pending_names.retain(|change| {
            let synced = change.is_in(dir);
            if synced {
                change.apply(durable_names);
            }
            !synced
        });
        for (_, durable) in directories.iter_mut().filter(|(path, _)| parent(path) == dir) {
            *durable = true;
        }
        Ok(())
    }

    fn lock(&self, path: &Path, exclusive: bool) -> Result<LockOutcome> {
        let mut state = self.state();
        state.alive()?;
        if !state.is_directory(parent(path)) {
            return Err(ErrorKind::NotFound.into());
        }
        match state.locks.get_mut(path) {
            Some(lock) if lock.exclusive || exclusive => {
                return Ok(LockOutcome::Taken(lock.exclusive.then(std::process::id)));
            }
            Some(lock) => {
                lock.holders += 1;
                let held = HeldLock { disk: self.clone(), path: path.to_owned(), number: lock.number };
                return Ok(LockOutcome::Held(Box::new(held)));
            }
            None => {}
        }
        state.locks_taken += 1;
        let number = state.locks_taken;
        state.locks.insert(path.to_owned(), Lock { number, exclusive, holders: 1 });
        Ok(LockOutcome::Held(Box::new(HeldLock { disk: self.clone(), path: path.to_owned(), number })))
    }
}

struct HeldLock {
    disk: SimDisk,
    path: PathBuf,
    number: u64,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if let Some(lock) = state.locks.get_mut(&self.path).filter(|lock| lock.number == self.number) {
            lock.holders -= 1;
            if lock.holders == 0 {
                state.locks.remove(&self.path);
            }
        }
    }
}

struct SimFile {
    disk: SimDisk,
    /// The name it was opened by.
    path: PathBuf,
    file: FileRef,
    writable: bool,
}

impl SimFile {
    fn check_writable(&self) -> Result<()> {
        if self.writable { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let state = self.disk.state();
        state.alive()?;
        if locked(&self.file).content.read(buffer, offset) {
            Ok(())
        } else {
            Err(ErrorKind::UnexpectedEof.into())
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or(ErrorKind::InvalidInput)?;
        let mut state = self.disk.state();
        let fate = state.count(Operation::Write, &self.path)?;
        let taken = match &fate {
            Fate::Works | Fate::Dies => bytes,
            // Which of the two is decided by the count, so that a sweep over all calls meets both.
            Fate::Fails(_) if state.operations.is_multiple_of(2) => &bytes[..bytes.len() / 2],
            Fate::Fails(_) => &[],
        };
        let len = locked(&self.file).content.len();
        state.make_room(end.saturating_sub(len))?;
        if !taken.is_empty() {
            let data = Data::new(taken);
            let mut file = locked(&self.file);
            file.content.write(&data, offset);
            file.pending.push(Change::Write { offset, data });
        }
        match fate {
            Fate::Works => Ok(()),
            Fate::Dies => Err(died()),
            Fate::Fails(kind) => Err(kind.into()),
        }
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.disk.state();
        let fate = state.count(Operation::Sync, &self.path)?;
        let mut file = locked(&self.file);
        match fate {
            Fate::Works => {
                let FileState { durable, pending, .. } = &mut *file;
                for change in pending.drain(..) {
                    change.apply(durable);
                }
                Ok(())
            }
            Fate::Dies => Err(died()),
            Fate::Fails(kind) => {
                file.settle(&mut crash::Random::new(state.operations));
                Err(kind.into())
            }
        }
    }

    fn len(&self) -> Result<u64> {
        let state = self.disk.state();
        state.alive()?;
        Ok(locked(&self.file).content.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        let mut state = self.disk.state();
        let fate = state.count(Operation::SetLen, &self.path)?;
        if let Fate::Fails(kind) = fate {
            return Err(kind.into());
        }
        let old_len = locked(&self.file).content.len();
        state.make_room(len.saturating_sub(old_len))?;
        let mut file = locked(&self.file);
        file.content.set_len(len);
        file.pending.push(Change::SetLen(len));
        if let Fate::Dies = fate { Err(died()) } else { Ok(()) }
    }

    fn reserve(&self, len: u64) -> Result<bool> {
        if len > self.len()? {
            self.set_len(len)?;
        }
        Ok(true)
    }
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Change::Write { offset, data } => content.write(data, *offset),
            Change::SetLen(len) => content.set_len(*len),
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("SimDisk")
            .field("files", &state.names.keys().collect::<BTreeSet<_>>())
            .field("operations", &state.operations)
            .field("dead", &state.dead)
            .finish()
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("path", &self.path).finish()
    }
}
