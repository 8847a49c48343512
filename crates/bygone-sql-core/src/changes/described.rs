//! Tables as of some moment, and what is asked of them.
//!
//! Owns: how a row, and what names it, are written in SQL. Promises: two rows are written alike only if they have the
//! same columns and values. May call: `statement`.

use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, sqlite3_value};
use crate::statement::{Connection, quoted};

/// A table as it was.
pub(super) struct Described {
    /// With its schema, as SQL has it.
    name: String,
    columns: Vec<String>,
    /// What names a row: the columns of the primary key, or the word for its rowid.
    key: Vec<String>,
    /// The word for the rowid; none if the table has no rowids.
    rowid: Option<&'static str>,
    /// The statement that made it.
    sql: String,
}

impl Described {
    /// The table in this schema; `None` if there was none.
    ///
    /// # Errors
    /// If it was no table of rows.
    pub fn find(connection: &Connection, schema: &str, table: &str) -> Result<Option<Described>> {
        let (name, in_schema) = (text(table), text(schema));
        let mut found = connection.prepare(&format!(
            "SELECT type, wr, name FROM pragma_table_list({name}) WHERE schema = {in_schema} COLLATE NOCASE"
        ))?;
        if !found.step()? {
            return Ok(None);
        }
        let kind = found.text(0);
        if kind != "table" && kind != "shadow" {
            let text = format!("{table:?} is a {kind}, and only tables have rows of their own");
            return Err(Failure::new(SQLITE_ERROR, text));
        }
        let without_rowid = found.number(1) != 0;
        let exact = text(&found.text(2));
        let mut columns = Vec::new();
        let mut key = Vec::new();
        let mut listed = connection.prepare(&format!(
            "SELECT name, pk FROM pragma_table_xinfo({exact}, {in_schema}) WHERE hidden <> 1"
        ))?;
        while listed.step()? {
            let column = listed.text(0);
            if listed.number(1) > 0 {
                key.push((listed.number(1), quoted(&column)));
            }
            columns.push(column);
        }
        let is_free = |word: &&str| !columns.iter().any(|column| column.eq_ignore_ascii_case(word));
        let rowid = ["rowid", "_rowid_", "oid"].into_iter().find(is_free).filter(|_| !without_rowid);
        key.sort();
        let mut key: Vec<String> = key.into_iter().map(|(_, column)| column).collect();
        if let (Some(rowid), true) = (rowid, key.is_empty()) {
            key.push(rowid.to_owned());
        }
        let mut made = connection.prepare(&format!(
            "SELECT sql FROM {}.sqlite_schema WHERE type = 'table' AND name = {exact}",
            quoted(schema)
        ))?;
        let sql = if made.step()? { made.text(0) } else { String::new() };
        let name = format!("{}.{}", quoted(schema), quoted(table));
        Ok(Some(Described { name, columns, key, rowid, sql }))
    }

    /// A row as a JSON object; what is a BLOB is an object itself, with its bytes in hexadecimal.
    fn row(&self, alias: &str) -> String {
        let mut sql = "'{'".to_owned();
        for (column, index) in self.columns.iter().zip(0..) {
            let comma = if index == 0 { "" } else { "," };
            sql.push_str(&format!(" || {} || {}", text(&format!("{comma}{}:", json(column))), {
                value(&format!("{alias}.{}", quoted(column)))
            }));
        }
        sql.push_str(" || '}'");
        sql
    }

    /// What names a row: one value, or a JSON array.
    fn key(&self, alias: &str) -> String {
        match &self.key[..] {
            [only] => format!("{alias}.{only}"),
            several => {
                let values: Vec<String> =
                    several.iter().map(|column| value(&format!("{alias}.{column}"))).collect();
                format!("'[' || {} || ']'", values.join(" || ',' || "))
            }
        }
    }

