//! `bygone import --sqlite`, `export --sqlite`.
//!
//! Owns: SQL databases from and to files of SQLite's, as a command. Promises: the file that is imported is only read,
//! and one that exists is never written over. May call: `open`, `past`, `output`, `progress`, `numbers`, `failure`.

use std::path::Path;
use std::time::Instant;

use bygone_sql::Sql;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::past::AsOf;
use crate::{numbers, open, progress};

/// The SQL database that is meant where none is named.
const NAME: &str = "main";

pub fn import(db: &Path, name: Option<&str>, path: &Path, replace: bool, out: &mut Output) -> Result<()> {
    let name = name.unwrap_or(NAME);
    // Before the database, so that a mistyped name leaves no empty database behind.
    path.metadata().map_err(|error| Failure::file(path, "read", error))?;
    let start = Instant::now();
    let db = open::or_create(db)?;
    let bar = progress::bytes(path.metadata().ok().map(|metadata| metadata.len()));
    let imported = bygone_sql::import_file(&db, name, path, replace, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let imported = imported.map_err(|error| match error {
        bygone_sql::Error::Exists { what } => Failure::No(format!(
            "{what} exists already; --replace replaces it, --db gives the new one another name"
        )),
        error => error.into(),
    })?;
    let bytes = u64::from(imported.pages) * u64::from(imported.page_bytes);
    match out.is_json() {
        true => out.json(&json!({
            "db": name,
            "pages": imported.pages,
            "page_bytes": imported.page_bytes,
            "seconds": start.elapsed().as_secs_f64(),
        })),
        false => out.line(format_args!(
            "{} imported as SQL database {name:?}, {}",
            numbers::bytes(bytes),
            numbers::duration(start.elapsed())
        )),
    }
}

pub fn export(db: &Path, name: Option<&str>, as_of: &AsOf, path: &Path, out: &mut Output) -> Result<()> {
    let name = name.unwrap_or(NAME);
    let db = open::reading(db)?;
    let connection = match as_of.asked(&db)? {
        None => db.sql(name)?,
        Some(asked) => db.sql_as_of(name, asked)?,
    };
    let bar = progress::steps(0, "pages");
    let mut pages = 0;
    let exported = bygone_sql::export_file(&connection, path, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
        pages = all;
    });
    bar.finish_and_clear();
    exported?;
    match out.is_json() {
        true => out.json(&json!({ "db": name, "pages": pages, "file": path.display().to_string() })),
        false => {
            let shown = as_of.shown();
            out.line(format_args!("SQL database {name:?}{shown} written to {}", path.display()))
        }
    }
}
