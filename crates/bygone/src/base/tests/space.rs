//! Which slots are used again, and when.

use super::*;

fn overwrite(fixture: &mut Fixture, round: u64, budget: usize, newest_retained: u64) {
    let mut updates = MapUpdates::new((0..20_000).map(|i| (key(i), Some(value(i + round, 100)))));
    loop {
        let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
        let progress = rebuild.apply(1, &mut updates, budget).unwrap();
        fixture.base = rebuild.finish(fixture.base.seq() + 1, newest_retained, || (b"").to_vec()).unwrap();
        if progress == Progress::Done {
            return;
        }
    }
}

#[test]
fn overwriting_in_chunks_does_not_grow_the_file() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let first = fixture.store.file_bytes();
    for round in 1..50 {
        overwrite(&mut fixture, round, 60, 0);
        let now = fixture.store.file_bytes();
        assert!(now * 10 <= first * 13, "{now} bytes after round {round}, {first} at first");
    }
    fixture.verify_without_leaks();
    assert_eq!(fixture.store.file_bytes(), fixture.disk.file(PATH).bytes.lock().unwrap().len() as u64);
}

#[test]
fn the_file_shrinks_with_its_content() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let full = fixture.store.file_bytes();
    fixture.update(1, (100..20_000).map(|i| (key(i), None)), 0);
    // The tail becomes free with the old version, and moves of the last pages let it go.
    for round in 0..3 {
        fixture.update(1, (0..100).map(|i| (key(i), Some(value(i + round, 100)))), 0);
    }
    let now = fixture.disk.file(PATH).bytes.lock().unwrap().len() as u64;
    assert!(now * 10 < full, "{now} of {full} bytes are left");
    let fixture = fixture.reopen();
    assert_eq!(fixture.store.file_bytes(), now);
    fixture.verify_without_leaks();
}

#[test]
fn held_versions_read_the_same_through_hundreds_of_rebuilds() {
    let mut fixture = Fixture::new();
    let mut random = Random(11);
    let mut model = Model::from([(1, BTreeMap::new())]);
    let mut held = Vec::new();
    for round in 0..400u64 {
        let updates: BTreeMap<_, _> = (0..30)
            .map(|_| (key(random.below(600)), (random.below(4) > 0).then(|| value(random.next(), 80))))
            .collect();
        let records = model.get_mut(&1).unwrap();
        for (key, value) in &updates {
            match value {
                Some(value) => drop(records.insert(key.clone(), value.clone())),
                None => drop(records.remove(key)),
            }
        }
        fixture.update(1, updates, 0);
        if round % 40 == 7 {
            held.push((fixture.base.clone(), model.clone()));
        }
        if round % 90 == 89 {
            held.remove(random.below(held.len() as u64) as usize);
        }
        if round % 20 == 0 {
            held.iter().for_each(|(base, model)| assert_equals(base, model, &mut random));
        }
    }
    assert!(held.len() > 3);
    held.iter().for_each(|(base, model)| assert_equals(base, model, &mut random));
    drop(held);
    assert_eq!(fixture.store.space_stats().pinned_bytes, 0);
    fixture.verify_without_leaks();
}

#[test]
fn a_long_reader_keeps_only_what_it_can_see() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let first = fixture.store.file_bytes();
    let held = fixture.base.clone();
    for round in 1..30 {
        overwrite(&mut fixture, round, usize::MAX, 0);
    }
    // What it sees, the present, and the one that was superseded last.
    assert!(fixture.store.file_bytes() < 4 * first);
    assert!(fixture.store.space_stats().pinned_bytes > 0);
    assert_eq!(get(&held, 1, &key(3)), Some(value(3, 100)));
    drop(held);
    assert_eq!(fixture.store.space_stats().pinned_bytes, 0);
}

#[test]
fn a_retained_base_never_loses_a_page() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let retained = fixture.base.root();
    for round in 1..10 {
        overwrite(&mut fixture, round, 100, retained.generation);
        fixture = fixture.reopen();
        fixture.store.verify(&retained).unwrap();
    }
    let past = fixture.store.open_base(&retained).unwrap();
    assert!((0..20_000).step_by(53).all(|i| get(&past, 1, &key(i)) == Some(value(i, 100))));
    fixture.verify();
}

