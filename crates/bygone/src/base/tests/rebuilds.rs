//! What a rebuild makes of a tree.

use super::*;

/// Keys of many shapes, often with long shared prefixes.
pub(super) fn random_key(random: &mut Random) -> Vec<u8> {
    let i = random.below(4000);
    match random.below(8) {
        0 => Vec::new(),
        1 => key(i),
        2 => (i as u32).to_be_bytes().to_vec(),
        3 => [vec![b'p'; 1000], key(i)].concat(),
        4 => vec![b'z'; (i % 1025) as usize],
        5 => [b"user:".as_slice(), &i.to_string().into_bytes()].concat(),
        6 => [vec![0; (i % 9) as usize], vec![1]].concat(),
        _ => random.next().to_be_bytes()[..1 + random.below(8) as usize].to_vec(),
    }
}

fn random_value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(40) {
        0 => 2001 + random.below(3000),
        1 => 4064,
        2 => random.below(60_000),
        3..=6 => random.below(2001),
        7 => 0,
        _ => random.below(120),
    };
    value(random.next(), len as usize)
}

/// Applies random updates to the model; gives them sorted.
pub(super) fn random_updates(
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    count: u64,
    random: &mut Random,
) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let deletions = random.below(11);
    let mut updates = BTreeMap::new();
    for _ in 0..count {
        let key = random_key(random);
        updates.insert(key, (random.below(10) >= deletions).then(|| random_value(random)));
    }
    if random.below(6) == 0 {
        // A whole range goes.
        let (from, to) = (random_key(random), random_key(random));
        for (key, _) in model.range(from.clone().min(to.clone())..from.max(to)) {
            updates.insert(key.clone(), None);
        }
    }
    for (key, value) in &updates {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
    updates
}

fn rebuilds_equal_the_model(seed: u64, rounds: u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut fixture = Fixture::new();
    let mut model = Model::new();
    let mut held: Vec<(Arc<BaseVersion>, Model)> = Vec::new();
    for round in 0..rounds {
        let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
        let mut next = model.clone();
        for _ in 0..1 + random.below(3) {
            let table = random.below(4) as u32 * 1000;
            let records = next.entry(table).or_default();
            if random.below(12) == 0 {
                rebuild.drop_table(table).unwrap();
                records.clear();
                continue;
            }
            let count = 1 << random.below(10);
            let mut updates = MapUpdates::new(random_updates(records, count, &mut random));
            let budget = if random.below(2) == 0 { usize::MAX } else { random.below(20) as usize };
            while rebuild.apply(table, &mut updates, budget).unwrap() == Progress::BudgetReached {}
        }
        if random.below(8) == 0 {
            drop(rebuild);
            assert_equals(&fixture.base, &model, &mut random);
            continue;
        }
        model = next;
        fixture.base = rebuild.finish(round + 1, 0, || round.to_le_bytes().to_vec()).unwrap();
        assert_equals(&fixture.base, &model, &mut random);
        fixture.verify_without_leaks();
        if held.is_empty() && random.below(4) == 0 {
            held.push((fixture.base.clone(), model.clone()));
        }
        if random.below(10) == 0 {
            held.clear();
        }
        for (base, model) in &held {
            assert_equals(base, model, &mut random);
        }
        if held.is_empty() {
            fixture = fixture.reopen();
            assert_eq!(fixture.base.seq(), round + 1);
            assert_equals(&fixture.base, &model, &mut random);
            fixture.verify_without_leaks();
        }
    }
}

#[test]
fn random_rebuilds_equal_the_model() {
    for seed in 0..12 {
        rebuilds_equal_the_model(seed, 30);
    }
}

#[test]
#[ignore = "minutes"]
fn random_rebuilds_equal_the_model_for_long() {
    for seed in 1000..1400 {
        rebuilds_equal_the_model(seed, 60);
    }
}

#[test]
fn an_empty_base_has_nothing() {
    let fixture = Fixture::new().reopen();
    assert_eq!(fixture.get(1, b""), None);
    assert!(fixture.base.tables().is_empty());
    let mut cursor = fixture.base.cursor(1);
    cursor.seek(b"").unwrap();
    assert_eq!(cursor.key(), None);
    fixture.verify_without_leaks();
}

