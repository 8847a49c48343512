//! What a connection has seen of the moments that it reads, one after another.
//!
//! Owns: [`Seen`]: which pages SQLite may know, images of them, and for how long each holds. Promises:
//! [`Seen::compare`] tells whether a query that was run as of one moment could give anything else as of another; an
//! image that is handed out is the page as of the moment that is read, and stays as it is until SQLite has let go all
//! pages. May call: `pages`.
//!
//! Of each page that is read it is asked, too, up to which commit nobody writes it, as far as a later moment, the
//! horizon, tells ([`Snapshot::unchanged_until`]). Up to the least of these nothing that was seen changes: such moments
//! are passed by without a look at a page. Behind it, pages that were written since are compared; the first that says
//! that the query has to be run again ends the comparison. A page that changed and changed back counts as the same.
//!
//! Images are SQLite's to read where they are (`xFetch`), so a run reads anew only what was written since the last one.

mod schema;
#[cfg(test)]
mod tests;

use std::ffi::c_void;

use bygone::{Error, Result, Snapshot, Table};
pub(crate) use schema::Schema;

use crate::pages::{HEADER_BYTES, Shape, copy_part, key, trimmed};

/// Where the header has what changes with every commit, and what no query looks at: the change counter, the number of
/// pages, the free pages; the change counter again, and the version of SQLite.
const UNSEEN: [std::ops::Range<usize>; 2] = [24..40, 92..100];

/// Where page 1 says how many entries of the schema it has, or leads to.
const SCHEMA_CELLS: std::ops::Range<usize> = 103..105;

/// How much memory images may take. What does not fit SQLite reads into its own cache, each time anew.
const IMAGE_BYTES_MAX: usize = 64 << 20;

/// Behind an image there are as many zeros: where a page is damaged, SQLite may read so far beyond its end.
const BEHIND_IMAGE_BYTES: usize = 256;

/// Pages that lie in memory together.
const GROUP_PAGES: usize = 256;

/// A database as of a moment; without a table there is nothing in it.
pub(crate) type Moment = (Snapshot, Option<Table>);

/// What SQLite may know. Moments are read in the order of their commits.
pub(crate) struct Seen {
    pages: Pages,
    /// What it has read since it last dropped its cache: all that the last query has seen, at least.
    seen: Vec<u32>,
    /// What it has read of the schema when that was loaded.
    schema: Vec<u32>,
    /// How often SQLite has dropped its cache, and once more.
    generation: u64,
    /// Up to this commit nobody writes what was seen, or is of the schema.
    lasts: u64,
    /// A moment that is not before those that are read.
    horizon: Option<Snapshot>,
    /// The shape as of the commit that was compared last.
    shape: Option<(u64, Shape)>,
    /// Whether pages that are the same are of a database with the same header, as far as a query could tell.
    tells_header: bool,
    /// The page that differed last. The next time it will again, more likely than others.
    suspect: Option<u32>,
    /// How often a page was read in the database.
    pub(crate) reads: u64,
    image_bytes: usize,
    image_bytes_max: usize,
    /// The generation in which images were last thrown away for want of room; 0 if none were.
    thrown_away_in: u64,
    buffer: Vec<u8>,
}

/// What is known of a page.
#[derive(Default)]
struct Page {
    /// As it is up to the commit `until`, and behind it zeros.
    image: Option<Box<[u8]>>,
    /// What was last read of the page holds up to this commit.
    until: u64,
    /// When it was last seen.
    generation: u64,
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

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            pages: Pages::default(),
            seen: Vec::new(),
            schema: Vec::new(),
            generation: 1,
            lasts: u64::MAX,
            horizon: None,
            shape: None,
            tells_header: false,
            suspect: None,
            reads: 0,
            image_bytes: 0,
            image_bytes_max: IMAGE_BYTES_MAX,
            thrown_away_in: 0,
            buffer: Vec::new(),
        }
    }
}

impl Seen {
    /// One of so many that share the memory for images.
    pub fn sharing(among: usize) -> Seen {
        Seen { image_bytes_max: IMAGE_BYTES_MAX / among.max(1), ..Seen::default() }
    }

