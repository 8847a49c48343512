//! Deterministic work on a database and its model side by side.
//!
//! Owns: [`work`]. Promises: what is done depends on the seed and on the model alone; the model has each
//! commit before the database is asked for it. May call: the engine's public face only.

use std::sync::Arc;

use bygone::{Db, Durability, Result};

use super::{Model, Random, State};

const TABLES_MAX: u64 = 4;
const KEYS: u64 = 150;

/// Does `steps` steps, or fewer if one fails.
pub fn work(db: &Db, model: &mut Model, random: &mut Random, steps: u64) -> Result<()> {
    for at in 0..steps {
        // There are times of many snapshots, and times of few.
        let eager = at / 25 % 2 == 1;
        step(db, model, random, eager)?;
    }
    Ok(())
}

fn step(db: &Db, model: &mut Model, random: &mut Random, eager: bool) -> Result<()> {
    if model.now().is_empty() {
        return make_table(db, model, random);
    }
    match random.below(100) {
        0..40 => {
            let count = 1 + random.below(6);
            let snapshot = eager || random.below(8) == 0;
            transaction(db, model, random, count, snapshot)
        }
        40..50 => transaction(db, model, random, 40, eager),
        50..52 => transaction(db, model, random, 400, eager),
        52..70 => single(db, model, random),
        70..76 => {
            model.push(model.now().clone());
            let name = name(model, random);
            model.declare(name.clone(), Vec::new());
            let id = db.snapshot_now(name.as_deref())?;
            assert_eq!(u64::from(id), model.declared.len() as u64);
            model.acknowledge(Durability::Sync);
            Ok(())
        }
        76..80 => delete_snapshots(db, model, random),
        80..83 => restore(db, model, random),
        83..87 => {
            db.flush()?;
            model.all_durable();
            archive(db);
            Ok(())
        }
        87..92 => {
            db.merge()?;
            model.all_durable();
            // Not always: then there is something for the next time.
            if !model.last_seq().is_multiple_of(3) {
                archive(db);
            }
            Ok(())
        }
        92..97 => make_table(db, model, random),
        _ => {
            let table = pick(model, random);
            let mut state = model.now().clone();
            state.remove(&table);
            model.push(state);
            db.drop_table(&table)?;
            model.acknowledge(Durability::Sync);
            Ok(())
        }
    }
}

/// Does nothing where the past is not split from the present. What fails of the past is no failure of the present: who
/// goes on notices if it is one.
fn archive(db: &Db) {
    let _ = db.archive();
}

/// One, or many, which is what makes a run be written anew and key frames go.
fn delete_snapshots(db: &Db, model: &mut Model, random: &mut Random) -> Result<()> {
    let now = model.last_seq();
    let percent = if random.below(2) == 0 { 10 } else { 80 };
    let doomed: Vec<usize> = (0..model.declared.len())
        .filter(|index| model.declared[*index].lives_at(now) && random.below(100) < percent)
        .collect();
    if doomed.is_empty() {
        return Ok(());
    }
    model.push(model.now().clone());
    for index in &doomed {
        model.declared[*index].deleted = Some(model.last_seq());
    }
    let id = |index: &usize| bygone::SnapshotId::from(model.declared[*index].id);
    db.delete_snapshots(doomed.iter().map(id))?;
    model.acknowledge(Durability::Sync);
    Ok(())
}

fn restore(db: &Db, model: &mut Model, random: &mut Random) -> Result<()> {
    let now = model.last_seq();
    let living: Vec<usize> =
        (0..model.declared.len()).filter(|index| model.declared[*index].lives_at(now)).collect();
    if living.is_empty() {
        return Ok(());
    }
    let index = living[random.below(living.len() as u64) as usize];
    let id = bygone::SnapshotId::from(model.declared[index].id);
    let before = model.restore(index);
    let restored = db.restore(id)?;
    assert_eq!((u64::from(restored.seq), u64::from(restored.before)), (model.last_seq(), before));
    model.acknowledge(Durability::Sync);
    Ok(())
}

fn make_table(db: &Db, model: &mut Model, random: &mut Random) -> Result<()> {
    let name = format!("table-{}", random.below(TABLES_MAX));
    if model.now().contains_key(&name) {
        return Ok(());
    }
    let mut state = model.now().clone();
    state.insert(name.clone(), Arc::default());
    model.push(state);
    db.table(&name)?;
    model.acknowledge(Durability::Sync);
    Ok(())
}

fn transaction(db: &Db, model: &mut Model, random: &mut Random, count: u64, snapshot: bool) -> Result<()> {
    let durability = if random.below(3) == 0 { Durability::Sync } else { Durability::Buffered };
    let mut state = model.now().clone();
    let mut tx = db.begin()?;
    tx.set_durability(durability);
    for _ in 0..count {
        let name = pick(model, random);
        let table = db.open_table(&name)?;
        let (key, value) = (key(random), value(model, random));
        match &value {
            Some(value) => tx.put(&table, &key, value)?,
            None => tx.delete(&table, &key)?,
        }
        apply(&mut state, &name, key, value);
    }
    model.push(state);
    if snapshot {
        let name = name(model, random);
        let metadata = model.last_seq().to_be_bytes().to_vec();
        tx.set_snapshot_metadata(metadata.clone());
        model.declare(name.clone(), metadata);
        let id = tx.commit_with_snapshot(name.as_deref())?;
        assert_eq!(u64::from(id), model.declared.len() as u64);
    } else {
        let seq = tx.commit()?;
        assert_eq!(u64::from(seq), model.last_seq());
    }
    model.acknowledge(durability);
    Ok(())
}

fn single(db: &Db, model: &mut Model, random: &mut Random) -> Result<()> {
    let name = pick(model, random);
    let table = db.open_table(&name)?;
    let (key, value) = (key(random), value(model, random));
    let mut state = model.now().clone();
    apply(&mut state, &name, key.clone(), value.clone());
    model.push(state);
    match &value {
        Some(value) => db.put(&table, &key, value)?,
        None => db.delete(&table, &key)?,
    }
    model.acknowledge(Durability::Sync);
    Ok(())
}

fn apply(state: &mut State, table: &str, key: Vec<u8>, value: Option<Arc<[u8]>>) {
    let records = state.get_mut(table).map(Arc::make_mut).expect("a table of the model");
    match value {
        Some(value) => records.insert(key, value),
        None => records.remove(&key),
    };
}

fn pick(model: &Model, random: &mut Random) -> String {
    let index = random.below(model.now().len() as u64) as usize;
    model.now().keys().nth(index).expect("counted").clone()
}

/// `None` is a snapshot without a name.
fn name(model: &Model, random: &mut Random) -> Option<String> {
    (random.below(3) > 0).then(|| format!("at-{}", model.last_seq()))
}

fn key(random: &mut Random) -> Vec<u8> {
    let number = random.below(KEYS);
    let mut key = format!("key-{number:04}").into_bytes();
    if number.is_multiple_of(10) {
        key.resize(20 + number as usize * 4, b'k');
    }
    key
}

/// Every value is another one, so that one commit's is never taken for another's. `None` deletes.
fn value(model: &Model, random: &mut Random) -> Option<Arc<[u8]>> {
    let len = match random.below(40) {
        0..6 => return None,
        6 => 3000 + random.below(12_000),
        7..10 => 0,
        _ => random.below(500),
    };
    let mut value = format!("{}/{}:", model.last_seq() + 1, random.below(1 << 30)).into_bytes();
    value.resize(value.len() + len as usize, b'a' + (random.below(26) as u8));
    Some(value.into())
}
