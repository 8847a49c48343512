//! Which moment a command reads: `--as-of`, and the two that `diff` compares.
//!
//! Owns: how the text that names a moment is understood. Promises: a snapshot's name always wins, so a snapshot
//! named `1957` is found by `1957` whatever the ids are. May call: `failure`.

use std::time::SystemTime;

use bygone::{Db, Error, Snapshot, SnapshotId, SnapshotInfo};
use clap::Args;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use crate::failure::{Failure, Result};

#[derive(Args)]
pub struct AsOf {
    /// Read the past as of this snapshot: a name, an id, or a time
    ///
    /// Tried in this order: a snapshot's name; if it is all digits, an id; else a time, which means the
    /// latest snapshot declared at or before it. A time is "2026-05-01 12:00:00" or "2026-05-01" (both
    /// UTC), RFC 3339 such as "2026-05-01T12:00:00+02:00", or "5 minutes ago". Write name:..., id:... or
    /// time:... to leave no choice.
    #[arg(long = "as-of", value_name = "S")]
    text: Option<String>,
}

impl AsOf {
    /// The declared snapshot that was asked for, if one was.
    pub fn info(&self, db: &Db) -> Result<Option<SnapshotInfo>> {
        self.text.as_ref().map(|text| find(db, text)).transpose()
    }

    /// The present, or the past that was asked for.
    pub fn view(&self, db: &Db) -> Result<Snapshot> {
        match &self.text {
            None => Ok(db.snapshot()),
            Some(text) => Ok(db.as_of(find(db, text)?.id)?),
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
    Ok(db.as_of(find(db, text)?.id)?)
}

/// The declared snapshot that `text` means.
pub fn find(db: &Db, text: &str) -> Result<SnapshotInfo> {
    if let Some(name) = text.strip_prefix("name:") {
        return Ok(db.snapshot_info(name)?);
    }
    if let Some(digits) = text.strip_prefix("id:") {
        let id = digits.parse().map_err(|_| not_understood(text))?;
        return by_id(db, id);
    }
    if let Some(time) = text.strip_prefix("time:") {
        return by_time(db, text, parse_time(time, Timestamp::now()).ok_or_else(|| not_understood(text))?);
    }
    match db.snapshot_info(text) {
        Err(Error::SnapshotNotFound { deleted: None, .. }) => {}
        found => return Ok(found?),
    }
    if let Ok(id) = text.parse() {
        return by_id(db, id);
    }
    match parse_time(text, Timestamp::now()) {
        Some(time) => by_time(db, text, time),
        None => Err(Failure::No(format!(
            "no snapshot is named {text:?}, and it is neither an id nor a time such as \"2026-05-01 12:00:00\"; \
             `bygone snapshots DB` lists what there is"
        ))),
    }
}

fn by_id(db: &Db, id: u64) -> Result<SnapshotInfo> {
    match db.snapshot_info(SnapshotId::from(id)) {
        Err(Error::SnapshotNotFound { deleted: None, .. }) => Err(Failure::No(format!(
            "no snapshot has the id {id} or is named so; `bygone snapshots DB` lists what there is"
        ))),
        found => Ok(found?),
    }
}

fn by_time(db: &Db, text: &str, time: SystemTime) -> Result<SnapshotInfo> {
    match db.snapshot_info(time) {
        Err(Error::SnapshotNotFound { .. }) => {
            Err(Failure::No(format!("no snapshot was declared at or before {text:?}")))
        }
        found => Ok(found?),
    }
}

fn not_understood(text: &str) -> Failure {
    Failure::usage(format!(
        "{text:?} is not understood: write name:NAME, id:NUMBER, or time:\"2026-05-01 12:00:00\" \
         (UTC, or RFC 3339 with a zone)"
    ))
}

/// A moment in any of the forms that `--as-of` takes.
fn parse_time(text: &str, now: Timestamp) -> Option<SystemTime> {
    let timestamp = if let Ok(timestamp) = text.parse::<Timestamp>() {
        timestamp
    } else if let Ok(civil) = text.parse::<DateTime>() {
        civil.to_zoned(TimeZone::UTC).ok()?.timestamp()
    } else {
        let span: Span = text.parse().ok()?;
        // "5 minutes" without "ago" would be a moment to come, which no snapshot can have.
        if !span.is_negative() && span.fieldwise() != 0.seconds() {
            return None;
        }
        now.to_zoned(TimeZone::UTC).checked_add(span).ok()?.timestamp()
    };
    Some(SystemTime::from(timestamp))
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
