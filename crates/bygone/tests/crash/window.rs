//! Power cuts in a database with a window: every commit in it is there afterwards.
//!
//! Owns: the sweeps over windows that stand still, that move, and that are given up. Promises: what `db.window()` says
//! after a cut can be read in full; a window that nothing has left begins where it began. May call: the support.

use std::sync::Arc;
use std::time::Duration;

use bygone::io::SimDisk;
use bygone::{Durability, Error, Options, Seq};

use crate::power::{check_image, run};
use crate::support::workload::work;
use crate::support::{
    HISTORY, Model, PATH, Random, check, check_open, open, options, points, windowed_options,
};

fn sweep(workload: u64, cuts: u64, options: &Options, check_window: impl Fn(&SimDisk, &str)) {
    let (whole, _, _) = run(workload, None, options);
    let operations = whole.operations();
    let mut random = Random(workload);
    for n in points(operations, cuts, &mut random) {
        let (disk, model, _) = run(workload, Some(n), options);
        for seed in [0, 1, random.next()] {
            let context = format!("workload {workload} with a window cut at {n} image {seed}");
            let image = disk.crash_image(seed);
            check_window(&image.crash_image(1), &context);
            check_image(&image, &model, seed ^ n, &context);
        }
    }
}

/// That is, if there is a database: the superblock that makes one comes before the one that has the window.
fn begins_at_the_beginning(image: &SimDisk, context: &str) {
    let db = open(image).unwrap_or_else(|error| panic!("{context}: {error}"));
    let first = db.window().map(|window| window.first);
    assert!(first.is_none_or(|first| first == Seq::from(0)), "{context}: {first:?}");
    assert!(first.is_some() || db.snapshot().seq() == Seq::from(0), "{context}: the window is lost");
}

#[test]
fn a_cut_at_any_operation_keeps_every_commit_of_the_window() {
    for workload in [41, 42] {
        sweep(workload, 30, &windowed_options(), begins_at_the_beginning);
    }
}

#[test]
fn a_cut_keeps_every_commit_of_a_window_whose_past_is_elsewhere() {
    let options = windowed_options().history_dir(HISTORY).archive_segment_bytes(64 << 10);
    sweep(43, 30, &options, begins_at_the_beginning);
}

/// Times differ from run to run, so the cuts are a sample.
#[test]
fn a_cut_while_the_window_moves_leaves_one_that_can_be_read() {
    for (workload, micros) in [(44, 300), (45, 3000)] {
        sweep(workload, 40, &options().window(Duration::from_micros(micros)), |_, _| {});
    }
}

/// The window may begin with a commit that a power cut takes: then it begins with the last one that is left.
#[test]
fn a_window_does_not_begin_behind_the_last_commit_that_is_left() {
    let disk = SimDisk::new();
    let options = options().window(Duration::from_micros(1));
    let db = options.clone().open_on(Arc::new(disk.clone()), PATH).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "k", "durable").unwrap();
    let durable = db.snapshot().seq();
    let mut tx = db.begin().unwrap();
    tx.set_durability(Durability::Buffered);
    tx.put(&table, "k", "lost").unwrap();
    let lost = tx.commit().unwrap();
    std::thread::sleep(Duration::from_millis(1));
    // Moves the window, and has a superblock say so; nothing syncs the log.
    db.prune().unwrap();
    assert_eq!(db.window().unwrap().first, lost);

    let image = disk.crash_image(0);
    let db = options.open_on(Arc::new(image), PATH).unwrap();
    let window = db.window().unwrap();
    assert_eq!((window.first, window.last), (durable, durable));
    let found = db.as_of(durable).unwrap().get(&db.open_table("t").unwrap(), "k").unwrap();
    assert_eq!(found.unwrap(), b"durable");
    assert!(matches!(db.as_of(lost), Err(Error::OutsideWindow { .. })));
}

/// At every operation of the opening that changes the window, and of the work behind it.
#[test]
fn a_cut_while_a_window_is_begun_or_given_up_leaves_either() {
    let disk = SimDisk::new();
    let mut model = Model::new();
    let mut random = Random(46);
    let db = windowed_options().open_on(Arc::new(disk.clone()), PATH).unwrap();
    work(&db, &mut model, &mut random, 60).unwrap();
    drop(db);
    model.all_durable();
    for length in [Duration::ZERO, Duration::from_micros(1), Duration::from_secs(200_000)] {
        let again = |cut: Option<u64>| {
            let copy = disk.crash_image(1);
            if let Some(n) = cut {
                copy.crash_at(n);
            }
            let (mut model, mut random) = (model.clone(), Random(47));
            let opened = options().window(length).open_on(Arc::new(copy.clone()), PATH);
            let done = opened.and_then(|db| {
                db.prune()?;
                work(&db, &mut model, &mut random, 10)
            });
            assert!(cut.is_some() || done.is_ok(), "{done:?}");
            (copy, model)
        };
        let (whole, _) = again(None);
        for n in points(whole.operations(), 60, &mut random) {
            let (cut, model) = again(Some(n));
            for seed in [0, 1, random.next()] {
                let context = format!("a window of {length:?} cut at {n} image {seed}");
                let (db, seq) = check(&cut.crash_image(seed), &model, &context);
                let mut model = model.clone();
                model.cut_at(seq);
                work(&db, &mut model, &mut random, 5).unwrap();
                db.prune().unwrap();
                check_open(&db, &model, &format!("{context}, then work"));
            }
        }
    }
}