#[test]
fn two_retained_bases_are_both_kept() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let first = fixture.base.root();
    overwrite(&mut fixture, 1, usize::MAX, first.generation);
    let second = fixture.base.root();
    overwrite(&mut fixture, 2, usize::MAX, second.generation);
    overwrite(&mut fixture, 3, usize::MAX, second.generation);
    let fixture = fixture.reopen();
    for (root, round) in [(first, 0), (second, 1), (fixture.base.root(), 3)] {
        fixture.store.verify(&root).unwrap();
        let base = fixture.store.open_base(&root).unwrap();
        assert_eq!(get(&base, 1, &key(77)), Some(value(77 + round, 100)));
    }
}

#[test]
fn a_generation_that_was_not_kept_cannot_be_retained_or_opened() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let first = fixture.base.root();
    overwrite(&mut fixture, 1, usize::MAX, 0);
    assert!(fixture.store.open_base(&first).is_err());
    let rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    assert!(rebuild.finish(9, first.generation, || (b"").to_vec()).is_err());
    overwrite(&mut fixture, 2, usize::MAX, 0);
}

#[test]
fn a_dropped_rebuild_gives_everything_back() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let before = fixture.store.space_stats();
    let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    let mut updates = MapUpdates::new((0..20_000).map(|i| (key(i), Some(value(i + 9, 100)))));
    rebuild.apply(1, &mut updates, usize::MAX).unwrap();
    drop(rebuild);
    let after = fixture.store.space_stats();
    assert_eq!(before.used_bytes, after.used_bytes);
    assert_eq!(after.file_bytes - after.free_bytes, before.file_bytes - before.free_bytes);
    // The next rebuild has the same generation and the same slots, but other content.
    overwrite(&mut fixture, 5, usize::MAX, 0);
    assert!((0..20_000).all(|i| fixture.get(1, &key(i)) == Some(value(i + 5, 100))));
    fixture.verify_without_leaks();
}

#[test]
fn a_manifest_can_be_published_during_a_rebuild() {
    let mut fixture = Fixture::new();
    overwrite(&mut fixture, 0, usize::MAX, 0);
    let number = fixture.store.superblock_number();
    let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    rebuild.apply(1, &mut MapUpdates::new([(key(1), None)]), usize::MAX).unwrap();
    fixture.store.publish_manifest(|| (b"during").to_vec()).unwrap();
    assert_eq!(fixture.store.superblock_number(), number + 1);
    let other = Fixture::open(&MemoryDisk::with(PATH, fixture.disk.file(PATH).bytes.lock().unwrap().clone()));
    assert_eq!(other.unwrap().store.publish().superblock.manifest, b"during");
    fixture.base = rebuild.finish(2, 0, || (b"after").to_vec()).unwrap();
    let fixture = fixture.reopen();
    assert_eq!(fixture.store.publish().superblock.manifest, b"after");
    assert_eq!(fixture.get(1, &key(1)), None);
    fixture.verify_without_leaks();
}

#[test]
fn a_manifest_that_does_not_fit_is_refused() {
    let mut fixture = Fixture::new();
    fixture.store.publish_manifest(|| [1; MANIFEST_BYTES_MAX].to_vec()).unwrap();
    assert!(fixture.store.publish_manifest(|| [1; MANIFEST_BYTES_MAX + 1].to_vec()).is_err());
    let rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    assert!(rebuild.finish(1, 0, || [1; MANIFEST_BYTES_MAX + 1].to_vec()).is_err());
    fixture = fixture.reopen();
    assert_eq!(fixture.store.publish().superblock.manifest, [1; MANIFEST_BYTES_MAX]);
}

#[test]
fn a_file_of_several_chunks_keeps_its_map() {
    // More than 32,512 pages, most of one large value.
    let mut fixture = Fixture::new();
    fixture.update(1, [(key(1), Some(vec![1; 150 << 20])), (key(2), Some(vec![2; 9]))], 0);
    fixture.verify_without_leaks();
    fixture = fixture.reopen();
    fixture.update(1, [(key(2), Some(vec![3; 9]))], 0);
    fixture.verify_without_leaks();
    fixture.update(1, [(key(1), None)], 0);
    fixture.update(1, [(key(3), None)], 0);
    fixture.update(1, [(key(2), Some(vec![4; 9]))], 0);
    fixture.update(1, [(key(2), Some(vec![5; 9]))], 0);
    fixture.verify_without_leaks();
    assert!(fixture.store.file_bytes() < 1 << 20, "{} bytes", fixture.store.file_bytes());
    assert_eq!(fixture.reopen().get(1, &key(2)), Some(vec![5; 9]));
}
