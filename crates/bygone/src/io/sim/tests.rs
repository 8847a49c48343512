//! Tests of the simulated disk: what it loses, keeps, refuses and counts.

use std::collections::HashSet;

use super::*;
use crate::io::tests::exercise_disk;

fn create(disk: &SimDisk, path: &str) -> Arc<dyn DiskFile> {
    disk.open(Path::new(path), OpenMode::Create).unwrap()
}

fn root(disk: &SimDisk) {
    disk.sync_dir(Path::new("")).unwrap();
}

/// A file `f` that is durable and holds `len` bytes of `fill`.
fn durable_file(len: usize, fill: u8) -> (SimDisk, Arc<dyn DiskFile>) {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    file.write_at(&vec![fill; len], 0).unwrap();
    file.sync().unwrap();
    root(&disk);
    (disk, file)
}

fn contents(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
    disk.read_file(Path::new(path)).ok()
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.snapshot_files().into_iter().map(|(path, _)| path.to_str().unwrap().to_owned()).collect()
}

#[test]
fn it_keeps_the_contract_that_all_disks_share() {
    let disk = SimDisk::new();
    exercise_disk(&disk, Path::new("x"));
    exercise_disk(&SimDisk::new(), Path::new("/x"));
}

#[test]
fn what_was_synced_survives_every_crash() {
    let (disk, file) = durable_file(3000, 1);
    file.write_at(&[2; 3000], 3000).unwrap();
    for seed in 0..50 {
        let image = disk.crash_image(seed);
        assert_eq!(contents(&image, "f").unwrap()[..3000], [1; 3000][..]);
    }
}

#[test]
fn the_first_two_seeds_lose_and_keep_everything() {
    let (disk, file) = durable_file(10, 1);
    file.write_at(&[2; 20], 5).unwrap();
    create(&disk, "g");
    assert_eq!(contents(&disk.crash_image(0), "f").unwrap(), [1; 10]);
    assert_eq!(names(&disk.crash_image(0)), ["f"]);
    assert_eq!(contents(&disk.crash_image(1), "f"), contents(&disk, "f"));
    assert_eq!(names(&disk.crash_image(1)), ["f", "g"]);
}

#[test]
fn the_same_seed_gives_the_same_image() {
    let (disk, file) = durable_file(10, 1);
    for i in 0..20 {
        file.write_at(&[i; 700], u64::from(i) * 512).unwrap();
    }
    for seed in 0..20 {
        assert_eq!(contents(&disk.crash_image(seed), "f"), contents(&disk.crash_image(seed), "f"));
    }
}

#[test]
fn writes_are_torn_at_sectors_only_and_reordered() {
    let (disk, file) = durable_file(2048, 0);
    file.write_at(&[1; 1024], 0).unwrap();
    file.write_at(&[2; 1024], 1024).unwrap();
    let mut seen = HashSet::new();
    for seed in 0..4000 {
        let bytes = contents(&disk.crash_image(seed), "f").unwrap();
        let sectors: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
        assert!(bytes.chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])), "seed {seed}");
        seen.insert(sectors);
    }
    assert_eq!(seen.len(), 16, "every sector is old or new by itself: {seen:?}");
}

#[test]
fn a_new_length_may_be_lost_until_it_is_synced() {
    let (disk, file) = durable_file(1000, 1);
    file.set_len(300).unwrap();
    let lengths: HashSet<_> =
        (0..50).map(|seed| contents(&disk.crash_image(seed), "f").unwrap().len()).collect();
    assert_eq!(lengths, HashSet::from([300, 1000]));
    file.sync().unwrap();
    assert!((0..50).all(|seed| contents(&disk.crash_image(seed), "f").unwrap().len() == 300));
}

#[test]
fn a_synced_file_in_an_unsynced_directory_may_be_gone() {
    let disk = SimDisk::new();
    create(&disk, "f").sync().unwrap();
    let found: HashSet<_> = (0..50).map(|seed| names(&disk.crash_image(seed)).len()).collect();
    assert_eq!(found, HashSet::from([0, 1]));
    root(&disk);
    assert!((0..50).all(|seed| names(&disk.crash_image(seed)) == ["f"]));
}

