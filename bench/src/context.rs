//! What a suite is given, and where it tells what it measured.
//!
//! Owns: [`Context`] and [`Measurement`]. Promises: a measurement is out as soon as it is made, so that a run
//! that fails later has not been in vain.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::arguments::{Arguments, Scale};

/// One figure of one run of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    pub case: String,
    pub threads: usize,
    pub value: f64,
    /// Units of a rate end in `/s`: more is better. Of all others less is better.
    pub unit: String,
}

/// One run of one suite on one engine.
pub struct Context {
    pub engine: String,
    pub scale: Scale,
    /// Where databases go; empty, and removed afterwards.
    pub dir: PathBuf,
    threads: Vec<usize>,
    cases: Vec<String>,
}

impl Context {
    pub fn new(arguments: &Arguments, engine: &str, known: &[&str]) -> Result<Context> {
        for case in &arguments.cases {
            ensure!(known.contains(&case.as_str()), "no case {case}; there are: {}", known.join(", "));
        }
        ensure!(arguments.threads.iter().all(|count| (1..=1024).contains(count)), "1 to 1024 threads");
        Ok(Context {
            engine: engine.to_owned(),
            scale: arguments.scale,
            dir: arguments.dir.clone().unwrap_or_default(),
            threads: arguments.threads.clone(),
            cases: arguments.cases.clone(),
        })
    }

    /// Whether this case was asked for.
    pub fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == case)
    }

    /// Runs a case that was asked for, with an empty directory that is removed afterwards.
    pub fn in_empty_dir(&self, case: &str, run: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if !self.wants(case) {
            return Ok(());
        }
        let dir = self.dir.join(case);
        std::fs::create_dir_all(&dir)?;
        run(&dir)?;
        std::fs::remove_dir_all(&dir)?;
        Ok(())
    }

    /// The numbers of threads to run a case with.
    pub fn threads_or(&self, default: &[usize]) -> Vec<usize> {
        if self.threads.is_empty() { default.to_vec() } else { self.threads.clone() }
    }

    /// Tells the conductor a figure. `what` is the case and, if the case has several figures, which of them:
    /// `"load cpu"`.
    pub fn measured(&self, what: &str, threads: usize, value: f64, unit: &str) -> Result<()> {
        let measurement = Measurement { case: what.to_owned(), threads, value, unit: unit.to_owned() };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&measurement)?)?;
        Ok(out.flush()?)
    }
}
