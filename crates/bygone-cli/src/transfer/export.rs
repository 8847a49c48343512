//! `bygone export`.
//!
//! Owns: the writing of CSV and JSON lines, and the way to the engine's own export. Promises: what it writes as
//! text, `import` reads back to the same table; what cannot be written so is an error that says what can. May
//! call: `open`, `past`, `row`, `sqlite`, `text`, `output`, `progress`, `failure`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use bygone::{Snapshot, Table};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::row::json_to_cell;
use super::{Format, format_of, named_file, sqlite};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::past::AsOf;
use crate::{numbers, open, past, progress, records, text};

#[derive(Args)]
pub struct Export {
    /// Directory of the database
    db: PathBuf,
    /// Table; needed unless --database or --sqlite is given
    table: Option<String>,
    /// The file; "-" or nothing writes to standard output
    file: Option<PathBuf>,
    /// Write all tables as a compact database to this new directory, as it was then and without its past
    #[arg(long, value_name = "DIR", conflicts_with_all = ["table", "file", "format", "rows", "base64"])]
    database: Option<PathBuf>,
    /// Told by the file's name (.csv, .jsonl, .ndjson, .json) if not given; JSON lines if that does not tell
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    as_of: AsOf,
    /// The values are JSON objects: write their fields as columns, as `import --key` read them
    #[arg(long)]
    rows: bool,
    /// CSV: write keys and values as base64, for those that are not text
    #[arg(long, conflicts_with = "rows")]
    base64: bool,
    /// Write an SQL database as an ordinary SQLite file, which must not exist yet
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["table", "file", "database", "format", "rows", "base64"]
    )]
    sqlite: Option<PathBuf>,
    /// With --sqlite: the SQL database's name, "main" if not given
    #[arg(long = "db", value_name = "NAME", requires = "sqlite", conflicts_with_all = ["table", "database"])]
    name: Option<String>,
}

pub fn export(args: &Export, out: &mut Output) -> Result<()> {
    if let Some(path) = &args.sqlite {
        return sqlite::export(&args.db, args.name.as_deref(), &args.as_of, path, out);
    }
    match (&args.database, &args.table) {
        (Some(directory), _) => export_database(args, directory, out),
        (None, Some(table)) => export_table(args, table, out),
        (None, None) => Err(Failure::usage(
            "say which table to export, or --database DIR for all of them, or --sqlite FILE for an SQL database",
        )),
    }
}

fn export_database(args: &Export, directory: &Path, out: &mut Output) -> Result<()> {
    let db = open::reading(&args.db)?;
    let asked = args.as_of.asked(&db)?;
    let (what, id) = match asked {
        None => {
            db.export_view(&db.snapshot(), directory)?;
            ("the present".to_owned(), None)
        }
        Some(asked) => {
            let state = past::State::of(&db, asked)?;
            db.export(state.asked.clone(), directory)?;
            (state.to_string(), state.snapshot.map(u64::from))
        }
    };
    if out.is_json() {
        return out.json(&json!({ "database": directory.display().to_string(), "snapshot": id }));
    }
    out.line(format_args!("{what} written to {}", directory.display()))
}

fn export_table(args: &Export, table: &str, out: &mut Output) -> Result<()> {
    let file = named_file(args.file.as_deref());
    let format = format_of(args.format, file, Some(Format::Jsonl))?;
    let db = open::reading(&args.db)?;
    let view = args.as_of.view(&db)?;
    let table = view.table(table)?;
    let source = Source { view, table, bar: progress::count("records") };

    let Some(path) = file else {
        // Standard output carries the table itself, in the format that was asked for, with or without --json.
        source.write(args, format, &mut Sink { writer: out, failure: &Failure::output })?;
        return Ok(());
    };
    let records = write_file(path, |sink| source.write(args, format, sink))?;
    match out.is_json() {
        true => out.json(&json!({ "records": records })),
        false => out.line(format_args!("{} records written to {}", numbers::count(records), path.display())),
    }
}

