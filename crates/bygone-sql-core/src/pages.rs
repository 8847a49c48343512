//! How an SQL database lies in a table.
//!
//! Owns: the keys and values of such a table. Promises: what was written is read, to the byte; what was never written
//! reads as zeros. May call: nothing.
//!
//! The key of a page is its number, 4 bytes big-endian, from 1 on. Its value is the page without the zeros at its end:
//! the bytes that are reserved there cost nothing then (see [`reserved_bytes`]), nor does what is not filled yet. The
//! record with the number 0 is the [`Shape`]. It has SQLite's header, too, the first 100 bytes of page 1, which every
//! commit changes; in the record of page 1 they are zeros, and so it is rarely written.

use bygone::{Error, Result, Snapshot, Table, Transaction};

/// The sizes that a page may have, in bytes.
pub const PAGE_BYTES_MIN: u32 = 512;
/// See [`PAGE_BYTES_MIN`].
pub const PAGE_BYTES_MAX: u32 = 65_536;

const SHAPE_VERSION: u8 = 1;
const FIXED_BYTES: usize = 17;
/// The header of an SQLite database.
pub const HEADER_BYTES: usize = 100;
const SHAPE_BYTES: usize = FIXED_BYTES + HEADER_BYTES;
const SCHEMA_COOKIE_AT: usize = 40;

/// How large a database is, and which of its states this is. An empty one has no record of it.
///
/// The record, 117 bytes: format version u8, bytes of a page u32, pages u32, state u64, all little-endian; SQLite's
/// header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// 0 if nothing was ever written.
    pub page_bytes: u32,
    /// The highest page's number.
    pub pages: u32,
    /// A number that no two commits of this table have, so that equal numbers mean equal bytes, also where the past
    /// is read or was restored: the last commit before the one that wrote it.
    pub state: u64,
    /// The beginning of page 1.
    pub header: [u8; HEADER_BYTES],
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { page_bytes: 0, pages: 0, state: 0, header: [0; HEADER_BYTES] }
    }
}

impl Shape {
    /// SQLite's counter of changes to the schema.
    pub fn schema_cookie(&self) -> u32 {
        let at = SCHEMA_COOKIE_AT;
        u32::from_be_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    /// Gives the schema another number.
    pub fn set_schema_cookie(&mut self, cookie: u32) {
        self.header[SCHEMA_COOKIE_AT..SCHEMA_COOKIE_AT + 4].copy_from_slice(&cookie.to_be_bytes());
    }

    /// The length of the file that SQLite sees.
    pub fn bytes(&self) -> u64 {
        u64::from(self.page_bytes) * u64::from(self.pages)
    }

    /// The record.
    pub fn encode(&self) -> [u8; SHAPE_BYTES] {
        let mut out = [0; SHAPE_BYTES];
        out[0] = SHAPE_VERSION;
        out[1..5].copy_from_slice(&self.page_bytes.to_le_bytes());
        out[5..9].copy_from_slice(&self.pages.to_le_bytes());
        out[9..17].copy_from_slice(&self.state.to_le_bytes());
        out[FIXED_BYTES..].copy_from_slice(&self.header);
        out
    }

    fn decode(record: &[u8]) -> Option<Shape> {
        let record: &[u8; SHAPE_BYTES] = record.try_into().ok()?;
        let u32_at =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let mut state = [0; 8];
        state.copy_from_slice(&record[9..17]);
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&record[FIXED_BYTES..]);
        let shape =
            Shape { page_bytes: u32_at(1), pages: u32_at(5), state: u64::from_le_bytes(state), header };
        let sound = record[0] == SHAPE_VERSION && is_page_size(shape.page_bytes);
        sound.then_some(shape)
    }

    /// The shape as of a view.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; `Corruption` for a record that is none.
    pub fn load(view: &Snapshot, table: &Table) -> Result<Shape> {
        Self::found(table, view.get_with(table, key(0), Shape::decode)?)
    }

    /// The shape that a transaction sees.
    ///
    /// # Errors
    /// As [`load`](Shape::load).
    pub fn load_in(transaction: &Transaction, table: &Table) -> Result<Shape> {
        Self::found(table, transaction.get_with(table, key(0), Shape::decode)?)
    }

    fn found(table: &Table, record: Option<Option<Shape>>) -> Result<Shape> {
        record.unwrap_or(Some(Shape::default())).ok_or_else(|| Error::Corruption {
            path: table.name().into(),
            offset: 0,
            reason: "record 0 of this table is not that of an SQL database".into(),
        })
    }
}

