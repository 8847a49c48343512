//! Case `snapshots`: small transactions with a snapshot declared by each, and without.
//!
//! Two databases of the same size take turns. A turn ends when all it put off is done, so none pays for another's;
//! `written` are transactions by the time when the last had returned, `settled` by that end.

use std::path::Path;

use anyhow::{Context as _, Result};
use rusqlite::Connection;

use super::Sizes;
use super::rows::{Rows, Updates, check_integrity};
use crate::context::Context;
use crate::engines::sql::{self as engines, Synchronous};
use crate::meter::Meter;
use crate::suites::past::turns::{self, Side};

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.snapshots;
    let open = |name: &str| engines::open(&context.engine, &dir.join(name), sizes.opening());
    let (Some(plain), Some(other)) = (open("plain")?, open("declared")?) else { return Ok(()) };
    if other.past().is_none() {
        return Ok(());
    }
    let rows = Rows::new(of.rows);
    let connections = [plain.connect(Synchronous::Normal)?, other.connect(Synchronous::Normal)?];
    for (engine, connection) in [&plain, &other].into_iter().zip(&connections) {
        rows.load(connection)?;
        engine.settle()?;
    }
    let updates = Updates { rows: of.rows, per_transaction: of.updates_per_transaction };
    let count = u64::from(of.transactions_per_turn);
    let [written, settled, cpu] = turns::take(of.turns, |side, turn| {
        let first = 1 + turn as u32 * of.transactions_per_turn;
        let (engine, connection, declares) = match side {
            Side::Plain => (&plain, &connections[0], false),
            Side::Other => (&other, &connections[1], true),
        };
        let meter = Meter::start()?;
        for transaction in first..first + of.transactions_per_turn {
            commit(connection, &rows, &updates, transaction, declares)?;
        }
        let written = meter.cost()?;
        engine.settle()?;
        let settled = meter.cost()?;
        let cpu = settled.cpu_nanos_each(count) / 1e3;
        Ok([written.per_second(count), settled.per_second(count), cpu])
    })?;
    for (what, turns) in [("written", &written), ("settled", &settled)] {
        let (without, with) = turns.medians();
        context.measured(&format!("snapshots, {what}, plain"), 1, without, "tx/s")?;
        context.measured(&format!("snapshots, {what}, declared"), 1, with, "tx/s")?;
        context.measured(&format!("snapshots, {what}, lost"), 1, turns.lost(), "%")?;
    }
    let (without, with) = cpu.medians();
    context.measured("snapshots, cpu, plain", 1, without, "us/tx")?;
    context.measured("snapshots, cpu, declared", 1, with, "us/tx")?;
    context.measured("snapshots, cpu, more", 1, -cpu.lost(), "%")?;

    // The past at the beginning, in the middle and near the end, and the present of both.
    let past = other.past().context("it was there before")?;
    let last = of.turns as u32 * of.transactions_per_turn;
    let mut versions = vec![0; of.rows as usize];
    let mut noted = 1;
    for transaction in [1, last / 2, last - 1, last] {
        updates.note(noted..transaction + 1, &mut versions);
        noted = transaction + 1;
        // Ids count from 1, and this database has had no other snapshots.
        rows.check(&past.as_of(u64::from(transaction))?, &versions)?;
    }
    for connection in &connections {
        rows.check(connection, &versions)?;
        check_integrity(connection)?;
    }
    Ok(())
}

fn commit(
    connection: &Connection,
    rows: &Rows,
    updates: &Updates,
    transaction: u32,
    declares: bool,
) -> Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    for id in updates.ids(transaction) {
        rows.update(connection, id, transaction)?;
    }
    if declares {
        connection.prepare_cached("SELECT snapshot_now()")?.query_row([], |_| Ok(()))?;
    }
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}
