//! How rows look.
//!
//! Owns: [`Mode`] and the writing of rows in each. Promises: memory stays bounded however many rows there are; what
//! programs read (CSV, JSON) is lossless but for what their format cannot say. May call: `text`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, Write};

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{Cell, CellAlignment, Table};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Params, Rows, Statement};
use serde_json::{Map, Number, Value as Json};

use crate::text;

/// How rows look.
pub struct Settings {
    pub mode: Mode,
    /// Whether the names of the columns are shown.
    pub header: bool,
    /// What stands for NULL; `None` leaves it to the mode.
    pub null: Option<String>,
}

/// How rows are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// In a frame, as wide as its cells
    Table,
    /// A table of Markdown's
    Markdown,
    /// Comma-separated values
    Csv,
    /// Values between tabs
    Tabs,
    /// Values between "|"
    List,
    /// One value a line, with its column's name
    Line,
    /// One array of objects
    Json,
    /// One object a line
    Jsonl,
}

/// A longer answer is several tables, so that memory stays bounded.
const TABLE_ROWS: usize = 5000;

/// Why showing rows ended early.
#[derive(Debug)]
pub enum Stop {
    Sqlite(rusqlite::Error),
    Output(io::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Stop {
        Stop::Sqlite(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Output(error)
    }
}

/// Runs a statement that has no parameters, and shows its rows.
pub fn statement(
    statement: &mut Statement<'_>,
    settings: &Settings,
    out: &mut dyn Write,
) -> Result<(), Stop> {
    let names = names_of(statement);
    all(names, statement.raw_query(), settings, out)
}

/// Runs a query, and shows its rows.
pub fn query(
    statement: &mut Statement<'_>,
    params: impl Params,
    settings: &Settings,
    out: &mut dyn Write,
) -> Result<(), Stop> {
    let names = names_of(statement);
    all(names, statement.query(params)?, settings, out)
}

fn names_of(statement: &Statement<'_>) -> Vec<String> {
    statement.column_names().map(str::to_owned).collect()
}

fn all(names: Vec<String>, mut rows: Rows<'_>, settings: &Settings, out: &mut dyn Write) -> Result<(), Stop> {
    if names.is_empty() {
        // What answers no rows is run for what it does.
        while rows.next()?.is_some() {}
        return Ok(());
    }
    let count = names.len();
    let mut printer = Printer::new(names, settings);
    while let Some(row) = rows.next()? {
        let cells = (0..count).map(|index| row.get_ref(index)).collect::<rusqlite::Result<Vec<_>>>()?;
        printer.row(&cells, out)?;
    }
    Ok(printer.end(out)?)
}

/// Shows rows that are there already.
pub fn values(
    names: &[&str],
    rows: &[Vec<Value>],
    settings: &Settings,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut printer = Printer::new(names.iter().map(|name| (*name).to_owned()).collect(), settings);
    for row in rows {
        let cells: Vec<ValueRef<'_>> = row.iter().map(ValueRef::from).collect();
        printer.row(&cells, out)?;
    }
    printer.end(out)
}

/// Writes the rows of one answer.
struct Printer<'s> {
    settings: &'s Settings,
    names: Vec<String>,
    /// The rows that were not written yet, in modes that must know how wide they are.
    held: Vec<Vec<Cell>>,
    /// How many rows were written.
    written: u64,
    has_header: bool,
}

impl<'s> Printer<'s> {
    fn new(mut names: Vec<String>, settings: &'s Settings) -> Printer<'s> {
        if matches!(settings.mode, Mode::Json | Mode::Jsonl) {
            distinguish(&mut names);
        }
        Printer { settings, names, held: Vec::new(), written: 0, has_header: false }
    }

    fn row(&mut self, cells: &[ValueRef<'_>], out: &mut dyn Write) -> io::Result<()> {
        match self.settings.mode {
            Mode::Table | Mode::Markdown => {
                let null = self.settings.null.as_deref().unwrap_or("NULL");
                self.held
                    .push(cells.iter().map(|cell| table_cell(*cell, null, self.settings.mode)).collect());
                if self.held.len() == TABLE_ROWS {
                    self.write_table(out)?;
                }
            }
            Mode::Csv | Mode::Tabs | Mode::List => {
                self.header(out)?;
                let null = self.settings.null.as_deref().unwrap_or_default();
                let texts: Vec<_> = cells.iter().map(|cell| plain(*cell, null)).collect();
                self.fields(&texts, out)?;
            }
            Mode::Line => {
                if self.written > 0 {
                    writeln!(out)?;
                }
                let null = self.settings.null.as_deref().unwrap_or("NULL");
                let width =
                    self.names.iter().map(|name| console::measure_text_width(name)).max().unwrap_or(0);
                for (name, cell) in self.names.iter().zip(cells) {
                    let name = console::pad_str(name, width, console::Alignment::Right, None);
                    writeln!(out, "{name} = {}", plain(*cell, null))?;
                }
            }
            Mode::Json => {
                out.write_all(if self.written == 0 { b"[" } else { b",\n" })?;
                write!(out, "{}", self.object(cells))?;
            }
            Mode::Jsonl => writeln!(out, "{}", self.object(cells))?,
        }
        self.written += 1;
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match self.settings.mode {
            // An answer without rows shows its columns at least.
            Mode::Table | Mode::Markdown if !self.held.is_empty() || self.written == 0 => {
                self.write_table(out)
            }
            Mode::Csv | Mode::Tabs | Mode::List => self.header(out),
            Mode::Json if self.written == 0 => writeln!(out, "[]"),
            Mode::Json => writeln!(out, "]"),
            _ => Ok(()),
        }
    }

    /// The names of the columns, once, in modes of lines.
    fn header(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.has_header || !self.settings.header {
            return Ok(());
        }
        self.has_header = true;
        let names: Vec<_> = self.names.iter().map(|name| Cow::from(&name[..])).collect();
        self.fields(&names, out)
    }

    /// One line of fields.
    fn fields(&self, texts: &[Cow<'_, str>], out: &mut dyn Write) -> io::Result<()> {
        let separator = match self.settings.mode {
            Mode::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                writer.write_record(texts.iter().map(|text| text.as_bytes()))?;
                return writer.flush();
            }
            Mode::Tabs => "\t",
            _ => "|",
        };
        writeln!(out, "{}", texts.join(separator))
    }

    fn write_table(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new();
        let markdown = self.settings.mode == Mode::Markdown;
        table.load_style(if markdown { ASCII_MARKDOWN } else { UTF8_FULL_CONDENSED });
        // Markdown has no table without a header.
        if self.settings.header || markdown {
            table.set_header(self.names.iter().map(|name| visible(name, self.settings.mode)));
        }
        table.add_rows(std::mem::take(&mut self.held));
        writeln!(out, "{table}")
    }

    fn object(&self, cells: &[ValueRef<'_>]) -> Json {
        let mut object = Map::new();
        for (name, cell) in self.names.iter().zip(cells) {
            let value = match *cell {
                ValueRef::Null => Json::Null,
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => real(number),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                    text::insert_bytes(&mut object, name, bytes);
                    continue;
                }
            };
            object.insert(name.clone(), value);
        }
        Json::Object(object)
    }
}

/// Numbers names that come again, as an object cannot have two fields of one name.
fn distinguish(names: &mut [String]) {
    let mut known: HashSet<String> = HashSet::new();
    for name in names {
        let mut number = 1;
        let first = name.clone();
        while !known.insert(name.clone()) {
            *name = format!("{first}:{number}");
            number += 1;
        }
    }
}

/// A number of JSON's; the infinities, which it has no word for, are numbers that are too large.
fn real(number: f64) -> Json {
    Number::from_f64(number).map_or_else(
        || {
            let text = if number > 0.0 { "9e999" } else { "-9e999" };
            serde_json::from_str(text).unwrap_or(Json::Null)
        },
        Json::Number,
    )
}

/// A value as text.
pub fn plain<'v>(value: ValueRef<'v>, null: &'v str) -> Cow<'v, str> {
    match value {
        ValueRef::Null => null.into(),
        ValueRef::Integer(number) => number.to_string().into(),
        ValueRef::Real(number) if number.is_infinite() => if number > 0.0 { "Inf" } else { "-Inf" }.into(),
        // With a point or an exponent, as SQLite writes it.
        ValueRef::Real(number) => format!("{number:?}").into(),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes),
        ValueRef::Blob(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("x'{digits}'").into()
        }
    }
}

fn table_cell(value: ValueRef<'_>, null: &str, mode: Mode) -> Cell {
    let cell = Cell::new(visible(&plain(value, null), mode));
    match value {
        ValueRef::Integer(_) | ValueRef::Real(_) => cell.set_alignment(CellAlignment::Right),
        _ => cell,
    }
}

/// Text in which nothing moves the cursor or the frame.
fn visible(text: &str, mode: Mode) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' if mode == Mode::Markdown => shown.push_str("<br>"),
            '|' if mode == Mode::Markdown => shown.push_str("\\|"),
            '\n' => shown.push('\n'),
            '\t' => shown.push_str("    "),
            control if control.is_control() => shown.push_str(&format!("\\x{:02x}", u32::from(control))),
            other => shown.push(other),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn shown(mode: Mode, header: bool, sql: &str) -> String {
        let connection = Connection::open_in_memory().unwrap();
        let settings = Settings { mode, header, null: None };
        let mut out = Vec::new();
        query(&mut connection.prepare(sql).unwrap(), [], &settings, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const ROWS: &str =
        "SELECT 1 AS id, 'Malmö' AS name, NULL AS n, x'00ff' AS b UNION ALL SELECT 20, '寿司|', 1.0, ''";

    #[test]
    fn tables_cope_with_width_and_null() {
        let table = shown(Mode::Table, true, ROWS);
        let widths: Vec<_> = table.lines().map(console::measure_text_width).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
        assert!(table.contains("│  1 ┆ Malmö ┆ NULL ┆ x'00ff' │"), "{table}");
        assert!(!shown(Mode::Table, false, ROWS).contains("name"));
        assert!(shown(Mode::Table, true, "SELECT 1 AS empty WHERE 0").contains("empty"));
        assert!(shown(Mode::Table, true, "SELECT char(27)").contains("\\x1b"));
    }

    #[test]
    fn markdown_keeps_its_columns() {
        let table = shown(Mode::Markdown, true, ROWS);
        assert_eq!(table.lines().count(), 4, "{table}");
        assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("|--")), "{table}");
        assert!(table.contains("寿司\\|"), "{table}");
    }