#[test]
fn a_directory_is_as_durable_as_its_own_name() {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("a/b")).unwrap();
    create(&disk, "a/b/f").sync().unwrap();
    disk.sync_dir(Path::new("a/b")).unwrap();
    assert!(names(&disk.crash_image(0)).is_empty());
    disk.sync_dir(Path::new("a")).unwrap();
    assert!(names(&disk.crash_image(0)).is_empty());
    assert!(!disk.crash_image(0).exists(Path::new("a/b")).unwrap(), "its parent is gone");
    root(&disk);
    assert!((0..50).all(|seed| names(&disk.crash_image(seed)) == ["a/b/f"]));
}

#[test]
fn a_renamed_file_has_exactly_one_of_its_names() {
    let (disk, _) = durable_file(10, 1);
    disk.rename(Path::new("f"), Path::new("g")).unwrap();
    disk.rename(Path::new("g"), Path::new("h")).unwrap();
    let seen: HashSet<_> = (0..200).map(|seed| names(&disk.crash_image(seed))).collect();
    let expected = ["f", "g", "h"].map(|name| vec![name.to_owned()]);
    assert_eq!(seen, HashSet::from(expected));
    root(&disk);
    assert!((0..50).all(|seed| names(&disk.crash_image(seed)) == ["h"]));
}

#[test]
fn a_removed_file_may_come_back_but_not_over_its_successor() {
    let (disk, _) = durable_file(10, 1);
    disk.remove(Path::new("f")).unwrap();
    let found: HashSet<_> = (0..50).map(|seed| names(&disk.crash_image(seed)).len()).collect();
    assert_eq!(found, HashSet::from([0, 1]));
    let file = create(&disk, "f");
    file.write_at(&[2; 5], 0).unwrap();
    file.sync().unwrap();
    root(&disk);
    assert!((0..50).all(|seed| contents(&disk.crash_image(seed), "f").unwrap() == [2; 5]));
}

#[test]
fn from_the_crash_on_nothing_works() {
    let (disk, file) = durable_file(10, 1);
    disk.crash_at(disk.operations() + 2);
    file.write_at(&[2], 0).unwrap();
    assert!(file.write_at(&[3], 1).is_err());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(file.len().is_err());
    assert!(file.sync().is_err());
    assert!(disk.list(Path::new("")).is_err());
    assert!(disk.exists(Path::new("f")).is_err());
    assert!(disk.lock(Path::new("l"), true).is_err());
    let count = disk.operations();
    assert!(disk.remove(Path::new("f")).is_err());
    assert_eq!(disk.operations(), count, "a dead machine does not count");
    let ends: HashSet<_> =
        (0..100).map(|seed| contents(&disk.crash_image(seed), "f").unwrap()[..2].to_vec()).collect();
    assert_eq!(ends.len(), 4, "both writes may or may not be there, the last one too");
}

#[test]
fn a_sync_that_is_cut_off_promised_nothing() {
    let (disk, file) = durable_file(10, 1);
    file.write_at(&[2; 10], 0).unwrap();
    disk.crash_at(disk.operations() + 1);
    assert!(file.sync().is_err());
    assert_eq!(contents(&disk.crash_image(0), "f").unwrap(), [1; 10]);
    assert_eq!(contents(&disk.crash_image(1), "f").unwrap(), [2; 10]);
}

#[test]
fn one_call_fails_and_the_next_works() {
    let (disk, file) = durable_file(10, 1);
    let mut written = HashSet::new();
    for _ in 0..2 {
        file.write_at(&[0; 10], 0).unwrap();
        disk.fail_at(disk.operations() + 1, ErrorKind::Interrupted);
        assert_eq!(file.write_at(&[9; 10], 0).unwrap_err().kind(), ErrorKind::Interrupted);
        written.insert(contents(&disk, "f").unwrap().iter().filter(|b| **b == 9).count());
    }
    disk.fail_at(disk.operations() + 1, ErrorKind::Interrupted);
    assert!(file.set_len(0).is_err());
    file.set_len(1).unwrap();
    assert!(written.is_subset(&HashSet::from([0, 5])), "{written:?}");
}

