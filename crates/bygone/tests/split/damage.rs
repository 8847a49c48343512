//! Damage to what lies in the history directory.
//!
//! Owns: nothing. Promises: the right data or an error that names the place; the present is not touched by it.

use bygone::io::{Disk, SimDisk};
use bygone::{Db, Error, Result};

use crate::archived;
use crate::support::{Model, Random, compare, full, open, read_state};

/// The present is right; the past is right or says what is wrong.
fn check_damaged(db: &Db, model: &Model, context: &str) -> Option<Error> {
    let now = read_state(&db.snapshot()).unwrap_or_else(|error| panic!("{context}: the present: {error}"));
    assert!(now == **model.states.last().unwrap(), "{context}: the present is not as it was");
    let errors: Vec<Result<()>> = vec![compare(db, model, context).map(drop), db.verify().map(drop)];
    let mut found = None;
    for error in errors.into_iter().filter_map(Result::err) {
        match error {
            Error::Corruption { .. } | Error::HistoryUnavailable { .. } | Error::Incompatible { .. } => {
                found = Some(error);
            }
            error => panic!("{context}: {error:?}"),
        }
    }
    found
}

#[test]
fn a_flipped_byte_anywhere_gives_an_error_or_the_right_data() {
    let disk = SimDisk::new();
    let (db, model) = archived(&disk, 31, 150);
    drop(db);
    let mut random = Random(32);
    let files: Vec<_> =
        disk.snapshot_files().into_iter().filter(|(path, _)| !path.starts_with("db")).collect();
    assert!(files.iter().any(|(path, _)| path.to_string_lossy().ends_with(".pages")));
    assert!(files.iter().any(|(path, _)| path.to_string_lossy().ends_with(".map")));
    let (mut noticed, mut flips) = (0, 0);
    for (path, len) in &files {
        let count = if full() { 2000 } else { 25 };
        for n in 0..count {
            let offset = if n < 10 { n * 4 } else { random.below(*len) };
            let copy = disk.killed_image();
            copy.flip(path, offset.min(len - 1), 1 << random.below(8)).unwrap();
            let context = format!("{} flipped at {offset}", path.display());
            let db = open(&copy).unwrap_or_else(|error| panic!("{context}: {error}"));
            noticed += u64::from(check_damaged(&db, &model, &context).is_some());
            flips += 1;
        }
    }
    println!("{noticed} of {flips} flips noticed");
    // What is not noticed is in records that nothing leads to any more.
    assert!(noticed * 5 > flips * 4, "{noticed} of {flips} flips noticed");
}

#[test]
fn a_file_that_is_missing_or_cut_is_noticed() {
    let disk = SimDisk::new();
    let (db, model) = archived(&disk, 33, 150);
    drop(db);
    for (path, len) in disk.snapshot_files().into_iter().filter(|(path, _)| !path.starts_with("db")) {
        for cut in [None, Some(0), Some(len / 2), Some(len - 1)] {
            let copy = disk.killed_image();
            let context = format!("{} cut to {cut:?}", path.display());
            match cut {
                None => copy.remove(&path).unwrap(),
                Some(len) => copy.open(&path, bygone::io::OpenMode::Write).unwrap().set_len(len).unwrap(),
            }
            let db = open(&copy).unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = check_damaged(&db, &model, &context);
            assert!(found.is_some(), "{context}: not noticed");
            // The present goes on as well.
            let table = db.table("another").unwrap();
            db.put(&table, "k", "v").unwrap();
            db.merge().unwrap();
        }
    }
}
