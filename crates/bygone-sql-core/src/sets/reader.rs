//! One connection that reads snapshot after snapshot.
//!
//! Owns: [`Asker`], which turns to snapshots and runs the query; [`Idle`], its connection until the next set query.
//! Promises: the query runs again as of a snapshot unless that could give nothing else than its last run; what is idle
//! holds no view and no page, and calls nobody. May call: `file`, `seen`, `vfs`, `session`, `statement`.
//!
//! A turn asks `seen` for the pages that SQLite has read since it last dropped its cache: all that the last run has
//! seen, and perhaps more. If pages of the schema differ, the connection is opened anew, which is what SQLite would do
//! to its schema at least. Other pages stay with the reader.
//!
//! To open a connection and to prepare a query takes longer than many a set query. So the connection of the last one
//! waits for the next, in the file that the application's connection has of the database, and is closed with it.

use std::cell::{Cell, RefCell, RefMut};
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bygone::{Snapshot, SnapshotId};

use super::values;
use crate::api::text;
use crate::directory::{Handle, TABLE_PREFIX, locked};
use crate::failure::{Failure, Result};
use crate::ffi::*;
use crate::file::{MainFile, Past};
use crate::host::Host;
use crate::pages::key;
use crate::seen::{Difference, Moment, Schema, Seen};
use crate::session::Session;
use crate::statement::{Connection, MAIN, Row, Statement};
use crate::vfs;

/// After how many of SQLite's steps it is asked whether all is to end.
const STEPS: c_int = 10_000;

/// Tables whose content is not that of pages that were read.
const OUTSIDE: [&str; 2] = ["dbstat", "sqlite_dbpage"];

/// What is asked, as of what a connection reads. It may depend on the schema, and on nothing else.
type Query<'q> = Box<dyn Fn(&Connection) -> Result<String> + 'q>;

/// Where the runs of a query go.
pub(crate) trait Sink {
    /// A run begins, whose rows are what [`push`](Sink::push) is called with next.
    fn begin_run(&mut self, columns: Vec<String>) -> Result<()>;

