//! `.dump`.
//!
//! Owns: the statements that make a database again. Promises: run on an empty database, by this shell or another of
//! SQLite's, they make one with the same schema and rows; all is of one view. May call: `session`.

use std::borrow::Cow;

use super::session::{Session, quoted, quoted_name};
use crate::failure::{Failure, Result};

/// One row of the schema.
struct Item {
    kind: String,
    name: String,
    sql: Option<String>,
}

pub fn dump(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    let connection = session.connection.clone();
    // One view for all of it; in a transaction that is open already there is one.
    connection.execute_batch("SAVEPOINT bygone_dump")?;
    let dumped = dump_view(session, words.first().map(|word| &word[..]));
    let ended = connection.execute_batch("RELEASE bygone_dump");
    dumped?;
    Ok(ended?)
}

fn dump_view(session: &mut Session<'_>, only: Option<&str>) -> Result<()> {
    let connection = session.connection.clone();
    let items: Vec<Item> = connection
        .prepare(
            "SELECT type, name, sql FROM sqlite_schema WHERE ?1 IS NULL OR tbl_name = ?1 COLLATE nocase \
             ORDER BY type <> 'table', name = 'sqlite_sequence', rowid",
        )?
        .query_map([only], |row| Ok(Item { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? }))?
        .collect::<rusqlite::Result<_>>()?;
    if let (Some(name), true) = (only, items.is_empty()) {
        return Err(Failure::No(format!("there is no table {name:?}")));
    }
    session.line("PRAGMA foreign_keys=OFF;")?;
    session.line("BEGIN TRANSACTION;")?;
    let mut wrote_schema = false;
    for item in &items {
        let Some(sql) = &item.sql else { continue };
        if item.kind != "table" {
            session.line(format_args!("{sql};"))?;
        } else if sql.get(..20).is_some_and(|head| head.eq_ignore_ascii_case("CREATE VIRTUAL TABLE")) {
            // Made with its row alone: the tables that it keeps its rows in come as themselves.
            if !wrote_schema {
                session.line("PRAGMA writable_schema=ON;")?;
                wrote_schema = true;
            }
            let (name, sql) = (quoted(&item.name), quoted(sql));
            session.line(format_args!(
                "INSERT INTO sqlite_schema(type,name,tbl_name,rootpage,sql) VALUES('table',{name},{name},0,{sql});"
            ))?;
        } else {
            match &item.name[..] {
                "sqlite_sequence" => session.line("DELETE FROM sqlite_sequence;")?,
                "sqlite_stat1" => session.line("ANALYZE sqlite_schema;")?,
                name if name.starts_with("sqlite_") => continue,
                _ => session.line(format_args!("{sql};"))?,
            }
            dump_rows(session, &item.name)?;
        }
    }
    if wrote_schema {
        session.line("PRAGMA writable_schema=OFF;")?;
    }
    session.line("COMMIT;")
}

fn dump_rows(session: &mut Session<'_>, table: &str) -> Result<()> {
    let connection = session.connection.clone();
    // Those that are computed cannot be inserted.
    let columns: Vec<String> = connection
        .prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0 ORDER BY cid")?
        .query_map([table], |row| row.get::<_, String>(0))?
        .map(|name| name.map(|name| quoted_name(&name)))
        .collect::<rusqlite::Result<_>>()?;
    let all: i64 =
        connection.query_row("SELECT count(*) FROM pragma_table_xinfo(?1)", [table], |row| row.get(0))?;
    let named = match all == columns.len() as i64 {
        true => String::new(),
        false => format!("({})", columns.join(",")),
    };
    let values: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
    let name = quoted_name(table);
    let sql = format!("SELECT {} FROM {name}", values.join("||','||"));
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values = row.get_ref(0)?.as_bytes().map_err(rusqlite::Error::from)?;
        let values = String::from_utf8_lossy(values);
        session.line(format_args!("INSERT INTO {name}{named} VALUES({values});"))?;
    }
    Ok(())
}
