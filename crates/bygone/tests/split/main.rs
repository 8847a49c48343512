//! Split mode: the past in a directory of its own, and what happens when that fails.
//!
//! Owns: the promises of `Options::history_dir`. Promises: every snapshot reads as it was, wherever its pages are; the
//! present works without the history directory; nothing is kept that nobody needs. May call: the engine's public face
//! only.

#[path = "../support/mod.rs"]
mod support;

mod beside;
mod damage;
mod place;
mod readers;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bygone::io::SimDisk;
use bygone::{Db, Durability, Error, Stats};
use support::workload::work;
use support::{HISTORY, Model, PATH, Random, check, check_open, open, points, split_options};

fn open_split(disk: &SimDisk) -> Db {
    split_options().open_on(Arc::new(disk.clone()), PATH).unwrap()
}

/// A database with a past of which most is archived, and its model.
fn archived(disk: &SimDisk, seed: u64, steps: u64) -> (Db, Model) {
    let db = open_split(disk);
    let mut model = Model::new();
    work(&db, &mut model, &mut Random(seed), steps).unwrap();
    db.merge().unwrap();
    db.archive().unwrap();
    model.all_durable();
    (db, model)
}

/// Files in the history directory whose names end like this.
fn files(disk: &SimDisk, ending: &str) -> usize {
    let is_one = |path: &Path| path.starts_with(HISTORY) && path.to_string_lossy().ends_with(ending);
    disk.snapshot_files().iter().filter(|(path, _)| is_one(path)).count()
}

/// What the space map and the catalogue take beside the tables.
fn nothing_of_the_past_is_in_the_base(stats: &Stats) -> bool {
    stats.base_history_bytes < 16 * 4096
}

#[test]
fn archived_pages_are_read_as_before_and_leave_the_file_of_the_present() {
    let disk = SimDisk::new();
    let (db, model) = archived(&disk, 5, 400);
    let stats = db.stats().unwrap();
    assert!(stats.archived_pages > 20 && stats.archive_live_bytes > 0, "{stats:?}");
    assert!(nothing_of_the_past_is_in_the_base(&stats), "{stats:?}");
    assert!(stats.archive_failure.is_none(), "{stats:?}");
    check_open(&db, &model, "archived");
    assert_eq!(db.verify().unwrap().archived_pages, stats.archived_pages);
    drop(db);
    // The directory is remembered.
    let (db, _) = check(&disk, &model, "opened again");
    assert_eq!(db.stats().unwrap().archived_pages, stats.archived_pages);
    db.archive().unwrap();
    assert_eq!(db.stats().unwrap().archived_pages, stats.archived_pages, "found again what it had");
    drop(db);
    check(&disk.crash_image(0), &model, "and cut");
}

#[test]
fn archiving_is_found_to_be_incomplete_after_a_kill() {
    let disk = SimDisk::new();
    let db = open_split(&disk);
    let mut model = Model::new();
    work(&db, &mut model, &mut Random(6), 300).unwrap();
    db.merge().unwrap();
    model.all_durable();
    let killed = disk.killed_image();
    let (db, _) = check(&killed, &model, "killed");
    db.archive().unwrap();
    let stats = db.stats().unwrap();
    assert!(nothing_of_the_past_is_in_the_base(&stats), "{stats:?}");
    check_open(&db, &model, "killed, then archived");
}

#[test]
fn without_a_history_directory_there_is_nothing_to_archive() {
    let disk = SimDisk::new();
    let db = open(&disk).unwrap();
    let mut model = Model::new();
    work(&db, &mut model, &mut Random(7), 200).unwrap();
    db.archive().unwrap();
    assert_eq!(db.stats().unwrap().archived_pages, 0);
    drop(db);
    // From now on there is one: what is there moves, history runs too.
    let db = open_split(&disk);
    db.archive().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.archived_pages > 0 && nothing_of_the_past_is_in_the_base(&stats), "{stats:?}");
    assert!(disk.snapshot_files().iter().all(|(path, _)| !path.starts_with("db/history")));
    check_open(&db, &model, "split later");
}

