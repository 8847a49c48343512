//! What is read with a page that was missed: reads that are saved, and what must not be read, or served.

use super::*;
use crate::Error;
use std::sync::atomic::Ordering;

const TABLE: u32 = 1;

/// A file, opened just now, with records whose values take `pages` pages each.
fn large_values(count: u64, pages: usize) -> Fixture {
    let mut fixture = Fixture::new();
    let len = if pages == 1 { 4000 } else { 4064 * pages };
    fixture.update(TABLE, (0..count).map(|i| (key(i), Some(value(i, len)))), 0);
    fixture.reopen()
}

/// How many reads, and of how many pages, `work` makes.
fn reads(fixture: &Fixture, work: impl FnOnce()) -> (i64, i64) {
    let file = fixture.disk.file(PATH);
    let now = || (file.reads.load(Ordering::Relaxed), file.read_bytes.load(Ordering::Relaxed));
    let before = now();
    work();
    (now().0 - before.0, (now().1 - before.1) / 4096)
}

fn pages_of(fixture: &Fixture) -> i64 {
    fixture.base.table(TABLE).unwrap().pages as i64
}

#[test]
fn records_that_are_read_one_after_the_other_are_read_many_at_once() {
    let count = 2000;
    let walks: [fn(&Fixture, u64); 3] = [
        |fixture, count| {
            (0..count).for_each(|i| assert!(fixture.get(TABLE, &key(i)) == Some(value(i, 4000)), "{i}"));
        },
        |fixture, count| {
            let found = contents(&fixture.base, TABLE).unwrap();
            assert!(
                found.len() as u64 == count && found.values().zip(0..).all(|(v, i)| *v == value(i, 4000))
            );
        },
        |fixture, count| {
            let mut cursor = fixture.base.cursor(TABLE);
            cursor.seek(b"").unwrap();
            for i in 0..count {
                assert!(cursor.value().unwrap() == Some(&*value(i, 4000)), "{i}");
                cursor.next().unwrap();
            }
        },
    ];
    for (number, walk) in walks.into_iter().enumerate() {
        let fixture = large_values(count, 1);
        let (reads, pages) = reads(&fixture, || walk(&fixture, count));
        assert!(reads < count as i64 / 8, "walk {number}: {reads} reads");
        assert_eq!(pages, pages_of(&fixture), "walk {number} reads each page once");
    }
}

#[test]
fn leaves_are_read_many_at_once_where_they_follow_each_other() {
    let mut fixture = Fixture::new();
    fixture.update(TABLE, (0..40_000).map(|i| (key(i), Some(value(i, 100)))), 0);
    let fixture = fixture.reopen();
    let (reads, pages) =
        reads(&fixture, || assert_eq!(contents(&fixture.base, TABLE).unwrap().len(), 40_000));
    assert_eq!(pages, pages_of(&fixture));
    assert!(reads < pages / 8, "{reads} reads of {pages} pages");
}

#[test]
fn reads_here_and_there_read_nothing_else() {
    let fixture = large_values(3000, 1);
    // Never four in a row.
    let mut wanted: Vec<u64> = (0..3000).filter(|i| i % 4 != 3).collect();
    let mut random = Random(7);
    for i in (1..wanted.len()).rev() {
        wanted.swap(i, random.below(i as u64 + 1) as usize);
    }
    let root = *fixture.base.table(TABLE).unwrap();
    let (_, pages) = reads(&fixture, || {
        wanted.iter().for_each(|i| assert!(fixture.get(TABLE, &key(*i)) == Some(value(*i, 4000)), "{i}"));
    });
    assert_eq!(pages as u64, wanted.len() as u64 + root.pages - root.overflow_pages);
}

#[test]
fn looking_up_small_records_reads_their_leaves_alone() {
    let mut fixture = Fixture::new();
    fixture.update(TABLE, (0..40_000).map(|i| (key(i), Some(value(i, 100)))), 0);
    let fixture = fixture.reopen();
    // In order, so that all leaves before are cached.
    let (reads, pages) = reads(&fixture, || {
        (0..40_000).step_by(10).for_each(|i| assert_eq!(fixture.get(TABLE, &key(i)), Some(value(i, 100))));
    });
    assert_eq!((reads, pages), (pages_of(&fixture), pages_of(&fixture)));
}

