//! Tests of how much work the memtable does: however reads and writes alternate, and whatever the keys are.

use std::time::Duration;

use super::tests::{get, hashed, put};
use super::*;
use crate::layer::LayerCursor;
use crate::random::Random;

fn work(memtable: &Memtable) -> Work {
    *memtable.sorting.lock().unwrap()
}

/// Each node is sorted once, and merged into a longer vector at most once for each doubling.
fn assert_bounded_work(memtable: &Memtable, nodes: usize) {
    let Work { sorted, merged } = work(memtable);
    assert_eq!(sorted, nodes);
    let most = nodes * (nodes.ilog2() as usize + 1);
    assert!(merged <= most, "{merged} moves for {nodes} nodes; at most {most}");
}

#[test]
fn a_seek_after_each_insert_costs_a_logarithm_of_moves() {
    const KEYS: u64 = 100_000;
    let memtable = Memtable::new(16 << 20);
    let mut random = Random(5);
    for seq in 1..=KEYS {
        put(&memtable, seq, 1, &random.next().to_be_bytes(), b"");
        let vectors = memtable.view(Some(seq)).vectors().len();
        assert!(vectors <= seq.ilog2() as usize + 1, "{vectors} vectors for {seq} nodes");
    }
    assert_bounded_work(&memtable, KEYS as usize);
}

#[test]
fn seeks_between_bursts_of_inserts_cost_a_logarithm_of_moves() {
    for seed in 0..5 {
        let memtable = Memtable::new(16 << 20);
        let mut random = Random(seed);
        let (mut nodes, mut most_vectors) = (0, 0);
        while nodes < 100_000 {
            // From a single insert up to a thousand.
            let most = 1 << random.below(10);
            for _ in 0..=random.below(most) {
                nodes += 1;
                put(&memtable, nodes, random.below(3) as u32, &random.next().to_be_bytes(), b"");
            }
            most_vectors = most_vectors.max(memtable.view(Some(nodes)).vectors().len());
        }
        assert_bounded_work(&memtable, nodes as usize);
        assert!(most_vectors <= nodes.ilog2() as usize + 1, "{most_vectors} vectors, seed {seed}");
    }
}

#[test]
fn a_seek_that_finds_nothing_new_sorts_nothing() {
    let memtable = Memtable::new(1 << 20);
    for seq in 1..=100u64 {
        put(&memtable, seq, 1, &seq.to_be_bytes(), b"");
    }
    let first = memtable.view(Some(100));
    let before = (work(&memtable), memtable.bytes().vectors);
    for seq in 0..=100 {
        assert!(Arc::ptr_eq(&memtable.view(Some(seq)), &first));
    }
    // New versions of known keys change what is found, not where.
    for seq in 101..=200 {
        put(&memtable, seq, 1, &(seq - 100).to_be_bytes(), b"again");
        assert!(Arc::ptr_eq(&memtable.view(Some(seq)), &first));
    }
    assert_eq!(work(&memtable).sorted, before.0.sorted);
    assert_eq!(work(&memtable).merged, before.0.merged);
    assert_eq!(memtable.bytes().vectors, before.1, "no new vector");
}

#[test]
fn whoever_sorts_covers_all_that_was_asked_for() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 1, 1, b"a", b"");
    put(&memtable, 2, 1, b"b", b"");
    // As if somebody waited for the order as of 2 while another sorts for 1.
    memtable.wanted_seq.fetch_max(2, Ordering::Release);
    let view = memtable.view(Some(1));
    assert!(Arc::ptr_eq(&memtable.view(Some(2)), &view));
}

#[test]
fn who_needs_nothing_new_does_not_wait_for_the_sorter() {
    let memtable = Memtable::new(1 << 20);
    put(&memtable, 1, 1, b"a", b"");
    drop(memtable.cursor(1, 1));
    put(&memtable, 2, 1, b"b", b"");
    let _sorting = memtable.sorting.lock().unwrap();
    let mut cursor = memtable.cursor(1, 1);
    cursor.seek(b"").unwrap();
    assert_eq!(cursor.key(), Some(&b"a"[..]));
    assert_eq!(get(&memtable, 2, 1, b"b"), Some(Some(vec![])), "nor do point reads");
    put(&memtable, 3, 1, b"c", b"");
}

