//! `.import`.
//!
//! Owns: rows from CSV into a table of SQL. Promises: all rows are in, or none. May call: `session`, `failure`.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params_from_iter};

use super::session::{Session, quoted_name};
use crate::failure::{Failure, Result};
use crate::{numbers, progress};

pub fn import(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    let [file, table] = words else { return Ok(()) };
    let path = Path::new(&**file);
    let failed = |error| Failure::file(path, "read", error);
    let input = File::open(path).map_err(failed)?;
    let bar = progress::bytes(input.metadata().ok().map(|metadata| metadata.len()));
    let mut reader = csv::Reader::from_reader(bar.wrap_read(input));
    let connection = session.connection.clone();
    connection.execute_batch("SAVEPOINT bygone_import")?;
    let loaded = insert(session, &mut reader, file, table);
    bar.finish_and_clear();
    let end = match loaded {
        Ok(_) => "RELEASE bygone_import",
        Err(_) => "ROLLBACK TO bygone_import; RELEASE bygone_import",
    };
    let ended = connection.execute_batch(end);
    let rows = loaded?;
    ended?;
    match session.chatty {
        true => session.line(numbers::counted(rows, "row")),
        false => Ok(()),
    }
}

fn insert(
    session: &Session<'_>,
    reader: &mut csv::Reader<impl std::io::Read>,
    file: &str,
    table: &str,
) -> Result<u64> {
    let header = reader.headers().map_err(|error| of_csv(error, file))?.clone();
    if header.is_empty() {
        return Err(Failure::usage(format!("{file} is empty: its first line names the columns")));
    }
    let connection = &session.connection;
    let columns: Vec<String> = header.iter().map(quoted_name).collect();
    let columns = columns.join(", ");
    let exists = connection
        .query_row("SELECT 1 FROM pragma_table_list WHERE name = ?1 COLLATE nocase", [table], |_| Ok(()))
        .optional()?
        .is_some();
    if !exists {
        // Columns without a type keep what they are given.
        connection.execute_batch(&format!("CREATE TABLE {}({columns})", quoted_name(table)))?;
    }
    let places = vec!["?"; header.len()].join(", ");
    let sql = format!("INSERT INTO {}({columns}) VALUES ({places})", quoted_name(table));
    let mut statement = connection.prepare(&sql)?;
    let mut rows = 0;
    for record in reader.records() {
        let record = record.map_err(|error| of_csv(error, file))?;
        let line = record.position().map_or(0, csv::Position::line);
        let values = record.iter().map(|cell| value(cell, exists));
        statement
            .execute(params_from_iter(values))
            .map_err(|error| Failure::from(error).at_line(file, line))?;
        rows += 1;
    }
    Ok(rows)
}

/// A cell as a value: a table that was there already makes of text what its columns say.
fn value(cell: &str, exists: bool) -> Value {
    if cell.is_empty() {
        return Value::Null;
    }
    if !exists {
        if let Ok(number) = cell.parse::<i64>()
            && number.to_string() == cell
        {
            return Value::Integer(number);
        }
        if let Ok(number) = cell.parse::<f64>()
            && (number.to_string() == cell || format!("{number:?}") == cell)
        {
            return Value::Real(number);
        }
    }
    Value::Text(cell.to_owned())
}

fn of_csv(error: csv::Error, file: &str) -> Failure {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Failure::file(Path::new(file), "read", error),
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.map_or(0, |position| position.line());
            Failure::usage(format!("{len} columns, where the first line has {expected_len}"))
                .at_line(file, line)
        }
        csv::ErrorKind::Utf8 { pos, .. } => {
            Failure::usage("this is not UTF-8").at_line(file, pos.map_or(0, |position| position.line()))
        }
        other => Failure::usage(format!("{file}: {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_back_is_a_number() {
        assert_eq!(value("-12", false), Value::Integer(-12));
        assert_eq!(value("1.5", false), Value::Real(1.5));
        for text in ["007", "1.50", "+1", "1e5", "x", "-0"] {
            assert!(matches!(value(text, false), Value::Text(_) | Value::Real(_)), "{text}");
        }
        assert_eq!(value("007", false), Value::Text("007".to_owned()));
        assert_eq!(value("1", true), Value::Text("1".to_owned()));
        assert_eq!(value("", true), Value::Null);
    }
}
