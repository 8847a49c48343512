//! Cases `diff` and `delete`: what differs between two snapshots of a large table, and deleting one of many snapshots.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::rows::{self, Rows, Updates};
use super::turns::median;
use super::{DeleteSizes, Sizes, declared, open_declared};
use crate::cold;
use crate::context::Context;
use crate::data::Random;
use crate::engines::past::Keeper;

/// How often the database is opened anew for a first comparison.
const OPENINGS: usize = 5;

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.diff;
    let open = || open_declared(context, dir, sizes.opening());
    let Some(engine) = open()? else { return Ok(()) };
    let rows = Rows::new(of.rows);
    rows.load(&*engine)?;
    let before = engine.commit_and_keep(&[])?;
    engine.settle()?;
    let mut random = Random::new(53);
    let each = of.rows / of.differences;
    let changed: Vec<_> = (0..of.differences).map(|part| part * each + random.below(each)).collect();
    let updates: Vec<_> = changed.iter().map(|index| rows.row(*index, 1)).collect();
    let after = engine.commit_and_keep(&updates)?;

    let compare = |engine: &dyn Keeper| -> Result<f64> {
        let mut found = Vec::with_capacity(changed.len());
        let start = Instant::now();
        declared(engine)?.diff(before, after, &mut |key, before, after| {
            found.push((key.first_chunk().copied().unwrap_or_default(), before, after));
        })?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        let expected = changed.iter().map(|i| (rows.key(*i), Rows::head(*i, 0), Rows::head(*i, 1)));
        ensure!(found.iter().copied().eq(expected), "{} differences, or others", found.len());
        Ok(millis)
    };
    let warm = |engine: &dyn Keeper| -> Result<f64> {
        compare(engine)?;
        Ok(median((0..of.rounds).map(|_| compare(engine)).collect::<Result<_>>()?))
    };
    context.measured("diff, not merged", 1, warm(&*engine)?, "ms")?;
    engine.settle()?;
    context.measured("diff", 1, warm(&*engine)?, "ms")?;
    drop(engine);
    for (name, is_cold) in [("diff, first", false), ("diff, cold", true)] {
        let mut millis = Vec::new();
        for _ in 0..OPENINGS {
            if is_cold {
                cold::evict(dir)?;
            }
            millis.push(compare(&*open()?.context("it was opened before")?)?);
        }
        context.measured(name, 1, median(millis), "ms")?;
    }
    Ok(())
}

pub fn run_delete(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.delete;
    let Some(engine) = open_declared(context, dir, sizes.opening())? else { return Ok(()) };
    let engine = &*engine;
    let rows = Rows::new(of.rows);
    rows.load(engine)?;
    let updates = Updates { of: 0..rows.count, skew: (50, 50), per_transaction: 10 };
    let mut batch = Vec::new();
    let mut kept = Vec::new();
    for transaction in 1..=of.snapshots {
        updates.fill(&rows, transaction, &mut batch);
        kept.push(engine.commit_and_keep(&batch)?);
    }
    engine.settle()?;

    let writer = Writer { engine, of, rows: &rows, stop: AtomicBool::new(false), worst: AtomicU64::new(0) };
    let mut random = Random::new(59);
    // Each from a part of its own: none is deleted twice, and its neighbours stay.
    let each = u64::from(of.snapshots) / of.deletions as u64;
    let chosen: Vec<_> =
        (0..of.deletions as u64).map(|part| part * each + 1 + random.below(each - 2)).collect();
    let (mut own, mut without, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    std::thread::scope(|scope| -> Result<()> {
        let thread = scope.spawn(|| writer.write());
        let deleted = chosen.iter().try_for_each(|index| -> Result<()> {
            without.push(writer.worst_during(|| Ok(()))?);
            beside.push(writer.worst_during(|| {
                let start = Instant::now();
                declared(engine)?.delete(kept[*index as usize])?;
                own.push(start.elapsed().as_secs_f64() * 1e3);
                Ok(())
            })?);
            Ok(())
        });
        writer.stop.store(true, Ordering::Relaxed);
        thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        deleted
    })?;
    let count = of.snapshots;
    context.measured(&format!("delete 1 of {count}"), 1, median(own.clone()), "ms")?;
    context.measured("delete, longest", 1, own.into_iter().fold(0.0, f64::max), "ms")?;
    context.measured("delete, worst commit without", 1, median(without), "ms")?;
    context.measured("delete, worst commit beside", 1, median(beside.clone()), "ms")?;
    context.measured("delete, worst of these", 1, beside.into_iter().fold(0.0, f64::max), "ms")?;

    let mut versions = vec![0; rows.count as usize];
    let mut noted = 1;
    for index in chosen {
        ensure!(engine.view(Some(kept[index as usize])).is_err(), "a snapshot was deleted and is there");
        for neighbour in [index - 1, index + 1] {
            let transaction = neighbour as u32 + 1;
            updates.note(noted..transaction + 1, &mut versions);
            noted = transaction + 1;
            rows::check_scan(engine.view(Some(kept[neighbour as usize]))?.scan()?, &versions)?;
        }
    }
    Ok(())
}

/// Commits at a pace, and how long the longest took.
struct Writer<'e> {
    engine: &'e dyn Keeper,
    of: &'e DeleteSizes,
    rows: &'e Rows,
    stop: AtomicBool,
    /// Nanoseconds. All that is shared is relaxed: nothing is published through it.
    worst: AtomicU64,
}

impl Writer<'_> {
    fn write(&self) -> Result<()> {
        let mut random = Random::new(61);
        let beat = Duration::from_secs(1) / self.of.commits_per_second as u32;
        while !self.stop.load(Ordering::Relaxed) {
            let row = self.rows.row(random.below(self.rows.count), u32::MAX);
            let start = Instant::now();
            self.engine.commit(&[row])?;
            let time = start.elapsed();
            self.worst.fetch_max(time.as_nanos() as u64, Ordering::Relaxed);
            std::thread::sleep(beat.saturating_sub(time));
        }
        Ok(())
    }

    /// The milliseconds of the longest commit in a window that begins with this work.
    fn worst_during(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let window = Duration::from_millis(self.of.window_millis);
        let start = Instant::now();
        self.worst.store(0, Ordering::Relaxed);
        work()?;
        std::thread::sleep(window.saturating_sub(start.elapsed()));
        Ok(self.worst.load(Ordering::Relaxed) as f64 / 1e6)
    }
}
