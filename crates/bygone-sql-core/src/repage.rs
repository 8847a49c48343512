//! A database with pages of another size.
//!
//! Owns: [`repaged`]: the same rows in the same trees, in pages of another size. Promises: what comes out is a sound
//! database without free pages; entries keep their order, so neither collations nor functions of an application's are
//! needed; what is damaged is an error. May call: `btree`, `pages`, `failure`.
//!
//! `VACUUM` does not do this here: SQLite refuses it to databases whose journal a VFS keeps in memory
//! (`sqlite3PagerIsMemdb`), and without that flag a transaction over several databases would need a journal of journals
//! on the disk. So SQLite makes the database anew with pages as they were, and the commit takes it through here.
//!
//! Every tree is filled from left to right, level by level, at once. A page is held back until the next one has
//! something in it, since the last of a level must not be empty.

use std::collections::BTreeMap;

use crate::btree::{
    INDEX_INTERIOR, INDEX_LEAF, PENDING_BYTE, Pages, Stored, TABLE_INTERIOR, TABLE_LEAF, Value, local_bytes,
    value_bytes, values, varint,
};
use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_CORRUPT, SQLITE_FULL};
use crate::pages::{HEADER_BYTES, is_page_size, reserved_bytes, trimmed};

/// SQLite wants so much of a page, whatever is reserved.
const USABLE_BYTES_MIN: u32 = 480;

/// Which value of a row of the schema is the number of a tree's first page.
const ROOT_COLUMN: usize = 3;

/// The pages of a database from 1 on, as they are stored; page 1 with its header. One that is never used is empty.
#[derive(Debug)]
pub(crate) struct Repaged {
    pub page_bytes: u32,
    pub pages: Vec<Vec<u8>>,
}

/// The same database in pages of this size.
///
/// # Errors
/// If it is damaged, or would have more pages than SQLite can number.
pub(crate) fn repaged<S: Stored>(source: &Pages<S>, page_bytes: u32) -> Result<Repaged> {
    repaged_around(source, page_bytes, PENDING_BYTE)
}

fn repaged_around<S: Stored>(source: &Pages<S>, page_bytes: u32, pending_byte: u64) -> Result<Repaged> {
    if !is_page_size(page_bytes) {
        return Err(damaged("its pages cannot have this size"));
    }
    let old_header = &source.shape.header;
    // What others have asked for stays.
    let reserved = match u32::from(old_header[20]) {
        bytes if bytes == u32::from(reserved_bytes(source.shape.page_bytes)) => {
            reserved_bytes(page_bytes).into()
        }
        bytes => bytes.min(page_bytes - USABLE_BYTES_MIN),
    };
    let is_auto = old_header[52..56] != [0; 4];
    let mut file = File {
        page_bytes: page_bytes as usize,
        usable: (page_bytes - reserved) as usize,
        pending: pending_byte / u64::from(page_bytes) + 1,
        is_auto,
        pages: Vec::new(),
        leads: Vec::new(),
    };
    // With `auto_vacuum`, SQLite expects the first pages of all trees before all others.
    file.allocate(Lead::Root)?;
    let mut roots = BTreeMap::new();
    source.entries(1, &mut |cell| {
        let record = source.whole(cell)?;
        if let Some(root) = root_of(&record)? {
            roots.insert(root, 0);
        }
        Ok(())
    })?;
    for new in roots.values_mut() {
        *new = file.allocate(Lead::Root)?;
    }
    let last_root = roots.values().copied().max().unwrap_or(1);
    for (old, new) in &roots {
        let mut tree = Tree::new(source.is_index(*old)?);
        source.entries(*old, &mut |cell| tree.push(&mut file, cell.rowid, &source.whole(cell)?))?;
        tree.finish(&mut file, *new)?;
    }
    let mut schema = Tree::new(false);
    source.entries(1, &mut |cell| {
        let mut record = source.whole(cell)?;
        if let Some(new) = root_of(&record)?.and_then(|old| roots.get(&old)) {
            record = with_root(&record, *new)?;
        }
        schema.push(&mut file, cell.rowid, &record)
    })?;
    schema.finish(&mut file, 1)?;
    file.finish(old_header, (reserved as u8, last_root))
}

fn damaged(what: &str) -> Failure {
    Failure::new(SQLITE_CORRUPT, format!("the database cannot get pages of another size: {what}"))
}

/// Who leads to a page, as `auto_vacuum` notes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    /// Nobody: it is one of those in which this is noted, or never used.
    Nobody,
    Root,
    /// The page of the entry whose record ends here.
    Entry(u32),
    /// The page with the part of the record before.
    Part(u32),
    /// The page above.
    Parent(u32),
}