    fn push(&mut self, row: &Row<'_>) -> Result<()>;

    fn end_run(&mut self) -> Result<()>;

    /// How many rows all runs have given.
    fn rows(&self) -> u64;

    /// The last run holds for this snapshot.
    fn holds_for(&mut self, snapshot: u64) -> Result<()>;
}

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
    // It goes before the watch that it reports to, and so does what is idle.
    reader: Option<Reader>,
    idle: Option<Idle>,
    watch: Box<Watch>,
    /// Among how many the memory for images is shared.
    share: usize,
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
        let watch = Watch { probe: RefCell::new(Some(probe)), ..Watch::default() };
        Ok(Asker::reporting_to(watch, host, (directory, table), query, snapshots))
    }

    /// On a thread that does the work for another one, until the flag says that all is to end. There is one more such.
    pub fn of_worker(
        host: &'static Host,
        stop: Arc<AtomicBool>,
        place: (Handle, String),
        query: Query<'q>,
        snapshots: Vec<u64>,
    ) -> Asker<'q> {
        let watch = Watch { stop: Some(stop), ..Watch::default() };
        Asker { share: 2, ..Asker::reporting_to(watch, host, place, query, snapshots) }
    }

    fn reporting_to(
        watch: Watch,
        host: &'static Host,
        (directory, table): (Handle, String),
        query: Query<'q>,
        snapshots: Vec<u64>,
    ) -> Asker<'q> {
        Asker {
            host,
            directory,
            table,
            query,
            snapshots,
            horizon: None,
            reader: None,
            idle: None,
            watch: Box::new(watch),
            share: 1,
            page_reads: 0,
        }
    }

    /// With a connection that was idle.
    pub fn with_idle(mut self, idle: Option<Idle>) -> Asker<'q> {
        self.idle = idle;
        self
    }

    /// The connection, for the next set query of the same database; `None` if it is not worth being kept.
    pub fn into_idle(mut self) -> Result<Option<Idle>> {
        let Some(reader) = self.reader.take() else { return Ok(None) };
        let schema = match reader.seen() {
            Some(seen) if seen.had_room() => seen.schema(&reader.moment)?,
            _ => None,
        };
        let Some(schema) = schema else { return Ok(None) };
        self.watch.probe.take();
        let Reader { statement, query, connection, file, session, .. } = reader;
        // SAFETY: nobody is in a call of the reader's connection, which has let go all pages.
        unsafe {
            (*file).seen = None;
            (*file).set_past(None);
        }
        // Nobody has a pointer to this one.
        let unused = Box::new(Watch::default());
        let watch = std::mem::replace(&mut self.watch, unused);
        Ok(Some(Idle { statement, query, connection, file, session, schema, watch }))
    }

    /// Turns to a snapshot. Answers whether the query is to be run.
    pub fn turn(&mut self, snapshot: u64) -> Result<bool> {
        if self.still_holds(snapshot)? {
            return Ok(false);
        }
        if self.watch.is_interrupted() {
            return Err(Failure::new(SQLITE_INTERRUPT, "interrupted"));
        }
        let view = self.directory.db.as_of(SnapshotId::from(snapshot))?;
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
        if let Some(idle) = self.idle.take() {
            self.resume(idle, &past)?;
        }
        if self.reader.is_none() {
            self.reader = Some(self.open(snapshot, past)?);
        }
        Ok(true)
    }

    /// As [`turn`](Asker::turn), where others have asked snapshots since the last turn: the run before is one of
    /// theirs, which gives the same only if nothing was written at all.
    pub fn turn_behind_others(&mut self, snapshot: u64) -> Result<bool> {
        if self.still_holds(snapshot)? {
            return Ok(false);
        }
        self.turn(snapshot)?;
        Ok(true)
    }

    /// Whether it is known that nothing was written since the last run that the query has read.
    fn still_holds(&self, snapshot: u64) -> Result<bool> {
        let Some(reader) = &self.reader else { return Ok(false) };
        if self.watch.reads_outside.get() || locked(&reader.session.asked).told {
            return Ok(false);
        }
        let Some(lasts) = reader.seen().and_then(|seen| seen.lasts()) else { return Ok(false) };
        // Behind what is read there are only later commits: a look-up less for who runs each time.
        if lasts <= reader.moment.0.seq().into() {
            return Ok(false);
        }
        Ok(lasts >= self.directory.db.seq_of(SnapshotId::from(snapshot))?.into())
    }

    /// Lets go the memory that is there for more turns, of which there are none.
    pub fn rest(&mut self) {
        if let Some(mut seen) = self.reader.as_ref().and_then(Reader::seen) {
            seen.drop_images();
        }
        self.horizon = None;
    }

    /// Whether all is to end.
    pub fn is_interrupted(&self) -> bool {
        self.watch.is_interrupted()
    }

    /// Looks for the last of the snapshots that tells what happens to pages behind this one; there may be none but
    /// itself.
    fn look_ahead(&mut self, snapshot: u64, (view, table): &Moment) {
        let tells = |later: &Snapshot| {
            let known = table.as_ref().map(|table| view.unchanged_until(later, table, key(0)));
            matches!(known, Some(Ok(Some(_))))
        };
        // What told of an earlier snapshot tells of all up to itself.
        if self.horizon.as_ref().is_some_and(|horizon| horizon.seq() >= view.seq()) {
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
        let mut seen = Seen::sharing(self.share);
        seen.set_horizon(self.horizon.clone());
        // SAFETY: nobody is in a call of this connection.
        let code = unsafe {
            (*file).seen = Some(RefCell::new(seen));
            values::register(self.host, connection.raw())
        };
        if code != SQLITE_OK {
            return Err(Failure::code(code));
        }
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
        let statement = self.prepare(&connection, &query)?;
        Ok(Reader { statement, query, connection, file, session, moment: (past.view, past.table) })
    }

    /// Prepares the query on a connection that reports to the watch.
    fn prepare(&self, connection: &Connection, query: &str) -> Result<Statement> {
        self.watch.reads_outside.set(false);
        self.watch.is_preparing.set(true);
        let statement = connection.prepare(query);
        self.watch.is_preparing.set(false);
        let statement = statement?;
        if statement.column_count() == 0 || !statement.is_read_only() {
            return Err(Failure::new(SQLITE_ERROR, "the query of a set is one that selects"));
        }
        Ok(statement)
    }

    /// Goes on with a connection that was idle, if it knows the schema.
    fn resume(&mut self, idle: Idle, past: &Past) -> Result<()> {
        let moment = (past.view.clone(), past.table.clone());
        let mut seen = Seen::sharing(self.share);
        seen.set_horizon(self.horizon.clone());
        if !seen.resume(&idle.schema, &moment)? {
            return Ok(());
        }
        let Idle { mut statement, query: before, connection, file, session, watch, .. } = idle;
        // It is what the connection reports to; to the other one nobody does.
        watch.probe.swap(&self.watch.probe);
        self.watch = watch;
        let past = Past { text: past.text.clone(), view: past.view.clone(), table: past.table.clone() };
        // SAFETY: nobody is in a call of this connection.
        unsafe {
            (*file).seen = Some(RefCell::new(seen));
            (*file).set_past(Some(past));
            // What is in it was not noted.
            (*file).drop_cache();
        }
        let query = (self.query)(&connection)?;
        if query != before {
            statement = self.prepare(&connection, &query)?;
        }
        self.reader = Some(Reader { statement, query, connection, file, session, moment });
        Ok(())
    }

    /// Runs the query as of the snapshot that it was turned to.
    pub fn run(&mut self, snapshot: u64, sink: &mut dyn Sink) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        {
            let mut asked = locked(&reader.session.asked);
            (asked.snapshot, asked.told) = (Some(snapshot), false);
        }
        sink.begin_run(reader.statement.columns())?;
        while reader.statement.step()? {
            sink.push(&Row::Found(&reader.statement))?;
        }
        reader.statement.reset();
        sink.end_run()
    }

    /// The connection that runs the query, with its session, between two runs.
    pub fn connection(&self) -> Option<(&Connection, &Session)> {
        self.reader.as_ref().map(|reader| (&reader.connection, &*reader.session))
    }

    /// How often a page was read.
    pub fn page_reads(&self) -> u64 {
        self.page_reads + self.reader.as_ref().map_or(0, Reader::page_reads)
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
    /// As text.
    query: String,
    connection: Connection,
    /// The main database of the connection, as long as that is open.
    file: *mut MainFile,
    session: Arc<Session>,
    /// What it reads.
    moment: Moment,
}

/// A connection that waits for the next set query, with what it has prepared. It is in no transaction.
pub(crate) struct Idle {
    // In the order in which they have to go.
    statement: Statement,
    query: String,
    connection: Connection,
    file: *mut MainFile,
    session: Arc<Session>,
    /// What SQLite knows.
    schema: Schema,
    /// Without a probe, which is of somebody else's connection.
    watch: Box<Watch>,
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
#[derive(Default)]
struct Watch {
    /// A statement of the connection that the set query is of: it fails when that is to end.
    probe: RefCell<Option<Statement>>,
    /// The same of a thread that works for the one that is in a call of that connection.
    stop: Option<Arc<AtomicBool>>,
    is_preparing: Cell<bool>,
    /// Whether the query reads what is not in pages, or what differs each time.
    reads_outside: Cell<bool>,
}

impl Watch {
    fn is_interrupted(&self) -> bool {
        // Relaxed: nothing but the flag is told by it.
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return true;
        }
        let Ok(mut probe) = self.probe.try_borrow_mut() else { return false };
        let Some(probe) = &mut *probe else { return false };
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
            let is_ours = table.starts_with("bygone_") && table.as_bytes() != values::NAME.to_bytes();
            if OUTSIDE.contains(&&table[..]) || is_ours {
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
