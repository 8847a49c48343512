//! Histories on the simulated disk that are cut off at every operation, against a plain model.

use super::*;
use crate::random::Random;

/// What must hold of the log.
#[derive(Clone)]
struct Model {
    /// The payload of commit `i + 1`; some of the last may not have been written.
    payloads: Vec<Vec<u8>>,
    /// Commits before this number may not be lost.
    durable_end: u64,
    /// What the superblock says.
    floor: u64,
    flushed_end: u64,
}

impl Model {
    fn new() -> Model {
        Model { payloads: Vec::new(), durable_end: 1, floor: 1, flushed_end: 1 }
    }

    fn expectation(&self) -> Expectation {
        Expectation {
            database_id: DATABASE,
            floor_segment: self.floor,
            next_seq: self.flushed_end,
            durable_end: 0,
        }
    }

    /// Recovers and checks what was found; the error is that of a dead disk.
    fn recover(&mut self, disk: &SimDisk, read_only: bool, context: &str) -> Result<Recovered> {
        let (recovered, found) = match read(disk, self.expectation(), read_only) {
            Err(error @ Error::Corruption { .. }) => panic!("{context}: {error}"),
            other => other?,
        };
        let end = recovered.next_seq;
        assert!(end >= self.durable_end, "{context}: {} was durable, found up to {end}", self.durable_end);
        assert!(end <= self.payloads.len() as u64 + 1, "{context}: {end} was never appended");
        let expected = (self.flushed_end..end).map(|seq| (seq, self.payloads[seq as usize - 1].clone()));
        assert!(found.into_iter().eq(expected), "{context}: another prefix");
        if !read_only {
            self.payloads.truncate(end as usize - 1);
            self.durable_end = end;
        }
        Ok(recovered)
    }

    /// Works until `steps` are done or the disk is dead.
    fn work(&mut self, wal: &Wal, random: &mut Random, steps: u64) -> Result<()> {
        for _ in 0..steps {
            match random.below(12) {
                0..5 => {
                    let count = 1 + random.below(4);
                    let first = self.payloads.len() as u64 + 1;
                    for _ in 0..count {
                        let len = if random.below(8) == 0 { random.below(9000) } else { random.below(300) };
                        self.payloads.push(vec![random.below(256) as u8; len as usize]);
                    }
                    let group: Vec<&[u8]> =
                        self.payloads[first as usize - 1..].iter().map(Vec::as_slice).collect();
                    wal.append(first, &group)?;
                }
                5..8 => {
                    wal.sync()?;
                    self.durable_end = self.payloads.len() as u64 + 1;
                }
                8 => {
                    wal.roll()?;
                }
                9 => {
                    wal.prepare_standby()?;
                }
                10 => {
                    // A flush: the log before the new segment is in the database, whether or not it was ever
                    // synced.
                    let id = wal.roll()?;
                    self.flushed_end = self.payloads.len() as u64 + 1;
                    self.durable_end = self.flushed_end;
                    self.floor = id;
                    wal.release_before(id)?;
                }
                _ => {
                    // A flush whose segments are released later.
                    self.flushed_end = self.payloads.len() as u64 + 1;
                    self.durable_end = self.flushed_end;
                }
            }
        }
        Ok(())
    }
}

#[test]
fn a_cut_at_any_operation_loses_nothing_durable_and_shows_no_more_than_a_prefix() {
    for history in 0..4 {
        let run = |crash_at: Option<u64>| {
            let disk = new_disk();
            let wal = create(&disk);
            if let Some(n) = crash_at {
                disk.crash_at(disk.operations() + n);
            }
            let mut model = Model::new();
            let done = model.work(&wal, &mut Random(history), 60).is_ok();
            (disk, model, done)
        };
        for n in 1.. {
            let (disk, model, done) = run(Some(n));
            for seed in 0..8 {
                let context = format!("history {history} cut at {n} seed {seed}");
                let image = disk.crash_image(seed);
                let mut first = model.clone();
                first.recover(&image, true, &context).unwrap();
                check_cut_recovery(&image, &model, seed + 8 * n, &context);
                let recovered = first.recover(&image, false, &context).unwrap();
                let wal = Wal::open(Arc::new(image.clone()), settings(), recovered, 0).unwrap();
                first.work(&wal, &mut Random(seed), 10).unwrap();
                first.recover(&image.crash_image(seed + 1), false, &context).unwrap();
            }
            if done {
                break;
            }
        }
    }
}

