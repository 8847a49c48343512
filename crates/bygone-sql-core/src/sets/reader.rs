//! One connection that reads snapshot after snapshot.
//!
//! Owns: [`Asker`], which turns to snapshots and runs the query. Promises: the query runs again as of a snapshot unless
//! that could give nothing else than its last run. May call: `file`, `seen`, `vfs`, `session`, `statement`.
//!
//! A turn asks `seen` for the pages that SQLite has read since it last dropped its cache: all that the last run has
//! seen, and perhaps more. If pages of the schema differ, the connection is opened anew, which is what SQLite would do
//! to its schema at least. Other pages stay with the reader.

use std::cell::{Cell, RefCell, RefMut};
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use bygone::{Snapshot, SnapshotId};

use super::staging::Staging;
use crate::api::text;
use crate::directory::{Handle, TABLE_PREFIX, locked};
use crate::failure::{Failure, Result};
use crate::ffi::*;
use crate::file::{MainFile, Past};
use crate::host::Host;
use crate::pages::key;
use crate::seen::{Difference, Moment, Seen};
use crate::session::Session;
use crate::statement::{Connection, MAIN, Statement};
use crate::vfs;

/// After how many of SQLite's steps it is asked whether all is to end.
const STEPS: c_int = 10_000;

/// Tables whose content is not that of pages that were read.
const OUTSIDE: [&str; 2] = ["dbstat", "sqlite_dbpage"];

/// What is asked, as of what a connection reads. It may depend on the schema, and on nothing else.
type Query<'q> = Box<dyn Fn(&Connection) -> Result<String> + 'q>;

/// Asks one query of many snapshots.
pub(crate) struct Asker<'q> {
    host: &'static Host,
    directory: Handle,
    /// The table of the SQL database.
    table: String,
    query: Query<'q>,
    /// The snapshots that are asked, in their order.
    snapshots: Vec<u64>,
    /// One of these, not before the one that was turned to last.
    horizon: Option<Snapshot>,
    watch: Box<Watch>,
    reader: Option<Reader>,
    /// Of connections that are closed.
    page_reads: u64,
}

