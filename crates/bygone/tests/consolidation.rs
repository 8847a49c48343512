//! Runs that are too few for a merge become one larger run, and nobody notices.

use std::collections::BTreeMap;

use bygone::{Db, Durability, Options, SnapshotId};

type State = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(db: &Db, snapshot: impl Into<Option<SnapshotId>>, state: &State) {
    let table = db.open_table("t").unwrap();
    let view = snapshot.into().map_or_else(|| db.snapshot(), |id| db.as_of(id).unwrap());
    let rows: State =
        view.range(&table, ..).unwrap().map(|row| row.unwrap()).map(|(k, v)| (k.into(), v.into())).collect();
    assert!(rows == *state, "{} rows where {} were expected, or others", rows.len(), state.len());
}

#[test]
fn consolidated_runs_hold_the_present_and_the_declared_past() {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options::new().memtable_bytes(64 << 10).log_segment_bytes(64 << 10).background(false);
        options.durability(Durability::Buffered).open(directory.path()).unwrap()
    };
    let db = open();
    let table = db.table("t").unwrap();
    let mut state = State::new();
    let mut random = 7u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for key in 0..40_000u64 {
        let (key, value) = (key.to_be_bytes(), [key as u8; 100]);
        db.put(&table, key, value).unwrap();
        state.insert(key.into(), value.into());
    }
    db.merge().unwrap();
    let mut snapshots = Vec::new();
    for round in 0..8_000u64 {
        let key = (next() % 40_000).to_be_bytes();
        if round % 10 == 0 {
            db.delete(&table, key).unwrap();
            state.remove(&key[..]);
        } else {
            let value = round.to_le_bytes().repeat(12);
            db.put(&table, key, &value).unwrap();
            state.insert(key.into(), value);
        }
        if round % 1_000 == 500 {
            snapshots.push((db.snapshot_now(None).unwrap(), state.clone()));
        }
    }
    let stats = db.stats().unwrap();
    assert!(stats.consolidations > 0, "{stats:?}");
    assert!(stats.runs <= 20, "{stats:?}");
    let check_all = |db: &Db| {
        check(db, None, &state);
        snapshots.iter().for_each(|(id, state)| check(db, *id, state));
        db.verify().unwrap();
    };
    check_all(&db);
    drop(db);
    let db = open();
    check_all(&db);
    db.merge().unwrap();
    check_all(&db);
}
