//! What two trees are found to differ in, and what is read to find it.

use std::sync::atomic::Ordering;

use super::rebuilds::{random_key, random_updates};
use super::*;
use crate::layer::Direction;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;
type Difference = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn walk(mut diff: BaseDiff) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    assert_eq!(diff.key(), None);
    while diff.advance()? {
        let key = diff.key().unwrap().to_vec();
        found.push((key, diff.before()?.map(Vec::from), diff.after()?.map(Vec::from)));
    }
    assert!(diff.key().is_none() && !diff.advance()?, "the end is the end");
    Ok(found)
}

fn expected(before: &Records, after: &Records, inside: impl Fn(&[u8]) -> bool) -> Vec<Difference> {
    let keys: std::collections::BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    keys.into_iter()
        .filter(|key| inside(key) && before.get(*key) != after.get(*key))
        .map(|key| (key.clone(), before.get(key).cloned(), after.get(key).cloned()))
        .collect()
}

/// The same records on other pages may be named as well.
fn without_equal(mut found: Vec<Difference>) -> Vec<Difference> {
    found.retain(|(_, before, after)| before != after);
    found
}

fn check(before: (&Arc<BaseVersion>, &Records), after: (&Arc<BaseVersion>, &Records), random: &mut Random) {
    let diff = |direction, start: Bound<&[u8]>| {
        let diff = BaseDiff::new((before.0, Some(1)), (after.0, Some(1)), direction, start);
        without_equal(walk(diff).unwrap())
    };
    let key = random_key(random);
    assert_eq!(
        diff(Direction::Forward, Bound::Unbounded),
        expected(before.1, after.1, |_| true),
        "all of it"
    );
    type Case<'a> = (Direction, Bound<&'a [u8]>, &'a dyn Fn(&[u8]) -> bool);
    let cases: [Case<'_>; 5] = [
        (Direction::Backward, Bound::Unbounded, &|_| true),
        (Direction::Forward, Bound::Included(&key), &|other| other >= &key[..]),
        (Direction::Forward, Bound::Excluded(&key), &|other| other > &key[..]),
        (Direction::Backward, Bound::Included(&key), &|other| other <= &key[..]),
        (Direction::Backward, Bound::Excluded(&key), &|other| other < &key[..]),
    ];
    for (direction, start, inside) in cases {
        let mut expected = expected(before.1, after.1, inside);
        if direction == Direction::Backward {
            expected.reverse();
        }
        assert_eq!(diff(direction, start), expected, "{direction:?} from {start:?}");
    }
}

#[test]
fn random_trees_differ_as_maps_do() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut fixture = Fixture::new();
        let mut model = Records::new();
        let mut states = vec![(fixture.base.clone(), model.clone())];
        for _ in 0..6 {
            let count = [1, 10, 400, 3000][random.below(4) as usize];
            let updates = random_updates(&mut model, count, &mut random);
            fixture.update(1, updates, 0);
            states.push((fixture.base.clone(), model.clone()));
        }
        for _ in 0..8 {
            let (a, b) = (random.below(7) as usize, random.below(7) as usize);
            println!("seed {seed}, states {a} and {b}");
            let ((base_a, model_a), (base_b, model_b)) = (&states[a], &states[b]);
            check((base_a, model_a), (base_b, model_b), &mut random);
        }
    }
}

#[test]
fn a_table_that_is_not_there_is_empty() {
    let mut fixture = Fixture::new();
    let records = Records::from([(key(1), value(1, 10)), (key(2), value(2, 5000))]);
    fixture.update(1, records.iter().map(|(key, value)| (key.clone(), Some(value.clone()))), 0);
    let base = &fixture.base;
    for none in [None, Some(2)] {
        let diff = |before, after| {
            walk(BaseDiff::new((base, before), (base, after), Direction::Forward, Bound::Unbounded)).unwrap()
        };
        assert_eq!(diff(none, Some(1)), expected(&Records::new(), &records, |_| true));
        assert_eq!(diff(Some(1), none), expected(&records, &Records::new(), |_| true));
        assert_eq!(diff(none, none), []);
    }
}

/// A table of 200,000 records in some 6,000 pages.
fn large() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..200_000).map(|i| (key(i), Some(value(i, 90)))), 0);
    fixture
}