#[test]
fn the_leaves_of_large_values_take_few_reads() {
    let fixture = large_values(12_000, 1);
    let root = *fixture.base.table(TABLE).unwrap();
    let others = (root.pages - root.overflow_pages) as i64;
    assert!(others > 100, "{root:?}");
    let mut wanted: Vec<u64> = (0..12_000).step_by(50).collect();
    wanted.reverse();
    let (reads, pages) = reads(&fixture, || {
        wanted.iter().for_each(|i| assert!(fixture.get(TABLE, &key(*i)) == Some(value(*i, 4000)), "{i}"));
    });
    assert_eq!(pages, wanted.len() as i64 + others, "each page once");
    assert!(reads < wanted.len() as i64 + others / 10, "{reads} reads, {others} leaves");
}

#[test]
fn the_pages_of_one_value_are_read_at_once() {
    let fixture = large_values(200, 7);
    let (reads, pages) = reads(&fixture, || {
        (0..200).step_by(20).for_each(|i| assert!(fixture.get(TABLE, &key(i)) == Some(value(i, 7 * 4064))));
    });
    let root = *fixture.base.table(TABLE).unwrap();
    let others = (root.pages - root.overflow_pages) as i64;
    assert!(reads <= 10 + others && pages <= 70 + others, "{reads} reads of {pages} pages, {others} others");
}

#[test]
fn counting_leaves_reads_none() {
    let fixture = large_values(12_000, 1);
    let keys: Vec<Vec<u8>> = (0..12_000).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let mut leaves = 0;
    let (_, pages) = reads(&fixture, || {
        leaves = fixture.base.reached_leaves(TABLE, &keys, u64::MAX).unwrap() as i64;
    });
    let root = *fixture.base.table(TABLE).unwrap();
    assert_eq!(leaves + pages, (root.pages - root.overflow_pages) as i64);
    assert!(leaves > 100 && (1..10).contains(&pages), "{leaves} leaves, {pages} pages read");
}

/// Where the value of a record lies in the file.
fn find(bytes: &[u8], value: &[u8]) -> usize {
    let pages = bytes.as_chunks::<4096>().0;
    pages.iter().position(|page| page[32..32 + value.len()] == *value).unwrap()
}

#[test]
fn damage_is_an_error_for_who_asks_for_it_alone() {
    let fixture = large_values(1000, 1);
    let disk = fixture.disk.clone();
    let damaged = [20, 21, 300, 999];
    drop(fixture);
    let file = disk.file(PATH);
    let mut pages = Vec::new();
    for i in damaged {
        let mut bytes = file.bytes.lock().unwrap();
        let page = find(&bytes, &value(i, 4000));
        bytes[page * 4096 + 1000] ^= 4;
        pages.push(page as u64 * 4096);
    }
    let fixture = Fixture::open(&disk).unwrap();
    for _ in 0..2 {
        for i in 0..1000 {
            let mut found = None;
            let read = fixture.base.get(TABLE, &key(i), &mut |value| found = Some(value.to_vec()));
            match damaged.iter().position(|damaged| *damaged == i) {
                None => assert!(read.is_ok() && found == Some(value(i, 4000)), "{i}: {read:?}"),
                Some(at) => match read {
                    Err(Error::Corruption { offset, .. }) => assert_eq!(offset, pages[at], "{i}"),
                    read => panic!("{i}: {read:?}"),
                },
            }
        }
    }
}