#[test]
fn a_failed_sync_loses_writes_for_ever() {
    let lost = (0..10).filter(|more| {
        let (disk, file) = durable_file(10, 1);
        for _ in 0..*more {
            file.sync().unwrap();
        }
        file.write_at(&[2; 10], 0).unwrap();
        disk.fail_at(disk.operations() + 1, ErrorKind::Other);
        assert!(file.sync().is_err());
        file.sync().unwrap();
        assert_eq!(contents(&disk, "f").unwrap(), [2; 10], "still readable");
        contents(&disk.crash_image(1), "f").unwrap() == [1; 10]
    });
    let lost = lost.count();
    assert!((1..10).contains(&lost), "sometimes lost, sometimes not: {lost}");
}

#[test]
fn faults_can_be_aimed() {
    let (disk, file) = durable_file(10, 1);
    disk.fail_matching(|operation, path| {
        (operation == Operation::Sync && path == Path::new("f")).then_some(ErrorKind::PermissionDenied)
    });
    file.write_at(&[2], 0).unwrap();
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::PermissionDenied);
    create(&disk, "g").sync().unwrap();
    disk.clear_faults();
    file.sync().unwrap();
}

#[test]
fn a_full_disk_refuses_what_would_extend_it() {
    let (disk, file) = durable_file(100, 1);
    disk.set_capacity(150);
    assert_eq!(file.write_at(&[2; 60], 100).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.set_len(151).unwrap_err().kind(), ErrorKind::StorageFull);
    file.write_at(&[2; 60], 90).unwrap();
    assert_eq!(disk.bytes(), 150);
    file.write_at(&[3; 150], 0).unwrap();
    disk.remove(Path::new("f")).unwrap();
    create(&disk, "g").write_at(&[1; 150], 0).unwrap();
}

#[test]
fn a_flipped_byte_stays_flipped() {
    let (disk, _) = durable_file(10, 1);
    disk.flip(Path::new("f"), 3, 0x81).unwrap();
    let expected = [1, 1, 1, 0x80, 1, 1, 1, 1, 1, 1];
    assert_eq!(contents(&disk, "f").unwrap(), expected);
    assert_eq!(contents(&disk.crash_image(0), "f").unwrap(), expected);
}

#[test]
fn a_killed_process_leaves_its_writes_but_not_their_durability() {
    let (disk, file) = durable_file(10, 1);
    file.write_at(&[2; 10], 0).unwrap();
    create(&disk, "g");
    let Ok(LockOutcome::Held(_guard)) = disk.lock(Path::new("l"), true) else { panic!("free") };
    let next = disk.killed_image();
    assert!(matches!(next.lock(Path::new("l"), true).unwrap(), LockOutcome::Held(_)));
    assert_eq!(contents(&next, "f").unwrap(), [2; 10]);
    assert_eq!(names(&next), ["f", "g"]);
    assert_eq!(contents(&next.crash_image(0), "f").unwrap(), [1; 10]);
    next.open(Path::new("f"), OpenMode::Write).unwrap().sync().unwrap();
    assert_eq!(contents(&next.crash_image(0), "f").unwrap(), [2; 10]);
    assert_eq!(contents(&disk.crash_image(0), "f").unwrap(), [1; 10], "the two disks are apart");
}

#[test]
fn a_broken_lock_is_free_and_its_holder_does_no_harm() {
    let disk = SimDisk::new();
    let path = Path::new("l");
    let Ok(LockOutcome::Held(dead)) = disk.lock(path, true) else { panic!("free") };
    assert!(disk.break_locks(path));
    assert!(!disk.break_locks(path));
    let Ok(LockOutcome::Held(_alive)) = disk.lock(path, true) else { panic!("broken") };
    drop(dead);
    assert!(matches!(disk.lock(path, true).unwrap(), LockOutcome::Taken(_)), "it is another's now");
}
