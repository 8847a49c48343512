//! The open file of an SQL database, as SQLite sees it.
//!
//! Owns: [`MainFile`]: what it reads through, what its transaction has written, which locks it has. Promises: between
//! SHARED and its end every read is of one view; what is written from RESERVED on is seen by this file alone until the
//! commit, and forgotten without one; SQLite keeps its cache across commits of its own, and drops it whenever another
//! state is read. May call: `directory`, `pages`, `seen`, `written`, `frames`, `commit`.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use bygone::{Error, Snapshot, Table};

use crate::directory::{Database, Handle, locked};
use crate::failure::{Failure, Result};
use crate::ffi::*;
use crate::frames::Frames;
use crate::host::Host;
use crate::pages::{PAGE_BYTES_MIN, Shape, copy_part, cover, is_page_size, key, trimmed};
use crate::seen::Seen;
use crate::written::Write;

/// Where in page 1 the bytes are by which SQLite tells whether its cache still holds.
const VERSION_AT: i64 = 24;
const VERSION_BYTES: usize = 16;

/// SQLite's default for a new database.
const PAGE_BYTES_DEFAULT: u32 = 4096;

/// An open SQL database.
pub struct MainFile {
    pub(crate) host: &'static Host,
    /// What SQLite knows this file by.
    pub(crate) handle: *mut sqlite3_file,
    pub(crate) directory: Handle,
    pub(crate) database: Arc<Database>,
    /// Whether nothing may be written, ever.
    pub(crate) read_only: bool,
    /// Whether SQLite takes it to change never: then it reads one past for ever.
    pub(crate) is_immutable: bool,
    /// `SQLITE_LOCK_...`
    pub(crate) level: c_int,
    /// What is read, from SHARED on.
    view: Option<Snapshot>,
    /// The handle of the table; `None` if there was none when it was last looked for.
    table: Option<Table>,
    /// The shape as of `shape_seq`.
    shape: Shape,
    shape_seq: Option<u64>,
    cached: Cached,
    pub(crate) write: Option<Write>,
    /// Between transactions: the memory that the next one's pages go to.
    frames: Frames,
    /// The past that is read in the place of the present.
    past: Option<Past>,
    /// What was read before a statement that has a past of its own; `None` outside of one.
    outer_past: Option<Option<Past>>,
    /// Where SQLite keeps the address of the connection that uses this file.
    connection: *const *mut sqlite3,
    /// Whether `PRAGMA synchronous` asks for commits that are durable when they return.
    pub(crate) sync_commits: bool,
    /// The page size that was asked for, for a database that is empty still.
    pub(crate) page_bytes_wanted: u32,
    /// What the last `PRAGMA page_size` on this database asked for, whatever it was.
    pub(crate) page_bytes_asked: u32,
    /// The reserved bytes that we have asked SQLite for.
    pub(crate) reserved_bytes: u8,
    /// The snapshot that this connection declared last.
    pub(crate) declared: Option<u64>,
    /// What SQLite may know, where one past after another is read.
    pub(crate) seen: Option<RefCell<Seen>>,
    /// What others keep as long as this file is open.
    pub(crate) kept: Option<Box<dyn Any>>,
}

/// The past that a connection reads.
pub(crate) struct Past {
    /// As it was asked for.
    pub text: String,
    pub view: Snapshot,
    /// The table as of then.
    pub table: Option<Table>,
}

impl Past {
    /// What the table of this name was as of a view.
    pub fn new(text: String, view: Snapshot, table: &str) -> Result<Past> {
        let table = match view.table(table) {
            Ok(table) => Some(table),
            // There was no such database yet: it is empty then.
            Err(Error::TableNotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Past { text, view, table })
    }
}

/// What SQLite's own cache holds, as far as we have seen.
#[derive(Default)]
struct Cached {
    /// Of which state.
    state: Option<u64>,
    /// The bytes by which SQLite will judge: those of the page 1 that it read or wrote last.
    version: [u8; VERSION_BYTES],
    /// The size that SQLite takes pages to have; 0 if it has read none.
    page_bytes: usize,
}

impl MainFile {
    pub(crate) fn new(
        host: &'static Host,
        handle: *mut sqlite3_file,
        directory: Handle,
        database: Arc<Database>,
        (read_only, past): (bool, Option<Past>),
    ) -> MainFile {
        MainFile {
            host,
            handle,
            directory,
            database,
            read_only,
            is_immutable: false,
            level: SQLITE_LOCK_NONE,
            view: None,
            table: None,
            shape: Shape::default(),
            shape_seq: None,
            cached: Cached::default(),
            write: None,
            frames: Frames::default(),
            past,
            outer_past: None,
            connection: std::ptr::null(),
            sync_commits: true,
            page_bytes_wanted: PAGE_BYTES_DEFAULT,
            page_bytes_asked: 0,
            reserved_bytes: 0,
            declared: None,
            seen: None,
            kept: None,
        }
    }

