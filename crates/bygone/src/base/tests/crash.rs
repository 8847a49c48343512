//! Power cuts and failing writes.

use super::disk::{Operation, apply};
use super::*;
use std::sync::atomic::Ordering;

/// What may be on disk after a cut behind the first `count` operations: all that was synced, and of the rest
/// any part, in sectors.
fn after_cut(start: &[u8], log: &[Operation], count: usize, random: &mut Random) -> Vec<u8> {
    let log = &log[..count];
    let synced = log.iter().rposition(|operation| matches!(operation, Operation::Sync)).unwrap_or(0);
    let mut bytes = start.to_vec();
    log[..synced].iter().for_each(|operation| apply(&mut bytes, operation));
    let mode = random.below(3);
    for operation in &log[synced..] {
        match operation {
            Operation::Write { offset, bytes: written } => {
                for (sector, part) in (0..).zip(written.chunks(512)) {
                    if mode == 0 || (mode == 1 && random.below(2) == 0) {
                        let part = Operation::Write { offset: offset + sector * 512, bytes: part.to_vec() };
                        apply(&mut bytes, &part);
                    }
                }
            }
            other if mode == 0 || random.below(2) == 0 => apply(&mut bytes, other),
            _ => {}
        }
    }
    bytes
}

#[test]
fn a_cut_at_any_write_leaves_the_old_base_or_the_new_one() {
    let mut random = Random(4);
    let mut fixture = Fixture::new();
    let mut model = Model::from([(1, BTreeMap::new())]);
    let mut states = vec![(fixture.base.root(), model.clone())];
    let file = fixture.disk.file(PATH);
    let start = file.bytes.lock().unwrap().clone();
    file.log.lock().unwrap().clear();
    // How many operations were done when each state was published.
    let mut published = vec![0];
    for round in 0..12 {
        let records = model.get_mut(&1).unwrap();
        let updates: BTreeMap<_, _> = (0..150)
            .map(|_| (key(random.below(900)), (random.below(3) > 0).then(|| value(random.next(), 90))))
            .chain([(key(5000), Some(value(round, 30_000)))])
            .collect();
        for (key, value) in &updates {
            match value {
                Some(value) => drop(records.insert(key.clone(), value.clone())),
                None => drop(records.remove(key)),
            }
        }
        fixture.update(1, updates, 0);
        states.push((fixture.base.root(), model.clone()));
        published.push(file.log.lock().unwrap().len());
    }
    let log = file.log.lock().unwrap().clone();
    for count in 0..=log.len() {
        for _ in 0..6 {
            let bytes = after_cut(&start, &log, count, &mut random);
            let reopened = Fixture::open(&MemoryDisk::with(PATH, bytes)).unwrap();
            let (i, (_, expected)) = states
                .iter()
                .enumerate()
                .find(|(_, (root, _))| *root == reopened.base.root())
                .expect("a base that was published");
            let durable = published.iter().rposition(|published| *published <= count).unwrap();
            assert!(
                i == durable || i == durable + 1,
                "state {i} after {count} operations, {durable} was durable"
            );
            reopened.verify_without_leaks();
            let found = contents(&reopened.base, 1).unwrap();
            assert!(found == expected[&1]);
        }
    }
}

#[test]
fn work_goes_on_after_a_cut() {
    let mut random = Random(8);
    let mut fixture = Fixture::new();
    let mut durable = Model::from([(1, BTreeMap::new())]);
    for round in 0..60 {
        let file = fixture.disk.file(PATH);
        let start = file.bytes.lock().unwrap().clone();
        file.log.lock().unwrap().clear();
        let mut model = durable.clone();
        let records = model.get_mut(&1).unwrap();
        let updates: BTreeMap<_, _> =
            (0..100).map(|_| (key(random.below(500)), value(random.next(), 200))).collect();
        records.extend(updates.clone());
        fixture.update(1, updates.into_iter().map(|(key, value)| (key, Some(value))), 0);
        let log = file.log.lock().unwrap().clone();
        let count = random.below(log.len() as u64 + 1) as usize;
        let bytes = after_cut(&start, &log, count, &mut random);
        fixture = Fixture::open(&MemoryDisk::with(PATH, bytes)).unwrap();
        if contents(&fixture.base, 1).unwrap() == model[&1] {
            durable = model;
        } else {
            assert!(contents(&fixture.base, 1).unwrap() == durable[&1], "round {round}");
        }
        fixture.verify_without_leaks();
    }
}

#[test]
fn a_failing_write_leaves_the_base_readable_and_the_store_usable_or_poisoned() {
    let mut random = Random(15);
    let mut poisoned = 0;
    let mut recovered = 0;
    for successes in 0.. {
        let mut fixture = Fixture::new();
        let model: BTreeMap<_, _> = (0..3000).map(|i| (key(i), value(i, 100))).collect();
        fixture.update(1, model.iter().map(|(key, value)| (key.clone(), Some(value.clone()))), 0);
        let file = fixture.disk.file(PATH);
        file.successes.store(successes, Ordering::Relaxed);
        let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
        let updates = (0..3000).step_by(2).map(|i| (key(i), Some(value(i + 1, 100))));
        let result = rebuild
            .apply(1, &mut MapUpdates::new(updates), usize::MAX)
            .and_then(|_| rebuild.finish(5, 0, || (b"").to_vec()));
        file.successes.store(-1, Ordering::Relaxed);
        assert_equals(&fixture.base, &Model::from([(1, model.clone())]), &mut random);
        match (result, fixture.store.rebuild(&fixture.base)) {
            (Ok(base), _) => {
                assert_eq!(get(&base, 1, &key(2)), Some(value(3, 100)));
                break;
            }
            (Err(_), Err(error)) => {
                assert!(matches!(error, crate::Error::Poisoned { .. }), "{error}");
                assert!(fixture.store.publish_manifest(|| (b"").to_vec()).is_err());
                poisoned += 1;
            }
            (Err(_), Ok(rebuild)) => {
                drop(rebuild);
                fixture.update(1, (0..3000).map(|i| (key(i), Some(value(i + 2, 90)))), 0);
                assert!((0..3000).all(|i| fixture.get(1, &key(i)) == Some(value(i + 2, 90))));
                fixture.verify_without_leaks();
                recovered += 1;
            }
        }
    }
    // The superblock's write and its sync poison; tree, space map and their sync do not.
    assert_eq!(poisoned, 2);
    assert!(recovered >= 2, "{recovered}");
}
