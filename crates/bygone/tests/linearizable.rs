//! Reads beside writers: what each may see, whatever the threads do.
//!
//! Owns: the claim that every get and every scan sees, of each key, a version no older than the last write that
//! was complete before the read began, and none newer than the last that had begun when it ended. Memtables
//! are as small as they can be, so that threads meet switches, flushes and merges all the time. Promises: each seed
//! makes the same calls in each thread; how they meet is up to the system. May call: the public API.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bygone::{Db, Durability, Error, Options, Snapshot, Table};

#[path = "support/mod.rs"]
mod support;
use support::Random;

const WRITERS: u64 = 3;
const READERS: u64 = 3;
/// Of each writer. Few, so that keys get many versions, and enough for several blocks and pages.
const KEYS: u64 = 40;
/// Each so many versions of a key one is a deletion.
const DELETES: u64 = 7;

/// What is known of a key: its versions are 1, 2, 3 and so on, in this order.
#[derive(Default)]
struct Versions {
    begun: AtomicU64,
    done: AtomicU64,
}

struct World {
    db: Db,
    table: Table,
    /// Of each writer's keys, and one more that all write to.
    versions: Vec<Versions>,
    stop: AtomicBool,
}

fn key(index: u64) -> Vec<u8> {
    // Of different lengths, in another order than the numbers.
    format!("{:03}-{}", index * 7919 % 1000, "k".repeat(index as usize % 30)).into_bytes()
}

/// Long enough to fill memtables quickly.
fn value(version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    value.resize(8 + (version as usize * 37) % 400, version as u8);
    value
}

fn version_of(value: &[u8]) -> u64 {
    let version = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, self::value(version), "a value that nobody wrote");
    version
}

impl World {
    fn new(durability: Durability, background: bool) -> (tempfile::TempDir, World) {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new().durability(durability).memtable_bytes(64 << 10).background(background);
        let db = options.open(directory.path().join("db")).unwrap();
        let table = db.table("t").unwrap();
        let versions = (0..WRITERS * KEYS + 1).map(|_| Versions::default()).collect();
        (directory, World { db, table, versions, stop: AtomicBool::new(false) })
    }

    fn shared(&self) -> u64 {
        WRITERS * KEYS
    }

    /// Writes the next version of each key: one by `put` or `delete`, several in one commit.
    fn write_next(&self, indices: std::ops::Range<u64>) {
        let next = |index: u64| self.versions[index as usize].begun.fetch_add(1, SeqCst) + 1;
        let begun: Vec<_> = indices.clone().map(|index| (index, next(index))).collect();
        if let [(index, version)] = begun[..] {
            match version % DELETES {
                0 => self.db.delete(&self.table, key(index)).unwrap(),
                _ => self.db.put(&self.table, key(index), value(version)).unwrap(),
            }
        } else {
            let mut tx = self.db.begin().unwrap();
            for &(index, version) in &begun {
                match version % DELETES {
                    0 => tx.delete(&self.table, key(index)).unwrap(),
                    _ => tx.put(&self.table, key(index), value(version)).unwrap(),
                }
            }
            tx.commit().unwrap();
        }
        for (index, version) in begun {
            self.versions[index as usize].done.store(version, SeqCst);
        }
    }

