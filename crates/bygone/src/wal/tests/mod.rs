//! Tests of the log, one promise each.

mod beside;
mod crash;
mod measure;
mod real;

use std::io::ErrorKind;
use std::path::Path;

use super::*;
use crate::io::{Operation, SimDisk};

const DIR: &str = "db/wal";
const DATABASE: u64 = 0x1234_5678_9abc_def0;

fn settings() -> Settings {
    Settings { dir: DIR.into(), database_id: DATABASE, segment_bytes: 16 << 10, spares_max: 2, mapped: true }
}

fn new_disk() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("db")).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk
}

fn create(disk: &SimDisk) -> Wal {
    Wal::create(Arc::new(disk.clone()), settings(), 1).unwrap()
}

/// What the superblock of a database says that never flushed.
const FRESH: Expectation =
    Expectation { database_id: DATABASE, floor_segment: 1, next_seq: 1, durable_end: 0 };

type Commits = Vec<(u64, Vec<u8>)>;

fn read(disk: &SimDisk, expectation: Expectation, read_only: bool) -> Result<(Recovered, Commits)> {
    read_from(disk, Path::new(DIR), expectation, read_only)
}

fn read_from(
    disk: &dyn Disk,
    dir: &Path,
    expectation: Expectation,
    read_only: bool,
) -> Result<(Recovered, Commits)> {
    let mut commits = Commits::new();
    let mut apply = |seq, _, payload: &[u8]| {
        commits.push((seq, payload.to_vec()));
        Ok(())
    };
    let recovered = match read_only {
        true => super::read(disk, dir, expectation, &mut apply),
        false => recover(disk, dir, expectation, &mut apply),
    }?;
    Ok((recovered, commits))
}

fn reopen(disk: &SimDisk, expectation: Expectation) -> (Wal, Commits) {
    let (recovered, commits) = read(disk, expectation, false).unwrap();
    (Wal::open(Arc::new(disk.clone()), settings(), recovered, 0).unwrap(), commits)
}

fn payload(seq: u64) -> Vec<u8> {
    format!("commit {seq};").repeat(seq as usize % 7).into_bytes()
}

fn commits(range: std::ops::Range<u64>) -> Commits {
    range.map(|seq| (seq, payload(seq))).collect()
}

/// Appends the commits of a range, as one group.
fn append(wal: &Wal, range: std::ops::Range<u64>) -> Result<u64> {
    let payloads: Vec<_> = range.clone().map(payload).collect();
    wal.append(range.start, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn segment_file(id: u64) -> PathBuf {
    segment_path(Path::new(DIR), id)
}

fn corruption_of(result: Result<(Recovered, Commits)>) -> (PathBuf, u64) {
    match result {
        Err(Error::Corruption { path, offset, .. }) => (path, offset),
        other => panic!("no corruption: {other:?}"),
    }
}

#[test]
fn what_was_appended_comes_back_in_order() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..2).unwrap();
    append(&wal, 2..9).unwrap();
    wal.sync().unwrap();
    let (recovered, found) = read(&disk.crash_image(0), FRESH, false).unwrap();
    assert_eq!(found, commits(1..9));
    assert_eq!((recovered.next_seq, recovered.commits, recovered.torn), (9, 8, None));
}

#[test]
fn an_empty_log_is_fine() {
    let disk = new_disk();
    drop(create(&disk));
    let (wal, found) = reopen(&disk.crash_image(0), FRESH);
    assert!(found.is_empty());
    append(&wal, 1..2).unwrap();
}

#[test]
fn opening_again_and_again_does_not_grow_the_log() {
    let mut disk = new_disk();
    drop(create(&disk));
    let bytes = disk.bytes();
    for seq in 1..20 {
        disk = disk.killed_image();
        let (wal, found) = reopen(&disk, FRESH);
        assert_eq!(found, commits(1..seq));
        append(&wal, seq..seq + 1).unwrap();
        wal.close().unwrap();
    }
    assert_eq!(disk.bytes(), bytes);
}

