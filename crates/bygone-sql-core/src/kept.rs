//! Pages that are kept while one connection reads one moment after another.
//!
//! Owns: [`Kept`]: copies of pages, and which pages SQLite may know. Promises: a page that two moments share is taken
//! from the database once, as long as there is room; [`Kept::moved`] tells whether a query that was run before the move
//! could give anything else behind it. May call: `pages`.

use std::collections::{HashMap, HashSet};

use bygone::{Diff, Result, Value};

use crate::pages::copy_part;

/// How much is kept, in bytes. Behind that the database's own cache has to do.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The page with the schema, and with SQLite's header.
const FIRST: u32 = 1;

/// Where the header has what changes with every commit, and what no query looks at: the change counter, the number of
/// pages, the free pages; the change counter again, and the version of SQLite.
const UNSEEN: [std::ops::Range<usize>; 2] = [24..40, 92..100];

/// Pages as of one moment.
#[derive(Default)]
pub(crate) struct Kept {
    /// As they are stored.
    pages: HashMap<u32, Box<[u8]>>,
    bytes: usize,
    /// What SQLite has read since it last dropped its cache: all that the last query has seen, at least.
    read: HashSet<u32>,
    /// What SQLite has read of the schema when it was loaded.
    schema: HashSet<u32>,
    /// How often a page was taken from the database, and from here.
    pub(crate) taken: u64,
    pub(crate) shared: u64,
}

/// What lies between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Nothing that SQLite has read.
    Nothing,
    /// Pages that it has read.
    Pages,
    /// Pages of the schema: what SQLite knows of it holds no longer.
    Schema,
}

impl Kept {
    /// Copies the part of a page that begins at `from`; `load` takes the whole page from the database.
    pub fn read(
        &mut self,
        page: u32,
        from: usize,
        out: &mut [u8],
        load: impl FnOnce() -> Result<Option<Value>>,
    ) -> Result<()> {
        self.read.insert(page);
        if let Some(stored) = self.pages.get(&page) {
            self.shared += 1;
            copy_part(stored, from, out);
            return Ok(());
        }
        self.taken += 1;
        // SQLite does not write pages that were freed before they were ever needed.
        let stored = load()?;
        let stored = stored.as_deref().unwrap_or_default();
        copy_part(stored, from, out);
        self.keep(page, stored);
        Ok(())
    }

    fn keep(&mut self, page: u32, stored: &[u8]) {
        let known = self.pages.get(&page).map_or(0, |old| old.len());
        if self.bytes - known + stored.len() <= KEPT_BYTES_MAX {
            self.bytes = self.bytes - known + stored.len();
            self.pages.insert(page, stored.into());
        } else if self.pages.remove(&page).is_some() {
            self.bytes -= known;
        }
    }

    /// There is no page yet, and SQLite knows it without reading.
    pub fn note_empty(&mut self) {
        self.read.insert(FIRST);
    }

    /// SQLite drops its cache.
    pub fn forget_read(&mut self) {
        self.read.clear();
    }

    /// SQLite has loaded the schema, and nothing else.
    pub fn note_schema(&mut self) {
        self.schema.clone_from(&self.read);
    }

    /// Another moment is read from here on; `changes` are those between the two.
    ///
    /// # Errors
    /// Those of the changes. Then this is of no use any more.
    pub fn moved(&mut self, changes: Diff) -> Result<Moved> {
        let mut moved = Moved::Nothing;
        for change in changes {
            let change = change?;
            let Ok(key) = <[u8; 4]>::try_from(&change.key[..]) else { continue };
            let page = u32::from_be_bytes(key);
            if page == 0 {
                continue;
            }
            let (before, after) =
                (change.before.as_deref().unwrap_or_default(), change.after.as_deref().unwrap_or_default());
            if self.pages.contains_key(&page) {
                self.keep(page, after);
            }
            if page == FIRST && is_same_to_queries(before, after) {
                continue;
            }
            if self.schema.contains(&page) {
                moved = Moved::Schema;
            } else if self.read.contains(&page) && moved == Moved::Nothing {
                moved = Moved::Pages;
            }
        }
        Ok(moved)
    }
}

