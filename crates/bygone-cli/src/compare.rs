//! `bygone diff`, `history`.
//!
//! Owns: how differences and changes look. Promises: a line each, with the sign first: `+` where there is a value
//! that was not there, `-` where one is gone, `~` where one took another's place; fields are escaped and stand
//! between tabs. May call: `open`, `past`, `records`, `numbers`, `text`, `output`, `failure`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use bygone::{Change, Db, Error, Snapshot, SnapshotInfo, Table};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::records::{Form, whole_number};
use crate::{numbers, open, past, text};

#[derive(Args)]
pub struct Diff {
    /// Directory of the database
    db: PathBuf,
    /// The first state: a snapshot's name, an id, a time, @COMMIT, or "now", as --as-of of other commands takes them
    a: String,
    /// The second state
    b: String,
    /// Table; all tables if not given, each line then names its table
    table: Option<String>,
    /// Leave the values out
    #[arg(long)]
    keys_only: bool,
    /// At most this many differences
    #[arg(long, value_name = "N", value_parser = whole_number)]
    limit: Option<u64>,
}

#[derive(Args)]
pub struct History {
    /// Directory of the database
    db: PathBuf,
    /// Table, dropped since or not
    table: String,
    /// Key
    key: OsString,
    /// The newest change first
    #[arg(long)]
    reverse: bool,
    /// At most this many changes
    #[arg(long, value_name = "N", value_parser = whole_number)]
    limit: Option<u64>,
    #[command(flatten)]
    form: Form,
}

pub fn diff(args: &Diff, out: &mut Output) -> Result<()> {
    let db = open::reading(&args.db)?;
    let (a, b) = (past::view(&db, &args.a)?, past::view(&db, &args.b)?);
    let mut left = args.limit.unwrap_or(u64::MAX);
    for (name, table) in tables(args, &a, &b)? {
        for change in a.diff(&b, &table)? {
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            show_change(args, &name, &change?, out)?;
        }
    }
    Ok(())
}

/// The tables to compare: the one that was asked for, or all that either state has.
fn tables(args: &Diff, a: &Snapshot, b: &Snapshot) -> Result<BTreeMap<String, Table>> {
    let mut tables = BTreeMap::new();
    for view in [a, b] {
        let names = match &args.table {
            Some(name) => vec![name.clone()],
            None => view.tables()?,
        };
        for name in names {
            match view.table(&name) {
                Ok(table) => drop(tables.insert(name, table)),
                Err(Error::TableNotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match &args.table {
        Some(name) if tables.is_empty() => {
            Err(Failure::No(format!("no table {name:?}, neither as of {} nor as of {}", args.a, args.b)))
        }
        _ => Ok(tables),
    }
}

fn show_change(args: &Diff, table: &str, change: &Change, out: &mut Output) -> Result<()> {
    let (sign, word) = match (&change.before, &change.after) {
        (None, _) => ('+', "added"),
        (_, None) => ('-', "removed"),
        _ => ('~', "changed"),
    };
    let values = [("before", &change.before), ("after", &change.after)];
    let values = values.into_iter().filter(|_| !args.keys_only);
    let values = values.filter_map(|(name, value)| Some((name, value.as_ref()?)));
    if out.is_json() {
        let mut object = Map::new();
        object.insert("table".to_owned(), Value::from(table));
        object.insert("change".to_owned(), Value::from(word));
        text::insert_bytes(&mut object, "key", &change.key);
        values.for_each(|(name, value)| text::insert_bytes(&mut object, name, value));
        return out.json(&Value::Object(object));
    }
    let mut fields = vec![change.key.to_vec()];
    if args.table.is_none() {
        fields.insert(0, table.as_bytes().to_vec());
    }
    fields.extend(values.map(|(_, value)| value.to_vec()));
    line(sign, &fields, out)
}

fn line(sign: char, fields: &[Vec<u8>], out: &mut Output) -> Result<()> {
    out.raw(&[sign as u8])?;
    for field in fields {
        out.raw(b"\t")?;
        out.escaped(field)?;
    }
    out.raw(b"\n")
}

pub fn history(args: &History, out: &mut Output) -> Result<()> {
    let key = args.form.bytes(&args.key)?;
    let db = open::reading(&args.db)?;
    let table = find_table(&db, &args.table)?;
    let mut history = db.history(&table, &key)?;
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut shown = 0;
    while shown < limit {
        let Some(change) = (if args.reverse { history.next_back() } else { history.next() }) else { break };
        let (id, value) = change?;
        show_value(&db.snapshot_info(id)?, value.as_deref(), out)?;
        shown += 1;
    }
    if shown == 0 && limit > 0 {
        let key = text::escape(&key);
        return Err(Failure::No(format!("no declared snapshot has key \"{key}\" in table {:?}", args.table)));
    }
    Ok(())
}

/// The table of this name: the present's, or else the last that had it.
fn find_table(db: &Db, name: &str) -> Result<Table> {
    match db.open_table(name) {
        Err(Error::TableNotFound { .. }) => {}
        found => return Ok(found?),
    }
    for info in db.snapshots()?.iter().rev() {
        match db.as_of(info)?.table(name) {
            Err(Error::TableNotFound { .. }) => {}
            found => return Ok(found?),
        }
    }
    Err(Failure::No(format!("no table {name:?}, now or in any declared snapshot")))
}

fn show_value(info: &SnapshotInfo, value: Option<&[u8]>, out: &mut Output) -> Result<()> {
    let (id, time) = (u64::from(info.id), numbers::time(info.time));
    if out.is_json() {
        let mut object = Map::new();
        object.insert("id".to_owned(), Value::from(id));
        object.insert("name".to_owned(), Value::from(info.name.as_deref()));
        object.insert("time".to_owned(), Value::from(time));
        match value {
            Some(value) => text::insert_bytes(&mut object, "value", value),
            None => drop(object.insert("deleted".to_owned(), json!(true))),
        }
        return out.json(&Value::Object(object));
    }
    let name = info.name.as_deref().unwrap_or_default();
    let mut fields = vec![id.to_string().into_bytes(), time.into_bytes(), name.as_bytes().to_vec()];
    fields.extend(value.map(<[u8]>::to_vec));
    line(if value.is_some() { '+' } else { '-' }, &fields, out)
}
