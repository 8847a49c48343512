//! Leases on a disk that fails, and after power cuts.

use std::io::ErrorKind;

use bygone::Error;
use bygone::io::SimDisk;

use crate::leases;
use crate::support::workload::work;
use crate::support::{Model, Random, check, check_open, compare, open, open_read_only};

fn filled(seed: u64) -> (SimDisk, Model) {
    let disk = SimDisk::new();
    let (mut model, mut random) = (Model::new(), Random(seed));
    let db = open(&disk).unwrap();
    work(&db, &mut model, &mut random, 120).unwrap();
    drop(db);
    model.all_durable();
    (disk, model)
}

#[test]
fn a_call_that_fails_while_a_reader_opens_harms_nobody() {
    let (disk, model) = filled(1);
    let owner = open(&disk).unwrap();
    let mut failures = 0;
    for n in 1.. {
        disk.fail_at(disk.operations() + n, ErrorKind::Other);
        let opened = open_read_only(&disk);
        disk.clear_faults();
        match opened {
            Err(Error::Io { .. }) => failures += 1,
            Err(other) => panic!("{other}"),
            Ok(reader) => {
                compare(&reader, &model, &format!("call {n} failed")).unwrap();
                break;
            }
        }
        assert_eq!(leases(&disk).len(), 0, "call {n}: a reader that came to nothing leaves no lease");
        compare(&open_read_only(&disk).unwrap(), &model, "after a failure").unwrap();
    }
    assert!(failures >= 2, "{failures}");
    owner.merge().unwrap();
    check_open(&owner, &model, "the owner");
    assert_eq!(leases(&disk).len(), 0);
}

#[test]
fn a_call_that_fails_in_a_refresh_leaves_the_reader_where_it_was() {
    let (disk, mut model) = filled(2);
    let owner = open(&disk).unwrap();
    let reader = open_read_only(&disk).unwrap();
    let seq = compare(&reader, &model, "before").unwrap();
    reader.stats().unwrap();
    work(&owner, &mut model, &mut Random(3), 60).unwrap();
    owner.merge().unwrap();
    for n in 1.. {
        disk.fail_at(disk.operations() + n, ErrorKind::Other);
        let refreshed = reader.refresh();
        disk.clear_faults();
        match refreshed {
            Ok(newer) => {
                assert!(newer);
                break;
            }
            Err(Error::Io { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        assert_eq!(compare(&reader, &model, &format!("call {n} failed")).unwrap(), seq);
        reader.stats().unwrap();
    }
    assert_eq!(compare(&reader, &model, "at last").unwrap(), model.last_seq());
}

#[test]
fn a_snapshot_whose_lease_cannot_be_written_is_not_opened() {
    let (disk, model) = filled(4);
    let reader = open_read_only(&disk).unwrap();
    let id = reader.snapshots().unwrap()[0].id;
    disk.fail_at(disk.operations() + 1, ErrorKind::StorageFull);
    assert!(matches!(reader.as_of(id), Err(Error::Io { .. })));
    disk.clear_faults();
    compare(&reader, &model, "after it").unwrap();
}

#[test]
fn a_power_cut_ends_all_leases() {
    let (disk, model) = filled(5);
    for n in 1..40 {
        let disk = disk.crash_image(1);
        let owner = open(&disk).unwrap();
        let mut model = model.clone();
        let held = open_read_only(&disk).unwrap();
        disk.crash_at(disk.operations() + n);
        let late = open_read_only(&disk);
        let _ = work(&owner, &mut model, &mut Random(n), 10).and_then(|()| held.refresh());
        for seed in [0, 1, 2 + n] {
            let image = disk.crash_image(seed);
            let (db, _) = check(&image, &model, &format!("cut at {n} image {seed}"));
            assert_eq!(leases(&image).len(), 0);
            drop(db);
        }
        drop((late, held, owner));
    }
}

/// Whoever looks cannot tell what a half-written lease keeps, so it keeps the present.
#[test]
fn a_lease_that_cannot_be_read_keeps_everything_from_then_on() {
    let (disk, mut model) = filled(6);
    let owner = open(&disk).unwrap();
    let reader = open_read_only(&disk).unwrap();
    let lease = leases(&disk).pop().unwrap();
    disk.flip(&lease, 40, 0xff).unwrap();
    work(&owner, &mut model, &mut Random(7), 100).unwrap();
    owner.merge().unwrap();
    disk.flip(&lease, 40, 0xff).unwrap();
    let seq = compare(&reader, &model, "beside").unwrap();
    assert!(seq < model.last_seq());
    disk.flip(&lease, 40, 0xff).unwrap();
    drop(owner);
    match open(&disk) {
        Err(Error::Locked { path, .. }) => assert_eq!(path, lease),
        other => panic!("a later owner cannot know what to keep: {other:?}"),
    }
    drop(reader);
    check(&disk, &model, "without the reader");
}