/// The pages read to compare two bases, with nothing cached.
fn pages_read(fixture: Fixture, before: BaseRoot, direction: Direction) -> (i64, usize) {
    let fixture = fixture.reopen();
    let before = fixture.store.open_base(&before).unwrap();
    let file = fixture.disk.file(PATH);
    let start = file.reads.load(Ordering::Relaxed);
    let diff = BaseDiff::new((&before, Some(1)), (&fixture.base, Some(1)), direction, Bound::Unbounded);
    let found = walk(diff).unwrap().len();
    (file.reads.load(Ordering::Relaxed) - start, found)
}

#[test]
fn equal_trees_are_not_read_at_all() {
    let fixture = large();
    let root = fixture.base.root();
    assert_eq!(pages_read(fixture, root, Direction::Forward), (0, 0));
}

#[test]
fn what_is_read_is_in_proportion_to_what_differs() {
    for direction in [Direction::Forward, Direction::Backward] {
        for changes in [1, 10, 100] {
            let mut fixture = large();
            let before = fixture.base.root();
            let distance = 200_000 / changes;
            let updates = (0..changes).map(|i| (key(i * distance + 7), Some(value(i, 91))));
            let kept = fixture.base.generation();
            fixture.update(1, updates, kept);
            let (pages, found) = pages_read(fixture, before, direction);
            assert_eq!(found as u64, changes);
            // Each change: a leaf and at most two pages above, in each tree.
            assert!(pages <= 6 * changes as i64, "{pages} pages read for {changes} changes, {direction:?}");
        }
    }
}

#[test]
fn inserting_and_deleting_at_one_place_reads_only_there() {
    let mut fixture = large();
    let before = fixture.base.root();
    let kept = fixture.base.generation();
    let inserted = (0..200).map(|i| ([key(50_000), key(i)].concat(), Some(value(i, 90))));
    let deleted = (50_001..50_300).map(|i| (key(i), None));
    fixture.update(1, inserted.chain(deleted), kept);
    let (pages, found) = pages_read(fixture, before, Direction::Forward);
    assert_eq!(found, 499);
    assert!(pages < 50, "{pages} pages read");
}

#[test]
fn large_values_that_both_trees_share_are_not_read() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..50).map(|i| (key(i), Some(value(i, 100_000)))), 0);
    let (before, kept) = (fixture.base.root(), fixture.base.generation());
    fixture.update(1, [(key(7), Some(value(7, 50)))], kept);
    let (pages, found) = pages_read(fixture, before, Direction::Forward);
    assert_eq!(found, 1);
    // The value that is gone has 25 pages, read some at a time.
    assert!(pages < 40, "{pages} pages read");
}

#[test]
fn damage_on_the_way_is_an_error() {
    let mut random = Random(5);
    let mut fixture = large();
    let (before, kept) = (fixture.base.root(), fixture.base.generation());
    fixture.update(1, (0..2000).map(|i| (key(i * 100), Some(value(i, 70)))), kept);
    let disk = fixture.disk.clone();
    drop(fixture);
    let file = disk.file(PATH);
    let whole = file.bytes.lock().unwrap().clone();
    let intact = {
        let fixture = Fixture::open(&disk).unwrap();
        let before = fixture.store.open_base(&before).unwrap();
        walk(BaseDiff::new(
            (&before, Some(1)),
            (&fixture.base, Some(1)),
            Direction::Forward,
            Bound::Unbounded,
        ))
        .unwrap()
    };
    let mut noticed = 0;
    for _ in 0..60 {
        let at = 4 * 4096 + random.below(whole.len() as u64 - 4 * 4096) as usize;
        file.bytes.lock().unwrap()[at] ^= 1 << random.below(8);
        let compared = Fixture::open(&disk).and_then(|fixture| {
            let before = fixture.store.open_base(&before)?;
            walk(BaseDiff::new(
                (&before, Some(1)),
                (&fixture.base, Some(1)),
                Direction::Forward,
                Bound::Unbounded,
            ))
        });
        match compared {
            Ok(found) => assert_eq!(found, intact, "flipped at {at}"),
            Err(crate::Error::Corruption { .. }) => noticed += 1,
            Err(other) => panic!("{other}"),
        }
        *file.bytes.lock().unwrap() = whole.clone();
    }
    assert!(noticed > 10, "{noticed} of 60 were noticed");
}
