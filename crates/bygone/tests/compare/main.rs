//! Comparing snapshots, and the history of a key.
//!
//! Owns: random scenes. Promises: they are compared in all pairs with plain maps, wherever their records lie. May
//! call: the support.

mod costs;
mod damage;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bygone::io::SimDisk;
use bygone::{Change, Db, Diff, Error, History, Result, Snapshot, SnapshotId, SnapshotRef, Table, Value};
use support::Random;

fn is_owned<T: Send + 'static>() {}

#[test]
fn the_iterators_can_go_anywhere() {
    is_owned::<Diff>();
    is_owned::<History>();
    is_owned::<Change>();
}

fn sim() -> (SimDisk, Db, Table) {
    let disk = SimDisk::new();
    let db = support::open(&disk).unwrap();
    let table = db.table("t").unwrap();
    (disk, db, table)
}

fn change(key: &str, before: Option<&str>, after: Option<&str>) -> Change {
    let value = |text: &str| Value::from(text.as_bytes());
    Change { key: value(key), before: before.map(value), after: after.map(value) }
}

fn all(diff: Result<Diff>) -> Vec<Change> {
    diff.unwrap().collect::<Result<_>>().unwrap()
}

#[test]
fn additions_removals_and_changes_are_told_with_both_values() {
    let (_disk, db, table) = sim();
    for (key, value) in [("changed", "1"), ("gone", "2"), ("left", "3"), ("rewritten", "4")] {
        db.put(&table, key, value).unwrap();
    }
    db.snapshot_now("a").unwrap();
    db.put(&table, "changed", "10").unwrap();
    db.delete(&table, "gone").unwrap();
    db.put(&table, "new", "5").unwrap();
    db.put(&table, "rewritten", "4").unwrap();
    db.put(&table, "passing", "6").unwrap();
    db.delete(&table, "passing").unwrap();
    db.snapshot_now("b").unwrap();
    let forward = [
        change("changed", Some("1"), Some("10")),
        change("gone", Some("2"), None),
        change("new", None, Some("5")),
    ];
    let back = forward.clone().map(|c| Change { key: c.key, before: c.after, after: c.before });
    let check = |db: &Db| {
        assert_eq!(all(db.diff("a", "b", &table)), forward);
        assert_eq!(all(db.diff("b", "a", &table)), back);
        assert_eq!(all(db.diff("b", "b", &table)), []);
        let (past, now) = (db.as_of("a").unwrap(), db.snapshot());
        assert_eq!(all(past.diff(&now, &table)), forward);
        assert_eq!(all(now.diff(&past, &table)), back);
        let reversed: Vec<Change> = past.diff(&now, &table).unwrap().rev().map(Result::unwrap).collect();
        assert!(reversed.iter().eq(forward.iter().rev()));
    };
    check(&db);
    db.flush().unwrap();
    check(&db);
    db.merge().unwrap();
    check(&db);
    db.put(&table, "later", "7").unwrap();
    db.delete(&table, "later").unwrap();
    db.merge().unwrap();
    check(&db);
}

#[test]
fn a_range_of_keys_can_be_compared_from_both_ends() {
    let (_disk, db, table) = sim();
    db.snapshot_now("a").unwrap();
    for key in ["b", "c", "d", "e", "f"] {
        db.put(&table, key, "v").unwrap();
    }
    db.snapshot_now("b").unwrap();
    let keys = |diff: Result<Diff>| -> Vec<u8> { all(diff).iter().map(|change| change.key[0]).collect() };
    let (b, c, e) = (b"b".as_slice(), b"c".as_slice(), b"e".as_slice());
    for _ in 0..2 {
        assert_eq!(keys(db.diff_range("a", "b", &table, c..)), b"cdef");
        assert_eq!(keys(db.diff_range("a", "b", &table, ..e)), b"bcd");
        assert_eq!(keys(db.diff_range("a", "b", &table, ..=e)), b"bcde");
        assert_eq!(keys(db.diff_range("a", "b", &table, (Bound::Excluded(b), Bound::Excluded(e)))), b"cd");
        assert_eq!(keys(db.diff_range("a", "b", &table, e..c)), b"");
        let mut diff = db.diff_range("a", "b", &table, b..=e).unwrap();
        let mut next = |back: bool| {
            let change = if back { diff.next_back() } else { diff.next() };
            change.map(|change| change.unwrap().key[0])
        };
        assert_eq!(
            [false, true, true, false, false, true].map(&mut next),
            [Some(b'b'), Some(b'e'), Some(b'd'), Some(b'c'), None, None]
        );
        db.merge().unwrap();
    }
}

