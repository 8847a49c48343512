//! The model test: random operations against the engine and a plain model in memory, which have to agree on every answer.
//!
//! Owns: the seeds. Promises: a failure names its seed and step; `BYGONE_SEED=n` repeats that seed alone, `BYGONE_SEEDS=n` tries n seeds in place of
//! the fixed ones, `BYGONE_STEPS=n` makes each run longer or shorter. May call: the engine's public face.

mod compare;
mod driver;
mod model;
mod random;
mod transactions;

use bygone::io::SimDisk;
use driver::{Driver, Place};

const STEPS: u64 = 3000;

/// Says how to repeat what panics.
struct Repeat {
    test: &'static str,
    seed: u64,
    step: u64,
}

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Repeat { test, seed, step } = self;
            eprintln!(
                "failed at step {step}; repeat with: BYGONE_SEED={seed} cargo test -p bygone --test model {test}"
            );
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn run(test: &'static str, background: bool, seeds: std::ops::Range<u64>, place: fn() -> Place) {
    let seeds = match (number("BYGONE_SEED"), number("BYGONE_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 1_000_000..1_000_000 + count,
        (None, None) => seeds,
    };
    let steps = number("BYGONE_STEPS").unwrap_or(STEPS);
    for seed in seeds {
        let mut repeat = Repeat { test, seed, step: 0 };
        let mut driver = Driver::new(seed, place(), background);
        for step in 0..steps {
            repeat.step = step;
            driver.step();
        }
        driver.check_all();
        driver.reopen();
    }
}

fn simulated() -> Place {
    Place::Sim(SimDisk::new())
}

fn real() -> Place {
    Place::Real(tempfile::tempdir().unwrap())
}

#[test]
fn simulated_disk_without_threads() {
    run("simulated_disk_without_threads", false, 100..104, simulated);
}

#[test]
fn simulated_disk_with_threads() {
    run("simulated_disk_with_threads", true, 200..203, simulated);
}

#[test]
fn real_disk_without_threads() {
    run("real_disk_without_threads", false, 300..302, real);
}

#[test]
fn real_disk_with_threads() {
    run("real_disk_with_threads", true, 400..402, real);
}
