//! Which moment a command reads: `--as-of`, and the two that `diff` compares.
//!
//! Owns: how the text that names a moment is understood. Promises: a snapshot's name always wins, so a snapshot
//! named `1957` is found by `1957` whatever the ids are. May call: `failure`, `numbers`.

use bygone::{Db, Error, Seq, Snapshot, SnapshotId, SnapshotInfo, SnapshotRef};
use bygone_sql_core::parse_time;
use clap::Args;
use jiff::Timestamp;

use crate::failure::{Failure, Result};
use crate::numbers;

#[derive(Args)]
pub struct AsOf {
    /// Read the past as of this snapshot: a name, an id, a time, or @COMMIT
    ///
    /// Tried in this order: a snapshot's name; if it is all digits, an id; after an @, the number of a
    /// commit; else a time. A time is "2026-05-01 12:00:00" or "2026-05-01" (both UTC), RFC 3339 such as
    /// "2026-05-01T12:00:00+02:00", or "5 minutes ago". It means the latest commit at or before it, if it
    /// lies in the window that `bygone window` shows, else the latest snapshot declared at or before it. A
    /// commit lies in the window, or has a snapshot. Write name:..., id:..., commit:... or time:... to leave
    /// no choice.
    #[arg(long = "as-of", value_name = "S")]
    text: Option<String>,
}

impl AsOf {
    /// The past that was asked for, if one was.
    pub fn asked(&self, db: &Db) -> Result<Option<SnapshotRef>> {
        self.text.as_ref().map(|text| moment(db, text)).transpose()
    }

    /// The present, or the past that was asked for.
    pub fn view(&self, db: &Db) -> Result<Snapshot> {
        match &self.text {
            None => Ok(db.snapshot()),
            Some(text) => open(db, text),
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

/// The state that `text` means: a declared snapshot's or, by the word `now`, the present one.
pub fn view(db: &Db, text: &str) -> Result<Snapshot> {
    if text == "now" {
        match db.snapshot_info(text) {
            Err(Error::SnapshotNotFound { .. }) => return Ok(db.snapshot()),
            named => return Ok(db.as_of(named?.id)?),
        }
    }
    open(db, text)
}

fn open(db: &Db, text: &str) -> Result<Snapshot> {
    Ok(db.as_of(moment(db, text)?)?)
}

/// The state that `text` means: of a declared snapshot, or of a commit in the window.
pub fn moment(db: &Db, text: &str) -> Result<SnapshotRef> {
    let asked = parse(db, text)?;
    match (&asked, db.window()) {
        // Declared or not, the window has it; or nobody has, and opening it says what the window is.
        (SnapshotRef::Seq(_), _) => Ok(asked),
        (SnapshotRef::Time(time), Some(window)) if *time >= window.since => Ok(asked),
        _ => Ok(declared(db, text, asked)?.id.into()),
    }
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
    declared(db, text, parse(db, text)?)
}

/// What `text` means.
fn parse(db: &Db, text: &str) -> Result<SnapshotRef> {
    let not_understood = || {
        Failure::usage(format!(
            "{text:?} is not understood: write name:NAME, id:NUMBER, commit:NUMBER, or \
             time:\"2026-05-01 12:00:00\" (UTC, or RFC 3339 with a zone)"
        ))
    };
    if let Some(name) = text.strip_prefix("name:") {
        return Ok(name.into());
    }
    if let Some(digits) = text.strip_prefix("id:") {
        return digits.parse().map(id).map_err(|_| not_understood());
    }
    if let Some(digits) = text.strip_prefix("commit:") {
        return digits.parse().map(commit).map_err(|_| not_understood());
    }
    if let Some(time) = text.strip_prefix("time:") {
        return parse_time(time, Timestamp::now()).map(SnapshotRef::Time).ok_or_else(not_understood);
    }
    match db.snapshot_info(text) {
        Err(Error::SnapshotNotFound { deleted: None, .. }) => {}
        found => return Ok(found?.id.into()),
    }
    if let Ok(number) = text.parse() {
        return Ok(id(number));
    }
    if let Some(Ok(number)) = text.strip_prefix('@').map(str::parse) {
        return Ok(commit(number));
    }
    parse_time(text, Timestamp::now()).map(SnapshotRef::Time).ok_or_else(|| {
        Failure::No(format!(
            "no snapshot is named {text:?}, and it is neither an id nor a commit such as @17 nor a time such as \
             \"2026-05-01 12:00:00\"; `bygone snapshots DB` lists what there is"
        ))
    })
}

fn id(number: u64) -> SnapshotRef {
    SnapshotId::from(number).into()
}

fn commit(number: u64) -> SnapshotRef {
    Seq::from(number).into()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a constant");
        let time = parse_time(text, now)?;
        Some(Timestamp::try_from(time).expect("in range").to_string())
    }

    #[test]
    fn times_without_a_zone_are_utc() {
        for text in
            ["2026-05-01 12:00:00", "2026-05-01T12:00", "2026-05-01T12:00:00Z", "2026-05-01 14:00:00+02:00"]
        {
            assert_eq!(parsed(text).as_deref(), Some("2026-05-01T12:00:00Z"), "{text}");
        }
        assert_eq!(parsed("2026-05-01").as_deref(), Some("2026-05-01T00:00:00Z"));
        assert_eq!(parsed("2026-05-01 12:00:00.25").as_deref(), Some("2026-05-01T12:00:00.25Z"));
    }

    #[test]
    fn times_may_be_said_from_now() {
        assert_eq!(parsed("5 minutes ago").as_deref(), Some("2026-05-01T11:55:00Z"));
        assert_eq!(parsed("1 day ago").as_deref(), Some("2026-04-30T12:00:00Z"));
        assert_eq!(parsed("5 minutes"), None);
    }

    #[test]
    fn nonsense_is_no_time() {
        for text in ["", "yesterday-ish", "2026-13-01", "12", "9999999 years ago"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
