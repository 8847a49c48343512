//! `bygone import`, `export`: tables from and to CSV and JSON lines, SQL databases from and to SQLite's files; `export`
//! also to a database.
//!
//! Owns: the two formats. A file holds either *records* (columns `key` and `value`, with `_base64` behind the
//! name where bytes are not text) or *rows* (any columns; a row is stored as a JSON object under a key made
//! of chosen columns). Promises: what `export` writes, `import` reads back to the same table. May call:
//! `open`, `past`, `text`, `output`, `progress`, `failure`.

mod export;
mod import;
mod row;
mod source;
mod sqlite;

use std::path::Path;

pub use export::{Export, export};
pub use import::{Import, group, import};
pub use row::KeyColumns;
pub use source::{Entry, Shape, entries};

use crate::failure::{Failure, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values with a header line
    Csv,
    /// One JSON object a line
    Jsonl,
}

/// The format that was asked for, or the one that the file's name tells.
fn format_of(asked: Option<Format>, file: Option<&Path>, otherwise: Option<Format>) -> Result<Format> {
    if let Some(format) = asked {
        return Ok(format);
    }
    let extension = file.and_then(Path::extension).map(|extension| extension.to_ascii_lowercase());
    match extension.as_deref().and_then(|extension| extension.to_str()) {
        Some("csv") => Ok(Format::Csv),
        Some("jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
        _ => otherwise.ok_or_else(|| {
            Failure::usage("say --format csv or --format jsonl: the file's name does not tell which it is")
        }),
    }
}

/// The file, unless standard input or output is meant.
fn named_file(file: Option<&Path>) -> Option<&Path> {
    file.filter(|file| *file != "-")
}
