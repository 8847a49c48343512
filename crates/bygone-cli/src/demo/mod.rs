//! `bygone demo`: 55 years of real data, a crash, and questions about the past.
//!
//! Owns: the story that the demo tells. Promises: every number in it is measured or read in this very run;
//! what it says about the past is checked against the data file first. May call: `loader`, `data`,
//! `questions`, `cost`, `chart`, and the modules that the other commands use.

mod chart;
mod cost;
mod data;
mod loader;
mod questions;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bygone::Db;
use clap::Args;
use console::style;
use serde_json::{Value, json};
use tempfile::TempDir;

pub use loader::{LOADER, Loader, load_and_wait};

use self::cost::Cost;
use self::data::{Facts, Survey};
use self::questions::{Lead, Trend};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{numbers, open, progress};

/// The table that the demo fills.
const TABLE: &str = "countries";

/// What the questions are about: a year each, and countries whose lives changed in different ways.
const POINT_COUNTRY: &str = "Sweden";
const POINT_YEAR: &str = "1957";
const SCAN_YEAR: &str = "1977";
const SCAN_CONTINENT: &str = "Asia";
const SCAN_LIMIT: usize = 5;
const TREND_COUNTRIES: [&str; 3] = ["Sweden", "China", "Rwanda"];

#[derive(Args)]
pub struct Demo {
    /// Make the database in this directory, new or empty, and keep it
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Keep the temporary directory that is used without --dir
    #[arg(long)]
    keep: bool,
}

/// Everything that the demo found out.
struct Findings {
    load_time: Duration,
    open_time: Duration,
    point_then: Facts,
    point_now: Facts,
    leads: Vec<Lead>,
    trends: Vec<Trend>,
    trend_time: Duration,
    cost: Cost,
}

pub fn demo(args: &Demo, out: &mut Output) -> Result<()> {
    let place = Place::choose(args)?;
    let surveys = data::surveys()?;
    let findings = tell(&place, &surveys, out)?;
    if out.is_json() {
        out.json(&to_json(&surveys, &findings, &place))?;
    } else {
        say_what_next(&place, out)?;
    }
    place.leave()
}

fn tell(place: &Place, surveys: &[Survey], out: &mut Output) -> Result<Findings> {
    let rows: usize = surveys.iter().map(|survey| survey.entries.len()).sum();
    let (rows, snapshots) = (numbers::count(rows as u64), surveys.len());
    let countries = surveys.first().map_or(0, |survey| survey.entries.len());

    title(out, "Bygone demo: 55 years of life expectancy, population and income")?;
    say(out, "Data: Gapminder, www.gapminder.org, CC BY 3.0.")?;

    title(out, "1. Load, then crash")?;
    say(
        out,
        format!(
            "A child process commits {snapshots} times. Each commit overwrites all {countries} countries"
        ),
    )?;
    say(out, "and declares a snapshot named after its year. Then the child is killed.")?;
    out.flush()?;
    let load_time = loader::load_and_kill(&place.path, surveys.len())?;
    let load_shown = numbers::duration(load_time);
    say(
        out,
        format!("   {rows} rows, {snapshots} durable commits, {snapshots} snapshots: {load_shown}; SIGKILL."),
    )?;

    title(out, "2. Open again")?;
    let start = Instant::now();
    let db = open::existing(&place.path)?;
    let open_time = start.elapsed();
    questions::check_everything(&db, surveys)?;
    say(
        out,
        format!(
            "   Recovered in {}. Every row as of every year equals the file.",
            numbers::duration(open_time)
        ),
    )?;

    title(out, &format!("3. A point query: {POINT_COUNTRY} as of {POINT_YEAR}"))?;
    let (point_then, point_now) = questions::point(&db)?;
    say(out, format!("   as of {POINT_YEAR}  {}", point_then.shown()))?;
    say(out, format!("   now         {}", point_now.shown()))?;

    title(out, &format!("4. A scan: the longest lives in {SCAN_CONTINENT} as of {SCAN_YEAR}"))?;
    let leads = questions::longest_lives(&db)?;
    for lead in &leads {
        let (then, now) = (lead.then.life_expectancy, lead.now.life_expectancy);
        say(out, format!("   {:<20} {then:>5.1} years   (now {now:.1})", lead.country))?;
    }

    title(out, "5. A trend: life expectancy at birth, the same query as of every snapshot")?;
    let start = Instant::now();
    let trends = questions::trends(&db)?;
    let trend_time = start.elapsed();
    show_trends(&trends, out)?;
    let queries: usize = trends.iter().map(|trend| trend.points.len()).sum();
    say(out, format!("   {queries} queries as of {snapshots} snapshots: {}", numbers::duration(trend_time)))?;

    title(out, "6. What the past costs")?;
    out.flush()?;
    let spinner = progress::spinner("measuring");
    let cost = cost::measure(&db, surveys)?;
    spinner.finish_and_clear();
    show_cost(&cost, surveys, out)?;
    Ok(Findings { load_time, open_time, point_then, point_now, leads, trends, trend_time, cost })
}

