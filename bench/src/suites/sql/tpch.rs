//! Case `tpch`: the queries of TPC-H, and the same as of a snapshot.
//!
//! Behind the snapshot a tenth of the rows of the large tables is updated, in columns that decide nothing, so that the
//! queries of now and then have as much to do. All answers are compared, to the last bit, with those of SQLite with the
//! same database in memory.

use std::fmt::Display;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rusqlite::{Connection, params_from_iter};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

use super::{Sizes, TpchSizes};
use crate::context::Context;
use crate::engines::sql::{self as engines, OnConnection, Script, Sql, Synchronous};
use crate::suites::past::turns::{self, Side, median};

const SCHEMA: &str = include_str!("tpch_schema.sql");
const QUERIES: &str = include_str!("tpch.sql");

/// What queries look rows up by, beside the keys.
const INDEXES: &str = "
    CREATE INDEX lineitem_part ON lineitem(l_partkey, l_suppkey);
    CREATE INDEX lineitem_supplier ON lineitem(l_suppkey);
    CREATE INDEX orders_customer ON orders(o_custkey);
    CREATE INDEX partsupp_supplier ON partsupp(ps_suppkey);
    ANALYZE;";

/// After the snapshot, a transaction each.
const UPDATES: [&str; 4] = [
    "UPDATE lineitem SET l_extendedprice = l_extendedprice + 1, l_comment = 'updated' WHERE l_orderkey % 10 = 3",
    "UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey % 10 = 3",
    "UPDATE partsupp SET ps_availqty = ps_availqty + 1 WHERE ps_partkey % 10 = 3",
    "UPDATE customer SET c_acctbal = c_acctbal + 1 WHERE c_custkey % 10 = 3",
];

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.tpch;
    let Some(engine) = engines::open(&context.engine, dir, sizes.opening())? else { return Ok(()) };
    let connection = engine.connect(Synchronous::Normal)?;
    load(of, &connection)?;
    engine.settle()?;
    let mut reference = engines::reference()?;
    load(of, &reference.connection)?;

    let queries = queries()?;
    let then = answers(&queries, &mut reference)?;
    let snapshot = engine.past().map(|past| past.declare()).transpose()?;
    for update in UPDATES {
        connection.execute_batch(update)?;
        reference.connection.execute_batch(update)?;
    }
    engine.settle()?;
    let now = answers(&queries, &mut reference)?;
    drop(reference);

    let mut total = 0.0;
    for (query, expected) in queries.iter().zip(&now) {
        let mut times = Vec::new();
        // The first is not counted.
        for round in 0..of.rounds + 1 {
            let time = timed(&connection, query, expected)?;
            if round > 0 {
                times.push(time);
            }
        }
        let time = median(times);
        total += time;
        context.measured(&format!("tpch {}", query.name), 1, time, "ms")?;
    }
    context.measured("tpch, all", 1, total, "ms")?;
    match snapshot {
        Some(snapshot) => as_of(context, of, &*engine, &connection, snapshot, &queries, [&now, &then]),
        None => Ok(()),
    }
}

/// Now and then, in turns.
fn as_of(
    context: &Context,
    of: &TpchSizes,
    engine: &dyn Sql,
    present: &Connection,
    snapshot: u64,
    queries: &[Query],
    [now, then]: [&[Vec<String>]; 2],
) -> Result<()> {
    let past = engine.past().context("an engine that keeps its past")?.as_of(snapshot)?;
    let mut totals = [0.0; 2];
    for (index, query) in queries.iter().enumerate() {
        timed(&past, query, &then[index])?;
        let [times] = turns::take(of.turns, |side, _| {
            let time = match side {
                Side::Plain => timed(present, query, &now[index])?,
                Side::Other => timed(&past, query, &then[index])?,
            };
            Ok([time])
        })?;
        let (present, past) = times.medians();
        totals[0] += present;
        totals[1] += past;
        context.measured(&format!("tpch {}, then : now", query.name), 1, times.ratio(), "x")?;
    }
    context.measured("tpch, all, then", 1, totals[1], "ms")?;
    context.measured("tpch, all, then : now", 1, totals[1] / totals[0], "x")
}

struct Query {
    /// Such as `q01`.
    name: String,
    sql: &'static str,
}

/// Those of the file: each behind a line with its number.
fn queries() -> Result<Vec<Query>> {
    let mut queries = Vec::new();
    for part in QUERIES.split("\n-- ").skip(1) {
        // Other lines behind the two dashes are for who reads the file.
        let Some((number, sql)) = part.split_once('\n') else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        ensure!(number == queries.len() + 1, "query {number} is in the wrong place");
        queries.push(Query { name: format!("q{number:02}"), sql });
    }
    Ok(queries)
}

fn answers(queries: &[Query], of: &mut OnConnection) -> Result<Vec<Vec<String>>> {
    queries.iter().map(|query| of.run(query.sql).with_context(|| query.name.clone())).collect()
}

/// The milliseconds that a query takes, its preparation included.
fn timed(connection: &Connection, query: &Query, expected: &[String]) -> Result<f64> {
    let start = Instant::now();
    let lines = engines::lines(connection, query.sql).with_context(|| query.name.clone())?;
    let time = start.elapsed().as_secs_f64();
    ensure!(lines == expected, "{} answers {lines:?}, not {expected:?}", query.name);
    Ok(time * 1e3)
}

fn load(of: &TpchSizes, connection: &Connection) -> Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    connection.execute_batch(SCHEMA)?;
    let scale = of.scale;
    insert(connection, "region", RegionGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "nation", NationGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "part", PartGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "supplier", SupplierGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "partsupp", PartSuppGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "customer", CustomerGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "orders", OrderGenerator::new(scale, 1, 1).iter())?;
    insert(connection, "lineitem", LineItemGenerator::new(scale, 1, 1).iter())?;
    connection.execute_batch("COMMIT")?;
    Ok(connection.execute_batch(INDEXES)?)
}

/// The generators' rows have a line of text each, with a bar behind every column; tables make numbers of them.
fn insert(connection: &Connection, table: &str, rows: impl Iterator<Item = impl Display>) -> Result<()> {
    let columns = connection.prepare(&format!("SELECT * FROM {table}"))?.column_count();
    let places = vec!["?"; columns].join(", ");
    let mut statement = connection.prepare(&format!("INSERT INTO {table} VALUES ({places})"))?;
    for row in rows {
        let line = row.to_string();
        let line = line.strip_suffix('|').context("a bar at the end")?;
        statement.execute(params_from_iter(line.split('|')))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_queries_have_answers() {
        let queries = queries().unwrap();
        assert_eq!(queries.len(), 22);
        let mut reference = engines::reference().unwrap();
        load(&TpchSizes { scale: 0.01, rounds: 0, turns: 0 }, &reference.connection).unwrap();
        let answers = answers(&queries, &mut reference).unwrap();
        // Some ask for what is rare: at this scale there is none of it.
        assert!(answers.iter().filter(|lines| !lines.is_empty()).count() >= 20);
    }
}
