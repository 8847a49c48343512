//! What a lease keeps of the past, and that all of it comes back.

use std::collections::BTreeMap;
use std::path::Path;

use bygone::io::{Disk, SimDisk};
use bygone::{Db, Error, SnapshotId, Table};

use crate::leases;
use crate::support::{PATH, open, open_read_only};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 1500;

fn put_round(db: &Db, table: &Table, rows: &mut Rows, round: u64, count: u64) {
    let mut tx = db.begin().unwrap();
    for n in 0..count {
        let key = format!("key-{:06}", (round * count + n) * 7919 % KEYS).into_bytes();
        let value = format!("{round:05}").repeat(20).into_bytes();
        tx.put(table, &key, &value).unwrap();
        rows.insert(key, value);
    }
    tx.commit().unwrap();
}

/// A database with snapshots of many moments, merged every few.
fn filled(disk: &SimDisk) -> (Db, Table, Vec<(SnapshotId, Rows)>) {
    let db = open(disk).unwrap();
    let table = db.table("t").unwrap();
    let (mut rows, mut states) = (Rows::new(), Vec::new());
    for round in 0..40 {
        put_round(&db, &table, &mut rows, round, 200);
        states.push((db.snapshot_now(None).unwrap(), rows.clone()));
        if round % 6 == 5 {
            db.merge().unwrap();
        }
    }
    (db, table, states)
}

fn read(db: &Db, id: SnapshotId) -> bygone::Result<Rows> {
    let past = db.as_of(id)?;
    let table = past.table("t")?;
    past.range(&table, ..)?.map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec()))).collect()
}

fn check(db: &Db, states: &[(SnapshotId, Rows)], what: &str) {
    let ids: Vec<_> = db.snapshots().unwrap().iter().map(|info| info.id).collect();
    assert!(ids.iter().eq(states.iter().map(|(id, _)| id)), "{what}");
    for (id, rows) in states {
        assert!(read(db, *id).unwrap() == *rows, "{what}: snapshot {id}");
    }
    db.verify().unwrap();
    // Lets them go.
    db.stats().unwrap();
}

fn history_files(disk: &SimDisk) -> usize {
    disk.list(&Path::new(PATH).join("history")).unwrap().len()
}

/// Deletes all but the last snapshot and writes all anew, several times.
fn overwrite(db: &Db, table: &Table, states: &[(SnapshotId, Rows)]) {
    db.delete_snapshots(states[..states.len() - 1].iter().map(|(id, _)| *id)).unwrap();
    db.prune().unwrap();
    for round in 100..110 {
        put_round(db, table, &mut Rows::new(), round, KEYS);
        db.merge().unwrap();
    }
}

fn used_bytes(db: &Db) -> u64 {
    let stats = db.stats().unwrap();
    stats.base_bytes - stats.base_free_bytes
}

#[test]
fn what_a_reader_can_reach_stays_until_it_ends() {
    // The owner that overwrites everything is the one that the reader opened beside, or a later one.
    for (reopened, killed) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = SimDisk::new();
        let (mut owner, mut table, states) = filled(&disk);
        let files = history_files(&disk);
        assert!(files > 3, "{files} history runs");
        let reader = open_read_only(&disk).unwrap();
        let held = reader.snapshot();
        if reopened {
            // Pages that die here are free in the space map that the next owner finds.
            overwrite(&owner, &table, &states);
            drop(owner);
            owner = open(&disk).unwrap();
            table = owner.table("t").unwrap();
            for round in 200..206 {
                put_round(&owner, &table, &mut Rows::new(), round, KEYS);
                owner.merge().unwrap();
            }
        } else {
            overwrite(&owner, &table, &states);
        }
        check(&reader, &states, "beside the owner");
        assert!(history_files(&disk) >= files, "what the reader needs is there");
        assert_eq!(held.range(&reader.open_table("t").unwrap(), ..).unwrap().count(), states[39].1.len());
        let before = used_bytes(&owner);
        if killed {
            std::mem::forget(held);
            std::mem::forget(reader);
            let lease = leases(&disk).pop().unwrap();
            assert!(disk.break_locks(&lease));
        } else {
            drop(held);
            drop(reader);
        }
        // Whoever prunes looks for what it could not give back before.
        owner.delete_snapshot(owner.snapshot_now(None).unwrap()).unwrap();
        owner.prune().unwrap();
        owner.merge().unwrap();
        assert_eq!(leases(&disk).len(), 0);
        assert!(history_files(&disk) < files / 2, "{} files", history_files(&disk));
        let after = used_bytes(&owner);
        assert!(after * 3 < before * 2, "{after} bytes of {before} are used still");
        owner.verify().unwrap();
    }
}

