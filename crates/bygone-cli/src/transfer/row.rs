//! Rows: JSON objects whose fields are columns.
//!
//! Owns: how a CSV cell becomes a JSON value and back, and how a key is made of columns. Promises: a cell
//! comes back as the text it was; two different rows never share a key by accident of joining. May call:
//! `failure`.

use serde_json::{Map, Number, Value};

use crate::failure::{Failure, Result};

/// A CSV cell as JSON: a number if the text is exactly what JSON writes for one, else a string.
pub fn cell_to_json(cell: &str) -> Value {
    // Numbers keep their text (`arbitrary_precision`), so 1.50 stays 1.50 and no digit of a long one is lost.
    match cell.parse::<Number>() {
        Ok(number) if number.to_string() == cell => Value::Number(number),
        _ => Value::from(cell),
    }
}

/// A JSON value as a CSV cell: strings without quotes, null as nothing, arrays and objects as JSON.
pub fn json_to_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Makes keys of rows.
#[derive(Clone, Debug)]
pub struct KeyColumns {
    pub columns: Vec<String>,
    pub separator: String,
}

impl KeyColumns {
    /// The key of a row: the text of its key columns, joined by the separator.
    pub fn key(&self, row: &Map<String, Value>) -> Result<Vec<u8>> {
        let mut key = String::new();
        for (index, column) in self.columns.iter().enumerate() {
            let text = column_text(row, column)?;
            if self.columns.len() > 1 && text.contains(&self.separator) {
                return Err(Failure::usage(format!(
                    "column {column:?} holds {text:?}, which contains the separator {:?} of the key's columns: \
                     choose another with --separator",
                    self.separator
                )));
            }
            if index > 0 {
                key.push_str(&self.separator);
            }
            key.push_str(&text);
        }
        Ok(key.into_bytes())
    }
}

/// The text of one column that must be there and be a string, a number or a boolean.
pub fn column_text(row: &Map<String, Value>, column: &str) -> Result<String> {
    match row.get(column) {
        Some(value @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => Ok(json_to_cell(value)),
        Some(_) => Err(Failure::usage(format!("column {column:?} is neither text nor a number"))),
        None => Err(Failure::usage(format!("there is no column {column:?}; there are {}", columns_of(row)))),
    }
}

fn columns_of(row: &Map<String, Value>) -> String {
    row.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Map<String, Value> {
        match serde_json::from_str(text) {
            Ok(Value::Object(row)) => row,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn cells_come_back() {
        let cells = [
            "",
            "0",
            "-1",
            "28.801",
            "1.50",
            "007",
            "+1",
            "1e5",
            "1E5",
            ".5",
            "5.",
            "NaN",
            "true",
            "a,b",
            "\"",
            "123456789012345678901234567890",
            "-0",
            " 1",
        ];
        for cell in cells {
            assert_eq!(json_to_cell(&cell_to_json(cell)), cell);
        }
    }

    #[test]
    fn only_what_json_writes_as_a_number_is_one() {
        for cell in ["0", "-1", "28.801", "1.50", "123456789012345678901234567890"] {
            assert!(cell_to_json(cell).is_number(), "{cell}");
        }
        for cell in ["", "007", "+1", ".5", "5.", "NaN", " 1", "1 "] {
            assert!(cell_to_json(cell).is_string(), "{cell}");
        }
    }

    #[test]
    fn keys_join_columns() {
        let columns = |names: &[&str]| KeyColumns {
            columns: names.iter().map(|name| (*name).to_owned()).collect(),
            separator: "/".to_owned(),
        };
        let row = row(r#"{"country":"Sweden","year":1957,"path":"a/b","none":null}"#);
        assert_eq!(columns(&["country", "year"]).key(&row).unwrap(), b"Sweden/1957");
        assert_eq!(columns(&["path"]).key(&row).unwrap(), b"a/b");
        assert!(columns(&["path", "year"]).key(&row).is_err(), "a/b/1957 could be two other columns");
        assert!(columns(&["none"]).key(&row).is_err());
        assert!(columns(&["absent"]).key(&row).is_err());
    }
}
