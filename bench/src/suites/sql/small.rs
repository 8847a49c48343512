//! Case `small`: transactions of one row, each committed by itself.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use rusqlite::Connection;

use super::Sizes;
use super::rows::{INSERT, Rows, Updates, check_integrity};
use crate::context::Context;
use crate::engines::sql::{self as engines, Synchronous};
use crate::machine;
use crate::meter::Meter;
use crate::suites::new_histogram;
use crate::suites::past::turns::median;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.small;
    let Some(engine) = engines::open(&context.engine, dir, sizes.opening())? else { return Ok(()) };
    let rows = Rows::new(of.rows);
    rows.load(&engine.connect(Synchronous::Normal)?)?;
    let mut versions = vec![0; of.rows as usize];
    let updates = Updates { rows: of.rows, per_transaction: 1 };
    let mut transaction = 1;
    for (name, synchronous, count) in
        [("NORMAL", Synchronous::Normal, of.normal), ("FULL", Synchronous::Full, of.full)]
    {
        engine.settle()?;
        let connection = engine.connect(synchronous)?;
        let (mut rates, mut cpu) = (Vec::new(), Vec::new());
        let mut histogram = new_histogram()?;
        for _ in 0..of.rounds {
            let meter = Meter::start()?;
            let first = transaction;
            for _ in 0..count {
                let start = Instant::now();
                updates.ids(transaction).try_for_each(|id| rows.update(&connection, id, transaction))?;
                histogram.saturating_record(start.elapsed().as_nanos() as u64);
                transaction += 1;
            }
            let cost = meter.cost()?;
            rates.push(cost.per_second(count));
            cpu.push(cost.cpu_nanos_each(count) / 1e3);
            updates.note(first..transaction, &mut versions);
        }
        let case = format!("small update, {name}");
        context.measured(&case, 1, median(rates), "tx/s")?;
        context.measured(&format!("{case}, cpu"), 1, median(cpu), "us/tx")?;
        context.measured(&format!("{case}, p99"), 1, histogram.value_at_quantile(0.99) as f64 / 1e3, "us")?;
        if synchronous == Synchronous::Full {
            let bare = machine::sync_micros(dir)?;
            context.measured(&format!("{case}, bare sync"), 1, 1e6 / bare, "tx/s")?;
        }
        rows.check(&connection, &versions)?;
    }
    let connection = engine.connect(Synchronous::Normal)?;
    insert(context, sizes, &rows, &connection)?;
    check_integrity(&connection)
}

/// Rows behind the last, whose places are behind the last, too.
fn insert(context: &Context, sizes: &Sizes, rows: &Rows, connection: &Connection) -> Result<()> {
    let of = &sizes.small;
    let mut statement = connection.prepare(INSERT)?;
    let (mut rates, mut cpu) = (Vec::new(), Vec::new());
    let mut id = of.rows;
    for _ in 0..of.rounds {
        let meter = Meter::start()?;
        for _ in 0..of.normal {
            id += 1;
            statement.execute((id as i64, id as i64, 0, rows.body(id, 0)))?;
        }
        let cost = meter.cost()?;
        rates.push(cost.per_second(of.normal));
        cpu.push(cost.cpu_nanos_each(of.normal) / 1e3);
    }
    let found: i64 = connection.query_row("SELECT count(*) FROM rows", [], |row| row.get(0))?;
    anyhow::ensure!(found as u64 == id, "{found} rows");
    context.measured("small insert, NORMAL", 1, median(rates), "tx/s")?;
    context.measured("small insert, NORMAL, cpu", 1, median(cpu), "us/tx")
}