/// A reader whose lease was taken away, by hand for instance, is told; it never reads anything else than what was.
#[test]
fn without_its_lease_a_reader_meets_errors_and_never_wrong_data() {
    let disk = SimDisk::new();
    let (owner, table, states) = filled(&disk);
    let reader = open_read_only(&disk).unwrap();
    for lease in leases(&disk) {
        disk.break_locks(&lease);
    }
    overwrite(&owner, &table, &states);
    let mut failed = 0;
    for (id, rows) in &states {
        match read(&reader, *id) {
            Ok(found) => assert!(found == *rows, "snapshot {id}"),
            Err(Error::Corruption { .. }) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(failed > 10, "{failed} of {} could not be read", states.len());
    reader.refresh().unwrap();
    check(&reader, &states[39..], "with a new lease");
}

/// Each view keeps what it was opened with: refreshing does not let go the old base under it.
#[test]
fn views_of_several_moments_keep_several_bases() {
    let disk = SimDisk::new();
    let (owner, table, states) = filled(&disk);
    let reader = open_read_only(&disk).unwrap();
    let mut rows = states[39].1.clone();
    let mut views = Vec::new();
    for round in 300..306 {
        views.push((reader.snapshot(), reader.as_of(states[round as usize - 300].0).unwrap(), rows.clone()));
        put_round(&owner, &table, &mut rows, round, KEYS);
        owner.merge().unwrap();
        assert!(reader.refresh().unwrap());
    }
    assert_eq!(leases(&disk).len(), 7);
    let mine = reader.open_table("t").unwrap();
    for (index, (now, past, expected)) in views.into_iter().enumerate() {
        let read = |view: &bygone::Snapshot| -> Rows {
            view.range(&mine, ..)
                .unwrap()
                .map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
                .collect()
        };
        assert!(read(&now) == expected, "view {index}");
        assert!(read(&past) == states[index].1, "past {index}");
    }
    // The last view of each moment has taken its lease with it.
    assert_eq!(leases(&disk).len(), 1);
}

/// A merge in steps uses pages again that its own earlier steps superseded, but none of a base that a reader has.
#[test]
fn a_merge_in_steps_keeps_the_base_of_a_reader() {
    let disk = SimDisk::new();
    let owner = open(&disk).unwrap();
    let table = owner.table("t").unwrap();
    let fill = |round: u8| {
        for first in (0..4000u32).step_by(50) {
            let mut tx = owner.begin().unwrap();
            for key in first..first + 50 {
                tx.put(&table, key.to_be_bytes(), [round; 1000]).unwrap();
            }
            tx.commit().unwrap();
        }
        owner.merge().unwrap();
    };
    fill(1);
    let reader = open_read_only(&disk).unwrap();
    let mine = reader.open_table("t").unwrap();
    for round in 2..6 {
        fill(round);
        let view = reader.snapshot();
        let mut count = 0;
        view.for_each(&mine, .., |_, value| {
            assert_eq!(value, [round - 1; 1000]);
            count += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(count, 4000);
        assert!(reader.refresh().unwrap());
    }
}
