//! Case `open`: the time that it takes to open the newest, the oldest and any of a growing number of snapshots.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::rows::Rows;
use super::turns::median;
use super::{OpenSizes, Sizes, declared, open_declared};
use crate::context::Context;
use crate::data::Random;
use crate::engines::past::Keeper;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let Some(engine) = open_declared(context, dir, sizes.opening())? else { return Ok(()) };
    let of = &sizes.open;
    let rows = Rows::new(of.rows);
    rows.load(&*engine)?;
    let mut random = Random::new(43);
    let mut kept = Vec::new();
    for count in &of.snapshots {
        // Transaction `t` writes row `t`, and so round and round.
        while (kept.len() as u64) < *count {
            let transaction = kept.len() as u32 + 1;
            let row = rows.row(u64::from(transaction) % rows.count, transaction);
            kept.push(engine.commit_and_keep(&[row])?);
        }
        engine.settle()?;
        let last = kept.len() as u64 - 1;
        measure(context, of, &*engine, &kept, &format!("open newest of {count}"), || last)?;
        measure(context, of, &*engine, &kept, &format!("open oldest of {count}"), || 0)?;
        if *count > 1 {
            let any = || random.below(*count);
            measure(context, of, &*engine, &kept, &format!("open any of {count}"), any)?;
        }
        for index in [0, last / 2, last] {
            check(&rows, &*engine, index as u32 + 1, kept[index as usize])?;
        }
    }
    Ok(())
}

fn measure(
    context: &Context,
    of: &OpenSizes,
    engine: &dyn Keeper,
    kept: &[u64],
    name: &str,
    mut index: impl FnMut() -> u64,
) -> Result<()> {
    let declared = declared(engine)?;
    let mut micros = Vec::new();
    // The first batch is there to warm up.
    for _ in 0..=of.batches {
        let chosen: Vec<_> = (0..of.opens_per_batch).map(|_| kept[index() as usize]).collect();
        let start = Instant::now();
        declared.open_each(&chosen)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6 / of.opens_per_batch as f64);
    }
    micros.remove(0);
    context.measured(name, 1, median(micros), "us")
}

/// The row that the snapshot's transaction wrote, and the one that was to be written next.
fn check(rows: &Rows, engine: &dyn Keeper, transaction: u32, id: u64) -> Result<()> {
    let written = u64::from(transaction) % rows.count;
    let next = u64::from(transaction + 1) % rows.count;
    let before = u64::from(transaction + 1).saturating_sub(rows.count) as u32;
    let mut heads = Vec::new();
    engine.view(Some(id))?.heads(&[rows.key(written), rows.key(next)], &mut heads)?;
    let expected = [Rows::head(written, transaction), Rows::head(next, before)];
    anyhow::ensure!(heads == expected, "as of transaction {transaction}: {heads:x?}, not {expected:x?}");
    Ok(())
}
