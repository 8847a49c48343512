//! Tests of the memtable, one promise each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::layer::{Key, LayerCursor, Versions};
use crate::random::Random;

const SEED: u64 = 7;

pub(super) fn hashed(table: u32, bytes: &[u8]) -> HashedKey<'_> {
    HashedKey::new(table, bytes, SEED)
}

pub(super) fn put(memtable: &Memtable, seq: u64, table: u32, key: &[u8], value: &[u8]) {
    memtable.insert_batch(seq, [(hashed(table, key), Some(value))]);
}

fn delete(memtable: &Memtable, seq: u64, table: u32, key: &[u8]) {
    memtable.insert_batch(seq, [(hashed(table, key), None)]);
}

/// `None` if absent, `Some(None)` if deleted.
pub(super) fn get(memtable: &Memtable, seq: u64, table: u32, key: &[u8]) -> Option<Option<Vec<u8>>> {
    let mut found = None;
    match memtable.get(&hashed(table, key), seq, &mut |value| found = Some(value.to_vec())) {
        Lookup::Absent => None,
        Lookup::Deleted => Some(None),
        Lookup::Found => Some(found),
    }
}

pub(super) fn at(cursor: &mut MemtableCursor) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let key = cursor.key()?.to_vec();
    let value = cursor.value().unwrap().map(<[u8]>::to_vec);
    assert_eq!(cursor.is_deletion(), value.is_none());
    Some((key, value))
}

#[test]
fn what_comes_first_is_found_whoever_looked_or_sorted_before() {
    let memtable = Memtable::new(1 << 20);
    assert_eq!(get(&memtable, 9, 16, b"key"), None);
    let before = memtable.cursor(16, 9);
    put(&memtable, 10, 16, b"key", b"");
    assert_eq!(get(&memtable, 10, 16, b"key"), Some(Some(Vec::new())));
    assert_eq!(keys_forward(&mut memtable.cursor(16, 10)), [b"key"]);
    drop(before);
    assert_eq!(get(&memtable, 10, 16, b"key"), Some(Some(Vec::new())));
    assert_eq!(get(&memtable, 9, 16, b"key"), None);
}

fn keys_forward(cursor: &mut MemtableCursor) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    cursor.seek(b"").unwrap();
    while let Some(key) = cursor.key() {
        keys.push(key.to_vec());
        cursor.next().unwrap();
    }
    keys
}

fn keys_backward(cursor: &mut MemtableCursor) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    cursor.seek_before(None).unwrap();
    while let Some(key) = cursor.key() {
        keys.push(key.to_vec());
        cursor.prev().unwrap();
    }
    keys.reverse();
    keys
}

fn assert_sorted_keys(memtable: &Memtable, table: u32, seq: u64, mut expected: Vec<Vec<u8>>) {
    expected.sort();
    let mut cursor = memtable.cursor(table, seq);
    assert_eq!(keys_forward(&mut cursor), expected);
    assert_eq!(keys_backward(&mut cursor), expected);
}

#[test]
fn an_empty_memtable_answers() {
    let memtable = Memtable::new(1 << 20);
    assert_eq!(get(&memtable, u64::MAX, 1, b"a"), None);
    assert_eq!(memtable.newest_seq(&hashed(1, b"a")), None);
    assert!(memtable.is_empty());
    assert_sorted_keys(&memtable, 1, 5, vec![]);
    assert!(!memtable.versions().advance().unwrap());
    assert!(!Memtable::new(0).is_full(), "what is empty cannot be flushed");
}

#[test]
fn each_sequence_number_sees_its_own_version() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 3, 1, b"k", b"three");
    put(&memtable, 9, 1, b"k", b"nine");
    delete(&memtable, 6, 1, b"k");
    put(&memtable, 1, 1, b"k", b"");
    assert_eq!(get(&memtable, 0, 1, b"k"), None);
    assert_eq!(get(&memtable, 2, 1, b"k"), Some(Some(vec![])));
    assert_eq!(get(&memtable, 5, 1, b"k"), Some(Some(b"three".to_vec())));
    assert_eq!(get(&memtable, 6, 1, b"k"), Some(None));
    assert_eq!(get(&memtable, u64::MAX, 1, b"k"), Some(Some(b"nine".to_vec())));
    assert_eq!(memtable.newest_seq(&hashed(1, b"k")), Some(9));
    assert_eq!(memtable.records(), 4);
}

