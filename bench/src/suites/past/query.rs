//! Case `query`: 2,048 random records as of a snapshot, against the same query now.
//!
//! The snapshot's pages are shared with the present, or kept in the file of the present, or archived. The clock has
//! the opening of the view in it. Warm: everything was read before. Cold: for each query the database is closed, its
//! files are taken out of the page cache, and it is opened again, before the clock.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::rows::{self, Query, Rows, Updates};
use super::turns::{self, Side};
use super::{QuerySizes, Sizes, declared, open_declared};
use crate::cold;
use crate::context::Context;
use crate::data::Random;
use crate::engines::past::{Keeper, Opening};
use crate::meter::thread_cpu_seconds;

/// Percent of the updates, and of the rows that they go to.
const SKEWS: [(u64, u64); 3] = [(50, 50), (80, 20), (99, 1)];

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let of = &sizes.query;
    let rows = Rows::new(of.rows);
    let here = sizes.opening();
    let elsewhere = Opening { split: true, ..here };
    let all = 0..rows.count;
    let few = rows.count / 10 * 9..rows.count;
    let per_transaction = of.updates_per_transaction;
    // Enough to touch every page.
    let passing = (rows.count / per_transaction) as u32;

    let updates = Updates { of: few.clone(), skew: (50, 50), per_transaction };
    let Some(bed) = Bed::make(context, of, dir, &rows, here, updates, passing, Snapshots::First)? else {
        return Ok(());
    };
    bed.measure("shared", &[("", 0)], 0..few.start)?;

    let updates = Updates { of: all.clone(), skew: (50, 50), per_transaction };
    let bed = Bed::make(context, of, dir, &rows, here, updates, passing, Snapshots::First)?;
    let bed = bed.context("it could be made before")?;
    let kept = declared(&*bed.open()?)?.footprint()?.kept_in_base;
    ensure!(kept * 2 > rows.count * 108, "only {kept} bytes are kept in the base");
    bed.measure("kept", &[("", 0)], all.clone())?;

    for skew in SKEWS {
        let updates = Updates { of: all.clone(), skew, per_transaction };
        let bed = Bed::make(context, of, dir, &rows, elsewhere, updates, of.transactions, Snapshots::Each)?;
        let bed = bed.context("it could be made before")?;
        let footprint = declared(&*bed.open()?)?.footprint()?;
        ensure!(footprint.archived_pages > 0, "no page is archived");
        // But what the last superblock superseded.
        let left = footprint.kept_in_base;
        ensure!(left * 100 < footprint.pagelog, "{left} bytes are not archived");
        let young = bed.kept.len() * 9 / 10;
        let name = format!("archived {}/{}", skew.0, skew.1);
        bed.measure(&name, &[(" old", 0), (" young", young)], all.clone())?;
    }
    Ok(())
}

/// After which transactions a snapshot is declared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshots {
    First,
    Each,
}

/// A database that is made and closed.
struct Bed<'c> {
    context: &'c Context,
    of: &'c QuerySizes,
    rows: &'c Rows,
    updates: Updates,
    transactions: u32,
    dir: PathBuf,
    opening: Opening,
    /// Transactions and their snapshots.
    kept: Vec<(u32, u64)>,
}

impl<'c> Bed<'c> {
    #[allow(clippy::too_many_arguments)]
    fn make(
        context: &'c Context,
        of: &'c QuerySizes,
        dir: &Path,
        rows: &'c Rows,
        opening: Opening,
        updates: Updates,
        transactions: u32,
        snapshots: Snapshots,
    ) -> Result<Option<Bed<'c>>> {
        let dir = dir.join("bed");
        let Some(engine) = open_declared(context, &dir, opening)? else { return Ok(None) };
        rows.load(&*engine)?;
        let mut kept = Vec::new();
        let mut batch = Vec::new();
        for transaction in 1..=transactions {
            updates.fill(rows, transaction, &mut batch);
            if transaction == 1 || snapshots == Snapshots::Each {
                kept.push((transaction, engine.commit_and_keep(&batch)?));
            } else {
                engine.commit(&batch)?;
            }
        }
        engine.settle()?;
        Ok(Some(Bed { context, of, rows, updates, transactions, dir, opening, kept }))
    }

    fn open(&self) -> Result<Box<dyn Keeper>> {
        open_declared(self.context, &self.dir, self.opening)?.context("it was opened before")
    }

    /// Queries of these rows, as of these of the snapshots; then the database is removed.
    fn measure(self, name: &str, snapshots: &[(&str, usize)], of: Range<u64>) -> Result<()> {
        let mut now = vec![0; self.rows.count as usize];
        self.updates.note(1..self.transactions + 1, &mut now);
        for (age, index) in snapshots {
            let (transaction, id) = self.kept[*index];
            let mut then = vec![0; self.rows.count as usize];
            self.updates.note(1..transaction + 1, &mut then);
            let states = States { now: &now, then: &then, id, of: of.clone() };
            let name = format!("query {name}{age}");
            self.warm(&name, &states)?;
            self.cold(&name, &states)?;
        }
        std::fs::remove_dir_all(&self.dir)?;
        Ok(())
    }

    fn warm(&self, name: &str, states: &States) -> Result<()> {
        let engine = self.open()?;
        rows::check_scan(engine.view(None)?.scan()?, states.now)?;
        rows::check_scan(engine.view(Some(states.id))?.scan()?, states.then)?;
        let mut random = Random::new(31);
        let turn = |side, _| self.query(&*engine, states, side, &mut random);
        let [times, cpu] = turns::take(self.of.warm_rounds, turn)?;
        self.report(&format!("{name}, warm"), &times)?;
        self.context.measured(&format!("{name}, warm, then : now, cpu"), 1, cpu.ratio(), "x")
    }

    fn cold(&self, name: &str, states: &States) -> Result<()> {
        let mut random = Random::new(37);
        let [times, _] = turns::take(self.of.cold_rounds, |side, _| {
            cold::evict(&self.dir)?;
            self.query(&*self.open()?, states, side, &mut random)
        })?;
        self.report(&format!("{name}, cold"), &times)
    }

    /// Answers the microseconds that it took, and how many of them this thread had a processor.
    fn query(
        &self,
        engine: &dyn Keeper,
        states: &States,
        side: Side,
        random: &mut Random,
    ) -> Result<[f64; 2]> {
        let (state, versions) = match side {
            Side::Plain => (None, states.now),
            Side::Other => (Some(states.id), states.then),
        };
        let mut query = Query::new(self.rows, states.of.clone(), self.of.gets, random);
        let (start, cpu) = (Instant::now(), thread_cpu_seconds()?);
        query.run(&mut *engine.view(state)?)?;
        let cpu = thread_cpu_seconds()? - cpu;
        let time = start.elapsed().as_secs_f64();
        query.check(versions)?;
        Ok([time * 1e6, cpu * 1e6])
    }

    fn report(&self, name: &str, times: &turns::Turns) -> Result<()> {
        let (now, then) = times.medians();
        self.context.measured(&format!("{name}, now"), 1, now, "us")?;
        self.context.measured(&format!("{name}, then"), 1, then, "us")?;
        self.context.measured(&format!("{name}, then : now"), 1, times.ratio(), "x")
    }
}

/// What the rows hold now and as of a snapshot, and which of them are queried.
struct States<'v> {
    now: &'v [u32],
    then: &'v [u32],
    id: u64,
    of: Range<u64>,
}
