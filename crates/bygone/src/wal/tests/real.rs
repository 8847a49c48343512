//! The log on the machine's own file system, where its segments may be mapped. What a killed process leaves is what
//! others read in the files while it runs.

use super::*;
use crate::io::RealDisk;
use crate::io::tests::TempDir;

const SEGMENT_BYTES: u64 = 64 << 10;

fn settings_in(dir: &TempDir) -> Settings {
    Settings { dir: dir.path().join("wal"), segment_bytes: SEGMENT_BYTES, ..settings() }
}

fn read_in(dir: &TempDir, expectation: Expectation, read_only: bool) -> (Recovered, Commits) {
    read_from(&RealDisk, &settings_in(dir).dir, expectation, read_only).unwrap()
}

/// From a few bytes to more than a segment holds, and more than is assembled in one buffer.
fn payload_of(seq: u64) -> Vec<u8> {
    let bytes = match seq % 50 {
        0 => 700_000,
        1 => 70_000,
        n => n as usize * 20,
    };
    vec![seq as u8; bytes]
}

fn append_to(wal: &Wal, seqs: std::ops::Range<u64>) {
    let payloads: Vec<_> = seqs.clone().map(payload_of).collect();
    wal.append(seqs.start, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
}

fn expected(seqs: std::ops::Range<u64>) -> Commits {
    seqs.map(|seq| (seq, payload_of(seq))).collect()
}

#[test]
fn what_was_appended_is_in_the_files_though_nobody_synced() {
    let dir = TempDir::new("wal-real");
    let wal = Wal::create(Arc::new(RealDisk), settings_in(&dir), 1).unwrap();
    for seq in 1..120 {
        append_to(&wal, seq..seq + 1);
        if seq % 10 == 0 {
            let (recovered, found) = read_in(&dir, FRESH, true);
            assert_eq!(found, expected(1..seq + 1));
            assert_eq!(recovered.torn, None);
        }
        if seq % 3 == 0 {
            wal.prepare_standby().unwrap();
        }
    }
    append_to(&wal, 120..170);
    // Not closed: as if it had been killed.
    drop(wal);
    let (recovered, found) = read_in(&dir, FRESH, false);
    assert_eq!(found, expected(1..170));
    let wal = Wal::open(Arc::new(RealDisk), settings_in(&dir), recovered, 0).unwrap();
    append_to(&wal, 170..180);
    wal.close().unwrap();
    assert_eq!(read_in(&dir, FRESH, true).1, expected(1..180));
}

#[test]
fn recycled_segments_hold_what_is_written_now() {
    let dir = TempDir::new("wal-real-recycled");
    let wal = Wal::create(Arc::new(RealDisk), settings_in(&dir), 1).unwrap();
    let mut next = 1;
    for round in 0..30 {
        // Each with its standby made ahead, or without one.
        if round % 2 == 0 {
            wal.prepare_standby().unwrap();
        }
        let floor = wal.roll().unwrap();
        let first = next;
        for _ in 0..40 {
            let seq = next;
            // None of the large ones: those would get segments of other lengths.
            let payload = vec![seq as u8; seq as usize % 3000];
            // Through the mapping and by calls in turn: both are one file.
            match seq % 5 {
                0 => wal.append_and_sync(seq, &[&payload]).unwrap(),
                _ => wal.append(seq, &[&payload]).unwrap(),
            };
            next += 1;
        }
        if round % 4 == 0 {
            wal.sync().unwrap();
        }
        wal.release_before(floor).unwrap();
        let expectation =
            Expectation { floor_segment: floor, next_seq: first, durable_end: wal.durable_end(), ..FRESH };
        let (_, found) = read_in(&dir, expectation, true);
        let written = (first..next).map(|seq| (seq, vec![seq as u8; seq as usize % 3000]));
        assert_eq!(found, written.collect::<Commits>());
    }
    let segments = std::fs::read_dir(settings_in(&dir).dir).unwrap().count();
    assert!(segments < 12, "{segments} files: none was used again");
}
