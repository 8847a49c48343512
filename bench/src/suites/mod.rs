//! The suites: one file each.
//!
//! Owns: the list of suites. A suite is a function over a [`Context`], which names the engine; it reports as
//! it goes.

mod kv;
mod snapshots;

use anyhow::{Context as _, Result};

use crate::arguments::{Arguments, Scale};
use crate::context::Context;

pub struct Suite {
    pub name: &'static str,
    /// The engines that have something to show here; ours first.
    pub engines: &'static [&'static str],
    /// What `--cases` may name.
    pub cases: &'static [&'static str],
    /// Sizes and options, for the record.
    pub sizes: fn(Scale) -> serde_json::Value,
    pub run: fn(&Context) -> Result<()>,
}

const SUITES: &[Suite] = &[kv::SUITE, snapshots::SUITE];

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
