//! Suite `past`: what it costs to keep the past, to read it, and to have it.
//!
//! Owns: the cases and their sizes. Promises: every read is checked, outside the clock, against what the state that it
//! read must hold; what is compared took turns within one process.

mod diff;
mod held;
mod open;
mod overhead;
mod present;
mod query;
mod rows;
pub mod turns;

use std::path::Path;

use anyhow::{Context as _, Result};

use super::Suite;
use crate::arguments::Scale;
use crate::context::Context;
use crate::engines::past::{self as engines, Declared, Keeper, Opening};

pub const SUITE: Suite = Suite {
    name: "past",
    engines: &["bygone", "rocksdb", "wiredtiger", "lmdb", "redb", "sqlite"],
    cases: &["overhead", "query", "open", "present", "held", "diff", "delete"],
    feature: None,
    sizes: |scale| serde_json::to_value(Sizes::of(scale)).unwrap_or_default(),
    run,
};

#[derive(serde::Serialize)]
struct Sizes {
    overhead: [OverheadSizes; 2],
    query: QuerySizes,
    open: OpenSizes,
    present: PresentSizes,
    held: HeldSizes,
    diff: DiffSizes,
    delete: DeleteSizes,
    cache_bytes: usize,
    memtable_bytes: usize,
}

/// With and without a snapshot after each transaction.
#[derive(serde::Serialize)]
struct OverheadSizes {
    table: &'static str,
    rows: u64,
    updates_per_transaction: u64,
    transactions_per_turn: u32,
    turns: usize,
}

#[derive(serde::Serialize)]
struct QuerySizes {
    rows: u64,
    gets: usize,
    updates_per_transaction: u64,
    /// With a snapshot after each; the young snapshot is from before the last tenth of them.
    transactions: u32,
    warm_rounds: usize,
    cold_rounds: usize,
}

#[derive(serde::Serialize)]
struct OpenSizes {
    rows: u64,
    snapshots: Vec<u64>,
    opens_per_batch: usize,
    batches: usize,
}

#[derive(serde::Serialize)]
struct PresentSizes {
    rows: u64,
    snapshots: u32,
    updates_per_transaction: u64,
    turns: usize,
    gets_per_turn: usize,
    transactions_per_turn: u32,
}

#[derive(serde::Serialize)]
struct HeldSizes {
    rows: u64,
    rows_per_transaction: u64,
    passes_before: u64,
    passes: u64,
    memtable_bytes: usize,
}

#[derive(serde::Serialize)]
struct DiffSizes {
    rows: u64,
    differences: u64,
    rounds: usize,
}

#[derive(serde::Serialize)]
struct DeleteSizes {
    rows: u64,
    snapshots: u32,
    deletions: usize,
    window_millis: u64,
    commits_per_second: u64,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        let tables = match scale {
            Scale::Small => ["5 MB", "20 MB"],
            Scale::Full => ["100 MB", "1 GB"],
        };
        Sizes {
            overhead: [
                OverheadSizes {
                    table: tables[0],
                    rows: scale.pick(50_000, 925_000),
                    updates_per_transaction: 1000,
                    transactions_per_turn: scale.pick(100, 2_000) as u32,
                    turns: scale.pick(6, 16) as usize,
                },
                OverheadSizes {
                    table: tables[1],
                    rows: scale.pick(190_000, 9_250_000),
                    updates_per_transaction: 1000,
                    transactions_per_turn: scale.pick(200, 6_000) as u32,
                    turns: scale.pick(6, 10) as usize,
                },
            ],
            query: QuerySizes {
                rows: scale.pick(92_500, 925_000),
                gets: 2048,
                updates_per_transaction: 1000,
                transactions: scale.pick(300, 5_000) as u32,
                warm_rounds: scale.pick(31, 201) as usize,
                cold_rounds: scale.pick(3, 7) as usize,
            },
            open: OpenSizes {
                rows: 10_000,
                snapshots: match scale {
                    Scale::Small => vec![1, 1_000, 100_000],
                    Scale::Full => vec![1, 1_000, 100_000, 1_000_000],
                },
                opens_per_batch: 100,
                batches: scale.pick(50, 500) as usize,
            },
            present: PresentSizes {
                rows: scale.pick(100_000, 1_000_000),
                snapshots: scale.pick(10_000, 100_000) as u32,
                updates_per_transaction: 10,
                turns: scale.pick(16, 24) as usize,
                gets_per_turn: scale.pick(20_000, 200_000) as usize,
                transactions_per_turn: scale.pick(1_000, 10_000) as u32,
            },
            held: HeldSizes {
                rows: scale.pick(50_000, 500_000),
                rows_per_transaction: scale.pick(5_000, 50_000),
                passes_before: 4,
                passes: 20,
                memtable_bytes: scale.pick(4 << 20, 64 << 20) as usize,
            },
            diff: DiffSizes {
                rows: scale.pick(200_000, 10_000_000),
                differences: 1000,
                rounds: scale.pick(21, 51) as usize,
            },
            delete: DeleteSizes {
                rows: scale.pick(100_000, 1_000_000),
                snapshots: scale.pick(10_000, 100_000) as u32,
                deletions: scale.pick(10, 30) as usize,
                window_millis: scale.pick(100, 300),
                commits_per_second: 2000,
            },
            cache_bytes: scale.pick(256 << 20, 3 << 30) as usize,
            memtable_bytes: scale.pick(4 << 20, 64 << 20) as usize,
        }
    }

    fn opening(&self) -> Opening {
        let Sizes { cache_bytes, memtable_bytes, .. } = *self;
        Opening { cache_bytes, memtable_bytes, split: false, keeps: true }
    }
}