#[test]
fn a_standby_that_was_not_used_is_the_standby_after_opening() {
    let mut disk = new_disk();
    let wal = create(&disk);
    wal.prepare_standby().unwrap();
    let bytes = disk.bytes();
    drop(wal);
    for seq in 1..20 {
        disk = disk.killed_image();
        let (wal, found) = reopen(&disk, FRESH);
        assert_eq!(found, commits(1..seq));
        assert!(seq == 1 || !wal.prepare_standby().unwrap(), "there is one");
        append(&wal, seq..seq + 1).unwrap();
        if seq % 2 == 0 {
            wal.close().unwrap();
        }
    }
    assert_eq!(disk.bytes(), bytes);
    let (wal, _) = reopen(&disk, FRESH);
    assert_eq!(wal.roll().unwrap(), 2, "and rolling goes on in it");
    append(&wal, 20..22).unwrap();
    wal.sync().unwrap();
    let (_, found) = reopen(&disk.crash_image(0), FRESH);
    assert_eq!(found, commits(1..22));
}

#[test]
fn a_record_that_does_not_fit_rolls_and_a_huge_one_gets_its_own_segment() {
    let disk = new_disk();
    let wal = create(&disk);
    let sizes = [9_000, 9_000, 3 << 20, 1, 600 << 10, 600 << 10, 20_000];
    let payloads: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8 | 1; *size]).collect();
    assert_eq!(wal.append(1, &[&payloads[0]]).unwrap(), 1);
    assert_eq!(wal.append(2, &[&payloads[1]]).unwrap(), 2);
    wal.prepare_standby().unwrap();
    assert_eq!(wal.append(3, &[&payloads[2]]).unwrap(), 4, "the standby 3 was too short");
    assert_eq!(wal.append(4, &[&payloads[3], &payloads[4], &payloads[5], &payloads[6]]).unwrap(), 5);
    wal.sync().unwrap();
    let disk = disk.crash_image(0);
    let (wal, found) = reopen(&disk, FRESH);
    assert!(found.iter().map(|(_, payload)| payload).eq(&payloads));
    assert_eq!(wal.bytes(), disk.bytes());
}

#[test]
fn a_group_that_is_too_large_is_refused_and_harmless() {
    let wal = create(&new_disk());
    let many = vec![&b""[..]; GROUP_COMMITS_MAX + 1];
    assert!(matches!(wal.append(1, &many), Err(Error::TooLarge { .. })));
    wal.append(1, &many[1..]).unwrap();
}

#[test]
fn a_sync_covers_segments_that_were_left_before() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..4).unwrap();
    assert_eq!(wal.roll().unwrap(), 2);
    assert_eq!(wal.roll().unwrap(), 2, "an empty segment is as good as a new one");
    append(&wal, 4..6).unwrap();
    assert!(read(&disk.crash_image(0), FRESH, true).unwrap().1.is_empty());
    wal.sync().unwrap();
    assert_eq!(read(&disk.crash_image(0), FRESH, true).unwrap().1, commits(1..6));
    let before = disk.operations();
    wal.sync().unwrap();
    assert_eq!(disk.operations(), before, "nothing new, nothing to do");
}

#[test]
fn rolling_to_a_standby_costs_no_call_to_the_disk() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..2).unwrap();
    assert!(wal.prepare_standby().unwrap());
    assert!(!wal.prepare_standby().unwrap());
    let before = disk.operations();
    assert_eq!(wal.roll().unwrap(), 2);
    assert_eq!(disk.operations(), before);
    assert_eq!(wal.active_segment(), 2);
}

