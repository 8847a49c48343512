//! One pass of sorted updates through the tree of one table.
//!
//! Owns: the walk. Promises: each page whose keys no update touches is left where it is, with what is below
//! it, except for the right neighbours that underfull pages take in; the pass may stop behind any update, and
//! leaves a whole tree. May call: builders and page writer.
//!
//! The walk goes down only to leaves that have updates. Their records, with the updates applied, stream into
//! the builder of level 0, and each builder's pages become entries of the one above; so touched neighbours,
//! also under different parents, come out as full pages. Before a page is taken over as it is, the builders
//! below its parent are flushed. Leaves between which large values lie are held back, and come to lie side by side.

use crate::error::{Error, Result};
use crate::limits::{KEY_BYTES_MAX, PAGE_BYTES, VALUE_BYTES_MAX};

use super::builder::{Builder, Made};
use super::inner::Inner;
use super::leaf::{INLINE_VALUE_BYTES_MAX, Leaf, Stored};
use super::overflow::{self, LargeValue};
use super::page::{self, HEADER_BYTES, Head, Kind, Page};
use super::pointer::{LEVEL_MAX, PagePointer, TableRoot};
use super::read_ahead::ReadAhead;
use super::rebuild::Updates;
use super::writer::PageWriter;

/// So many leaves wait at most.
const LEAVES_MAX: usize = 32;

pub(super) struct Merge<'a> {
    writer: &'a mut PageWriter,
    updates: &'a mut dyn Updates,
    builders: Vec<Builder>,
    /// Leaves that have no place yet, in order, because pages of large values were written between them. None of them
    /// is underfull, and the builder of leaves holds more.
    waiting: Vec<Made>,
    /// Whether pages of large values were written since leaves were.
    leaves_apart: bool,
    read_ahead: ReadAhead,
    /// Stop when the writer has written so many pages.
    written_max: u64,
    stopped: bool,
    records: u64,
    pages: u64,
    overflow_pages: u64,
    /// The last key that was applied, to notice updates out of order.
    last_key: Option<Vec<u8>>,
}

impl<'a> Merge<'a> {
    /// Applies `updates` to a table, until they end or about `page_budget` pages are written; the new root.
    pub fn run(
        writer: &'a mut PageWriter,
        updates: &'a mut dyn Updates,
        table: Option<TableRoot>,
        page_budget: u64,
    ) -> Result<Option<TableRoot>> {
        let mut merge = Merge {
            written_max: writer.written.saturating_add(page_budget),
            writer,
            updates,
            builders: vec![Builder::new(0)],
            waiting: Vec::new(),
            leaves_apart: false,
            read_ahead: ReadAhead::default(),
            stopped: false,
            records: table.map_or(0, |table| table.records),
            pages: table.map_or(0, |table| table.pages),
            overflow_pages: table.map_or(0, |table| table.overflow_pages),
            last_key: None,
        };
        match table {
            None => {
                merge.builders[0].begin(&[]);
                merge.rest_of_leaf(None, &[], None)?;
            }
            Some(table) if table.level == 0 => merge.leaf(&table.root, 0, &[], None)?,
            Some(table) => merge.inner(&table.root, table.level, &[], None)?,
        }
        let root = merge.finish()?;
        merge.writer.flush()?;
        let Merge { records, pages, overflow_pages, .. } = merge;
        Ok(root.map(|(root, level)| TableRoot { root, level, records, pages, overflow_pages }))
    }

