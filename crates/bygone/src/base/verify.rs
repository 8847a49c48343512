//! Checking everything that a base can reach.
//!
//! Owns: the walk. Promises: reads from the file, not from the cache; says of the first damage where it is.
//! May call: the page store.

use crate::error::Result;
use crate::limits::PAGE_BYTES;

use super::inner::Inner;
use super::leaf::{Leaf, Stored};
use super::page::{self, Kind};
use super::pointer::{BaseRoot, PagePointer, TableRoot};
use super::store::PageStore;
use super::version::{BaseVersion, unexpected_level};

use std::sync::Arc;

/// What a check went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub tables: u64,
    pub records: u64,
    /// Pages of the tables and of the catalogue.
    pub pages: u64,
    /// Pages of the space map; only counted for the published base.
    pub space_pages: u64,
}

impl PageStore {
    /// Walks a base that is published or retained: checksums, order of keys, separators, counts, that no page
    /// is reached twice, and that each is marked as taken.
    pub fn verify(self: &Arc<Self>, root: &BaseRoot) -> Result<Verified> {
        let base = self.open_base(root)?;
        let mut walk = Walk {
            store: self,
            root: *root,
            seen: vec![0; (self.file_bytes() / PAGE_BYTES as u64).div_ceil(64) as usize],
            records: 0,
            pages: 0,
            overflow_pages: 0,
        };
        let mut verified = Verified { tables: base.tables().len() as u64, ..Verified::default() };
        if let Some(catalogue) = BaseVersion::catalogue(self, root)? {
            walk.tree(&catalogue.root, catalogue.level, &[], None)?;
            verified.pages += walk.pages;
        }
        for (_, table) in base.tables() {
            walk.table(table)?;
            verified.records += table.records;
            verified.pages += table.pages;
        }
        // Held so that no rebuild replaces the space map's pages while they are read: they are few.
        let publish = self.publish();
        if publish.superblock.root == *root && !self.is_read_only() {
            let own: Vec<PagePointer> = self.space().own_pages().collect();
            for pointer in &own {
                self.read_uncached(pointer, &mut [0; PAGE_BYTES])?;
                walk.reach(pointer)?;
                if !self.space().is_taken(self, pointer.slot)? {
                    return Err(self.corruption(pointer, PAGE_IS_FREE));
                }
            }
            verified.space_pages = own.len() as u64;
        }
        Ok(verified)
    }
}

const PAGE_IS_FREE: &str = "the space map says that this page is free";

struct Walk<'a> {
    store: &'a Arc<PageStore>,
    root: BaseRoot,
    /// One bit per slot.
    seen: Vec<u64>,
    records: u64,
    pages: u64,
    overflow_pages: u64,
}

impl Walk<'_> {
    fn table(&mut self, table: &TableRoot) -> Result<()> {
        (self.records, self.pages, self.overflow_pages) = (0, 0, 0);
        self.tree(&table.root, table.level, &[], None)?;
        if (self.records, self.pages, self.overflow_pages)
            != (table.records, table.pages, table.overflow_pages)
        {
            return Err(self.store.corruption(&table.root, "the table's counts are wrong"));
        }
        Ok(())
    }

    fn reach(&mut self, pointer: &PagePointer) -> Result<()> {
        self.pages += 1;
        let (word, bit) = ((pointer.slot / 64) as usize, 1 << (pointer.slot % 64));
        if word >= self.seen.len() {
            // The file has grown since; the page was read, so it lies within.
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            return Err(self.store.corruption(pointer, "two pointers lead to this page"));
        }
        self.seen[word] |= bit;
        Ok(())
    }

    /// Whether a page of the base is marked as taken, as it must be while the base is published or retained.
    fn check_taken(&self, pointer: &PagePointer) -> Result<()> {
        let is_kept = self.store.is_read_only() || self.store.space().is_taken(self.store, pointer.slot)?;
        if is_kept || self.store.is_archived(pointer)? {
            return Ok(());
        }
        // Looked at after the map: what is still published was so then. A base that was superseded meanwhile
        // is kept by whoever holds it, not by the map.
        let publish = self.store.publish();
        let needed = publish.superblock.root == self.root
            || self.root.generation <= publish.superblock.newest_retained;
        if needed { Err(self.store.corruption(pointer, PAGE_IS_FREE)) } else { Ok(()) }
    }

    /// Notes a page of the base's trees.
    fn enter(&mut self, pointer: &PagePointer) -> Result<()> {
        self.reach(pointer)?;
        self.store.check_archived(pointer)?;
        self.check_taken(pointer)
    }

    fn tree(&mut self, pointer: &PagePointer, level: u8, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let mut page = [0; PAGE_BYTES];
        self.store.read_uncached(pointer, &mut page)?;
        let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
        if !page::is(&page, kind, level) {
            return Err(unexpected_level(self.store, pointer));
        }
        self.enter(pointer)?;
        if level == 0 {
            return self.leaf(pointer, &Leaf::new(&page), lower, upper);
        }
        let inner = Inner::new(&page);
        let (mut from, mut to) = (lower.to_vec(), Vec::new());
        for i in 0..inner.children() {
            let last = i + 1 == inner.children();
            if !last {
                inner.separator(i, &mut to);
                if to <= from || upper.is_some_and(|upper| to.as_slice() >= upper) {
                    return Err(self.store.corruption(pointer, "a separator is out of the page's bounds"));
                }
            }
            self.tree(&inner.child(i), level - 1, &from, if last { upper } else { Some(&to) })?;
            std::mem::swap(&mut from, &mut to);
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        pointer: &PagePointer,
        leaf: &Leaf<'_>,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        self.records += leaf.len() as u64;
        for i in [0, leaf.len() - 1] {
            let key = [leaf.prefix(), leaf.raw(i).0].concat();
            if key.as_slice() < lower || upper.is_some_and(|upper| key.as_slice() >= upper) {
                return Err(self.store.corruption(pointer, "a key is out of the page's bounds"));
            }
        }
        for i in 0..leaf.len() {
            if let Stored::Large(large) = leaf.record(i).1 {
                let mut pointers = Vec::new();
                large.pages(self.store, &mut |pointer, _| pointers.push(pointer))?;
                self.overflow_pages += pointers.len() as u64;
                pointers.iter().try_for_each(|pointer| self.enter(pointer))?;
                large.read_parts(self.store, &mut |_| ())?;
            }
        }
        Ok(())
    }
}
