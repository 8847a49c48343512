//! Exchanging all records of a table in one commit.
//!
//! Owns: tests of `Db::replace` against what a transaction would leave: the past, handles, errors, memory, power cuts.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Error, Options, Result, Snapshot, Table};

use support::{Random, options};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn records(view: &Snapshot, table: &Table) -> Records {
    let range = view.range(table, ..).unwrap();
    range.map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

fn given(records: &Records) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + '_ {
    records.iter().map(|(key, value)| Ok((key.clone(), value.clone())))
}

fn random_records(random: &mut Random, count: u64) -> Records {
    let mut record = || {
        let key = random.below(3000).to_be_bytes().to_vec();
        let length = if random.below(40) == 0 { random.below(20_000) } else { random.below(60) };
        (key, vec![random.below(4) as u8; length as usize])
    };
    (0..count).map(|_| record()).collect()
}

#[test]
fn a_table_has_the_new_records_and_the_past_the_old() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path().join("db")).unwrap();
    let (table, other) = (db.table("t").unwrap(), db.table("other").unwrap());
    db.put(&other, "a", "1").unwrap();
    let mut random = Random(1);
    let mut states: Vec<Records> = Vec::new();
    for round in 0..12 {
        // Now and then nothing at all; some of it as it was, some written as others are.
        let mut new = random_records(&mut random, [0, 1, 500, 4000][round % 4]);
        if round % 3 == 0 {
            new.extend(states.last().cloned().unwrap_or_default());
        }
        let view = db.snapshot();
        let before = records(&view, &table);
        let seq = db.replace(&table, given(&new)).unwrap();
        assert_eq!(u64::from(seq), u64::from(view.seq()) + 1);
        assert_eq!(records(&db.snapshot(), &table), new);
        assert_eq!(records(&view, &table), before);
        db.put(&table, "beside", round.to_string()).unwrap();
        new.insert(b"beside".to_vec(), round.to_string().into_bytes());
        db.snapshot_now(&*format!("{round}")).unwrap();
        states.push(new);
    }
    for _ in 0..2 {
        for (round, state) in states.iter().enumerate() {
            assert_eq!(&records(&db.as_of(&*format!("{round}")).unwrap(), &table), state, "{round}");
        }
        db.merge().unwrap();
    }
    assert_eq!(db.get(&other, "a").unwrap().unwrap(), b"1");
    db.verify().unwrap();
}

#[test]
fn what_fails_leaves_everything_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let db = options().open(directory.path().join("db")).unwrap();
    let table = db.table("t").unwrap();
    db.put(&table, "a", "1").unwrap();
    let seq = db.snapshot().seq();
    let fails = |records: Vec<Result<(&str, String)>>| db.replace(&table, records).unwrap_err();
    let record = |key| Ok((key, "2".to_owned()));
    assert!(matches!(fails(vec![record("b"), record("a")]), Error::InvalidArgument { .. }));
    assert!(matches!(fails(vec![record("b"), record("b")]), Error::InvalidArgument { .. }));
    let own = Error::InvalidArgument { reason: "of the caller's".into() };
    assert!(fails(vec![record("b"), Err(own)]).to_string().contains("of the caller's"));
    let long = "x".repeat(bygone::limits::KEY_BYTES_MAX + 1);
    assert!(matches!(fails(vec![Ok((&long, String::new()))]), Error::TooLarge { .. }));
    assert_eq!(db.snapshot().seq(), seq);
    assert_eq!(db.get(&table, "a").unwrap().unwrap(), b"1");
    db.put(&table, "b", "2").unwrap();

    let mut transaction = db.begin().unwrap();
    transaction.put(&table, "a", "late").unwrap();
    db.replace(&table, [Ok(("c", "3"))]).unwrap();
    assert!(matches!(transaction.commit(), Err(Error::Conflict { .. })));

    db.drop_table("t").unwrap();
    assert!(matches!(db.replace(&table, [Ok(("c", "3"))]), Err(Error::TableNotFound { .. })));
    let elsewhere = Db::open(directory.path().join("elsewhere")).unwrap();
    let foreign = elsewhere.table("t").unwrap();
    assert!(matches!(db.replace(&foreign, [Ok(("c", "3"))]), Err(Error::InvalidArgument { .. })));
    drop(db);
    let db = Options::new().read_only(true).open(directory.path().join("db")).unwrap();
    assert!(matches!(db.replace(&table, [Ok(("c", "3"))]), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_power_cut_leaves_the_old_records_or_the_new() {
    let mut random = Random(2);
    let (old, new) = (random_records(&mut random, 2000), random_records(&mut random, 2000));
    let work = |disk: &SimDisk, begun: &mut u64| -> Result<()> {
        let db = options().background(false).open_on(Arc::new(disk.clone()), "db")?;
        let table = db.table("t")?;
        for (key, value) in &old {
            db.put(&table, key, value)?;
        }
        db.snapshot_now("then")?;
        *begun = disk.operations();
        db.replace(&table, given(&new))?;
        Ok(())
    };
    let whole = SimDisk::new();
    let mut begun = 0;
    work(&whole, &mut begun).unwrap();
    let operations = whole.operations();
    let mut left = [0, 0];
    for cut in (begun + 1..=operations).step_by(((operations - begun) / 60).max(1) as usize) {
        let disk = SimDisk::new();
        disk.crash_at(cut);
        let done = work(&disk, &mut 0).is_ok();
        for seed in 0..2 {
            let db = options().background(false).open_on(Arc::new(disk.crash_image(seed)), "db").unwrap();
            let table = db.table("t").unwrap();
            let now = records(&db.snapshot(), &table);
            let is_new = now == new;
            assert!(is_new || now == old && !done, "cut at {cut}, image {seed}");
            left[usize::from(is_new)] += 1;
            assert_eq!(records(&db.as_of("then").unwrap(), &table), old, "cut at {cut}, image {seed}");
        }
    }
    assert!(left.iter().all(|count| *count > 0), "old and new: {left:?}");
}
