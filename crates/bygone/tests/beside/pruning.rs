//! Verifying the database and opening the past, while what deleted snapshots kept is given back: in the process that
//! does it, and in another.
//!
//! The disk takes its time over just those calls between which things are put together anew.

use std::io::Result;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bygone::io::{Disk, DiskFile, LockOutcome, OpenMode, SimDisk};
use bygone::{Db, Error, SnapshotId};

use crate::support::{PATH, Random, limit, options, within};

#[derive(Debug)]
struct SlowDisk(SimDisk);

#[derive(Debug)]
struct SlowFile(Arc<dyn DiskFile>);

fn take_time() {
    std::thread::sleep(Duration::from_micros(300));
}

impl Disk for SlowDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        if path.starts_with("db/history") {
            take_time();
        }
        let file = self.0.open(path, mode)?;
        let is_base = path.ends_with("base.pages") && mode == OpenMode::Write;
        Ok(if is_base { Arc::new(SlowFile(file)) } else { file })
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.0.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.0.list(dir)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.0.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        take_time();
        self.0.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        take_time();
        self.0.sync_dir(dir)
    }

    fn lock(&self, path: &Path, exclusive: bool) -> Result<LockOutcome> {
        self.0.lock(path, exclusive)
    }
}

impl DiskFile for SlowFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        take_time();
        let synced = self.0.sync();
        // What was published is there, and nobody of this process knows yet.
        take_time();
        synced
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }
}

const KEYS: u64 = 60;

/// The value of a key as of round `n`.
fn value(key: u64, round: u64) -> Vec<u8> {
    // The round that wrote it last.
    let writer = (0..=round).rev().find(|round| (key + round).is_multiple_of(3)).unwrap_or(0);
    format!("{key}/{writer}/").repeat(20).into_bytes()
}

fn write_round(db: &Db, round: u64) -> SnapshotId {
    let table = db.table("t").unwrap();
    let mut tx = db.begin().unwrap();
    for key in (0..KEYS).filter(|key| round == 0 || (key + round).is_multiple_of(3)) {
        tx.put(&table, key.to_be_bytes(), value(key, round)).unwrap();
    }
    tx.commit_with_snapshot(format!("{round}").as_str()).unwrap()
}

/// Reads one declared snapshot; `None` if it is there no more.
fn read(db: &Db, id: SnapshotId, round: u64) -> Option<()> {
    let past = match db.as_of(id) {
        Err(Error::SnapshotNotFound { .. }) => return None,
        past => past.unwrap_or_else(|error| panic!("as of {round}: {error}")),
    };
    let table = past.table("t").unwrap();
    let found: Vec<_> = past
        .range(&table, ..)
        .unwrap()
        .map(|kv| kv.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect::<bygone::Result<_>>()
        .unwrap_or_else(|error| panic!("as of {round}: {error}"));
    let expected: Vec<_> = (0..KEYS).map(|key| (key.to_be_bytes().to_vec(), value(key, round))).collect();
    assert!(found == expected, "as of {round}: something else");
    Some(())
}

#[test]
fn verifying_and_opening_the_past_go_on_beside_pruning() {
    within(limit(), || {
        let seconds = std::env::var("BYGONE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let disk: Arc<dyn Disk> = Arc::new(SlowDisk(SimDisk::new()));
        let open = |read_only| options().read_only(read_only).open_on(disk.clone(), PATH).unwrap();
        let owner = open(false);
        let _first = write_round(&owner, 0);
        let (verified, opened, reads) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        // Relaxed: counts for people.
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(1);
                for round in 1.. {
                    if Instant::now() > deadline {
                        break;
                    }
                    let _id = write_round(&owner, round);
                    if round % 3 == 0 {
                        owner.merge().unwrap();
                    }
                    let infos = owner.snapshots().unwrap();
                    if infos.len() > 12 {
                        let doomed: Vec<_> = infos.iter().filter(|_| random.below(3) > 0).collect();
                        // Each alone: one may be read in the other process.
                        for info in doomed {
                            match owner.delete_snapshot(info) {
                                Ok(()) | Err(Error::SnapshotHeld { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        owner.prune().unwrap();
                    }
                }
            });
            scope.spawn(|| {
                while Instant::now() < deadline {
                    owner.verify().unwrap();
                    count(&verified);
                }
            });
            scope.spawn(|| {
                let mut random = Random(2);
                while Instant::now() < deadline {
                    let infos = owner.snapshots().unwrap();
                    let Some(info) = infos.get(random.below(infos.len().max(1) as u64) as usize) else {
                        continue;
                    };
                    let round = info.name.as_deref().unwrap().parse().unwrap();
                    if read(&owner, info.id, round).is_some() {
                        count(&opened);
                    }
                }
            });
            scope.spawn(|| {
                let reader = open(true);
                let mut random = Random(3);
                while Instant::now() < deadline {
                    reader.refresh().unwrap();
                    reader.verify().unwrap();
                    let infos = reader.snapshots().unwrap();
                    for info in infos.iter().filter(|_| random.below(3) == 0) {
                        let round = info.name.as_deref().unwrap().parse().unwrap();
                        read(&reader, info.id, round).expect("what was declared when it opened is there");
                        count(&reads);
                    }
                    reader.stats().unwrap();
                }
            });
        });
        let counts = [&verified, &opened, &reads].map(|counter| counter.load(Ordering::Relaxed));
        println!("verified {}, opened {}, read in another process {}", counts[0], counts[1], counts[2]);
        assert!(counts.iter().all(|count| *count > 3), "{counts:?}");
    });
}