#[test]
fn released_segments_are_used_again_and_their_old_records_never_come_back() {
    let disk = new_disk();
    let wal = create(&disk);
    let mut files = Vec::new();
    for seq in 1..30 {
        // All records have the same length, so old ones lie exactly where new ones could.
        wal.append(seq, &[&[seq as u8; 100]]).unwrap();
        if seq % 3 == 0 {
            wal.sync().unwrap();
            let id = wal.roll().unwrap();
            wal.release_before(id).unwrap();
            wal.prepare_standby().unwrap();
            let expectation = Expectation { floor_segment: id, next_seq: seq + 1, ..FRESH };
            assert!(read(&disk.killed_image(), expectation, false).unwrap().1.is_empty());
            files.push(disk.snapshot_files().len());
        }
    }
    assert!(*files.iter().max().unwrap() <= 4, "{files:?}");
    assert_eq!(wal.bytes(), disk.bytes());
}

#[test]
fn leftovers_before_the_floor_are_kept_as_spares_or_removed() {
    let disk = new_disk();
    let wal = create(&disk);
    for seq in 1..7 {
        append(&wal, seq..seq + 1).unwrap();
        wal.roll().unwrap();
    }
    wal.sync().unwrap();
    let disk = disk.crash_image(1);
    let (wal, _) = reopen(&disk, Expectation { floor_segment: 7, next_seq: 7, ..FRESH });
    assert_eq!(disk.snapshot_files().len(), 3, "the active segment and two spares");
    assert_eq!(wal.bytes(), disk.bytes());
}

#[test]
fn what_the_database_has_already_is_skipped() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..4).unwrap();
    append(&wal, 4..9).unwrap();
    wal.sync().unwrap();
    let (recovered, found) = read(&disk, Expectation { next_seq: 6, ..FRESH }, true).unwrap();
    assert_eq!(found, commits(6..9));
    assert_eq!(recovered.next_seq, 9);
    let (recovered, found) = read(&disk, Expectation { next_seq: 20, ..FRESH }, true).unwrap();
    assert_eq!((found, recovered.next_seq), (commits(0..0), 20));
}

#[test]
fn the_log_may_end_before_what_the_database_has() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..4).unwrap();
    wal.sync().unwrap();
    drop(wal);
    // Commits up to 9 got into a run that is durable, the log was cut off at 4.
    let expectation = Expectation { next_seq: 10, ..FRESH };
    let disk = disk.crash_image(0);
    let (wal, _) = reopen(&disk, expectation);
    append(&wal, 10..12).unwrap();
    wal.sync().unwrap();
    assert_eq!(read(&disk.crash_image(0), expectation, false).unwrap().1, commits(10..12));
}

#[test]
fn a_gap_to_the_database_is_damage() {
    let disk = new_disk();
    let wal = Wal::create(Arc::new(disk.clone()), settings(), 5).unwrap();
    append(&wal, 5..6).unwrap();
    wal.sync().unwrap();
    let place = corruption_of(read(&disk, Expectation { next_seq: 4, ..FRESH }, false));
    assert_eq!(place, (segment_file(1), RECORDS_OFFSET));
}

#[test]
fn missing_segments_are_damage() {
    let disk = new_disk();
    let wal = create(&disk);
    for seq in 1..4 {
        append(&wal, seq..seq + 1).unwrap();
        wal.roll().unwrap();
    }
    for missing in [1, 2] {
        let disk = disk.killed_image();
        disk.remove(&segment_file(missing)).unwrap();
        assert_eq!(corruption_of(read(&disk, FRESH, false)).0, segment_file(missing));
    }
}

#[test]
fn a_segment_in_the_wrong_place_is_damage() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..2).unwrap();
    wal.roll().unwrap();
    disk.rename(&segment_file(2), &segment_file(1)).unwrap();
    assert_eq!(corruption_of(read(&disk, FRESH, false)), (segment_file(1), 0));
    let other = Expectation { database_id: 1, ..FRESH };
    assert_eq!(corruption_of(read(&disk, other, false)), (segment_file(1), 0));
}

