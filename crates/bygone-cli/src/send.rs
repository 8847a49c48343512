//! `bygone send`, `receive`, `backup`.
//!
//! Owns: streams on standard input and output. Promises: a stream never goes to a terminal; what broke off says how to
//! go on. May call: `open`, `past`, `output`, `failure`.

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;

use bygone::ResumePoint;
use clap::Args;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{open, past};

#[derive(Args)]
pub struct Send {
    /// Directory of the database
    db: PathBuf,
    /// The snapshot to send: a name, an id, or a time as for --as-of
    #[arg(value_name = "S")]
    snapshot: String,
    /// Send only what differs from this snapshot, which the receiver has
    #[arg(long, value_name = "S")]
    from: Option<String>,
    /// Leave out what was received before: what `receive --status` printed there
    #[arg(long, value_name = "POINT")]
    resume: Option<ResumePoint>,
}

#[derive(Args)]
pub struct Receive {
    /// Directory of the database that receives; made if it is missing
    db: PathBuf,
    /// Only print up to where a stream that broke off is there
    #[arg(long)]
    status: bool,
}

#[derive(Args)]
pub struct Backup {
    /// Directory of the database
    db: PathBuf,
    /// Directory of the backup; made, or brought up to date
    backup: PathBuf,
}

pub fn send(args: &Send) -> Result<()> {
    if stdout().is_terminal() {
        return Err(Failure::usage("a stream is no text: send it into a file or a pipe"));
    }
    let db = open::reading(&args.db)?;
    let to = past::find(&db, &args.snapshot)?;
    let from = args.from.as_ref().map(|from| past::find(&db, from)).transpose()?;
    let from = from.as_ref().map(Into::into);
    Ok(db.send_rest(from, &to, args.resume.unwrap_or_default(), stdout().lock())?)
}

pub fn receive(args: &Receive, out: &mut Output) -> Result<()> {
    if args.status {
        let receiving = open::existing(&args.db)?.receiving()?;
        let Some(receiving) = receiving else {
            return Err(Failure::No("nothing is being received".to_owned()));
        };
        return match out.is_json() {
            true => out.json(&json!({
                "from": receiving.from.map(u64::from),
                "to": u64::from(receiving.to),
                "resume": receiving.at.to_string(),
            })),
            false => out.line(receiving.at),
        };
    }
    if stdin().is_terminal() {
        return Err(Failure::usage("a stream is expected on standard input, as `bygone send` writes it"));
    }
    let id = open::or_create(&args.db)?.receive(stdin().lock())?;
    match out.is_json() {
        true => out.json(&json!({ "id": u64::from(id) })),
        false => out.line(id),
    }
}

pub fn backup(args: &Backup, out: &mut Output) -> Result<()> {
    let id = open::existing(&args.db)?.backup(&args.backup)?;
    match out.is_json() {
        true => out.json(&json!({ "id": u64::from(id) })),
        false => out.line(id),
    }
}
