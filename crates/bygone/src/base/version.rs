//! One published state of all tables, and reading it.
//!
//! Owns: the roots of the tables. Promises: its pages stay readable until it is dropped. May call: the page
//! store.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::cache::{self, Guard};
use crate::error::Result;
use crate::layer::Lookup;
use crate::lease::Lease;
use crate::limits::PAGE_BYTES;

use super::cursor::BaseCursor;
use super::inner::Inner;
use super::leaf::{Leaf, Stored};
use super::page::{self, Kind, Page};
use super::pointer::{BaseRoot, PagePointer, TableRoot};
use super::scan::{self, Visit};
use super::store::PageStore;

#[derive(Debug)]
pub(crate) struct BaseVersion {
    store: Arc<PageStore>,
    root: BaseRoot,
    /// By table id.
    tables: Vec<(u32, TableRoot)>,
    /// What keeps the pages, if another process may write.
    _lease: Option<Arc<Lease>>,
}

impl BaseVersion {
    /// Opens a version whose generation was entered among the live ones: loads its catalogue.
    pub(super) fn open(
        store: Arc<PageStore>,
        root: BaseRoot,
        lease: Option<Arc<Lease>>,
    ) -> Result<Arc<BaseVersion>> {
        // From here on the version's end undoes `enter`.
        let mut base = BaseVersion { store, root, tables: Vec::new(), _lease: lease };
        base.load_catalogue()?;
        Ok(Arc::new(base))
    }

    pub(super) fn with_tables(
        store: Arc<PageStore>,
        root: BaseRoot,
        tables: Vec<(u32, TableRoot)>,
    ) -> BaseVersion {
        BaseVersion { store, root, tables, _lease: None }
    }

    /// The tree of the catalogue itself, whose level its root page tells.
    pub(super) fn catalogue(store: &PageStore, root: &BaseRoot) -> Result<Option<TableRoot>> {
        let Some(catalogue) = root.catalogue else { return Ok(None) };
        let guard = cache::pin();
        let page = store.page(&catalogue, &guard)?;
        let level = page::level(page);
        let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
        if !catalogue.is_sound(root.generation) || !page::is(page, kind, level) {
            return Err(store.corruption(&catalogue, "not the root of the catalogue"));
        }
        // Pages are not counted for the catalogue.
        let records = u64::from(root.tables);
        Ok(Some(TableRoot { root: catalogue, level, records, pages: 0, overflow_pages: 0 }))
    }

    fn load_catalogue(&mut self) -> Result<()> {
        let Some(catalogue) = Self::catalogue(&self.store, &self.root)? else { return Ok(()) };
        let generation = self.root.generation;
        let mut tables = Vec::new();
        let mut sound = true;
        scan::for_each(
            &self.store,
            &catalogue,
            Bound::Unbounded,
            Bound::Unbounded,
            &mut |key, value| match (<[u8; 4]>::try_from(key), TableRoot::decode(value, generation)) {
                (Ok(id), Some(root)) if tables.len() < self.root.tables as usize => {
                    tables.push((u32::from_be_bytes(id), root));
                    ControlFlow::Continue(())
                }
                _ => {
                    sound = false;
                    ControlFlow::Break(())
                }
            },
        )?;
        if !sound || tables.len() != self.root.tables as usize {
            return Err(self.store.corruption(&catalogue.root, "the catalogue of tables is malformed"));
        }
        self.tables = tables;
        Ok(())
    }

    /// The tree of a table; none if it has no records.
    pub fn table(&self, table: u32) -> Option<&TableRoot> {
        // Most databases have few tables, and ids are given in order.
        let i = self.tables.binary_search_by_key(&table, |(id, _)| *id).ok()?;
        Some(&self.tables[i].1)
    }

