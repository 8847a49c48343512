//! Damaged files under comparisons and histories.
//!
//! Owns: the flipping of bytes. Promises: an answer is right or an error. May call: the support.

use std::path::PathBuf;
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Change, Error, Result, SnapshotId, Value};

use crate::sim;
use crate::support::{PATH, Random, contents, options};

/// A database with three differing snapshots in two intervals and some overflow pages.
fn to_be_damaged() -> (SimDisk, [&'static str; 3]) {
    let (disk, db, table) = sim();
    let names = ["a", "b", "c"];
    for (round, name) in names.into_iter().enumerate() {
        for number in 0..400u32 {
            let length = if number % 40 == 0 { 9000 } else { 60 };
            if number as usize % 3 != round {
                db.put(&table, format!("key-{number:04}"), vec![round as u8; length]).unwrap();
            }
        }
        db.snapshot_now(name).unwrap();
        if round > 0 {
            db.merge().unwrap();
        }
    }
    drop((db, table));
    (disk.crash_image(1), names)
}

#[test]
fn damage_gives_errors_and_never_wrong_data() {
    let (disk, names) = to_be_damaged();
    type Histories = Vec<Vec<(SnapshotId, Option<Value>)>>;
    let read = |disk: &SimDisk| -> Result<(Vec<Vec<Change>>, Histories)> {
        let db = options().read_only(true).open_on(Arc::new(disk.clone()), PATH)?;
        let table = db.open_table("t")?;
        let (mut diffs, mut histories) = (Vec::new(), Vec::new());
        for (a, b) in [(0, 1), (1, 2), (2, 0)] {
            diffs.push(db.diff(names[a], names[b], &table)?.collect::<Result<_>>()?);
            let mut back = db.diff(names[a], names[b], &table)?.rev().collect::<Result<Vec<_>>>()?;
            back.reverse();
            diffs.push(back);
        }
        for number in (0..400).step_by(7) {
            histories.push(db.history(&table, format!("key-{number:04}"))?.collect::<Result<_>>()?);
        }
        Ok((diffs, histories))
    };
    let whole = read(&disk).unwrap();
    assert!(whole.0.iter().all(|changes| changes.len() > 200) && whole.1.iter().any(|h| h.len() == 2));
    let mut random = Random(4);
    let mut noticed = 0;
    for (path, bytes) in contents(&disk) {
        for _ in 0..40 {
            let offset = random.below(bytes.len() as u64);
            let mask = 1 << random.below(8);
            disk.flip(&path, offset, mask).unwrap();
            match read(&disk) {
                Ok(found) => assert!(found == whole, "{} flipped at {offset}", path.display()),
                Err(Error::Corruption { path: named, .. }) => {
                    assert_eq!(named, path);
                    noticed += 1;
                }
                Err(other) => panic!("{} flipped at {offset}: {other}", path.display()),
            }
            disk.flip(&path, offset, mask).unwrap();
        }
    }
    assert!(noticed > 20, "{noticed} were noticed");
    assert!(read(&disk).unwrap() == whole);
}

#[test]
fn an_error_is_the_last_item() {
    let (disk, names) = to_be_damaged();
    let base: PathBuf = [PATH, "base.pages"].iter().collect();
    for (page, bytes) in contents(&disk)[&base].chunks(4096).enumerate() {
        // The table's leaves, not what opening reads.
        if bytes.windows(5).any(|window| window == b"key-0") {
            disk.flip(&base, page as u64 * 4096 + 2000, 1).unwrap();
        }
    }
    let db = options().read_only(true).open_on(Arc::new(disk.clone()), PATH).unwrap();
    let table = db.open_table("t").unwrap();
    let mut failed = 0;
    for backward in [false, true] {
        let mut diff = db.diff(names[0], names[2], &table).unwrap();
        let mut next = || if backward { diff.next_back() } else { diff.next() };
        while let Some(item) = next() {
            if item.is_err() {
                failed += 1;
                assert!(next().is_none());
            }
        }
        assert!(diff.next().is_none() && diff.next_back().is_none());
    }
    assert_eq!(failed, 2);
    let mut history = db.history(&table, "key-0000").unwrap();
    let items: Vec<_> = history.by_ref().collect();
    assert!(
        items[..items.len() - 1].iter().all(Result::is_ok) && items[items.len() - 1].is_err(),
        "{items:?}"
    );
    assert!(history.next_back().is_none());
}