#[test]
fn a_damaged_leaf_is_an_error_for_its_records_alone() {
    let fixture = large_values(3000, 1);
    let disk = fixture.disk.clone();
    drop(fixture);
    let file = disk.file(PATH);
    let page = {
        let mut bytes = file.bytes.lock().unwrap();
        let page = bytes.as_chunks::<4096>().0.iter().rposition(|page| page[0] == 1).unwrap();
        // The last leaf is the catalogue's; this is one of the table's.
        let page = bytes.as_chunks::<4096>().0[..page].iter().rposition(|page| page[0] == 1).unwrap();
        bytes[page * 4096 + 2000] ^= 1;
        page
    };
    let fixture = Fixture::open(&disk).unwrap();
    let mut failed = Vec::new();
    for i in 0..3000 {
        let mut found = None;
        match fixture.base.get(TABLE, &key(i), &mut |value| found = Some(value.to_vec())) {
            Ok(_) => assert!(found == Some(value(i, 4000)), "{i}"),
            Err(Error::Corruption { offset, .. }) if offset == page as u64 * 4096 => failed.push(i),
            Err(error) => panic!("{i}: {error}"),
        }
    }
    assert!((20..300).contains(&failed.len()), "{} records in a leaf", failed.len());
    assert!(failed.windows(2).all(|pair| pair[1] == pair[0] + 1));
}

/// A slot that has another page by now than the one that a pointer means: as if it had been archived.
#[test]
fn what_lies_in_the_slot_of_another_page_is_not_taken_for_it() {
    let fixture = large_values(600, 1);
    let disk = fixture.disk.clone();
    drop(fixture);
    let file = disk.file(PATH);
    {
        let mut bytes = file.bytes.lock().unwrap();
        let (first, second) = (find(&bytes, &value(100, 4000)), find(&bytes, &value(101, 4000)));
        let page = bytes[first * 4096..][..4096].to_vec();
        bytes[second * 4096..][..4096].copy_from_slice(&page);
    }
    let fixture = Fixture::open(&disk).unwrap();
    for i in 0..600 {
        let mut found = None;
        let read = fixture.base.get(TABLE, &key(i), &mut |value| found = Some(value.to_vec()));
        if i == 101 {
            assert!(matches!(read, Err(Error::Corruption { .. })), "{read:?}");
        } else {
            assert!(read.is_ok() && found == Some(value(i, 4000)), "{i}: {read:?}");
        }
    }
}

#[test]
fn old_and_new_states_are_read_in_turn_though_they_share_leaves_and_slots() {
    let mut fixture = large_values(800, 1);
    let mut random = Random(3);
    let mut model: Vec<u64> = (0..800).collect();
    let mut held: Vec<(Arc<BaseVersion>, Vec<u64>)> = Vec::new();
    for round in 1..12 {
        let changed: BTreeMap<u64, u64> = (0..60).map(|_| (random.below(800), round)).collect();
        changed.iter().for_each(|(i, round)| model[*i as usize] = i + round * 10_000);
        fixture.update(TABLE, changed.keys().map(|i| (key(*i), Some(value(model[*i as usize], 4000)))), 0);
        held.push((fixture.base.clone(), model.clone()));
        if held.len() > 4 {
            held.remove(random.below(4) as usize);
        }
        // From the disk, each in order, all in turn.
        fixture.store.forget(&(4..fixture.store.file_bytes() / 4096).collect::<Vec<u64>>());
        for i in 0..800 {
            for (base, model) in &held {
                assert!(get(base, TABLE, &key(i)) == Some(value(model[i as usize], 4000)), "{round}, {i}");
            }
        }
    }
}

#[test]
fn a_tree_whose_leaves_waited_is_whole() {
    let mut random = Random(11);
    let mut fixture = Fixture::new();
    let mut model = Model::new();
    let records = model.entry(TABLE).or_default();
    for round in 0..30 {
        let mut updates = BTreeMap::new();
        let (count, from) = (1 + random.below(if round % 5 == 0 { 3000 } else { 40 }), random.below(5000));
        for n in 0..count {
            let i = if round % 2 == 0 { from + n } else { random.below(8000) };
            let len = [10, 300, 1900, 2001, 4000, 9000][random.below(6) as usize];
            let update = (random.below(5) > 0).then(|| value(i + round, len));
            match &update {
                Some(value) => records.insert(key(i), value.clone()),
                None => records.remove(&key(i)),
            };
            updates.insert(key(i), update);
        }
        fixture.update(TABLE, updates, 0);
        fixture.verify_without_leaks();
        assert!(contents(&fixture.base, TABLE).unwrap() == *records, "round {round}");
    }
    let fixture = fixture.reopen();
    assert_equals(&fixture.base, &model, &mut random);
}
