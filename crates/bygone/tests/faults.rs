//! Calls to the disk that fail, one at a time or for good, and disks that are full.
//!
//! Owns: what a database does about an error of the disk. Promises: the caller is told; what was acknowledged
//! stays readable and is there after reopening; the database goes on, or says `Poisoned` and why; nothing
//! hangs. May call: the engine's public face only.

#[path = "support/mod.rs"]
mod support;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bygone::io::{Operation, SimDisk};
use bygone::{Db, Durability, Error, Result};
use support::workload::work;
use support::{Model, PATH, Random, check, compare, limit, open, options, points, within};

const STEPS: u64 = 130;

/// The cause, if the database is poisoned; a failure in any other way is none that a caller may see.
fn cause(error: &Error, context: &str) -> Option<String> {
    match error {
        Error::Poisoned { cause } => {
            assert!(!cause.is_empty(), "{context}: poisoned without a cause");
            Some(cause.clone())
        }
        Error::Io { .. } => None,
        error => panic!("{context}: {error:?}"),
    }
}

/// Every way to write says that the database is poisoned, and reading goes on.
fn check_poisoned(db: &Db, model: &Model, context: &str) {
    let name = model.states[model.acknowledged as usize].keys().next().map_or("none", String::as_str);
    let mut results: Vec<Result<()>> = vec![
        db.table("another").map(|_| ()),
        db.snapshot_now(None).map(|_| ()),
        db.begin().map(|_| ()),
        db.begin_serializable().map(|_| ()),
        db.flush(),
        db.merge(),
    ];
    if let Ok(table) = db.open_table(name) {
        results.extend([db.put(&table, "k", "v"), db.delete(&table, "k"), db.drop_table(name)]);
    }
    for (index, result) in results.into_iter().enumerate() {
        match result {
            Err(Error::Poisoned { cause }) => assert!(!cause.is_empty(), "{context}: no cause"),
            other => panic!("{context}: write {index} of a poisoned database: {other:?}"),
        }
    }
    read(db, model, context);
}

/// What is acknowledged, and nothing else, is there to read.
fn read(db: &Db, model: &Model, context: &str) {
    let seq = compare(db, model, context).unwrap_or_else(|error| panic!("{context}: reading: {error}"));
    assert_eq!(seq, model.acknowledged, "{context}: what is seen");
}

/// The machine lives on: the database is opened again on the same disk, and what it finds is durable from
/// then on.
fn reopen(disk: &SimDisk, model: &mut Model, context: &str) {
    model.durable = model.acknowledged;
    let (db, seq) = check(disk, model, &format!("{context}, opened again"));
    model.cut_at(seq);
    check(&disk.crash_image(0), model, &format!("{context}, opened again, then cut"));
    let mut random = Random(seq);
    work(&db, model, &mut random, 8).unwrap_or_else(|error| panic!("{context}, then work: {error}"));
    drop(db);
    model.all_durable();
    check(&disk.crash_image(0), model, &format!("{context}, worked on"));
}

/// The `n`-th call of a workload fails. Answers what became of the database.
fn one_failure(workload: u64, n: u64, kind: ErrorKind) -> &'static str {
    let context = format!("workload {workload}, call {n} fails");
    let disk = SimDisk::new();
    disk.fail_at(n, kind);
    let mut model = Model::new();
    let db = match open(&disk) {
        Ok(db) => db,
        Err(error) => {
            assert!(cause(&error, &context).is_none(), "{context}: {error}");
            reopen(&disk, &mut model, &context);
            return "not made";
        }
    };
    let mut random = Random(workload);
    let outcome = match work(&db, &mut model, &mut random, STEPS) {
        Ok(()) => "not noticed",
        Err(error) => {
            cause(&error, &context);
            read(&db, &model, &context);
            for seed in [0, 1, n * 4 + 2] {
                check(&disk.crash_image(seed), &model, &format!("{context}, then cut, image {seed}"));
            }
            match db.table("another") {
                Ok(_) => {
                    // The failed commit left no trace, so its number is given again.
                    model.forget_after(model.acknowledged);
                    let mut state = model.now().clone();
                    state.insert("another".to_owned(), Arc::default());
                    model.push(state);
                    model.acknowledge(Durability::Sync);
                    work(&db, &mut model, &mut random, 20)
                        .unwrap_or_else(|error| panic!("{context}, going on: {error}"));
                    read(&db, &model, &context);
                    "goes on"
                }
                Err(error) => {
                    assert!(cause(&error, &context).is_some(), "{context}, one failure, two errors: {error}");
                    check_poisoned(&db, &model, &context);
                    "poisoned"
                }
            }
        }
    };
    drop(db);
    reopen(&disk, &mut model, &context);
    outcome
}

#[test]
fn any_single_call_may_fail() {
    within(limit(), || {
        for workload in 1..=2 {
            let whole = SimDisk::new();
            work(&open(&whole).unwrap(), &mut Model::new(), &mut Random(workload), STEPS).unwrap();
            let mut outcomes = std::collections::BTreeMap::new();
            for n in points(whole.operations(), 120, &mut Random(workload)) {
                let kind = if n % 2 == 0 { ErrorKind::Other } else { ErrorKind::StorageFull };
                *outcomes.entry(one_failure(workload, n, kind)).or_insert(0) += 1;
            }
            println!("workload {workload}: {outcomes:?}");
            assert!(outcomes["poisoned"] > 0 && outcomes["not made"] > 0, "{outcomes:?}");
        }
    });
}