#[test]
fn a_half_made_last_segment_is_not_needed() {
    for len in [0, 10, 4096, 5000] {
        let disk = new_disk();
        let wal = create(&disk);
        append(&wal, 1..3).unwrap();
        wal.sync().unwrap();
        disk.open(&segment_file(2), crate::io::OpenMode::Create).unwrap().set_len(len).unwrap();
        let (wal, found) = reopen(&disk, FRESH);
        assert_eq!(found, commits(1..3));
        append(&wal, 3..4).unwrap();
        wal.sync().unwrap();
        assert_eq!(read(&disk.crash_image(0), FRESH, false).unwrap().1, commits(1..4));
    }
}

#[test]
fn a_shortened_segment_is_damage() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..3).unwrap();
    disk.open(&segment_file(1), crate::io::OpenMode::Write).unwrap().set_len(8192).unwrap();
    assert_eq!(corruption_of(read(&disk, FRESH, false)), (segment_file(1), 0));
}

#[test]
fn a_bad_record_is_torn_unless_something_says_that_it_was_durable() {
    for synced in [false, true] {
        let disk = new_disk();
        let wal = create(&disk);
        append(&wal, 1..2).unwrap();
        if synced {
            wal.sync().unwrap();
        }
        append(&wal, 2..3).unwrap();
        disk.flip(&segment_file(1), RECORDS_OFFSET + 50, 1).unwrap();
        if synced {
            assert_eq!(corruption_of(read(&disk, FRESH, false)), (segment_file(1), RECORDS_OFFSET));
        } else {
            let (recovered, found) = read(&disk, FRESH, false).unwrap();
            assert_eq!((found, recovered.next_seq), (commits(0..0), 1));
            assert_eq!(recovered.torn, Some((1, RECORDS_OFFSET)));
        }
    }
}

#[test]
fn a_torn_tail_that_was_given_up_never_comes_back() {
    let disk = new_disk();
    let wal = create(&disk);
    for seq in 1..6 {
        wal.append(seq, &[&[seq as u8; 100]]).unwrap();
    }
    wal.roll().unwrap();
    wal.append(6, &[&[6; 100]]).unwrap();
    // Commit 3 is torn; 4 to 6 are whole.
    let record = 40 + 104;
    disk.flip(&segment_file(1), RECORDS_OFFSET + 2 * record + 60, 1).unwrap();
    let (wal, found) = reopen(&disk, FRESH);
    assert_eq!(found.len(), 2);
    assert_eq!(wal.active_segment(), 2, "not behind the mark, where 4 and 5 still lie");
    let (wal, found) = {
        drop(wal);
        reopen(&disk, FRESH)
    };
    assert_eq!(found.len(), 2);
    wal.append(3, &[&[33; 100]]).unwrap();
    wal.sync().unwrap();
    let (_, found) = read(&disk.crash_image(0), FRESH, false).unwrap();
    assert_eq!(found[2], (3, vec![33; 100]));
    assert_eq!(found.len(), 3);
}

#[test]
fn segments_behind_a_torn_record_are_removed_though_an_empty_one_stays() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..2).unwrap();
    append(&wal, 2..3).unwrap();
    wal.prepare_standby().unwrap();
    // The standby 2 is too short, and stays behind empty.
    assert_eq!(wal.append(3, &[&[3; 20_000]]).unwrap(), 3);
    disk.flip(&segment_file(1), RECORDS_OFFSET + 64, 1).unwrap();
    let (recovered, found) = read(&disk, FRESH, false).unwrap();
    assert_eq!(found, commits(1..2));
    assert_eq!(recovered.segments.iter().map(|segment| segment.id).collect::<Vec<_>>(), [1]);
    assert_eq!(recovered.standby.as_ref().map(|(segment, _)| segment.id), Some(2));
    assert!(disk.read_file(&segment_file(3)).is_err());
    let wal = Wal::open(Arc::new(disk.clone()), settings(), recovered, 0).unwrap();
    assert_eq!(append(&wal, 2..3).unwrap(), 1);
    wal.sync().unwrap();
    assert_eq!(read(&disk.crash_image(0), FRESH, false).unwrap().1, commits(1..3));
}

