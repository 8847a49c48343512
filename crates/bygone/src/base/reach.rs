//! Which pages a tree reaches, and which of them another base does not.
//!
//! Owns: the walk over pointers. Promises: reads only pages that hold pointers; a subtree that two bases share
//! is not entered. May call: the page store.

use std::collections::HashSet;

use crate::error::Result;
use crate::limits::PAGE_BYTES;

use super::inner::Inner;
use super::leaf::{Leaf, Stored};
use super::live::DeadPage;
use super::page::{self, Kind};
use super::pointer::{PagePointer, TableRoot};
use super::store::PageStore;
use super::version::{BaseVersion, unexpected_level};

/// Names the pages of a tree to `enter`, each before those below it, which are left out if it answers
/// `false`.
pub(super) fn walk(
    store: &PageStore,
    tree: &TableRoot,
    enter: &mut dyn FnMut(&PagePointer) -> bool,
) -> Result<()> {
    walk_page(store, &tree.root, tree.level, tree.overflow_pages > 0, enter)
}

fn walk_page(
    store: &PageStore,
    pointer: &PagePointer,
    level: u8,
    large_values: bool,
    enter: &mut dyn FnMut(&PagePointer) -> bool,
) -> Result<()> {
    // Leaves need to be read only if they may lead to further pages.
    if !enter(pointer) || (level == 0 && !large_values) {
        return Ok(());
    }
    let mut page = [0; PAGE_BYTES];
    if !store.copy_cached(pointer, &mut page) {
        store.read_uncached(pointer, &mut page)?;
    }
    let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
    if !page::is(&page, kind, level) {
        return Err(unexpected_level(store, pointer));
    }
    if level > 0 {
        let inner = Inner::new(&page);
        return (0..inner.children())
            .try_for_each(|i| walk_page(store, &inner.child(i), level - 1, large_values, enter));
    }
    let leaf = Leaf::new(&page);
    for i in 0..leaf.len() {
        if let Stored::Large(large) = leaf.record(i).1 {
            large.pages(store, &mut |pointer, _| {
                enter(&pointer);
            })?;
        }
    }
    Ok(())
}

impl PageStore {
    /// The pages that `older` reaches and the later base `newer` does not: what keeping `older` costs beside
    /// `newer`. Takes time in proportion to the pages in which the two differ.
    pub fn pages_only_in(&self, older: &BaseVersion, newer: &BaseVersion) -> Result<Vec<DeadPage>> {
        // A page not born after `older` that `newer` still has was in every base between, so in `older` too,
        // with all below it.
        let mut shared = HashSet::new();
        self.walk_all(newer, &mut |pointer| {
            let is_shared = pointer.birth <= older.generation();
            if is_shared {
                shared.insert(pointer.slot);
            }
            !is_shared
        })?;
        let mut pages = Vec::new();
        self.walk_all(older, &mut |pointer| {
            let is_shared = shared.contains(&pointer.slot);
            if !is_shared {
                pages.push(*pointer);
            }
            !is_shared
        })?;
        Ok(pages)
    }

    fn walk_all(&self, base: &BaseVersion, enter: &mut dyn FnMut(&PagePointer) -> bool) -> Result<()> {
        if let Some(catalogue) = BaseVersion::catalogue(self, &base.root())? {
            walk(self, &catalogue, enter)?;
        }
        base.tables().iter().try_for_each(|(_, tree)| walk(self, tree, enter))
    }
}