#[test]
fn a_million_versions_of_one_key_are_at_hand() {
    const VERSIONS: u64 = 1_000_000;
    let memtable = Memtable::new(128 << 20);
    for seq in 1..=VERSIONS {
        put(&memtable, seq, 1, b"hot", &seq.to_le_bytes());
    }
    let mut random = Random(9);
    // A walk over all versions for each of these would take minutes.
    for seq in [1, VERSIONS / 2, VERSIONS].into_iter().chain((0..100_000).map(|_| 1 + random.below(VERSIONS)))
    {
        assert_eq!(get(&memtable, seq, 1, b"hot"), Some(Some(seq.to_le_bytes().to_vec())));
        if seq % 100 == 0 {
            let mut cursor = memtable.cursor(1, seq);
            cursor.seek_before(None).unwrap();
            assert_eq!(cursor.loaded().unwrap(), Some(&seq.to_le_bytes()[..]));
        }
    }
    assert_eq!(memtable.newest_seq(&hashed(1, b"hot")), Some(VERSIONS));
    assert_eq!(memtable.view(Some(VERSIONS)).vectors()[0].len(), 1, "one node");
}

/// Keys that all go to one bucket under some seed.
fn colliding(memtable: &Memtable, seed: u64, count: usize) -> Vec<[u8; 8]> {
    let bucket = memtable.directory.bucket_index(HashedKey::new(1, &0u64.to_be_bytes(), seed).hash);
    let collides =
        |key: &[u8; 8]| memtable.directory.bucket_index(HashedKey::new(1, key, seed).hash) == bucket;
    (0u64..).map(u64::to_be_bytes).filter(collides).take(count).collect()
}

#[test]
fn keys_that_collide_under_a_known_seed_do_not_under_another() {
    const GUESSED_SEEDS: [u64; 3] = [0, 1, 0x9e37_79b9_7f4a_7c15];
    // 85 buckets: few enough to find collisions quickly.
    let memtable = Memtable::new(8 << 10);
    for guessed in GUESSED_SEEDS {
        let keys = colliding(&memtable, guessed, 200);
        let chain = |seed| {
            let memtable = Memtable::new(8 << 10);
            for key in &keys {
                memtable.insert_batch(1, [(HashedKey::new(1, key, seed), Some(&b""[..]))]);
            }
            memtable.directory.longest_chain()
        };
        assert_eq!(chain(guessed), keys.len());
        // 200 keys in 85 buckets: chains of ten and more are rare, however the seed was drawn.
        for secret in [0xd1b5_4a32_d192_ed03, 0x2545_f491_4f6c_dd1d, 0x1234_5678_9abc_def1] {
            let longest = chain(secret);
            assert!(
                longest <= 16,
                "a chain of {longest}: keys chosen for {guessed:x} collide under {secret:x}"
            );
        }
    }
}

/// What a set of keys costs to insert, to sort, to find and to walk over.
struct Cost {
    longest_chain: usize,
    time: Duration,
}

/// The processor time of this thread, which other tests beside it do not take from it; of other systems the clock's.
fn worked() -> Duration {
    #[cfg(target_os = "linux")]
    // SAFETY: the call fills the structure that it is given, for which zeros are valid.
    return unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    #[cfg(not(target_os = "linux"))]
    return std::time::UNIX_EPOCH.elapsed().unwrap();
}

