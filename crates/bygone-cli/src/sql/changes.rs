//! `.diff`, `.history`.
//!
//! Owns: showing what changed, with the columns of the table. Promises: nothing is left of the tables that it makes for
//! that. May call: `session`.

use std::borrow::Cow;

use rusqlite::params_from_iter;
use rusqlite::types::Value;

use super::session::{Session, quoted, quoted_name};
use crate::failure::{Failure, Result};

/// The temporary table that is made to be shown.
const TABLE: &str = "temp.bygone_shown";

pub fn diff(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    let [table, before, rest @ ..] = words else { return Ok(()) };
    let after = rest.first().map_or("now", |after| after);
    let made = format!("bygone_diff({}, {}, {})", quoted(table), quoted(before), quoted(after));
    show(session, &made, |_| Ok((String::new(), Vec::new())))
}

pub fn history(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    let [table, key @ ..] = words else { return Ok(()) };
    show(session, &format!("bygone_history({})", quoted(table)), |session| {
        let mut columns =
            session.connection.prepare("SELECT name FROM pragma_table_xinfo('bygone_shown', 'temp')")?;
        let columns: Vec<String> =
            columns.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        // Behind the snapshot and what happened.
        let columns = columns.get(2..).unwrap_or_default();
        if key.len() > columns.len() {
            return Err(Failure::usage(format!("{table:?} has no key of {} values", key.len())));
        }
        let conditions: Vec<String> =
            columns.iter().zip(key).map(|(column, _)| format!("{} = ?", quoted_name(column))).collect();
        let condition =
            if key.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        Ok((condition, key.iter().map(|word| value(word)).collect()))
    })
}

/// A word as a value: a column that holds text makes text of a number again.
fn value(word: &str) -> Value {
    match word.parse::<i64>() {
        Ok(number) if number.to_string() == word => Value::Integer(number),
        _ => Value::Text(word.to_owned()),
    }
}

/// Makes the table, and shows its rows under a condition.
fn show(
    session: &mut Session<'_>,
    made: &str,
    condition: impl FnOnce(&Session<'_>) -> Result<(String, Vec<Value>)>,
) -> Result<()> {
    let drop = format!("DROP TABLE IF EXISTS {TABLE}");
    bygone_sql::execute(&session.connection, &format!("{drop}; CREATE VIRTUAL TABLE {TABLE} USING {made}"))?;
    let shown = condition(session).and_then(|(condition, values)| {
        session.query(&format!("SELECT * FROM {TABLE}{condition}"), params_from_iter(values))
    });
    let dropped = bygone_sql::execute(&session.connection, &drop);
    shown?;
    dropped?;
    Ok(())
}
