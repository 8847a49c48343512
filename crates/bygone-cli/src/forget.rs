//! `bygone forget`, `hold`, `release`.
//!
//! Owns: how snapshots end, or are kept from it. Promises: what is deleted is listed; with `--dry-run` nothing is
//! deleted. May call: `open`, `past`, `snapshots`, `numbers`, `output`, `failure`.

use std::path::PathBuf;

use bygone::{Retention, SnapshotInfo};
use clap::Args;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{numbers, open, past, snapshots, text};

#[derive(Args)]
pub struct Forget {
    /// Directory of the database
    db: PathBuf,
    /// The snapshots to delete, all or none: names, ids, or times as for --as-of
    #[arg(value_name = "S")]
    snapshots: Vec<String>,
    #[command(flatten)]
    policy: Policy,
    /// Only list what would be deleted
    #[arg(long)]
    dry_run: bool,
}

/// A snapshot is kept if any of the --keep rules keeps it.
#[derive(Args)]
struct Policy {
    /// Keep the latest N
    #[arg(long, value_name = "N")]
    keep_last: Option<u64>,
    /// Keep those declared no longer ago than this, such as "3 days" or "12h"
    #[arg(long, value_name = "SPAN")]
    keep_within: Option<String>,
    /// Keep the latest of each of the last N hours that have any
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u64>,
    /// Keep the latest of each of the last N days that have any
    #[arg(long, value_name = "N")]
    keep_daily: Option<u64>,
    /// Keep the latest of each of the last N weeks that have any
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u64>,
    /// Keep the latest of each of the last N months that have any
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u64>,
    /// Keep all that have a name
    #[arg(long)]
    keep_named: bool,
    /// Delete the oldest until the past takes at most N bytes
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
}

#[derive(Args)]
pub struct Hold {
    /// Directory of the database
    db: PathBuf,
    /// The snapshot: a name, an id, or a time as for --as-of
    #[arg(value_name = "S")]
    snapshot: String,
    /// Who holds it; any number of holders may
    holder: String,
}

impl Policy {
    /// The policy that was asked for, if any rule was.
    fn retention(&self) -> Result<Option<Retention>> {
        let mut retention = Retention::new();
        type Rule = fn(Retention, u64) -> Retention;
        let rules: [(Option<u64>, Rule); 6] = [
            (self.keep_last, Retention::keep_last),
            (self.keep_hourly, Retention::keep_hourly),
            (self.keep_daily, Retention::keep_daily),
            (self.keep_weekly, Retention::keep_weekly),
            (self.keep_monthly, Retention::keep_monthly),
            (self.max_bytes, Retention::max_bytes),
        ];
        for (number, rule) in rules {
            if let Some(number) = number {
                retention = rule(retention, number);
            }
        }
        if let Some(text) = &self.keep_within {
            let age = numbers::parse_span(text).ok_or_else(|| {
                Failure::usage(format!("--keep-within {text:?}: write a span such as \"3 days\" or \"12h\""))
            })?;
            retention = retention.keep_within(age);
        }
        if self.keep_named {
            retention = retention.keep_named();
        }
        Ok((retention != Retention::new()).then_some(retention))
    }
}

pub fn forget(args: &Forget, out: &mut Output) -> Result<()> {
    let policy = args.policy.retention()?;
    let db = if args.dry_run { open::reading(&args.db) } else { open::existing(&args.db) }?;
    let deleted = match (&args.snapshots[..], policy) {
        ([], None) => {
            return Err(Failure::usage(
                "say which snapshots to delete, or give a rule such as --keep-last 30",
            ));
        }
        ([], Some(policy)) if args.dry_run => db.plan_retention(&policy)?,
        ([], Some(policy)) => db.apply_retention(&policy)?,
        (_, Some(_)) => {
            return Err(Failure::usage("give either snapshots to delete or rules of what to keep, not both"));
        }
        (named, None) => {
            let found = named.iter().map(|text| past::find(&db, text)).collect::<Result<Vec<_>>>()?;
            if !args.dry_run {
                db.delete_snapshots(&found)?;
            }
            found
        }
    };
    deleted.iter().try_for_each(|info| tell(info, out))?;
    // The command ends with the database, so there is no background to leave this to.
    if args.dry_run { Ok(()) } else { Ok(db.prune()?) }
}

fn tell(info: &SnapshotInfo, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return out.json(&snapshots::to_json(info));
    }
    match &info.name {
        Some(name) => out.line(format_args!("{} {}", info.id, text::escape(name.as_bytes()))),
        None => out.line(info.id),
    }
}

pub fn hold(args: &Hold) -> Result<()> {
    let db = open::existing(&args.db)?;
    Ok(db.hold_snapshot(&past::find(&db, &args.snapshot)?, &args.holder)?)
}

pub fn release(args: &Hold) -> Result<()> {
    let db = open::existing(&args.db)?;
    Ok(db.release_snapshot(&past::find(&db, &args.snapshot)?, &args.holder)?)
}
