//! Whole databases, as files of SQLite's.
//!
//! Owns: [`import_file`] and [`export_file`]. Promises: the file that is imported is only read; an import is seen as a
//! whole or not at all, however large it is; what is exported is a file that any SQLite opens, there as a whole or not
//! at all. May call: `host`.
//!
//! An import copies the file first: by `VACUUM INTO`, which also makes room at the end of each page for what the engine
//! keeps there, or page by page where SQLite cannot read the schema (a collation or function of an application's).
//! The copy's pages are then put into the table in commits of bounded size. The record that says how many pages there
//! are comes with the last, and before it nobody sees any. Where a database is replaced, they take the place of those
//! that there are in one commit, which the engine makes without holding them in memory.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bygone::{Db, Durability, Table};
use bygone_sql_core::directory::{self, Database};
use bygone_sql_core::pages::{HEADER_BYTES, Shape, is_page_size, key, reserved_bytes, trimmed};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::host;

/// A commit of an import takes no more than this many bytes, so that memory stays bounded.
const COMMIT_BYTES: usize = 8 << 20;

/// What is read of a copy at once.
const READ_BYTES: usize = 256 << 10;

/// Pages copied at once.
const STEP_PAGES: i32 = 1000;

/// What the names of the folders begin with that imports copy into.
const COPIES_PREFIX: &str = ".bygone-import-";

/// How long an import waits for who is writing to the file.
const BUSY: Duration = Duration::from_secs(10);

/// What an import has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The bytes of a page.
    pub page_bytes: u32,
    /// How many there are.
    pub pages: u32,
}

