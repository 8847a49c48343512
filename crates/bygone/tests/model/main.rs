//! The model test: random operations against the engine and a plain model in memory, which have to agree on
//! every answer.
//!
//! Owns: the seeds. Promises: a failure names its seed and step; `BYGONE_SEED=n` repeats that seed alone,
//! `BYGONE_SEEDS=n` tries n seeds in place of the fixed ones, `BYGONE_STEPS=n` makes each run longer or
//! shorter. May call: the engine's public face.

mod compare;
mod driver;
mod model;
mod past;
mod place;
mod random;
mod transactions;
mod window;

use std::sync::Arc;

use bygone::io::SimDisk;
use compare::{WAYS, same};
use driver::Driver;
use place::Place;
use window::Window;

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
    run_as(test, background, false, Window::Never, seeds, place);
}

fn run_as(
    test: &'static str,
    background: bool,
    split: bool,
    window: Window,
    seeds: std::ops::Range<u64>,
    place: fn() -> Place,
) {
    let seeds = match (number("BYGONE_SEED"), number("BYGONE_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 1_000_000..1_000_000 + count,
        (None, None) => seeds,
    };
    let steps = number("BYGONE_STEPS").unwrap_or(STEPS);
    for seed in seeds {
        let mut repeat = Repeat { test, seed, step: 0 };
        let mut driver = Driver::new(seed, place(), background, split, window.clone());
        for step in 0..steps {
            repeat.step = step;
            driver.step();
        }
        driver.check_all();
        driver.check_window(usize::MAX);
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
fn split_without_threads() {
    run_as("split_without_threads", false, true, Window::Never, 500..503, simulated);
}

#[test]
fn split_with_threads() {
    run_as("split_with_threads", true, true, Window::Never, 600..602, simulated);
}

#[test]
fn split_on_the_real_disk() {
    run_as("split_on_the_real_disk", true, true, Window::Never, 700..701, real);
}

#[test]
fn real_disk_without_threads() {
    run("real_disk_without_threads", false, 300..302, real);
}

#[test]
fn real_disk_with_threads() {
    run("real_disk_with_threads", true, 400..402, real);
}

#[test]
fn a_window_without_threads() {
    run_as("a_window_without_threads", false, false, Window::always(), 800..802, simulated);
}

#[test]
fn a_window_with_threads() {
    run_as("a_window_with_threads", true, false, Window::always(), 900..901, simulated);
}

#[test]
fn a_window_split() {
    run_as("a_window_split", true, true, Window::always(), 1000..1001, simulated);
}

#[test]
fn windows_that_move_and_end() {
    run_as("windows_that_move_and_end", false, false, Window::changing(), 1100..1103, simulated);
}

#[test]
fn windows_that_move_and_end_with_threads() {
    run_as("windows_that_move_and_end_with_threads", true, true, Window::changing(), 1200..1202, simulated);
}

/// The test of the test: a single record that is lost, old, or too many in a single snapshot is noticed,
/// whichever way it is read.
#[test]
fn one_wrong_record_in_one_old_snapshot_is_noticed() {
    let mut driver = Driver::new(1, simulated(), false, false, Window::Never);
    for _ in 0..800 {
        driver.step();
    }
    driver.db.merge().unwrap();
    let declared = driver.model.declared.iter().find(|declared| !declared.state.tables.is_empty());
    let declared = declared.expect("the seed declares a snapshot of some table");
    let past = driver.db.as_of(declared.id).unwrap();
    let (name, table) = declared.state.tables.iter().max_by_key(|(_, table)| table.rows.len()).unwrap();
    let changed = |change: fn(&mut model::Rows, &[u8])| {
        let (mut state, mut table) = (declared.state.clone(), (**table).clone());
        let key = table.rows.keys().nth(table.rows.len() / 2).expect("the table has records").clone();
        change(&mut table.rows, &key);
        state.tables.insert(name.clone(), Arc::new(table));
        state
    };
    for way in WAYS {
        same(&past, &declared.state, way).unwrap();
        let lost = changed(|rows, key| drop(rows.insert([key, b"!"].concat(), Arc::default())));
        let too_many = changed(|rows, key| drop(rows.remove(key)));
        let old = changed(|rows, key| drop(rows.insert(key.to_vec(), Arc::new(b"older".to_vec()))));
        for (what, state) in [("lost", lost), ("old", old)] {
            assert!(same(&past, &state, way).is_err(), "{what}, read {way:?}");
        }
        // Looking up only what should be there cannot find what should not.
        if !matches!(way, compare::Way::Gets) {
            assert!(same(&past, &too_many, way).is_err(), "too many, read {way:?}");
        }
    }
}
