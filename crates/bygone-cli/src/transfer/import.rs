//! `bygone import`.
//!
//! Owns: how entries are grouped into commits and snapshots. Promises: a snapshot declared by an import holds
//! every row that belongs to it or to one before it, and names that are taken are refused before anything is
//! written. An import as a whole is not one transaction: what was committed before an error stays. May call:
//! `source`, `sqlite`, `open`, `output`, `progress`, `failure`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bygone::{Db, Error, SnapshotId, Table, Transaction};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::row::KeyColumns;
use super::source::{self, Entry, Shape};
use super::{Format, format_of, named_file, sqlite};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{numbers, open, progress};

/// A commit takes no more than this many bytes of keys and values, so that memory stays bounded.
const COMMIT_BYTES: usize = 8 << 20;

#[derive(Args)]
pub struct Import {
    /// Directory of the database; made if it does not exist
    db: PathBuf,
    /// Table; made if it does not exist. Needed unless --sqlite is given
    #[arg(required_unless_present = "sqlite")]
    table: Option<String>,
    /// The file; "-" or nothing reads standard input
    file: Option<PathBuf>,
    /// Told by the file's name (.csv, .jsonl, .ndjson, .json) if not given
    #[arg(long)]
    format: Option<Format>,
    /// Store whole rows as JSON objects under the text of these columns; without it the file has columns key
    /// and value
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    key: Vec<String>,
    /// Between the columns of a key
    #[arg(long, default_value = "/")]
    separator: String,
    /// Declare one snapshot per distinct value of this column, named by it, in order of appearance
    ///
    /// The rows with the first value are committed and the snapshot declared, then the rows with the second,
    /// and so on, wherever they stand in the file; it is held in memory for that. A row stays until a
    /// later one with its key overwrites it.
    #[arg(long, value_name = "COLUMN")]
    snapshot_by: Option<String>,
    /// Take over this whole SQLite file as an SQL database, for `bygone sql`; the file is only read
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["table", "file", "format", "key", "separator", "snapshot_by"]
    )]
    sqlite: Option<PathBuf>,
    /// With --sqlite: the SQL database's name, "main" if not given
    #[arg(long = "db", value_name = "NAME", requires = "sqlite", conflicts_with = "table")]
    name: Option<String>,
    /// With --sqlite: replace the SQL database if there is one; declared snapshots keep it
    #[arg(long, requires = "sqlite", conflicts_with = "table")]
    replace: bool,
}

pub fn import(args: &Import, out: &mut Output) -> Result<()> {
    if let Some(path) = &args.sqlite {
        return sqlite::import(&args.db, args.name.as_deref(), path, args.replace, out);
    }
    let Some(table) = &args.table else {
        return Err(Failure::usage(
            "say which table to import into, or --sqlite FILE for a whole SQLite file",
        ));
    };
    let file = named_file(args.file.as_deref());
    let format = format_of(args.format, file, None)?;
    let shape = Shape {
        key: (!args.key.is_empty())
            .then(|| KeyColumns { columns: args.key.clone(), separator: args.separator.clone() }),
        snapshot_by: args.snapshot_by.clone(),
    };
    // The file is opened before the database, so that a mistyped name leaves no empty database behind.
    let (input, bar) = open_input(file)?;
    let entries = source::entries(input, format, shape);

    let start = Instant::now();
    let db = open::or_create(&args.db)?;
    let mut loader = Loader::new(&db, db.table(table)?);
    match &args.snapshot_by {
        Some(_) => loader.load_by_snapshot(entries)?,
        None => loader.load(entries)?,
    }
    bar.finish_and_clear();
    loader.report(start, out)
}

fn open_input(file: Option<&Path>) -> Result<(Box<dyn Read>, ProgressBar)> {
    let Some(path) = file else {
        let bar = progress::bytes(None);
        return Ok((Box::new(bar.wrap_read(std::io::stdin().lock())), bar));
    };
    let file = File::open(path).map_err(|error| Failure::file(path, "read", error))?;
    let bytes = file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
    let bar = progress::bytes(bytes);
    Ok((Box::new(bar.wrap_read(file)), bar))
}

