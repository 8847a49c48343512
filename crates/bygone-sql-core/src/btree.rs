//! SQLite's b-trees, page by page.
//!
//! Owns: [`Pages`], the pages of an SQL database, as of a moment or elsewhere, and what is in them: [`Tree`],
//! [`Cell`], [`Value`]. Promises: whatever is in a page, reading it is an error or an answer: every offset and length
//! is checked, and a walk ends. May call: `pages`, `failure`.
//!
//! The format is that of <https://www.sqlite.org/fileformat2.html>. SQLite reads rows; this tells which of them lie in
//! pages that two moments do not share, and gives them to who puts them into pages of another size.

use bygone::{Snapshot, Table};

use crate::failure::{Failure, Result};
use crate::ffi::SQLITE_CORRUPT;
use crate::pages::{HEADER_BYTES, Shape, copy_part, cover, key};

/// What the first byte of a page says. Pages of other kinds begin with a page's number, so with zero if the database
/// has no more than [`PLAIN_PAGES_MAX`].
pub(crate) const INDEX_INTERIOR: u8 = 2;
pub(crate) const TABLE_INTERIOR: u8 = 5;
pub(crate) const INDEX_LEAF: u8 = 10;
pub(crate) const TABLE_LEAF: u8 = 13;

/// Up to this page's number the first byte tells a page of a tree from one that begins with a page's number.
pub(crate) const PLAIN_PAGES_MAX: u32 = 0x01ff_ffff;

/// No tree of SQLite's is higher.
const HEIGHT_MAX: usize = 20;

/// The byte at which locks lie in a file of SQLite's; its page is never used.
pub(crate) const PENDING_BYTE: u64 = 0x4000_0000;

/// Whether a page that begins so may be one of a tree.
pub(crate) fn is_of_tree(first: Option<u8>) -> bool {
    matches!(first, Some(INDEX_INTERIOR | TABLE_INTERIOR | INDEX_LEAF | TABLE_LEAF))
}

/// Where the pages of a database are.
pub(crate) trait Stored {
    /// The table's name.
    fn name(&self) -> &str;

    /// Copies the beginning of a page, as far as `out` has room, and zeros behind its end.
    fn copy(&self, page: u32, out: &mut [u8]) -> Result<()>;
}

/// A database as of a moment.
pub(crate) struct Moment {
    pub view: Snapshot,
    pub table: Table,
}

impl Stored for Moment {
    fn name(&self) -> &str {
        self.table.name()
    }

    fn copy(&self, page: u32, out: &mut [u8]) -> Result<()> {
        if self.view.get_with(&self.table, key(page), |stored| copy_part(stored, 0, out))?.is_none() {
            out.fill(0);
        }
        Ok(())
    }
}

/// The pages of a database.
pub(crate) struct Pages<S = Moment> {
    pub source: S,
    pub shape: Shape,
}

/// The pages of a tree, in the order of its keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Those that lead to others.
    pub interior: Vec<u32>,
    pub leaves: Vec<u32>,
}

/// One entry of a page: a row, or, in an interior page of a table with rowids, only a way to others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cell<'p> {
    /// The page to the left of it, in an interior page.
    pub child: Option<u32>,
    /// In a table that has rowids.
    pub rowid: Option<i64>,
    /// Of the whole record.
    pub bytes: usize,
    /// What of the record lies in the page.
    pub local: &'p [u8],
    /// The first of the pages that the rest lies in.
    pub overflow: Option<u32>,
}