    /// Lets go the memory of all images. SQLite has let go all pages.
    pub fn drop_images(&mut self) {
        self.pages.for_each(|known| (known.image, known.until) = (None, 0));
        (self.image_bytes, self.lasts) = (0, 0);
        self.horizon = None;
    }

    /// A page was read into SQLite's cache.
    pub fn note(&mut self, page: u32, view: &Snapshot, table: &Table) -> Result<()> {
        self.reads += 1;
        let seq = u64::from(view.seq());
        // If something else is known to change at once, this need not be known.
        let until = if self.lasts <= seq { seq } else { self.stays(page, view, table)? };
        if self.pages.get(page).until < seq {
            self.take_image(page);
        }
        self.pages.get(page).until = until;
        self.see(page);
        Ok(())
    }

    /// The page as of the moment that is read, and behind it zeros; null if there is no room for it.
    pub fn image(
        &mut self,
        page: u32,
        page_bytes: usize,
        view: &Snapshot,
        table: &Table,
    ) -> Result<*mut c_void> {
        let known = self.pages.get(page);
        if known.image.is_none() || known.until < view.seq().into() {
            let bytes = page_bytes + BEHIND_IMAGE_BYTES;
            // What was handed out of it was of another moment, and SQLite has let it go. After an error it is gone.
            let image = self.take_image(page);
            if image.is_none() && !self.has_room(bytes) {
                return Ok(std::ptr::null_mut());
            }
            let mut image = image.unwrap_or_else(|| vec![0; bytes].into());
            self.reads += 1;
            let content = &mut image[..page_bytes];
            if view.get_with(table, key(page), |stored| copy_part(stored, 0, content))?.is_none() {
                image.fill(0);
            }
            let until = self.stays(page, view, table)?;
            self.image_bytes += image.len();
            let known = self.pages.get(page);
            (known.image, known.until) = (Some(image), until);
        }
        self.see(page);
        let image = self.pages.get(page).image.as_ref();
        // By shared references alone, as long as SQLite may have it: it reads.
        Ok(image.map_or(std::ptr::null_mut(), |image| image.as_ptr().cast_mut().cast()))
    }

    fn take_image(&mut self, page: u32) -> Option<Box<[u8]>> {
        let image = self.pages.get(page).image.take();
        self.image_bytes -= image.as_ref().map_or(0, |image| image.len());
        image
    }