impl<'q> Asker<'q> {
    /// # Safety
    /// The connection is in a call of this thread's for as long as this lives.
    pub unsafe fn new(
        host: &'static Host,
        connection: *mut sqlite3,
        (directory, table): (Handle, String),
        query: Query<'q>,
        snapshots: Vec<u64>,
    ) -> Result<Asker<'q>> {
        // SAFETY: as promised.
        let probe = unsafe { Statement::prepare(host, connection, "SELECT 1") }?;
        let watch = Watch {
            probe: RefCell::new(probe),
            is_preparing: Cell::new(false),
            reads_outside: Cell::new(false),
        };
        let watch = Box::new(watch);
        Ok(Asker {
            host,
            directory,
            table,
            query,
            snapshots,
            horizon: None,
            watch,
            reader: None,
            page_reads: 0,
        })
    }

    /// Turns to a snapshot. Answers whether the query is to be run.
    pub fn turn(&mut self, snapshot: u64) -> Result<bool> {
        if self.watch.is_interrupted() {
            return Err(Failure::new(SQLITE_INTERRUPT, "interrupted"));
        }
        let view = self.directory.db.as_of(SnapshotId::from(snapshot))?;
        if let Some(reader) = &self.reader {
            let asks_for_more = self.watch.reads_outside.get() || locked(&reader.session.asked).told;
            let lasts = reader.seen().and_then(|seen| seen.lasts());
            if !asks_for_more && lasts.is_some_and(|lasts| lasts >= view.seq().into()) {
                return Ok(false);
            }
        }
        let past = Past::new(format!("id:{snapshot}"), view, &self.table)?;
        let moment = (past.view.clone(), past.table.clone());
        self.look_ahead(snapshot, &moment);
        if let Some(mut reader) = self.reader.take() {
            let difference = reader.turn(moment, self.horizon.clone())?;
            if difference != Difference::Schema {
                // SAFETY: nobody is in a call of the reader's connection.
                unsafe { (*reader.file).set_past(Some(past)) };
                let again = difference == Difference::Pages || self.watch.reads_outside.get();
                let again = again || locked(&reader.session.asked).told;
                self.reader = Some(reader);
                return Ok(again);
            }
            self.page_reads += reader.page_reads();
        }
        self.reader = Some(self.open(snapshot, past)?);
        Ok(true)
    }

    /// Looks for the last of the snapshots that tells what happens to pages behind this one; there may be none but
    /// itself.
    fn look_ahead(&mut self, snapshot: u64, (view, table): &Moment) {
        let tells = |later: &Snapshot| {
            let known = table.as_ref().map(|table| view.unchanged_until(later, table, key(0)));
            matches!(known, Some(Ok(Some(_))))
        };
        if self.horizon.as_ref().is_some_and(tells) {
            return;
        }
        // One that cannot be read is met when it is its turn.
        let open = |later: &u64| self.directory.db.as_of(SnapshotId::from(*later)).ok().filter(tells);
        let later = &self.snapshots[self.snapshots.partition_point(|other| *other <= snapshot)..];
        self.horizon = later.last().and_then(open).or_else(|| {
            // Those that are read in one place are neighbours.
            later[..later.partition_point(|later| open(later).is_some())].last().and_then(open)
        });
    }

    fn open(&self, snapshot: u64, past: Past) -> Result<Reader> {
        let moment = format!("id:{snapshot}");
        let connection = Connection::open(self.host, &uri(&self.directory, &self.table, &moment))?;
        let session = match Session::of(connection.raw()) {
            Some(session) => session,
            // The host has forgotten what it should do with new connections.
            None => {
                // SAFETY: it is open.
                unsafe { crate::prepare(connection.raw()) };
                Session::of(connection.raw()).ok_or_else(|| Failure::code(SQLITE_NOMEM))?
            }
        };
        let file = self.host.main_file(connection.raw(), MAIN);
        let file = file.ok_or_else(|| Failure::new(SQLITE_ERROR, "the VFS bygone is not Bygone's"))?;
        let mut seen = Seen::default();
        seen.set_horizon(self.horizon.clone());
        // SAFETY: nobody is in a call of this connection.
        unsafe { (*file).seen = Some(RefCell::new(seen)) };
        // How much is for the file to say; this is for SQLite to ask it.
        connection.run("PRAGMA mmap_size = 1")?;
        // This loads the schema.
        let query = (self.query)(&connection)?;
        drop(connection.prepare("SELECT 1 FROM sqlite_schema")?);
        // SAFETY: as above.
        if let Some(seen) = unsafe { &(*file).seen } {
            seen.borrow_mut().note_schema(&(past.view.clone(), past.table.clone()))?;
        }
        let watch: *const Watch = &*self.watch;
        // SAFETY: the watch stays where it is, and is dropped after the reader.
        unsafe {
            (self.host.api.set_authorizer)(connection.raw(), Some(authorize), watch.cast_mut().cast());
            (self.host.api.progress_handler)(
                connection.raw(),
                STEPS,
                Some(progress),
                watch.cast_mut().cast(),
            );
        }
        self.watch.is_preparing.set(true);
        let statement = connection.prepare(&query);
        self.watch.is_preparing.set(false);
        let statement = statement?;
        if statement.column_count() == 0 || !statement.is_read_only() {
            return Err(Failure::new(SQLITE_ERROR, "the query of a set is one that selects"));
        }
        Ok(Reader { statement, _connection: connection, file, session, moment: (past.view, past.table) })
    }

    /// Runs the query as of the snapshot that it was turned to.
    pub fn run(&mut self, snapshot: u64, staging: &mut Staging) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        {
            let mut asked = locked(&reader.session.asked);
            (asked.snapshot, asked.told) = (Some(snapshot), false);
        }
        staging.begin_run(reader.statement.columns())?;
        while reader.statement.step()? {
            staging.push(&reader.statement)?;
        }
        reader.statement.reset();
        Ok(())
    }

    /// How many columns the query gives.
    pub fn column_count(&self) -> usize {
        self.reader.as_ref().map_or(0, |reader| reader.statement.column_count())
    }

    /// How often a page was read.
    pub fn page_reads(&self) -> u64 {
        self.page_reads + self.reader.as_ref().map_or(0, Reader::page_reads)
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        // Before the watch that it reports to.
        self.reader = None;
    }
}

