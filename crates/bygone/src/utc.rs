//! Times in words.
//!
//! Owns: [`utc`]. May call: nothing.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_SECONDS: u64 = 86_400;

/// A time as people write it, in UTC, to the second; times before 1970 count as 1970.
pub(crate) fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(seconds / DAY_SECONDS);
    let second = seconds % DAY_SECONDS;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a day since 1970-01-01, by Howard Hinnant's `civil_from_days`: years begin in March,
/// so that the leap day is the last.
pub(crate) fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn known_times() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(951_868_799), "2000-02-29 23:59:59 UTC");
        assert_eq!(at(951_868_800), "2000-03-01 00:00:00 UTC");
        assert_eq!(at(4_102_444_800), "2100-01-01 00:00:00 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 UTC", "2100 is no leap year");
    }

    #[test]
    fn days_follow_on_one_another() {
        let mut before = civil(0);
        for day in 1..200_000 {
            let (year, month, of_month) = civil(day);
            let next_day = (year, month, of_month) == (before.0, before.1, before.2 + 1);
            let next_month = of_month == 1 && (year, month) == (before.0, before.1 + 1) && before.2 >= 28;
            let next_year =
                (month, of_month) == (1, 1) && year == before.0 + 1 && (before.1, before.2) == (12, 31);
            assert!(next_day || next_month || next_year, "{before:?} and then {:?}", civil(day));
            before = civil(day);
        }
    }
}
