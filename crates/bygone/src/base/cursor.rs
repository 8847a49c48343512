//! A cursor over one table of a base.
//!
//! Owns: a copy of the leaf it is in. Promises: holds its base version, and neither guard nor page. May call:
//! the page store.

use std::sync::Arc;

use crate::error::Result;
use crate::layer::LayerCursor;
use crate::limits::PAGE_BYTES;

use super::leaf::{Leaf, Stored};
use super::page::Page;
use super::path::{Path, Towards};
use super::pointer::{PagePointer, TableRoot};
use super::version::{BaseVersion, copy_leaf};

pub(crate) struct BaseCursor {
    base: Arc<BaseVersion>,
    root: Option<TableRoot>,
    path: Path,
    leaf: Box<Page>,
    /// The record of the leaf that the cursor is at; none off either end.
    record: Option<usize>,
    /// The key at the cursor, put together from the leaf's prefix and the rest.
    key: Vec<u8>,
    /// The value at the cursor, if it is large and was asked for.
    large_value: Vec<u8>,
    large_loaded: bool,
}

impl BaseCursor {
    pub(super) fn new(base: Arc<BaseVersion>, table: u32) -> BaseCursor {
        let root = base.table(table).copied();
        BaseCursor {
            base,
            root,
            path: Path::default(),
            leaf: Box::new([0; PAGE_BYTES]),
            record: None,
            key: Vec::new(),
            large_value: Vec::new(),
            large_loaded: false,
        }
    }

    fn enter_leaf(&mut self, pointer: &PagePointer) -> Result<usize> {
        copy_leaf(self.base.store(), pointer, &mut self.leaf)?;
        let leaf = Leaf::new(&self.leaf);
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        Ok(leaf.len())
    }

    fn stand_at(&mut self, i: usize) {
        let leaf = Leaf::new(&self.leaf);
        self.key.truncate(leaf.prefix().len());
        self.key.extend_from_slice(leaf.raw(i).0);
        self.large_loaded = false;
        self.record = Some(i);
    }

    /// Goes to the first record of the next leaf. An error leaves the cursor off the end.
    fn next_leaf(&mut self) -> Result<()> {
        self.record = None;
        if let Some(pointer) = self.path.next_leaf(self.base.store())? {
            self.enter_leaf(&pointer)?;
            self.stand_at(0);
        }
        Ok(())
    }

    fn previous_leaf(&mut self) -> Result<()> {
        self.record = None;
        if let Some(pointer) = self.path.previous_leaf(self.base.store())? {
            let len = self.enter_leaf(&pointer)?;
            self.stand_at(len - 1);
        }
        Ok(())
    }
}

impl LayerCursor for BaseCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.record = None;
        let Some(root) = &self.root else { return Ok(()) };
        let pointer = self.path.descend(self.base.store(), root, Towards::Key(key))?;
        let len = self.enter_leaf(&pointer)?;
        let i = Leaf::new(&self.leaf).search(key).unwrap_or_else(|i| i);
        if i < len {
            self.stand_at(i);
            return Ok(());
        }
        self.next_leaf()
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.record = None;
        let Some(root) = &self.root else { return Ok(()) };
        let towards = key.map_or(Towards::Last, Towards::Key);
        let pointer = self.path.descend(self.base.store(), root, towards)?;
        let len = self.enter_leaf(&pointer)?;
        let i = key.map_or(len, |key| Leaf::new(&self.leaf).search(key).unwrap_or_else(|i| i));
        if i > 0 {
            self.stand_at(i - 1);
            return Ok(());
        }
        self.previous_leaf()
    }

    fn next(&mut self) -> Result<()> {
        match self.record {
            Some(i) if i + 1 < Leaf::new(&self.leaf).len() => {
                self.stand_at(i + 1);
                Ok(())
            }
            Some(_) => self.next_leaf(),
            None => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match self.record {
            Some(i) if i > 0 => {
                self.stand_at(i - 1);
                Ok(())
            }
            Some(_) => self.previous_leaf(),
            None => Ok(()),
        }
    }

    fn key(&self) -> Option<&[u8]> {
        self.record.map(|_| self.key.as_slice())
    }

    fn load(&mut self) -> Result<()> {
        let Some(i) = self.record else { return Ok(()) };
        if let Stored::Large(large) = Leaf::new(&self.leaf).record(i).1
            && !self.large_loaded
        {
            large.read(self.base.store(), &mut self.large_value)?;
            self.large_loaded = true;
        }
        Ok(())
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        let Some(i) = self.record else { return Ok(None) };
        Ok(Some(match Leaf::new(&self.leaf).record(i).1 {
            Stored::Inline(value) => value,
            Stored::Large(_) => &self.large_value,
        }))
    }

    fn is_deletion(&self) -> bool {
        false
    }
}
