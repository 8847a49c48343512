//! Power cuts in a merge that publishes in several steps: a base of many pages, of which most are replaced.
//!
//! Owns: what small databases never come to. Promises: after a cut at any operation of the merge, and of the
//! merge that makes up for it, everything is there. May call: the support.

use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Durability, Options, Result};

use crate::support::{Model, PATH, Random, State, check_open, points};

const KEYS: u64 = 4000;

/// A memtable that takes a whole round, so that the merge is the test's own.
fn opened(disk: &SimDisk) -> Result<Db> {
    let options = Options::new().memtable_bytes(32 << 20).log_segment_bytes(4 << 20).background(false);
    options.open_on(Arc::new(disk.clone()), PATH)
}

/// Writes every key but some, in commits of a hundred.
fn round(db: &Db, model: &mut Model, random: &mut Random) {
    let table = db.table("t").unwrap();
    for hundred in 0..KEYS / 100 {
        let mut state: State = model.now().clone();
        let records = Arc::make_mut(state.get_mut("t").unwrap());
        let mut tx = db.begin().unwrap();
        tx.set_durability(Durability::Buffered);
        for key in hundred * 100..hundred * 100 + 100 {
            if random.below(10) == 0 {
                continue;
            }
            let (key, value) = (key.to_be_bytes().to_vec(), vec![random.next() as u8; 2500]);
            tx.put(&table, &key, &value).unwrap();
            records.insert(key, value.into());
        }
        model.push(state);
        tx.commit().unwrap();
        model.acknowledge(Durability::Buffered);
    }
}

#[test]
fn a_cut_in_a_merge_of_many_steps_loses_nothing() {
    let disk = SimDisk::new();
    let mut model = Model::new();
    let mut random = Random(31);
    {
        let db = opened(&disk).unwrap();
        db.table("t").unwrap();
        model.push(State::from([("t".to_owned(), Arc::default())]));
        model.acknowledge(Durability::Sync);
        round(&db, &mut model, &mut random);
        db.merge().unwrap();
        round(&db, &mut model, &mut random);
        db.flush().unwrap();
        model.all_durable();
    }
    let merge = |cut: Option<u64>| {
        let copy = disk.crash_image(1);
        let db = opened(&copy).unwrap();
        let before = copy.operations();
        if let Some(n) = cut {
            copy.crash_at(before + n);
        }
        let merged = db.merge();
        assert_eq!(merged.is_err(), cut.is_some(), "{merged:?}");
        (copy.operations() - before, copy)
    };
    let (operations, merged) = merge(None);
    // Steps have a thousand pages, more or less: that there are several is what this test is about.
    let stats = opened(&merged).unwrap().stats().unwrap();
    assert!(stats.base_bytes > 3 * 4096 * 1024, "{stats:?}");
    println!("{operations} operations in the merge");
    for n in points(operations, 30, &mut random) {
        let (_, cut) = merge(Some(n));
        for seed in [0, random.next()] {
            let context = format!("merge cut at {n} of {operations} image {seed}");
            let image = cut.crash_image(seed);
            let db = opened(&image).unwrap_or_else(|error| panic!("{context}: {error}"));
            check_open(&db, &model, &context);
            image.crash_at(image.operations() + 1 + random.below(operations));
            let _ = db.merge();
            drop(db);
            let image = image.crash_image(seed);
            let db = opened(&image).unwrap_or_else(|error| panic!("{context}, and again: {error}"));
            check_open(&db, &model, &format!("{context}, and again"));
            db.merge().unwrap();
            check_open(&db, &model, &format!("{context}, then merged"));
        }
    }
}
