//! What changed, row by row: `bygone_diff` and `bygone_history`.
//!
//! Owns: both names, each a table-valued function that gives rows as JSON, and a module of virtual tables that have the
//! columns of the table. Promises: what they read is read on connections of their own. May call: `vtab`, `functions`,
//! and its parts: `diff` and `history` (the tables), `columns` (what they show), `compare` (the rows that differ),
//! `candidates` (those that may, told by pages), `described` (a table as it was).

mod candidates;
mod columns;
mod compare;
mod described;
mod diff;
mod history;

use std::ffi::c_int;

use crate::api::text;
use crate::directory::Handle;
use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, SQLITE_OK, sqlite3, sqlite3_value};
use crate::functions::wanted_file;
use crate::host::Host;
use crate::vtab::{self, Made};

/// Makes the tables known to a connection.
///
/// # Safety
/// The connection is open.
pub(crate) unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    // SAFETY: as promised.
    unsafe {
        match vtab::register::<diff::Diff>(host, connection, c"bygone_diff", &()) {
            SQLITE_OK => vtab::register::<history::History>(host, connection, c"bygone_history", &()),
            code => code,
        }
    }
}

/// The directory and the table of the SQL database that is meant: of this schema, or the session's first.
fn wanted(host: &Host, connection: *mut sqlite3, schema: Option<String>) -> Result<(Handle, String)> {
    let file = wanted_file(host, connection, schema)?;
    // SAFETY: the files of a connection that is in a call are borrowed by nobody else; this borrow ends here.
    let file = unsafe { &*file };
    Ok((file.directory.clone(), file.database.table.clone()))
}

/// # Safety
/// The value is one of a call of this thread's.
unsafe fn value_text(host: &Host, value: *mut sqlite3_value) -> String {
    // SAFETY: as promised.
    unsafe { text((host.api.value_text)(value).cast()) }.unwrap_or_default()
}

fn refused(usage: &str) -> Failure {
    Failure::new(SQLITE_ERROR, usage)
}

/// Says what is wrong where the key of a table has a collation of the application's, which other connections than its
/// own do not know. SQLite names it, or only says that it finds no way to the rows;
/// then it is `collation`.
fn of_key(table: &str, collation: Option<String>, failure: Failure) -> Failure {
    let named = failure.text.split_once("no such collation sequence: ").map(|(_, name)| name.to_owned());
    let is_lost = failure.text.contains("no query solution");
    match named.or_else(|| collation.filter(|_| is_lost)) {
        Some(collation) => {
            let text = format!(
                "the key of table {table:?} has the collation {collation}, which only the application knows: its rows \
                 cannot be told apart"
            );
            Failure::new(failure.code, text)
        }
        None => failure,
    }
}

/// The arguments of a table that is made; `None` for the one that is there by itself.
///
/// # Errors
/// If it is made in another database than the temporary one: what is in a database would fail to be used, and to be
/// dropped, where this code is not there, or the snapshots are not any more.
fn made_in_temp<'m>(made: &'m Made, usage: &str) -> Result<Option<&'m [String]>> {
    let Some(arguments) = &made.arguments else { return Ok(None) };
    if !made.schema.eq_ignore_ascii_case("temp") {
        return Err(Failure::new(
            SQLITE_ERROR,
            format!("such a table is temporary: write CREATE VIRTUAL TABLE temp.NAME USING {usage}"),
        ));
    }
    Ok(Some(arguments))
}
