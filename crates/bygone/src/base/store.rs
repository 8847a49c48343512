//! The page file: reading checked pages through the cache, and publishing.
//!
//! Owns: the file, its frame table, the space map, the live generations, the superblock. Promises: a page
//! that is handed out is the one its pointer means; one rebuild at a time; after a failure that leaves open
//! which superblock is on disk, nothing is written any more. May call: `io`, `cache`, archive.
//!
//! Locks are taken in the order: publish, leased, space, live.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::archive::Archive;
use crate::cache::{self, Cache, Frame, FrameTable, Guard, NewFrame};
use crate::error::{Error, Result};
use crate::io::{Disk, File, OpenMode};
use crate::lease::{Lease, Leases};
use crate::limits::PAGE_BYTES;

use super::archived::Source;
use super::live::{Dead, DeadPage, LiveGenerations};
use super::page::{self, Page};
use super::pointer::{BaseRoot, PagePointer, SUPERBLOCK_SLOTS};
use super::space::SpaceMap;
use super::superblock::{self, Superblock};
use super::version::BaseVersion;

/// How many bytes a read of neighbouring pages takes at most.
const READ_BYTES_MAX: usize = 1 << 20;

/// One page file.
#[derive(Debug)]
pub(crate) struct PageStore {
    pub(super) file: File,
    pub(super) frames: Arc<FrameTable>,
    database_id: u64,
    read_only: bool,
    /// How many slots the file has or will have when what is buffered is written.
    slots: AtomicU64,
    pub(super) space: Mutex<SpaceMap>,
    pub(super) live: Mutex<LiveGenerations>,
    /// Whether a generation's last version ended since somebody collected what it kept.
    pub(super) ended: AtomicBool,
    /// What other processes read, if this one is the owner: see `leased`.
    pub(super) leases: OnceLock<Arc<Leases>>,
    /// The generations that are live on account of leases, each once.
    pub(super) leased: Mutex<Vec<u64>>,
    pub(super) publish: Mutex<Publish>,
    pub(super) archive: OnceLock<Arc<Archive>>,
    /// Pages that key frames keep and that wait to be noticed by who archives; none if there is no archive.
    newly_kept: Mutex<Vec<DeadPage>>,
}

#[derive(Debug)]
pub(super) struct Publish {
    pub superblock: Superblock,
    /// Why nothing may be written any more.
    pub poisoned: Option<Error>,
    pub rebuilding: bool,
    /// What keeps the pages of this base, if another process may write.
    pub lease: Option<Arc<Lease>>,
}

/// Figures for people, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    pub file_bytes: u64,
    /// What the published base, the retained ones and the space map use.
    pub used_bytes: u64,
    /// What may be used again.
    pub free_bytes: u64,
    /// What is kept only because a base version that is still held can see it.
    pub pinned_bytes: u64,
}

impl PageStore {
    /// Makes a new file with an empty base of generation 0. The file is durable when this returns, its
    /// directory entry is not: that is the caller's.
    pub fn create(
        disk: &Arc<dyn Disk>,
        path: &Path,
        cache: &Arc<Cache>,
        database_id: u64,
        manifest: &[u8],
    ) -> Result<(Arc<PageStore>, Arc<BaseVersion>)> {
        superblock::check_manifest(manifest)?;
        let file = File::open(&**disk, path, OpenMode::Create)?;
        let root = BaseRoot { generation: 0, seq: 0, catalogue: None, tables: 0 };
        let mut superblock = Superblock {
            number: 0,
            database_id,
            root,
            space: None,
            slots: SUPERBLOCK_SLOTS,
            newest_retained: 0,
            manifest: manifest.to_vec(),
        };
        superblock.write(&file)?;
        superblock.number = 1;
        superblock.write(&file)?;
        let store = Arc::new(Self::new(file, cache, false, superblock));
        let base = store.open_base(&root)?;
        Ok((store, base))
    }

