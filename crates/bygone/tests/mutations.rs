//! The test of the tests: deliberate breaches of the invariants are noticed.
//!
//! Owns: the probes, and for each breach (`src/mutation.rs`) the one that must fail with it. Promises: a probe passes
//! in an unchanged program, and fails in a process of its own that is told to make the breach. May call: the engine's
//! public face only.
//!
//! `cargo test -p bygone --features mutations --test mutations`; without the feature there is nothing to test.
#![cfg(feature = "mutations")]

#[path = "support/mod.rs"]
mod support;

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Options, Result, Snapshot, SnapshotId};
use support::workload::work;
use support::{
    Model, PATH, Random, check, check_open, open, options, points, split_options, windowed_options,
};

/// Which breach a child process makes.
const MUTATION: &str = "BYGONE_MUTATION";

/// Runs a probe in a process of its own; whether it passed.
fn passes(probe: &str, mutation: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", probe, "--test-threads=1"]).env(MUTATION, mutation);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "no probe {probe}: {text}");
    println!("{probe} with {mutation:?}:\n{text}");
    output.status.success()
}

fn is_child() -> bool {
    std::env::var_os(MUTATION).is_some()
}

fn must_notice(probe: &str, mutation: &str) {
    // A child must not have children.
    if !is_child() {
        assert!(passes(probe, "none"), "{probe} fails in an unchanged program");
        assert!(!passes(probe, mutation), "{probe} does not notice {mutation}");
    }
}

#[test]
fn reuse_before_the_page_is_durable_is_noticed() {
    must_notice("probe_power_cuts", "reuse-before-durable");
}

#[test]
fn an_address_published_before_its_data_is_noticed() {
    must_notice("probe_power_cuts", "publish-before-data");
}

#[test]
fn archived_pages_collected_under_a_view_are_noticed() {
    must_notice("probe_views", "collect-too-early");
}

#[test]
fn a_replay_that_cannot_be_repeated_is_noticed() {
    must_notice("probe_recovery", "forget-replayed");
}

#[test]
fn a_past_that_is_not_as_it_was_is_noticed() {
    must_notice("probe_past", "hide-too-early");
}

#[test]
fn a_window_that_keeps_nothing_is_noticed() {
    must_notice("probe_window", "forget-window");
}

/// A crash, and another one in the recovery or soon behind it.
#[test]
fn probe_recovery() {
    if !is_child() {
        return;
    }
    let mut random = Random(31);
    let disk = SimDisk::new();
    let mut model = Model::new();
    let db = options().open_on(Arc::new(disk.clone()), PATH).unwrap();
    work(&db, &mut model, &mut random, 60).unwrap();
    let killed = disk.crash_image(1);
    let whole = killed.crash_image(1);
    let (recovered, seq) = check(&whole, &model, "a crash");
    drop(recovered);
    model.cut_at(seq);
    for n in points(whole.operations(), 60, &mut random) {
        let cut = killed.crash_image(1);
        cut.crash_at(n);
        let _ = open(&cut);
        for image in [0, 1, n] {
            let (_, found) = check(&cut.crash_image(image), &model, &format!("cut at {n} image {image}"));
            assert_eq!(found, seq);
        }
    }
}

/// Declared snapshots beside the model, through flushes, merges and deletions.
#[test]
fn probe_past() {
    if !is_child() {
        return;
    }
    probe_states(options());
}

/// All commits beside the model.
#[test]
fn probe_window() {
    if !is_child() {
        return;
    }
    probe_states(windowed_options());
}

fn probe_states(options: Options) {
    let db = options.open_on(Arc::new(SimDisk::new()), PATH).unwrap();
    let (mut model, mut random) = (Model::new(), Random(51));
    for round in 0..6 {
        work(&db, &mut model, &mut random, 50).unwrap();
        db.merge().unwrap();
        check_open(&db, &model, &format!("round {round}"));
    }
}

/// Power cuts while pages are archived.
#[test]
fn probe_power_cuts() {
    if !is_child() {
        return;
    }
    let run = |seed: u64, cut: Option<u64>| {
        let disk = SimDisk::new();
        if let Some(n) = cut {
            disk.crash_at(n);
        }
        let mut model = Model::new();
        let outcome: Result<()> = split_options().open_on(Arc::new(disk.clone()), PATH).and_then(|db| {
            let mut random = Random(seed);
            for _ in 0..4 {
                work(&db, &mut model, &mut random, 30)?;
                db.merge()?;
                db.archive()?;
                model.all_durable();
            }
            Ok(())
        });
        assert!(cut.is_some() || outcome.is_ok(), "{outcome:?}");
        (disk, model)
    };
    for seed in [21, 22] {
        let operations = run(seed, None).0.operations();
        for n in points(operations, 400, &mut Random(seed)) {
            let (disk, model) = run(seed, Some(n));
            for image in [0, 1, n] {
                let context = format!("workload {seed} cut at {n} image {image}");
                check(&disk.crash_image(image), &model, &context);
            }
        }
    }
}

/// Views of snapshots that are deleted while their pages are archived.
#[test]
fn probe_views() {
    if !is_child() {
        return;
    }
    let disk = SimDisk::new();
    let db = split_options().cache_bytes(64 << 10).open_on(Arc::new(disk), PATH).unwrap();
    let table = db.table("t").unwrap();
    let overwrite = |round: u8| {
        for key in 0..500u32 {
            db.put(&table, key.to_be_bytes(), [round; 300]).unwrap();
        }
    };
    let check = |view: &Snapshot, round: u8| {
        let mut count = 0;
        let each = |_: &[u8], value: &[u8]| {
            assert_eq!(value, [round; 300]);
            count += 1;
            ControlFlow::Continue(())
        };
        view.for_each(&table, .., each).unwrap();
        assert_eq!(count, 500);
    };
    overwrite(1);
    let id: SnapshotId = db.snapshot_now(None).unwrap();
    overwrite(2);
    db.merge().unwrap();
    overwrite(3);
    db.merge().unwrap();
    db.archive().unwrap();
    let view = db.as_of(id).unwrap();
    check(&view, 1);
    db.delete_snapshot(id).unwrap();
    db.prune().unwrap();
    for round in 4..8 {
        overwrite(round);
        db.merge().unwrap();
        db.archive().unwrap();
        check(&view, 1);
    }
}
