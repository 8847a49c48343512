//! Reading the file of an import.
//!
//! Owns: the way from CSV or JSON lines to keys and values. Promises: every error names the line. May call:
//! `row`, `text`, `failure`.

use std::io::{BufRead, BufReader, Read};

use serde_json::{Map, Value};

use super::Format;
use super::row::{self, KeyColumns};
use crate::failure::{Failure, Result};
use crate::text;

/// What one line of the file adds to the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// The snapshot that the line belongs to.
    pub snapshot: Option<String>,
}

/// How lines become entries.
pub struct Shape {
    /// `None`: the file holds records, with columns `key` and `value`.
    pub key: Option<KeyColumns>,
    /// The column that names the snapshot.
    pub snapshot_by: Option<String>,
}

impl Shape {
    fn entry(&self, row: Map<String, Value>) -> Result<Entry> {
        let snapshot = self.snapshot_by.as_ref().map(|column| row::column_text(&row, column)).transpose()?;
        let (key, value) = match &self.key {
            Some(columns) => (columns.key(&row)?, Value::Object(row).to_string().into_bytes()),
            None => (record_field(&row, "key")?, record_field(&row, "value")?),
        };
        Ok(Entry { key, value, snapshot })
    }
}

/// The field `name` or `name_base64` of a record.
fn record_field(row: &Map<String, Value>, name: &str) -> Result<Vec<u8>> {
    let encoded = format!("{name}_base64");
    match (row.get(name), row.get(&encoded)) {
        (Some(Value::String(text)), None) => Ok(text.clone().into_bytes()),
        (Some(other), None) => Ok(other.to_string().into_bytes()),
        (None, Some(Value::String(text))) => text::from_base64(text).map_err(Failure::Usage),
        (None, Some(_)) => Err(Failure::usage(format!("{encoded:?} is not a string"))),
        (Some(_), Some(_)) => Err(Failure::usage(format!("both {name:?} and {encoded:?} are given"))),
        (None, None) => {
            let found = row.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!(
                "there is no column {name:?}; of the columns {found}, say with --key which make the key"
            )))
        }
    }
}

/// The entries of a file, in its order.
pub fn entries(
    input: impl Read + 'static,
    format: Format,
    shape: Shape,
) -> Box<dyn Iterator<Item = Result<Entry>>> {
    match format {
        Format::Csv => Box::new(csv_entries(input, shape)),
        Format::Jsonl => Box::new(json_entries(input, shape)),
    }
}

fn csv_entries(input: impl Read, shape: Shape) -> impl Iterator<Item = Result<Entry>> {
    let mut reader = csv::Reader::from_reader(input);
    let mut record = csv::StringRecord::new();
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        match next_csv_row(&mut reader, &mut record, shape.key.is_some()) {
            Ok(Some(row)) => {
                let line = record.position().map_or(0, csv::Position::line);
                Some(shape.entry(row).map_err(|failure| at_line(line, failure)))
            }
            Ok(None) => None,
            Err(error) => {
                ended = true;
                Some(Err(csv_failure(error)))
            }
        }
    })
}

/// The next line as an object. Rows get typed cells; records are bytes, and no cell of theirs is a number.
fn next_csv_row(
    reader: &mut csv::Reader<impl Read>,
    record: &mut csv::StringRecord,
    typed: bool,
) -> std::result::Result<Option<Map<String, Value>>, csv::Error> {
    if !reader.read_record(record)? {
        return Ok(None);
    }
    let headers = reader.headers()?;
    let cell = |cell: &str| if typed { row::cell_to_json(cell) } else { Value::from(cell) };
    Ok(Some(headers.iter().zip(record.iter()).map(|(name, text)| (name.to_owned(), cell(text))).collect()))
}

fn csv_failure(error: csv::Error) -> Failure {
    match error.is_io_error() {
        true => Failure::System(format!("cannot read the input: {error}")),
        false => Failure::usage(format!("the input is not CSV with a header: {error}")),
    }
}

fn json_entries(input: impl Read, shape: Shape) -> impl Iterator<Item = Result<Entry>> {
    let mut lines = BufReader::with_capacity(1 << 20, input).split(b'\n').zip(1u64..);
    std::iter::from_fn(move || {
        loop {
            let (line, number) = lines.next()?;
            let entry = match line {
                Ok(line) if line.trim_ascii().is_empty() => continue,
                Ok(line) => match serde_json::from_slice::<Map<String, Value>>(&line) {
                    Ok(row) => shape.entry(row),
                    Err(error) => Err(Failure::usage(format!("not a JSON object: {error}"))),
                },
                Err(error) => Err(Failure::System(format!("cannot read the input: {error}"))),
            };
            return Some(entry.map_err(|failure| at_line(number, failure)));
        }
    })
}

fn at_line(line: u64, failure: Failure) -> Failure {
    match failure {
        Failure::Usage(text) => Failure::Usage(format!("line {line}: {text}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(key: &str) -> Shape {
        let key = KeyColumns { columns: vec![key.to_owned()], separator: "/".to_owned() };
        Shape { key: Some(key), snapshot_by: None }
    }

    fn records() -> Shape {
        Shape { key: None, snapshot_by: None }
    }

    fn read(input: &'static str, format: Format, shape: Shape) -> Vec<Result<Entry>> {
        entries(input.as_bytes(), format, shape).collect()
    }

    fn pairs(read: Vec<Result<Entry>>) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        read.into_iter()
            .map(|entry| entry.unwrap())
            .map(|entry| (text(entry.key), text(entry.value)))
            .collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn csv_rows_are_stored_as_objects_in_the_columns_order() {
        let read = read("b,a\n1,x\n2,\"y,z\"\n", Format::Csv, rows("a"));
        assert_eq!(pairs(read), [pair("x", r#"{"b":1,"a":"x"}"#), pair("y,z", r#"{"b":2,"a":"y,z"}"#)]);
    }

    #[test]
    fn csv_records_are_bytes_whatever_they_look_like() {
        assert_eq!(pairs(read("key,value\n007,1e5\n", Format::Csv, records())), [pair("007", "1e5")]);
        assert_eq!(pairs(read("value_base64,key\nYg==,a\n", Format::Csv, records())), [pair("a", "b")]);
    }

    #[test]
    fn json_lines_skip_empty_lines() {
        let input = "{\"key\":\"a\",\"value\":\"b\"}\n\n \r\n{\"key\":\"c\",\"value\":{\"d\":1.50}}";
        assert_eq!(
            pairs(read(input, Format::Jsonl, records())),
            [pair("a", "b"), pair("c", r#"{"d":1.50}"#)]
        );
    }

    #[test]
    fn errors_name_the_line() {
        let cases = [
            ("key,value\na,b\nc\n", Format::Csv, records(), "line: 3"),
            ("a,b\n1,2\n", Format::Csv, rows("c"), "line 2: there is no column \"c\"; there are a, b"),
            ("a,b\n1,2\n", Format::Csv, records(), "--key"),
            ("{\"key\":\"a\",\"value\":\"b\"}\n[1]\n", Format::Jsonl, records(), "line 2: not a JSON object"),
            ("{\"key_base64\":\"?\",\"value\":\"b\"}\n", Format::Jsonl, records(), "not base64"),
        ];
        for (input, format, shape, expected) in cases {
            let last = read(input, format, shape).pop();
            let Some(Err(Failure::Usage(text))) = last else { panic!("{input}: {last:?}") };
            assert!(text.contains(expected), "{input}: {text}");
        }
    }
}
