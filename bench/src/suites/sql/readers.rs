//! Case `readers`: readers beside a writer, both flat out, each on a connection of its own.
//!
//! A transaction gives all rows of a block one version; a query reads a block, and must find one version in it.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::rows::{Rows, check_integrity};
use super::{ReaderSizes, Sizes};
use crate::context::Context;
use crate::data::Random;
use crate::engines::sql::{self as engines, Sql, Synchronous};
use crate::suites::past::turns::median;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.readers;
    let Some(engine) = engines::open(&context.engine, dir, sizes.opening())? else { return Ok(()) };
    let rows = Rows::new(of.rows);
    rows.load(&engine.connect(Synchronous::Normal)?)?;
    let mut version = 0;
    for readers in context.threads_or(&[1, 2, 4]) {
        engine.settle()?;
        let (mut reads, mut commits) = (Vec::new(), Vec::new());
        for _ in 0..of.rounds {
            let round = round(of, &*engine, &rows, readers, &mut version)?;
            reads.push(round.reads);
            commits.push(round.commits);
        }
        context.measured("readers beside a writer, queries", readers, median(reads), "queries/s")?;
        context.measured("readers beside a writer, commits", readers, median(commits), "tx/s")?;
    }
    check_integrity(&engine.connect(Synchronous::Normal)?)
}

/// Of all readers, and of the writer, in a second.
struct Round {
    reads: f64,
    commits: f64,
}

fn round(
    of: &ReaderSizes,
    engine: &dyn Sql,
    rows: &Rows,
    readers: usize,
    version: &mut u32,
) -> Result<Round> {
    let over = Over(AtomicBool::new(false));
    let begin = Barrier::new(readers + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..readers as u64)
            .map(|reader| {
                let (over, begin) = (&over, &begin);
                let seed = u64::from(*version) << 8 | reader;
                scope.spawn(move || {
                    let connection = engine.connect(Synchronous::Normal);
                    begin.wait();
                    read(of, &connection?, rows, seed, over)
                })
            })
            .collect();
        let connection = engine.connect(Synchronous::Normal);
        begin.wait();
        let written = {
            // Also if the writer fails: nobody should wait for ever.
            let _over = RaisedAtEnd(&over);
            connection.and_then(|connection| write(of, &connection, rows, version))
        };
        let mut reads = 0.0;
        for thread in threads {
            reads += thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(Round { reads, commits: written? })
    })
}

/// Whether the readers are to end.
struct Over(AtomicBool);

struct RaisedAtEnd<'o>(&'o Over);

impl Drop for RaisedAtEnd<'_> {
    fn drop(&mut self) {
        // Relaxed: nothing else is told by it.
        self.0.0.store(true, Ordering::Relaxed);
    }
}

fn read(
    of: &ReaderSizes,
    connection: &rusqlite::Connection,
    rows: &Rows,
    seed: u64,
    over: &Over,
) -> Result<f64> {
    let mut random = Random::new(seed);
    let mut select = connection
        .prepare("SELECT count(*), min(version), max(version) FROM rows WHERE id BETWEEN ?1 AND ?2")?;
    let mut count = 0u64;
    let start = Instant::now();
    // Relaxed: see where it is raised.
    while !over.0.load(Ordering::Relaxed) {
        let first = 1 + random.below(rows.count / of.rows_per_block) * of.rows_per_block;
        let found: (i64, i64, i64) = select
            .query_row([first as i64, (first + of.rows_per_block) as i64 - 1], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        ensure!(found.0 as u64 == of.rows_per_block && found.1 == found.2, "block {first}: {found:?}");
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn write(of: &ReaderSizes, connection: &rusqlite::Connection, rows: &Rows, version: &mut u32) -> Result<f64> {
    let mut random = Random::new(u64::from(*version));
    let (mut begin, mut commit) = (connection.prepare("BEGIN IMMEDIATE")?, connection.prepare("COMMIT")?);
    let (start, time) = (Instant::now(), Duration::from_millis(of.millis));
    let mut count = 0u64;
    while start.elapsed() < time {
        *version += 1;
        let first = 1 + random.below(rows.count / of.rows_per_block) * of.rows_per_block;
        begin.execute([])?;
        for id in first..first + of.rows_per_block {
            rows.update(connection, id, *version)?;
        }
        commit.execute([])?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}