/// Takes over a file of SQLite's as the SQL database of this name, with everything in it: tables, indexes, triggers,
/// views, page size, `user_version`, `application_id`, `auto_vacuum`. What other processes have committed to it is in,
/// also where it lies in a write-ahead log still.
///
/// `progress` is called with the bytes that are done and all there are. Beside the database's directory there must be
/// room for a copy of the file.
///
/// With `replace`, an SQL database of this name is replaced, in one commit, for which all others wait; declared
/// snapshots keep what was. Memory is bounded either way.
///
/// # Errors
/// [`Error::Exists`] if there is such an SQL database, and it is not to be replaced; [`Error::NotSqlite`];
/// [`Error::File`]; what SQLite or the database say. Nothing of the file is in the database then.
pub fn import_file(
    db: &Db,
    name: &str,
    path: &Path,
    replace: bool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Imported> {
    let directory = directory::share(db);
    let database = directory.database(name).map_err(|failure| Error::statement(failure.text))?;
    let writer = WriterLock::take(database, name)?;
    let table_name = &writer.database.table;
    let old = present(db, table_name)?;
    if old.is_some_and(|shape| shape.pages > 0) && !replace {
        return Err(Error::Exists { what: format!("SQL database {name:?}") });
    }
    let source = open_source(path)?;
    let folder = copies_folder(db);
    remove_abandoned(&folder);
    let (copies, lock) = make_copies(&folder).map_err(|error| file_error(&folder, "write in", error))?;
    let copy = copies.path().join("copy");
    copy_source(&source, &copy)?;
    drop(source);
    let file = File::open(&copy).map_err(|error| file_error(&copy, "read", error))?;
    // What is open stays, and nothing is left over if the process ends from here on.
    drop((copies, lock));

    let old = match old {
        Some(shape) if shape.pages == 0 => {
            // What an import that broke off has left.
            db.drop_table(table_name)?;
            Shape::default()
        }
        old => old.unwrap_or_default(),
    };
    let loaded = load(db, &writer.database, (file, path), old, &mut progress);
    if loaded.is_err() && old.pages == 0 {
        // Only space would be lost, and the first failure is the one to tell.
        let _ = db.drop_table(table_name);
    }
    loaded
}

/// Where a copy finds room: on the disk that must hold the database as well.
fn copies_folder(db: &Db) -> PathBuf {
    let directory = std::path::absolute(db.path()).unwrap_or_else(|_| db.path().to_owned());
    match directory.parent() {
        Some(parent) if directory.is_dir() => parent.to_owned(),
        // It is on no disk of the system's.
        _ => std::env::temp_dir(),
    }
}

/// A folder for a copy, with the lock that says that it is in use.
fn make_copies(folder: &Path) -> io::Result<(TempDir, File)> {
    loop {
        let copies = tempfile::Builder::new().prefix(COPIES_PREFIX).tempdir_in(folder)?;
        // Before it is locked, another import may take it for an abandoned one.
        match File::open(copies.path()) {
            Ok(lock) => match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {}
                // Where there are no locks, nobody takes it for an abandoned one either.
                _ if copies.path().is_dir() => return Ok((copies, lock)),
                _ => {}
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

/// Deletes folders that imports have left whose process was killed: those that nobody has locked. What cannot be
/// deleted stays, and is in nobody's way.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_copies = entry.file_name().as_encoded_bytes().starts_with(COPIES_PREFIX.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_copies
            && let Ok(lock) = File::open(&path)
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// The writer's lock of an SQL database.
struct WriterLock {
    database: Arc<Database>,
}

impl WriterLock {
    fn take(database: Arc<Database>, name: &str) -> Result<WriterLock> {
        match database.try_lock() {
            true => Ok(WriterLock { database }),
            false => Err(Error::statement(format!("a connection writes to SQL database {name:?}"))),
        }
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        self.database.unlock();
    }
}

/// The shape of what there is; `None` if there is no such table.
fn present(db: &Db, table: &str) -> Result<Option<Shape>> {
    match db.open_table(table) {
        Ok(table) => Ok(Some(Shape::load(&db.snapshot(), &table)?)),
        Err(bygone::Error::TableNotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_source(path: &Path) -> Result<Connection> {
    let metadata = fs::metadata(path).map_err(|error| file_error(path, "read", error))?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Err(Error::NotSqlite { path: path.to_owned() });
    }
    let source = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    source.busy_timeout(BUSY)?;
    // The last to close it would move the log into the file, which is not ours to change.
    source.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    match source.query_row("PRAGMA schema_version", [], |_| Ok(())) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            Err(Error::NotSqlite { path: path.to_owned() })
        }
        answer => Ok(answer.map(|()| source)?),
    }
}

fn copy_source(source: &Connection, copy: &Path) -> Result<()> {
    let page_bytes: u32 = source.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    host::reserve_bytes(source, reserved_bytes(page_bytes))?;
    // Nobody needs the copy after a crash.
    source.pragma_update(None, "synchronous", "off")?;
    match source.execute("VACUUM INTO ?1", [copy.to_string_lossy()]) {
        Ok(_) => Ok(()),
        // Something that the schema names is not known here.
        Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::Unknown => {
            match fs::remove_file(copy) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(file_error(copy, "delete", error));
                }
                _ => {}
            }
            copy_pages(source, copy, &mut |_, _| {})
        }
        Err(error) => Err(error.into()),
    }
}

/// A copy of a file of SQLite's, whose pages are read one after another.
struct Copy<'p> {
    file: BufReader<File>,
    /// Of the file that was copied.
    path: &'p Path,
    bytes: u64,
    shape: Shape,
    page: Vec<u8>,
    /// The last page that was read.
    number: u32,
}

impl Copy<'_> {
    fn open(file: File, path: &Path) -> Result<Copy<'_>> {
        let failed = |error| file_error(path, "copy", error);
        let bytes = file.metadata().map_err(failed)?.len();
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header).map_err(failed)?;
        let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            bytes => u32::from(bytes),
        };
        let pages = u32::try_from(bytes / u64::from(page_bytes.max(1))).unwrap_or(u32::MAX);
        if !is_page_size(page_bytes) || u64::from(pages) * u64::from(page_bytes) != bytes {
            return Err(Error::NotSqlite { path: path.to_owned() });
        }
        // Its pages are changed through a journal, not a log, wherever they come from.
        header[18..20].fill(1);
        let shape = Shape { page_bytes, pages, state: 0, header };
        Ok(Copy { file, path, bytes, shape, page: vec![0; page_bytes as usize], number: 0 })
    }

    /// The next page, as it is stored.
    fn next(&mut self) -> io::Result<Option<(u32, &[u8])>> {
        if self.number == self.shape.pages {
            return Ok(None);
        }
        self.number += 1;
        // The header lies with the shape, not in page 1.
        let from = if self.number == 1 { HEADER_BYTES } else { 0 };
        self.file.read_exact(&mut self.page[from..])?;
        Ok(Some((self.number, trimmed(&self.page))))
    }

    fn done(&self) -> u64 {
        u64::from(self.number) * u64::from(self.shape.page_bytes)
    }
}