/// Whether two first pages differ only in what no query looks at.
fn is_same_to_queries(before: &[u8], after: &[u8]) -> bool {
    let bytes = before.len().max(after.len());
    let seen = |page: &[u8]| {
        let mut page = page.to_vec();
        page.resize(bytes.max(UNSEEN[1].end), 0);
        for range in UNSEEN {
            page[range].fill(0);
        }
        page
    };
    seen(before) == seen(after)
}

#[cfg(test)]
mod tests {
    use bygone::Db;

    use super::*;
    use crate::pages::key;

    #[test]
    fn only_what_was_read_matters_and_what_is_kept_moves_on() {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path().join("db")).unwrap();
        let table = db.table("sql/x").unwrap();
        let first = |counter: u8, cookie: u8| {
            let mut page = vec![1; 200];
            (page[24], page[95], page[40]) = (counter, counter, cookie);
            page
        };
        let put = |page: u32, bytes: &[u8]| db.put(&table, key(page), bytes).unwrap();
        put(1, &first(1, 1));
        (2..6).for_each(|page| put(page, &[page as u8; 100]));
        let mut view = db.snapshot();
        let mut kept = Kept::default();
        let read = |kept: &mut Kept, view: &bygone::Snapshot, page: u32| {
            let mut out = vec![9; 200];
            kept.read(page, 0, &mut out, || view.get(&table, key(page))).unwrap();
            let mut stored = view.get(&table, key(page)).unwrap().unwrap_or_default().to_vec();
            stored.resize(200, 0);
            assert_eq!(out, stored, "page {page}");
        };
        let step = |kept: &mut Kept, view: &mut bygone::Snapshot| {
            let now = db.snapshot();
            let moved = kept.moved(view.diff(&now, &table).unwrap()).unwrap();
            *view = now;
            moved
        };
        read(&mut kept, &view, 1);
        kept.note_schema();
        [2, 3, 3].into_iter().for_each(|page| read(&mut kept, &view, page));
        assert_eq!((kept.taken, kept.shared), (3, 1));
        put(1, &first(2, 1));
        put(4, b"other");
        put(0, b"shape");
        assert_eq!(step(&mut kept, &mut view), Moved::Nothing);
        put(3, b"other");
        assert_eq!(step(&mut kept, &mut view), Moved::Pages);
        kept.forget_read();
        [1, 2, 3, 4].into_iter().for_each(|page| read(&mut kept, &view, page));
        assert_eq!((kept.taken, kept.shared), (4, 4), "page 3 came with the move");
        db.delete(&table, key(2)).unwrap();
        assert_eq!(step(&mut kept, &mut view), Moved::Pages);
        read(&mut kept, &view, 2);
        put(1, &first(3, 2));
        put(2, b"again");
        assert_eq!(step(&mut kept, &mut view), Moved::Schema);
        read(&mut kept, &view, 2);
        assert_eq!(step(&mut kept, &mut view), Moved::Nothing);
    }

    #[test]
    fn what_has_no_room_is_taken_again() {
        let mut kept = Kept::default();
        let page = vec![1; KEPT_BYTES_MAX / 2];
        for at in [2, 3, 4, 4] {
            let mut out = [0; 1];
            kept.read(at, 0, &mut out, || Ok(Some(page[..].into()))).unwrap();
            assert_eq!(out, [1]);
        }
        assert_eq!((kept.taken, kept.shared), (4, 0));
        kept.keep(2, &[]);
        kept.keep(4, &page);
        assert_eq!(kept.bytes, KEPT_BYTES_MAX);
        kept.keep(2, &[1]);
        assert!(!kept.pages.contains_key(&2) && kept.bytes == KEPT_BYTES_MAX);
    }
}
