//! `.tables`, `.indexes`, `.schema`, `.databases`, `.snapshots`.
//!
//! Owns: what is listed. Promises: what the session reads is listed, now or as of a snapshot; snapshots are all that
//! are declared. May call: `session`.

use std::borrow::Cow;

use rusqlite::types::Value;

use super::session::Session;
use crate::failure::{Failure, Result};

/// The tables of the database that hold SQL databases have names that begin so.
const TABLE_PREFIX: &str = "sql/";

pub fn tables(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    session.query(
        "SELECT name, type FROM sqlite_schema \
         WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name LIKE ?1 ORDER BY name",
        [words.first().map_or("%", |word| word)],
    )
}

pub fn indexes(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    session.query(
        "SELECT name, tbl_name AS \"table\" FROM sqlite_schema \
         WHERE type = 'index' AND tbl_name LIKE ?1 ORDER BY tbl_name, name",
        [words.first().map_or("%", |word| word)],
    )
}

pub fn schema(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    let name = words.first().map_or("%", |word| word);
    let statements: Vec<String> = session
        .connection
        .prepare(
            "SELECT sql FROM sqlite_schema WHERE sql NOT NULL AND (name LIKE ?1 OR tbl_name LIKE ?1) \
             ORDER BY tbl_name, type = 'trigger', type = 'index', rowid",
        )?
        .query_map([name], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    if statements.is_empty() && !words.is_empty() {
        return Err(Failure::No(format!("there is no table, index or view {name:?}")));
    }
    statements.iter().try_for_each(|statement| session.line(format_args!("{statement};")))
}

pub fn databases(session: &mut Session<'_>, _words: &[Cow<'_, str>]) -> Result<()> {
    let attached: Vec<(String, String)> = session
        .connection
        .prepare("SELECT name, file FROM pragma_database_list WHERE name <> 'temp' ORDER BY seq")?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default())))?
        .collect::<rusqlite::Result<_>>()?;
    let row = |what: &str, name: &str, path: &str| vec![text(what), text(name), text(path)];
    let tables = session.db.tables()?;
    let here = tables.iter().filter_map(|name| name.strip_prefix(TABLE_PREFIX));
    let here = here.map(|name| row("in this directory", name, ""));
    let open = attached.iter().map(|(schema, path)| row("open", schema, path));
    let rows: Vec<Vec<Value>> = here.chain(open).collect();
    session.rows(&["what", "name", "path"], &rows)
}

pub fn snapshots(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    match words.first().map(|word| &word[..]) {
        None => session.query("SELECT id, name, time FROM bygone_snapshots ORDER BY id", []),
        Some("sizes") => session.query("SELECT id, name, time, bytes FROM bygone_snapshots ORDER BY id", []),
        Some(_) => Err(Failure::usage("write .snapshots, or .snapshots sizes")),
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}
