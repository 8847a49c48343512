//! Which rows two moments do not share, told by their pages.
//!
//! Owns: [`Candidates`]. Promises: every row that is not the same, byte for byte, as of both moments is given, of each
//! side that has it; others may be, too. What it reads is: the pages that differ, as the engine tells without looking
//! at others; the interior pages of the table; the leaves that the two trees do not share. May call: `btree`.
//!
//! A leaf that both trees have, and that has not changed, has the same rows in both, wherever it hangs. What such a
//! row has in pages of its own may have changed without it: SQLite writes over the end of a record in place. If a page
//! has changed that could be one of those, is in use in both states, and is none of a row that was looked at anyhow,
//! the shared leaves are looked through, too, for who leads to it.
//!
//! Rows of leaves that were only moved or split are recognized by digests. There is a bound for how many are
//! remembered; beyond it rows are given that have not changed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::btree::{Cell, PLAIN_PAGES_MAX, Pages, Value, is_of_tree};
use crate::failure::Result;

/// About 32 MB.
const DIGESTS_MAX: usize = 1 << 20;

/// One of two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Before,
    After,
}

/// What finds a row in its table.
#[derive(Debug)]
pub(super) enum Locator {
    Rowid(i64),
    /// The values of the primary key, where there are no rowids.
    Key(Vec<Value>),
}

/// A table as of a moment.
pub(super) struct Rooted {
    pub pages: Pages,
    pub root: u32,
}

/// Rows that may differ.
pub(super) struct Candidates {
    before: Pages,
    after: Pages,
    /// How many columns name a row, where there are no rowids.
    key_columns: Option<usize>,
    /// Pages with rows that the other side does not share.
    old: Vec<u32>,
    new: Vec<u32>,
    shared: Vec<u32>,
    /// Changed pages that may be ends of records of shared leaves.
    suspects: HashSet<u32>,
    /// Of the rows in `old`, and whether such a one is in `new`.
    digests: HashMap<u128, bool>,
    hashers: [RandomState; 2],
    phase: Phase,
    queue: VecDeque<(Which, Locator)>,
    page: Vec<u8>,
    record: Vec<u8>,
}

/// Which page is looked at next.
#[derive(Clone, Copy)]
enum Phase {
    New(usize),
    Old(usize),
    Shared(usize),
}

impl Candidates {
    /// Compares the pages.
    pub fn new(before: Rooted, after: Rooted, key_columns: Option<usize>) -> Result<Candidates> {
        let old_tree = before.pages.tree(before.root)?;
        let new_tree = after.pages.tree(after.root)?;
        let (before, after) = (before.pages, after.pages);
        // Interior pages of tables with rowids have no rows.
        let with_rows = |mut tree: crate::btree::Tree| match key_columns {
            Some(_) => {
                tree.interior.append(&mut tree.leaves);
                tree.interior
            }
            None => tree.leaves,
        };
        let (mut old, mut new) = (with_rows(old_tree), with_rows(new_tree));
        let (mut shared, mut suspects) = (Vec::new(), HashSet::new());
        let is_laid_out_alike =
            before.shape.page_bytes == after.shape.page_bytes && before.usable() == after.usable();
        if is_laid_out_alike {
            let changed = changed_pages(&before, &after, &mut suspects)?;
            let mut sorted = new.clone();
            sorted.sort_unstable();
            (shared, old) = old
                .into_iter()
                .partition(|page| !changed.contains(page) && sorted.binary_search(page).is_ok());
            let mut sorted = shared.clone();
            sorted.sort_unstable();
            new.retain(|page| sorted.binary_search(page).is_err());
        }
        let mut candidates = Candidates {
            before,
            after,
            key_columns,
            old,
            new,
            shared,
            suspects,
            digests: HashMap::new(),
            hashers: [RandomState::new(), RandomState::new()],
            phase: Phase::New(0),
            queue: VecDeque::new(),
            page: Vec::new(),
            record: Vec::new(),
        };
        candidates.note_old()?;
        Ok(candidates)
    }