/// The URI of an SQL database as of a moment.
pub(crate) fn uri(directory: &Handle, table: &str, moment: &str) -> String {
    let path = directory.db.path();
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = table.strip_prefix(TABLE_PREFIX).unwrap_or(table);
    let mut uri = "file:".to_owned();
    vfs::push_escaped(&mut uri, path.as_os_str().as_bytes());
    uri.push_str("?vfs=bygone&db=");
    vfs::push_escaped(&mut uri, name.as_bytes());
    let number = vfs::NUMBER_PARAMETER.to_string_lossy();
    uri.push_str(&format!("&{number}={}&as_of=", directory.number));
    vfs::push_escaped(&mut uri, moment.as_bytes());
    uri
}

/// The connection.
struct Reader {
    // It goes before the connection that it is of.
    statement: Statement,
    _connection: Connection,
    /// The main database of the connection, as long as that is open.
    file: *mut MainFile,
    session: Arc<Session>,
    /// What it reads.
    moment: Moment,
}

impl Reader {
    /// Compares with what is to be read next.
    fn turn(&mut self, next: Moment, horizon: Option<Snapshot>) -> Result<Difference> {
        let difference = match self.seen() {
            Some(mut seen) => {
                seen.set_horizon(horizon);
                seen.compare(&self.moment, &next)?
            }
            None => Difference::Schema,
        };
        self.moment = next;
        Ok(difference)
    }

    fn seen(&self) -> Option<RefMut<'_, Seen>> {
        // SAFETY: nobody is in a call of the connection, and what is borrowed is given back before anybody is.
        unsafe { &(*self.file).seen }.as_ref().map(RefCell::borrow_mut)
    }

    fn page_reads(&self) -> u64 {
        self.seen().map_or(0, |seen| seen.reads)
    }
}

/// What the reader's connection reports to.
struct Watch {
    /// A statement of the connection that the set query is of: it fails when that is to end.
    probe: RefCell<Statement>,
    is_preparing: Cell<bool>,
    /// Whether the query reads what is not in pages, or what differs each time.
    reads_outside: Cell<bool>,
}

impl Watch {
    fn is_interrupted(&self) -> bool {
        let Ok(mut probe) = self.probe.try_borrow_mut() else { return false };
        let interrupted = probe.step().is_err();
        probe.reset();
        interrupted
    }
}

unsafe extern "C" fn progress(watch: *mut c_void) -> c_int {
    // SAFETY: the reader is dropped before the watch.
    let watch = unsafe { &*watch.cast::<Watch>() };
    c_int::from(watch.is_interrupted())
}

unsafe extern "C" fn authorize(
    watch: *mut c_void,
    action: c_int,
    first: *const c_char,
    second: *const c_char,
    _schema: *const c_char,
    _trigger: *const c_char,
) -> c_int {
    // SAFETY: the reader is dropped before the watch.
    let watch = unsafe { &*watch.cast::<Watch>() };
    // SAFETY: null, or a text.
    let name = |name: *const c_char| unsafe { text(name) }.unwrap_or_default().to_ascii_lowercase();
    match action {
        SQLITE_PRAGMA if watch.is_preparing.get() => return SQLITE_DENY,
        // By a table such as `pragma_page_count`.
        SQLITE_PRAGMA => watch.reads_outside.set(true),
        SQLITE_READ => {
            let table = name(first);
            if OUTSIDE.contains(&&table[..]) || table.starts_with("bygone_") {
                watch.reads_outside.set(true);
            }
        }
        SQLITE_FUNCTION if matches!(&name(second)[..], "random" | "randomblob") => {
            watch.reads_outside.set(true);
        }
        _ => {}
    }
    SQLITE_OK
}