/// The database that is made.
struct File {
    page_bytes: usize,
    usable: usize,
    /// The page that is never used.
    pending: u64,
    is_auto: bool,
    pages: Vec<Vec<u8>>,
    leads: Vec<Lead>,
}

impl File {
    /// The next page that is free for content.
    fn allocate(&mut self, lead: Lead) -> Result<u32> {
        loop {
            let number = self.pages.len() as u64 + 1;
            let is_used = number != self.pending && !self.is_map(number);
            self.pages.push(Vec::new());
            self.leads.push(if is_used { lead } else { Lead::Nobody });
            if is_used {
                // SQLite's numbers end here.
                let number = u32::try_from(number).ok().filter(|number| *number < u32::MAX - 1);
                return number.ok_or_else(|| Failure::code(SQLITE_FULL));
            }
        }
    }

    /// Whether who leads to other pages is noted in a page of this number.
    fn is_map(&self, number: u64) -> bool {
        let group = self.usable as u64 / 5 + 1;
        let first = |number: u64| (number - 2) / group * group + 2;
        let map = |number: u64| first(number) + u64::from(first(number) == self.pending);
        self.is_auto && number >= 2 && map(number) == number
    }

    fn set_page(&mut self, number: u32, mut bytes: Vec<u8>) {
        bytes.truncate(trimmed(&bytes).len());
        self.pages[number as usize - 1] = bytes;
    }

    fn set_lead(&mut self, number: u32, lead: Lead) {
        self.leads[number as usize - 1] = lead;
    }

    /// Puts what of a record does not fit its entry into pages of its own; answers the first.
    fn put_rest(&mut self, rest: &[u8]) -> Result<u32> {
        let parts = rest.chunks(self.usable - 4);
        let mut numbers = Vec::with_capacity(parts.len());
        for _ in 0..parts.len() {
            let lead = numbers.last().map_or(Lead::Nobody, |before| Lead::Part(*before));
            numbers.push(self.allocate(lead)?);
        }
        for (index, part) in parts.enumerate() {
            let mut page = vec![0; self.page_bytes];
            page[..4].copy_from_slice(&numbers.get(index + 1).unwrap_or(&0).to_be_bytes());
            page[4..4 + part.len()].copy_from_slice(part);
            self.set_page(numbers[index], page);
        }
        numbers.first().copied().ok_or_else(|| damaged("a record has no end"))
    }

    /// Writes a page of a tree.
    fn put_node(&mut self, number: u32, kind: u8, node: &Node) {
        let start = if number == 1 { HEADER_BYTES } else { 0 };
        let mut page = vec![0; self.page_bytes];
        let mut list = start + if node.right.is_some() { 12 } else { 8 };
        let mut content = self.usable;
        for cell in &node.cells {
            content -= cell.stored_bytes();
            page[content..content + cell.bytes.len()].copy_from_slice(&cell.bytes);
            page[list..list + 2].copy_from_slice(&(content as u16).to_be_bytes());
            list += 2;
            if let Some(overflow) = cell.overflow {
                self.set_lead(overflow, Lead::Entry(number));
            }
            if let (Some(_), Some(child)) = (node.right, cell.bytes.first_chunk()) {
                self.set_lead(u32::from_be_bytes(*child), Lead::Parent(number));
            }
        }
        page[start] = kind;
        page[start + 3..start + 5].copy_from_slice(&(node.cells.len() as u16).to_be_bytes());
        // 65,536 is written as 0.
        page[start + 5..start + 7].copy_from_slice(&(content as u16).to_be_bytes());
        if let Some(right) = node.right {
            page[start + 8..start + 12].copy_from_slice(&right.to_be_bytes());
            self.set_lead(right, Lead::Parent(number));
        }
        self.set_page(number, page);
    }

    /// All pages, with the header in the first.
    fn finish(
        mut self,
        old_header: &[u8; HEADER_BYTES],
        (reserved, last_root): (u8, u32),
    ) -> Result<Repaged> {
        for number in 2..=self.pages.len() as u64 {
            if self.is_map(number) {
                self.put_map(number);
            }
        }
        let mut header = *old_header;
        // 65,536 is written as 1.
        let size = u16::try_from(self.page_bytes).unwrap_or(1);
        header[16..18].copy_from_slice(&size.to_be_bytes());
        header[20] = reserved;
        header[28..32].copy_from_slice(&(self.pages.len() as u32).to_be_bytes());
        // No page is free.
        header[32..40].fill(0);
        if self.is_auto {
            header[52..56].copy_from_slice(&last_root.to_be_bytes());
        }
        // The number of pages holds as of this change.
        header.copy_within(24..28, 92);
        let first = self.pages.first_mut().and_then(|page| page.get_mut(..HEADER_BYTES));
        first.ok_or_else(|| damaged("it has no first page"))?.copy_from_slice(&header);
        Ok(Repaged { page_bytes: self.page_bytes as u32, pages: self.pages })
    }

