//! Case `sets`: one query of a hundred snapshots, as a set query and as a hundred queries.
//!
//! Between two snapshots some of the rows change: `together`, each time others, or `scattered` over the table. The
//! separate queries are text that one connection runs, and that `PRAGMA as_of` turns from snapshot to snapshot. Beside
//! that stands what a connection for each of them takes.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rusqlite::Connection;

use super::rows::Rows;
use super::{SetSizes, Sizes};
use crate::context::Context;
use crate::data::Random;
use crate::engines::sql::{self as engines, Synchronous};
use crate::suites::past::turns::{self, Side};

/// How often the hundred queries on a hundred connections are asked.
const CONNECTION_ROUNDS: usize = 2;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.sets;
    for (changes, together) in [("together", true), ("scattered", false)] {
        let dir = dir.join(changes);
        let Some(engine) = engines::open(&context.engine, &dir, sizes.opening())? else { return Ok(()) };
        let Some(past) = engine.past() else { return Ok(()) };
        let rows = Rows::new(of.rows);
        let connection = engine.connect(Synchronous::Normal)?;
        rows.load(&connection)?;
        let mut snapshots = Vec::new();
        let mut random = Random::new(7);
        for version in 1..=of.snapshots {
            change(of, &connection, &rows, version, together, &mut random)?;
            snapshots.push(past.declare()?);
        }
        engine.settle()?;
        let middle = of.rows / 2;
        for (name, query) in [
            ("point", format!("SELECT version FROM rows WHERE id = {middle}")),
            ("index", format!("SELECT sum(version) FROM rows WHERE place BETWEEN {middle} AND {middle} + 9")),
            (
                "tenth",
                format!(
                    "SELECT sum(version) FROM rows WHERE id BETWEEN {middle} AND {}",
                    middle + of.rows / 10
                ),
            ),
            ("scan", "SELECT sum(version) FROM rows".to_owned()),
        ] {
            let name = format!("sets {name}, {changes}");
            measure(context, of, &connection, &snapshots, &name, &query)?;
            let mut times = Vec::new();
            for _ in 0..CONNECTION_ROUNDS {
                let start = Instant::now();
                for snapshot in &snapshots {
                    past.as_of(*snapshot)?.query_row(&query, [], |row| row.get::<_, i64>(0))?;
                }
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            context.measured(&format!("{name}, a connection each"), 1, turns::median(times), "ms")?;
        }
        drop(connection);
        drop(engine);
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

/// One transaction.
fn change(
    of: &SetSizes,
    connection: &Connection,
    rows: &Rows,
    version: u32,
    together: bool,
    random: &mut Random,
) -> Result<()> {
    let count = of.rows * of.changed_percent / 100;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let first = u64::from(version - 1) * count;
    for index in 0..count {
        let id = if together { 1 + (first + index) % of.rows } else { 1 + random.below(of.rows) };
        rows.update(connection, id, version)?;
    }
    Ok(connection.execute_batch("COMMIT")?)
}

fn measure(
    context: &Context,
    of: &SetSizes,
    connection: &Connection,
    snapshots: &[u64],
    name: &str,
    query: &str,
) -> Result<()> {
    let set = format!("SELECT AggregateDataInVariable(id, '{query}', 'sum') FROM bygone_snapshots");
    let expected = separately(connection, snapshots, query)?;
    let mut ran = 0.0;
    let [times] = turns::take(of.rounds, |side, _| {
        let start = Instant::now();
        let sum: i64 = match side {
            Side::Plain => connection.query_row(&set, [], |row| row.get(0))?,
            Side::Other => separately(connection, snapshots, query)?,
        };
        let time = start.elapsed().as_secs_f64();
        ensure!(sum == expected, "{name}: {sum}, not {expected}");
        if side == Side::Plain {
            ran = runs(connection)?;
        }
        Ok([time * 1e3])
    })?;
    let (as_set, separate) = times.medians();
    context.measured(&format!("{name}, set"), 1, as_set, "ms")?;
    context.measured(&format!("{name}, separate"), 1, separate, "ms")?;
    context.measured(&format!("{name}, separate : set"), 1, times.ratio(), "x")?;
    context.measured(&format!("{name}, runs in the set"), 1, ran, "runs")
}

/// The sum of a query's answers as of each.
fn separately(connection: &Connection, snapshots: &[u64], query: &str) -> Result<i64> {
    let mut sum = 0;
    for snapshot in snapshots {
        connection.pragma_update(None, "as_of", format!("id:{snapshot}"))?;
        sum += connection.query_row(query, [], |row| row.get::<_, i64>(0))?;
    }
    connection.pragma_update(None, "as_of", "now")?;
    Ok(sum)
}

/// How many runs the last set query took.
fn runs(connection: &Connection) -> Result<f64> {
    let told: String = connection.query_row("SELECT bygone_set_stats()", [], |row| row.get(0))?;
    let told: serde_json::Value = serde_json::from_str(&told)?;
    told["runs"].as_f64().context("a number of runs")
}