    /// Adds one to the key that all write to.
    fn increment(&self) {
        let index = self.shared();
        let versions = &self.versions[index as usize];
        loop {
            let mut tx = self.db.begin().unwrap();
            let version = tx.get(&self.table, key(index)).unwrap().map_or(0, |value| version_of(&value)) + 1;
            tx.put(&self.table, key(index), value(version)).unwrap();
            versions.begun.fetch_max(version, SeqCst);
            match tx.commit() {
                Ok(_) => {
                    versions.done.fetch_max(version, SeqCst);
                    return;
                }
                Err(Error::Conflict { .. }) if self.stop.load(SeqCst) => return,
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn done(&self) -> Vec<u64> {
        self.versions.iter().map(|versions| versions.done.load(SeqCst)).collect()
    }

    fn begun(&self, index: u64) -> u64 {
        self.versions[index as usize].begun.load(SeqCst)
    }

    /// Whether what was found of a key may be found between these moments.
    fn check(&self, index: u64, found: Option<&[u8]>, done_before: u64, what: &str) {
        let begun = self.begun(index);
        match found.map(version_of) {
            Some(version) => {
                assert!(version >= done_before, "{what} of {index}: {version}, {done_before} was complete");
                assert!(version <= begun, "{what} of {index}: {version}, only {begun} had begun");
            }
            None => {
                let deleted =
                    index != self.shared() && (done_before..=begun).any(|n| n > 0 && n % DELETES == 0);
                assert!(
                    deleted || done_before == 0,
                    "{what} of {index}: nothing, {done_before} was complete"
                );
            }
        }
    }

    fn get(&self, random: &mut Random) {
        let index = random.below(self.versions.len() as u64);
        let done = self.versions[index as usize].done.load(SeqCst);
        let found = self.db.get(&self.table, key(index)).unwrap();
        self.check(index, found.as_deref(), done, "get");
    }

    /// A scan of a random range, in a random direction, against what was complete before the view was taken.
    fn scan(&self, random: &mut Random) {
        let mut keys: Vec<_> = (0..self.versions.len() as u64).map(|index| (key(index), index)).collect();
        keys.sort();
        let from = random.below(keys.len() as u64) as usize;
        let to = from + random.below((keys.len() - from) as u64 + 1) as usize;
        let lower = Bound::Included(&keys[from].0[..]);
        let upper = keys.get(to).map_or(Bound::Unbounded, |(key, _)| Bound::Excluded(&key[..]));
        let done = self.done();
        let view = self.db.snapshot();
        let range = view.range(&self.table, (lower, upper)).unwrap();
        let backwards = random.below(2) == 0;
        let mut found: Vec<_> = match backwards {
            true => range.rev().map(Result::unwrap).collect(),
            false => range.map(Result::unwrap).collect(),
        };
        if backwards {
            found.reverse();
        }
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "not in order, or twice");
        let mut found = found.into_iter().peekable();
        for (key, index) in &keys[from..to] {
            let record = found.next_if(|(found, _)| **found == key[..]);
            self.check(*index, record.as_ref().map(|(_, value)| &value[..]), done[*index as usize], "scan");
        }
        assert!(found.next().is_none(), "a key that nobody wrote");
        self.check_view(&view, random);
    }

    /// A view answers the same by keys, by cursors, and ever again; and commits are there as a whole.
    fn check_view(&self, view: &Snapshot, random: &mut Random) {
        let writer = random.below(WRITERS);
        let versions = |view: &Snapshot| -> Vec<Option<u64>> {
            let of = |index| view.get(&self.table, key(index)).unwrap().map(|value| version_of(&value));
            (writer * KEYS..(writer + 1) * KEYS).map(of).collect()
        };
        let found = versions(view);
        // The upper half of each writer's keys is written by whole commits only.
        let whole = &found[KEYS as usize / 2..];
        assert!(whole.iter().all(|version| *version == whole[0]), "a part of a commit: {whole:?}");
        std::thread::yield_now();
        assert_eq!(versions(view), found, "another answer in the same view");
    }

    fn writer(&self, writer: u64, mut random: Random) {
        let first = writer * KEYS;
        while !self.stop.load(SeqCst) {
            match random.below(8) {
                0 => self.write_next(first + KEYS / 2..first + KEYS),
                1 => self.increment(),
                _ => {
                    let index = first + random.below(KEYS / 2);
                    self.write_next(index..index + 1);
                }
            }
        }
    }

    fn reader(&self, mut random: Random) {
        let (mut held, mut answers) = (self.db.snapshot(), None);
        while !self.stop.load(SeqCst) {
            match random.below(8) {
                0 | 1 => self.scan(&mut random),
                2 => {
                    // An older view does not change while memtables come and go.
                    let records: Vec<_> = held
                        .range(&self.table, ..)
                        .unwrap()
                        .map(|record| version_of(&record.unwrap().1))
                        .collect();
                    assert_eq!(*answers.get_or_insert_with(|| records.clone()), records);
                    if random.below(20) == 0 {
                        (held, answers) = (self.db.snapshot(), None);
                    }
                }
                _ => self.get(&mut random),
            }
        }
    }

    fn run(&self, seed: u64, time: Duration) {
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || self.guarded(|| self.writer(writer, Random(seed ^ writer))));
            }
            for reader in 0..READERS {
                scope.spawn(move || self.guarded(|| self.reader(Random(seed ^ (100 + reader)))));
            }
            let end = Instant::now() + time;
            while Instant::now() < end && !self.stop.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.stop.store(true, SeqCst);
        });
        let (done, view) = (self.done(), self.db.snapshot());
        for (index, done) in (0..).zip(done) {
            let found = view.get(&self.table, key(index)).unwrap();
            assert_eq!(self.begun(index).max(1), done.max(1), "all writes are complete");
            self.check(index, found.as_deref(), done, "the end");
        }
    }

    /// One thread that fails ends the others.
    fn guarded(&self, work: impl FnOnce()) {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _stop = Stop(&self.stop);
        work();
    }
}

/// Under a tool that makes everything slower, a time of its own (seconds).
fn seconds(usual: u64) -> Duration {
    let given = std::env::var("BYGONE_STRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(usual))
}

#[test]
fn reads_see_what_was_complete_and_nothing_from_the_future() {
    let (_directory, world) = World::new(Durability::Buffered, true);
    world.run(0x6ea5_0001, seconds(4));
    let stats = world.db.stats().unwrap();
    assert!(stats.flushes > 1, "{} switches of memtables", stats.flushes);
}

#[test]
fn also_when_commits_are_synced_in_groups() {
    let (_directory, world) = World::new(Durability::Sync, true);
    world.run(0x6ea5_0002, seconds(2));
}

#[test]
fn also_when_commits_flush_and_merge_themselves() {
    let (_directory, world) = World::new(Durability::Buffered, false);
    world.run(0x6ea5_0003, seconds(2));
    let stats = world.db.stats().unwrap();
    assert!(stats.flushes > 1, "{} switches of memtables", stats.flushes);
}