#[test]
fn reading_only_changes_nothing() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..3).unwrap();
    append(&wal, 3..9).unwrap();
    disk.flip(&segment_file(1), RECORDS_OFFSET + 150, 1).unwrap();
    let before = disk.operations();
    read(&disk, FRESH, true).unwrap();
    assert_eq!(disk.operations(), before);
}

#[test]
fn after_a_failed_write_or_sync_nothing_is_written_any_more() {
    for operation in [Operation::Write, Operation::Sync] {
        let disk = new_disk();
        let wal = create(&disk);
        append(&wal, 1..2).unwrap();
        disk.fail_matching(move |other, _| (other == operation).then_some(ErrorKind::Other));
        let failed = append(&wal, 2..3).map(drop).and_then(|()| wal.sync());
        assert!(matches!(failed, Err(Error::Io { .. })));
        disk.clear_faults();
        assert!(matches!(append(&wal, 3..4), Err(Error::Poisoned { .. })));
        assert!(matches!(wal.sync(), Err(Error::Poisoned { .. })));
        assert!(matches!(wal.roll(), Err(Error::Poisoned { .. })));
        assert!(matches!(wal.close(), Err(Error::Poisoned { .. })));
    }
}

#[test]
fn a_full_disk_refuses_a_segment_and_the_log_still_works() {
    let disk = new_disk();
    let wal = create(&disk);
    disk.set_capacity(disk.bytes() + 1000);
    wal.append(1, &[&[1; 9000]]).unwrap();
    for _ in 0..3 {
        assert!(matches!(wal.append(2, &[&[2; 9000]]), Err(Error::Io { .. })));
        assert!(wal.prepare_standby().is_err());
        assert!(wal.roll().is_err());
    }
    assert_eq!(disk.snapshot_files().len(), 1, "nothing half made is left");
    wal.append(2, &[&[2; 1000]]).unwrap();
    disk.set_capacity(1 << 30);
    wal.append(3, &[&[3; 9000]]).unwrap();
    wal.sync().unwrap();
    assert_eq!(read(&disk.crash_image(0), FRESH, false).unwrap().1.len(), 3);
}

#[test]
fn commits_seen_after_a_failed_sync_are_made_durable_by_recovery() {
    for more in 0..8 {
        let disk = new_disk();
        let wal = create(&disk);
        for _ in 0..more {
            wal.disk.sync_dir(Path::new(DIR)).unwrap();
        }
        append(&wal, 1..4).unwrap();
        wal.sync().unwrap();
        for seq in 4..9 {
            wal.append(seq, &[&[seq as u8; 600]]).unwrap();
        }
        disk.fail_at(disk.operations() + 1, ErrorKind::Other);
        assert!(wal.sync().is_err());
        // The next process sees the writes in the system's memory; no sync of it would bring them to the
        // disk.
        let disk = disk.killed_image();
        let (_, found) = read(&disk, FRESH, false).unwrap();
        assert_eq!(read(&disk.crash_image(0), FRESH, true).unwrap().1, found);
    }
}

#[test]
fn a_segment_whose_maker_was_killed_before_its_name_was_durable_is_safe_to_use() {
    for more in 1..20 {
        let disk = new_disk();
        let wal = create(&disk);
        append(&wal, 1..2).unwrap();
        disk.crash_at(disk.operations() + more);
        let _ = wal.prepare_standby();
        let disk = disk.killed_image();
        let (wal, found) = reopen(&disk, FRESH);
        assert_eq!(found, commits(1..2));
        append(&wal, 2..3).unwrap();
        wal.sync().unwrap();
        assert_eq!(read(&disk.crash_image(0), FRESH, false).unwrap().1, commits(1..3), "killed at {more}");
    }
}

