//! `bygone window`.
//!
//! Owns: showing and setting the continuous window. Promises: who only looks writes nothing. May call: `open`,
//! `output`, `numbers`, `failure`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{numbers, open};

#[derive(Args)]
pub struct Window {
    /// Directory of the database
    db: PathBuf,
    /// Keep every commit readable for so long, such as "10 minutes" or "2h", or "off" not to; only shown if not given
    ///
    /// It holds for whoever opens the database from now on, until it is set anew. A longer window fills up with
    /// what is committed from now on.
    length: Option<String>,
}

pub fn window(args: &Window, out: &mut Output) -> Result<()> {
    let db = match &args.length {
        None => open::reading(&args.db)?,
        Some(text) => open::with_window(&args.db, length(text)?)?,
    };
    if args.length.is_some() {
        // The command ends with the database, so there is no background to leave this to.
        db.prune()?;
    }
    let Some(window) = db.window() else {
        return match out.is_json() {
            true => out.json(&json!({ "length_seconds": 0 })),
            false => out.line("there is no window: only declared snapshots can be read"),
        };
    };
    if out.is_json() {
        return out.json(&json!({
            "length_seconds": window.length.as_secs_f64(),
            "first": u64::from(window.first),
            "since": numbers::time(window.since),
            "last": u64::from(window.last),
        }));
    }
    out.line(format_args!(
        "{}: commits {} to {}, since {}",
        numbers::span(window.length),
        window.first,
        window.last,
        numbers::time(window.since)
    ))
}

fn length(text: &str) -> Result<Duration> {
    if text == "off" {
        return Ok(Duration::ZERO);
    }
    numbers::parse_span(text).filter(|length| *length >= Duration::from_micros(1)).ok_or_else(|| {
        Failure::usage(format!("{text:?}: write a span such as \"10 minutes\" or \"2h\", or \"off\""))
    })
}
