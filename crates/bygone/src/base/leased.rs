//! Bases that other processes read, and reading beside the process that writes.
//!
//! Owns: what the owner of a page file takes from its leases, and how a reader gets a base that stays. Promises: a base
//! that a reader got stays readable, with everything that was reachable through it, until its lease ends. The argument
//! is told in `docs/other-processes.md`. May call: `lease`, the page store.
//!
//! A lease on a generation is to the owner what a base version of that generation is: pages that died since stay on
//! the lists of [`super::live`].

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::io::{Disk, File, OpenMode};
use crate::lease::{Lease, Leases, ROOT_BYTES};
use crate::limits::PAGE_BYTES;

use super::live::{Dead, DeadPage};
use super::pointer::BaseRoot;
use super::space::SpaceMap;
use super::store::PageStore;
use super::superblock::Superblock;
use super::version::BaseVersion;

const _: () = assert!(BaseRoot::BYTES == ROOT_BYTES, "a lease has room for a base's root");

/// How often a reader tries to lease the newest base before another is published. Publishing one takes syncs, this
/// takes microseconds.
const ATTEMPTS: u32 = 1000;

/// What a reader found newest, and has leased.
pub(crate) struct Leased {
    pub superblock: Superblock,
    /// For figures alone.
    space: SpaceMap,
}

/// The owner's side.
impl PageStore {
    /// From now on, what these leases keep is not used again.
    pub fn respect(&self, leases: Arc<Leases>) {
        // There is one owner, and it says so once.
        let _ = self.leases.set(leases);
        self.look_at_leases(self.generation());
    }

    /// Brings the live generations up to date with the leases. Whoever has published a base calls it before it uses
    /// the pages that it superseded: a reader whose lease is not found here states it later, and then finds the base
    /// that is published now. `superseded` is the last generation that a reader may have leased whose lease cannot be
    /// read.
    pub(super) fn look_at_leases(&self, superseded: u64) {
        let Some(leases) = self.leases.get() else { return };
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        let look = leases.look();
        let mut next = Vec::new();
        if !matches!(&look, Ok(look) if look.unread.is_none()) {
            // Nobody knows what is kept, so everything is from here on, until the next look.
            next.extend_from_slice(&leased);
            next.push(superseded);
        }
        next.extend(look.unwrap_or_default().terms.iter().map(|terms| terms.generation));
        next.sort_unstable();
        next.dedup();
        let mut live = self.live();
        // Entered before others are left: what stays leased is live all the time.
        next.iter().for_each(|generation| live.enter(*generation));
        let ended = leased.drain(..).filter(|generation| live.leave(*generation)).count();
        if ended > 0 {
            // Release: as in `leave`.
            self.ended.store(true, Ordering::Release);
        }
        if let Some(archive) = self.archive() {
            archive.note_readers(!next.is_empty());
        }
        *leased = next;
    }

    /// Whether any other process reads, as of the last look.
    pub(super) fn is_leased(&self) -> bool {
        !self.leased.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Keeps the pages of bases that were superseded before this process opened the file, and that leases keep: its
    /// space map calls them free. `current` is the published base. Nothing may have been written yet.
    ///
    /// Pages that cannot be read for damage are not kept. Their readers will meet the same damage.
    pub fn keep_superseded(self: &Arc<Self>, roots: &[BaseRoot], current: &BaseVersion) -> Result<()> {
        let (mut seen, mut dead) = (HashSet::new(), Vec::new());
        for root in roots {
            let pages = self.open_leased(root, None).and_then(|base| self.pages_only_in(&base, current));
            let pages: Vec<DeadPage> = match pages {
                Err(Error::Corruption { .. }) => continue,
                pages => pages?,
            };
            for page in pages.into_iter().filter(|page| seen.insert(page.slot)) {
                if self.space().take_free(self, page.slot)? {
                    dead.push(page);
                }
            }
        }
        let mut free = Dead::default();
        self.live().bury(current.generation(), Dead { in_file: dead, ..Dead::default() }, &mut free);
        self.space().release(free.in_file.iter().map(|page| page.slot));
        Ok(())
    }
}

/// The reader's side.
impl PageStore {
    /// Opens a file for reading, whoever writes it meanwhile. Nothing of it can be read before
    /// [`adopt`](Self::adopt).
    pub fn open_beside(disk: &Arc<dyn Disk>, path: &Path, cache: &Arc<Cache>) -> Result<Arc<PageStore>> {
        let file = File::open(&**disk, path, OpenMode::Read)?;
        let superblock = Superblock::read_published(&file)?;
        Ok(Arc::new(Self::new(file, cache, true, superblock)))
    }

    /// The newest superblock in the file.
    pub fn read_superblock(&self) -> Result<Superblock> {
        Superblock::read_published(&self.file)
    }

    /// Finds the newest base, and has it leased by `lease`: what was reachable through it when it was published is
    /// from then on.
    ///
    /// The lease is stated before one looks again whether that base is still the newest. If it is, whoever publishes
    /// the next one looks at the leases after that, and finds this one.
    pub fn lease_newest(&self, lease: &mut dyn FnMut(&BaseRoot) -> Result<()>) -> Result<Leased> {
        for _ in 0..ATTEMPTS {
            let superblock = self.read_superblock()?;
            if superblock.database_id != self.database_id() {
                let reason = "this is the file of another database than a moment ago";
                return Err(Error::corruption(self.path(), 0, reason));
            }
            lease(&superblock.root)?;
            let len = self.file.len()?;
            self.count_slots(len / PAGE_BYTES as u64);
            let space = SpaceMap::load(self, &superblock);
            let newest = self.read_superblock()?;
            if newest.root.generation != superblock.root.generation {
                continue;
            }
            if len < newest.slots * PAGE_BYTES as u64 {
                return Err(self.too_short(len, newest.slots));
            }
            // What a damaged map means for those who write, they find out.
            let space = space.unwrap_or_else(|_| SpaceMap::new());
            return Ok(Leased { superblock: newest, space });
        }
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        Err(Error::io(self.path(), "lease the newest base of", busy))
    }

    /// From now on the present is what was leased; bases that are opened from it hold `lease`.
    pub fn adopt(&self, leased: Leased, lease: Option<Arc<Lease>>) {
        let mut publish = self.publish();
        publish.superblock = leased.superblock;
        publish.lease = lease;
        *self.space() = leased.space;
    }

    /// Opens a base that `lease` keeps, or something else that the caller knows of.
    pub fn open_leased(
        self: &Arc<Self>,
        root: &BaseRoot,
        lease: Option<Arc<Lease>>,
    ) -> Result<Arc<BaseVersion>> {
        self.live().enter(root.generation);
        BaseVersion::open(self.clone(), *root, lease)
    }
}
