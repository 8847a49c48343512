//! Making the next base out of the present one.
//!
//! Owns: the state of one rebuild and the order of publication. Promises: until the new superblock is being
//! written, nothing of the present base is touched, in the file or in memory, and dropping the rebuild undoes
//! it. May call: the merge, the page store.
//!
//! Publication: tree and catalogue pages, then the pages of the space map, then a sync, then the superblock
//! and its sync. Only then is a slot that the new base gave up free, and the file's free tail cut off.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::TABLES_MAX;
use crate::mutation::{self, Mutation};

use super::live::{Dead, DeadPage};
use super::merge::Merge;
use super::page::{HEADER_BYTES, Head};
use super::pointer::{BaseRoot, PagePointer, TableRoot};
use super::reach;
use super::store::PageStore;
use super::superblock::{self, Superblock};
use super::version::BaseVersion;
use super::writer::PageWriter;

/// A stream of updates for one table, in ascending order of keys, each key once.
pub(crate) trait Updates {
    /// The key of the next update, `None` at the end. Called often; must be cheap when nothing was taken
    /// since.
    fn peek(&mut self) -> Result<Option<&[u8]>>;
    /// The value of the update that `peek` shows; `None` deletes the key, which need not exist.
    fn value(&mut self) -> Result<Option<&[u8]>>;
    /// Moves behind the update that `peek` shows.
    fn advance(&mut self) -> Result<()>;
}

/// How far a pass came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All updates are applied.
    Done,
    /// The page budget is used up; the stream stands at the first update that is not applied.
    BudgetReached,
}

/// A base under construction.
pub(crate) struct Rebuild {
    // Dropped before `turn`: the slots are given back while no other rebuild can start.
    writer: PageWriter,
    base: Arc<BaseVersion>,
    /// The tables that differ from `base`; `None` has no record any more.
    changed: BTreeMap<u32, Option<TableRoot>>,
    /// Pages kept for the past that it has given up.
    released: Vec<DeadPage>,
    /// Pages kept for the past that are in the archive now.
    archived: Vec<DeadPage>,
    /// Archived pages that it has given up.
    given_up: Vec<DeadPage>,
    failed: Option<Error>,
    _turn: Turn,
}

/// The right to be the one rebuild.
struct Turn {
    store: Arc<PageStore>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.store.publish().rebuilding = false;
    }
}

impl PageStore {
    /// Starts the next base, of generation `base.generation() + 1`. `base` must be the published one, and no
    /// other rebuild under way.
    pub fn rebuild(self: &Arc<Self>, base: &Arc<BaseVersion>) -> Result<Rebuild> {
        let mut publish = self.publish();
        self.check_writable(&publish)?;
        let refusal = if publish.rebuilding {
            Some("another rebuild of the base is under way")
        } else if publish.superblock.root != base.root() {
            Some("only the published base can be rebuilt")
        } else {
            None
        };
        if let Some(reason) = refusal {
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        publish.rebuilding = true;
        drop(publish);
        let turn = Turn { store: self.clone() };
        self.collect();
        Ok(Rebuild {
            writer: PageWriter::new(self.clone(), base.generation() + 1),
            base: base.clone(),
            changed: BTreeMap::new(),
            released: Vec::new(),
            archived: Vec::new(),
            given_up: Vec::new(),
            failed: None,
            _turn: turn,
        })
    }
}

impl Rebuild {
    /// How many pages were written so far.
    pub fn written_pages(&self) -> u64 {
        self.writer.written
    }

    fn table(&self, table: u32) -> Option<TableRoot> {
        match self.changed.get(&table) {
            Some(root) => *root,
            None => self.base.table(table).copied(),
        }
    }

    /// Applies updates to a table, until they end or about `page_budget` pages are written; at least one
    /// update. After an error the rebuild can only be dropped.
    pub fn apply(&mut self, table: u32, updates: &mut dyn Updates, page_budget: usize) -> Result<Progress> {
        self.attempt(|rebuild| {
            if updates.peek()?.is_none() {
                return Ok(Progress::Done);
            }
            let before = rebuild.table(table);
            let root = Merge::run(&mut rebuild.writer, updates, before, page_budget as u64)?;
            rebuild.changed.insert(table, root);
            Ok(if updates.peek()?.is_some() { Progress::BudgetReached } else { Progress::Done })
        })
    }

