//! What a connection has seen of the moment that it reads.
//!
//! Owns: [`Seen`]: which pages SQLite may know. Promises: [`Seen::compare`] tells whether a query that was run as of
//! one moment could give anything else as of another. May call: `pages`.
//!
//! Only what was read is compared, page by page. That beats looking up all that differs between two moments, which is
//! mostly other pages, and each of them costs more than two reads. The first page that says that the query has to be
//! run again ends the comparison.

use std::collections::HashSet;

use bygone::{Result, Snapshot, Table};

use crate::pages::{HEADER_BYTES, Shape, key};

/// Where the header has what changes with every commit, and what no query looks at: the change counter, the number of
/// pages, the free pages; the change counter again, and the version of SQLite.
const UNSEEN: [std::ops::Range<usize>; 2] = [24..40, 92..100];

/// A database as of a moment; without a table there is nothing in it.
pub(crate) type Moment = (Snapshot, Option<Table>);

/// What SQLite may know.
#[derive(Default)]
pub(crate) struct Seen {
    /// What it has read since it last dropped its cache: all that the last query has seen, at least.
    pages: HashSet<u32>,
    /// What it has read of the schema when that was loaded.
    schema: HashSet<u32>,
    /// The page that differed last. The next time it will again, more likely than others.
    suspect: Option<u32>,
    /// How many reads there were.
    pub(crate) reads: u64,
    buffer: Vec<u8>,
}

/// What lies between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Nothing that SQLite has read.
    Nothing,
    /// Pages that it has read.
    Pages,
    /// Pages of the schema, or the header: what SQLite knows of it holds no longer.
    Schema,
}

impl Seen {
    /// A page is read.
    pub fn note(&mut self, page: u32) {
        self.pages.insert(page);
        self.reads += 1;
    }

    /// SQLite drops its cache.
    pub fn forget(&mut self) {
        self.pages.clear();
    }

    /// SQLite has loaded the schema, and read nothing else.
    pub fn note_schema(&mut self) {
        self.schema.clone_from(&self.pages);
    }

    /// What differs, of all that was read.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn compare(&mut self, before: &Moment, after: &Moment) -> Result<Difference> {
        let (old, new) = (shape(before)?, shape(after)?);
        if old == new {
            return Ok(Difference::Nothing);
        }
        if seen_header(&old) != seen_header(&new) {
            return Ok(Difference::Schema);
        }
        let Seen { pages, schema, suspect, buffer, .. } = self;
        for page in &*schema {
            if differs(*page, before, after, buffer)? {
                return Ok(Difference::Schema);
            }
        }
        let suspected = suspect.filter(|page| pages.contains(page)).into_iter();
        for page in suspected.chain(pages.iter().copied()) {
            if !schema.contains(&page) && differs(page, before, after, buffer)? {
                *suspect = Some(page);
                return Ok(Difference::Pages);
            }
        }
        Ok(Difference::Nothing)
    }
}

fn shape((view, table): &Moment) -> Result<Shape> {
    table.as_ref().map_or(Ok(Shape::default()), |table| Shape::load(view, table))
}

/// What of the header a query, or SQLite on its behalf, may look at.
fn seen_header(shape: &Shape) -> [u8; HEADER_BYTES] {
    let mut header = shape.header;
    UNSEEN.into_iter().for_each(|range| header[range].fill(0));
    header
}

/// Whether a page, but for the header, is another one as of another moment; one that is not there is all zeros,
/// of which none are stored.
fn differs(
    page: u32,
    (before, before_table): &Moment,
    (after, after_table): &Moment,
    buffer: &mut Vec<u8>,
) -> Result<bool> {
    buffer.clear();
    if let Some(table) = before_table {
        before.get_with(table, key(page), |stored| buffer.extend_from_slice(stored))?;
    }
    let is_same = |stored: &[u8]| buffer[..] == *stored;
    let same = match after_table {
        Some(table) => after.get_with(table, key(page), is_same)?,
        None => None,
    };
    Ok(!same.unwrap_or(buffer.is_empty()))
}

#[cfg(test)]
mod tests {
    use bygone::Db;

    use super::*;

    #[test]
    fn only_what_was_read_matters() {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path().join("db")).unwrap();
        let mut moment: Moment = (db.snapshot(), None);
        let table = db.table("sql/x").unwrap();
        let put = |page: u32, bytes: &[u8]| db.put(&table, key(page), bytes).unwrap();
        let put_shape = |counter: u8, cookie: u8| {
            let mut shape = Shape { page_bytes: 512, state: counter.into(), ..Shape::default() };
            shape.header.fill(1);
            (shape.header[24], shape.header[95], shape.header[40]) = (counter, counter, cookie);
            put(0, &shape.encode());
        };
        let mut seen = Seen::default();
        let step = |seen: &mut Seen, moment: &mut Moment| {
            let now = (db.snapshot(), Some(table.clone()));
            let difference = seen.compare(moment, &now).unwrap();
            *moment = now;
            difference
        };
        assert_eq!(step(&mut seen, &mut moment), Difference::Nothing);
        put_shape(1, 1);
        put(1, b"schema");
        assert_eq!(step(&mut seen, &mut moment), Difference::Schema);
        seen.note(1);
        seen.note_schema();
        [2, 3].into_iter().for_each(|page| seen.note(page));
        put_shape(2, 1);
        put(2, b"two");
        put(3, b"three");
        assert_eq!(step(&mut seen, &mut moment), Difference::Pages);
        put_shape(3, 1);
        put(4, b"other");
        assert_eq!(step(&mut seen, &mut moment), Difference::Nothing);
        put_shape(4, 1);
        put(3, b"other");
        assert_eq!(step(&mut seen, &mut moment), Difference::Pages);
        assert_eq!(seen.suspect, Some(3));
        put_shape(5, 1);
        db.delete(&table, key(2)).unwrap();
        assert_eq!(step(&mut seen, &mut moment), Difference::Pages);
        seen.forget();
        put_shape(6, 1);
        put(2, b"again");
        assert_eq!(step(&mut seen, &mut moment), Difference::Nothing);
        put_shape(7, 1);
        put(1, b"another schema");
        assert_eq!(step(&mut seen, &mut moment), Difference::Schema);
        put_shape(8, 2);
        assert_eq!(step(&mut seen, &mut moment), Difference::Schema);
        let nothing: Moment = (moment.0.clone(), None);
        assert_eq!(seen.compare(&moment, &nothing).unwrap(), Difference::Schema);
        assert_eq!(seen.compare(&moment, &moment).unwrap(), Difference::Nothing);
        assert_eq!(seen.reads, 3);
    }
}