#[test]
fn a_table_that_a_snapshot_lacks_counts_as_empty() {
    let (_disk, db, _) = sim();
    db.snapshot_now("before").unwrap();
    let table = db.table("late").unwrap();
    db.put(&table, "k", "1").unwrap();
    db.snapshot_now("with").unwrap();
    db.drop_table("late").unwrap();
    db.snapshot_now("without").unwrap();
    let again = db.table("late").unwrap();
    db.put(&again, "k", "1").unwrap();
    db.put(&again, "l", "2").unwrap();
    db.snapshot_now("again").unwrap();
    for _ in 0..2 {
        assert_eq!(all(db.diff("before", "with", &table)), [change("k", None, Some("1"))]);
        assert_eq!(all(db.diff("with", "without", &table)), [change("k", Some("1"), None)]);
        assert_eq!(all(db.diff("before", "without", &table)), []);
        assert_eq!(all(db.diff("before", "before", &table)), []);
        // Through the younger handle, both tables of the name are compared by what they hold.
        assert_eq!(all(db.diff("with", "again", &again)), [change("l", None, Some("2"))]);
        // The older one has no meaning any more.
        assert_eq!(all(db.diff("with", "again", &table)), [change("k", Some("1"), None)]);
        let gone = db.diff("without", "again", &table);
        assert!(matches!(gone, Err(Error::TableNotFound { table }) if table == "late"));
        db.merge().unwrap();
    }
}

#[test]
fn what_was_undone_before_the_next_merge_is_told() {
    let (_disk, db, table) = sim();
    db.merge().unwrap();
    db.put(&table, "k", "1").unwrap();
    let seen = db.snapshot_now(None).unwrap();
    db.delete(&table, "k").unwrap();
    let later = db.snapshot_now(None).unwrap();
    db.merge().unwrap();
    db.put(&db.table("other").unwrap(), "k", "1").unwrap();
    db.merge().unwrap();
    // Both are read above trees of the table that are the same: none.
    assert_eq!(all(db.diff(seen, later, &table)), [change("k", Some("1"), None)]);
    let (then, now) = (db.as_of(seen).unwrap(), db.snapshot());
    assert_eq!(all(then.diff(&now, &table)), [change("k", Some("1"), None)]);
    assert_eq!(all(now.diff(&then, &table)), [change("k", None, Some("1"))]);
}

#[test]
fn how_long_a_key_stays_is_told_within_what_is_read_together() {
    let (_disk, db, table) = sim();
    db.put(&table, "always", "0").unwrap();
    db.put(&table, "often", "0").unwrap();
    db.snapshot_now("before").unwrap();
    db.merge().unwrap();
    let mut seqs = Vec::new();
    for round in 0..6u8 {
        db.put(&table, "often", [round / 2]).unwrap();
        if round == 3 {
            db.delete(&table, "always").unwrap();
            db.put(&table, "always", "0").unwrap();
        }
        let id = db.snapshot_now(None).unwrap();
        seqs.push(db.as_of(id).unwrap().seq());
        if round == 4 {
            db.flush().unwrap();
        }
    }
    // What a merge ends with is read in the base that it makes.
    db.put(&table, "behind", "0").unwrap();
    let view = |round: usize| db.as_of(db.snapshots().unwrap()[round + 1].id).unwrap();
    for _ in 0..2 {
        let (first, last) = (view(0), view(5));
        let until = |key: &str| first.unchanged_until(&last, &table, key).unwrap().unwrap();
        assert!((seqs[0]..seqs[1]).contains(&until("often")));
        // The same again counts as a change.
        assert!((seqs[2]..seqs[3]).contains(&until("always")));
        assert_eq!(until("never"), seqs[5]);
        assert_eq!(view(3).unchanged_until(&last, &table, "always").unwrap(), Some(seqs[5]));
        assert_eq!(first.unchanged_until(&view(2), &table, "always").unwrap(), Some(seqs[2]));
        assert_eq!(first.unchanged_until(&first, &table, "often").unwrap(), Some(seqs[0]));
        assert_eq!(last.unchanged_until(&first, &table, "never").unwrap(), None);
        db.merge().unwrap();
    }
    // Behind the merge all is in another place.
    assert_eq!(view(0).unchanged_until(&db.snapshot(), &table, "never").unwrap(), None);
    let (other_disk, other, _) = sim();
    assert!(view(0).unchanged_until(&other.snapshot(), &table, "never").is_err());
    drop((other, other_disk));
    let then = db.snapshot();
    db.drop_table("t").unwrap();
    assert_eq!(then.unchanged_until(&db.snapshot(), &table, "never").unwrap(), None);
    let again = db.table("t").unwrap();
    assert_eq!(then.unchanged_until(&db.snapshot(), &again, "never").unwrap(), None);
}

