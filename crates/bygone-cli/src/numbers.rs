//! Numbers for people: with units and thousands separators. Programs get plain numbers in JSON.
//!
//! Owns: the choice of units. May call: nothing.

use std::time::{Duration, SystemTime};

use indicatif::{HumanBytes, HumanCount};
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

/// `1,234,567`
pub fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// `1 row`, `1,234,567 rows`
pub fn counted(number: u64, unit: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {unit}{plural}", count(number))
}

/// `1.18 MiB`
pub fn bytes(number: u64) -> String {
    HumanBytes(number).to_string()
}

/// `417 ns`, `12.3 µs`, `1.52 ms`, `2.31 s`: three digits that matter.
pub fn duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (nanoseconds as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanoseconds as f64 / 1e6, "ms"),
        _ => (nanoseconds as f64 / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

/// A span of time as people write it, such as `3 days` or `12h`. Days have 24 hours here, as in UTC.
pub fn parse_span(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?.try_into().ok()
}

/// The same the other way: `1h 30m`.
pub fn span(duration: Duration) -> String {
    match SignedDuration::try_from(duration) {
        Ok(duration) => format!("{duration:#}"),
        Err(_) => "for ever".to_owned(),
    }
}

/// RFC 3339, UTC, as precise as the database knows it, so that it can be given to `--as-of`.
pub fn time(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(timestamp) => timestamp.to_string(),
        // Only a clock that was off by thousands of years gets here.
        Err(_) => "out of range".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_units() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((counted(1, "row"), counted(2000, "row")), ("1 row".to_owned(), "2,000 rows".to_owned()));
        assert_eq!(bytes(1_234_567), "1.18 MiB");
    }

    #[test]
    fn durations_have_three_digits() {
        let cases = [(417, "417 ns"), (12_345, "12.3 µs"), (1_520_000, "1.52 ms"), (2_310_000_000, "2.31 s")];
        for (nanoseconds, shown) in cases {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), shown);
        }
    }

    #[test]
    fn spans_come_back() {
        let cases = [("10 minutes", 600), ("1h30m", 5400), ("2 days", 172_800), ("0s", 0)];
        for (text, seconds) in cases {
            let duration = Duration::from_secs(seconds);
            assert_eq!(parse_span(text), Some(duration));
            assert_eq!(parse_span(&span(duration)), Some(duration), "{}", span(duration));
        }
        assert_eq!(span(Duration::from_secs(5400)), "1h 30m");
        assert!(parse_span("-1h").is_none() && parse_span("soon").is_none());
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time(SystemTime::UNIX_EPOCH + Duration::from_millis(1500)), "1970-01-01T00:00:01.5Z");
    }
}