#[test]
fn tables_with_the_same_keys_are_apart() {
    let memtable = Memtable::new(1 << 20);
    for table in [0, 1, 255, 256, u32::MAX] {
        for key in [&b""[..], b"a", b"\xff\xff"] {
            put(&memtable, 1, table, key, &table.to_le_bytes());
        }
    }
    for table in [0, 1, 255, 256, u32::MAX] {
        assert_eq!(get(&memtable, 1, table, b""), Some(Some(table.to_le_bytes().to_vec())));
        assert_sorted_keys(&memtable, table, 1, vec![b"".to_vec(), b"a".to_vec(), b"\xff\xff".to_vec()]);
    }
    assert_sorted_keys(&memtable, 2, 1, vec![]);
}

#[test]
fn off_an_end_a_cursor_stays_there() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 1, 1, b"a", b"1");
    let mut cursor = memtable.cursor(1, 1);
    assert_eq!(cursor.key(), None);
    cursor.seek(b"a").unwrap();
    cursor.next().unwrap();
    cursor.prev().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek_before(None).unwrap();
    assert_eq!(cursor.key(), Some(&b"a"[..]));
    cursor.prev().unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek(b"").unwrap();
    assert_eq!(cursor.key(), Some(&b"a"[..]));
}

#[test]
fn a_cursor_stays_as_of_its_sequence_number() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 1, 1, b"a", b"old");
    let mut cursor = memtable.cursor(1, 1);
    put(&memtable, 2, 1, b"a", b"new");
    put(&memtable, 2, 1, b"b", b"new");
    cursor.seek(b"").unwrap();
    assert_eq!(at(&mut cursor), Some((b"a".to_vec(), Some(b"old".to_vec()))));
    put(&memtable, 3, 1, b"a", b"newer");
    assert_eq!(at(&mut cursor), Some((b"a".to_vec(), Some(b"old".to_vec()))));
    cursor.next().unwrap();
    assert_eq!(cursor.key(), None);
}

#[test]
fn a_cursor_outlives_its_memtable() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 1, 1, b"a", b"1");
    let mut cursor = memtable.cursor(1, 1);
    drop(memtable);
    cursor.seek(b"").unwrap();
    assert_eq!(at(&mut cursor), Some((b"a".to_vec(), Some(b"1".to_vec()))));
}

#[test]
fn one_hot_key_with_many_versions() {
    let memtable = Memtable::new(64 << 20);
    put(&memtable, 1, 1, b"before", b"");
    for seq in 1..=100_000u64 {
        put(&memtable, seq, 1, b"hot", &seq.to_le_bytes());
    }
    put(&memtable, 1, 1, b"ick", b"");
    // A walk over all versions for each of these would take minutes.
    for seq in 1..=100_000u64 {
        assert_eq!(get(&memtable, seq, 1, b"hot"), Some(Some(seq.to_le_bytes().to_vec())));
    }
    assert_sorted_keys(&memtable, 1, 50_000, vec![b"before".to_vec(), b"hot".to_vec(), b"ick".to_vec()]);
    let mut versions = memtable.versions();
    let mut count = 0;
    while versions.advance().unwrap() {
        count += 1;
    }
    assert_eq!(count, 100_002);
}

#[test]
fn keys_of_equal_hash_are_told_apart() {
    let memtable = Memtable::new(1 << 20);
    let keys: Vec<_> = (0..500u32).map(|n| n.to_be_bytes()).collect();
    let key = |bytes| HashedKey { key: Key { table: 1, bytes }, hash: 42 };
    for bytes in &keys {
        memtable.insert_batch(1, [(key(bytes), Some(&bytes[..]))]);
    }
    for bytes in &keys {
        let mut found = Vec::new();
        assert_eq!(memtable.get(&key(bytes), 1, &mut |value| found = value.to_vec()), Lookup::Found);
        assert_eq!(found, bytes);
    }
    assert_eq!(memtable.get(&key(b"none"), 1, &mut |_| panic!("not there")), Lookup::Absent);
    assert_sorted_keys(&memtable, 1, 1, keys.iter().map(|key| key.to_vec()).collect());
}

#[test]
fn keys_and_values_of_all_sizes_come_back() {
    let memtable = Memtable::new(1 << 20);
    let value = |n: usize| vec![n as u8; n];
    let keys: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 1023, 1024].iter().map(|n| vec![0u8; *n]).collect();
    let lengths = [0, 1, 7, 8, 1000, 4096, 70_000, 1 << 20, 3 << 20];
    for (seq, length) in lengths.iter().enumerate() {
        for key in &keys {
            put(&memtable, seq as u64, 1, key, &value(*length));
        }
    }
    for (seq, length) in lengths.iter().enumerate() {
        for key in &keys {
            assert_eq!(get(&memtable, seq as u64, 1, key), Some(Some(value(*length))));
        }
    }
    assert_sorted_keys(&memtable, 1, 0, keys);
    assert!(memtable.is_full());
}