#[test]
fn wrong_arguments_are_typed_errors() {
    let (_disk, db, table) = sim();
    db.snapshot_now("a").unwrap();
    assert!(matches!(db.diff("a", "none", &table), Err(Error::SnapshotNotFound { .. })));
    assert!(matches!(db.diff(SnapshotId::from(9), "a", &table), Err(Error::SnapshotNotFound { .. })));
    let (_other_disk, other, other_table) = sim();
    other.snapshot_now("a").unwrap();
    assert!(matches!(db.diff("a", "a", &other_table), Err(Error::InvalidArgument { .. })));
    let foreign = db.snapshot().diff(&other.snapshot(), &table);
    assert!(matches!(foreign, Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.history(&other_table, "k"), Err(Error::InvalidArgument { .. })));
    assert_eq!(db.history(&table, vec![0; 5000]).unwrap().count(), 0);
}

#[test]
fn what_is_read_outlives_the_database() {
    let (_disk, db, table) = sim();
    db.snapshot_now("a").unwrap();
    db.put(&table, "k", "v").unwrap();
    db.snapshot_now("b").unwrap();
    db.merge().unwrap();
    let mut diff = db.diff("a", "b", &table).unwrap();
    let mut history = db.history(&table, "k").unwrap();
    drop((db, table));
    std::thread::spawn(move || {
        assert_eq!(diff.next().unwrap().unwrap(), change("k", None, Some("v")));
        assert_eq!(history.next().unwrap().unwrap(), (SnapshotId::from(2), Some(b"v"[..].into())));
    })
    .join()
    .unwrap();
}

/// Values by key; no state at all where there is no table.
type Records = Option<BTreeMap<Vec<u8>, Vec<u8>>>;

/// A database with many declared and some held snapshots, whose records lie in all kinds of places.
struct Scene {
    db: Db,
    _disk: SimDisk,
    /// A handle of the youngest table of the name, made last.
    table: Table,
    declared: Vec<(SnapshotId, Records)>,
    held: Vec<(Snapshot, Records)>,
}

fn random_key(random: &mut Random) -> Vec<u8> {
    format!("key-{:03}", random.below(150)).into_bytes()
}

fn scene(seed: u64) -> Scene {
    let mut random = Random(seed);
    let (disk, db, mut table) = sim();
    let mut state: Records = Some(BTreeMap::new());
    let (mut declared, mut held) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        for _ in 0..random.below(40) {
            let Some(records) = &mut state else { break };
            let (key, length) = (random_key(&mut random), [0, 8, 100, 3000, 9000][random.below(5) as usize]);
            if random.below(4) == 0 {
                db.delete(&table, &key).unwrap();
                records.remove(&key);
            } else {
                // Few different ones, so that some come back.
                let value = vec![random.below(3) as u8; length];
                db.put(&table, &key, &value).unwrap();
                records.insert(key, value);
            }
        }
        if random.below(25) == 0 {
            match state {
                Some(_) => db.drop_table("t").unwrap(),
                None => table = db.table("t").unwrap(),
            }
            state = if state.is_some() { None } else { Some(BTreeMap::new()) };
        }
        if random.below(3) > 0 {
            declared.push((db.snapshot_now(None).unwrap(), state.clone()));
        }
        match random.below(9) {
            0 => db.flush().unwrap(),
            1 => db.merge().unwrap(),
            2 => held.push((db.snapshot(), state.clone())),
            _ => {}
        }
    }
    if state.is_none() {
        table = db.table("t").unwrap();
        state = Some(BTreeMap::new());
    }
    held.push((db.snapshot(), state));
    Scene { db, _disk: disk, table, declared, held }
}