    /// Opens a file to write it, and finds its newest superblock.
    /// Reads no tree, and of the space map only the directory.
    pub fn open(
        disk: &Arc<dyn Disk>,
        path: &Path,
        cache: &Arc<Cache>,
    ) -> Result<(Arc<PageStore>, Superblock)> {
        let file = File::open(&**disk, path, OpenMode::Write)?;
        let superblock = Superblock::read(&file)?;
        let len = file.len()?;
        let mut store = Self::new(file, cache, false, superblock.clone());
        if len < superblock.slots * PAGE_BYTES as u64 {
            return Err(store.too_short(len, superblock.slots));
        }
        // What a cut left behind the last used slot goes when the next base is published.
        store.count_slots(len / PAGE_BYTES as u64);
        // After a sync that failed, or a process that was killed, the system may show a superblock that is not on the
        // disk, and that a mere sync would not bring there. From now on the log, and what is free, go by it. The same
        // bytes in the same place: a cut in this write tears nothing.
        superblock.write(&store.file)?;
        let space = SpaceMap::load(&store, &superblock)?;
        store.space = Mutex::new(space);
        Ok((Arc::new(store), superblock))
    }

    pub(super) fn new(file: File, cache: &Arc<Cache>, read_only: bool, superblock: Superblock) -> PageStore {
        PageStore {
            file,
            frames: FrameTable::new(cache),
            database_id: superblock.database_id,
            read_only,
            slots: AtomicU64::new(superblock.slots),
            space: Mutex::new(SpaceMap::new()),
            live: Mutex::default(),
            ended: AtomicBool::new(false),
            leases: OnceLock::new(),
            leased: Mutex::default(),
            publish: Mutex::new(Publish { superblock, poisoned: None, rebuilding: false, lease: None }),
            archive: OnceLock::new(),
            newly_kept: Mutex::default(),
        }
    }

    /// Opens the published base or one that is retained; loads its catalogue.
    pub fn open_base(self: &Arc<Self>, root: &BaseRoot) -> Result<Arc<BaseVersion>> {
        let lease = {
            let publish = self.publish();
            let mut live = self.live();
            let current = publish.superblock.root.generation;
            // Entered under the publish lock: what is current or retained now cannot be given up in between.
            let known = root.generation == current
                || root.generation <= publish.superblock.newest_retained
                || live.is_live(root.generation);
            if !known {
                let reason = format!("generation {} of the base is not kept", root.generation);
                return Err(Error::InvalidArgument { reason });
            }
            live.enter(root.generation);
            publish.lease.clone()
        };
        BaseVersion::open(self.clone(), *root, lease)
    }

    /// The generation of the published base.
    pub fn generation(&self) -> u64 {
        self.publish().superblock.root.generation
    }

    /// Superseded pages born up to this generation are kept for the past.
    pub fn newest_retained(&self) -> u64 {
        self.publish().superblock.newest_retained
    }

    /// Publishes a new manifest with the base as it is. It is durable when this returns. May run while a
    /// rebuild is under way.
    pub fn publish_manifest(&self, manifest: impl FnOnce() -> Vec<u8>) -> Result<()> {
        let mut publish = self.publish();
        self.check_writable(&publish)?;
        let manifest = manifest();
        superblock::check_manifest(&manifest)?;
        let next =
            Superblock { number: publish.superblock.number + 1, manifest, ..publish.superblock.clone() };
        self.write_superblock(&mut publish, next)
    }

    /// Writes the next superblock. When that fails nobody knows which one a restart would find, so nothing
    /// may be written after.
    pub(super) fn write_superblock(&self, publish: &mut Publish, next: Superblock) -> Result<()> {
        if let Err(error) = next.write(&self.file) {
            publish.poisoned = Some(error.clone());
            return Err(error);
        }
        publish.superblock = next;
        Ok(())
    }

    /// Whether nobody knows which superblock is on the disk, so that nothing may be written any more.
    pub fn is_poisoned(&self) -> bool {
        self.publish().poisoned.is_some()
    }

