//! What the owner does in the middle of a reader's opening: the disk of the reader lets it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bygone::io::SimDisk;
use bygone::{Db, Durability};

use crate::support::hooked::{Call, Hooked};
use crate::support::workload::work;
use crate::support::{Model, PATH, Random, compare, open, options};

fn ends_in(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// An owner with its model, and a disk for readers beside it.
struct Scene {
    owner: Arc<Mutex<(Db, Model)>>,
    readers: Hooked,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let disk = SimDisk::new();
        let (db, mut model) = (open(&disk).unwrap(), Model::new());
        work(&db, &mut model, &mut Random(seed), 100).unwrap();
        let readers = Hooked::idle(&disk);
        Scene { owner: Arc::new(Mutex::new((db, model))), readers }
    }

    fn open(&self) -> bygone::Result<Db> {
        options().read_only(true).open_on(Arc::new(self.readers.clone()), PATH)
    }

    /// Lets the owner do so much whenever a call is `wanted`, `times` times.
    fn interrupt(
        &self,
        mut times: u64,
        mut wanted: impl FnMut(&Call<'_>) -> bool + Send + 'static,
        steps: u64,
    ) {
        let owner = self.owner.clone();
        let hook = move |call: Call<'_>| {
            if times == 0 || !wanted(&call) {
                return;
            }
            times -= 1;
            let (db, model) = &mut *owner.lock().unwrap();
            work(db, model, &mut Random(times), steps).unwrap();
            db.merge().unwrap();
        };
        self.readers.set(hook);
    }

    /// Everything is there that was before a reader began to open, and stays whatever the owner does after.
    fn check(&self, reader: &Db, at_least: u64, context: &str) {
        self.readers.clear();
        let (db, model) = &mut *self.owner.lock().unwrap();
        for _ in 0..4 {
            work(db, model, &mut Random(99), 25).unwrap();
            db.merge().unwrap();
        }
        let seq = compare(reader, model, context).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(seq >= at_least, "{context}: commit {seq}, but {at_least} had returned before");
        reader.verify().unwrap_or_else(|error| panic!("{context}: {error}"));
        reader.stats().unwrap();
    }

    fn last_seq(&self) -> u64 {
        self.owner.lock().unwrap().1.last_seq()
    }
}

/// The owner publishes other bases, and uses their pages again, between any two steps of opening.
#[test]
fn bases_that_are_published_while_a_reader_opens() {
    for seed in 0..6 {
        for times in [1, 3] {
            for (what, wanted) in [
                (
                    "a lease is stated",
                    (|call| matches!(call, Call::Write(path) if ends_in(path, "lease")))
                        as fn(&Call<'_>) -> bool,
                ),
                (
                    "a superblock is read",
                    |call| matches!(call, Call::Read(path, 0, _) if ends_in(path, "pages")),
                ),
                (
                    "a page is read",
                    |call| matches!(call, Call::Read(path, 20_000.., _) if ends_in(path, "pages")),
                ),
                ("a run is opened", |call| matches!(call, Call::Open(path) if ends_in(path, "run"))),
                ("the log is opened", |call| matches!(call, Call::Open(path) if ends_in(path, "wal"))),
                ("the log is read", |call| matches!(call, Call::Read(path, ..) if ends_in(path, "wal"))),
            ] {
                let context = format!("seed {seed}, {times} times when {what}");
                let scene = Scene::new(seed);
                let before = scene.last_seq();
                scene.interrupt(times, wanted, 12);
                let reader = scene.open().unwrap_or_else(|error| panic!("{context}: {error}"));
                scene.check(&reader, before, &context);
                let before = scene.last_seq();
                scene.interrupt(times, wanted, 12);
                reader.refresh().unwrap_or_else(|error| panic!("{context}: refresh: {error}"));
                scene.check(&reader, before, &format!("{context}, refreshed"));
            }
        }
    }
}

/// The owner flushes, and makes the log's segments into later ones, while they are read: then the log seems to end
/// before it does.
#[test]
fn a_log_that_is_recycled_while_it_is_read() {
    // Not synced: no record says of those before it that they were durable.
    let put = |db: &Db, range: std::ops::Range<u64>| {
        let table = db.open_table("t").unwrap();
        for n in range {
            let mut tx = db.begin().unwrap();
            tx.set_durability(Durability::Buffered);
            tx.put(&table, n.to_be_bytes(), vec![n as u8; 1000]).unwrap();
            tx.commit().unwrap();
        }
    };
    for more in [60, 100, 150, 300, 800] {
        let disk = SimDisk::new();
        let owner = open(&disk).unwrap();
        owner.table("t").unwrap();
        // So that there are some segments to spare.
        put(&owner, 0..400);
        owner.flush().unwrap();
        put(&owner, 400..430);
        let readers = Hooked::idle(&disk);
        let mut opened = false;
        let writer = owner.clone();
        let hook = move |call: Call<'_>| {
            if let Call::Read(path, 0, _) = call
                && ends_in(path, "wal")
                && !std::mem::replace(&mut opened, true)
            {
                put(&writer, 430..430 + more);
            }
        };
        readers.set(hook);
        let reader = options().read_only(true).open_on(Arc::new(readers.clone()), PATH).unwrap();
        let mine = reader.open_table("t").unwrap();
        let found = reader.snapshot().range(&mine, ..).unwrap().count() as u64;
        assert!((430..=430 + more).contains(&found), "{found} of at least 430 and at most {}", 430 + more);
        // The hook has a handle of the owner.
        readers.clear();
    }
}

/// A record that is half written when it is read, with others behind it a moment later.
#[test]
fn a_record_that_is_being_written_is_no_damage() {
    let disk = SimDisk::new();
    let db = open(&disk).unwrap();
    let table = db.table("t").unwrap();
    (0..60u64).for_each(|n| db.put(&table, n.to_be_bytes(), vec![7; 100]).unwrap());
    let readers = Hooked::idle(&disk);
    let mut read = false;
    let hook = move |call: Call<'_>| {
        if let Call::Read(path, offset, buffer) = call
            && ends_in(path, "wal")
            && offset > 0
            && !std::mem::replace(&mut read, true)
        {
            buffer[3000..].fill(0);
        }
    };
    readers.set(hook);
    let reader = options().read_only(true).open_on(Arc::new(readers.clone()), PATH).unwrap();
    assert_eq!(reader.snapshot().seq(), db.snapshot().seq());
    // What stays so is damage.
    let damage = |call: Call<'_>| {
        if let Call::Read(path, offset @ 1.., buffer) = call
            && ends_in(path, "wal")
            && let Some(place) = 7000u64.checked_sub(offset)
            && let Some(byte) = buffer.get_mut(place as usize)
        {
            *byte ^= 1;
        }
    };
    readers.set(damage);
    let opened = options().read_only(true).open_on(Arc::new(readers), PATH);
    assert!(matches!(opened, Err(bygone::Error::Corruption { .. })), "{opened:?}");
}