    /// The row that a key names, with one column.
    pub fn row_of(&self, key: &str) -> String {
        let wanted: Vec<String> = match &self.key[..] {
            [only] => vec![format!("r.{only} IS {key}")],
            several => (several.iter().zip(0..))
                .map(|(column, index)| format!("r.{column} IS json_extract({key}, '$[{index}]')"))
                .collect(),
        };
        format!("SELECT {} AS state FROM {} AS r WHERE {}", self.row("r"), self.name, wanted.join(" AND "))
    }
}

/// The differences between a table as of two moments: change, key, before, after.
pub(super) fn differences(before: Option<&Described>, after: Option<&Described>) -> Option<String> {
    let deleted = |side: &Described, unless: &str| {
        format!("SELECT 'delete', {}, {}, NULL FROM {} AS a{unless}", side.key("a"), side.row("a"), side.name)
    };
    let inserted = |side: &Described, unless: &str| {
        format!("SELECT 'insert', {}, NULL, {} FROM {} AS b{unless}", side.key("b"), side.row("b"), side.name)
    };
    let (a, b) = match (before, after) {
        (None, None) => return None,
        (Some(a), None) => return Some(deleted(a, "")),
        (None, Some(b)) => return Some(inserted(b, "")),
        (Some(a), Some(b)) => (a, b),
    };
    if a.key != b.key || a.rowid.is_none() != b.rowid.is_none() {
        return Some(format!("{} UNION ALL {}", deleted(a, ""), inserted(b, "")));
    }
    // Values that are different to one of two collations are so to this one.
    let collation = if a.sql == b.sql { "" } else { " COLLATE BINARY" };
    let mut same_key: Vec<String> =
        a.key.iter().map(|column| format!("a.{column} IS b.{column}{collation}")).collect();
    if let (Some(of_a), Some(of_b)) = (a.rowid, b.rowid) {
        // Of the keys with a NULL in them there may be many.
        let whole: Vec<String> = a.key.iter().map(|column| format!("a.{column} IS NOT NULL")).collect();
        same_key.push(format!("({} OR a.{of_a} = b.{of_b})", whole.join(" AND ")));
    }
    let same_key = same_key.join(" AND ");
    let changed = if a.columns == b.columns {
        let same = a.columns.iter().map(|column| {
            let column = quoted(column);
            format!("a.{column} IS b.{column} COLLATE BINARY AND typeof(a.{column}) = typeof(b.{column})")
        });
        format!("NOT ({})", same.collect::<Vec<_>>().join(" AND "))
    } else {
        "1".to_owned()
    };
    Some(format!(
        "{} UNION ALL SELECT 'update', {}, {}, {} FROM {} AS a JOIN {} AS b ON {same_key} WHERE {changed} UNION ALL {}",
        deleted(a, &format!(" WHERE NOT EXISTS (SELECT 1 FROM {} AS b WHERE {same_key})", b.name)),
        b.key("b"),
        a.row("a"),
        b.row("b"),
        a.name,
        b.name,
        inserted(b, &format!(" WHERE NOT EXISTS (SELECT 1 FROM {} AS a WHERE {same_key})", a.name)),
    ))
}

/// A value in JSON, of which no two are alike.
fn value(of: &str) -> String {
    // What JSON says of a number may be too short to tell it from its neighbours.
    format!(
        "CASE typeof({of}) WHEN 'blob' THEN '{{\"blob\":\"' || hex({of}) || '\"}}'
         WHEN 'real' THEN CASE WHEN CAST(json_quote({of}) AS REAL) = {of} THEN json_quote({of})
                          ELSE printf('%!.17g', {of}) END
         ELSE json_quote({of}) END"
    )
}

/// A text in SQL.
pub(super) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A text in JSON.
fn json(text: &str) -> String {
    let mut out = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// A value as SQL has it.
pub(super) fn literal(connection: &Connection, value: *mut sqlite3_value) -> Result<String> {
    let mut quote = connection.prepare("SELECT quote(?1)")?;
    quote.bind_value(1, value)?;
    quote.step()?;
    Ok(quote.text(0))
}
