//! Suite `sql`: SQLite on Bygone beside SQLite on its own files.
//!
//! Owns: the cases and their sizes. Promises: what is read is checked, against what rows hold or against what SQLite
//! answers with its database in memory; what is compared within one engine took turns.

#[cfg(feature = "sql")]
mod insert;
#[cfg(feature = "sql")]
mod readers;
#[cfg(feature = "sql")]
mod reads;
#[cfg(feature = "sql")]
mod rows;
#[cfg(feature = "sql")]
mod sets;
#[cfg(feature = "sql")]
mod small;
#[cfg(feature = "sql")]
mod snapshots;
#[cfg(feature = "sql")]
mod speedtest;
#[cfg(feature = "sql")]
mod tpch;

use anyhow::Result;

use super::Suite;
use crate::arguments::Scale;
use crate::context::Context;

pub const SUITE: Suite = Suite {
    name: "sql",
    engines: &["bygone", "sqlite", "bdbsql"],
    cases: &["insert", "small", "point", "range", "tpch", "readers", "snapshots", "sets", "speedtest"],
    feature: Some("sql"),
    sizes: |scale| serde_json::to_value(Sizes::of(scale)).unwrap_or_default(),
    run,
};

#[derive(serde::Serialize)]
struct Sizes {
    /// Of each connection's cache: what SQLite has unless told otherwise.
    connection_cache_kib: usize,
    /// Of the cache of the database, for engines that have one in place of the operating system's.
    cache_bytes: usize,
    insert: InsertSizes,
    small: SmallSizes,
    reads: ReadSizes,
    tpch: TpchSizes,
    readers: ReaderSizes,
    snapshots: SnapshotSizes,
    sets: SetSizes,
    speedtest: SpeedtestSizes,
}

#[derive(serde::Serialize)]
struct InsertSizes {
    rows: u64,
    rounds: usize,
}

#[derive(serde::Serialize)]
struct SmallSizes {
    rows: u64,
    normal: u64,
    full: u64,
    rounds: usize,
}

/// Of `point` and `range`.
#[derive(serde::Serialize)]
struct ReadSizes {
    rows: u64,
    points: u64,
    ranges: u64,
    rows_per_range: u64,
    warm_rounds: usize,
    cold_rounds: usize,
}

#[derive(serde::Serialize)]
struct TpchSizes {
    scale: f64,
    rounds: usize,
    /// Of now and then.
    turns: usize,
}

#[derive(serde::Serialize)]
struct ReaderSizes {
    rows: u64,
    /// That a transaction updates, and that a query reads.
    rows_per_block: u64,
    millis: u64,
    rounds: usize,
}

#[derive(serde::Serialize)]
struct SnapshotSizes {
    rows: u64,
    updates_per_transaction: u64,
    transactions_per_turn: u32,
    turns: usize,
}

#[derive(serde::Serialize)]
struct SetSizes {
    rows: u64,
    snapshots: u32,
    /// Of the rows, that change between two snapshots.
    changed_percent: u64,
    rounds: usize,
}

#[derive(serde::Serialize)]
struct SpeedtestSizes {
    rows: u64,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        Sizes {
            connection_cache_kib: 2000,
            cache_bytes: scale.pick(256 << 20, 1 << 30) as usize,
            insert: InsertSizes { rows: scale.pick(50_000, 1_000_000), rounds: scale.pick(3, 5) as usize },
            small: SmallSizes {
                rows: scale.pick(20_000, 1_000_000),
                normal: scale.pick(4_000, 50_000),
                full: scale.pick(200, 2_000),
                rounds: scale.pick(3, 5) as usize,
            },
            reads: ReadSizes {
                rows: scale.pick(50_000, 1_000_000),
                points: scale.pick(5_000, 50_000),
                ranges: scale.pick(200, 2_000),
                rows_per_range: 100,
                warm_rounds: scale.pick(5, 11) as usize,
                cold_rounds: scale.pick(3, 5) as usize,
            },
            tpch: TpchSizes {
                scale: match scale {
                    Scale::Small => 0.01,
                    Scale::Full => 0.1,
                },
                rounds: 3,
                turns: scale.pick(4, 6) as usize,
            },
            readers: ReaderSizes {
                rows: scale.pick(50_000, 1_000_000),
                rows_per_block: 10,
                millis: scale.pick(300, 3_000),
                rounds: 3,
            },
            snapshots: SnapshotSizes {
                rows: scale.pick(50_000, 1_000_000),
                updates_per_transaction: 10,
                transactions_per_turn: scale.pick(500, 10_000) as u32,
                turns: scale.pick(6, 16) as usize,
            },
            sets: SetSizes {
                rows: scale.pick(20_000, 200_000),
                snapshots: 100,
                changed_percent: 1,
                rounds: scale.pick(4, 8) as usize,
            },
            speedtest: SpeedtestSizes { rows: scale.pick(4_000, 50_000) },
        }
    }
}

/// A case over an empty directory. Does nothing with engines that it is not for.
#[cfg(feature = "sql")]
type Case = fn(&Context, &Sizes, &std::path::Path) -> Result<()>;

#[cfg(feature = "sql")]
fn run(context: &Context) -> Result<()> {
    let sizes = Sizes::of(context.scale);
    for (case, run) in [
        ("insert", insert::run as Case),
        ("small", small::run),
        ("point", reads::run_point),
        ("range", reads::run_range),
        ("tpch", tpch::run),
        ("readers", readers::run),
        ("snapshots", snapshots::run),
        ("sets", sets::run),
        ("speedtest", speedtest::run),
    ] {
        context.in_empty_dir(case, |dir| run(context, &sizes, dir))?;
    }
    Ok(())
}

#[cfg(not(feature = "sql"))]
fn run(_: &Context) -> Result<()> {
    anyhow::bail!("this program was built without the feature sql")
}

#[cfg(feature = "sql")]
impl Sizes {
    fn opening(&self) -> crate::engines::sql::Opening {
        let Sizes { connection_cache_kib, cache_bytes, .. } = *self;
        crate::engines::sql::Opening { connection_cache_kib, cache_bytes }
    }
}