    /// Notes who leads to the pages behind this one.
    fn put_map(&mut self, number: u64) {
        let mut page = Vec::with_capacity(self.page_bytes);
        for lead in self.leads.iter().skip(number as usize).take(self.usable / 5) {
            let (kind, page_before): (u8, u32) = match *lead {
                Lead::Nobody => (0, 0),
                Lead::Root => (1, 0),
                Lead::Entry(page) => (3, page),
                Lead::Part(page) => (4, page),
                Lead::Parent(page) => (5, page),
            };
            page.push(kind);
            page.extend_from_slice(&page_before.to_be_bytes());
        }
        page.resize(self.page_bytes, 0);
        self.set_page(number as u32, page);
    }
}

/// An entry as it is written.
struct Cell {
    bytes: Vec<u8>,
    /// The first page of its record's rest.
    overflow: Option<u32>,
}

impl Cell {
    /// Shorter ones get the room of a free block, which they may become.
    fn stored_bytes(&self) -> usize {
        self.bytes.len().max(4)
    }

    /// The entry of a page above, which leads to this page.
    fn above(self, child: u32) -> Cell {
        let mut bytes = child.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.bytes);
        Cell { bytes, ..self }
    }

    /// Takes apart what [`above`](Cell::above) has made.
    fn parted(mut self) -> Option<(u32, Cell)> {
        let child = u32::from_be_bytes(*self.bytes.first_chunk()?);
        self.bytes.drain(..4);
        Some((child, self))
    }
}

/// A page of a tree that is being filled.
#[derive(Default)]
struct Node {
    cells: Vec<Cell>,
    /// What they take, with their places in the list.
    bytes: usize,
    /// The last child; `None` in a leaf.
    right: Option<u32>,
}

impl Node {
    fn push(&mut self, cell: Cell) {
        self.bytes += cell.stored_bytes() + 2;
        self.cells.push(cell);
    }

    fn pop(&mut self) -> Option<Cell> {
        let cell = self.cells.pop()?;
        self.bytes -= cell.stored_bytes() + 2;
        Some(cell)
    }
}

/// The pages of a tree that are equally far from its root.
#[derive(Default)]
struct Level {
    node: Node,
    /// The page before, and what parts it from this one.
    before: Option<(Node, Cell)>,
    /// Whether there are pages before.
    is_split: bool,
}

/// A tree that is being filled.
struct Tree {
    is_index: bool,
    /// From the leaves up.
    levels: Vec<Level>,
}

impl Tree {
    fn new(is_index: bool) -> Tree {
        Tree { is_index, levels: vec![Level::default()] }
    }

    /// Takes the next entry.
    fn push(&mut self, file: &mut File, rowid: Option<i64>, record: &[u8]) -> Result<()> {
        if rowid.is_none() != self.is_index {
            return Err(damaged("a tree has entries of two kinds"));
        }
        let local = local_bytes(record.len(), file.usable, !self.is_index)
            .ok_or_else(|| damaged("a record does not fit its pages"))?;
        let mut bytes = Vec::with_capacity(local + 22);
        push_varint(&mut bytes, record.len() as u64);
        if let Some(rowid) = rowid {
            push_varint(&mut bytes, rowid as u64);
        }
        bytes.extend_from_slice(&record[..local]);
        let overflow = if local < record.len() { Some(file.put_rest(&record[local..])?) } else { None };
        bytes.extend(overflow.iter().flat_map(|page| page.to_be_bytes()));
        let cell = Cell { bytes, overflow };
        let level = &mut self.levels[0];
        if level.node.bytes + cell.stored_bytes() + 2 <= file.usable - 8 {
            level.node.push(cell);
            return Ok(());
        }
        let full = std::mem::take(&mut level.node);
        match rowid {
            // It stands between the pages, and in neither.
            None => self.pass(file, 0, full, cell),
            Some(_) => {
                level.node.push(cell);
                let last = full.cells.last().map(|cell| rowid_of(&cell.bytes));
                let mut bytes = Vec::new();
                push_varint(&mut bytes, last.flatten().ok_or_else(|| damaged("an entry is too long"))?);
                self.pass(file, 0, full, Cell { bytes, overflow: None })
            }
        }
    }

