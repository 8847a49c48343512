//! Cases `point` and `range`: queries of a table that nobody writes to, warm and cold.
//!
//! Each query is a read transaction of its own, but those of `in a transaction`. Warm: all was read before. Cold: for
//! each round the database is closed, its files are taken out of the page cache, and it is opened again, before the
//! clock.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rusqlite::Connection;

use super::Sizes;
use super::rows::Rows;
use crate::cold;
use crate::context::Context;
use crate::data::Random;
use crate::engines::sql::{self as engines, Opening, Sql, Synchronous};
use crate::suites::past::turns::median;

/// So many queries of one kind.
type Query = fn(&Bed, &Connection, &mut Random) -> Result<()>;

pub fn run_point(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.reads;
    let Some(bed) = Bed::make(context, sizes, dir)? else { return Ok(()) };
    bed.warm("point by key", of.points, "ns", by_key)?;
    bed.warm("point by key, in a transaction", of.points, "ns", |bed, connection, random| {
        connection.execute_batch("BEGIN")?;
        by_key(bed, connection, random)?;
        Ok(connection.execute_batch("COMMIT")?)
    })?;
    bed.warm("point by index", of.points, "ns", by_index)?;
    bed.cold("point by key, cold", of.points / COLD_PART, "ns", |bed, connection, random| {
        points(bed, connection, random, bed.of.points / COLD_PART, BY_KEY, |rows, id| (id, rows.place(id)))
    })
}

pub fn run_range(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.reads;
    let Some(bed) = Bed::make(context, sizes, dir)? else { return Ok(()) };
    bed.warm("range by key", of.ranges, "us", ranges_by_key)?;
    bed.warm("range by index", of.ranges, "us", ranges_by_index)?;
    bed.warm("scan", 1, "ms", scan)?;
    bed.cold("range by key, cold", of.ranges, "us", ranges_by_key)?;
    bed.cold("range by index, cold", of.ranges, "us", ranges_by_index)?;
    bed.cold("scan, cold", 1, "ms", scan)
}

/// A cold point costs a read of the disk.
const COLD_PART: u64 = 10;

const BY_KEY: &str = "SELECT place, version FROM rows WHERE id = ?1";
const BY_INDEX: &str = "SELECT id, version FROM rows WHERE place = ?1";

/// A database that is made and closed.
struct Bed<'s> {
    context: &'s Context,
    of: &'s super::ReadSizes,
    opening: Opening,
    rows: Rows,
    dir: PathBuf,
}

impl<'s> Bed<'s> {
    fn make(context: &'s Context, sizes: &'s Sizes, dir: &Path) -> Result<Option<Bed<'s>>> {
        let Some(engine) = engines::open(&context.engine, dir, sizes.opening())? else { return Ok(None) };
        let rows = Rows::new(sizes.reads.rows);
        rows.load(&engine.connect(Synchronous::Normal)?)?;
        engine.settle()?;
        Ok(Some(Bed { context, of: &sizes.reads, opening: sizes.opening(), rows, dir: dir.to_owned() }))
    }

    fn open(&self) -> Result<Box<dyn Sql>> {
        engines::open(&self.context.engine, &self.dir, self.opening)?.context("it was opened before")
    }

    fn warm(&self, name: &str, count: u64, unit: &str, query: Query) -> Result<()> {
        let engine = self.open()?;
        let connection = engine.connect(Synchronous::Normal)?;
        self.rows.check(&connection, &vec![0; self.rows.count as usize])?;
        let mut random = Random::new(3);
        query(self, &connection, &mut random)?;
        let mut times = Vec::new();
        for _ in 0..self.of.warm_rounds {
            let start = Instant::now();
            query(self, &connection, &mut random)?;
            times.push(start.elapsed().as_secs_f64());
        }
        self.report(name, count, unit, times)
    }

    fn cold(&self, name: &str, count: u64, unit: &str, query: Query) -> Result<()> {
        let mut random = Random::new(5);
        let mut times = Vec::new();
        for _ in 0..self.of.cold_rounds {
            cold::evict(&self.dir)?;
            let engine = self.open()?;
            let connection = engine.connect(Synchronous::Normal)?;
            let start = Instant::now();
            query(self, &connection, &mut random)?;
            times.push(start.elapsed().as_secs_f64());
        }
        self.report(name, count, unit, times)
    }

    fn report(&self, name: &str, count: u64, unit: &str, times: Vec<f64>) -> Result<()> {
        let per_second = match unit {
            "ms" => 1e3,
            "us" => 1e6,
            _ => 1e9,
        };
        self.context.measured(name, 1, median(times) * per_second / count as f64, unit)
    }
}

fn by_key(bed: &Bed, connection: &Connection, random: &mut Random) -> Result<()> {
    points(bed, connection, random, bed.of.points, BY_KEY, |rows, id| (id, rows.place(id)))
}

fn by_index(bed: &Bed, connection: &Connection, random: &mut Random) -> Result<()> {
    points(bed, connection, random, bed.of.points, BY_INDEX, |rows, id| (rows.place(id), id))
}

/// `of` gives what is asked for, and the first of what is to be found.
fn points(
    bed: &Bed,
    connection: &Connection,
    random: &mut Random,
    count: u64,
    sql: &str,
    of: fn(&Rows, u64) -> (u64, u64),
) -> Result<()> {
    let mut select = connection.prepare_cached(sql)?;
    for _ in 0..count {
        let (asked, expected) = of(&bed.rows, 1 + random.below(bed.rows.count));
        let found: (i64, i64) = select.query_row([asked as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
        ensure!(found == (expected as i64, 0), "{asked}: {found:?}");
    }
    Ok(())
}

fn ranges_by_key(bed: &Bed, connection: &Connection, random: &mut Random) -> Result<()> {
    let sql = "SELECT id, version, body FROM rows WHERE id BETWEEN ?1 AND ?2";
    ranges(bed, connection, random, sql, |_, id| id as i64, 1)
}

fn ranges_by_index(bed: &Bed, connection: &Connection, random: &mut Random) -> Result<()> {
    let sql = "SELECT id, version, body FROM rows WHERE place BETWEEN ?1 AND ?2";
    ranges(bed, connection, random, sql, |rows, id| rows.place(id) as i64, 0)
}

/// `number` is what of a row lies between the ends, which follow on each other from `least` on.
fn ranges(
    bed: &Bed,
    connection: &Connection,
    random: &mut Random,
    sql: &str,
    number: fn(&Rows, u64) -> i64,
    least: u64,
) -> Result<()> {
    let mut select = connection.prepare_cached(sql)?;
    let width = bed.of.rows_per_range;
    for _ in 0..bed.of.ranges {
        let first = least + random.below(bed.rows.count - width);
        let mut found = select.query([first as i64, (first + width) as i64 - 1])?;
        let mut next = first as i64;
        while let Some(row) = found.next()? {
            let id: i64 = row.get(0)?;
            ensure!(number(&bed.rows, id as u64) == next && row.get::<_, i64>(1)? == 0, "row {id}");
            std::hint::black_box(row.get_ref(2)?.as_blob()?[0]);
            next += 1;
        }
        ensure!(next == (first + width) as i64, "a range from {first} ends before {next}");
    }
    Ok(())
}

fn scan(bed: &Bed, connection: &Connection, _: &mut Random) -> Result<()> {
    let sql = "SELECT count(*), sum(id), sum(version) FROM rows NOT INDEXED";
    let found: (i64, i64, i64) =
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let count = bed.rows.count as i64;
    ensure!(found == (count, count * (count + 1) / 2, 0), "{found:?}");
    Ok(())
}
