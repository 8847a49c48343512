//! Engines with SQL.
//!
//! Owns: what suite `sql` asks of an engine, and which engines can answer. Promises: connections of all engines that
//! have connections are of the same SQLite, and set up alike.

use std::path::Path;

use anyhow::{Result, bail};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection};

/// When a commit is durable, in SQLite's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronous {
    /// The latest may be lost in a power cut.
    Normal,
    /// When it returns.
    Full,
}

/// How to open an engine.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Of the cache that each connection has, SQLite's own.
    pub connection_cache_kib: usize,
    /// Of the cache of the whole database, for engines that have one in place of the operating system's.
    pub cache_bytes: usize,
}

/// SQLite, on whatever it has its pages.
pub trait Sql: Send + Sync {
    fn connect(&self, synchronous: Synchronous) -> Result<Connection>;

    /// Does all work that commits have put off.
    fn settle(&self) -> Result<()>;

    /// For engines that keep their past.
    fn past(&self) -> Option<&dyn SqlPast> {
        None
    }
}

/// What only engines have that keep their past.
pub trait SqlPast {
    /// Declares a snapshot of the latest commit; answers its id.
    fn declare(&self) -> Result<u64>;

    /// A connection that reads the state of a snapshot.
    fn as_of(&self, snapshot: u64) -> Result<Connection>;
}

/// Opens an engine with connections over an empty or its own directory; `None` if it has none.
pub fn open(name: &str, dir: &Path, opening: Opening) -> Result<Option<Box<dyn Sql>>> {
    std::fs::create_dir_all(dir)?;
    Ok(Some(match name {
        "bygone" => Box::new(super::bygone_sql::Bygone::open(dir, opening)?),
        "sqlite" => Box::new(super::stock_sql::Stock::open(dir, opening)?),
        _ => return Ok(None),
    }))
}

/// Whoever takes SQL as text.
pub trait Script {
    /// Runs statements; answers their rows, a line each, with a bar between columns.
    fn run(&mut self, sql: &str) -> Result<Vec<String>>;
}

/// An engine that takes SQL as text, over an empty or its own directory.
pub fn open_script(name: &str, dir: &Path, opening: Opening) -> Result<Box<dyn Script>> {
    if let Some(engine) = open(name, dir, opening)? {
        let connection = engine.connect(Synchronous::Normal)?;
        return Ok(Box::new(OnConnection { connection, _engine: Some(engine) }));
    }
    match name {
        "bdbsql" => Ok(Box::new(super::bdbsql::Shell::open(dir, opening)?)),
        _ => bail!("no engine {name}"),
    }
}

/// SQLite with its database in memory: what it answers is what all should answer.
pub fn reference() -> Result<OnConnection> {
    Ok(OnConnection { connection: Connection::open_in_memory()?, _engine: None })
}

/// SQL as text, on a connection.
pub struct OnConnection {
    // It goes before the engine.
    pub connection: Connection,
    _engine: Option<Box<dyn Sql>>,
}

impl Script for OnConnection {
    fn run(&mut self, sql: &str) -> Result<Vec<String>> {
        lines(&self.connection, sql)
    }
}

/// Runs statements on a connection; answers as [`Script::run`].
pub fn lines(connection: &Connection, sql: &str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut statements = Batch::new(connection, sql);
    while let Some(mut statement) = statements.next()? {
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            let mut line = String::new();
            for column in 0..columns {
                if column > 0 {
                    line.push('|');
                }
                push(&mut line, row.get_ref(column)?)?;
            }
            lines.push(line);
        }
    }
    Ok(lines)
}

fn push(line: &mut String, value: ValueRef<'_>) -> Result<()> {
    match value {
        ValueRef::Null => {}
        ValueRef::Integer(number) => line.push_str(&number.to_string()),
        // To the last bit.
        ValueRef::Real(number) => line.push_str(&format!("{number:?}")),
        ValueRef::Text(text) => line.push_str(std::str::from_utf8(text)?),
        ValueRef::Blob(_) => bail!("a blob has no text"),
    }
    Ok(())
}

/// What all connections to files have in common.
pub(super) fn set_up(connection: &Connection, opening: Opening, synchronous: Synchronous) -> Result<()> {
    /// Writers only wait for each other here, and for the end of a checkpoint.
    const BUSY: std::time::Duration = std::time::Duration::from_secs(60);
    connection.busy_timeout(BUSY)?;
    let synchronous = match synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    let kib = opening.connection_cache_kib;
    connection.execute_batch(&format!("PRAGMA cache_size=-{kib}; PRAGMA synchronous={synchronous}"))?;
    // Statements are prepared once, as applications do.
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}