/// Writes a file beside `path` and renames it, so that a failure leaves neither half a file nor the loss of
/// an older one. What is no regular file (a pipe, a device) is written to as it is.
fn write_file(path: &Path, write: impl FnOnce(&mut Sink<'_>) -> Result<u64>) -> Result<u64> {
    let failure = |error| Failure::file(path, "write", error);
    let special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let target = if special { path } else { Path::new(&unfinished) };

    let mut writer = BufWriter::with_capacity(1 << 20, File::create(target).map_err(failure)?);
    let written = write(&mut Sink { writer: &mut writer, failure: &failure }).and_then(|records| {
        writer.flush().map_err(failure)?;
        Ok(records)
    });
    if special {
        return written;
    }
    match written {
        Ok(records) => fs::rename(target, path).map_err(failure).map(|()| records),
        Err(error) => {
            // The failure that is told is the first one.
            let _ = fs::remove_file(target);
            Err(error)
        }
    }
}

/// Where the export goes, and what its errors mean.
struct Sink<'a> {
    writer: &'a mut dyn Write,
    failure: &'a dyn Fn(io::Error) -> Failure,
}

impl Sink<'_> {
    fn json(&mut self, value: &Value) -> Result<()> {
        writeln!(self.writer, "{value}").map_err(self.failure)
    }

    /// Writes a header and what `lines` adds to it as CSV.
    fn csv<T>(&mut self, header: &[&str], lines: impl FnOnce(&mut CsvLines<'_>) -> Result<T>) -> Result<T> {
        let mut csv = CsvLines { writer: csv::Writer::from_writer(self.writer), failure: self.failure };
        csv.line(header)?;
        let answer = lines(&mut csv)?;
        csv.writer.flush().map_err(self.failure)?;
        Ok(answer)
    }
}

struct CsvLines<'a> {
    writer: csv::Writer<&'a mut dyn Write>,
    failure: &'a dyn Fn(io::Error) -> Failure,
}

impl CsvLines<'_> {
    fn line(&mut self, cells: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        self.writer.write_record(cells).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => (self.failure)(error),
            other => Failure::System(format!("cannot write CSV: {other:?}")),
        })
    }
}

/// The records of the table as of then.
struct Source {
    view: Snapshot,
    table: Table,
    bar: ProgressBar,
}

impl Source {
    fn write(&self, args: &Export, format: Format, sink: &mut Sink<'_>) -> Result<u64> {
        let records = match (format, args.rows) {
            (Format::Jsonl, false) => self.each(|key, value| sink.json(&records::record(key, Some(value)))),
            (Format::Jsonl, true) => {
                self.each(|key, value| sink.json(&Value::Object(parse_row(key, value)?)))
            }
            (Format::Csv, false) if args.base64 => sink.csv(&["key_base64", "value_base64"], |csv| {
                self.each(|key, value| csv.line([text::to_base64(key), text::to_base64(value)]))
            }),
            (Format::Csv, false) => sink.csv(&["key", "value"], |csv| {
                self.each(|key, value| csv.line([plain(key, key)?, plain(key, value)?]))
            }),
            (Format::Csv, true) => {
                let columns = self.columns()?;
                let header: Vec<&str> = columns.iter().map(String::as_str).collect();
                sink.csv(&header, |csv| {
                    self.each(|key, value| {
                        let row = parse_row(key, value)?;
                        csv.line(
                            columns.iter().map(|name| row.get(name).map(json_to_cell).unwrap_or_default()),
                        )
                    })
                })
            }
        }?;
        self.bar.finish_and_clear();
        Ok(records)
    }

    /// Calls `line` with every record and answers how many there were.
    fn each(&self, mut line: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<u64> {
        let mut records = 0;
        for record in self.view.range(&self.table, ..)? {
            let (key, value) = record?;
            line(&key, &value)?;
            records += 1;
            self.bar.inc(1);
        }
        Ok(records)
    }

    /// All columns of all rows, in order of first appearance: a CSV header comes before what it must cover,
    /// so this reads the snapshot once more.
    fn columns(&self) -> Result<Vec<String>> {
        let mut columns = Vec::new();
        let mut known = HashSet::new();
        self.each(|key, value| {
            for name in parse_row(key, value)?.into_iter().map(|(name, _)| name) {
                if known.insert(name.clone()) {
                    columns.push(name);
                }
            }
            Ok(())
        })?;
        self.bar.reset();
        Ok(columns)
    }
}

fn parse_row(key: &[u8], value: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(value).map_err(|_| {
        let key = text::escape(key);
        Failure::usage(format!("the value of key \"{key}\" is not a JSON object: export without --rows"))
    })
}

/// Bytes that CSV can carry without an encoding.
fn plain<'a>(key: &[u8], bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|_| {
        let key = text::escape(key);
        Failure::usage(format!(
            "key \"{key}\" or its value is not text: export with --base64 or --format jsonl"
        ))
    })
}