/// Puts the pages of a file, a copy of the one at this path, into the table, from which `old` is gone in the end.
fn load(
    db: &Db,
    database: &Database,
    (file, path): (File, &Path),
    old: Shape,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Imported> {
    let mut copy = Copy::open(file, path)?;
    // The number of a commit behind the table's last one, and before the one to come.
    copy.shape.state = db.snapshot().seq().into();
    if old.pages > 0 {
        // By it SQLite tells whether the schema that a connection knows still holds.
        let cookie = old.schema_cookie().max(copy.shape.schema_cookie()).wrapping_add(1);
        copy.shape.set_schema_cookie(cookie);
    }
    if let Some(cookie) = database.corrected_cookie(old.state, copy.shape.schema_cookie()) {
        copy.shape.set_schema_cookie(cookie);
    }
    let shape = copy.shape;
    let table: Table = db.table(&database.table)?;
    match old.pages {
        0 => fill(db, &table, &mut copy, progress)?,
        _ => replace(db, &table, &mut copy, progress)?,
    }
    database.committed(shape.state, shape.schema_cookie(), true);
    progress(copy.bytes, copy.bytes);
    Ok(Imported { page_bytes: shape.page_bytes, pages: shape.pages })
}

/// Puts the pages into a table that has none, by commits of bounded size: nobody sees any before the last.
fn fill(db: &Db, table: &Table, copy: &mut Copy<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let mut transaction = db.begin()?;
    let (mut held, path) = (0, copy.path);
    while let Some((number, page)) = copy.next().map_err(|error| file_error(path, "copy", error))? {
        transaction.put(table, key(number), page)?;
        held += copy.page.len();
        if held > COMMIT_BYTES {
            transaction.set_durability(Durability::Buffered);
            transaction.commit()?;
            transaction = db.begin()?;
            held = 0;
            progress(copy.done(), copy.bytes);
        }
    }
    transaction.put(table, key(0), copy.shape.encode())?;
    transaction.set_durability(Durability::Sync);
    transaction.commit()?;
    Ok(())
}

/// Puts the pages in the place of those that there are, by one commit.
fn replace(db: &Db, table: &Table, copy: &mut Copy<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let path = copy.path;
    let mut shape = Some(copy.shape.encode().to_vec());
    let mut told = 0;
    let records = std::iter::from_fn(|| {
        if let Some(record) = shape.take() {
            return Some(Ok((key(0), record)));
        }
        let next = copy.next().map(|page| page.map(|(number, page)| (key(number), page.to_vec())));
        if copy.done() - told > COMMIT_BYTES as u64 {
            told = copy.done();
            progress(told, copy.bytes);
        }
        let source =
            |error| bygone::Error::Io { path: path.to_owned(), operation: "copy", source: Arc::new(error) };
        next.map_err(source).transpose()
    });
    db.replace(table, records)?;
    Ok(())
}

/// Writes the SQL database that a connection reads, of now or of the past, as a file of SQLite's.
///
/// `progress` is called with the pages that are done and all there are.
///
/// # Errors
/// [`Error::Exists`] if there is such a file; [`Error::File`]; what SQLite or the database say.
pub fn export_file(connection: &Connection, path: &Path, mut progress: impl FnMut(u64, u64)) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::Exists { what: path.display().to_string() });
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    // Of an export that broke off.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(file_error(&unfinished, "delete", error));
        }
        _ => {}
    }
    // One view for all of it, whoever writes meanwhile.
    let view = connection.unchecked_transaction()?;
    view.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(Error::of)?;
    let copied = copy_pages(&view, &unfinished, &mut progress).map_err(|error| match error {
        // Under the name that was asked for.
        Error::File { operation, source, .. } => file_error(path, operation, source),
        other => other,
    });
    let written = copied.and_then(|()| {
        let synced = File::open(&unfinished).and_then(|file| file.sync_all());
        let renamed = synced.and_then(|()| fs::rename(&unfinished, path));
        renamed.map_err(|error| file_error(path, "write", error))
    });
    if written.is_err() {
        // The first failure is the one to tell.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Copies all pages into a new file of the system's.
fn copy_pages(source: &Connection, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    // Tells better than SQLite what is wrong with the path.
    File::create_new(path).map_err(|error| file_error(path, "write", error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut target = Connection::open_with_flags(path, flags)?;
    // It is made anew if anything goes wrong.
    target.query_row("PRAGMA journal_mode = off", [], |_| Ok(()))?;
    target.pragma_update(None, "synchronous", "off")?;
    let backup = Backup::new(source, &mut target)?;
    loop {
        let step = backup.step(STEP_PAGES).map_err(Error::of)?;
        let done = backup.progress();
        let all = u64::try_from(done.pagecount).unwrap_or(0);
        progress(all.saturating_sub(u64::try_from(done.remaining).unwrap_or(0)), all);
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            // Somebody writes to the source.
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn file_error(path: &Path, operation: &'static str, source: io::Error) -> Error {
    Error::File { path: path.to_owned(), operation, source }
}
