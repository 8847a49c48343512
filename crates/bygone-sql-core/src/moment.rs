//! Which moment is meant by the text that names it.
//!
//! Owns: how that text is understood. Promises: a snapshot's name wins over its id, and an id over a time, as for the
//! command's `--as-of`; the word `now` always means the present. May call: `failure`.

use std::time::SystemTime;

use bygone::{Db, Error, Seq, Snapshot, SnapshotId};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, SQLITE_ERROR_SNAPSHOT};

/// The past that `text` means; `None` for the present.
///
/// In this order: `now`; a snapshot's name; if it is all digits, an id; a time, which means the latest state at or
/// before it that is kept: of a commit in the window, or else of a snapshot. `name:`, `id:` and `time:` in front leave
/// no choice; `seq:` stands before the number of a commit.
///
/// # Errors
/// If nothing is understood or found, in words.
pub fn find(db: &Db, text: &str) -> Result<Option<Snapshot>> {
    if text.eq_ignore_ascii_case("now") {
        return Ok(None);
    }
    past(db, text).map(Some)
}

fn past(db: &Db, text: &str) -> Result<Snapshot> {
    let not_understood = || {
        Failure::new(
            SQLITE_ERROR,
            format!(
                "{text:?} is not understood: a snapshot's name, its id, a time such as \"2026-05-01 12:00:00\" \
                     (UTC), \"5 minutes ago\", or now"
            ),
        )
    };
    if let Some(name) = text.strip_prefix("name:") {
        return Ok(db.as_of(name)?);
    }
    if let Some(digits) = text.strip_prefix("id:") {
        let id: u64 = digits.parse().map_err(|_| not_understood())?;
        return Ok(db.as_of(SnapshotId::from(id))?);
    }
    if let Some(digits) = text.strip_prefix("seq:") {
        let seq: u64 = digits.parse().map_err(|_| not_understood())?;
        return Ok(db.as_of(Seq::from(seq))?);
    }
    if let Some(time) = text.strip_prefix("time:") {
        let time = parse_time(time, Timestamp::now()).ok_or_else(not_understood)?;
        return Ok(db.as_of(time)?);
    }
    match db.as_of(text) {
        Err(Error::SnapshotNotFound { deleted: None, .. }) => {}
        found => return Ok(found?),
    }
    if let Ok(id) = text.parse::<u64>() {
        return Ok(db.as_of(SnapshotId::from(id))?);
    }
    match parse_time(text, Timestamp::now()) {
        Some(time) => Ok(db.as_of(time)?),
        None => Err(Failure::new(
            SQLITE_ERROR_SNAPSHOT,
            format!(
                "no snapshot is named {text:?}, and it is neither an id nor a time such as \
                     \"2026-05-01 12:00:00\" (UTC) or \"5 minutes ago\""
            ),
        )),
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
        assert_eq!(parsed("5 minutes ago").as_deref(), Some("2026-05-01 11:55:00.000000"));
        for text in ["", "5 minutes", "yesterday-ish", "2026-13-01", "12"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_understood() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_777_636_800_123_456);
        assert_eq!(parse_time(&written(time), Timestamp::UNIX_EPOCH), Some(time));
    }
}
