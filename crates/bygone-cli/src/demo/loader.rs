//! The process that loads the demo's data and is killed for it.
//!
//! Owns: both ends of it, and the lines that they exchange: the child writes the name of each snapshot once
//! its commit is durable, then the time that it took in microseconds, and waits. Promises: a child never
//! outlives its parent by more than a moment. May call: `data`, `open`, `output`, `progress`, `failure`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::{TABLE, data};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{open, progress};

/// The hidden command that a child is started with.
pub const LOADER: &str = "demo-loader";

#[derive(Args)]
pub struct Loader {
    dir: PathBuf,
}

/// What the child does: loads, tells, and waits to be killed.
pub fn load_and_wait(args: &Loader, out: &mut Output) -> Result<()> {
    let surveys = data::surveys()?;
    let start = Instant::now();
    let db = open::or_create(&args.dir)?;
    let table = db.table(TABLE)?;
    for survey in &surveys {
        let mut tx = db.begin()?;
        for entry in &survey.entries {
            tx.put(&table, &entry.key, &entry.value)?;
        }
        tx.commit_with_snapshot(survey.name.as_str())?;
        out.line(&survey.name)?;
        out.flush()?;
    }
    out.line(start.elapsed().as_micros())?;
    out.flush()?;
    // The parent holds the other end: this returns only if it dies before it kills.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

/// Starts a child that loads `snapshots` snapshots, kills it when it is done, and answers how long it loaded.
pub fn load_and_kill(dir: &Path, snapshots: usize) -> Result<Duration> {
    let cannot =
        |what: &str, error: std::io::Error| Failure::System(format!("cannot {what} the loader: {error}"));
    let program = std::env::current_exe().map_err(|error| cannot("find", error))?;
    let mut child = Command::new(program)
        .arg(LOADER)
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot("start", error))?;

    let bar = progress::steps(snapshots as u64, "snapshots");
    let mut loaded = None;
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout).lines().map_while(std::io::Result::ok);
        let declared = lines.by_ref().take(snapshots).inspect(|_| bar.inc(1)).count();
        if declared == snapshots {
            loaded = lines.next().and_then(|line| line.parse().ok()).map(Duration::from_micros);
        }
    }
    bar.finish_and_clear();
    // A child that is gone already needs no killing; what it said, or did not say, decides.
    let _ = child.kill();
    let ended = child.wait_with_output().map_err(|error| cannot("wait for", error))?;
    loaded.ok_or_else(|| {
        let said = String::from_utf8_lossy(&ended.stderr);
        let said = said.trim().strip_prefix("bygone: ").unwrap_or("it says nothing");
        Failure::System(format!("the loader ended before it had loaded everything: {said}"))
    })
}
