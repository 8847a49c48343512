//! Case `insert`: many rows in one transaction.
//!
//! Each round is over a new database. `settled` counts until all is where it stays: merged, or checkpointed.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::Sizes;
use super::rows::{Rows, check_integrity};
use crate::context::Context;
use crate::engines::sql::{self as engines, Synchronous};
use crate::meter::Meter;
use crate::suites::past::turns::median;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let rows = Rows::new(sizes.insert.rows);
    for (name, indexed) in [("insert in order", false), ("insert in random order, indexed", true)] {
        let mut figures: [Vec<f64>; 3] = Default::default();
        for _ in 0..sizes.insert.rounds {
            let dir = dir.join("round");
            let Some(engine) = engines::open(&context.engine, &dir, sizes.opening())? else { return Ok(()) };
            let connection = engine.connect(Synchronous::Normal)?;
            Rows::create(&connection, indexed)?;
            let meter = Meter::start()?;
            if indexed {
                // The other way round, places are in order, and ids are scattered.
                let inverse = inverse(&rows)?;
                rows.insert(&connection, inverse.into_iter())?;
            } else {
                rows.insert(&connection, 1..=rows.count)?;
            }
            let written = meter.cost()?;
            engine.settle()?;
            let settled = meter.cost()?;
            let values = [
                written.per_second(rows.count),
                settled.per_second(rows.count),
                settled.cpu_nanos_each(rows.count),
            ];
            figures.iter_mut().zip(values).for_each(|(figures, value)| figures.push(value));
            rows.check(&connection, &vec![0; rows.count as usize])?;
            check_integrity(&connection)?;
            drop(connection);
            drop(engine);
            std::fs::remove_dir_all(&dir)?;
        }
        let [written, settled, cpu] = figures.map(median);
        context.measured(name, 1, written, "rows/s")?;
        context.measured(&format!("{name}, settled"), 1, settled, "rows/s")?;
        context.measured(&format!("{name}, settled, cpu"), 1, cpu, "ns/row")?;
    }
    Ok(())
}

/// The ids in the order of their places.
fn inverse(rows: &Rows) -> Result<Vec<u64>> {
    let mut ids = vec![0; rows.count as usize];
    for id in 1..=rows.count {
        *ids.get_mut(rows.place(id) as usize).context("a place")? = id;
    }
    Ok(ids)
}
