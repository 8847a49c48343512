//! Case `held`: how much the data files grow while a snapshot of the present is held and everything is overwritten.
//!
//! What is compared is the largest size while one is held with the largest while none was, in the same passes over the
//! same records.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{HeldSizes, Sizes};
use crate::context::Context;
use crate::data::{Key, Record};
use crate::engines::snapshots::{self, Opening, Snapshots};
use crate::meter::{directory_bytes, file_bytes};

/// Records that are checked.
const CHECKED: u64 = 500;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.held;
    let (cache_bytes, memtable_bytes) = (sizes.cache_bytes, Some(of.memtable_bytes));
    let opening = Opening { cache_bytes, many: true, memtable_bytes, split: true };
    let own_dir = dir.join("present");
    let engine = snapshots::open(&context.engine, &own_dir, opening)?;
    let engine = &*engine;
    if engine.data_files().is_empty() {
        return Ok(());
    }
    // The first makes the records.
    pass(of, engine, &own_dir, 0)?;
    let mut before = 0;
    for version in 1..=of.passes_before {
        before = before.max(pass(of, engine, &own_dir, version)?);
    }
    let all_before = directory_bytes(dir)?;

    let mut taker = engine.taker()?;
    let held = taker.take(1)?;
    let mut while_held = 0;
    let last = of.passes_before + of.passes;
    let start = Instant::now();
    for version in of.passes_before + 1..=last {
        while_held = while_held.max(pass(of, engine, &own_dir, version)?);
    }
    let rate = (of.passes * of.rows) as f64 / start.elapsed().as_secs_f64();
    context.measured("held, data files after : before", 1, while_held as f64 / before as f64, "x")?;
    let all = directory_bytes(dir)? as f64 / all_before as f64;
    context.measured("held, all files after : before", 1, all, "x")?;
    context.measured("held, puts beside", 1, rate, "puts/s")?;

    for index in (0..of.rows).step_by((of.rows / CHECKED) as usize) {
        let check = |found: Option<Vec<u8>>, version| -> Result<()> {
            let expected = Record::new(index, version);
            ensure!(
                found.as_deref() == Some(&expected.value),
                "record {index} is not that of pass {version}"
            );
            Ok(())
        };
        let key: Key = Record::new(index, 0).key;
        check(held.read(0, &key)?, of.passes_before)?;
        check(engine.taker()?.read(&key)?, last)?;
    }
    Ok(())
}

/// Overwrites every record; answers the largest size of the data files meanwhile.
fn pass(of: &HeldSizes, engine: &dyn Snapshots, dir: &Path, version: u64) -> Result<u64> {
    let mut largest = 0;
    let mut batch = Vec::new();
    for first in (0..of.rows).step_by(of.rows_per_transaction as usize) {
        let end = of.rows.min(first + of.rows_per_transaction);
        batch.clear();
        batch.extend((first..end).map(|index| Record::new(index, version)));
        engine.put(&batch)?;
        engine.make_durable()?;
        let bytes = engine.data_files().iter().map(|name| file_bytes(&dir.join(name)));
        largest = largest.max(bytes.sum());
    }
    Ok(largest)
}
