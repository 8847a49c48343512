//! The archive: pages that only the past needs, out of the way of the present.
//!
//! Owns: the pagelog and the page map in the history directory (`docs/format/archive.md`), the cached archived pages,
//! and which segments hold something. Promises: what is read is the page that was put in under that id, or an error; a
//! superblock that names the archive's [`ArchiveState`] names durable files only; the present never waits for the
//! history directory here, because only whoever misses the cache looks. Knows nothing of what is in a page. May call:
//! `io`, `cache`, run, `codec`, `limits`, `error`, `mutation`.
//!
//! Two kinds of page lie in the pagelog. What key frames need is durable: a [`Batch`] appends it, makes it durable,
//! then the rows of the page map, and only then a superblock names the map. What merely an open view needs lies in
//! segments of its own that nothing durable names, and is found through the overlay in memory: it ends with the
//! process.
//!
//! Locks: `work`, or `transient` then `retired`; then `view`; `files`. None but `work` is held while a file is written
//! or synced, except `transient`, by who relieves the base file.

mod address;
mod batch;
mod frames;
mod map;
mod overlay;
mod segment;
mod state;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub(crate) use address::PageId;
#[cfg(doc)]
use batch::Batch;
pub(crate) use batch::Change;
pub(crate) use state::{ArchiveState, PLACE_BYTES_MAX};

use crate::cache::{Cache, Guard};
use crate::error::{Error, Result};
use crate::io::{Disk, File, OpenMode, exists, list, make_dir, remove, sync_dir, sync_parent};
use crate::limits::PAGE_BYTES;
use crate::run::Run;
use address::Address;
use frames::ArchivedFrames;
use map::Account;
use overlay::Overlay;
use segment::{Page, SegmentWriter};

/// What the name of a file ends in while it is copied to the history directory.
pub(crate) const MOVING: &str = ".moving";

/// How many segments stay open for reading.
const OPEN_MAX: usize = 256;

/// The largest segment, in bytes: offsets have 32 bits.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// What an archive is told when it is opened.
pub(crate) struct Settings {
    /// The database's own directory in the history directory.
    pub directory: PathBuf,
    pub database_id: u64,
    pub hash_seed: u64,
    /// When a segment has so many bytes, the next one is begun.
    pub segment_bytes: u64,
    pub read_only: bool,
}

pub(crate) struct Archive {
    disk: Arc<dyn Disk>,
    settings: Settings,
    cache: Arc<Cache>,
    frames: ArchivedFrames,
    view: RwLock<View>,
    /// The id that the next file gets.
    next_id: AtomicU64,
    /// Whether the directory was found in order, and is rid of what a crash left there.
    prepared: AtomicBool,
    work: Mutex<Work>,
    transient: Mutex<Option<SegmentWriter>>,
    /// Segments that no account names: they go when nothing in the overlay leads to them.
    retired: Mutex<Vec<u64>>,
    files: Mutex<HashMap<u64, File>>,
    /// Other processes read, perhaps by an older page map: no segment goes.
    others_read: AtomicBool,
}

/// What readers see.
#[derive(Default)]
struct View {
    state: ArchiveState,
    runs: Arc<Vec<Arc<Run>>>,
    /// Why the page map is not open.
    missing: Option<Error>,
    overlay: Overlay,
}

/// What who writes durable pages knows.
#[derive(Default)]
struct Work {
    accounts: BTreeMap<u64, Account>,
    head: Option<SegmentWriter>,
}

/// Figures for people.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArchiveStats {
    pub pages: u64,
    pub live_bytes: u64,
    pub segment_bytes: u64,
    pub map_bytes: u64,
    /// Pages that only open views need.
    pub view_pages: u64,
}