fn title(out: &mut Output, text: &str) -> Result<()> {
    match out.is_json() {
        true => Ok(()),
        // `style` colours only a terminal.
        false => out.line(format_args!("\n{}", style(text).bold())),
    }
}

fn say(out: &mut Output, line: impl std::fmt::Display) -> Result<()> {
    if out.is_json() { Ok(()) } else { out.line(line) }
}

fn show_trends(trends: &[Trend], out: &mut Output) -> Result<()> {
    if out.is_json() {
        return Ok(());
    }
    if let Some(chart) = chart::draw(trends) {
        out.line(chart.trim_end())?;
    }
    let names = trends.iter().map(|trend| format!("{:>8}", trend.country)).collect::<String>();
    out.line(format_args!("   year{names}"))?;
    let points = trends.first().map_or(&[][..], |trend| &trend.points);
    for (row, (year, _)) in points.iter().enumerate() {
        let values = trends.iter().filter_map(|trend| trend.points.get(row));
        let cells = values.map(|(_, years)| format!("{years:>8.1}")).collect::<String>();
        out.line(format_args!("   {year}{cells}"))?;
    }
    Ok(())
}

fn show_cost(cost: &Cost, surveys: &[Survey], out: &mut Output) -> Result<()> {
    let oldest = surveys.first().map_or("", |survey| &survey.name);
    let older = surveys.len().saturating_sub(1);
    let times = |a: Duration, b: Duration| format!("{:.2} times", a.as_secs_f64() / b.as_secs_f64());
    let line = |out: &mut Output, what: &str, amount: String, note: &str| {
        say(out, format!("   {what:<34} {amount:>10}   {note}").trim_end())
    };
    line(out, "keys and values of one year", numbers::bytes(cost.present_raw_bytes), "")?;
    line(out, "keys and values of all years", numbers::bytes(cost.all_raw_bytes), "")?;
    line(out, "on disk: base, the present", numbers::bytes(cost.base_bytes), "after a merge")?;
    line(out, &format!("on disk: history, {older} older years"), numbers::bytes(cost.history_bytes), "")?;
    line(out, "get now", numbers::duration(cost.get_now), "median")?;
    let note = times(cost.get_past, cost.get_now);
    line(out, &format!("get as of {oldest}"), numbers::duration(cost.get_past), &note)?;
    line(out, "commit of one year", numbers::duration(cost.commit), "buffered, median")?;
    let note = times(cost.commit_declaring, cost.commit);
    line(out, "commit that declares a snapshot", numbers::duration(cost.commit_declaring), &note)
}

fn say_what_next(place: &Place, out: &mut Output) -> Result<()> {
    title(out, "Next")?;
    let program = std::env::args_os().next().unwrap_or_else(|| OsString::from("bygone"));
    let program = shell_word(&program.to_string_lossy());
    let dir = match place.kept() {
        true => shell_word(&place.path.to_string_lossy()),
        false => {
            out.line(format_args!("   {program} demo --dir gapminder"))?;
            "gapminder".to_owned()
        }
    };
    out.line(format_args!("   {program} snapshots {dir}"))?;
    out.line(format_args!("   {program} get {dir} {TABLE} {POINT_COUNTRY} --as-of {POINT_YEAR}"))?;
    out.line(format_args!("   {program} scan {dir} {TABLE} --as-of {SCAN_YEAR} --prefix S"))?;
    out.line(format_args!("   {program} export {dir} {TABLE} 1992.csv --rows --as-of 1992"))
}