#[test]
fn ascending_descending_and_long_shared_prefixes_are_sorted() {
    let shared = vec![b'p'; 300];
    let key = |n: u32| [&shared[..], &(n / 1000).to_be_bytes(), &shared[..], &n.to_be_bytes()].concat();
    let ascending: Vec<_> = (0..20_000).map(key).collect();
    let descending: Vec<_> = ascending.iter().rev().cloned().collect();
    for keys in [&ascending, &descending] {
        let memtable = Memtable::new(1 << 20);
        for key in keys {
            put(&memtable, 1, 1, key, b"");
        }
        assert_sorted_keys(&memtable, 1, 1, ascending.clone());
        let mut cursor = memtable.cursor(1, 1);
        for key in ascending.iter().step_by(97) {
            cursor.seek(key).unwrap();
            assert_eq!(cursor.key(), Some(&key[..]));
        }
    }
}

#[test]
fn keys_that_differ_in_trailing_zeros_only_are_sorted() {
    let memtable = Memtable::new(1 << 20);
    let keys: Vec<Vec<u8>> = (0..=1024).map(|length| vec![0; length]).collect();
    for key in keys.iter().rev() {
        put(&memtable, 1, 0, key, b"");
    }
    assert_sorted_keys(&memtable, 0, 1, keys.clone());
    let mut cursor = memtable.cursor(0, 1);
    for key in &keys {
        cursor.seek(key).unwrap();
        assert_eq!(cursor.key(), Some(&key[..]));
    }
}

#[test]
fn there_are_few_vectors_however_reads_and_writes_alternate() {
    let mut random = Random(1);
    let memtable = Memtable::new(4 << 20);
    let mut count = 0u64;
    for seq in 1..=2000 {
        for _ in 0..=random.below(if seq % 50 == 0 { 200 } else { 3 }) {
            put(&memtable, seq, random.below(3) as u32, &random.next().to_be_bytes(), b"");
            count += 1;
        }
        let view = memtable.view(Some(seq));
        let lengths: Vec<_> = view.vectors().iter().map(|vector| vector.len()).collect();
        assert_eq!(lengths.iter().sum::<usize>() as u64, count);
        assert!(lengths.len() as u32 <= count.ilog2() + 1, "{lengths:?}");
    }
}

#[test]
fn an_unchanged_order_is_used_again() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 1, 1, b"a", b"");
    let first = memtable.view(Some(1));
    assert!(Arc::ptr_eq(&first, &memtable.view(Some(1))));
    put(&memtable, 2, 1, b"a", b"again");
    let same = memtable.view(Some(2));
    assert!(
        Arc::ptr_eq(&first.vectors()[0], &same.vectors()[0]),
        "a write to a known key leaves the order as it is"
    );
    put(&memtable, 3, 1, b"b", b"");
    assert!(Arc::ptr_eq(&same, &memtable.view(Some(2))), "a reader as of the past needs nothing newer");
    assert_eq!(memtable.view(Some(3)).vectors()[0].len(), 2);
}

#[test]
fn replaced_vectors_are_given_back_when_the_last_cursor_goes() {
    let memtable = Memtable::new(1 << 20);
    let vectors = || memtable.bytes().vectors;
    let empty = vectors();
    for n in 0..1000u32 {
        put(&memtable, 1, 1, &n.to_be_bytes(), b"");
    }
    let old = memtable.cursor(1, 1);
    let one_vector = vectors() - empty;
    assert!((16_500..17_500).contains(&one_vector), "{one_vector}");
    for n in 1000..2000u32 {
        put(&memtable, 2, 1, &n.to_be_bytes(), b"");
    }
    let new = memtable.cursor(1, 2);
    let both = vectors() - empty;
    assert!((49_500..51_000).contains(&both), "{both}");
    let another = memtable.cursor(1, 2);
    assert!(vectors() - empty - both < 500, "cursors share vectors");
    drop(another);
    assert_eq!(vectors() - empty, both);
    drop(old);
    let merged = vectors() - empty;
    assert!((33_000..34_500).contains(&merged), "{merged}");
    drop(new);
    assert!((33_000..merged).contains(&(vectors() - empty)), "the memtable keeps its newest view");
}

#[test]
fn the_budget_counts_what_is_there() {
    let memtable = Memtable::new(8 << 20);
    let empty = memtable.memory_bytes();
    assert!(empty >= (8 << 20) / 12 - 8, "the directory counts");
    let mut seq = 0;
    let mut stored = 0;
    while !memtable.is_full() {
        seq += 1;
        put(&memtable, seq, 1, &seq.to_be_bytes(), &[7; 100]);
        stored += 108;
        let grown = memtable.memory_bytes() - empty;
        assert!(grown >= stored, "{grown} bytes cannot hold {stored}");
        assert!(grown < stored * 2 + (256 << 10), "{grown} bytes are too many for {stored}");
    }
    assert!(memtable.memory_bytes() < (8 << 20) + (1 << 20));
    assert!(seq > 40_000, "only {seq} records of 108 bytes in 8 MiB");
}