#[test]
fn deleting_snapshots_gives_back_what_is_archived() {
    let disk = SimDisk::new();
    let (db, mut model) = archived(&disk, 8, 500);
    let mut random = Random(9);
    let mut live_bytes = db.stats().unwrap().archive_live_bytes;
    while !model.living().is_empty() {
        let living: Vec<u64> = model.living().iter().map(|declared| declared.id).collect();
        let doomed: Vec<u64> = living.iter().copied().filter(|_| random.below(3) == 0).take(25).collect();
        let doomed = if doomed.is_empty() { vec![living[0]] } else { doomed };
        model.push(model.now().clone());
        let at = model.last_seq();
        for declared in &mut model.declared {
            if doomed.contains(&declared.id) {
                declared.deleted = Some(at);
            }
        }
        db.delete_snapshots(doomed.iter().map(|id| bygone::SnapshotId::from(*id))).unwrap();
        model.acknowledge(Durability::Sync);
        db.prune().unwrap();
        db.archive().unwrap();
        let stats = db.stats().unwrap();
        assert!(stats.archive_live_bytes <= live_bytes, "{stats:?}");
        // Segments of which little is live are written anew; the head may be mostly dead.
        assert!(stats.archive_bytes <= 2 * stats.archive_live_bytes + (130 << 10), "{stats:?}");
        live_bytes = stats.archive_live_bytes;
        check_open(&db, &model, &format!("{} snapshots left", model.living().len()));
    }
    let stats = db.stats().unwrap();
    assert_eq!((stats.archived_pages, stats.archive_live_bytes, stats.archive_bytes), (0, 0, 0), "{stats:?}");
    assert_eq!((files(&disk, ".pages"), files(&disk, ".map"), files(&disk, ".run")), (0, 0, 0));
}

/// Calls that fail, but only those that have to do with the history directory.
fn fail_some(disk: &SimDisk, which: impl Fn(u64) -> bool + Send + Sync + 'static, kind: ErrorKind) {
    let calls = AtomicU64::new(0);
    disk.fail_matching(move |_, path| {
        let concerned = path.starts_with(HISTORY);
        (concerned && which(calls.fetch_add(1, Ordering::Relaxed))).then_some(kind)
    });
}

#[test]
fn the_present_goes_on_while_the_history_directory_fails() {
    for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
        let disk = SimDisk::new();
        let (db, mut model) = archived(&disk, 10, 150);
        fail_some(&disk, |_| true, kind);
        work(&db, &mut model, &mut Random(11), 300).unwrap();
        db.merge().unwrap();
        assert!(matches!(db.archive(), Err(Error::Io { .. })));
        let stats = db.stats().unwrap();
        assert!(stats.archive_failure.is_some(), "{stats:?}");
        disk.clear_faults();
        check_open(&db, &model, "failed for a while");
        // And nothing was given up for lost.
        db.archive().unwrap();
        let stats = db.stats().unwrap();
        assert!(stats.archive_failure.is_none() && nothing_of_the_past_is_in_the_base(&stats), "{stats:?}");
        check_open(&db, &model, "archived late");
        drop(db);
        check(&disk, &model, "opened again");
    }
}

/// One call fails, of whichever file: what was acknowledged is there, now and then.
#[test]
fn any_single_failure_leaves_present_and_past_whole() {
    let run = |failing: Option<u64>| {
        let disk = SimDisk::new();
        if let Some(n) = failing {
            disk.fail_at(n, ErrorKind::Other);
        }
        let mut model = Model::new();
        let context = format!("call {failing:?} fails");
        let outcome = split_options().open_on(Arc::new(disk.clone()), PATH).and_then(|db| {
            work(&db, &mut model, &mut Random(15), 100)?;
            db.merge()?;
            db.archive()
        });
        match outcome {
            Ok(()) => {}
            Err(Error::Io { .. } | Error::Poisoned { .. }) if failing.is_some() => {}
            Err(error) => panic!("{context}: {error:?}"),
        }
        let operations = disk.operations();
        disk.clear_faults();
        model.durable = model.acknowledged;
        let (db, seq) = check(&disk, &model, &context);
        model.cut_at(seq);
        db.archive().unwrap();
        db.merge().unwrap();
        check_open(&db, &model, &format!("{context}, archived"));
        check(&disk.crash_image(failing.unwrap_or(0)), &model, &format!("{context}, cut"));
        operations
    };
    let operations = run(None);
    for n in points(operations, 100, &mut Random(16)) {
        run(Some(n));
    }
}

#[test]
fn any_single_failure_of_the_history_directory_leaves_everything_whole() {
    let run = |failing: Option<u64>| {
        let disk = SimDisk::new();
        let (db, mut model) = archived(&disk, 12, 60);
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        disk.fail_matching(move |_, path| {
            let number = path.starts_with(HISTORY).then(|| counted.fetch_add(1, Ordering::Relaxed))?;
            (Some(number) == failing).then_some(ErrorKind::Other)
        });
        work(&db, &mut model, &mut Random(13), 120).unwrap();
        db.merge().unwrap();
        let _ = db.archive();
        let context = format!("call {failing:?} fails");
        check_open(&db, &model, &context);
        db.archive().unwrap();
        check_open(&db, &model, &format!("{context}, archived again"));
        model.all_durable();
        for seed in [0, 1, 77] {
            check(&disk.crash_image(seed), &model, &format!("{context}, cut, image {seed}"));
        }
        calls.load(Ordering::Relaxed)
    };
    let calls = run(None);
    println!("{calls} calls concern the history directory");
    for n in points(calls, 60, &mut Random(14)) {
        run(Some(n - 1));
    }
}