    /// Whether there is a table for this database, now or in the past that is read.
    pub(crate) fn exists(&mut self) -> Result<bool> {
        self.load_shape(&self.present_or_past())?;
        Ok(self.table().is_some())
    }

    /// Where SQLite keeps the address of the connection.
    pub(crate) fn set_connection(&mut self, connection: *const *mut sqlite3) {
        self.connection = connection;
    }

    /// The connection that is in a call of this file; null before SQLite has told.
    pub(crate) fn connection(&self) -> *mut sqlite3 {
        if self.connection.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: SQLite told this address for as long as the file is open, and changes what is there only while it
        // has the mutex under which it calls us.
        unsafe { *self.connection }
    }

    fn present_or_past(&self) -> Snapshot {
        match &self.past {
            Some(past) => past.view.clone(),
            None => self.directory.db.snapshot(),
        }
    }

    fn table(&self) -> Option<&Table> {
        match &self.past {
            Some(past) => past.table.as_ref(),
            None => self.table.as_ref(),
        }
    }

    /// Makes `shape` that of a view.
    #[inline]
    fn load_shape(&mut self, view: &Snapshot) -> Result<()> {
        let seq = u64::from(view.seq());
        if self.shape_seq == Some(seq) {
            return Ok(());
        }
        self.shape = self.shape_of(view)?;
        self.shape_seq = Some(seq);
        Ok(())
    }