#[test]
fn a_batch_that_panics_leaves_the_memtable_usable() {
    let memtable = Memtable::new(1 << 20);
    let keys: Vec<_> = (b'A'..=b'Z').map(|letter| vec![letter]).collect();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let records = keys.iter().map(|key| (hashed(1, key), Some(&b"1"[..])));
        memtable.insert_batch(1, records.inspect(|(key, _)| assert_ne!(key.key.bytes, b"Z")));
    }));
    assert!(failed.is_err());
    put(&memtable, 2, 1, b"z", b"2");
    let inserted = memtable.records() - 1;
    assert!((1..keys.len()).contains(&inserted), "{inserted} of the batch");
    let expected = keys[..inserted].iter().cloned().chain([b"z".to_vec()]).collect();
    assert_sorted_keys(&memtable, 1, 2, expected);
}

#[test]
fn batches_of_all_lengths_are_inserted_whole() {
    let memtable = Memtable::new(1 << 20);
    let mut expected = Vec::new();
    for length in 0..=40u8 {
        let keys: Vec<_> = (0..length).map(|n| [length, n]).collect();
        memtable.insert_batch(1, keys.iter().map(|key| (hashed(1, key), Some(&key[..]))));
        expected.extend(keys.iter().map(|key| key.to_vec()));
    }
    assert_eq!(memtable.records(), expected.len());
    assert_sorted_keys(&memtable, 1, 1, expected);
}

#[test]
fn more_writers_than_shards_insert_at_once() {
    let memtable = Memtable::new(1 << 20);
    let claims: Vec<_> = (0..100).map(|_| memtable.arena.claim()).collect();
    put(&memtable, 1, 1, b"a", b"1");
    drop(claims);
    put(&memtable, 1, 1, b"b", b"1");
    assert_eq!(memtable.records(), 2);
    assert_sorted_keys(&memtable, 1, 1, vec![b"a".to_vec(), b"b".to_vec()]);
}

/// Publishes sequence numbers in order, as the commit queue does.
struct Published(AtomicU64);

impl Published {
    fn publish(&self, seq: u64) {
        while self.0.compare_exchange_weak(seq - 1, seq, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn readers_and_cursors_see_all_that_is_published_while_writers_go_on() {
    const WRITERS: u64 = 3;
    const COMMITS: u64 = 12_000;
    const KEYS: u64 = 500;
    let memtable = Memtable::new(4 << 20);
    let published = Published(AtomicU64::new(0));
    let next = AtomicU64::new(1);
    let done = AtomicBool::new(false);
    // Commit n writes one of 500 keys and one key of its own.
    let hot = |seq: u64| (seq * 7919 % KEYS).to_be_bytes();
    let own = |seq: u64| seq.to_be_bytes();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let seq = next.fetch_add(1, Ordering::Relaxed);
                        if seq > COMMITS {
                            return;
                        }
                        let (hot, own, value) = (hot(seq), own(seq), seq.to_le_bytes());
                        let record = |table, key| (hashed(table, key), Some(&value[..]));
                        memtable.insert_batch(seq, [record(2, &own[..]), record(1, &hot[..])]);
                        published.publish(seq);
                    }
                })
            })
            .collect();
        for reader in 0..2u64 {
            let (memtable, published, done) = (&memtable, &published, &done);
            scope.spawn(move || {
                let mut random = Random(reader);
                while !done.load(Ordering::Relaxed) {
                    let seq = published.0.load(Ordering::Acquire);
                    if seq == 0 {
                        continue;
                    }
                    let of = 1 + random.below(seq);
                    let value = get(memtable, seq, 1, &hot(of)).flatten().expect("a published put is found");
                    let newest = u64::from_le_bytes(value.try_into().unwrap());
                    assert!((of..=seq).contains(&newest) && hot(newest) == hot(of));
                    assert_eq!(get(memtable, seq, 2, &own(of)), Some(Some(of.to_le_bytes().to_vec())));
                    if random.below(50) == 0 {
                        let mut cursor = memtable.cursor(2, seq);
                        cursor.seek(b"").unwrap();
                        for expected in 1..=seq {
                            assert_eq!(cursor.key(), Some(&own(expected)[..]), "as of {seq}");
                            cursor.next().unwrap();
                        }
                        assert_eq!(cursor.key(), None);
                        let keys = keys_backward(&mut memtable.cursor(1, seq));
                        assert_eq!(keys.len() as u64, seq.min(KEYS));
                    }
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(memtable.records() as u64, 2 * COMMITS);
}