impl Archive {
    /// Opens the archive that a superblock describes. Where its files cannot be reached, reading archived pages gives
    /// an error, until [`prepare`](Archive::prepare) finds them.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: Settings,
        cache: &Arc<Cache>,
        state: ArchiveState,
    ) -> Arc<Archive> {
        let archive = Archive {
            disk,
            settings,
            cache: cache.clone(),
            frames: ArchivedFrames::new(cache),
            next_id: AtomicU64::new(state.next_id.max(1)),
            view: RwLock::new(View { state, ..View::default() }),
            prepared: AtomicBool::new(false),
            work: Mutex::default(),
            transient: Mutex::default(),
            retired: Mutex::default(),
            files: Mutex::default(),
            others_read: AtomicBool::new(false),
        };
        if let Err(error) = archive.open_map() {
            archive.view_mut().missing = Some(error);
        }
        Arc::new(archive)
    }

    pub fn directory(&self) -> &Path {
        &self.settings.directory
    }

    /// What the next superblock is to say.
    pub fn state(&self) -> ArchiveState {
        let mut state = self.view().state.clone();
        // Relaxed: an id that is not in a superblock belongs to a file that none names.
        state.next_id = self.next_id.load(Ordering::Relaxed);
        state
    }

    pub fn stats(&self) -> ArchiveStats {
        let view = self.view();
        let ArchiveState { pages, live_bytes, segment_bytes, .. } = view.state;
        let map_bytes = view.state.runs.iter().map(|run| run.bytes).sum();
        ArchiveStats { pages, live_bytes, segment_bytes, map_bytes, view_pages: view.overlay.len() }
    }

    /// Whether the archive's files can be reached; the reason if not. Nothing is tried.
    pub fn missing(&self) -> Option<Error> {
        self.view().missing.clone()
    }

    fn open_map(&self) -> Result<()> {
        let metas = self.view().state.runs.clone();
        let open = |meta| map::open(&self.target(), meta).map_err(|error| self.explain(error));
        let runs = metas.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut view = self.view_mut();
        (view.runs, view.missing) = (Arc::new(runs), None);
        Ok(())
    }

    fn target(&self) -> map::Target<'_> {
        map::Target {
            disk: &*self.disk,
            directory: &self.settings.directory,
            cache: &self.cache,
            hash_seed: self.settings.hash_seed,
        }
    }

    /// A missing file is told from a missing directory.
    fn explain(&self, error: Error) -> Error {
        self.explain_absence().unwrap_or(error)
    }

    /// Why nothing can be found in the history directory, if that is so: because it is not there, or because it has
    /// nothing of this database.
    pub fn explain_absence(&self) -> Option<Error> {
        let view = self.view();
        if !view.state.used {
            return None;
        }
        let directory = &self.settings.directory;
        let cause = match self.disk.list(directory) {
            Err(error) => error.to_string(),
            Ok(names) if !names.iter().any(|name| is_ours(name)) => "it is empty".to_owned(),
            Ok(_) => return None,
        };
        let place = match view.state.place.as_str() {
            "" => String::new(),
            place => format!("; the history was last seen in {place}"),
        };
        Some(Error::HistoryUnavailable { path: directory.clone(), cause: format!("{cause}{place}") })
    }

    /// Notes that the pages of all key frames are archived as far as the base of a generation does not have them.
    pub fn note_complete(&self, generation: u64) {
        self.view_mut().state.complete_to = generation;
    }

    /// Notes whether other processes read. Told whenever a superblock was written: who begins to read later reads by
    /// that one, or a later one.
    pub fn note_readers(&self, others_read: bool) {
        // Relaxed: who removes files does so on the thread that was told, or is told later and does not remove.
        self.others_read.store(others_read, Ordering::Relaxed);
    }

    fn others_read(&self) -> bool {
        self.others_read.load(Ordering::Relaxed)
    }

    /// Reads by the page map of another superblock from now on: for who only reads.
    pub fn renew(&self, state: ArchiveState) {
        self.view_mut().state = state;
        if let Err(error) = self.open_map() {
            self.view_mut().missing = Some(error);
        }
    }

    /// Notes where the history directory is, once it was found or made there.
    pub fn remember(&self, place: &str) {
        self.view_mut().state.place = place.to_owned();
    }

    /// Finds or makes the directory, opens the page map and removes what a crash left: before anything is written. Does
    /// nothing once that is done.
    pub fn prepare(&self) -> Result<()> {
        // Acquire: pairs with the release below; what was prepared is seen.
        if self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut work = self.work();
        if self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let (disk, directory) = (&*self.disk, &self.settings.directory);
        if !self.view().state.used {
            make_dir(disk, directory)?;
            // Again, for those that an attempt which failed left behind.
            sync_names(disk, directory)?;
        } else if !exists(disk, directory)? {
            let absent = || Error::NotFound { path: directory.clone() };
            return Err(self.explain_absence().unwrap_or_else(absent));
        }
        // Again, for one that a crash while it was made left behind.
        sync_parent(disk, directory)?;
        self.open_map()?;
        let accounts = map::accounts(&self.runs())?;
        let metas = self.view().state.runs.clone();
        for name in list(disk, directory)? {
            let named = match (segment::file_id(&name), map::file_id(&name)) {
                (Some(id), _) => accounts.contains_key(&id),
                (_, Some(id)) => metas.iter().any(|meta| meta.id == id),
                (None, None) => !name.ends_with(MOVING),
            };
            if named {
                continue;
            }
            if self.others_read() {
                // An older page map may name it. It stays until the next opening.
                let id = segment::file_id(&name).or_else(|| map::file_id(&name)).unwrap_or(0);
                self.next_id.fetch_max(id + 1, Ordering::Relaxed);
                continue;
            }
            remove(disk, &directory.join(name))?;
        }
        // An id that is given again must not meet its file of before.
        sync_dir(disk, directory)?;
        work.accounts = accounts;
        self.view_mut().state.used = true;
        self.prepared.store(true, Ordering::Release);
        Ok(())
    }

    fn take_id(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The cached page of this id.
    pub fn cached<'g>(&self, id: PageId, guard: &'g Guard) -> Option<&'g Page> {
        self.frames.get(id, guard)
    }

    /// Caches a page that was read and checked.
    pub fn cache<'g>(&self, id: PageId, page: &Page, guard: &'g Guard) -> Option<&'g Page> {
        self.frames.insert(id, page, guard)
    }

    /// Whether a page is archived.
    pub fn contains(&self, id: PageId) -> Result<bool> {
        Ok(self.find(id)?.is_some())
    }

    fn find(&self, id: PageId) -> Result<Option<Address>> {
        let runs = {
            let view = self.view();
            if let Some(address) = view.overlay.get(id) {
                return Ok(Some(address));
            }
            if let Some(error) = &view.missing {
                return Err(error.clone());
            }
            view.runs.clone()
        };
        map::find(&runs, id, self.settings.hash_seed)
    }

    /// Reads a page past the cache; `false` if it is not archived. The caller checks its content.
    pub fn read(&self, id: PageId, page: &mut Page) -> Result<bool> {
        let mut tried = None;
        loop {
            let Some(address) = self.find(id)? else { return Ok(false) };
            match self.read_at(address, id, page) {
                Ok(()) => return Ok(true),
                // The first time its segment may have been written anew meanwhile, and be gone.
                Err(error) if tried == Some(address) => return Err(self.explain(error)),
                Err(_) => tried = Some(address),
            }
        }
    }

    fn read_at(&self, address: Address, id: PageId, page: &mut Page) -> Result<()> {
        segment::read(&self.segment(address.segment)?, address, id, page)
    }

    fn segment(&self, id: u64) -> Result<File> {
        if let Some(file) = self.files().get(&id) {
            return Ok(file.clone());
        }
        let path = self.segment_path(id);
        let file = segment::open(&*self.disk, &path, OpenMode::Read, self.settings.database_id, id);
        let file = file.map_err(|error| match error {
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Error::corruption(&path, 0, "this segment of archived pages is missing")
            }
            error => error,
        })?;
        let mut files = self.files();
        if files.len() >= OPEN_MAX
            && let Some(other) = files.keys().next().copied()
        {
            files.remove(&other);
        }
        files.insert(id, file.clone());
        Ok(file)
    }

    fn segment_path(&self, id: u64) -> PathBuf {
        self.settings.directory.join(segment::file_name(id))
    }

    /// Puts in pages that open views need, and nothing durable: none survives the process. All or none.
    pub fn put_for_views<'p>(
        &self,
        pages: impl IntoIterator<Item = (PageId, u32, &'p [u8; PAGE_BYTES])>,
    ) -> Result<()> {
        self.prepare()?;
        let mut transient = lock(&self.transient);
        let mut addresses = Vec::new();
        let put = self.append_for_views(&mut transient, pages, &mut addresses);
        if put.is_err() {
            // Whatever is in it, nothing leads there.
            *transient = None;
            return put;
        }
        let mut view = self.view_mut();
        addresses.into_iter().for_each(|(id, address)| view.overlay.insert(id, address));
        Ok(())
    }

    fn append_for_views<'p>(
        &self,
        transient: &mut Option<SegmentWriter>,
        pages: impl IntoIterator<Item = (PageId, u32, &'p [u8; PAGE_BYTES])>,
        addresses: &mut Vec<(PageId, Address)>,
    ) -> Result<()> {
        for (id, checksum, page) in pages {
            let writer = match transient {
                Some(writer) if writer.end() < self.settings.segment_bytes => writer,
                _ => {
                    if let Some(full) = transient {
                        full.flush()?;
                    }
                    let id = self.take_id();
                    lock(&self.retired).push(id);
                    let Settings { directory, database_id, .. } = &self.settings;
                    transient.insert(SegmentWriter::create(&*self.disk, directory, *database_id, id)?)
                }
            };
            addresses.push((id, writer.append(id, checksum, page)?));
        }
        // Readers find them from now on.
        transient.as_mut().map_or(Ok(()), SegmentWriter::flush)
    }

    /// No open view needs these pages any more.
    pub fn forget(&self, ids: impl IntoIterator<Item = PageId>) {
        let mut ids = ids.into_iter().peekable();
        if ids.peek().is_some() {
            let mut view = self.view_mut();
            ids.for_each(|id| view.overlay.remove(id));
        }
    }

    /// Removes the files of segments that nothing leads to, unless other processes read. A file that cannot be
    /// removed is tried again.
    pub fn sweep(&self) {
        if self.others_read() {
            return;
        }
        let unneeded: Vec<u64> = {
            let mut transient = lock(&self.transient);
            let view = self.view();
            if transient.as_ref().is_some_and(|writer| !view.overlay.holds(writer.id())) {
                *transient = None;
            }
            let in_use = |id: u64| view.overlay.holds(id) || transient.as_ref().is_some_and(|w| w.id() == id);
            lock(&self.retired).extract_if(.., |id| !in_use(*id)).collect()
        };
        for id in unneeded {
            self.files().remove(&id);
            let path = self.segment_path(id);
            let gone = remove(&*self.disk, &path);
            if gone.is_err() && exists(&*self.disk, &path).unwrap_or(true) {
                lock(&self.retired).push(id);
            }
        }
    }

    /// Checks every byte of the page map, and that its rows and the accounts of the segments agree.
    pub fn verify(&self) -> Result<u64> {
        let (runs, state) = {
            let view = self.view();
            if let Some(error) = &view.missing {
                return Err(error.clone());
            }
            (view.runs.clone(), view.state.clone())
        };
        for run in runs.iter() {
            run.verify()?;
        }
        let mut counted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        map::for_each_address(&runs, &mut |address| {
            let (pages, bytes) = counted.entry(address.segment).or_default();
            *pages += 1;
            *bytes += u64::from(address.bytes);
        })?;
        let accounts = map::accounts(&runs)?;
        let expected = accounts.iter().map(|(id, account)| (*id, (account.live_pages, account.live_bytes)));
        if !counted.iter().map(|(id, counts)| (*id, *counts)).eq(expected) {
            let reason = "the page map contradicts the accounts of its segments";
            return Err(Error::corruption(&self.settings.directory, 0, reason));
        }
        let pages: u64 = accounts.values().map(|account| account.live_pages).sum();
        if pages != state.pages {
            let reason = format!("the page map has {pages} pages, the superblock says {}", state.pages);
            return Err(Error::corruption(&self.settings.directory, 0, reason));
        }
        Ok(pages)
    }

    fn runs(&self) -> Arc<Vec<Arc<Run>>> {
        self.view().runs.clone()
    }

    fn view(&self) -> std::sync::RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn view_mut(&self) -> std::sync::RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, File>> {
        lock(&self.files)
    }
}

impl Drop for Archive {
    /// What only views needed goes with the last of them.
    fn drop(&mut self) {
        if !self.settings.read_only {
            *lock(&self.transient) = None;
            self.view_mut().overlay = Overlay::default();
            self.sweep();
        }
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("directory", &self.settings.directory).finish()
    }
}

/// Makes the names of a directory and of all above it durable, as far as one may.
fn sync_names(disk: &dyn Disk, directory: &Path) -> Result<()> {
    let mut above = directory.ancestors().take_while(|ancestor| *ancestor != Path::new(""));
    above.try_for_each(|name| match sync_parent(disk, name) {
        // Not made by us.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    })
}

/// Whether a file of this name can be one of a history directory.
fn is_ours(name: &str) -> bool {
    segment::file_id(name).is_some() || map::file_id(name).is_some() || crate::run::file_id(name).is_some()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