fn run(context: &Context) -> Result<()> {
    let sizes = Sizes::of(context.scale);
    for (case, run) in [
        ("overhead", overhead::run as Case),
        ("query", query::run),
        ("open", open::run),
        ("present", present::run),
        ("held", held::run),
        ("diff", diff::run),
        ("delete", diff::run_delete),
    ] {
        context.in_empty_dir(case, |dir| run(context, &sizes, dir))?;
    }
    Ok(())
}

/// A case over an empty directory. Does nothing with engines that it is not for.
type Case = fn(&Context, &Sizes, &Path) -> Result<()>;

fn open(context: &Context, dir: &Path, opening: Opening) -> Result<Option<Box<dyn Keeper>>> {
    engines::open(&context.engine, dir, opening)
}

/// Only engines with a declared past.
fn open_declared(context: &Context, dir: &Path, opening: Opening) -> Result<Option<Box<dyn Keeper>>> {
    let engine = open(context, dir, opening)?;
    Ok(engine.filter(|engine| engine.declared().is_some()))
}

fn declared(engine: &dyn Keeper) -> Result<&dyn Declared> {
    engine.declared().context("an engine with a declared past")
}

#[cfg(test)]
mod tests {
    use super::rows::{Query, Rows, Updates, check_scan};
    use super::*;
    use crate::data::Random;
    use crate::engines::is_built_in;

    /// All that this program has, with the past split off and not, kept and not.
    fn on_each(test: impl Fn(&dyn Keeper, Opening)) {
        for name in SUITE.engines.iter().filter(|name| is_built_in(name)) {
            for (split, keeps) in [(false, true), (true, true), (false, false)] {
                let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
                let opening = Opening { cache_bytes: 16 << 20, memtable_bytes: 1 << 20, split, keeps };
                if let Some(engine) = engines::open(name, dir.path(), opening).unwrap() {
                    test(&*engine, opening);
                }
            }
        }
    }

    #[test]
    fn states_that_are_kept_hold_what_they_held() {
        on_each(|engine, opening| {
            let rows = Rows::new(2000);
            rows.load(engine).unwrap();
            let updates = Updates { of: 0..rows.count, skew: (80, 20), per_transaction: 500 };
            let (mut batch, mut kept) = (Vec::new(), Vec::new());
            for transaction in 1..=20 {
                updates.fill(&rows, transaction, &mut batch);
                kept.push(engine.commit_and_keep(&batch).unwrap());
                if transaction % 7 == 0 {
                    engine.settle().unwrap();
                }
            }
            let mut versions = vec![0; 2000];
            let mut random = Random::new(1);
            for (index, id) in kept.iter().enumerate() {
                let transaction = index as u32 + 1;
                updates.note(transaction..transaction + 1, &mut versions);
                if opening.keeps {
                    let mut view = engine.view(Some(*id)).unwrap();
                    check_scan(view.scan().unwrap(), &versions).unwrap();
                    let mut query = Query::new(&rows, 0..rows.count, 100, &mut random);
                    query.run(&mut *view).unwrap();
                    query.check(&versions).unwrap();
                }
            }
            check_scan(engine.view(None).unwrap().scan().unwrap(), &versions).unwrap();
        });
    }

    #[test]
    fn another_state_fails_the_checks() {
        on_each(|engine, _| {
            let rows = Rows::new(100);
            rows.load(engine).unwrap();
            let mut versions = vec![0; 100];
            let mut query = Query::new(&rows, 40..60, 500, &mut Random::new(1));
            query.run(&mut *engine.view(None).unwrap()).unwrap();
            query.check(&versions).unwrap();
            versions[50] = 1;
            assert!(query.check(&versions).is_err());
            assert!(check_scan(engine.view(None).unwrap().scan().unwrap(), &versions).is_err());
        });
    }
}
