//! Case `overhead`: random updates with and without a snapshot after each transaction, the past written to disk.
//!
//! Two databases of the same size take turns of some seconds. A turn ends when all that it put off is done, so none
//! pays for another's; `written` are transactions by the time when the last had returned, `settled` by that end.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::rows::{Query, Rows, Updates};
use super::turns::{self, Side};
use super::{OverheadSizes, Sizes, declared, open_declared};
use crate::context::Context;
use crate::data::Random;
use crate::engines::past::{Footprint, Keeper, Opening};
use crate::meter::Meter;

/// Gets that each state is checked by.
const CHECKED: usize = 5000;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let opening = Opening { split: true, ..sizes.opening() };
    for of in &sizes.overhead {
        let (plain_dir, other_dir) = (dir.join("plain"), dir.join("declared"));
        let Some(plain) = open_declared(context, &plain_dir, opening)? else { return Ok(()) };
        let other = open_declared(context, &other_dir, opening)?.context("it was opened before")?;
        measure(context, of, &*plain, &*other)?;
        drop((plain, other));
        std::fs::remove_dir_all(plain_dir)?;
        std::fs::remove_dir_all(other_dir)?;
    }
    Ok(())
}

fn measure(context: &Context, of: &OverheadSizes, plain: &dyn Keeper, other: &dyn Keeper) -> Result<()> {
    let rows = Rows::new(of.rows);
    rows.load(plain)?;
    rows.load(other)?;
    let updates = Updates { of: 0..rows.count, skew: (50, 50), per_transaction: of.updates_per_transaction };
    let loaded = [declared(plain)?.footprint()?, declared(other)?.footprint()?];
    let mut kept = Vec::new();
    let mut batch = Vec::new();
    let count = u64::from(of.transactions_per_turn);
    let [written, settled, cpu] = turns::take(of.turns, |side, turn| {
        let first = 1 + turn as u32 * of.transactions_per_turn;
        let meter = Meter::start()?;
        for transaction in first..first + of.transactions_per_turn {
            updates.fill(&rows, transaction, &mut batch);
            match side {
                Side::Plain => plain.commit(&batch)?,
                Side::Other => kept.push((transaction, other.commit_and_keep(&batch)?)),
            }
        }
        let written = meter.cost()?;
        match side {
            Side::Plain => plain.settle()?,
            Side::Other => other.settle()?,
        }
        let settled = meter.cost()?;
        let cpu = settled.cpu_nanos_each(count * of.updates_per_transaction);
        Ok([written.per_second(count), settled.per_second(count), cpu])
    })?;
    let name = |what: &str| format!("overhead {}, {what}", of.table);
    for (what, turns) in [("written", &written), ("settled", &settled)] {
        let (without, with) = turns.medians();
        context.measured(&name(&format!("{what}, plain")), 1, without, "tx/s")?;
        context.measured(&name(&format!("{what}, declared")), 1, with, "tx/s")?;
        context.measured(&name(&format!("{what}, lost")), 1, turns.lost(), "%")?;
    }
    let (without, with) = cpu.medians();
    context.measured(&name("cpu, plain"), 1, without, "ns/update")?;
    context.measured(&name("cpu, declared"), 1, with, "ns/update")?;
    context.measured(&name("cpu, more"), 1, -cpu.lost(), "%")?;

    let live = (rows.count * 108) as f64;
    let ends = [declared(plain)?.footprint()?, declared(other)?.footprint()?];
    for (side, (start, end)) in ["plain", "declared"].iter().zip(loaded.iter().zip(&ends)) {
        let application = (end.application - start.application) as f64;
        context.measured(&name(&format!("base, {side}")), 1, end.base as f64 / live, "x")?;
        let written = (end.written - start.written) as f64 / application;
        context.measured(&name(&format!("bytes written, {side}")), 1, written, "x")?;
    }
    let application = (ends[1].application - loaded[1].application) as f64;
    let Footprint { kept_in_base, history_runs, pagelog, page_map, .. } = ends[1];
    let history = kept_in_base + history_runs + pagelog + page_map;
    for (what, bytes) in [
        ("history", history),
        ("history: runs", history_runs),
        ("history: pagelog", pagelog),
        ("history: page map", page_map),
        ("history: left in base", kept_in_base),
    ] {
        context.measured(&name(what), 1, bytes as f64 / application, "x")?;
    }
    check(&rows, &updates, plain, other, &kept)
}

/// The present of both, and the past at the beginning, in the middle and near the end.
fn check(
    rows: &Rows,
    updates: &Updates,
    plain: &dyn Keeper,
    other: &dyn Keeper,
    kept: &[(u32, u64)],
) -> Result<()> {
    let mut versions = vec![0; rows.count as usize];
    let mut random = Random::new(41);
    let mut noted = 1;
    let mut check = |engine: &dyn Keeper, state, versions: &[u32]| -> Result<()> {
        let mut query = Query::new(rows, 0..rows.count, CHECKED, &mut random);
        query.run(&mut *engine.view(state)?)?;
        query.check(versions)
    };
    for index in [0, kept.len() / 2, kept.len() - 1] {
        let (transaction, id) = kept[index];
        updates.note(noted..transaction + 1, &mut versions);
        noted = transaction + 1;
        check(other, Some(id), &versions)?;
    }
    check(other, None, &versions)?;
    check(plain, None, &versions)
}
