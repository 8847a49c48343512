//! Tables as of some moment, and what is asked of them.
//!
//! Owns: how a row, and what names it, are written in SQL. Promises: two rows are written alike only if they have the
//! same columns and values. May call: `statement`.

use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, sqlite3_value};
use crate::statement::{Connection, MAIN, quoted};

/// By what a rowid is known, where no column has that name.
pub(super) const ROWID_WORDS: [&str; 3] = ["rowid", "_rowid_", "oid"];

/// A column as it was.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub name: String,
    /// The type as it was declared.
    pub kind: String,
    pub collation: String,
}

/// A table of a connection's main database, as it was.
#[derive(Debug)]
pub(super) struct Described {
    /// In quotes.
    name: String,
    pub columns: Vec<Column>,
    /// What names a row, in quotes where need be: the columns of the primary key, or the word for its rowid.
    pub key: Vec<String>,
    /// Whether the key is the rowid, which is none of the columns.
    pub has_plain_key: bool,
    /// The word for the rowid; none if the table has no rowids.
    pub rowid: Option<&'static str>,
    /// The statement that made it.
    pub sql: String,
    pub root: u32,
}

impl Described {
    /// The table; `None` if there was none.
    ///
    /// # Errors
    /// If it was no table of rows, or one whose rows nothing tells apart.
    pub fn find(connection: &Connection, table: &str) -> Result<Option<Described>> {
        let mut found = connection.prepare(&format!(
            "SELECT type, wr, name FROM pragma_table_list({}) WHERE schema = 'main'",
            text(table)
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
        let exact = found.text(2);
        let mut columns = Vec::new();
        let mut key = Vec::new();
        let mut listed = connection.prepare(&format!(
            "SELECT name, pk, type FROM pragma_table_xinfo({}, 'main') WHERE hidden <> 1",
            text(&exact)
        ))?;
        while listed.step()? {
            let name = listed.text(0);
            if listed.number(1) > 0 {
                key.push((listed.number(1), quoted(&name)));
            }
            let collation = connection.collation(MAIN, &exact, &name);
            columns.push(Column { kind: listed.text(2), collation, name });
        }
        let is_free = |word: &&str| !columns.iter().any(|column| column.name.eq_ignore_ascii_case(word));
        let rowid = ROWID_WORDS.into_iter().find(is_free).filter(|_| !without_rowid);
        key.sort();
        let mut key: Vec<String> = key.into_iter().map(|(_, column)| column).collect();
        let has_plain_key = key.is_empty();
        if has_plain_key {
            let text = format!("the rows of {table:?} have neither a key, nor a rowid that could be named");
            key.push(rowid.ok_or_else(|| Failure::new(SQLITE_ERROR, text))?.to_owned());
        }
        let mut made = connection.prepare(&format!(
            "SELECT sql, rootpage FROM sqlite_schema WHERE type = 'table' AND name = {}",
            text(&exact)
        ))?;
        let (sql, root) = match made.step()? {
            true => (made.text(0), made.number(1)),
            // The schema itself.
            false => (String::new(), 1),
        };
        let root = u32::try_from(root).unwrap_or(0);
        let name = format!("main.{}", quoted(&exact));
        Ok(Some(Described { name, columns, key, has_plain_key, rowid, sql, root }))
    }

    /// The names of the key's columns, not in quotes.
    pub fn key_names(&self) -> Vec<&str> {
        let of_column = |column: &&Column| self.key.contains(&quoted(&column.name));
        match self.has_plain_key {
            true => self.key.iter().map(String::as_str).collect(),
            false => {
                let mut names: Vec<&str> =
                    self.columns.iter().filter(of_column).map(|column| &column.name[..]).collect();
                let place = |name: &&str| self.key.iter().position(|key| *key == quoted(name));
                names.sort_by_key(place);
                names
            }
        }
    }

    /// Whether a row of one has the same kind of key as one of the other.
    pub fn has_key_of(&self, other: &Described) -> bool {
        let names = self.key.iter().zip(&other.key);
        self.key.len() == other.key.len()
            && self.has_plain_key == other.has_plain_key
            && self.rowid.is_none() == other.rowid.is_none()
            && names.into_iter().all(|(a, b)| self.has_plain_key || a.eq_ignore_ascii_case(b))
    }

    /// The collation of a column of the key that is none of SQLite's own.
    pub fn key_collation(&self) -> Option<String> {
        let own =
            |column: &&Column| !["BINARY", "NOCASE", "RTRIM"].contains(&&*column.collation.to_uppercase());
        let of_key = |column: &&Column| self.key.contains(&quoted(&column.name));
        self.columns.iter().filter(of_key).find(own).map(|column| column.collation.clone())
    }

    /// Where a column of this name is.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// What is selected of a row to show it as JSON: what names it, and the row.
    pub fn shown_as_json(&self) -> String {
        format!("{}, {}", self.json_key(), self.json_row())
    }

    /// What is selected of a row to show it by its columns.
    pub fn shown_as_columns(&self) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|column| format!("r.{}", quoted(&column.name))).collect();
        columns.join(", ")
    }