/// Commits entries in batches and counts them.
struct Loader<'a> {
    db: &'a Db,
    table: Table,
    rows: u64,
    commits: u64,
    snapshots: Vec<(SnapshotId, String)>,
}

impl<'a> Loader<'a> {
    fn new(db: &'a Db, table: Table) -> Self {
        Loader { db, table, rows: 0, commits: 0, snapshots: Vec::new() }
    }

    fn load(&mut self, entries: impl Iterator<Item = Result<Entry>>) -> Result<()> {
        let last = self.commit_full_batches(entries)?;
        if self.rows > 0 {
            last.commit()?;
            self.commits += 1;
        }
        Ok(())
    }

    /// Puts all entries, and answers with the transaction that holds the last of them.
    fn commit_full_batches(&mut self, entries: impl Iterator<Item = Result<Entry>>) -> Result<Transaction> {
        let mut tx = self.db.begin()?;
        let mut tx_bytes = 0;
        for entry in entries {
            let entry = entry?;
            let entry_bytes = entry.key.len() + entry.value.len();
            if tx_bytes > 0 && tx_bytes + entry_bytes > COMMIT_BYTES {
                tx.commit()?;
                self.commits += 1;
                tx = self.db.begin()?;
                tx_bytes = 0;
            }
            tx.put(&self.table, &entry.key, &entry.value)?;
            tx_bytes += entry_bytes;
            self.rows += 1;
        }
        Ok(tx)
    }

    fn load_by_snapshot(&mut self, entries: impl Iterator<Item = Result<Entry>>) -> Result<()> {
        let groups = group(entries)?;
        for (name, _) in &groups {
            match self.db.snapshot_info(name.as_str()) {
                Err(Error::SnapshotNotFound { .. }) => {}
                Ok(taken) => {
                    return Err(Error::NameTaken { name: name.clone(), snapshot: taken.id }.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        for (name, entries) in groups {
            let last = self.commit_full_batches(entries.into_iter().map(Ok))?;
            let id = last.commit_with_snapshot(name.as_str())?;
            self.commits += 1;
            self.snapshots.push((id, name));
        }
        Ok(())
    }

    fn report(&self, start: Instant, out: &mut Output) -> Result<()> {
        if out.is_json() {
            let snapshots: Vec<Value> = self
                .snapshots
                .iter()
                .map(|(id, name)| json!({ "id": u64::from(*id), "name": name }))
                .collect();
            return out.json(&json!({
                "rows": self.rows,
                "commits": self.commits,
                "snapshots": snapshots,
                "seconds": start.elapsed().as_secs_f64(),
            }));
        }
        let (rows, commits) = (numbers::counted(self.rows, "row"), numbers::counted(self.commits, "commit"));
        out.line(format_args!("{rows} in {commits}, {}", numbers::duration(start.elapsed())))?;
        if let [(first, first_name), .., (last, last_name)] = self.snapshots.as_slice() {
            let count = numbers::counted(self.snapshots.len() as u64, "snapshot");
            out.line(format_args!("{count}, {first} {first_name:?} to {last} {last_name:?}"))?;
        } else if let [(id, name)] = self.snapshots.as_slice() {
            out.line(format_args!("snapshot {id} {name:?}"))?;
        }
        Ok(())
    }
}

/// The entries by the snapshot that they belong to, in order of first appearance.
pub fn group(entries: impl Iterator<Item = Result<Entry>>) -> Result<Vec<(String, Vec<Entry>)>> {
    let mut groups: Vec<(String, Vec<Entry>)> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    for entry in entries {
        let mut entry = entry?;
        let name = entry.snapshot.take().unwrap_or_default();
        let at = *index.entry(name).or_insert_with_key(|name| {
            groups.push((name.clone(), Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(entry);
    }
    Ok(groups)
}
