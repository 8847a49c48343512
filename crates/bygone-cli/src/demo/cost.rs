//! What the demo's past costs, in bytes and in time.
//!
//! Owns: the measurements. Promises: the two sides of every comparison take turns, and medians are compared,
//! so that a busy machine disturbs both alike. May call: `data`, `failure`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bygone::{Db, Durability, Options, Snapshot, Table, Transaction};

use super::data::Survey;
use super::{TABLE, temporary_dir};
use crate::failure::Result;

/// How often all countries are read on each side.
const READ_ROUNDS: usize = 301;
/// How often a survey is committed on each side.
const COMMIT_ROUNDS: usize = 101;

pub struct Cost {
    /// Keys and values of the latest survey.
    pub present_raw_bytes: u64,
    /// Keys and values of all surveys.
    pub all_raw_bytes: u64,
    /// What the present takes on disk: the base without free pages and those that only the past needs.
    pub base_bytes: u64,
    /// What only the past takes on disk: history runs, and pages of the base.
    pub history_bytes: u64,
    pub get_now: Duration,
    /// As of the oldest snapshot.
    pub get_past: Duration,
    pub commit: Duration,
    pub commit_declaring: Duration,
}

pub fn measure(db: &Db, surveys: &[Survey]) -> Result<Cost> {
    // Merged, as a database is that has lived for a while: the present in the base, the past in the history.
    db.merge()?;
    let stats = db.stats()?;
    let (get_now, get_past) = compare_gets(db, surveys)?;
    let (commit, commit_declaring) = compare_commits(surveys)?;
    Ok(Cost {
        present_raw_bytes: surveys.last().map_or(0, raw_bytes),
        all_raw_bytes: surveys.iter().map(raw_bytes).sum(),
        base_bytes: stats.base_bytes.saturating_sub(stats.base_free_bytes + stats.base_history_bytes),
        history_bytes: stats.base_history_bytes
            + stats.history_bytes
            + stats.archive_bytes
            + stats.page_map_bytes,
        get_now,
        get_past,
        commit,
        commit_declaring,
    })
}

fn raw_bytes(survey: &Survey) -> u64 {
    survey.entries.iter().map(|entry| (entry.key.len() + entry.value.len()) as u64).sum()
}

/// One get in the present, and one as of the oldest snapshot.
fn compare_gets(db: &Db, surveys: &[Survey]) -> Result<(Duration, Duration)> {
    let Some(oldest) = surveys.first() else { return Ok(Default::default()) };
    let (now, past) = (db.snapshot(), db.as_of(oldest.name.as_str())?);
    let (now_table, past_table) = (now.table(TABLE)?, past.table(TABLE)?);
    let (now_time, past_time) = take_turns(
        READ_ROUNDS,
        |_| time_gets(&now, &now_table, oldest),
        |_| time_gets(&past, &past_table, oldest),
    )?;
    let gets = oldest.entries.len().max(1) as u32;
    Ok((now_time / gets, past_time / gets))
}

fn time_gets(view: &Snapshot, table: &Table, survey: &Survey) -> Result<Duration> {
    let start = Instant::now();
    for entry in &survey.entries {
        black_box(view.get(table, &entry.key)?);
    }
    Ok(start.elapsed())
}

/// One commit of a whole survey without a declaration, and one with, in a database of its own. Not synced,
/// because the disk's time for that would hide the difference.
fn compare_commits(surveys: &[Survey]) -> Result<(Duration, Duration)> {
    let dir = temporary_dir()?;
    let db = Options::new().durability(Durability::Buffered).open(dir.path())?;
    let table = db.table(TABLE)?;
    let survey = |round: usize| surveys.get(round % surveys.len().max(1));
    take_turns(
        COMMIT_ROUNDS,
        |round| {
            let start = Instant::now();
            fill(&db, &table, survey(round))?.commit()?;
            Ok(start.elapsed())
        },
        |round| {
            let start = Instant::now();
            fill(&db, &table, survey(round))?.commit_with_snapshot(None)?;
            Ok(start.elapsed())
        },
    )
}

fn fill(db: &Db, table: &Table, survey: Option<&Survey>) -> Result<Transaction> {
    let mut tx = db.begin()?;
    for entry in survey.iter().flat_map(|survey| &survey.entries) {
        tx.put(table, &entry.key, &entry.value)?;
    }
    Ok(tx)
}

/// The median times of two sides. They take turns, and take turns at being first, because the second finds
/// warm what the first has touched.
fn take_turns(
    rounds: usize,
    mut one: impl FnMut(usize) -> Result<Duration>,
    mut other: impl FnMut(usize) -> Result<Duration>,
) -> Result<(Duration, Duration)> {
    let (mut one_times, mut other_times) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            one_times.push(one(round)?);
            other_times.push(other(round)?);
        } else {
            other_times.push(other(round)?);
            one_times.push(one(round)?);
        }
    }
    Ok((median(one_times), median(other_times)))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