    /// Selects rows: what is shown, then the key, then the rowid if there are any.
    pub fn select(&self, shown: &str, condition: &str) -> String {
        let mut selected = vec![shown.to_owned()];
        selected.extend(self.key.iter().map(|key| format!("r.{key}")));
        selected.extend(self.rowid.map(|rowid| format!("r.{rowid}")));
        format!("SELECT {} FROM {} AS r{condition}", selected.join(", "), self.name)
    }

    /// The row at a place: the rowid, or the key, as parameters from 1 on.
    pub fn at_place(&self) -> String {
        match self.rowid {
            Some(rowid) => format!(" WHERE r.{rowid} = ?1"),
            None => {
                let same: Vec<String> =
                    (self.key.iter().zip(1..)).map(|(key, number)| format!("r.{key} IS ?{number}")).collect();
                format!(" WHERE {}", same.join(" AND "))
            }
        }
    }

    /// The row that has a key, of a table as of another moment: its key, then its rowid if there are any, as parameters
    /// from 1 on.
    pub fn of_key(&self, other: &Described) -> String {
        // Values that are different to one of two collations count as different.
        let is_same_table = self.sql == other.sql;
        let mut same = Vec::new();
        for (key, number) in self.key.iter().zip(1..) {
            same.push(format!("r.{key} IS ?{number}"));
            if !is_same_table {
                same.push(format!(
                    "r.{key} IS ?{number} COLLATE BINARY AND typeof(r.{key}) = typeof(?{number})"
                ));
            }
        }
        if let (Some(rowid), false) = (self.rowid, self.has_plain_key) {
            // Of the keys with a NULL in them there may be many.
            let whole: Vec<String> =
                (1..=self.key.len()).map(|number| format!("?{number} IS NOT NULL")).collect();
            same.push(format!("({} OR r.{rowid} = ?{})", whole.join(" AND "), self.key.len() + 1));
        }
        format!(" WHERE {}", same.join(" AND "))
    }

    /// A row as a JSON object; what is a BLOB is an object itself, with its bytes in hexadecimal.
    fn json_row(&self) -> String {
        let mut sql = "'{'".to_owned();
        for (column, index) in self.columns.iter().zip(0..) {
            let comma = if index == 0 { "" } else { "," };
            sql.push_str(&format!(" || {} || {}", text(&format!("{comma}{}:", json(&column.name))), {
                value(&format!("r.{}", quoted(&column.name)))
            }));
        }
        sql.push_str(" || '}'");
        sql
    }

    /// What names a row: one value, or a JSON array.
    fn json_key(&self) -> String {
        match &self.key[..] {
            [only] => format!("r.{only}"),
            several => {
                let values: Vec<String> =
                    several.iter().map(|column| value(&format!("r.{column}"))).collect();
                format!("'[' || {} || ']'", values.join(" || ',' || "))
            }
        }
    }

    /// The row that a key names, as JSON, with the column `state`.
    pub fn json_of(&self, key: &str) -> String {
        let wanted: Vec<String> = match &self.key[..] {
            [only] => vec![format!("r.{only} IS {key}")],
            several => (several.iter().zip(0..))
                .map(|(column, index)| format!("r.{column} IS json_extract({key}, '$[{index}]')"))
                .collect(),
        };
        format!("SELECT {} AS state FROM {} AS r WHERE {}", self.json_row(), self.name, wanted.join(" AND "))
    }

    /// The row that a key names, with these columns; NULL stands for one that is not there.
    pub fn columns_of(&self, names: &[String], key: &[String]) -> String {
        let is_rowid = |name: &str| self.has_plain_key && ROWID_WORDS.contains(&name);
        let value = |name: &String| match self.position(name) {
            Some(_) => format!("r.{0} AS {0}", quoted(name)),
            None if is_rowid(name) => format!("r.{} AS {}", self.key[0], quoted(name)),
            None => format!("NULL AS {}", quoted(name)),
        };
        let selected: Vec<String> = names.iter().map(value).collect();
        let wanted: Vec<String> =
            self.key.iter().zip(key).map(|(column, key)| format!("r.{column} IS {key}")).collect();
        format!("SELECT {} FROM {} AS r WHERE {}", selected.join(", "), self.name, wanted.join(" AND "))
    }
}

/// A value in JSON, of which no two are alike.
fn value(of: &str) -> String {
    // What JSON says of a number may be too short to tell it from its neighbours. The column may have a collation of
    // the application's, which nobody knows here.
    format!(
        "CASE typeof({of}) WHEN 'blob' THEN '{{\"blob\":\"' || hex({of}) || '\"}}'
         WHEN 'real' THEN CASE WHEN CAST(json_quote({of}) AS REAL) = {of} COLLATE BINARY THEN json_quote({of})
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
