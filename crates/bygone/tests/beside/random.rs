//! Random work of an owner, beside several readers that open, refresh, read everything and end, with owners and readers
//! that are killed in between.

use bygone::Db;

use crate::leases;
use crate::support::workload::work;
use crate::support::{self, Model, PATH, Random, compare, full, limit, open, open_read_only, within};

/// A reader, and the commit that it stands at.
struct Reader {
    db: Db,
    seq: u64,
}

impl Reader {
    fn check(&self, model: &Model, context: &str) {
        let seq = compare(&self.db, model, context).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(seq, self.seq, "{context}");
        self.db.verify().unwrap_or_else(|error| panic!("{context}: verify: {error}"));
        // Lets go what was compared: the owner may delete it.
        self.db.stats().unwrap();
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let disk = bygone::io::SimDisk::new();
    let mut model = Model::new();
    let mut owner = open(&disk).unwrap();
    let mut readers: Vec<Reader> = Vec::new();
    for round in 0..40 {
        let context = format!("seed {seed} round {round}");
        let steps = 1 + random.below(25);
        work(&owner, &mut model, &mut random, steps).unwrap_or_else(|error| panic!("{context}: {error}"));
        match random.below(10) {
            0..4 if readers.len() < 4 => {
                let db = open_read_only(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
                readers.push(Reader { db, seq: model.last_seq() });
            }
            4..6 if !readers.is_empty() => {
                let index = random.below(readers.len() as u64) as usize;
                let reader = &mut readers[index];
                let newer = reader.db.refresh().unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(newer, model.last_seq() > reader.seq, "{context}");
                reader.seq = model.last_seq();
            }
            6 if !readers.is_empty() => {
                let reader = readers.swap_remove(random.below(readers.len() as u64) as usize);
                if random.below(2) == 0 {
                    // Killed: its lease stays, but not the lock on it.
                    let before = leases(&disk);
                    std::mem::forget(open_read_only(&disk).unwrap());
                    let dead = leases(&disk).into_iter().find(|lease| !before.contains(lease)).unwrap();
                    assert!(disk.break_locks(&dead));
                }
                drop(reader);
            }
            7 => {
                drop(owner);
                owner = open(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            }
            8 => {
                // Killed, without an orderly end.
                std::mem::forget(owner);
                assert!(disk.break_locks(&std::path::Path::new(PATH).join("lock")));
                owner = open(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            }
            _ => {}
        }
        for (index, reader) in readers.iter().enumerate() {
            if random.below(3) == 0 {
                reader.check(&model, &format!("{context} reader {index}"));
            }
        }
    }
    for (index, reader) in readers.iter().enumerate() {
        reader.check(&model, &format!("seed {seed} at the end, reader {index}"));
    }
    readers.clear();
    support::check_open(&owner, &model, &format!("seed {seed}, the owner"));
    owner.merge().unwrap();
    assert_eq!(leases(&disk).len(), 0, "seed {seed}: leases have ended");
}

#[test]
fn readers_see_their_moment_whatever_the_owner_does() {
    within(limit(), || {
        let seeds = if full() { 400 } else { 12 };
        (0..seeds).for_each(|seed| run(1000 + seed));
    });
}