    /// Whether there is room for one more image. Where there is none, those go that SQLite has not looked at since it
    /// dropped its cache.
    fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = |seen: &Seen| seen.image_bytes + bytes <= seen.image_bytes_max;
        if !has_room(self) && self.thrown_away_in != self.generation {
            self.thrown_away_in = self.generation;
            let (generation, image_bytes) = (self.generation, &mut self.image_bytes);
            self.pages.for_each(|known| {
                if known.generation != generation
                    && let Some(old) = known.image.take()
                {
                    *image_bytes -= old.len();
                }
            });
        }
        has_room(self)
    }

    #[inline]
    fn see(&mut self, page: u32) {
        let known = self.pages.get(page);
        self.lasts = self.lasts.min(known.until);
        if known.generation != self.generation {
            known.generation = self.generation;
            self.seen.push(page);
        }
    }

    /// Up to which commit a page stays as it is.
    fn stays(&self, page: u32, view: &Snapshot, table: &Table) -> Result<u64> {
        let until = match self.horizon.as_ref().map(|horizon| view.unchanged_until(horizon, table, key(page)))
        {
            // A horizon that has expired tells nothing; the moment itself is read apart from this.
            None | Some(Err(Error::SnapshotExpired { .. })) => None,
            Some(until) => until?,
        };
        Ok(until.unwrap_or(view.seq()).into())
    }

    /// SQLite drops its cache.
    pub fn forget(&mut self) {
        self.generation += 1;
        self.seen.clear();
        self.lasts = self.least();
    }

    /// SQLite has loaded the schema, and read nothing else.
    pub fn note_schema(&mut self, (view, table): &Moment) -> Result<()> {
        self.schema.clone_from(&self.seen);
        let Some(table) = table else { return Ok(()) };
        // In a schema that is not empty there is text, so another encoding makes other bytes; so do other pages' sizes,
        // since cells lie at a page's end. What else is in the header changes with the schema, or no query sees it.
        let cells = |page: &[u8]| page.get(SCHEMA_CELLS).is_some_and(|cells| cells != [0, 0]);
        self.tells_header = view.get_with(table, key(1), cells)?.unwrap_or(false);
        Ok(())
    }

    /// Whether there was room for all images.
    pub fn had_room(&self) -> bool {
        self.thrown_away_in == 0
    }

    /// From here on, it is this moment that tells for how long pages stay as they are.
    pub fn set_horizon(&mut self, horizon: Option<Snapshot>) {
        self.horizon = horizon;
    }

    /// The shape as of a commit, if it is known.
    pub fn shape(&self, seq: u64) -> Option<Shape> {
        self.shape.filter(|(of, _)| *of == seq).map(|(_, shape)| shape)
    }

    /// Up to which commit nothing differs of what was seen.
    pub fn lasts(&self) -> Option<u64> {
        self.tells_header.then_some(self.lasts)
    }

    /// What differs, of all that was read.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn compare(&mut self, before: &Moment, after: &Moment) -> Result<Difference> {
        if after.0.seq() < before.0.seq() {
            self.pages.for_each(|known| known.until = 0);
            self.lasts = 0;
        }
        let old = self.shape(before.0.seq().into()).map_or_else(|| shape(before), Ok)?;
        let new = shape(after)?;
        self.shape = after.1.as_ref().map(|_| (after.0.seq().into(), new));
        if old == new {
            return Ok(Difference::Nothing);
        }
        if seen_header(&old) != seen_header(&new) {
            return Ok(Difference::Schema);
        }
        for index in 0..self.schema.len() {
            if self.differs(self.schema[index], before, after)? {
                return Ok(Difference::Schema);
            }
        }
        let (generation, pages) = (self.generation, &mut self.pages);
        let suspect = self.suspect.filter(|page| pages.get(*page).generation == generation);
        for index in 0..self.seen.len() {
            // The suspect first; it is met again in its own place, for nothing.
            for page in suspect.filter(|_| index == 0).into_iter().chain([self.seen[index]]) {
                if self.differs(page, before, after)? {
                    self.suspect = Some(page);
                    return Ok(Difference::Pages);
                }
            }
        }
        self.lasts = self.least();
        Ok(Difference::Nothing)
    }

    fn least(&mut self) -> u64 {
        let pages = &mut self.pages;
        let until = self.seen.iter().chain(&self.schema).map(|page| pages.get(*page).until);
        until.min().unwrap_or(u64::MAX)
    }

    /// Whether a page, but for the header, is another one as of another moment; one that is not there is all zeros, of
    /// which none are stored.
    fn differs(&mut self, page: u32, before: &Moment, after: &Moment) -> Result<bool> {
        let (after, after_table) = after;
        if self.pages.get(page).until >= after.seq().into() {
            return Ok(false);
        }
        self.reads += 1;
        let known = self.pages.get(page);
        let old = match &known.image {
            Some(image) => trimmed(&image[..image.len() - BEHIND_IMAGE_BYTES]),
            None => {
                self.buffer.clear();
                if let (view, Some(table)) = before {
                    view.get_with(table, key(page), |stored| self.buffer.extend_from_slice(stored))?;
                }
                &self.buffer
            }
        };
        let Some(table) = after_table else { return Ok(!old.is_empty()) };
        let same = after.get_with(table, key(page), |stored| old == stored)?.unwrap_or(old.is_empty());
        if same {
            self.pages.get(page).until = self.stays(page, after, table)?;
        }
        Ok(!same)
    }
}

/// What is known of each page, by its number.
#[derive(Default)]
struct Pages {
    groups: Vec<Option<Box<[Page]>>>,
}

impl Pages {
    #[inline]
    fn get(&mut self, page: u32) -> &mut Page {
        let (group, index) = (page as usize / GROUP_PAGES, page as usize % GROUP_PAGES);
        if group >= self.groups.len() {
            self.groups.resize_with(group + 1, || None);
        }
        let group =
            self.groups[group].get_or_insert_with(|| (0..GROUP_PAGES).map(|_| Page::default()).collect());
        &mut group[index]
    }

    fn for_each(&mut self, f: impl FnMut(&mut Page)) {
        self.groups.iter_mut().flatten().flatten().for_each(f);
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