/// A commit that lies in pieces.
struct InPieces(Vec<Vec<u8>>);

impl Payload for InPieces {
    fn bytes(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}

#[test]
fn a_group_in_pieces_is_found_as_a_whole_or_torn_anywhere_up_to_none_of_it() {
    const PART: usize = ASSEMBLED_BYTES_MAX as usize;
    let settings = Settings { segment_bytes: 1 << 20, ..settings() };
    // Less than one part, more, and pieces that are larger than a part or end where one does.
    for lengths in [&[9, 0, 300, 41][..], &[4000; 40], &[5, PART + 1, 7, PART, 0, 1, 3 * PART, 2]] {
        let group = [0, 100]
            .map(|byte| InPieces((byte..).zip(lengths).map(|(byte, length)| vec![byte; *length]).collect()));
        let whole = [vec![vec![7; 50]], group.iter().map(|payload| payload.0.concat()).collect()].concat();
        for crash in 1.. {
            let disk = new_disk();
            let wal = Wal::create(Arc::new(disk.clone()), settings.clone(), 1).unwrap();
            wal.append_and_sync(1, &[&whole[0]]).unwrap();
            disk.crash_at(disk.operations() + crash);
            let done = wal.append_and_sync(2, &group).is_ok();
            for seed in 0..16 {
                let (recovered, found) = read(&disk.crash_image(seed), FRESH, false).unwrap();
                let found: Vec<_> = found.into_iter().map(|(_, payload)| payload).collect();
                let context = format!("{lengths:?} cut at {crash} seed {seed}");
                assert!(found == whole || !done && found == whole[..1], "{context}");
                assert_eq!(recovered.next_seq, 1 + found.len() as u64, "{context}");
            }
            if done {
                break;
            }
        }
    }
}

/// Recovery itself is cut off somewhere; the next one finds what the first one would have found.
fn check_cut_recovery(image: &SimDisk, model: &Model, seed: u64, context: &str) {
    let whole = image.crash_image(0);
    let mut expected = model.clone();
    let end = expected.recover(&whole, false, context).unwrap().next_seq;
    let operations = whole.operations();
    if operations == 0 {
        return;
    }
    let cut = image.crash_image(0);
    cut.crash_at(1 + seed % operations);
    assert!(model.clone().recover(&cut, false, context).is_err(), "{context}");
    let again = model.clone().recover(&cut.crash_image(seed), false, context).unwrap();
    assert_eq!(again.next_seq, end, "{context}: recovering again found something else");
}

#[test]
fn many_lives_with_crashes_kills_and_failing_calls() {
    for seed in 0..1000 {
        let mut random = Random(seed);
        let mut disk = new_disk();
        let mut model = Model::new();
        create(&disk);
        for life in 0..8 {
            let context = format!("seed {seed} life {life}");
            match random.below(3) {
                0 => disk.crash_at(1 + random.below(60)),
                1 => disk.fail_at(1 + random.below(60), ErrorKind::Other),
                _ => {}
            }
            // Errors end this life, as they end a process.
            let _ = model.recover(&disk, false, &context).and_then(|recovered| {
                let wal = Wal::open(Arc::new(disk.clone()), settings(), recovered, 0)?;
                let steps = random.below(40);
                model.work(&wal, &mut random, steps)?;
                if random.below(3) == 0 {
                    wal.close()?;
                    model.durable_end = model.payloads.len() as u64 + 1;
                }
                Ok(())
            });
            disk = if random.below(4) == 0 {
                disk.killed_image()
            } else {
                disk.crash_image(random.below(1 << 20))
            };
        }
        model.recover(&disk, false, &format!("seed {seed} at the end")).unwrap();
    }
}
