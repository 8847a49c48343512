//! Which snapshots a policy keeps.
//!
//! Owns: [`Retention`]. Promises: what is held is never among the doomed; a policy without a rule is refused. May
//! call: nothing.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::SnapshotInfo;
use crate::error::{Error, Result};
use crate::utc::civil;

/// Which declared snapshots are kept. A snapshot is kept if any of the `keep` rules keeps it; without such rules
/// all are. Then [`max_bytes`](Retention::max_bytes) may take further ones, the oldest first. Held snapshots
/// are always kept, and do not count for the rules.
///
/// Hours, days, weeks (from Monday) and months are those of UTC.
///
/// ```
/// # fn main() -> bygone::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let db = bygone::Db::open(directory.path().join("db"))?;
/// # for name in ["a", "b", "c"] { db.snapshot_now(name)?; }
/// let policy = bygone::Retention::new().keep_last(2).keep_daily(1);
/// let doomed = db.plan_retention(&policy)?; // a dry run
/// assert_eq!(doomed.len(), 1);
/// assert_eq!(db.apply_retention(&policy)?, doomed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    last: Option<u64>,
    within: Option<Duration>,
    tiers: [Option<u64>; TIERS.len()],
    named: bool,
    max_bytes: Option<u64>,
}

/// The rule's name, and the number of the period that a time belongs to.
type Tier = (&'static str, fn(u64) -> u64);

const TIERS: [Tier; 4] = [("hourly", hour), ("daily", day), ("weekly", week), ("monthly", month)];

fn hour(seconds: u64) -> u64 {
    seconds / 3600
}

fn day(seconds: u64) -> u64 {
    seconds / 86_400
}

/// 1970-01-01 was a Thursday.
fn week(seconds: u64) -> u64 {
    (day(seconds) + 3) / 7
}

fn month(seconds: u64) -> u64 {
    let (year, month, _) = civil(day(seconds));
    year * 12 + month
}

impl Retention {
    /// A policy without rules.
    pub fn new() -> Retention {
        Retention::default()
    }

    /// Keeps the latest `count`.
    pub fn keep_last(mut self, count: u64) -> Self {
        self.last = Some(count);
        self
    }

    /// Keeps those declared no longer ago than this.
    pub fn keep_within(mut self, age: Duration) -> Self {
        self.within = Some(age);
        self
    }

    /// Keeps the latest of each hour, for the last `count` hours that have any.
    pub fn keep_hourly(self, count: u64) -> Self {
        self.keep_tier(0, count)
    }

    /// Keeps the latest of each day, for the last `count` days that have any.
    pub fn keep_daily(self, count: u64) -> Self {
        self.keep_tier(1, count)
    }

    /// Keeps the latest of each week, for the last `count` weeks that have any.
    pub fn keep_weekly(self, count: u64) -> Self {
        self.keep_tier(2, count)
    }

    /// Keeps the latest of each month, for the last `count` months that have any.
    pub fn keep_monthly(self, count: u64) -> Self {
        self.keep_tier(3, count)
    }

    /// Keeps all that have a name.
    pub fn keep_named(mut self) -> Self {
        self.named = true;
        self
    }

    /// Deletes the oldest snapshots until what only the past needs takes at most so many bytes on disk. Goes by
    /// stretches of neighbouring snapshots that share what is kept for them. What the
    /// [window](crate::Options::window) needs does not count, and its snapshots stay.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    fn keep_tier(mut self, tier: usize, count: u64) -> Self {
        self.tiers[tier] = Some(count);
        self
    }

    pub(crate) fn byte_budget(&self) -> Option<u64> {
        self.max_bytes
    }

    fn has_keep_rules(&self) -> bool {
        self.last.is_some() || self.within.is_some() || self.tiers.iter().any(Option::is_some) || self.named
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.has_keep_rules() || self.max_bytes.is_some() {
            return Ok(());
        }
        let reason = "a retention policy without a rule would say nothing of any snapshot".to_owned();
        Err(Error::InvalidArgument { reason })
    }

    /// Of these snapshots, by id, those that no `keep` rule keeps.
    pub(crate) fn doomed(&self, snapshots: &[SnapshotInfo], now: SystemTime) -> Vec<SnapshotInfo> {
        if !self.has_keep_rules() {
            return Vec::new();
        }
        let free: Vec<_> = snapshots.iter().filter(|snapshot| snapshot.holders.is_empty()).collect();
        let mut kept = HashSet::new();
        let last = self.last.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX));
        kept.extend(free.iter().rev().take(last).map(|snapshot| snapshot.id));
        if let Some(within) = self.within {
            // A snapshot of the future has no age.
            let young = |time| now.duration_since(time).map_or(true, |age| age <= within);
            kept.extend(free.iter().filter(|snapshot| young(snapshot.time)).map(|snapshot| snapshot.id));
        }
        for (count, (_, period)) in self.tiers.iter().zip(TIERS) {
            let mut left = count.unwrap_or(0);
            let mut before = None;
            for snapshot in free.iter().rev() {
                let seconds = snapshot.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let period = Some(period(seconds));
                if period == before {
                    continue;
                }
                if left == 0 {
                    break;
                }
                left -= 1;
                before = period;
                kept.insert(snapshot.id);
            }
        }
        let named = |snapshot: &SnapshotInfo| self.named && snapshot.name.is_some();
        free.into_iter()
            .filter(|snapshot| !kept.contains(&snapshot.id) && !named(snapshot))
            .cloned()
            .collect()
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rules = Vec::new();
        rules.extend(self.last.map(|count| format!("last {count}")));
        rules.extend(self.within.map(|age| format!("within {} s", age.as_secs())));
        for (count, (name, _)) in self.tiers.iter().zip(TIERS) {
            rules.extend(count.map(|count| format!("{name} {count}")));
        }
        if self.named {
            rules.push("named".to_owned());
        }
        rules.extend(self.max_bytes.map(|bytes| format!("at most {bytes} bytes")));
        write!(f, "keep {}", rules.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Seq, SnapshotId};

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    fn snapshot(id: u64, seconds: u64) -> SnapshotInfo {
        SnapshotInfo {
            id: SnapshotId(id),
            name: None,
            seq: Seq(id),
            time: UNIX_EPOCH + Duration::from_secs(seconds),
            metadata: Vec::new(),
            holders: Vec::new(),
        }
    }

    /// One every six hours for 100 days from 2026-01-01.
    fn snapshots() -> Vec<SnapshotInfo> {
        (0..400).map(|n| snapshot(n + 1, 1_767_225_600 + n * 6 * HOUR)).collect()
    }

    fn kept(policy: Retention, snapshots: &[SnapshotInfo]) -> Vec<u64> {
        let now = snapshots.last().unwrap().time;
        let doomed = policy.doomed(snapshots, now);
        let is_doomed = |id| doomed.iter().any(|snapshot| snapshot.id == id);
        snapshots.iter().map(|snapshot| snapshot.id).filter(|id| !is_doomed(*id)).map(u64::from).collect()
    }

    #[test]
    fn the_last_ones_are_kept() {
        assert_eq!(kept(Retention::new().keep_last(3), &snapshots()), [398, 399, 400]);
        assert_eq!(kept(Retention::new().keep_last(0), &snapshots()), []);
        assert_eq!(kept(Retention::new().keep_last(u64::MAX), &snapshots()).len(), 400);
    }

    #[test]
    fn young_ones_are_kept() {
        let policy = Retention::new().keep_within(Duration::from_secs(DAY));
        assert_eq!(kept(policy, &snapshots()), [396, 397, 398, 399, 400]);
    }

    #[test]
    fn the_latest_of_each_period_is_kept() {
        assert_eq!(kept(Retention::new().keep_daily(3), &snapshots()), [392, 396, 400]);
        assert_eq!(kept(Retention::new().keep_hourly(2), &snapshots()), [399, 400]);
        // The last day is Friday 2026-04-10, so weeks end on the Sundays 04-05 and 03-29.
        assert_eq!(kept(Retention::new().keep_weekly(3), &snapshots()), [352, 380, 400]);
        let months = kept(Retention::new().keep_monthly(12), &snapshots());
        assert_eq!(months, [31 * 4, (31 + 28) * 4, (31 + 28 + 31) * 4, 400]);
    }

    #[test]
    fn rules_add_up() {
        let policy = Retention::new().keep_last(1).keep_daily(2).keep_monthly(2);
        assert_eq!(kept(policy, &snapshots()), [360, 396, 400]);
    }

    #[test]
    fn held_ones_are_kept_and_count_for_nothing() {
        let mut snapshots = snapshots();
        snapshots[399].holders = vec!["backup".into()];
        assert_eq!(kept(Retention::new().keep_last(2), &snapshots), [398, 399, 400]);
    }

    #[test]
    fn named_ones_are_kept_if_the_policy_says_so() {
        let mut snapshots = snapshots();
        snapshots[7].name = Some("release".into());
        assert_eq!(kept(Retention::new().keep_last(1), &snapshots), [400]);
        assert_eq!(kept(Retention::new().keep_last(1).keep_named(), &snapshots), [8, 400]);
    }

    #[test]
    fn a_policy_without_rules_is_refused() {
        assert!(Retention::new().check().is_err());
        assert!(Retention::new().max_bytes(5).check().is_ok());
        assert_eq!(kept(Retention::new().max_bytes(5), &snapshots()).len(), 400, "that is for another place");
    }

    #[test]
    fn a_policy_says_what_it_is() {
        let policy = Retention::new().keep_last(7).keep_weekly(4).max_bytes(1000);
        assert_eq!(policy.to_string(), "keep last 7, weekly 4, at most 1000 bytes");
    }
}