/// From some moment on, every call of one kind fails on the files that `matches` tells; threads do the
/// flushing and merging.
fn lasting_failure(operation: Operation, part: &'static str) {
    within(limit(), move || {
        let context = format!("every {operation:?} of {part} fails");
        let disk = SimDisk::new();
        let opened = || options().background(true).open_on(Arc::new(disk.clone()), PATH);
        let mut model = Model::new();
        {
            let db = opened().unwrap();
            work(&db, &mut model, &mut Random(5), 60).unwrap();
            disk.fail_matching(move |failing, path| {
                let matches = failing == operation && path.starts_with(Path::new(PATH).join(part));
                matches.then_some(ErrorKind::Other)
            });
            let mut random = Random(6);
            let told = loop {
                let error = work(&db, &mut model, &mut random, 100_000).expect_err("it fails some time");
                read(&db, &model, &context);
                let told = cause(&error, &context).or_else(|| cause(&db.begin().err()?, &context));
                if let Some(told) = told {
                    break told;
                }
                // A log that could not get a new segment goes on, so far: nothing of the commit was written.
                model.forget_after(model.acknowledged);
            };
            assert!(told.contains(part), "{context}: the cause does not say so: {told}");
            check_poisoned(&db, &model, &context);
            check(&disk.crash_image(0), &model, &format!("{context}, then cut"));
        }
        disk.clear_faults();
        reopen(&disk, &mut model, &context);
    });
}

#[test]
fn a_flush_that_cannot_write_its_run_stops_the_writers() {
    lasting_failure(Operation::Write, "runs");
}

#[test]
fn a_flush_that_cannot_sync_its_run_stops_the_writers() {
    lasting_failure(Operation::Sync, "runs");
}

#[test]
fn a_merge_that_cannot_write_pages_stops_the_writers() {
    lasting_failure(Operation::Write, "base.pages");
}

#[test]
fn a_merge_that_cannot_sync_pages_stops_the_writers() {
    lasting_failure(Operation::Sync, "base.pages");
}

#[test]
fn a_merge_that_cannot_write_history_stops_the_writers() {
    lasting_failure(Operation::Write, "history");
}

#[test]
fn a_merge_that_cannot_remove_a_run_stops_the_writers() {
    lasting_failure(Operation::Remove, "runs");
}

#[test]
fn a_log_that_cannot_be_written_stops_the_writers() {
    lasting_failure(Operation::Write, "wal");
}

#[test]
fn a_log_that_cannot_be_synced_stops_the_writers() {
    lasting_failure(Operation::Sync, "wal");
}

/// Fills a disk up; `free` bytes are left at some moment.
fn full_disk(free: u64, background: bool) {
    let context = format!("{free} bytes are left, threads: {background}");
    let disk = SimDisk::new();
    let mut model = Model::new();
    let mut random = Random(free);
    {
        let db = options().background(background).open_on(Arc::new(disk.clone()), PATH).unwrap();
        work(&db, &mut model, &mut random, 50).unwrap();
        disk.set_capacity(disk.bytes() + free);
        let error = work(&db, &mut model, &mut random, 100_000).expect_err("the disk is full some time");
        let is_full = match &error {
            Error::Io { source, .. } => source.kind() == ErrorKind::StorageFull,
            // The text of an error of this kind.
            Error::Poisoned { cause } => {
                cause.contains(&std::io::Error::from(ErrorKind::StorageFull).to_string())
            }
            _ => false,
        };
        assert!(is_full, "{context}: {error}");
        read(&db, &model, &context);
        check(&disk.crash_image(0), &model, &format!("{context}, then cut"));
        disk.set_capacity(u64::MAX);
        if cause(&error, &context).is_none() && db.begin().is_ok() {
            model.forget_after(model.acknowledged);
            // With threads, one of them may have met the full disk and not have said so yet.
            if let Err(error) = work(&db, &mut model, &mut random, 10) {
                assert!(background, "{context}: there is room again: {error}");
                cause(&error, &context).unwrap_or_else(|| panic!("{context}: there is room again: {error}"));
            }
            read(&db, &model, &context);
        }
    }
    reopen(&disk, &mut model, &context);
}

#[test]
fn a_full_disk_loses_nothing_and_room_makes_it_work_again() {
    within(limit(), || {
        for free in (0..40).map(|i| i * 16_384 + i * 37) {
            full_disk(free, false);
        }
    });
}

#[test]
fn a_full_disk_does_not_hang_the_threads() {
    within(limit(), || {
        for free in (0..12).map(|i| i * 50_000) {
            full_disk(free, true);
        }
    });
}

#[test]
fn a_disk_that_is_full_from_the_start_can_be_used_later() {
    within(limit(), || {
        for capacity in (0..120_000).step_by(4000) {
            let disk = SimDisk::new();
            disk.set_capacity(capacity);
            if let Err(error) = open(&disk) {
                assert!(cause(&error, "full").is_none(), "{error}");
            }
            disk.set_capacity(u64::MAX);
            reopen(&disk, &mut Model::new(), &format!("capacity {capacity}"));
        }
    });
}
