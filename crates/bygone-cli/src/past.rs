//! Which moment a command reads: `--as-of`, and the two that `diff` compares.
//!
//! Owns: what a moment that was named is for a command: a state to read, or a declared snapshot. Promises: it is named
//! as in SQL; a snapshot's name wins, so a snapshot named `1957` is found by `1957` whatever the ids are. May call:
//! `failure`, `numbers`.

use bygone::{Db, Error, Seq, Snapshot, SnapshotId, SnapshotInfo, SnapshotRef};
use bygone_sql_core::{Moment, NoMoment, understand};
use clap::Args;

use crate::failure::{Failure, Result};
use crate::numbers;

#[derive(Args)]
pub struct AsOf {
    /// Read the past as of this snapshot: a name, an id, a time, or @COMMIT
    ///
    /// Tried in this order: the word now, which is the present; a snapshot's name; if it is all digits, an id;
    /// after an @, the number of a commit; else a time. A time is "2026-05-01 12:00:00" or "2026-05-01" (both
    /// UTC), RFC 3339 such as "2026-05-01T12:00:00+02:00", or "5 minutes ago". It means the latest commit at or
    /// before it, if it lies in the window that `bygone window` shows, else the latest snapshot declared at or
    /// before it. A commit lies in the window, or has a snapshot. Write name:..., id:..., commit:... (or seq:...)
    /// or time:... to leave no choice. PRAGMA as_of in SQL takes the same.
    #[arg(long = "as-of", value_name = "S")]
    text: Option<String>,
}

impl AsOf {
    /// The past that was asked for, if one was.
    pub fn asked(&self, db: &Db) -> Result<Option<SnapshotRef>> {
        match &self.text {
            None => Ok(None),
            Some(text) => past_of(db, text),
        }
    }

    /// The present, or the past that was asked for.
    pub fn view(&self, db: &Db) -> Result<Snapshot> {
        match &self.text {
            None => Ok(db.snapshot()),
            Some(text) => view(db, text),
        }
    }

    /// What was asked for, as it was written.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// For messages: nothing, or ` as of S`.
    pub fn shown(&self) -> String {
        self.text.as_ref().map(|text| format!(" as of {text}")).unwrap_or_default()
    }
}

/// The state that `text` means.
pub fn view(db: &Db, text: &str) -> Result<Snapshot> {
    match past_of(db, text)? {
        None => Ok(db.snapshot()),
        Some(past) => Ok(db.as_of(past)?),
    }
}

/// The past state that `text` means: of a declared snapshot, or of a commit in the window.
pub fn moment(db: &Db, text: &str) -> Result<SnapshotRef> {
    past_of(db, text)?.ok_or_else(|| not_past(text))
}

/// As [`moment`]; `None` for the present.
fn past_of(db: &Db, text: &str) -> Result<Option<SnapshotRef>> {
    let Some(asked) = parse(db, text)? else { return Ok(None) };
    match (&asked, db.window()) {
        // Declared or not, the window has it; or nobody has, and opening it says what the window is.
        (SnapshotRef::Seq(_), _) => Ok(Some(asked)),
        (SnapshotRef::Time(time), Some(window)) if *time >= window.since => Ok(Some(asked)),
        _ => Ok(Some(declared(db, text, asked)?.id.into())),
    }
}

fn not_past(text: &str) -> Failure {
    Failure::usage(format!(
        "{text:?} is the present, and a past state is meant here; name:{text} is a snapshot's name"
    ))
}

/// A state that is the same whenever it is asked for.
pub struct State {
    /// A declared snapshot, or a commit.
    pub asked: SnapshotRef,
    pub seq: Seq,
    /// The snapshot that was declared of it, if one was.
    pub snapshot: Option<SnapshotId>,
}

impl State {
    pub fn of(db: &Db, asked: SnapshotRef) -> Result<State> {
        let seq = db.as_of(asked)?.seq();
        match db.snapshot_info(seq) {
            Err(Error::SnapshotNotFound { .. }) => Ok(State { asked: seq.into(), seq, snapshot: None }),
            found => {
                let id = found?.id;
                Ok(State { asked: id.into(), seq, snapshot: Some(id) })
            }
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.snapshot {
            Some(id) => write!(f, "snapshot {id}"),
            None => write!(f, "commit {}", self.seq),
        }
    }
}

/// The declared snapshot that `text` means.
pub fn find(db: &Db, text: &str) -> Result<SnapshotInfo> {
    declared(db, text, parse(db, text)?.ok_or_else(|| not_past(text))?)
}

/// What `text` means; `None` for the present.
fn parse(db: &Db, text: &str) -> Result<Option<SnapshotRef>> {
    match understand(db, text) {
        Ok(Moment::Now) => Ok(None),
        Ok(Moment::Past(past)) => Ok(Some(past)),
        Err(NoMoment::NotUnderstood(words)) => Err(Failure::usage(words)),
        Err(NoMoment::Unknown(words)) => {
            Err(Failure::No(format!("{words}; `bygone snapshots DB` lists what there is")))
        }
        Err(NoMoment::Database(error)) => Err(error.into()),
    }
}

/// The declared snapshot that is asked for, `text` in the words of who asks.
fn declared(db: &Db, text: &str, asked: SnapshotRef) -> Result<SnapshotInfo> {
    match (db.snapshot_info(asked.clone()), asked) {
        (Err(Error::SnapshotNotFound { deleted: None, .. }), SnapshotRef::Id(id)) => Err(Failure::No(
            format!("no snapshot has the id {id} or is named so; `bygone snapshots DB` lists what there is"),
        )),
        (Err(Error::SnapshotNotFound { .. }), SnapshotRef::Time(_)) => {
            let window = match db.window() {
                Some(window) => format!(", and the window begins at {}", numbers::time(window.since)),
                None => String::new(),
            };
            Err(Failure::No(format!("no snapshot was declared at or before {text:?}{window}")))
        }
        (found, _) => Ok(found?),
    }
}