    /// Digests the rows of the earlier moment.
    fn note_old(&mut self) -> Result<()> {
        let Candidates { before, old, suspects, digests, hashers, page: bytes, record, .. } = self;
        for &page in &*old {
            before.read(page, bytes)?;
            before.cells(page, bytes, |cell| {
                let digest = digest(before, cell, hashers, record, suspects)?;
                if digests.len() < DIGESTS_MAX {
                    digests.insert(digest, false);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The next row.
    pub fn next(&mut self) -> Result<Option<(Which, Locator)>> {
        loop {
            if let Some(found) = self.queue.pop_front() {
                return Ok(Some(found));
            }
            match self.phase {
                Phase::New(index) => match self.new.get(index).copied() {
                    Some(page) => {
                        self.look_at_new(page)?;
                        self.phase = Phase::New(index + 1);
                    }
                    None => self.phase = Phase::Old(0),
                },
                Phase::Old(index) => match self.old.get(index).copied() {
                    Some(page) => {
                        self.look_at_old(page)?;
                        self.phase = Phase::Old(index + 1);
                    }
                    None => self.phase = Phase::Shared(0),
                },
                Phase::Shared(index) => match self.shared.get(index).copied() {
                    Some(page) if !self.suspects.is_empty() => {
                        self.look_at_shared(page)?;
                        self.phase = Phase::Shared(index + 1);
                    }
                    _ => return Ok(None),
                },
            }
        }
    }

    fn look_at_new(&mut self, page: u32) -> Result<()> {
        let Candidates { after, suspects, digests, hashers, page: bytes, record, queue, key_columns, .. } =
            self;
        after.read(page, bytes)?;
        after.cells(page, bytes, |cell| {
            match digests.get_mut(&digest(after, cell, hashers, record, suspects)?) {
                Some(matched) => *matched = true,
                None => queue.push_back((Which::After, locator(after, page, cell, record, *key_columns)?)),
            }
            Ok(())
        })
    }

    fn look_at_old(&mut self, page: u32) -> Result<()> {
        let Candidates {
            before, suspects, digests, hashers, page: bytes, record, queue, key_columns, ..
        } = self;
        before.read(page, bytes)?;
        before.cells(page, bytes, |cell| {
            let is_matched = digests.get(&digest(before, cell, hashers, record, suspects)?);
            if is_matched != Some(&true) {
                queue.push_back((Which::Before, locator(before, page, cell, record, *key_columns)?));
            }
            Ok(())
        })
    }

    /// The cell is the same in both; the first page that differs, of those behind it, is the same page in both.
    fn look_at_shared(&mut self, page: u32) -> Result<()> {
        let Candidates { before, suspects, page: bytes, record, queue, key_columns, .. } = self;
        before.read(page, bytes)?;
        before.cells(page, bytes, |cell| {
            let mut is_suspect = false;
            before.chain(cell, |page| {
                is_suspect |= suspects.contains(&page);
                !is_suspect
            })?;
            if is_suspect {
                before.record(cell, record, |_| {})?;
                queue.push_back((Which::Before, locator(before, page, cell, record, *key_columns)?));
            }
            Ok(())
        })
    }
}

/// The pages that differ; among them those that may be ends of records in both states.
fn changed_pages(before: &Pages, after: &Pages, suspects: &mut HashSet<u32>) -> Result<HashSet<u32>> {
    let mut changed = HashSet::new();
    // A later handle stands for the tables that had its name before.
    let later = if before.source.view.seq() > after.source.view.seq() { before } else { after };
    let pages = before.shape.pages.min(after.shape.pages);
    let may_be_end = |stored: Option<&bygone::Value>| {
        pages > PLAIN_PAGES_MAX || !is_of_tree(stored.and_then(|stored| stored.first().copied()))
    };
    for change in before.source.view.diff(&after.source.view, &later.source.table)? {
        let change = change?;
        let Ok(key) = <[u8; 4]>::try_from(&change.key[..]) else { continue };
        let page = u32::from_be_bytes(key);
        if page == 0 {
            continue;
        }
        changed.insert(page);
        if page <= pages && may_be_end(change.before.as_ref()) && may_be_end(change.after.as_ref()) {
            suspects.insert(page);
        }
    }
    for side in [before, after] {
        if !suspects.is_empty() {
            side.unused(|page| {
                suspects.remove(&page);
            })?;
        }
    }
    Ok(changed)
}

/// A number that two rows do not share, and all of the record in `record`.
fn digest(
    pages: &Pages,
    cell: &Cell<'_>,
    hashers: &[RandomState; 2],
    record: &mut Vec<u8>,
    suspects: &mut HashSet<u32>,
) -> Result<u128> {
    // The pages of this row are compared with it.
    pages.record(cell, record, |page| {
        suspects.remove(&page);
    })?;
    let [high, low] = hashers.each_ref().map(|state| {
        let mut hasher = state.build_hasher();
        hasher.write_i64(cell.rowid.unwrap_or(0));
        hasher.write(record);
        hasher.finish()
    });
    Ok((u128::from(high) << 64) | u128::from(low))
}

fn locator(
    pages: &Pages,
    page: u32,
    cell: &Cell<'_>,
    record: &[u8],
    key_columns: Option<usize>,
) -> Result<Locator> {
    match (cell.rowid, key_columns) {
        (Some(rowid), _) => Ok(Locator::Rowid(rowid)),
        (None, count) => Ok(Locator::Key(pages.values(page, record, count.unwrap_or(0))?)),
    }
}