#[test]
fn a_new_log_does_not_overwrite_the_commits_of_a_lost_database() {
    let disk = new_disk();
    let wal = create(&disk);
    let again = || Wal::create(Arc::new(disk.clone()), settings(), 1);
    again().unwrap();
    append(&wal, 1..2).unwrap();
    drop(wal);
    let wal = again().unwrap();
    append(&wal, 1..2).unwrap();
    assert!(matches!(again(), Err(Error::Corruption { .. })));
}

#[test]
fn headers_pass_on_the_newest_superblock() {
    let disk = new_disk();
    let wal = create(&disk);
    wal.set_superblock_number(41);
    append(&wal, 1..2).unwrap();
    wal.roll().unwrap();
    assert_eq!(read(&disk, FRESH, true).unwrap().0.superblock_number, 41);
}

#[test]
fn every_flipped_byte_is_damage_or_harmless() {
    for closed in [false, true] {
        let disk = new_disk();
        let wal = create(&disk);
        for seq in 1..6 {
            append(&wal, seq * 3 - 2..seq * 3 + 1).unwrap();
            wal.sync().unwrap();
            if seq == 3 {
                wal.roll().unwrap();
            }
        }
        if closed {
            wal.close().unwrap();
        }
        let mut damaged = 0;
        for id in 1..3 {
            let bytes = disk.read_file(&segment_file(id)).unwrap();
            let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 64;
            for offset in (0..64).chain(RECORDS_OFFSET as usize..used) {
                let disk = disk.killed_image();
                disk.flip(&segment_file(id), offset as u64, 1 << (offset % 8)).unwrap();
                match read(&disk, FRESH, false) {
                    Ok((recovered, found)) => {
                        let end = if closed { 16 } else { 13 };
                        assert!((end..=16).contains(&recovered.next_seq), "segment {id} offset {offset}");
                        assert_eq!(found, commits(1..recovered.next_seq));
                    }
                    Err(Error::Corruption { .. }) => damaged += 1,
                    Err(other) => panic!("segment {id} offset {offset}: {other}"),
                }
            }
        }
        assert!(damaged > 600, "{damaged}");
    }
}

#[test]
fn a_copy_of_the_log_within_a_value_is_not_taken_for_records() {
    let disk = new_disk();
    let wal = create(&disk);
    append(&wal, 1..2).unwrap();
    wal.sync().unwrap();
    append(&wal, 2..3).unwrap();
    let copy = disk.read_file(&segment_file(1)).unwrap();
    wal.append(3, &[&copy[RECORDS_OFFSET as usize..][..400]]).unwrap();
    wal.sync().unwrap();
    // Only the last record's header is damaged; what it holds would be evidence that 1 was durable, but not
    // of 3.
    let offset = wal.writer.lock().unwrap().active.offset - 448;
    disk.flip(&segment_file(1), offset, 1).unwrap();
    let (recovered, found) = read(&disk, FRESH, false).unwrap();
    assert_eq!(found, commits(1..3));
    assert_eq!(recovered.torn, None, "nothing behind it counts as a record");
}

#[test]
fn random_bytes_never_panic() {
    let mut random = 1u64;
    for round in 0..300 {
        let disk = new_disk();
        let wal = create(&disk);
        append(&wal, 1..9).unwrap();
        wal.roll().unwrap();
        append(&wal, 9..12).unwrap();
        for _ in 0..1 + round % 20 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = if round % 2 == 0 { 4096 + (random >> 40) % 600 } else { (random >> 40) % 48 };
            disk.flip(&segment_file(1 + (random >> 33) % 2), offset, (random >> 20) as u8).unwrap();
        }
        if let Ok((recovered, found)) = read(&disk, FRESH, false) {
            assert_eq!(found, commits(1..recovered.next_seq), "round {round}");
        }
    }
}