/// A value in a record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    /// In the database's encoding.
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl<S: Stored> Pages<S> {
    fn damaged(&self, page: u32, what: &str) -> Failure {
        Failure::new(SQLITE_CORRUPT, format!("page {page} of {:?}: {what}", self.source.name()))
    }

    /// What of a page SQLite uses.
    pub fn usable(&self) -> usize {
        (self.shape.page_bytes as usize).saturating_sub(usize::from(self.shape.header[20]))
    }

    /// The text encoding: 1 is UTF-8, 2 and 3 are UTF-16.
    pub fn encoding(&self) -> u8 {
        self.shape.header[59]
    }

    fn header_number(&self, at: usize) -> u32 {
        u32_at(&self.shape.header, at).unwrap_or(0)
    }

    /// Reads a page.
    pub fn read(&self, page: u32, out: &mut Vec<u8>) -> Result<()> {
        if page == 0 || page > self.shape.pages {
            return Err(self.damaged(page, "there is no such page"));
        }
        out.resize(self.shape.page_bytes as usize, 0);
        self.source.copy(page, out)?;
        if page == 1 {
            cover(&self.shape.header, 0, out);
        }
        Ok(())
    }

    /// The page's number that a page begins with.
    fn next(&self, page: u32) -> Result<u32> {
        if page == 0 || page > self.shape.pages {
            return Err(self.damaged(page, "there is no such page"));
        }
        let mut head = [0; 4];
        self.source.copy(page, &mut head)?;
        Ok(u32::from_be_bytes(head))
    }

    /// All pages of the tree with this root. Leaves are not read.
    pub fn tree(&self, root: u32) -> Result<Tree> {
        // All ways to a leaf are of one length.
        let mut height = 0;
        let (mut page, mut buffer) = (root, Vec::new());
        loop {
            self.read(page, &mut buffer)?;
            match self.node(page, &buffer)? {
                node if node.is_leaf => break,
                node => page = node.child(0).ok_or_else(|| self.damaged(page, "it leads nowhere"))?,
            }
            height += 1;
            if height > HEIGHT_MAX {
                return Err(self.damaged(root, "its tree is too high"));
            }
        }
        let mut tree = Tree::default();
        self.walk(root, height, &mut tree)?;
        Ok(tree)
    }

    fn walk(&self, page: u32, height: usize, tree: &mut Tree) -> Result<()> {
        if tree.interior.len() + tree.leaves.len() > self.shape.pages as usize {
            return Err(self.damaged(page, "its tree has more pages than there are"));
        }
        if height == 0 {
            tree.leaves.push(page);
            return Ok(());
        }
        tree.interior.push(page);
        let mut buffer = Vec::new();
        self.read(page, &mut buffer)?;
        let node = self.node(page, &buffer)?;
        if node.is_leaf {
            return Err(self.damaged(page, "it is a leaf, and should not be"));
        }
        for index in 0..=node.count {
            let child = node.child(index).ok_or_else(|| self.damaged(page, "an entry lies outside"))?;
            self.walk(child, height - 1, tree)?;
        }
        Ok(())
    }

    fn node<'p>(&self, page: u32, bytes: &'p [u8]) -> Result<Node<'p>> {
        let at = if page == 1 { HEADER_BYTES } else { 0 };
        Node::new(bytes, at).ok_or_else(|| self.damaged(page, "it is not of a tree"))
    }

    /// Calls `each` with every entry of a page that [`read`](Pages::read) has read.
    pub fn cells(
        &self,
        page: u32,
        bytes: &[u8],
        mut each: impl FnMut(&Cell<'_>) -> Result<()>,
    ) -> Result<()> {
        let node = self.node(page, bytes)?;
        for index in 0..node.count {
            let cell = node.cell(index, self.usable());
            // A chain that leads in a circle ends by this.
            let cell = cell.filter(|cell| cell.bytes as u64 <= self.shape.bytes());
            each(&cell.ok_or_else(|| self.damaged(page, "an entry lies outside"))?)?;
        }
        Ok(())
    }

    /// The pages that a record's end lies in, as far as `each` wants them: it answers whether to go on.
    pub fn chain(&self, cell: &Cell<'_>, mut each: impl FnMut(u32) -> bool) -> Result<()> {
        let Some(mut page) = cell.overflow else { return Ok(()) };
        let count = (cell.bytes - cell.local.len()).div_ceil(self.usable().saturating_sub(4).max(1));
        for index in 0..count {
            if !each(page) {
                break;
            }
            if index + 1 < count {
                page = self.next(page)?;
            }
        }
        Ok(())
    }

    /// A record as a whole; `each` is called with every page beside the entry's own.
    pub fn record(&self, cell: &Cell<'_>, out: &mut Vec<u8>, mut each: impl FnMut(u32)) -> Result<()> {
        out.clear();
        out.extend_from_slice(cell.local);
        let Some(mut page) = cell.overflow else { return Ok(()) };
        let mut buffer = Vec::new();
        while out.len() < cell.bytes {
            each(page);
            self.read(page, &mut buffer)?;
            let end = self.usable().min(4 + cell.bytes - out.len());
            let part = buffer.get(4..end).filter(|part| !part.is_empty());
            out.extend_from_slice(part.ok_or_else(|| self.damaged(page, "it has no room"))?);
            page = u32_at(&buffer, 0).unwrap_or(0);
        }
        Ok(())
    }

    /// A record as a whole.
    pub fn whole(&self, cell: &Cell<'_>) -> Result<Vec<u8>> {
        // A length that is wrong asks for no memory before pages have been found for it.
        let mut record = Vec::with_capacity(cell.bytes.min(self.shape.page_bytes as usize));
        self.record(cell, &mut record, |_| {})?;
        Ok(record)
    }

    /// Whether the tree with this root is one of an index, or of a table without rowids.
    pub fn is_index(&self, root: u32) -> Result<bool> {
        let mut buffer = Vec::new();
        self.read(root, &mut buffer)?;
        Ok(matches!(self.node(root, &buffer)?.kind, INDEX_INTERIOR | INDEX_LEAF))
    }

    /// Calls `each` with all entries that hold records of the tree with this root, in their order.
    pub fn entries(&self, root: u32, each: &mut dyn FnMut(&Cell<'_>) -> Result<()>) -> Result<()> {
        self.entries_below(root, HEIGHT_MAX, &mut self.shape.pages.clone(), each)
    }

    /// `left` counts down the pages that there can be, so that a walk ends.
    fn entries_below(
        &self,
        page: u32,
        height: usize,
        left: &mut u32,
        each: &mut dyn FnMut(&Cell<'_>) -> Result<()>,
    ) -> Result<()> {
        let fewer = left.checked_sub(1).filter(|_| height > 0);
        *left = fewer.ok_or_else(|| self.damaged(page, "its tree has more pages than there are"))?;
        let mut buffer = Vec::new();
        self.read(page, &mut buffer)?;
        let node = self.node(page, &buffer)?;
        for index in 0..=node.count {
            if !node.is_leaf {
                let child = node.child(index).ok_or_else(|| self.damaged(page, "an entry lies outside"))?;
                self.entries_below(child, height - 1, left, each)?;
            }
            if index < node.count && node.kind != TABLE_INTERIOR {
                let cell = node.cell(index, self.usable());
                let cell = cell.filter(|cell| cell.bytes as u64 <= self.shape.bytes());
                each(&cell.ok_or_else(|| self.damaged(page, "an entry lies outside"))?)?;
            }
        }
        Ok(())
    }

    /// The first values of a record.
    pub fn values(&self, page: u32, record: &[u8], count: usize) -> Result<Vec<Value>> {
        values(record, count).ok_or_else(|| self.damaged(page, "a record in it is not one"))
    }

    /// Calls `each` with all pages that are free, and with those that only say where others are.
    pub fn unused(&self, mut each: impl FnMut(u32)) -> Result<()> {
        let usable = self.usable();
        let pages = self.shape.pages;
        let (mut trunk, mut left) = (self.header_number(32), self.header_number(36));
        let mut buffer = Vec::new();
        while trunk != 0 && left > 0 {
            each(trunk);
            self.read(trunk, &mut buffer)?;
            let count = u32_at(&buffer, 4).unwrap_or(0);
            if count as usize > usable / 4 {
                return Err(self.damaged(trunk, "it lists too many free pages"));
            }
            (0..count as usize).filter_map(|index| u32_at(&buffer, 8 + 4 * index)).for_each(&mut each);
            left = left.saturating_sub(count + 1);
            trunk = u32_at(&buffer, 0).unwrap_or(0);
        }
        // With `auto_vacuum`, every so many pages there is one that tells who leads to them.
        if self.header_number(52) != 0 {
            let pending =
                u32::try_from(PENDING_BYTE / u64::from(self.shape.page_bytes) + 1).unwrap_or(u32::MAX);
            let group = usable / 5 + 1;
            (2..=pages).step_by(group).map(|page| page + u32::from(page == pending)).for_each(&mut each);
        }
        Ok(())
    }
}

/// A page of a tree.
struct Node<'p> {
    bytes: &'p [u8],
    /// Where its header is.
    at: usize,
    kind: u8,
    is_leaf: bool,
    /// Of entries.
    count: usize,
}

impl<'p> Node<'p> {
    fn new(bytes: &'p [u8], at: usize) -> Option<Node<'p>> {
        let kind = *bytes.get(at)?;
        let count = usize::from(u16_at(bytes, at + 3)?);
        let is_leaf = matches!(kind, INDEX_LEAF | TABLE_LEAF);
        is_of_tree(Some(kind)).then_some(Node { bytes, at, kind, is_leaf, count })
    }

    /// Where an entry begins.
    fn start(&self, index: usize) -> Option<usize> {
        let list = self.at + if self.is_leaf { 8 } else { 12 };
        Some(usize::from(u16_at(self.bytes, list + 2 * index)?))
    }

    /// Of `count` entries an interior page has one child more.
    fn child(&self, index: usize) -> Option<u32> {
        match index == self.count {
            true => u32_at(self.bytes, self.at + 8),
            false => u32_at(self.bytes, self.start(index)?),
        }
    }

    fn cell(&self, index: usize, usable: usize) -> Option<Cell<'p>> {
        let mut at = self.start(index)?;
        let child = if self.is_leaf { None } else { Some(u32_at(self.bytes, at)?) };
        at += if self.is_leaf { 0 } else { 4 };
        if self.kind == TABLE_INTERIOR {
            let rowid = varint(self.bytes, &mut at)? as i64;
            return Some(Cell { child, rowid: Some(rowid), bytes: 0, local: &[], overflow: None });
        }
        let bytes = usize::try_from(varint(self.bytes, &mut at)?).ok()?;
        let rowid = match self.kind {
            TABLE_LEAF => Some(varint(self.bytes, &mut at)? as i64),
            _ => None,
        };
        let local_bytes = local_bytes(bytes, usable, self.kind == TABLE_LEAF)?;
        let local = self.bytes.get(at..at.checked_add(local_bytes)?)?;
        let overflow = match local_bytes < bytes {
            true => Some(u32_at(self.bytes, at + local_bytes)?),
            false => None,
        };
        Some(Cell { child, rowid, bytes, local, overflow })
    }
}

/// How much of a record lies in the page of its entry.
pub(crate) fn local_bytes(bytes: usize, usable: usize, is_table: bool) -> Option<usize> {
    let whole = if is_table {
        usable.checked_sub(35)?
    } else {
        (usable.checked_sub(12)? * 64 / 255).checked_sub(23)?
    };
    if bytes <= whole {
        return Some(bytes);
    }
    let least = (usable.checked_sub(12)? * 32 / 255).checked_sub(23)?;
    let fitting = least + (bytes.checked_sub(least)?) % (usable - 4);
    Some(if fitting <= whole { fitting } else { least })
}

pub(crate) fn values(record: &[u8], count: usize) -> Option<Vec<Value>> {
    let mut at = 0;
    let header = usize::try_from(varint(record, &mut at)?).ok()?;
    let mut body = header;
    let mut out = Vec::new();
    while out.len() < count && at < header {
        let kind = varint(record, &mut at)?;
        let bytes = value_bytes(kind)?;
        let content = record.get(body..body.checked_add(bytes)?)?;
        body += bytes;
        out.push(match kind {
            0 => Value::Null,
            7 => Value::Real(f64::from_bits(integer(content) as u64)),
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            1..=6 => Value::Integer(integer(content)),
            kind if kind % 2 == 1 => Value::Text(content.to_vec()),
            _ => Value::Blob(content.to_vec()),
        });
    }
    Some(out)
}

/// How long a value of this kind is in a record; `None` if there is no such kind.
pub(crate) fn value_bytes(kind: u64) -> Option<usize> {
    match kind {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(kind as usize),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        kind => usize::try_from((kind - 12) / 2).ok(),
    }
}

/// A number of up to 8 bytes, with its sign.
fn integer(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
    let start = if negative { -1 } else { 0 };
    bytes.iter().fold(start, |number: i64, byte| (number << 8) | i64::from(*byte))
}

/// A number in SQLite's variable length, up to 9 bytes.
pub(crate) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for index in 0..9 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if index == 8 {
            return Some((number << 8) | u64::from(byte));
        }
        number = (number << 7) | u64::from(byte & 0x7f);
        if byte < 0x80 {
            break;
        }
    }
    Some(number)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_variable_lengths() {
        let read = |bytes: &[u8]| {
            let mut at = 0;
            varint(bytes, &mut at).map(|number| (number, at))
        };
        assert_eq!(read(&[0x7f, 9]), Some((127, 1)));
        assert_eq!(read(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(read(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!(read(&[0x80, 0x80]), None);
        assert_eq!((integer(&[0xff]), integer(&[0x7f, 0xff]), integer(&[])), (-1, 0x7fff, 0));
        assert_eq!(integer(&i64::MIN.to_be_bytes()), i64::MIN);
    }

    #[test]
    fn records_have_values() {
        let record = [7, 0, 1, 9, 7, 0x11, 0x10, 0xfe];
        let mut record = record.to_vec();
        record.extend(1.5_f64.to_be_bytes());
        record.extend(b"abcd");
        // The text has two bytes, the blob two.
        let expected = [
            Value::Null,
            Value::Integer(-2),
            Value::Integer(1),
            Value::Real(1.5),
            Value::Text(b"ab".to_vec()),
            Value::Blob(b"cd".to_vec()),
        ];
        assert_eq!(values(&record, 9).as_deref(), Some(&expected[..]));
        assert_eq!(values(&record, 2).as_deref(), Some(&expected[..2]));
        for end in 0..record.len() {
            assert!(values(&record[..end], 9).is_none(), "{end}");
        }
        assert_eq!(values(&[2, 10], 1), None);
    }

    #[test]
    fn what_is_in_a_page_is_known() {
        // 4,096 bytes of a table: 4,061 lie in the page; of more, as much as leaves whole pages for the rest.
        assert_eq!(local_bytes(4061, 4096, true), Some(4061));
        assert_eq!(local_bytes(4062, 4096, true), Some(489));
        assert_eq!(local_bytes(489 + 4092 + 7, 4096, true), Some(496));
        assert_eq!(local_bytes(1002, 4096, false), Some(1002));
        assert_eq!(local_bytes(1003, 4096, false), Some(489));
        assert_eq!(local_bytes(10_000, 10, true), None);
    }

    #[test]
    fn nonsense_is_no_page_and_no_panic() {
        for seed in 0..2000_u32 {
            let mut page = vec![0; 512];
            let mut random = u64::from(seed);
            for byte in &mut page {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (random >> 56) as u8;
            }
            page[0] = [2, 5, 10, 13][seed as usize % 4];
            let node = Node::new(&page, 0).expect("the kind is one");
            for index in 0..node.count.min(600) {
                let _ = (node.child(index), node.cell(index, 512));
            }
        }
        assert!(Node::new(&[1; 512], 0).is_none());
        assert!(Node::new(&[13; 3], 0).is_none());
    }
}
