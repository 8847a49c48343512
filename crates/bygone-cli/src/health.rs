//! `bygone stats`, `verify`.
//!
//! Owns: what the database says about itself. Promises: `verify` ends with 3 if and only if something is
//! damaged. May call: `open`, `output`, `numbers`, `progress`, `failure`.

use std::path::PathBuf;

use bygone::{Error, HeldSnapshot, Stats};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{numbers, open, progress};

#[derive(Args)]
pub struct Health {
    /// Directory of the database
    db: PathBuf,
}

/// One number of the statistics.
struct Figure {
    /// Its name in JSON.
    name: &'static str,
    /// What people read.
    label: &'static str,
    value: u64,
}

impl Figure {
    /// Numbers of bytes are shown with a unit; their names end in it.
    fn shown(&self) -> String {
        match self.name.ends_with("_bytes") {
            true => numbers::bytes(self.value),
            false => numbers::count(self.value),
        }
    }
}

fn figures(stats: &Stats) -> Vec<Figure> {
    let figure = |name, label, value| Figure { name, label, value };
    vec![
        figure("seq", "commits so far", stats.seq.into()),
        figure("tables", "tables", stats.tables),
        figure("snapshots", "declared snapshots", stats.snapshots),
        figure("memtable_bytes", "memtables, in memory", stats.memtable_bytes),
        figure("memtable_directory_bytes", "  hash directories", stats.memtable_directory_bytes),
        figure("memtable_entry_bytes", "  records", stats.memtable_entry_bytes),
        figure("memtable_vector_bytes", "  sorted vectors and cursors", stats.memtable_vector_bytes),
        figure("memtable_reserved_bytes", "  held ready besides", stats.memtable_reserved_bytes),
        figure("frozen_memtables", "  waiting to be flushed", stats.frozen_memtables),
        figure("wal_bytes", "write-ahead log", stats.wal_bytes),
        figure("runs", "runs waiting for a merge", stats.runs),
        figure("run_bytes", "  their size", stats.run_bytes),
        figure("base_bytes", "base", stats.base_bytes),
        figure("base_free_bytes", "  free in it", stats.base_free_bytes),
        figure("base_history_bytes", "  kept in it for the past", stats.base_history_bytes),
        figure("retained_bases", "bases kept for the past", stats.retained_bases),
        figure("history_runs", "history runs", stats.history_runs),
        figure("history_bytes", "  their size", stats.history_bytes),
        figure("archived_pages", "archived pages", stats.archived_pages),
        figure("archive_bytes", "  the files that hold them", stats.archive_bytes),
        figure("archive_live_bytes", "  in use of those", stats.archive_live_bytes),
        figure("page_map_bytes", "  the index to them", stats.page_map_bytes),
        figure("cache_bytes", "cache, in memory", stats.cache_bytes),
        figure("cache_budget_bytes", "  its budget", stats.cache_budget_bytes),
    ]
}

pub fn stats(args: &Health, out: &mut Output) -> Result<()> {
    let stats = open::reading(&args.db)?.stats()?;
    let figures = figures(&stats);
    if out.is_json() {
        let mut object: Map<_, _> =
            figures.iter().map(|figure| (figure.name.to_owned(), Value::from(figure.value))).collect();
        object.insert("held_snapshots".to_owned(), stats.held_snapshots.iter().map(held_json).collect());
        if let Some(failure) = stats.prune_failure {
            object.insert("prune_failure".to_owned(), Value::from(failure));
        }
        if let Some(failure) = stats.archive_failure {
            object.insert("archive_failure".to_owned(), Value::from(failure));
        }
        return out.json(&Value::Object(object));
    }
    let width = figures.iter().map(|figure| figure.label.len()).max().unwrap_or(0);
    for figure in &figures {
        out.line(format_args!("{:width$}  {:>12}", figure.label, figure.shown()))?;
    }
    // Those of this process alone: there are some only where something else in it reads meanwhile.
    for held in &stats.held_snapshots {
        let thread = held.thread.as_deref().unwrap_or("a thread without a name");
        out.line(format_args!(
            "held by {thread} for {:.1} s: commit {}, keeping {}",
            held.age.as_secs_f64(),
            held.seq,
            numbers::bytes(held.kept_bytes)
        ))?;
    }
    if let Some(failure) = &stats.archive_failure {
        out.line(format_args!("something is wrong with the history directory: {failure}"))?;
    }
    match &stats.prune_failure {
        Some(failure) => {
            out.line(format_args!("what deleted snapshots kept could not be given back: {failure}"))
        }
        None => Ok(()),
    }
}

fn held_json(held: &HeldSnapshot) -> Value {
    json!({
        "seq": u64::from(held.seq),
        "age_seconds": held.age.as_secs_f64(),
        "thread": held.thread,
        "kept_bytes": held.kept_bytes,
        "sharing": held.sharing,
    })
}

pub fn verify(args: &Health, out: &mut Output) -> Result<()> {
    let spinner = progress::spinner("reading everything");
    let report = open::checking(&args.db).and_then(|db| Ok(db.verify()?));
    spinner.finish_and_clear();
    match report {
        Ok(report) if out.is_json() => out.json(&json!({
            "ok": true,
            "pages": report.pages,
            "archived_pages": report.archived_pages,
            "bases": report.bases,
            "runs": report.runs,
            "records": report.records,
        })),
        Ok(report) => out.line(format_args!(
            "no damage: {} pages, {} runs, {} records read and checked",
            numbers::count(report.pages),
            numbers::count(report.runs),
            numbers::count(report.records),
        )),
        Err(Failure::Damaged(error)) if out.is_json() => {
            out.json(&damage(&error))?;
            Err(Failure::Damaged(error))
        }
        Err(failure) => Err(failure),
    }
}

fn damage(error: &Error) -> Value {
    match error {
        Error::Corruption { path, offset, reason } => {
            json!({ "ok": false, "path": path.to_string_lossy(), "offset": offset, "reason": reason })
        }
        other => json!({ "ok": false, "reason": other.to_string() }),
    }
}
