//! Case `present`: whether reads and updates of now notice that there is a past.
//!
//! Two databases had the same updates; the one kept every state, the other none. They take turns.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::rows::{self, Query, Rows, Updates};
use super::turns::{self, Side, Turns};
use super::{Sizes, open};
use crate::context::Context;
use crate::data::Random;
use crate::engines::past::{Keeper, Opening};
use crate::meter::thread_cpu_seconds;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.present;
    let opening = Opening { keeps: false, ..sizes.opening() };
    let Some(none) = open(context, &dir.join("none"), opening)? else { return Ok(()) };
    let all = open(context, &dir.join("all"), sizes.opening())?.context("it was opened before")?;
    let (none, all) = (&*none, &*all);
    let rows = Rows::new(of.rows);
    rows.load(none)?;
    rows.load(all)?;
    let updates = Updates { of: 0..rows.count, skew: (50, 50), per_transaction: of.updates_per_transaction };
    let mut kept = Vec::new();
    let mut batch = Vec::new();
    for transaction in 1..=of.snapshots {
        updates.fill(&rows, transaction, &mut batch);
        none.commit(&batch)?;
        kept.push(all.commit_and_keep(&batch)?);
    }
    none.settle()?;
    all.settle()?;
    let mut versions = vec![0; rows.count as usize];
    updates.note(1..of.snapshots + 1, &mut versions);
    let engine = |side| if side == Side::Plain { none } else { all };

    let mut random = Random::new(47);
    // Everything in memory.
    for engine in [none, all] {
        rows::check_scan(engine.view(None)?.scan()?, &versions)?;
    }
    let [gets, cpu] = turns::take(of.turns, |side, _| {
        let mut query = Query::new(&rows, 0..rows.count, of.gets_per_turn, &mut random);
        let (start, cpu) = (Instant::now(), thread_cpu_seconds()?);
        query.run(&mut *engine(side).view(None)?)?;
        let cpu = thread_cpu_seconds()? - cpu;
        let rate = of.gets_per_turn as f64 / start.elapsed().as_secs_f64();
        query.check(&versions)?;
        Ok([rate, 1.0 / cpu])
    })?;
    report(context, "get", "gets/s", &gets)?;
    context.measured("present get, lost, of its cpu", 1, cpu.lost(), "%")?;

    let [scans, cpu] = turns::take(of.turns, |side, _| {
        let (start, cpu) = (Instant::now(), thread_cpu_seconds()?);
        let scanned = engine(side).view(None)?.scan()?;
        let cpu = thread_cpu_seconds()? - cpu;
        let rate = rows.count as f64 / start.elapsed().as_secs_f64();
        rows::check_scan(scanned, &versions)?;
        Ok([rate, 1.0 / cpu])
    })?;
    report(context, "scan", "rows/s", &scans)?;
    context.measured("present scan, lost, of its cpu", 1, cpu.lost(), "%")?;

    let [writes] = turns::take(of.turns, |side, turn| {
        let first = 1 + of.snapshots + turn as u32 * of.transactions_per_turn;
        let transactions = first..first + of.transactions_per_turn;
        let mut all_rows = Vec::new();
        for transaction in transactions {
            updates.fill(&rows, transaction, &mut batch);
            all_rows.extend_from_slice(&batch);
        }
        let engine = engine(side);
        let start = Instant::now();
        for rows in all_rows.chunks(of.updates_per_transaction as usize) {
            engine.commit(rows)?;
        }
        let rate = f64::from(of.transactions_per_turn) / start.elapsed().as_secs_f64();
        engine.settle()?;
        Ok([rate])
    })?;
    report(context, "update", "tx/s", &writes)?;

    // What was kept is there, and both presents are right.
    let checked = |engine: &dyn Keeper, state, versions: &[u32]| -> Result<()> {
        rows::check_scan(engine.view(state)?.scan()?, versions)
    };
    let mut then = vec![0; rows.count as usize];
    updates.note(1..of.snapshots / 2 + 2, &mut then);
    checked(all, Some(kept[of.snapshots as usize / 2]), &then)?;
    let end = 1 + of.snapshots + of.turns as u32 * of.transactions_per_turn;
    updates.note(of.snapshots + 1..end, &mut versions);
    checked(none, None, &versions)?;
    checked(all, None, &versions)
}

fn report(context: &Context, what: &str, unit: &str, rates: &Turns) -> Result<()> {
    let (none, all) = rates.medians();
    context.measured(&format!("present {what}, no past"), 1, none, unit)?;
    context.measured(&format!("present {what}, past behind"), 1, all, unit)?;
    context.measured(&format!("present {what}, lost"), 1, rates.lost(), "%")
}