    /// Applies one update: a value, or a deletion.
    pub fn set(&mut self, table: u32, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.apply(table, &mut OneUpdate { key: Some(key), value }, usize::MAX)?;
        Ok(())
    }

    /// Gives up a table with all its pages. Reads its inner pages, and its leaves only if it has large
    /// values.
    pub fn drop_table(&mut self, table: u32) -> Result<()> {
        self.attempt(|rebuild| {
            if let Some(root) = rebuild.table(table) {
                let store = rebuild.writer.store.clone();
                reach::walk(&store, &root, &mut |pointer| {
                    rebuild.writer.supersede(pointer);
                    true
                })?;
                rebuild.changed.insert(table, None);
            }
            Ok(())
        })
    }

    /// Gives up pages that earlier rebuilds kept because of `newest_retained`, and that no retained base needs
    /// any more.
    pub fn release_kept(&mut self, pages: impl IntoIterator<Item = DeadPage>) {
        self.released.extend(pages);
    }

    /// Gives up the slots of pages that are kept for the past and that the archive has. They are free as soon as the
    /// base is published, whoever can see the pages: all find them in the archive.
    pub fn release_archived(&mut self, pages: impl IntoIterator<Item = DeadPage>) {
        self.archived.extend(pages);
    }

    /// Gives up archived pages that no retained base needs any more. The archive keeps them while an open view can see
    /// them.
    pub fn give_up_archived(&mut self, pages: impl IntoIterator<Item = DeadPage>) {
        self.given_up.extend(pages);
    }

    fn attempt<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        work(self).inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Publishes the new base, which holds everything up to `seq`; it is durable when this returns.
    /// Superseded pages born up to `newest_retained` are kept for the past: it must be 0, what it was at
    /// the last publication or less, or the generation that is being superseded. An error from before the
    /// superblock was begun leaves the present base published; a later one poisons the store. `manifest`
    /// is called when the superblock is written, under the store's publish lock: what it sees cannot be
    /// overtaken by [`PageStore::publish_manifest`].
    pub fn finish(
        mut self,
        seq: u64,
        newest_retained: u64,
        manifest: impl FnOnce() -> Vec<u8>,
    ) -> Result<Arc<BaseVersion>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let store = self.writer.store.clone();
        let generation = self.writer.generation;
        let known = store.publish().superblock.newest_retained;
        if newest_retained > known && newest_retained != self.base.generation() {
            // Pages of that generation may be gone already.
            let reason =
                format!("generation {newest_retained} of the base was not kept when it was superseded");
            return Err(Error::InvalidArgument { reason });
        }

        let catalogue = self.merged_catalogue(&store)?;
        let tables = self.merged_tables();
        if tables.len() > TABLES_MAX {
            let (size, limit) = (tables.len() as u64, TABLES_MAX as u64);
            return Err(Error::TooLarge { what: "number of tables", size, limit });
        }
        let root = BaseRoot { generation, seq, catalogue, tables: tables.len() as u32 };