fn expected(before: &Records, after: &Records, inside: impl Fn(&[u8]) -> bool) -> Vec<Change> {
    let empty = BTreeMap::new();
    let (before, after) = (before.as_ref().unwrap_or(&empty), after.as_ref().unwrap_or(&empty));
    let keys: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let value = |value: &Vec<u8>| Value::from(value.clone());
    keys.into_iter()
        .filter(|key| inside(key) && before.get(*key) != after.get(*key))
        .map(|key| Change {
            key: value(key),
            before: before.get(key).map(value),
            after: after.get(key).map(value),
        })
        .collect()
}

/// Takes everything, from both ends at random.
fn take<T>(mut items: impl DoubleEndedIterator<Item = Result<T>>, random: &mut Random) -> Vec<T> {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let backward = random.below(101);
    loop {
        let from_back = random.below(100) < backward;
        match if from_back { items.next_back() } else { items.next() } {
            None => break,
            Some(item) if from_back => back.push(item.unwrap()),
            Some(item) => front.push(item.unwrap()),
        }
    }
    assert!(items.next().is_none() && items.next_back().is_none(), "the end is the end");
    front.extend(back.into_iter().rev());
    front
}

#[test]
fn any_two_snapshots_differ_as_maps_do() {
    for seed in 0..12 {
        let scene = scene(seed);
        let mut random = Random(seed + 1000);
        let past = scene.declared.iter().map(|(id, state)| (scene.db.as_of(*id).unwrap(), state.clone()));
        let views: Vec<(Snapshot, Records)> = past.chain(scene.held.iter().cloned()).collect();
        for (before, old) in &views {
            for (after, new) in &views {
                let place = format!("seed {seed}, commits {} and {}", before.seq(), after.seq());
                let found = take(before.diff(after, &scene.table).unwrap(), &mut random);
                assert!(found == expected(old, new, |_| true), "{place}: {found:?}");
            }
            let (after, new) = &views[random.below(views.len() as u64) as usize];
            let (a, b) = (random_key(&mut random), random_key(&mut random));
            let (lower, upper) = (a.as_slice().min(&b), a.as_slice().max(&b));
            let diff = before.diff_range(after, &scene.table, lower..upper).unwrap();
            let wanted = expected(old, new, |key| (lower..upper).contains(&key));
            assert!(take(diff, &mut random) == wanted, "seed {seed}, a range");
        }
    }
}

#[test]
fn histories_are_those_of_maps() {
    for seed in 0..12 {
        let scene = scene(seed);
        let mut random = Random(seed + 2000);
        for number in 0..150 {
            let key = format!("key-{number:03}").into_bytes();
            let mut last = None;
            let mut expected = Vec::new();
            for (id, state) in &scene.declared {
                let value = state.as_ref().and_then(|records| records.get(&key));
                if value != last {
                    expected.push((*id, value.map(|value| Value::from(value.clone()))));
                    last = value;
                }
            }
            let found = take(scene.db.history(&scene.table, &key).unwrap(), &mut random);
            assert!(found == expected, "seed {seed}, key {number}: {found:?}, not {expected:?}");
        }
    }
}

#[test]
fn a_history_is_of_the_snapshots_that_were_declared_when_it_began() {
    let (_disk, db, table) = sim();
    let mut expected = Vec::new();
    for round in 0..20u8 {
        db.put(&table, "k", [round]).unwrap();
        expected.push((db.snapshot_now(None).unwrap(), Some(Value::from(&[round][..]))));
        if round % 5 == 4 {
            db.merge().unwrap();
        }
    }
    let mut history = db.history(&table, "k").unwrap();
    let mut found = vec![history.next().unwrap().unwrap()];
    for round in 100..120u8 {
        db.put(&table, "k", [round]).unwrap();
        db.snapshot_now(None).unwrap();
        db.merge().unwrap();
        found.extend(history.next().transpose().unwrap());
    }
    assert_eq!(found, expected);
    assert_eq!(history.count(), 0);
    assert_eq!(db.history(&table, "k").unwrap().count(), 40);
}

/// Sixty snapshots, each with a value of its own, in stretches of many lengths.
fn with_sixty_values() -> (SimDisk, Db, Table) {
    let (disk, db, table) = sim();
    for round in 1..=60u8 {
        db.put(&table, "k", [round]).unwrap();
        assert_eq!(db.snapshot_now(None).unwrap(), SnapshotId::from(u64::from(round)));
        if round % 7 == 0 || round % 10 == 0 {
            db.merge().unwrap();
        }
    }
    (disk, db, table)
}