    /// A page is full, with what parts it from the next: the one before it can be written.
    fn pass(&mut self, file: &mut File, height: usize, full: Node, parting: Cell) -> Result<()> {
        let level = &mut self.levels[height];
        level.is_split = true;
        match level.before.replace((full, parting)) {
            Some((node, parting)) => self.put(file, height, node, parting),
            None => Ok(()),
        }
    }

    /// Writes a page, and tells the level above.
    fn put(&mut self, file: &mut File, height: usize, node: Node, parting: Cell) -> Result<()> {
        // Who leads to it is noted when that page is written.
        let number = file.allocate(Lead::Nobody)?;
        file.put_node(number, self.kind(&node), &node);
        if self.levels.len() == height + 1 {
            self.levels.push(Level::default());
        }
        let level = &mut self.levels[height + 1];
        let cell = parting.above(number);
        if level.node.bytes + cell.stored_bytes() + 2 <= file.usable - 12 {
            level.node.push(cell);
            return Ok(());
        }
        let (right, parting) = cell.parted().ok_or_else(|| damaged("an entry is too short"))?;
        let mut full = std::mem::take(&mut level.node);
        full.right = Some(right);
        self.pass(file, height + 1, full, parting)
    }

    fn kind(&self, node: &Node) -> u8 {
        match (self.is_index, node.right.is_some()) {
            (true, true) => INDEX_INTERIOR,
            (true, false) => INDEX_LEAF,
            (false, true) => TABLE_INTERIOR,
            (false, false) => TABLE_LEAF,
        }
    }

    /// Writes what is left, with the root in this page.
    fn finish(mut self, file: &mut File, root: u32) -> Result<()> {
        let mut height = 0;
        let mut last_child = None;
        loop {
            let level = &mut self.levels[height];
            level.node.right = last_child;
            if !level.is_split {
                let level = std::mem::take(level);
                return self.finish_root(file, root, level.node);
            }
            let (mut node, mut parting) =
                level.before.take().ok_or_else(|| damaged("a page of a tree is missing"))?;
            if level.node.cells.is_empty() {
                let short = || damaged("a page of a tree has too few entries");
                let last = node.pop().ok_or_else(short)?;
                match node.right {
                    // What parted the two is in the second now, what was last in the first parts them.
                    None => level.node.push(std::mem::replace(&mut parting, last)),
                    Some(right) => {
                        let (child, last) = last.parted().ok_or_else(short)?;
                        level.node.push(std::mem::replace(&mut parting, last).above(right));
                        node.right = Some(child);
                    }
                }
            }
            let last_node = std::mem::take(&mut level.node);
            self.put(file, height, node, parting)?;
            let number = file.allocate(Lead::Nobody)?;
            file.put_node(number, self.kind(&last_node), &last_node);
            last_child = Some(number);
            height += 1;
        }
    }

    fn finish_root(&self, file: &mut File, root: u32, mut node: Node) -> Result<()> {
        let header = if root == 1 { HEADER_BYTES } else { 0 };
        let list = if node.right.is_some() { 12 } else { 8 };
        if node.bytes + list + header > file.usable {
            // Page 1 has less room than others: alone of all it may lead to just one.
            let number = file.allocate(Lead::Nobody)?;
            file.put_node(number, self.kind(&node), &node);
            node = Node { right: Some(number), ..Node::default() };
        }
        file.put_node(root, self.kind(&node), &node);
        Ok(())
    }
}

/// The rowid in an entry of a leaf.
fn rowid_of(cell: &[u8]) -> Option<u64> {
    let mut at = 0;
    varint(cell, &mut at)?;
    varint(cell, &mut at)
}

/// Writes a number in SQLite's variable length.
fn push_varint(out: &mut Vec<u8>, number: u64) {
    if number >> 56 != 0 {
        // The ninth byte has eight bits.
        (0..8).rev().for_each(|group| out.push(0x80 | (number >> (8 + 7 * group)) as u8));
        out.push(number as u8);
        return;
    }
    let groups = (64 - number.leading_zeros()).div_ceil(7).max(1);
    for group in (0..groups).rev() {
        let more = if group > 0 { 0x80 } else { 0 };
        out.push(more | (number >> (7 * group)) as u8 & 0x7f);
    }
}