    /// Looks a key up and hands its value to `found`. Allocates nothing unless the value fills several pages.
    #[inline]
    pub fn get(&self, table: u32, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Lookup> {
        let Some(root) = self.table(table) else { return Ok(Lookup::Absent) };
        let store = &*self.store;
        let guard = cache::pin();
        let mut pointer = root.root;
        for level in (1..=root.level).rev() {
            let page = store.page(&pointer, &guard)?;
            if !page::is(page, Kind::Inner, level) {
                return Err(unexpected_level(store, &pointer));
            }
            let inner = Inner::new(page);
            pointer = inner.child(inner.child_of(key));
        }
        let page = match store.cached(&pointer, &guard) {
            Some(page) => page,
            None => self.load_leaf(root, key, &guard)?,
        };
        if !page::is(page, Kind::Leaf, 0) {
            return Err(unexpected_level(store, &pointer));
        }
        let leaf = Leaf::new(page);
        let Ok(i) = leaf.search(key) else { return Ok(Lookup::Absent) };
        match leaf.record(i).1 {
            Stored::Inline(value) => found(value),
            Stored::Large(large) => large.with(store, found)?,
        }
        Ok(Lookup::Found)
    }

    /// The leaf where a key would be, which is not cached. Goes down once more, so that who finds all in the cache does
    /// not have to remember the way.
    #[cold]
    fn load_leaf<'g>(&self, root: &TableRoot, key: &[u8], guard: &'g Guard) -> Result<&'g Page> {
        match self.above_leaf(root, key, guard)? {
            Some((inner, child)) => self.store.load_leaf(root, &inner, child, false, guard),
            None => self.store.load(&root.root, guard),
        }
    }

    /// The page above the leaf where a key would be, and which of its children that is; none if the root is a leaf.
    pub(super) fn above_leaf<'g>(
        &self,
        root: &TableRoot,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<(Inner<'g>, usize)>> {
        let mut pointer = root.root;
        for level in (1..=root.level).rev() {
            let page = self.store.page(&pointer, guard)?;
            if !page::is(page, Kind::Inner, level) {
                return Err(unexpected_level(&self.store, &pointer));
            }
            let inner = Inner::new(page);
            let child = inner.child_of(key);
            if level == 1 {
                return Ok(Some((inner, child)));
            }
            pointer = inner.child(child);
        }
        Ok(None)
    }

    /// A cursor over one table, off the end until it is moved.
    pub fn cursor(self: &Arc<Self>, table: u32) -> BaseCursor {
        BaseCursor::new(self.clone(), table)
    }

    /// Hands every record between the bounds to `visit`, in key order, until that breaks off.
    pub fn for_each(
        &self,
        table: u32,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        match self.table(table) {
            Some(root) => scan::for_each(&self.store, root, lower, upper, visit),
            None => Ok(()),
        }
    }

    /// The tables that have records, by id.
    pub fn tables(&self) -> &[(u32, TableRoot)] {
        &self.tables
    }

    pub fn generation(&self) -> u64 {
        self.root.generation
    }

    /// Everything committed up to this sequence number is in this base.
    pub fn seq(&self) -> u64 {
        self.root.seq
    }

    pub fn root(&self) -> BaseRoot {
        self.root
    }

    /// How many pages would be free if this version ended, and no other of its generation were held.
    pub fn pages_kept(&self) -> u64 {
        self.store.live().kept_alone(self.root.generation)
    }

    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }
}

impl Drop for BaseVersion {
    fn drop(&mut self) {
        self.store.leave(self.root.generation);
    }
}

#[cold]
pub(super) fn unexpected_level(store: &PageStore, pointer: &PagePointer) -> crate::error::Error {
    store.corruption(pointer, "not a page of the kind and level that the tree has here")
}

/// Copies the leaf that a pointer leads to; the copy can be read without a guard.
pub(super) fn copy_leaf(store: &PageStore, pointer: &PagePointer, out: &mut [u8; PAGE_BYTES]) -> Result<()> {
    store.copy_page(pointer, out)?;
    if page::is(out, Kind::Leaf, 0) { Ok(()) } else { Err(unexpected_level(store, pointer)) }
}
