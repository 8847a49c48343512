//! The way from a tree's root down to one leaf.
//!
//! Owns: which child was taken at each level. Promises: neighbouring leaves are found without a new descent
//! from the root; nothing is held between calls, so that neither cache nor collector wait for whoever has a
//! path. May call: the page store.

use crate::cache::{self, Guard};
use crate::error::Result;

use super::inner::Inner;
use super::page::{self, Kind};
use super::pointer::{PagePointer, TableRoot};
use super::store::PageStore;
use super::version::unexpected_level;

#[derive(Clone, Copy)]
struct Step {
    page: PagePointer,
    child: usize,
    children: usize,
}

/// Where to go from an inner page.
#[derive(Clone, Copy)]
pub(super) enum Towards<'k> {
    First,
    Last,
    /// To the leaf that holds this key if any does.
    Key(&'k [u8]),
}

#[derive(Default)]
pub(super) struct Path {
    root: Option<TableRoot>,
    /// From the root down; the last step's page is the leaf's parent.
    steps: Vec<Step>,
}

impl Path {
    /// Goes down from the root to a leaf.
    pub fn descend(
        &mut self,
        store: &PageStore,
        root: &TableRoot,
        towards: Towards<'_>,
    ) -> Result<PagePointer> {
        self.steps.clear();
        self.root = Some(*root);
        self.descend_from(store, root.root, root.level, towards)
    }

    fn descend_from(
        &mut self,
        store: &PageStore,
        mut pointer: PagePointer,
        level: u8,
        towards: Towards<'_>,
    ) -> Result<PagePointer> {
        let guard = cache::pin();
        for level in (1..=level).rev() {
            let page = store.page(&pointer, &guard)?;
            if !page::is(page, Kind::Inner, level) {
                return Err(unexpected_level(store, &pointer));
            }
            let inner = Inner::new(page);
            let children = inner.children();
            let child = match towards {
                Towards::First => 0,
                Towards::Last => children - 1,
                Towards::Key(key) => inner.child_of(key),
            };
            self.steps.push(Step { page: pointer, child, children });
            pointer = inner.child(child);
            if level == 1 {
                let onwards = !matches!(towards, Towards::Last);
                Self::prepare_leaf(&self.root, store, &inner, child, onwards, &guard)?;
            }
        }
        Ok(pointer)
    }

    /// Sees to it that a leaf is cached, and perhaps those that come after it `onwards`.
    fn prepare_leaf(
        root: &Option<TableRoot>,
        store: &PageStore,
        parent: &Inner<'_>,
        child: usize,
        onwards: bool,
        guard: &Guard,
    ) -> Result<()> {
        if let Some(root) = root
            && store.cached(&parent.child(child), guard).is_none()
        {
            store.load_leaf(root, parent, child, onwards, guard)?;
        }
        Ok(())
    }

    /// The leaf behind the one the path leads to.
    pub fn next_leaf(&mut self, store: &PageStore) -> Result<Option<PagePointer>> {
        let turn = self.steps.iter().rposition(|step| step.child + 1 < step.children);
        self.turn(store, turn, |child| child + 1, Towards::First)
    }

    /// The leaf before the one the path leads to.
    pub fn previous_leaf(&mut self, store: &PageStore) -> Result<Option<PagePointer>> {
        let turn = self.steps.iter().rposition(|step| step.child > 0);
        self.turn(store, turn, |child| child - 1, Towards::Last)
    }

    fn turn(
        &mut self,
        store: &PageStore,
        turn: Option<usize>,
        neighbour: impl Fn(usize) -> usize,
        towards: Towards<'_>,
    ) -> Result<Option<PagePointer>> {
        let Some(turn) = turn else { return Ok(None) };
        let level = (self.steps.len() - turn) as u8;
        let step = &mut self.steps[turn];
        let pointer = {
            let guard = cache::pin();
            let page = store.page(&step.page, &guard)?;
            let inner = Inner::new(page);
            // The page may have been read again: it is the same by its checksum, but let nothing depend on
            // that.
            if !page::is(page, Kind::Inner, level) || inner.children() != step.children {
                return Err(unexpected_level(store, &step.page));
            }
            let onwards = neighbour(step.child) > step.child;
            step.child = neighbour(step.child);
            if level == 1 {
                Self::prepare_leaf(&self.root, store, &inner, step.child, onwards, &guard)?;
            }
            inner.child(step.child)
        };
        self.steps.truncate(turn + 1);
        self.descend_from(store, pointer, level - 1, towards).map(Some)
    }
}