    /// The shape as of a view of the present, or of the past that is read.
    fn shape_of(&mut self, view: &Snapshot) -> Result<Shape> {
        if let Some(past) = &self.past {
            let known = self.seen.as_ref().and_then(|seen| seen.borrow().shape(view.seq().into()));
            if let Some(shape) = known {
                return Ok(shape);
            }
            return Ok(past.table.as_ref().map_or(Ok(Shape::default()), |table| Shape::load(view, table))?);
        }
        if let Some(table) = &self.table {
            match Shape::load(view, table) {
                // Dropped, or made anew by somebody who restored another state.
                Err(Error::TableNotFound { .. }) => self.table = None,
                loaded => return Ok(loaded?),
            }
        }
        match self.directory.db.open_table(&self.database.table) {
            Ok(table) => {
                let shape = Shape::load(view, &table)?;
                self.table = Some(table);
                Ok(shape)
            }
            Err(Error::TableNotFound { .. }) => Ok(Shape::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// The database's shape as this file sees it.
    #[inline]
    fn seen_shape(&self) -> &Shape {
        self.write.as_ref().map_or(&self.shape, |write| &write.shape)
    }

    /// `xFileSize`.
    pub(crate) fn bytes(&mut self) -> Result<i64> {
        if self.view.is_none() {
            self.load_shape(&self.present_or_past())?;
        }
        Ok(self.seen_shape().bytes() as i64)
    }

    /// `xRead`: whether all of `out` lies before the end.
    pub(crate) fn read(&mut self, out: &mut [u8], offset: i64) -> Result<bool> {
        let unlocked = if self.view.is_none() { Some(self.present_or_past()) } else { None };
        if let Some(view) = &unlocked {
            self.load_shape(view)?;
        }
        let Some(view) = unlocked.as_ref().or(self.view.as_ref()) else { return Ok(false) };
        let &Shape { page_bytes, pages, state, .. } = self.seen_shape();
        if offset == VERSION_AT && out.len() == VERSION_BYTES && self.level >= SQLITE_LOCK_SHARED {
            if pages == 0 {
                // SQLite takes its page 1 to be empty now, without reading it.
                self.cached.state = None;
                self.note_drop();
                out.fill(0);
                return Ok(false);
            }
            out.copy_from_slice(&self.cached.version);
            if self.cached.state != Some(state) {
                // Other bytes, whatever they are, make SQLite drop its cache, and read page 1.
                out.iter_mut().for_each(|byte| *byte = !*byte);
                self.note_drop();
            }
            return Ok(true);
        }
        let offset = u64::try_from(offset).map_err(|_| Failure::code(SQLITE_IOERR_READ))?;
        let within = self.seen_shape().bytes().saturating_sub(offset).min(out.len() as u64) as usize;
        let (inside, outside) = out.split_at_mut(within);
        outside.fill(0);
        let mut done = 0;
        while done < inside.len() {
            let at = offset + done as u64;
            let page = (at / u64::from(page_bytes)) as u32 + 1;
            let from = (at % u64::from(page_bytes)) as usize;
            let count = (page_bytes as usize - from).min(inside.len() - done);
            self.read_page(view, page, from, &mut inside[done..done + count])?;
            done += count;
        }
        if offset == 0 && out.len() >= PAGE_BYTES_MIN as usize {
            self.cached.page_bytes = out.len();
        }
        if offset == 0 && within > 0 && out.len() >= page_bytes as usize && self.level >= SQLITE_LOCK_SHARED {
            self.note_version(out);
            if self.write.is_none() {
                self.cached.state = Some(state);
            }
        }
        Ok(within == out.len())
    }

    /// SQLite is about to drop its cache.
    fn note_drop(&self) {
        if let Some(seen) = &self.seen {
            seen.borrow_mut().forget();
        }
    }

    /// Copies the part of a page that begins at `from`.
    #[inline]
    fn read_page(&self, view: &Snapshot, page: u32, from: usize, out: &mut [u8]) -> Result<()> {
        if let Some(write) = &self.write {
            if let Some(written) = write.pages.get(page) {
                copy_part(written, from, out);
                return Ok(());
            }
            if page > write.kept_pages {
                out.fill(0);
                return Ok(());
            }
        }
        let Some(table) = self.table() else {
            out.fill(0);
            return Ok(());
        };
        if let Some(seen) = &self.seen {
            seen.borrow_mut().note(page, view, table)?;
        }
        let found = view.get_with(table, key(page), |stored| copy_part(stored, from, &mut *out))?;
        if found.is_none() {
            // SQLite does not write pages that were freed before they were ever needed.
            out.fill(0);
        }
        if page == 1 {
            cover(&self.shape.header, from, out);
        }
        Ok(())
    }

    /// `xFetch`: an image of a page, for who reads one past after another; else null, and SQLite reads the page.
    pub(crate) fn fetch(&self, offset: i64, amount: c_int) -> Result<*mut c_void> {
        let (Some(seen), Some(view), Some(table), None) = (&self.seen, &self.view, self.table(), &self.write)
        else {
            return Ok(std::ptr::null_mut());
        };
        let (offset, page_bytes) = (offset as u64, self.shape.page_bytes);
        let is_page = amount > 0 && amount as u32 == page_bytes && offset.is_multiple_of(page_bytes.into());
        // The header of page 1 is not in its record; of that page SQLite wants a copy of its own anyway.
        if !is_page || offset == 0 || offset >= self.shape.bytes() {
            return Ok(std::ptr::null_mut());
        }
        let page = (offset / u64::from(page_bytes)) as u32 + 1;
        Ok(seen.borrow_mut().image(page, page_bytes as usize, view, table)?)
    }

    /// Page 1 was read or written: SQLite has taken these bytes.
    fn note_version(&mut self, page: &[u8]) {
        let at = VERSION_AT as usize;
        self.cached.version.copy_from_slice(&page[at..at + VERSION_BYTES]);
    }

    /// `xWrite`.
    pub(crate) fn write(&mut self, data: &[u8], offset: i64) -> Result<()> {
        if self.level < SQLITE_LOCK_RESERVED {
            return Err(Failure::new(SQLITE_MISUSE, "a write without the lock for it"));
        }
        let offset = u64::try_from(offset).map_err(|_| Failure::code(SQLITE_MISUSE))?;
        self.begin_if_needed()?;
        if offset == 0 && data.len() >= VERSION_AT as usize + VERSION_BYTES {
            self.note_version(data);
        }
        let view = self.view.clone();
        let Some(mut write) = self.write.take() else { return Ok(()) };
        let written = self.write_parts(view.as_ref(), &mut write, data, offset);
        self.write = Some(write);
        written
    }

    fn write_parts(
        &self,
        view: Option<&Snapshot>,
        write: &mut Write,
        data: &[u8],
        offset: u64,
    ) -> Result<()> {
        write.ready = false;
        if write.shape.pages == 0 {
            // The first write tells the page size: SQLite writes whole pages.
            let size = u32::try_from(data.len()).ok().filter(|size| is_page_size(*size));
            write.shape.page_bytes = size.unwrap_or(PAGE_BYTES_DEFAULT);
            write.pages.begin(write.shape.page_bytes);
        }
        let page_bytes = u64::from(write.shape.page_bytes);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let page = u32::try_from(at / page_bytes + 1).map_err(|_| Failure::code(SQLITE_FULL))?;
            let from = (at % page_bytes) as usize;
            let count = (page_bytes as usize - from).min(data.len() - done);
            let part = &data[done..done + count];
            done += count;
            write.shape.pages = write.shape.pages.max(page);
            if count == page_bytes as usize {
                write.pages.put(page, trimmed(part));
                continue;
            }
            let mut whole = vec![0; page_bytes as usize];
            match (write.pages.get(page), view, self.table.as_ref()) {
                (Some(written), ..) => copy_part(written, 0, &mut whole),
                (None, Some(view), Some(table)) if page <= write.kept_pages => {
                    view.get_with(table, key(page), |stored| copy_part(stored, 0, &mut whole))?;
                    if page == 1 {
                        cover(&write.begun.header, 0, &mut whole);
                    }
                }
                _ => {}
            }
            whole[from..from + count].copy_from_slice(part);
            write.pages.put(page, trimmed(&whole));
        }
        Ok(())
    }

    /// `xTruncate`.
    pub(crate) fn truncate(&mut self, bytes: i64) -> Result<()> {
        if self.level < SQLITE_LOCK_RESERVED {
            return Err(Failure::new(SQLITE_MISUSE, "a change of size without the lock for it"));
        }
        let bytes = u64::try_from(bytes).map_err(|_| Failure::code(SQLITE_MISUSE))?;
        self.begin_if_needed()?;
        let Some(write) = &mut self.write else { return Ok(()) };
        write.ready = false;
        if write.shape.page_bytes == 0 {
            return Ok(());
        }
        let pages = bytes.div_ceil(u64::from(write.shape.page_bytes));
        let pages = u32::try_from(pages).map_err(|_| Failure::code(SQLITE_FULL))?;
        write.shape.pages = pages;
        write.kept_pages = write.kept_pages.min(pages);
        write.pages.cut(pages);
        Ok(())
    }

    /// `xSync`: nothing is to be done before the commit.
    pub(crate) fn sync(&mut self) {
        if let Some(write) = &mut self.write {
            write.synced = true;
        }
    }

    /// `xLock`.
    pub(crate) fn lock(&mut self, level: c_int) -> Result<()> {
        if level >= SQLITE_LOCK_SHARED && self.level < SQLITE_LOCK_SHARED {
            let view = self.present_or_past();
            self.load_shape(&view)?;
            self.view = Some(view);
            self.level = SQLITE_LOCK_SHARED;
            if self.shape.pages == 0 {
                self.host.reserve_bytes(self);
            }
        }
        if level >= SQLITE_LOCK_RESERVED && self.level < SQLITE_LOCK_RESERVED {
            self.begin_to_write()?;
        }
        self.level = self.level.max(level);
        Ok(())
    }

    fn begin_to_write(&mut self) -> Result<()> {
        if self.read_only || self.past.is_some() {
            return Err(Failure::code(SQLITE_READONLY));
        }
        if !self.database.try_lock() {
            return Err(Failure::code(SQLITE_BUSY));
        }
        match self.check_latest() {
            Ok(()) => {
                self.write = Some(Write::begin(self.shape, std::mem::take(&mut self.frames)));
                Ok(())
            }
            Err(failure) => {
                self.database.unlock();
                Err(failure)
            }
        }
    }

    /// Whether what is read is the present still. Other tables of the directory may have changed.
    fn check_latest(&mut self) -> Result<()> {
        let now = self.directory.db.snapshot();
        if self.shape_seq != Some(now.seq().into()) && self.shape_of(&now)? != self.shape {
            return Err(Failure::code(SQLITE_BUSY_SNAPSHOT));
        }
        if self.table.is_none() {
            self.table = Some(self.directory.db.table(&self.database.table)?);
        }
        Ok(())
    }

    /// A connection that keeps its locks begins its next transaction without a word.
    fn begin_if_needed(&mut self) -> Result<()> {
        if self.write.is_none() {
            self.check_latest()?;
            self.write = Some(Write::begin(self.shape, std::mem::take(&mut self.frames)));
        }
        Ok(())
    }

    /// `xUnlock`.
    pub(crate) fn unlock(&mut self, level: c_int) {
        if self.level >= SQLITE_LOCK_RESERVED && level < SQLITE_LOCK_RESERVED {
            self.end_write();
            self.database.unlock();
        }
        if level < SQLITE_LOCK_SHARED {
            self.view = None;
        }
        self.level = self.level.min(level);
    }

    /// Whether SQLite takes the pages to be of a size that they are not any more.
    pub(crate) fn has_other_page_size(&mut self) -> Result<bool> {
        self.load_shape(&self.present_or_past())?;
        Ok(self.shape.pages > 0 && self.cached.page_bytes != self.shape.page_bytes as usize)
    }

    /// Forgets what was written.
    fn forget_write(&mut self) {
        if let Some(Write { mut pages, .. }) = self.write.take() {
            pages.clear();
            self.frames = pages;
        }
    }

    /// Forgets what was not committed.
    fn end_write(&mut self) {
        self.forget_write();
        let this: *mut MainFile = self;
        locked(&self.directory.ready).retain(|other| other.file != this);
    }

    /// The transaction is committed: what is read from here on is the state that it left. The writer's lock is still
    /// held, so nobody can have changed it further. SQLite's cache is right unless the commit has `changed` what it
    /// wrote.
    pub(crate) fn committed(&mut self, shape: Shape, changed: bool) {
        self.forget_write();
        self.shape = shape;
        // The view may be of a later commit to another table.
        let view = self.directory.db.snapshot();
        self.shape_seq = Some(view.seq().into());
        self.view = Some(view);
        self.cached.state = (!changed).then_some(shape.state);
    }

    /// What a transaction has written, and where to.
    pub(crate) fn written(&mut self) -> Option<(&mut Write, &Table, &Database)> {
        Some((self.write.as_mut()?, self.table.as_ref()?, &self.database))
    }

    /// What the transaction that is open reads; `None` outside of one, or if there is no such database.
    pub(crate) fn moment(&self) -> Option<(Snapshot, Table, Shape)> {
        Some((self.view.clone()?, self.table()?.clone(), self.shape))
    }

    /// The past that is read.
    pub(crate) fn past(&self) -> Option<&Past> {
        self.past.as_ref()
    }

    /// From the next transaction on, the past is read, or the present.
    pub(crate) fn set_past(&mut self, past: Option<Past>) {
        self.past = past;
        self.shape_seq = None;
    }

    /// At the next transaction SQLite drops its cache, whatever is read.
    pub(crate) fn drop_cache(&mut self) {
        self.cached.state = None;
    }

    /// As [`set_past`](MainFile::set_past), until [`leave_past`](MainFile::leave_past).
    pub(crate) fn enter_past(&mut self, past: Option<Past>) {
        let before = self.past.take();
        self.outer_past.get_or_insert(before);
        self.set_past(past);
    }

    /// Reads again what was read before [`enter_past`](MainFile::enter_past).
    pub(crate) fn leave_past(&mut self) {
        if let Some(before) = self.outer_past.take() {
            self.set_past(before);
        }
    }
}

impl Drop for MainFile {
    fn drop(&mut self) {
        self.unlock(SQLITE_LOCK_NONE);
    }
}
