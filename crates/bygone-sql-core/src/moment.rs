//! Which moment is meant by the text that names it.
//!
//! Owns: how that text is understood, in SQL and on the command line. Promises: a snapshot's name wins over its id, and
//! an id over a time; the word `now` always means the present. May call: `failure`.

use std::time::SystemTime;

use bygone::{Db, Error, Seq, Snapshot, SnapshotId, SnapshotRef};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, SQLITE_ERROR_SNAPSHOT};

/// What a text means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The present.
    Now,
    /// A snapshot, a commit, or a time. Whether there is one, or what is kept of it, only [`Db::as_of`] tells.
    Past(SnapshotRef),
}

/// Why a text names no moment.
#[derive(Debug)]
pub enum NoMoment {
    /// It makes no sense behind the word that it begins with.
    NotUnderstood(String),
    /// No snapshot has this name, and it is nothing else either.
    Unknown(String),
    /// The database did not tell.
    Database(Error),
}

/// Understands a text: `now`; a snapshot's name; all digits, an id; behind an `@`, the number of a commit; else a time.
/// The first that there is counts. `name:`, `id:`, `commit:` and `time:` leave no choice; `seq:` is as `commit:`.
///
/// # Errors
/// Why it names no moment.
pub fn understand(db: &Db, text: &str) -> std::result::Result<Moment, NoMoment> {
    let not_understood = || {
        NoMoment::NotUnderstood(format!(
            "{text:?} is not understood: write name:NAME, id:NUMBER, commit:NUMBER, time:\"2026-05-01 12:00:00\" \
             (UTC, or RFC 3339 with a zone), or now"
        ))
    };
    let id = |number: u64| Moment::Past(SnapshotId::from(number).into());
    let commit = |number: u64| Moment::Past(Seq::from(number).into());
    let at = |time: SystemTime| Moment::Past(SnapshotRef::Time(time));
    if text.eq_ignore_ascii_case("now") {
        return Ok(Moment::Now);
    }
    if let Some(name) = text.strip_prefix("name:") {
        return Ok(Moment::Past(name.into()));
    }
    if let Some(digits) = text.strip_prefix("id:") {
        return digits.parse().map(id).map_err(|_| not_understood());
    }
    if let Some(digits) = text.strip_prefix("commit:").or_else(|| text.strip_prefix("seq:")) {
        return digits.parse().map(commit).map_err(|_| not_understood());
    }
    if let Some(time) = text.strip_prefix("time:") {
        return parse_time(time, Timestamp::now()).map(at).ok_or_else(not_understood);
    }
    match db.snapshot_info(text) {
        Err(Error::SnapshotNotFound { deleted: None, .. }) => {}
        found => return Ok(Moment::Past(found.map_err(NoMoment::Database)?.id.into())),
    }
    if let Ok(number) = text.parse() {
        return Ok(id(number));
    }
    if let Some(Ok(number)) = text.strip_prefix('@').map(str::parse) {
        return Ok(commit(number));
    }
    parse_time(text, Timestamp::now()).map(at).ok_or_else(|| {
        NoMoment::Unknown(format!(
            "no snapshot is named {text:?}, and it is neither an id nor a commit such as @17 nor a time such as \
             \"2026-05-01 12:00:00\" (UTC) or \"5 minutes ago\""
        ))
    })
}

impl From<NoMoment> for Failure {
    fn from(error: NoMoment) -> Failure {
        match error {
            NoMoment::NotUnderstood(text) => Failure::new(SQLITE_ERROR, text),
            NoMoment::Unknown(text) => Failure::new(SQLITE_ERROR_SNAPSHOT, text),
            NoMoment::Database(error) => error.into(),
        }
    }
}

/// The past that `text` means; `None` for the present.
///
/// # Errors
/// If nothing is understood or found, in words.
pub(crate) fn find(db: &Db, text: &str) -> Result<Option<Snapshot>> {
    match understand(db, text)? {
        Moment::Now => Ok(None),
        Moment::Past(past) => Ok(Some(db.as_of(past)?)),
    }
}

/// A moment in any of the forms that a time may have, here and where the command takes one.
pub fn parse_time(text: &str, now: Timestamp) -> Option<SystemTime> {
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

/// A time as SQLite's own date functions write it, in UTC, to the microsecond.
pub fn written(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(timestamp) => timestamp.strftime("%Y-%m-%d %H:%M:%S.%6f").to_string(),
        // Out of the years that have four digits.
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parsed(text: &str) -> Option<String> {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a constant");
        Some(written(parse_time(text, now)?))
    }

    #[test]
    fn times_have_the_forms_that_people_use() {
        for text in
            ["2026-05-01 12:00:00", "2026-05-01T12:00", "2026-05-01T12:00:00Z", "2026-05-01 14:00:00+02:00"]
        {
            assert_eq!(parsed(text).as_deref(), Some("2026-05-01 12:00:00.000000"), "{text}");
        }
        assert_eq!(parsed("2026-05-01").as_deref(), Some("2026-05-01 00:00:00.000000"));
        assert_eq!(parsed("2026-05-01 12:00:00.25").as_deref(), Some("2026-05-01 12:00:00.250000"));
        assert_eq!(parsed("1 day ago").as_deref(), Some("2026-04-30 12:00:00.000000"));
        assert_eq!(parsed("5 minutes ago").as_deref(), Some("2026-05-01 11:55:00.000000"));
        for text in ["", "5 minutes", "yesterday-ish", "2026-13-01", "12", "9999999 years ago"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_understood() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_777_636_800_123_456);
        assert_eq!(parse_time(&written(time), Timestamp::UNIX_EPOCH), Some(time));
    }
}