#[test]
fn deleting_everything_leaves_an_empty_base() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..5000).map(|i| (key(i), Some(value(i, 50)))), 0);
    fixture.update(1, (0..5000).map(|i| (key(i), None)), 0);
    assert!(fixture.base.tables().is_empty());
    assert_eq!(fixture.base.root().catalogue, None);
    fixture.update(2, [(key(1), Some(Vec::new()))], 0);
    assert_eq!(fixture.get(2, &key(1)), Some(Vec::new()));
    fixture.verify_without_leaks();
}

#[test]
fn deleting_what_is_absent_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.update(1, [(key(1), None), (key(2), Some(b"x".to_vec())), (key(3), None)], 0);
    assert_eq!(fixture.base.tables()[0].1.records, 1);
    fixture.update(9, [(key(1), None)], 0);
    assert_eq!(fixture.base.tables().len(), 1);
}

#[test]
fn the_root_shrinks_with_the_table() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..100_000).map(|i| (key(i), Some(value(i, 20)))), 0);
    assert_eq!(fixture.base.tables()[0].1.level, 2);
    fixture.update(1, (1..99_999).map(|i| (key(i), None)), 0);
    assert_eq!(fixture.base.tables()[0].1.level, 0);
    assert_eq!(contents(&fixture.base, 1).unwrap().len(), 2);
    fixture.verify_without_leaks();
}

#[test]
fn a_bulk_load_fills_its_pages() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..50_000).map(|i| (key(i), Some(value(i, 100)))), 0);
    let table = fixture.base.tables()[0].1;
    // 100 bytes of value, at most 12 of key behind the prefix, 8 of overhead.
    let records_per_page = table.records / table.pages;
    assert!(records_per_page >= 33, "{records_per_page} records per page");
}

#[test]
fn one_changed_record_rewrites_one_path() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..100_000).map(|i| (key(i), Some(value(i, 50)))), 0);
    let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    rebuild.apply(1, &mut MapUpdates::new([(key(50_000), Some(value(7, 50)))]), usize::MAX).unwrap();
    assert_eq!(rebuild.written_pages(), u64::from(fixture.base.tables()[0].1.level) + 1);
    fixture.base = rebuild.finish(2, 0, || (b"").to_vec()).unwrap();
    assert_eq!(fixture.get(1, &key(50_000)), Some(value(7, 50)));
    fixture.verify_without_leaks();
}

#[test]
fn an_underfull_leaf_takes_in_its_neighbour() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..20_000).map(|i| (key(i), Some(value(i, 50)))), 0);
    let before = fixture.base.tables()[0].1.pages;
    // Nine records of ten go, leaf by leaf in rebuilds of their own.
    for start in (0..20_000).step_by(100) {
        fixture.update(1, (start..start + 100).filter(|i| i % 10 > 0).map(|i| (key(i), None)), 0);
    }
    let after = fixture.base.tables()[0].1.pages;
    assert!(after * 3 < before, "{after} of {before} pages are left for a tenth of the records");
    fixture.verify_without_leaks();
}

#[test]
fn a_budget_stops_at_a_key_and_the_tree_is_whole() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..20_000).map(|i| (key(i * 2), Some(value(i, 50)))), 0);
    let mut updates = MapUpdates::new((0..40_000).map(|i| (key(i), (i % 3 > 0).then(|| value(i, 60)))));
    let mut passes = 0;
    loop {
        let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
        let progress = rebuild.apply(1, &mut updates, 50).unwrap();
        assert!(rebuild.written_pages() < 65);
        fixture.base = rebuild.finish(passes, 0, || (b"").to_vec()).unwrap();
        fixture.verify_without_leaks();
        for i in (0..40_000).step_by(97) {
            let applied = updates.updates[..updates.next].last().is_some_and(|(last, _)| key(i) <= *last);
            let expected = match (applied, i % 2) {
                (true, _) => (i % 3 > 0).then(|| value(i, 60)),
                (false, 0) => Some(value(i / 2, 50)),
                (false, _) => None,
            };
            assert_eq!(fixture.get(1, &key(i)), expected);
        }
        passes += 1;
        if progress == Progress::Done {
            break;
        }
    }
    assert!(passes > 5);
}

#[test]
fn updates_out_of_order_are_refused() {
    for keys in [[key(2), key(1)], [key(1), key(1)], [Vec::new(), Vec::new()]] {
        let fixture = Fixture::new();
        let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
        let mut updates = MapUpdates::new(keys.map(|key| (key, Some(Vec::new()))));
        assert!(rebuild.apply(1, &mut updates, usize::MAX).is_err());
        assert!(rebuild.finish(1, 0, || (b"").to_vec()).is_err());
        assert!(fixture.store.rebuild(&fixture.base).is_ok());
    }
}

