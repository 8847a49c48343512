//! The command line.
//!
//! Owns: [`Arguments`]. Promises: what a player needs to know can be handed on as arguments again.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures Bygone beside its peers. Engines take turns, each in a process of its own; medians are compared.
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    /// What to measure: `kv`, `memtable`, `past`, `snapshots`, `sql`.
    pub suite: String,

    /// The engines, in their order, or `all`; by default those that were built in. A peer that was not is built
    /// now, in a program of its own.
    #[arg(long, value_delimiter = ',')]
    pub engines: Vec<String>,

    /// The numbers of threads for the cases that have threads; each case has its own default.
    #[arg(long, value_delimiter = ',')]
    pub threads: Vec<usize>,

    /// How much data.
    #[arg(long, value_enum, default_value = "small")]
    pub scale: Scale,

    /// Only these cases; what they build upon is done as well, but not reported.
    #[arg(long, value_delimiter = ',')]
    pub cases: Vec<String>,

    /// How often each engine is run; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Write one JSON object a line to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,

    /// Where databases are made (and removed), on a real disk; by default the current directory.
    #[arg(long)]
    pub dir: Option<PathBuf>,

    /// Run the suite on this engine, in this process.
    #[arg(long, hide = true)]
    pub play: Option<String>,
}

/// How much data a suite takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scale {
    /// Seconds, to see that everything works.
    Small,
    /// What figures are quoted from.
    Full,
}

impl Scale {
    pub fn name(self) -> &'static str {
        match self {
            Scale::Small => "small",
            Scale::Full => "full",
        }
    }

    /// One of two sizes.
    pub fn pick(self, small: u64, full: u64) -> u64 {
        match self {
            Scale::Small => small,
            Scale::Full => full,
        }
    }
}

impl Arguments {
    /// The arguments of a player.
    pub fn for_player(&self, engine: &str, dir: &std::path::Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![self.suite.clone().into()];
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--play", engine.into());
        add("--scale", self.scale.name().into());
        add("--dir", dir.into());
        if !self.threads.is_empty() {
            let threads: Vec<_> = self.threads.iter().map(usize::to_string).collect();
            add("--threads", threads.join(",").into());
        }
        if !self.cases.is_empty() {
            add("--cases", self.cases.join(",").into());
        }
        arguments
    }
}
