//! Views that are held while the present goes on.
//!
//! Owns: nothing. Promises: the file of the present does not grow because somebody reads, or because snapshots are
//! kept; whoever holds a view reads the same through it to the end.

use std::ops::ControlFlow;
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Durability, Options, Snapshot, SnapshotId};

use crate::support::{HISTORY, PATH, Random, split_options};
use crate::{files, open_split};

const KEYS: u64 = 20_000;
const VALUE_BYTES: usize = 200;

fn overwrite(db: &Db, random: &mut Random) {
    let table = db.table("t").unwrap();
    for hundred in 0..KEYS / 100 {
        let mut tx = db.begin().unwrap();
        tx.set_durability(Durability::Buffered);
        for key in hundred * 100..hundred * 100 + 100 {
            let mut value = [0; VALUE_BYTES];
            value[..8].copy_from_slice(&random.next().to_le_bytes());
            tx.put(&table, key.to_be_bytes(), value).unwrap();
        }
        tx.commit().unwrap();
    }
}

fn sum(snapshot: &Snapshot) -> u64 {
    let mut sum = 0u64;
    let table = snapshot.table("t").unwrap();
    let each = |_: &[u8], value: &[u8]| {
        sum = sum.wrapping_mul(31).wrapping_add(u64::from_le_bytes(value[..8].try_into().unwrap()));
        ControlFlow::Continue(())
    };
    snapshot.for_each(&table, .., each).unwrap();
    sum
}

/// How much the base file grows, in percent, while a working set is overwritten many times.
fn growth(options: Options, held: bool, snapshots: bool) -> f64 {
    let disk = SimDisk::new();
    let options = options.memtable_bytes(1 << 20).log_segment_bytes(1 << 20).cache_bytes(2 << 20);
    let db = options.open_on(Arc::new(disk.clone()), PATH).unwrap();
    let mut random = Random(3);
    // Until the file has the length that it has while nobody reads.
    for _ in 0..3 {
        overwrite(&db, &mut random);
        db.merge().unwrap();
    }
    let before = db.stats().unwrap().base_bytes;
    let view = held.then(|| (db.snapshot(), sum(&db.snapshot())));
    let mut largest = before;
    let mut declared = Vec::new();
    for round in 0..20 {
        overwrite(&db, &mut random);
        db.merge().unwrap();
        if snapshots && round % 5 == 0 {
            let id = db.snapshot_now(None).unwrap();
            declared.push((id, sum(&db.snapshot())));
        }
        db.archive().unwrap();
        largest = largest.max(db.stats().unwrap().base_bytes);
    }
    if let Some((view, expected)) = &view {
        assert_eq!(sum(view), *expected);
    }
    for (id, expected) in &declared {
        assert_eq!(sum(&db.as_of(*id).unwrap()), *expected);
    }
    let percent = (largest as f64 / before as f64 - 1.0) * 100.0;
    println!("held {held}, snapshots {snapshots}: {before} to {largest} bytes, {percent:.2}%");
    let stats = db.stats().unwrap();
    drop(view);
    db.archive().unwrap();
    assert_eq!(db.stats().unwrap().archived_view_pages, 0, "{stats:?}");
    if declared.is_empty() {
        assert_eq!(files(&disk, ".pages"), 0, "what the view needed went with it");
    }
    db.verify().unwrap();
    percent
}

#[test]
fn a_held_view_does_not_make_the_file_of_the_present_grow() {
    let alone = growth(split_options(), false, false);
    let held = growth(split_options(), true, false);
    assert!(held < 5.0 && held <= alone + 5.0, "{held:.2}%, {alone:.2}% without");
}

/// The archiver's own pace decides how soon; what has to hold is that nobody reads anything wrong, and that it does get
/// there.
#[test]
fn threads_move_what_views_and_snapshots_need() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(1 << 20).log_segment_bytes(1 << 20).cache_bytes(2 << 20);
    let options = options.durability(Durability::Buffered).archive_bytes_per_second(0);
    let db = options.history_dir(directory.path().join("past")).open(directory.path().join("db")).unwrap();
    let mut random = Random(6);
    let mut views = Vec::new();
    for round in 0..12 {
        overwrite(&db, &mut random);
        if round % 3 == 0 {
            let id = db.snapshot_now(None).unwrap();
            views.push((db.as_of(id).unwrap(), sum(&db.snapshot())));
            views.push((db.snapshot(), sum(&db.snapshot())));
        }
        for (view, expected) in &views {
            assert_eq!(sum(view), *expected, "round {round}");
        }
    }
    db.merge().unwrap();
    db.archive().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.archived_pages > 0 && stats.archive_failure.is_none(), "{stats:?}");
    for (view, expected) in views {
        assert_eq!(sum(&view), expected);
    }
    db.verify().unwrap();
    let ids: Vec<_> = db.snapshots().unwrap().iter().map(|info| info.id).collect();
    db.delete_snapshots(ids).unwrap();
    db.prune().unwrap();
    assert_eq!(db.stats().unwrap().archived_pages, 0);
}

/// A merge that keeps what it supersedes needs room for all that it rewrites, here for everything; but it is the same
/// room each time.
#[test]
fn kept_snapshots_do_not_make_the_file_of_the_present_grow() {
    let kept = growth(split_options(), false, true);
    assert!(kept < 110.0, "{kept:.2}%");
}

#[test]
fn what_views_need_is_litter_after_a_kill() {
    let disk = SimDisk::new();
    let db = open_split(&disk);
    let mut random = Random(4);
    overwrite(&db, &mut random);
    db.merge().unwrap();
    let view = db.snapshot();
    let expected = sum(&view);
    overwrite(&db, &mut random);
    db.merge().unwrap();
    assert!(files(&disk, ".pages") > 0 && db.stats().unwrap().archived_view_pages > 0);
    assert_eq!(sum(&view), expected);
    let killed = disk.killed_image();
    let again = open_split(&killed);
    assert_eq!(files(&killed, ".pages"), 0);
    again.verify().unwrap();
    // The view outlives the database.
    drop(db);
    assert_eq!(sum(&view), expected);
    drop(view);
    assert_eq!(files(&disk, ".pages"), 0);
}

#[test]
fn views_go_on_when_their_snapshots_are_deleted_and_archived_pages_given_back() {
    let disk = SimDisk::new();
    let db = open_split(&disk);
    let mut random = Random(5);
    let mut views = Vec::new();
    for _ in 0..4 {
        overwrite(&db, &mut random);
        let id = db.snapshot_now(None).unwrap();
        let view = db.as_of(id).unwrap();
        views.push((view, sum(&db.snapshot())));
        overwrite(&db, &mut random);
        db.merge().unwrap();
        db.archive().unwrap();
    }
    assert!(db.stats().unwrap().archived_pages > 0);
    // Opened while archived, too.
    for id in 1..=4 {
        let view = db.as_of(SnapshotId::from(id)).unwrap();
        let expected = sum(&view);
        views.push((view, expected));
    }
    db.delete_snapshots((1..=4).map(SnapshotId::from)).unwrap();
    for _ in 0..3 {
        overwrite(&db, &mut random);
        db.merge().unwrap();
        db.prune().unwrap();
        db.archive().unwrap();
        for (view, expected) in &views {
            assert_eq!(sum(view), *expected);
        }
    }
    assert_eq!(db.stats().unwrap().archived_pages, 0);
    assert!(db.stats().unwrap().archived_view_pages > 0);
    views.clear();
    db.archive().unwrap();
    assert_eq!(files(&disk, ".pages"), 0, "{HISTORY}: {:?}", disk.snapshot_files());
}
