//! Power cuts while a database is made.
//!
//! Owns: the very first moments. Promises: there is no database, or an empty one, and never an error; what
//! was committed after that is there. May call: the support.

use std::path::Path;
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Error, Options, Result};

use crate::support::{Model, PATH, Random, check, open, options};

#[test]
fn a_new_database_outlives_a_power_cut_right_after_its_first_commit() {
    // The directories above it are new too, and so is the history's, which lies elsewhere.
    let opened = |disk: &SimDisk| -> Result<Db> {
        let options: Options = options().history_dir("other/place/history");
        options.open_on(Arc::new(disk.clone()), "some/where/db")
    };
    let disk = SimDisk::new();
    let db = opened(&disk).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "k", "v").unwrap();
    db.snapshot_now("first").unwrap();
    db.put(&table, "k", "w").unwrap();
    db.merge().unwrap();
    let image = disk.crash_image(0);
    let db = opened(&image).unwrap();
    let table = db.open_table("t").unwrap();
    assert_eq!(db.get(&table, "k").unwrap().unwrap(), b"w");
    assert_eq!(db.as_of("first").unwrap().get(&table, "k").unwrap().unwrap(), b"v");
}

#[test]
fn a_cut_while_a_database_is_made_leaves_none_or_an_empty_one() {
    let whole = SimDisk::new();
    open(&whole).unwrap();
    let mut random = Random(77);
    for n in 1..=whole.operations() {
        let disk = SimDisk::new();
        disk.crash_at(n);
        // The last operations are those of closing it again.
        let made = open(&disk).is_ok();
        for seed in (0..8).map(|i| if i < 2 { i } else { i + 100 * n }) {
            let context = format!("creation cut at {n} image {seed}");
            let image = disk.crash_image(seed);
            let read = options().read_only(true).open_on(Arc::new(image.clone()), PATH);
            match read {
                Ok(db) => assert_eq!(db.tables().unwrap(), Vec::<String>::new(), "{context}"),
                Err(Error::NotFound { .. }) if !made => {}
                Err(error) => panic!("{context}: {error}"),
            }
            // And cut in the second attempt, which may find what the first one left.
            let second = image.crash_image(1);
            second.crash_at(1 + random.below(whole.operations()));
            let _ = open(&second);
            check(&second.crash_image(random.next()), &Model::new(), &format!("{context}, and again"));
            let (db, _) = check(&image, &Model::new(), &context);
            let table = db.table("t").unwrap();
            db.put(&table, "k", "v").unwrap();
            let left = image.crash_image(0);
            drop(db);
            let db = open(&left).unwrap();
            let table = db.open_table("t").unwrap();
            assert_eq!(db.get(&table, "k").unwrap().unwrap(), b"v", "{context}");
        }
    }
    assert!(whole.snapshot_files().iter().any(|(path, _)| path == Path::new("db/base.pages")));
}

/// The process that made the database was stopped between the last step and its sync.
#[test]
fn a_database_whose_making_was_killed_is_durable_once_it_is_opened_again() {
    let whole = SimDisk::new();
    open(&whole).unwrap();
    for n in 1..=whole.operations() {
        let disk = SimDisk::new();
        disk.fail_at(n, std::io::ErrorKind::Other);
        let _ = open(&disk);
        let killed = disk.killed_image();
        let db = open(&killed).unwrap();
        let table = db.table("t").unwrap();
        db.put(&table, "k", "v").unwrap();
        let image = killed.crash_image(0);
        let db = open(&image).unwrap_or_else(|error| panic!("killed at {n}: {error}"));
        let table = db.open_table("t").unwrap_or_else(|error| panic!("killed at {n}: {error}"));
        assert_eq!(db.get(&table, "k").unwrap().unwrap(), b"v", "killed at {n}");
    }
}