/// The kinds of a record's values, and where the values begin.
fn kinds(record: &[u8]) -> Option<(Vec<u64>, usize)> {
    let mut at = 0;
    let header = usize::try_from(varint(record, &mut at)?).ok()?;
    let mut kinds = Vec::new();
    while at < header {
        kinds.push(varint(record, &mut at)?);
    }
    Some((kinds, header))
}

/// The first page of the tree that a row of the schema is of, if it is of one.
fn root_of(record: &[u8]) -> Result<Option<u32>> {
    let values = values(record, ROOT_COLUMN + 1);
    let root = match values.as_deref().and_then(|values| values.get(ROOT_COLUMN)) {
        Some(Value::Integer(root)) => u32::try_from(*root).ok(),
        Some(_) => Some(0),
        None => None,
    };
    let root = root.filter(|root| *root != 1).ok_or_else(|| damaged("its schema cannot be read"))?;
    Ok((root > 0).then_some(root))
}

/// A row of the schema with another first page.
fn with_root(record: &[u8], root: u32) -> Result<Vec<u8>> {
    let changed = || {
        let (mut kinds, body) = kinds(record)?;
        let bytes_before = kinds
            .get(..ROOT_COLUMN)?
            .iter()
            .try_fold(body, |sum, kind| sum.checked_add(value_bytes(*kind)?))?;
        let behind = bytes_before.checked_add(value_bytes(*kinds.get(ROOT_COLUMN)?)?)?;
        // As long as any number of a page: 6 bytes.
        kinds[ROOT_COLUMN] = 5;
        let mut list = Vec::new();
        kinds.iter().for_each(|kind| push_varint(&mut list, *kind));
        let mut out = Vec::with_capacity(record.len() + 16);
        // The header counts its own length, of one byte up to 127.
        let one = list.len() + 1;
        push_varint(&mut out, if one < 128 { one } else { one + 1 } as u64);
        out.extend(list);
        out.extend_from_slice(record.get(body..bytes_before)?);
        out.extend_from_slice(&u64::from(root).to_be_bytes()[2..]);
        out.extend_from_slice(record.get(behind..)?);
        Some(out)
    };
    changed().ok_or_else(|| damaged("its schema cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let mut numbers = vec![0, u64::MAX, i64::MIN as u64];
        numbers.extend((0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, (1 << bit) + 1]));
        for number in numbers {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, number);
            let mut at = 0;
            assert_eq!((varint(&bytes, &mut at), at), (Some(number), bytes.len()), "{number}");
        }
    }

    #[test]
    fn a_row_of_the_schema_gets_another_first_page() {
        for text in ["", "CREATE TABLE t(a)", &"x".repeat(70_000)] {
            let mut record = Vec::new();
            let mut list = vec![23, 15, 15, 1];
            push_varint(&mut list, 13 + 2 * text.len() as u64);
            push_varint(&mut record, list.len() as u64 + 1);
            record.extend(list);
            record.extend(b"tabletu\x07");
            record.extend(text.bytes());
            assert_eq!(root_of(&record).unwrap(), Some(7));
            let changed = with_root(&record, u32::MAX).unwrap();
            assert_eq!(root_of(&changed).unwrap(), Some(u32::MAX));
            let mut expected = values(&record, 9).unwrap();
            expected[ROOT_COLUMN] = Value::Integer(u32::MAX.into());
            assert_eq!(values(&changed, 9).unwrap(), expected);
        }
        assert!(root_of(&[]).is_err() && with_root(&[2, 1, 0], 5).is_err());
    }

    #[test]
    fn pages_that_are_never_used_or_note_others_hold_nothing_else() {
        for is_auto in [false, true] {
            // Before, at, and behind the beginning of a group of 103 pages.
            for pending in [3, 104, 105, 106] {
                let mut file = File {
                    page_bytes: 512,
                    usable: 512,
                    pending,
                    is_auto,
                    pages: Vec::new(),
                    leads: Vec::new(),
                };
                let taken: Vec<_> = (0..300).map(|_| u64::from(file.allocate(Lead::Root).unwrap())).collect();
                assert!(!taken.contains(&pending));
                let maps: Vec<u64> = if is_auto {
                    [2, 105, 208].map(|map| map + u64::from(map == pending)).into()
                } else {
                    Vec::new()
                };
                let expected = (1..).filter(|page| *page != pending && !maps.contains(page));
                assert_eq!(taken, expected.take(300).collect::<Vec<u64>>(), "{pending} {is_auto}");
            }
        }
    }
}