    pub(super) fn check_writable(&self, publish: &Publish) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly { path: self.file.path().to_owned() });
        }
        match &publish.poisoned {
            Some(cause) => Err(Error::Poisoned { cause: cause.to_string() }),
            None => Ok(()),
        }
    }

    /// The page that a pointer means.
    #[inline(always)]
    pub fn page<'g>(&self, pointer: &PagePointer, guard: &'g Guard) -> Result<&'g Page> {
        match self.cached(pointer, guard) {
            Some(page) => Ok(page),
            None => self.load(pointer, guard),
        }
    }

    /// The page that a pointer means if it is cached, and not archived.
    #[inline(always)]
    pub(super) fn cached<'g>(&self, pointer: &PagePointer, guard: &'g Guard) -> Option<&'g Page> {
        let frame = self.frames.get(pointer.slot, guard)?;
        if frame.tag() == pointer.birth { frame.bytes().first_chunk() } else { None }
    }

    #[cold]
    pub(super) fn load<'g>(&self, pointer: &PagePointer, guard: &'g Guard) -> Result<&'g Page> {
        if let Some(archive) = self.archive()
            && let Some(page) = archive.cached(pointer.id(), guard)
        {
            return Ok(page);
        }
        let mut frame = NewFrame::new(PAGE_BYTES, pointer.birth);
        let Some(page) = frame.first_chunk_mut() else {
            return Err(self.corruption(pointer, "a frame is no page"));
        };
        if self.read_uncached(pointer, page)? == Source::Archive
            && let Some(archive) = self.archive()
        {
            let page = archive.cache(pointer.id(), page, guard);
            return page.ok_or_else(|| self.corruption(pointer, "a frame is no page"));
        }
        let frame: Frame<'g> = self.frames.insert(pointer.slot, frame, guard);
        frame.bytes().first_chunk().ok_or_else(|| self.corruption(pointer, "a frame is no page"))
    }

    /// Reads unchecked bytes from where a page begins.
    pub(super) fn read_raw(&self, pointer: &PagePointer, bytes: &mut [u8]) -> Result<()> {
        if !self.is_in_file(pointer) {
            return Err(self.corruption(pointer, "a pointer leads beyond the file's end"));
        }
        self.file.read_at(bytes, pointer.offset())
    }

    /// Whether the file has the slot.
    pub(super) fn is_in_file(&self, pointer: &PagePointer) -> bool {
        // Relaxed: whoever has a pointer got it behind a lock or with a base version, so later than the slot
        // was counted.
        pointer.is_sound(u64::MAX) && pointer.slot < self.slots.load(Ordering::Relaxed)
    }

    pub(super) fn check(&self, page: &Page, pointer: &PagePointer) -> Result<()> {
        page::check(page, pointer).map_err(|reason| self.corruption(pointer, reason))
    }

    /// Copies a page if it is cached.
    pub(super) fn copy_cached(&self, pointer: &PagePointer, out: &mut Page) -> bool {
        let guard = cache::pin();
        let page = match self.frames.get(pointer.slot, &guard) {
            Some(frame) if frame.tag() == pointer.birth => frame.bytes().first_chunk(),
            _ => self.archive().and_then(|archive| archive.cached(pointer.id(), &guard)),
        };
        page.inspect(|page| out.copy_from_slice(*page)).is_some()
    }

    /// Copies a page out of the cache, or reads it into the cache.
    pub(super) fn copy_page(&self, pointer: &PagePointer, out: &mut Page) -> Result<()> {
        let guard = cache::pin();
        out.copy_from_slice(self.page(pointer, &guard)?);
        Ok(())
    }

    pub(super) fn is_cached(&self, pointer: &PagePointer) -> bool {
        self.frames.contains(pointer.slot, pointer.birth, &cache::pin())
    }

    /// Reads pages past the cache in this order, neighbours in the file with one read.
    pub(super) fn read_many(
        &self,
        pointers: &[PagePointer],
        visit: &mut dyn FnMut(&Page, &PagePointer) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        let mut rest = pointers;
        while let Some(first) = rest.first() {
            let stretch = rest
                .iter()
                .zip(first.slot..)
                .take(READ_BYTES_MAX / PAGE_BYTES)
                .take_while(|(pointer, slot)| pointer.slot == *slot)
                .count();
            bytes.resize(stretch * PAGE_BYTES, 0);
            let (these, others) = rest.split_at(stretch);
            match self.read_stretch(first, these, &mut bytes) {
                Ok(()) => {
                    let mut pages = bytes.as_chunks::<PAGE_BYTES>().0.iter().zip(these);
                    pages.try_for_each(|(page, pointer)| visit(page, pointer))?;
                }
                Err(error) if self.may_be_archived(&error) => self.read_each(these, visit)?,
                Err(error) => return Err(error),
            }
            rest = others;
        }
        Ok(())
    }

    fn read_stretch(&self, first: &PagePointer, these: &[PagePointer], bytes: &mut [u8]) -> Result<()> {
        self.read_raw(first, bytes)?;
        let mut pages = bytes.as_chunks::<PAGE_BYTES>().0.iter().zip(these);
        pages.try_for_each(|(page, pointer)| self.check(page, pointer))
    }

    pub(super) fn take_slot(&self) -> Result<u64> {
        let slot = self.space().take(self)?;
        self.count_slots(slot + 1);
        Ok(slot)
    }

    /// Notes that the file has or will have at least so many slots.
    pub(super) fn count_slots(&self, slots: u64) {
        // Relaxed: see `is_in_file`.
        self.slots.fetch_max(slots, Ordering::Relaxed);
    }

    /// Takes back the slots of a rebuild that came to nothing.
    pub(super) fn give_back(&self, slots: Vec<u64>) {
        // The next rebuild has the same generation, so what is cached of these slots would pass for its
        // pages.
        slots.iter().for_each(|slot| self.frames.remove(*slot));
        self.space().release(slots);
    }

    /// A base version ends.
    pub(super) fn leave(&self, generation: u64) {
        if self.live().leave(generation) {
            // Release: pairs with `collect`, which then finds the count.
            self.ended.store(true, Ordering::Release);
        }
    }

    /// Makes free what only ended base versions kept.
    pub(super) fn collect(&self) {
        // Acquire: pairs with `leave`. Mostly nobody ended, and nothing is looked through.
        if !self.ended.swap(false, Ordering::Acquire) {
            return;
        }
        let mut free = Dead::default();
        {
            let mut space = self.space();
            self.live().collect(&mut free);
            let slots: Vec<u64> = free.in_file.iter().map(|page| page.slot).collect();
            self.forget(&slots);
            space.release(slots);
        }
        self.forget_archived(&free.archived);
    }

    /// Takes pages that nothing reads any more out of the cache.
    pub(super) fn forget(&self, slots: &[u64]) {
        slots.iter().for_each(|slot| self.frames.remove(*slot));
    }

    /// Makes free what only ended base versions kept, and cuts what is free off the file's end: for when
    /// nothing is rebuilt soon. Does nothing while a rebuild is under way; that one will do it.
    pub fn shrink(&self) -> Result<()> {
        let publish = self.publish();
        self.check_writable(&publish)?;
        if publish.rebuilding {
            return Ok(());
        }
        self.look_at_leases(publish.superblock.root.generation);
        self.collect();
        self.truncate()
    }

    /// Cuts the free slots off the file's end. The caller holds the publish lock, no rebuild is writing, and
    /// the newest superblock is durable.
    pub(super) fn truncate(&self) -> Result<()> {
        let end = self.space().trim(self)?;
        if end < self.slots.load(Ordering::Relaxed) {
            self.file.set_len(end * PAGE_BYTES as u64)?;
            self.slots.store(end, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn too_short(&self, len: u64, slots: u64) -> Error {
        let reason = format!("the file ends before its {slots} pages do");
        Error::corruption(self.path(), len, reason)
    }

    pub(super) fn corruption(&self, pointer: &PagePointer, reason: &str) -> Error {
        self.corruption_at(pointer.slot, reason)
    }

    pub(super) fn corruption_at(&self, slot: u64, reason: &str) -> Error {
        Error::corruption(self.file.path(), slot.saturating_mul(PAGE_BYTES as u64), reason)
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub fn database_id(&self) -> u64 {
        self.database_id
    }

    /// The number of the newest superblock that is durable.
    pub fn superblock_number(&self) -> u64 {
        self.publish().superblock.number
    }

    pub fn file_bytes(&self) -> u64 {
        self.slots.load(Ordering::Relaxed) * PAGE_BYTES as u64
    }

    pub fn space_stats(&self) -> SpaceStats {
        self.collect();
        let file_bytes = self.file_bytes();
        let page_bytes = PAGE_BYTES as u64;
        let space = self.space();
        let (taken, used) = space.taken_and_used();
        SpaceStats {
            file_bytes,
            used_bytes: used * page_bytes,
            free_bytes: file_bytes.saturating_sub(taken * page_bytes),
            pinned_bytes: self.live().kept() * page_bytes,
        }
    }

    pub(super) fn publish(&self) -> MutexGuard<'_, Publish> {
        self.publish.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn space(&self) -> MutexGuard<'_, SpaceMap> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn newly_kept(&self) -> MutexGuard<'_, Vec<DeadPage>> {
        self.newly_kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn live(&self) -> MutexGuard<'_, LiveGenerations> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