    /// The key of the next update if it belongs before `upper`.
    fn next_key<'u>(updates: &'u mut dyn Updates, upper: Option<&[u8]>) -> Result<Option<&'u [u8]>> {
        Ok(updates.peek()?.filter(|key| upper.is_none_or(|upper| *key < upper)))
    }

    fn inner(&mut self, pointer: &PagePointer, level: u8, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let mut page = [0; PAGE_BYTES];
        self.writer.store.copy_page(pointer, &mut page)?;
        if !page::is(&page, Kind::Inner, level) {
            return Err(self
                .writer
                .store
                .corruption(pointer, "not an inner page of the level it must have here"));
        }
        self.supersede(pointer);
        let inner = Inner::new(&page);
        let (mut from, mut to) = (lower.to_vec(), Vec::new());
        let mut previous_touched = false;
        self.builder(level).begin(lower);
        for i in 0..inner.children() {
            let last = i + 1 == inner.children();
            if !last {
                inner.separator(i, &mut to);
            }
            let bound = if last { upper } else { Some(to.as_slice()) };
            let child = inner.child(i);
            let touched = !self.stopped && Self::next_key(self.updates, bound)?.is_some();
            if !touched && level > 1 {
                // They count for how full the page above them is.
                self.write_leaves()?;
            }
            if touched || self.builders[..usize::from(level)].iter().any(Builder::is_underfull) {
                if level > 1 {
                    self.inner(&child, level - 1, &from, bound)?;
                } else {
                    let ahead = if previous_touched { Self::neighbours(&inner, i) } else { 0 };
                    self.leaf(&child, ahead, &from, bound)?;
                }
            } else {
                self.flush_below(level)?;
                self.push_child(level, &from, &child)?;
            }
            previous_touched = touched;
            std::mem::swap(&mut from, &mut to);
        }
        Ok(())
    }

    /// How many children behind child `i` lie in the file right behind it.
    fn neighbours(inner: &Inner<'_>, i: usize) -> u64 {
        let slot = inner.child(i).slot;
        (1..=ReadAhead::PAGES_MAX - 1)
            .take_while(|n| {
                let next = i + *n as usize;
                next < inner.children() && inner.child(next).slot == slot + n
            })
            .count() as u64
    }

    fn leaf(&mut self, pointer: &PagePointer, ahead: u64, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let mut page = [0; PAGE_BYTES];
        let cached = self.read_ahead.read(&self.writer.store, pointer, ahead, &mut page)?;
        if !page::is(&page, Kind::Leaf, 0) {
            return Err(self.writer.store.corruption(pointer, "not a leaf, which must be here"));
        }
        self.supersede(pointer);
        self.builders[0].begin(lower);
        self.builders[0].cached |= cached;
        self.rest_of_leaf(Some(pointer), &page, upper)
    }

    /// Streams a leaf's records, and the updates that belong among them, into the builder.
    fn rest_of_leaf(
        &mut self,
        pointer: Option<&PagePointer>,
        page: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        let leaf = page.first_chunk::<PAGE_BYTES>().filter(|_| pointer.is_some()).map(Leaf::new);
        let count = leaf.map_or(0, |leaf| leaf.len());
        let mut next = 0;
        while !self.stopped {
            let Some(key) = Self::next_key(self.updates, upper)? else { break };
            if key.len() > KEY_BYTES_MAX {
                let (size, limit) = (key.len() as u64, KEY_BYTES_MAX as u64);
                return Err(Error::TooLarge { what: "key", size, limit });
            }
            if self.last_key.as_deref().is_some_and(|last| last >= key) {
                return Err(Error::InvalidArgument {
                    reason: "updates of a base are not in key order".into(),
                });
            }
            let last_key = self.last_key.get_or_insert_with(Vec::new);
            last_key.clear();
            last_key.extend_from_slice(key);
            let (position, found) = match leaf.map_or(Err(0), |leaf| leaf.search(key)) {
                Ok(i) => (i, true),
                Err(i) => (i, false),
            };
            if let Some(leaf) = &leaf {
                self.copy_records(leaf, next..position)?;
            }
            next = position + usize::from(found);
            let mut replaced_cached = false;
            if let (true, Some(leaf)) = (found, &leaf)
                && let Stored::Large(large) = leaf.record(position).1
            {
                replaced_cached = self.supersede_large(&large)?;
            }
            self.apply(found, replaced_cached)?;
        }
        match &leaf {
            Some(leaf) => self.copy_records(leaf, next..count),
            None => Ok(()),
        }
    }

    fn copy_records(&mut self, leaf: &Leaf<'_>, records: std::ops::Range<usize>) -> Result<()> {
        for i in records {
            let (suffix, data, large) = leaf.raw(i);
            self.builders[0].push(leaf.prefix(), suffix, data, large);
            if self.builders[0].is_full() {
                self.emit_full(0)?;
            }
        }
        Ok(())
    }

    /// Applies the next update, whose key is in `last_key`, where that key was or was not found.
    fn apply(&mut self, found: bool, cached: bool) -> Result<()> {
        let written = self.writer.written;
        match self.updates.value()? {
            Some(value) => {
                let key = self.last_key.as_deref().unwrap_or_default();
                let builder = &mut self.builders[0];
                builder.push_key(key, &[]);
                let large = value.len() > INLINE_VALUE_BYTES_MAX;
                if !large {
                    builder.data_mut().extend_from_slice(value);
                } else if value.len() > VALUE_BYTES_MAX {
                    let (size, limit) = (value.len() as u64, VALUE_BYTES_MAX as u64);
                    return Err(Error::TooLarge { what: "value", size, limit });
                } else {
                    let writer = &mut *self.writer;
                    overflow::write(value, builder.data_mut(), &mut |kind, level, count, payload| {
                        writer.write(Head::new(kind, level, count), cached, |page| {
                            page[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
                        })
                    })?;
                }
                builder.finish_entry(large);
                self.records += u64::from(!found);
            }
            None => self.records = self.records.saturating_sub(u64::from(found)),
        }
        let overflow_pages = self.writer.written - written;
        self.pages += overflow_pages;
        self.overflow_pages += overflow_pages;
        self.leaves_apart |= overflow_pages > 0;
        self.updates.advance()?;
        if self.builders[0].is_full() {
            self.emit_full(0)?;
        }
        self.stopped = self.writer.written >= self.written_max;
        Ok(())
    }

    /// Gives up the pages of a large value; whether the first of them was cached.
    fn supersede_large(&mut self, large: &LargeValue<'_>) -> Result<bool> {
        let store = self.writer.store.clone();
        let cached = large.first_pointer().is_some_and(|pointer| store.is_cached(&pointer));
        let mut pages = 0;
        large.pages(&store, &mut |pointer, _| {
            pages += 1;
            self.writer.supersede(&pointer);
        })?;
        self.pages = self.pages.saturating_sub(pages);
        self.overflow_pages = self.overflow_pages.saturating_sub(pages);
        Ok(cached)
    }

    fn supersede(&mut self, pointer: &PagePointer) {
        self.writer.supersede(pointer);
        self.pages = self.pages.saturating_sub(1);
    }

    fn builder(&mut self, level: u8) -> &mut Builder {
        while self.builders.len() <= usize::from(level) {
            self.builders.push(Builder::new(self.builders.len() as u8));
        }
        &mut self.builders[usize::from(level)]
    }

    fn push_child(&mut self, level: u8, lower: &[u8], child: &PagePointer) -> Result<()> {
        if level > LEVEL_MAX {
            let (size, limit) = (u64::from(level), u64::from(LEVEL_MAX));
            return Err(Error::TooLarge { what: "height of a tree", size, limit });
        }
        let builder = self.builder(level);
        builder.begin(lower);
        builder.push(lower, &[], &child.encode(), false);
        if builder.is_full() { self.emit_full(level) } else { Ok(()) }
    }

    fn emit_full(&mut self, level: u8) -> Result<()> {
        let made = self.builders[usize::from(level)].make_full();
        self.emit(level, made)
    }

    /// Makes pages of all that is pending at a level.
    fn flush(&mut self, level: u8) -> Result<()> {
        while !self.builders[usize::from(level)].is_empty() {
            let made = self.builders[usize::from(level)].make_final();
            self.emit(level, made)?;
        }
        self.builders[usize::from(level)].end();
        if level == 0 { self.write_leaves() } else { Ok(()) }
    }

    fn emit(&mut self, level: u8, made: Made) -> Result<()> {
        self.pages += 1;
        if level > 0 {
            let pointer = made.write(self.writer)?;
            return self.push_child(level + 1, &made.lower, &pointer);
        }
        self.waiting.push(made);
        // Leaves lie side by side, so that many can be read at once.
        if self.leaves_apart && self.waiting.len() < LEAVES_MAX { Ok(()) } else { self.write_leaves() }
    }

    fn write_leaves(&mut self) -> Result<()> {
        self.leaves_apart = false;
        let mut waiting = std::mem::take(&mut self.waiting);
        for made in waiting.drain(..) {
            let pointer = made.write(self.writer)?;
            self.push_child(1, &made.lower, &pointer)?;
        }
        self.waiting = waiting;
        Ok(())
    }

    fn flush_below(&mut self, level: u8) -> Result<()> {
        (0..level).try_for_each(|level| self.flush(level))
    }

    /// Builds the levels up to the root; the root's pointer and level, `None` if no record is left.
    fn finish(&mut self) -> Result<Option<(PagePointer, u8)>> {
        let mut level = 0;
        let (mut root, mut root_level) = loop {
            let index = usize::from(level);
            if self.builders[index..].iter().all(Builder::is_empty) {
                return Ok(None);
            }
            let topmost = self.builders[index + 1..].iter().all(Builder::is_empty);
            if let (true, true, 1, Some(pointer)) =
                (level > 0, topmost, self.builders[index].len(), self.builders[index].first_pointer())
            {
                break (pointer, level - 1);
            }
            self.flush(level)?;
            level += 1;
        };
        // Deletions may have left a chain of pages with one child each at the top.
        self.writer.flush()?;
        let mut page: Page = [0; PAGE_BYTES];
        while root_level > 0 {
            self.writer.store.copy_page(&root, &mut page)?;
            if !page::is(&page, Kind::Inner, root_level) || Inner::new(&page).children() > 1 {
                break;
            }
            self.supersede(&root);
            (root, root_level) = (Inner::new(&page).child(0), root_level - 1);
        }
        Ok(Some((root, root_level)))
    }
}