    #[test]
    fn lines_have_their_fields() {
        let comma = "SELECT 'a,b' AS \"x,y\", NULL AS z UNION ALL SELECT 'q\"', 2.5";
        assert_eq!(shown(Mode::Csv, true, comma), "\"x,y\",z\n\"a,b\",\n\"q\"\"\",2.5\n");
        assert_eq!(shown(Mode::Csv, true, "SELECT 1 AS a WHERE 0"), "a\n");
        assert_eq!(shown(Mode::List, false, "SELECT 1, 2.0, NULL"), "1|2.0|\n");
        assert_eq!(shown(Mode::Tabs, true, "SELECT 1 AS a, 2 AS b"), "a\tb\n1\t2\n");
        assert_eq!(
            shown(Mode::Line, true, "SELECT 1 AS a, NULL AS long UNION ALL SELECT 2, 3"),
            "   a = 1\nlong = NULL\n\n   a = 2\nlong = 3\n"
        );
    }

    #[test]
    fn json_has_every_value() {
        assert_eq!(
            shown(Mode::Json, true, "SELECT 1 AS a, 9e999 AS a, x'ff' AS b UNION ALL SELECT 0.1, NULL, 't'"),
            "[{\"a\":1,\"a:1\":9e+999,\"b_base64\":\"/w==\"},\n{\"a\":0.1,\"a:1\":null,\"b\":\"t\"}]\n"
        );
        assert_eq!(shown(Mode::Json, true, "SELECT 1 WHERE 0"), "[]\n");
        assert_eq!(shown(Mode::Jsonl, true, "SELECT 1 AS a UNION ALL SELECT 2"), "{\"a\":1}\n{\"a\":2}\n");
    }

    #[test]
    fn long_answers_are_several_tables() {
        let many = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT i FROM n",
            TABLE_ROWS + 1
        );
        let table = shown(Mode::Table, true, &many);
        assert_eq!(table.lines().filter(|line| line.starts_with('┌')).count(), 2);
    }
}