#[test]
fn there_is_one_rebuild_at_a_time_and_only_of_the_published_base() {
    let mut fixture = Fixture::new();
    let old = fixture.base.clone();
    let rebuild = fixture.store.rebuild(&old).unwrap();
    assert!(fixture.store.rebuild(&old).is_err());
    drop(rebuild);
    fixture.update(1, [(key(1), Some(Vec::new()))], 0);
    assert!(fixture.store.rebuild(&old).is_err());
    assert!(fixture.store.rebuild(&fixture.base).is_ok());
}

#[test]
fn many_tables_fit_the_catalogue() {
    let mut fixture = Fixture::new();
    let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    for table in (0..3000).rev() {
        rebuild.apply(table, &mut MapUpdates::new([(key(1), Some(key(table.into())))]), usize::MAX).unwrap();
    }
    fixture.base = rebuild.finish(1, 0, || (b"").to_vec()).unwrap();
    let fixture = fixture.reopen();
    assert_eq!(fixture.base.tables().len(), 3000);
    assert!((0..3000).all(|table| fixture.get(table, &key(1)) == Some(key(table.into()))));
    fixture.verify_without_leaks();
}

#[test]
fn ranges_keep_to_their_bounds() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..3000).map(|i| (key(i * 2), Some(Vec::new()))), 0);
    let model: Vec<Vec<u8>> = (0..3000).map(|i| key(i * 2)).collect();
    let mut random = Random(5);
    for _ in 0..300 {
        let (a, b) = (key(random.below(6100)), key(random.below(6100)));
        let bounds = |key| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
        let lower = bounds(a.as_slice())[random.below(3) as usize];
        let upper = bounds(b.as_slice())[random.below(3) as usize];
        let mut found = Vec::new();
        let visit = &mut |key: &[u8], _: &[u8]| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        };
        fixture.base.for_each(1, lower, upper, visit).unwrap();
        let after_lower = |key: &Vec<u8>| match lower {
            Bound::Included(bound) => key.as_slice() >= bound,
            Bound::Excluded(bound) => key.as_slice() > bound,
            Bound::Unbounded => true,
        };
        let before_upper = |key: &Vec<u8>| match upper {
            Bound::Included(bound) => key.as_slice() <= bound,
            Bound::Excluded(bound) => key.as_slice() < bound,
            Bound::Unbounded => true,
        };
        let expected: Vec<_> =
            model.iter().filter(|key| after_lower(key) && before_upper(key)).cloned().collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn the_leaves_that_keys_lie_in_are_counted() {
    let mut fixture = Fixture::new();
    const RECORDS: u64 = 20_000;
    fixture.update(16, (0..RECORDS).map(|i| (key(2 * i), Some(value(i, 100)))), 0);
    let base = &fixture.base;
    let reached = |table: u32, keys: &[u64], limit: u64| {
        let keys: Vec<Vec<u8>> = keys.iter().map(|i| key(*i)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        base.reached_leaves(table, &keys, limit).unwrap()
    };
    let leaves_of = |keys: &[u64]| {
        let slots: std::collections::BTreeSet<u64> = keys
            .iter()
            .map(|i| {
                let towards = crate::base::path::Towards::Key;
                let mut path = crate::base::path::Path::default();
                path.descend(base.store(), base.table(16).unwrap(), towards(&key(*i))).unwrap().slot
            })
            .collect();
        slots.len() as u64
    };
    let mut random = Random(5);
    let mut scattered: Vec<u64> = (0..3_000).map(|_| random.below(2 * RECORDS)).collect();
    scattered.sort_unstable();
    scattered.dedup();
    let steps = [1, 2, 3, 10, 300, 4001].map(|step| (0..2 * RECORDS).step_by(step).collect());
    for keys in steps.into_iter().chain([scattered, vec![], vec![7]]) {
        let exact = leaves_of(&keys);
        assert_eq!(reached(16, &keys, u64::MAX), exact);
        assert_eq!(reached(16, &keys, 5), exact.min(6));
        assert_eq!(reached(17, &keys, 5), 0);
    }
    let behind: Vec<u64> = (3 * RECORDS..4 * RECORDS).collect();
    assert_eq!(reached(16, &behind, u64::MAX), 1);
}