/// A word that a shell takes as it is, or the word in quotes.
fn shell_word(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "_-./+=:,@".contains(character);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn to_json(surveys: &[Survey], findings: &Findings, place: &Place) -> Value {
    let cost = &findings.cost;
    let leads: Vec<Value> = findings
        .leads
        .iter()
        .map(
            |lead| json!({ "country": lead.country, "then": lead.then.to_json(), "now": lead.now.to_json() }),
        )
        .collect();
    let trends: Vec<Value> = findings
        .trends
        .iter()
        .map(|trend| json!({ "country": trend.country, "life_expectancy_years": trend.points }))
        .collect();
    let dir = place.kept().then(|| place.path.to_string_lossy());
    json!({
        "dir": dir,
        "snapshots": surveys.iter().map(|survey| survey.name.as_str()).collect::<Vec<_>>(),
        "rows": surveys.iter().map(|survey| survey.entries.len()).sum::<usize>(),
        "load_seconds": findings.load_time.as_secs_f64(),
        "open_after_kill_seconds": findings.open_time.as_secs_f64(),
        "point": {
            "country": POINT_COUNTRY,
            "as_of": POINT_YEAR,
            "then": findings.point_then.to_json(),
            "now": findings.point_now.to_json(),
        },
        "scan": { "continent": SCAN_CONTINENT, "as_of": SCAN_YEAR, "longest_lives": leads },
        "trend": { "seconds": findings.trend_time.as_secs_f64(), "countries": trends },
        "cost": {
            "present_raw_bytes": cost.present_raw_bytes,
            "all_raw_bytes": cost.all_raw_bytes,
            "base_bytes": cost.base_bytes,
            "history_bytes": cost.history_bytes,
            "get_now_seconds": cost.get_now.as_secs_f64(),
            "get_past_seconds": cost.get_past.as_secs_f64(),
            "commit_seconds": cost.commit.as_secs_f64(),
            "commit_declaring_seconds": cost.commit_declaring.as_secs_f64(),
        },
    })
}

/// Where the demo's database lives.
struct Place {
    path: PathBuf,
    /// Removed when dropped.
    temporary: Option<TempDir>,
}

impl Place {
    fn choose(args: &Demo) -> Result<Self> {
        if let Some(path) = &args.dir {
            return match is_new_or_empty(path) {
                true => Ok(Place { path: path.clone(), temporary: None }),
                false => Err(Failure::usage(format!(
                    "--dir wants a new or an empty directory, and {} is neither",
                    path.display()
                ))),
            };
        }
        let temporary = temporary_dir()?;
        match args.keep {
            true => Ok(Place { path: temporary.keep(), temporary: None }),
            false => Ok(Place { path: temporary.path().to_owned(), temporary: Some(temporary) }),
        }
    }

    fn kept(&self) -> bool {
        self.temporary.is_none()
    }

    /// Removes what is temporary, and says so if that fails.
    fn leave(self) -> Result<()> {
        match self.temporary {
            Some(temporary) => temporary.close().map_err(|error| Failure::file(&self.path, "remove", error)),
            None => Ok(()),
        }
    }
}

fn temporary_dir() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("bygone-demo-")
        .tempdir()
        .map_err(|error| Failure::System(format!("cannot make a temporary directory: {error}")))
}

fn is_new_or_empty(path: &Path) -> bool {
    match path.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// A failure that would mean that the database lost or changed something.
fn wrong(what: impl std::fmt::Display) -> Failure {
    Failure::System(format!("the database does not answer what was committed: {what}"))
}

/// One country as of a snapshot.
fn facts(db: &Db, as_of: Option<&str>, country: &str) -> Result<Facts> {
    let view = match as_of {
        Some(name) => db.as_of(name)?,
        None => db.snapshot(),
    };
    let table = view.table(TABLE)?;
    match view.get(&table, country.as_bytes())? {
        Some(value) => Facts::parse(&value),
        None => Err(wrong(format!("{country} is not there"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(shell_word("target/release/bygone"), "target/release/bygone");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