/// Whether SQLite has pages of this size.
pub fn is_page_size(bytes: u32) -> bool {
    (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&bytes) && bytes.is_power_of_two()
}

/// The key of a page.
#[inline]
pub fn key(page: u32) -> [u8; 4] {
    page.to_be_bytes()
}

/// A page as it is stored.
pub fn trimmed(page: &[u8]) -> &[u8] {
    let (words, rest) = page.as_chunks::<8>();
    if !rest.is_empty() {
        // No page is of such a length.
        return page;
    }
    // Mostly nothing but what is reserved is zero, so the words before it end the search.
    let kept = words.iter().rposition(|word| *word != [0; 8]).map_or(0, |last| (last + 1) * 8);
    let kept = &page[..kept];
    &kept[..kept.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// Copies the part of a page that begins `at` into `out`; behind what is stored there are zeros.
#[inline]
pub fn copy_part(stored: &[u8], at: usize, out: &mut [u8]) {
    let part = stored.get(at..).unwrap_or_default();
    let count = part.len().min(out.len());
    out[..count].copy_from_slice(&part[..count]);
    out[count..].fill(0);
}

/// Puts the header over the part of page 1 that begins `at`.
#[inline]
pub fn cover(header: &[u8; HEADER_BYTES], at: usize, out: &mut [u8]) {
    let part = header.get(at..).unwrap_or_default();
    let count = part.len().min(out.len());
    out[..count].copy_from_slice(&part[..count]);
}

/// How many bytes at the end of each page of a new database SQLite should leave to us, so that what is stored fits the
/// engine's pages. They hold nothing: they are zeros, which are not stored.
///
/// A value over 2,000 bytes lies in pages of its own that have room for 4,064 bytes each: a page of 4 KiB with 32
/// bytes reserved fills one, without it would take two, and so on. Smaller ones lie side by side in leaves, which are
/// filled to 3,973 bytes: 38 of them for the page, 9 for each record.
pub fn reserved_bytes(page_bytes: u32) -> u8 {
    match page_bytes {
        // Eight to a leaf. SQLite wants 480 bytes at least.
        512 => 32,
        // Four to a leaf.
        1024 => 52,
        // Two to a leaf.
        2048 => 92,
        4096 => 32,
        8192 => 64,
        16_384 => 128,
        // 256 and 512 bytes would be needed, and SQLite's limit is 255.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_are_not_stored_and_come_back() {
        for length in [512, 520, 1024] {
            for kept in [0, 1, 7, 8, 9, 300, length - 1, length] {
                let mut page = vec![0; length];
                page[..kept].fill(7);
                assert_eq!(trimmed(&page).len(), kept, "{kept} of {length}");
                let mut back = vec![9; length];
                copy_part(trimmed(&page), 0, &mut back);
                assert_eq!(back, page);
                let mut part = vec![9; 100];
                copy_part(trimmed(&page), 250, &mut part);
                assert_eq!(part, page[250..350]);
            }
        }
    }

    #[test]
    fn the_header_covers_what_it_is_of() {
        let mut header = [0; HEADER_BYTES];
        (0..).zip(&mut header).for_each(|(number, byte)| *byte = number);
        for (at, length) in [(0, 512), (0, 100), (0, 16), (24, 16), (90, 20), (100, 5), (300, 5)] {
            let mut out = vec![0xff; length];
            cover(&header, at, &mut out);
            for (index, byte) in out.iter().enumerate() {
                let expected = if at + index < 100 { (at + index) as u8 } else { 0xff };
                assert_eq!(*byte, expected, "{index} from {at}");
            }
        }
    }

    #[test]
    fn the_record_of_the_shape_comes_back() {
        let shape = Shape { page_bytes: 65_536, pages: 7, state: 9, header: [3; HEADER_BYTES] };
        let record = shape.encode();
        assert_eq!(Shape::decode(&record), Some(shape));
        assert_eq!(Shape::decode(&record[..116]), None);
        for (at, byte) in [(0, 2), (1, 1), (3, 0xff)] {
            let mut bad = record;
            bad[at] = byte;
            assert_eq!(Shape::decode(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn what_is_reserved_leaves_what_sqlite_needs() {
        for shift in 9..=16 {
            assert!((1 << shift) - u32::from(reserved_bytes(1 << shift)) >= 480);
        }
    }
}
