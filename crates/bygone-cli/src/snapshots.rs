//! `bygone snapshot`, `snapshots`.
//!
//! Owns: declaring and listing. May call: `open`, `output`, `numbers`, `text`, `failure`.

use std::path::PathBuf;

use bygone::{Db, SnapshotInfo, SnapshotSize};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::Result;
use crate::output::Output;
use crate::{numbers, open, text};

#[derive(Args)]
pub struct Declare {
    /// Directory of the database
    db: PathBuf,
    /// A name that no other snapshot has
    name: Option<String>,
    /// Kept with the snapshot and shown by `snapshots`
    #[arg(long, value_name = "TEXT")]
    metadata: Option<String>,
}

#[derive(Args)]
pub struct List {
    /// Directory of the database
    db: PathBuf,
    /// Also how much of the past each keeps alone, and together with others; reads all that is kept
    #[arg(long)]
    sizes: bool,
}

pub fn declare(args: &Declare, out: &mut Output) -> Result<()> {
    let db = open::existing(&args.db)?;
    let id = match &args.metadata {
        None => db.snapshot_now(args.name.as_deref())?,
        Some(metadata) => {
            // Metadata belongs to a commit's declaration; a commit of nothing declares the state that is
            // there.
            let mut tx = db.begin()?;
            tx.set_snapshot_metadata(metadata.as_bytes());
            tx.commit_with_snapshot(args.name.as_deref())?
        }
    };
    match out.is_json() {
        true => out.json(&json!({ "id": u64::from(id), "name": args.name })),
        false => out.line(id),
    }
}

pub fn list(args: &List, out: &mut Output) -> Result<()> {
    let db = open::reading(&args.db)?;
    if args.sizes {
        return list_sizes(&db, out);
    }
    let snapshots = db.snapshots()?;
    if out.is_json() {
        return snapshots.iter().try_for_each(|info| out.json(&to_json(info)));
    }
    let cells: Vec<[String; 5]> = snapshots.iter().map(to_cells).collect();
    if cells.is_empty() {
        return Ok(());
    }
    let header = ["ID", "NAME", "TIME (UTC)", "HELD BY", "METADATA"].map(str::to_owned);
    let width = |column: usize| {
        let lines = std::iter::once(&header).chain(&cells);
        lines.map(|line| console::measure_text_width(&line[column])).max().unwrap_or(0)
    };
    let (id_width, name_width, time_width) = (width(0), width(1), width(2));
    // Few are held; where none is, there is no such column.
    let anything_held = cells.iter().any(|line| !line[3].is_empty());
    let held_width = if anything_held { width(3) } else { 0 };
    for [id, name, time, held, metadata] in std::iter::once(&header).chain(&cells) {
        let name = console::pad_str(name, name_width, console::Alignment::Left, None);
        let held = match anything_held {
            true => format!("  {}", console::pad_str(held, held_width, console::Alignment::Left, None)),
            false => String::new(),
        };
        let line = format!("{id:>id_width$}  {name}  {time:<time_width$}{held}  {metadata}");
        out.line(line.trim_end())?;
    }
    Ok(())
}

fn list_sizes(db: &Db, out: &mut Output) -> Result<()> {
    let sizes = db.snapshot_sizes()?;
    let snapshots = db.snapshots()?;
    let found = |size: &SnapshotSize| {
        let index = snapshots.binary_search_by_key(&size.id, |info| info.id).ok()?;
        Some(&snapshots[index])
    };
    if out.is_json() {
        return sizes.iter().filter_map(|size| Some((size, found(size)?))).try_for_each(|(size, info)| {
            let mut object = to_json(info);
            object["own_bytes"] = Value::from(size.own_bytes);
            object["shared_bytes"] = Value::from(size.shared_bytes);
            out.json(&object)
        });
    }
    out.line(format_args!("{:>10}  {:>15}  {:>15}  NAME", "ID", "OWN BYTES", "SHARED BYTES"))?;
    sizes.iter().filter_map(|size| Some((size, found(size)?))).try_for_each(|(size, info)| {
        let name = info.name.as_deref().map(|name| text::escape(name.as_bytes())).unwrap_or_default();
        let SnapshotSize { id, own_bytes, shared_bytes, .. } = size;
        let line = format!("{:>10}  {own_bytes:>15}  {shared_bytes:>15}  {name}", id.to_string());
        out.line(line.trim_end())
    })
}

fn to_cells(info: &SnapshotInfo) -> [String; 5] {
    let name = info.name.as_deref().map(|name| text::escape(name.as_bytes()));
    let holders: Vec<_> = info.holders.iter().map(|holder| text::escape(holder.as_bytes())).collect();
    [
        info.id.to_string(),
        name.unwrap_or_default(),
        numbers::time(info.time),
        holders.join(", "),
        text::escape(&info.metadata),
    ]
}

pub fn to_json(info: &SnapshotInfo) -> Value {
    let mut object = Map::new();
    object.insert("id".to_owned(), Value::from(u64::from(info.id)));
    object.insert("name".to_owned(), Value::from(info.name.as_deref()));
    object.insert("seq".to_owned(), Value::from(u64::from(info.seq)));
    object.insert("time".to_owned(), Value::from(numbers::time(info.time)));
    object.insert("holders".to_owned(), Value::from(info.holders.clone()));
    text::insert_bytes(&mut object, "metadata", &info.metadata);
    Value::Object(object)
}
