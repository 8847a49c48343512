//! The suites: one file or folder each.
//!
//! Owns: the list of suites, and what they have in common. A suite is a function over a [`Context`], which names
//! the engine; it reports as it goes.

mod kv;
mod memtable;
pub mod past;
mod snapshots;
mod sql;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;

use crate::arguments::{Arguments, Scale};
use crate::context::Context;
use crate::engines;

pub struct Suite {
    pub name: &'static str,
    /// The engines that have something to show here; ours first.
    pub engines: &'static [&'static str],
    /// What `--cases` may name.
    pub cases: &'static [&'static str],
    /// The cargo feature that brings all of its engines in; without one, each has a feature of its name.
    pub feature: Option<&'static str>,
    /// Sizes and options, for the record.
    pub sizes: fn(Scale) -> serde_json::Value,
    pub run: fn(&Context) -> Result<()>,
}

impl Suite {
    /// Whether this program has the engine in it; else one built with a feature has.
    pub fn has(&self, engine: &str) -> bool {
        match self.feature {
            Some(feature) => engines::is_feature_built_in(feature),
            None => engines::is_built_in(engine),
        }
    }
}

const SUITES: &[Suite] = &[kv::SUITE, memtable::SUITE, past::SUITE, snapshots::SUITE, sql::SUITE];

pub fn find(name: &str) -> Result<&'static Suite> {
    let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
    let suite = SUITES.iter().find(|suite| suite.name == name);
    suite.with_context(|| format!("no suite {name}; there are: {}", names.join(", ")))
}

/// Runs a suite on one engine, in this process.
pub fn play(arguments: &Arguments, engine: &str) -> Result<()> {
    let suite = find(&arguments.suite)?;
    (suite.run)(&Context::new(arguments, engine, suite.cases)?)
}

/// Runs the same on several threads; answers what each gave.
fn on_threads<T: Send>(count: usize, work: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count as u64).map(|thread| scope.spawn(move || work(thread))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    })
}

/// Nanoseconds, up to a minute and a half, to three digits.
fn new_histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 100_000_000_000, 3)?)
}
