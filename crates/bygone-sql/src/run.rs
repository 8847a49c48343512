//! Running scripts in which the past has words of its own.
//!
//! Owns: [`run`] and [`execute`]. Promises: behind a statement as of a snapshot the connection reads what it read
//! before it, however the statement ended. May call: `statements`.

use bygone::SnapshotId;
use rusqlite::{Connection, Statement as Prepared};

use crate::error::{Error, Result};
use crate::statements::{Statement, statements};

/// Runs the statements of a script, and forgets their rows. Answers the snapshot that its last `COMMIT WITH SNAPSHOT`
/// declared.
///
/// Beside all that SQLite knows there are `COMMIT WITH SNAPSHOT ['name']`, and `SELECT AS OF snapshot ...`, where the
/// snapshot is a name, an id, or a time, as for `PRAGMA as_of`.
///
/// ```
/// # use bygone_sql::Sql;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let db = bygone::Db::open(directory.path().join("bank"))?;
/// let bank = db.sql("main")?;
/// let script = "BEGIN; CREATE TABLE t(x); INSERT INTO t VALUES (1); COMMIT WITH SNAPSHOT 'first'; DELETE FROM t;";
/// let first = bygone_sql::execute(&bank, script)?;
/// assert_eq!(db.snapshot_info("first")?.id, first.unwrap());
///
/// let mut rows = Vec::new();
/// bygone_sql::run(&bank, "SELECT AS OF first x FROM t; SELECT count(*) FROM t", |statement| {
///     let mut found = statement.raw_query();
///     while let Some(row) = found.next()? {
///         rows.push(row.get::<_, i64>(0)?);
///     }
///     Ok(())
/// })?;
/// assert_eq!(rows, [1, 0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The first statement that fails ends the script.
pub fn execute(connection: &Connection, script: &str) -> Result<Option<SnapshotId>> {
    run(connection, script, |statement| {
        let mut rows = statement.raw_query();
        while rows.next()?.is_some() {}
        Ok(())
    })
}

/// Runs the statements of a script: `visit` is called with each, prepared, and steps it as it likes. Answers as
/// [`execute`].
///
/// # Errors
/// The first statement that fails, or for which `visit` fails, ends the script.
pub fn run(
    connection: &Connection,
    script: &str,
    mut visit: impl FnMut(&mut Prepared<'_>) -> rusqlite::Result<()>,
) -> Result<Option<SnapshotId>> {
    let mut declared = None;
    bygone_sql_core::failure::take_last();
    for statement in statements(script) {
        match statement {
            Statement::Plain(sql) => {
                let mut prepared = connection.prepare(sql).map_err(Error::of)?;
                visit(&mut prepared).map_err(Error::of)?;
            }
            Statement::CommitWithSnapshot { name } => declared = Some(commit(connection, name)?),
            Statement::SelectAsOf { snapshot, sql } => as_of(connection, &snapshot, &sql, &mut visit)?,
            Statement::Wrong(reason) => return Err(Error::statement(reason)),
        }
    }
    Ok(declared)
}

fn commit(connection: &Connection, name: Option<String>) -> Result<SnapshotId> {
    if connection.is_autocommit() {
        return Err(Error::statement("COMMIT WITH SNAPSHOT ends a transaction, and none is open"));
    }
    connection.query_row("SELECT snapshot_now(?1)", [name], |_| Ok(())).map_err(Error::of)?;
    connection.execute_batch("COMMIT").map_err(Error::of)?;
    let id: i64 = connection.query_row("SELECT last_snapshot()", [], |row| row.get(0)).map_err(Error::of)?;
    Ok(SnapshotId::from(id as u64))
}

fn as_of(
    connection: &Connection,
    snapshot: &str,
    sql: &str,
    visit: &mut impl FnMut(&mut Prepared<'_>) -> rusqlite::Result<()>,
) -> Result<()> {
    if !connection.is_autocommit() {
        return Err(Error::statement(
            "SELECT AS OF cannot be used inside a transaction; ATTACH the past to join it with what is not committed",
        ));
    }
    // Pragmas do what they do when they are prepared; one that nobody knows has no columns.
    let enter = format!("PRAGMA bygone_enter = '{}'", snapshot.replace('\'', "''"));
    let entered = connection.prepare(&enter).map(|pragma| pragma.column_count() > 0).map_err(Error::of)?;
    if !entered {
        return Err(Error::statement("SELECT AS OF needs a main database on Bygone"));
    }
    let visited = connection.prepare(sql).and_then(|mut prepared| visit(&mut prepared));
    let left = connection.prepare("PRAGMA bygone_leave").map(|_| ());
    visited.and(left).map_err(Error::of)
}