fn cost(keys: &[Vec<u8>], value: &[u8]) -> Cost {
    let memtable = Memtable::new(32 << 20);
    let start = worked();
    for (key, seq) in keys.iter().zip(1..) {
        put(&memtable, seq, 1, key, value);
    }
    let seq = keys.len() as u64;
    let mut cursor = memtable.cursor(1, seq);
    let mut walked = 0;
    cursor.seek(b"").unwrap();
    while cursor.key().is_some() {
        walked += 1;
        cursor.next().unwrap();
    }
    for key in keys {
        cursor.seek(key).unwrap();
        assert_eq!(cursor.key(), Some(&key[..]));
        assert_eq!(memtable.get(&hashed(1, key), seq, &mut |found| assert_eq!(found, value)), Lookup::Found);
    }
    let time = worked() - start;
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(walked, distinct.len());
    assert_bounded_work(&memtable, distinct.len());
    Cost { longest_chain: memtable.directory.longest_chain(), time }
}

/// A bound for tests that share caches and memory with others: what it must catch, a walk over all keys for each, is
/// hundreds of times as slow.
const TIMES_AS_SLOW: u32 = 25;

fn assert_like_friendly(keys: impl Fn() -> Vec<Vec<u8>>, value: &[u8]) {
    let keys = keys();
    let key_bytes = keys.iter().map(Vec::len).sum::<usize>() / keys.len();
    let mut random = Random(3);
    let friendly: Vec<_> =
        keys.iter().map(|_| (0..key_bytes.max(8)).map(|_| random.next() as u8).collect()).collect();
    let best = |keys: &[Vec<u8>]| (0..3).map(|_| cost(keys, value)).min_by_key(|cost| cost.time).unwrap();
    let (unfriendly, friendly) = (best(&keys), best(&friendly));
    assert!(unfriendly.longest_chain <= 12, "a chain of {}", unfriendly.longest_chain);
    assert!(
        unfriendly.time <= friendly.time * TIMES_AS_SLOW + Duration::from_millis(5),
        "{:?} instead of {:?} with random keys",
        unfriendly.time,
        friendly.time
    );
}

#[test]
fn ascending_and_descending_keys_cost_what_random_ones_do() {
    let ascending = || (0..20_000u64).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>();
    assert_like_friendly(ascending, b"value");
    assert_like_friendly(|| ascending().into_iter().rev().collect(), b"value");
    assert_like_friendly(|| (0..20_000u64).map(|n| n.to_le_bytes().to_vec()).collect(), b"value");
}

#[test]
fn long_shared_prefixes_cost_what_long_random_keys_do() {
    // As long as keys may be, different in the last bytes only.
    let key = |n: u32| [&[b'p'; crate::limits::KEY_BYTES_MAX - 4][..], &n.to_be_bytes()].concat();
    assert_like_friendly(|| (0..5000).map(key).collect(), b"value");
    // Here the first key does away with the prefix that all others share.
    assert_like_friendly(|| std::iter::once(b"a".to_vec()).chain((1..5000).map(key)).collect(), b"value");
    // Two families: what all share ends in the middle.
    let family = |n: u32| {
        let mut key = key(n);
        key[500] = b'0' + (n % 2) as u8;
        key
    };
    assert_like_friendly(|| (0..5000).map(family).collect(), b"value");
}

#[test]
fn keys_of_zeros_cost_what_random_ones_do() {
    // Each a prefix of the next: heads that are filled up with zeros tell none of them apart.
    assert_like_friendly(|| (0..=1000).map(|length| vec![0; length]).collect(), b"value");
    let padded = |n: usize| [&[n as u8 / 128][..], &vec![0; n % 128]].concat();
    assert_like_friendly(|| (0..16_384).map(padded).collect(), b"value");
}

#[test]
fn one_hot_key_costs_what_random_ones_do() {
    assert_like_friendly(|| vec![b"hot".to_vec(); 20_000], b"value");
}

#[test]
fn the_shortest_keys_cost_what_random_ones_do() {
    let short = || std::iter::once(Vec::new()).chain((0..=255).map(|byte| vec![byte]));
    assert_like_friendly(|| short().collect(), b"value");
    assert_like_friendly(|| short().chain((0..=u16::MAX).map(|n| n.to_be_bytes().to_vec())).collect(), b"");
}

#[test]
fn large_values_cost_their_bytes() {
    assert_like_friendly(|| (0..24u8).map(|n| vec![n]).collect(), &vec![7; 1 << 20]);
}
