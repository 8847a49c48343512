//! Power cuts: at every counted operation of a workload, and again at every operation of the recovery.
//!
//! Owns: the sweep over all cuts. Promises: every durable commit is there, no half commit, every declared
//! snapshot as it was; recovering again finds the same. May call: the support.

use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Error, Options};

use crate::support::workload::work;
use crate::support::{Model, PATH, Random, check, check_open, full, open, options, points, split_options};

const STEPS: u64 = 130;

/// A workload from an empty disk, cut at its `crash_at`-th operation. Answers whether it came to its end.
pub fn run(seed: u64, crash_at: Option<u64>, options: &Options) -> (SimDisk, Model, bool) {
    let disk = SimDisk::new();
    if let Some(n) = crash_at {
        disk.crash_at(n);
    }
    let mut model = Model::new();
    let done = options.clone().open_on(Arc::new(disk.clone()), PATH).and_then(|db| {
        work(&db, &mut model, &mut Random(seed), STEPS)?;
        drop(db);
        Ok(())
    });
    if let Err(error) = &done {
        assert!(matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "seed {seed}: {error:?}");
        assert!(crash_at.is_some(), "seed {seed}: {error}");
    }
    (disk, model, done.is_ok())
}

/// Everything that must hold of one state that a power cut left.
pub fn check_image(image: &SimDisk, model: &Model, seed: u64, context: &str) {
    // A copy, because opening changes the disk.
    let whole = image.crash_image(1);
    let (db, seq) = check(&whole, model, context);
    let operations = whole.operations();

    let mut random = Random(seed);
    let mut again = model.clone();
    again.cut_at(seq);
    for n in points(operations, 2, &mut random) {
        let cut = image.crash_image(1);
        cut.crash_at(n);
        let context = format!("{context}, recovery cut at {n}");
        // It may have come to its end: what is cut then is the closing.
        let _ = open(&cut);
        let left = cut.crash_image(random.next());
        let (_, found) = check(&left, &again, &context);
        assert_eq!(found, seq, "{context}: recovering again found something else");
    }

    let mut model = again;
    let context = format!("{context}, then work");
    work(&db, &mut model, &mut random, 12).unwrap_or_else(|error| panic!("{context}: {error}"));
    check_open(&db, &model, &context);
    check(&whole.crash_image(random.next()), &model, &format!("{context}, cut again"));
    drop(db);
    model.all_durable();
    check(&whole, &model, &format!("{context}, closed"));
}

fn sweep(workload: u64, cuts: u64, images: u64, options: &Options) {
    let (whole, model, _) = run(workload, None, options);
    let operations = whole.operations();
    let (db, _) = check(&whole.crash_image(0), &model, &format!("workload {workload}, not cut"));
    let stats = db.stats().unwrap();
    assert!(stats.history_runs > 0 && stats.retained_bases > 0, "{stats:?}");
    drop(db);
    let mut random = Random(workload);
    println!("workload {workload}: {operations} operations, {} commits", model.last_seq());
    for n in points(operations, cuts, &mut random) {
        let (disk, model, _) = run(workload, Some(n), options);
        let first = random.next();
        for image in 0..images {
            // All lost, all kept, and mixtures.
            let seed = if image < 2 { image } else { first.wrapping_add(image) };
            let context = format!("workload {workload} cut at {n} image {seed}");
            check_image(&disk.crash_image(seed), &model, seed ^ n, &context);
        }
    }
}

#[test]
fn a_cut_at_any_operation_keeps_what_was_promised() {
    for workload in 1..=3 {
        sweep(workload, 60, 4, &options());
    }
}

#[test]
fn a_cut_at_any_operation_keeps_the_past_that_is_elsewhere() {
    // Some workloads delete everything in the end.
    let keeps_something = |workload: &u64| {
        let (disk, model, _) = run(*workload, None, &split_options());
        let (db, _) = check(&disk.crash_image(1), &model, &format!("workload {workload}, not cut"));
        let stats = db.stats().unwrap();
        assert!(stats.archive_failure.is_none(), "{stats:?}");
        stats.archived_pages > 20 && stats.history_runs > 0
    };
    for workload in (21..).filter(keeps_something).take(3) {
        sweep(workload, 60, 4, &split_options());
    }
}

/// The operations come in another order each time, so the cuts are a sample.
#[test]
fn a_cut_with_background_threads_keeps_what_was_promised() {
    for (workload, options) in [(10, options()), (11, options()), (12, split_options())] {
        let options = options.background(true);
        let (whole, _, _) = run(workload, None, &options);
        let mut random = Random(workload);
        let cuts = if full() { whole.operations() } else { 40 };
        for n in points(whole.operations(), cuts, &mut random) {
            let (disk, model, _) = run(workload, Some(n), &options);
            for seed in [0, 1, random.next()] {
                let context = format!("workload {workload} with threads cut at {n} image {seed}");
                check_image(&disk.crash_image(seed), &model, seed ^ n, &context);
            }
        }
    }
}