        let superseded = std::mem::take(&mut self.writer.dead).into_iter();
        let (mut dead, mut kept): (Vec<DeadPage>, Vec<DeadPage>) =
            superseded.partition(|page| page.birth > newest_retained);
        dead.append(&mut self.released);
        let mut own_dead = std::mem::take(&mut self.writer.own_dead);
        own_dead.sort_unstable();
        let born: Vec<u64> =
            self.writer.taken.iter().copied().filter(|slot| own_dead.binary_search(slot).is_err()).collect();
        let mut taken = Vec::new();
        #[cfg(feature = "mutations")]
        if mutation::is_on(Mutation::ReuseBeforeDurable) {
            store.space().release_too_early(&store, self.archived.iter().map(|page| page.slot))?;
        }
        let plan = store.space().plan(
            &store,
            born.into_iter(),
            dead.iter().chain(&self.archived).map(|page| page.slot),
            &mut taken,
            &mut |slot, kind, count, payload| {
                self.writer.write_at(slot, Head::new(kind, 0, count), false, |page| {
                    page[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
                })
            },
        );
        self.writer.taken.append(&mut taken);
        let plan = plan?;
        store.count_slots(store.space().end());
        self.writer.flush()?;
        store.file.sync()?;

        let mut publish = store.publish();
        store.check_writable(&publish)?;
        let manifest = manifest();
        superblock::check_manifest(&manifest)?;
        let next = Superblock {
            number: publish.superblock.number + 1,
            database_id: store.database_id(),
            root,
            space: Some(plan.index),
            slots: plan.slots,
            newest_retained,
            manifest,
        };
        // From here on a restart may find the new base: its slots are not given back, whatever happens.
        self.writer.published = true;
        store.write_superblock(&mut publish, next)?;

        if store.archive().is_some() {
            store.newly_kept().append(&mut kept);
        }
        store.look_at_leases(self.base.generation());
        let mut free = Dead::default();
        {
            let mut space = store.space();
            space.commit(plan);
            let mut live = store.live();
            live.enter(generation);
            if store.is_leased() && !mutation::is_on(Mutation::ReuseBeforeDurable) {
                // Other processes look for these pages in their slots: they know an older page map.
                dead.append(&mut self.archived);
            }
            let archived = std::mem::take(&mut self.given_up);
            live.bury(generation, Dead { in_file: dead, archived }, &mut free);
            live.collect(&mut free);
            let mut slots = own_dead;
            slots.extend(free.in_file.iter().map(|page| page.slot));
            if !mutation::is_on(Mutation::ReuseBeforeDurable) {
                slots.extend(self.archived.iter().map(|page| page.slot));
            }
            store.forget(&slots);
            space.release(slots);
        }
        store.forget_archived(&free.archived);
        // The base is published. If the file cannot be cut now, it stays longer than it needs to be until the
        // next time.
        let _ = store.truncate();
        drop(publish);
        Ok(Arc::new(BaseVersion::with_tables(store, root, tables)))
    }

    /// The root of the catalogue, with the changed tables in it.
    fn merged_catalogue(&mut self, store: &PageStore) -> Result<Option<PagePointer>> {
        let before = self.base.root();
        if self.changed.is_empty() {
            return Ok(before.catalogue);
        }
        let catalogue = BaseVersion::catalogue(store, &before)?;
        let mut updates = CatalogueUpdates::new(&self.changed);
        let catalogue = Merge::run(&mut self.writer, &mut updates, catalogue, u64::MAX)?;
        Ok(catalogue.map(|catalogue| catalogue.root))
    }

    fn merged_tables(&self) -> Vec<(u32, TableRoot)> {
        let unchanged = self.base.tables().iter().filter(|(id, _)| !self.changed.contains_key(id)).copied();
        let changed = self.changed.iter().filter_map(|(id, root)| root.map(|root| (*id, root)));
        let mut tables: Vec<_> = unchanged.chain(changed).collect();
        tables.sort_unstable_by_key(|(id, _)| *id);
        tables
    }
}

struct OneUpdate<'a> {
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
}

impl Updates for OneUpdate<'_> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.key)
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.value)
    }

    fn advance(&mut self) -> Result<()> {
        self.key = None;
        Ok(())
    }
}

/// The changed tables as updates of the catalogue.
struct CatalogueUpdates<'a> {
    rest: std::iter::Peekable<std::collections::btree_map::Iter<'a, u32, Option<TableRoot>>>,
    key: [u8; 4],
    value: [u8; TableRoot::BYTES],
}

impl<'a> CatalogueUpdates<'a> {
    fn new(changed: &'a BTreeMap<u32, Option<TableRoot>>) -> Self {
        CatalogueUpdates { rest: changed.iter().peekable(), key: [0; 4], value: [0; TableRoot::BYTES] }
    }
}

impl Updates for CatalogueUpdates<'_> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        let Some((id, _)) = self.rest.peek() else { return Ok(None) };
        self.key = id.to_be_bytes();
        Ok(Some(&self.key))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        let Some((_, Some(root))) = self.rest.peek() else { return Ok(None) };
        self.value = root.encode();
        Ok(Some(&self.value))
    }

    fn advance(&mut self) -> Result<()> {
        self.rest.next();
        Ok(())
    }
}