/// What a history must be while others delete: ids in order, each with its own value, and none left out that
/// lives.
fn check_forgotten(found: &[(SnapshotId, Option<Value>)], living: &[u64]) {
    assert!(found.is_sorted_by_key(|(id, _)| *id), "{found:?}");
    for (id, value) in found {
        assert_eq!(value.as_deref(), Some(&[u64::from(*id) as u8][..]), "snapshot {id}");
    }
    let found: BTreeSet<u64> = found.iter().map(|(id, _)| u64::from(*id)).collect();
    assert!(living.iter().all(|id| found.contains(id)), "{found:?} of {living:?}");
}

#[test]
fn snapshots_may_be_deleted_while_a_history_goes_on() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let (_disk, db, table) = with_sixty_values();
        let mut history = db.history(&table, "k").unwrap();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            if random.below(8) == 0 {
                let doomed = db.snapshots().unwrap().into_iter().filter(|_| random.below(3) == 0);
                let doomed: Vec<SnapshotId> = doomed.map(|info| info.id).collect();
                db.delete_snapshots(doomed).unwrap();
                db.merge().unwrap();
                // Opened by somebody else, they are at hand.
                for info in db.snapshots().unwrap() {
                    db.as_of(&info).unwrap();
                }
            }
            let from_back = random.below(2) == 0;
            match if from_back { history.next_back() } else { history.next() } {
                None => break,
                Some(item) if from_back => back.push(item.unwrap()),
                Some(item) => front.push(item.unwrap()),
            }
        }
        front.extend(back.into_iter().rev());
        let living: Vec<u64> = db.snapshots().unwrap().iter().map(|info| info.id.into()).collect();
        check_forgotten(&front, &living);
        check_forgotten(&db.history(&table, "k").unwrap().collect::<Result<Vec<_>>>().unwrap(), &living);
    }
}

#[test]
fn another_thread_may_delete_and_prune_while_histories_and_comparisons_are_made() {
    let (_disk, db, table) = with_sixty_values();
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            let mut random = Random(9);
            loop {
                let list = db.snapshots().unwrap();
                if list.len() < 3 {
                    return;
                }
                // The first and the last stay.
                let one = &list[1 + random.below(list.len() as u64 - 2) as usize];
                db.delete_snapshot(one.id).unwrap();
                db.merge().unwrap();
            }
        });
        while !deleting.is_finished() {
            let found: Vec<_> = db.history(&table, "k").unwrap().collect::<Result<_>>().unwrap();
            check_forgotten(&found, &[1, 60]);
            let found: Vec<_> = db.history(&table, "k").unwrap().rev().collect::<Result<_>>().unwrap();
            check_forgotten(&found.into_iter().rev().collect::<Vec<_>>(), &[1, 60]);
            let [first, last] = [1, 60].map(SnapshotId::from);
            let change = db.diff(first, last, &table).unwrap().next().unwrap().unwrap();
            assert_eq!((change.before.unwrap(), change.after.unwrap()), ([1][..].into(), [60][..].into()));
        }
        deleting.join().unwrap();
    });
}

#[test]
fn a_key_that_never_was_has_no_history() {
    let (_disk, db, table) = sim();
    assert_eq!(db.history(&table, "k").unwrap().count(), 0, "no snapshots at all");
    db.put(&table, "other", "v").unwrap();
    db.snapshot_now(None).unwrap();
    db.put(&table, "k", "of the present only").unwrap();
    assert_eq!(db.history(&table, "k").unwrap().count(), 0);
    assert_eq!(db.history(&table, "k").unwrap().rev().count(), 0);
}

#[test]
fn every_way_to_name_a_snapshot_is_taken() {
    let (_disk, db, table) = sim();
    let a = db.snapshot_now("a").unwrap();
    db.put(&table, "k", "v").unwrap();
    let b = db.snapshot_now(None).unwrap();
    let info = db.snapshot_info(b).unwrap();
    assert_eq!(all(db.diff("a", b, &table)).len(), 1);
    assert_eq!(all(db.diff(a, &info, &table)).len(), 1);
    assert_eq!(all(db.diff(a, info.time, &table)).len(), 1);
    assert_eq!(all(db.diff(String::from("a"), SnapshotRef::Id(b), &table)).len(), 1);
}
