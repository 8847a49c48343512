//! Model checks: `loom` runs the shipped code through the orders in which threads and memory may behave.
//! `RUSTFLAGS="--cfg loom" cargo test -p bygone --release --lib loom_`

use loom::thread;

use super::*;
use crate::layer::{Key, LayerCursor};
use crate::sync::atomic::{AtomicU64, Ordering};

/// One bucket and one resident shard: everything that can collide does.
fn memtable() -> Arc<Memtable> {
    let memtable = Memtable::new(0);
    assert_eq!(memtable.directory.bytes(), size_of::<crate::sync::atomic::AtomicPtr<()>>());
    Arc::new(memtable)
}

/// Explores all orders with up to three involuntary switches, which is where such faults show, in seconds.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// All keys hash alike.
fn key(bytes: &[u8]) -> HashedKey<'_> {
    HashedKey { key: Key { table: 1, bytes }, hash: 3 }
}

fn put(memtable: &Memtable, seq: u64, bytes: &[u8]) {
    memtable.insert_batch(seq, [(key(bytes), Some(&seq.to_le_bytes()[..]))]);
}

/// The sequence number that was written as the value.
fn get(memtable: &Memtable, seq: u64, bytes: &[u8]) -> Option<u64> {
    let mut found = None;
    memtable.get(&key(bytes), seq, &mut |value| found = value.first_chunk().copied().map(u64::from_le_bytes));
    found
}

fn scan(memtable: &Memtable, seq: u64) -> Vec<Vec<u8>> {
    let mut cursor = memtable.cursor(1, seq);
    cursor.seek(b"").unwrap();
    let mut keys = Vec::new();
    while let Some(key) = cursor.key() {
        keys.push(key.to_vec());
        cursor.next().unwrap();
    }
    keys
}

#[test]
fn loom_two_inserters_share_a_bucket() {
    model(|| {
        let memtable = memtable();
        let other = memtable.clone();
        let inserter = thread::spawn(move || put(&other, 1, b"a"));
        put(&memtable, 2, b"b");
        assert_eq!(get(&memtable, 2, b"b"), Some(2));
        inserter.join().unwrap();
        assert_eq!(get(&memtable, 2, b"a"), Some(1));
        assert_eq!(get(&memtable, 2, b"b"), Some(2));
        assert_eq!(scan(&memtable, 2), [b"a", b"b"]);
        assert_eq!(memtable.records(), 2);
    });
}

#[test]
fn loom_two_inserters_of_one_new_key_make_one_node() {
    model(|| {
        let memtable = memtable();
        let other = memtable.clone();
        let inserter = thread::spawn(move || put(&other, 1, b"a"));
        put(&memtable, 2, b"a");
        assert_eq!(get(&memtable, 2, b"a"), Some(2));
        inserter.join().unwrap();
        assert_eq!(get(&memtable, 1, b"a"), Some(1));
        assert_eq!(memtable.newest_seq(&key(b"a")), Some(2));
        assert_eq!(scan(&memtable, 2), [b"a"]);
    });
}

#[test]
fn loom_two_versions_and_a_reader() {
    model(|| {
        let memtable = memtable();
        put(&memtable, 1, b"a");
        let writers = [2, 3].map(|seq| {
            let memtable = memtable.clone();
            thread::spawn(move || put(&memtable, seq, b"a"))
        });
        // A reader as of 1 is not disturbed; one that looks further sees whole versions, and none twice or
        // out of order.
        assert_eq!(get(&memtable, 1, b"a"), Some(1));
        let newest = get(&memtable, 3, b"a").unwrap();
        assert!(get(&memtable, 3, b"a").unwrap() >= newest);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!([1, 2, 3, 4].map(|seq| get(&memtable, seq, b"a")), [Some(1), Some(2), Some(3), Some(3)]);
    });
}

#[test]
fn loom_a_cursor_sees_what_was_published_before_it() {
    model(|| {
        let memtable = memtable();
        let published = Arc::new(AtomicU64::new(0));
        let inserter = {
            let (memtable, published) = (memtable.clone(), published.clone());
            thread::spawn(move || {
                for (seq, bytes) in [(1, b"a"), (2, b"b")] {
                    put(&memtable, seq, bytes);
                    published.store(seq, Ordering::Release);
                }
            })
        };
        let seq = published.load(Ordering::Acquire);
        assert_eq!(scan(&memtable, seq).len() as u64, seq);
        inserter.join().unwrap();
        assert_eq!(scan(&memtable, 2), [b"a", b"b"]);
    });
}

#[test]
fn loom_an_older_version_is_seen_before_the_commit_that_made_its_node_ends() {
    model(|| {
        let memtable = memtable();
        let published = Arc::new(AtomicU64::new(0));
        let newer = {
            let memtable = memtable.clone();
            thread::spawn(move || put(&memtable, 2, b"a"))
        };
        let older = {
            let (memtable, published) = (memtable.clone(), published.clone());
            thread::spawn(move || {
                put(&memtable, 1, b"a");
                published.store(1, Ordering::Release);
            })
        };
        let seq = published.load(Ordering::Acquire);
        assert_eq!(scan(&memtable, seq).len() as u64, seq);
        older.join().unwrap();
        newer.join().unwrap();
        assert_eq!(scan(&memtable, 2), [b"a"]);
    });
}

#[test]
fn loom_two_seekers_at_once_lose_nothing() {
    model(|| {
        let memtable = memtable();
        put(&memtable, 1, b"a");
        let other = memtable.clone();
        let seeker = thread::spawn(move || assert_eq!(scan(&other, 1), [b"a"]));
        put(&memtable, 2, b"b");
        assert_eq!(scan(&memtable, 2), [b"a", b"b"]);
        seeker.join().unwrap();
        assert_eq!(scan(&memtable, 2), [b"a", b"b"]);
    });
}

/// One sorts, others wait for it: each gets the order that it needs, whoever is first, and nobody waits for
/// ever (which `loom` would report).
#[test]
fn loom_seekers_that_wait_for_one_sorter_get_what_they_need() {
    model(|| {
        let memtable = memtable();
        let published = Arc::new(AtomicU64::new(0));
        let seekers = [(); 2].map(|()| {
            let (memtable, published) = (memtable.clone(), published.clone());
            thread::spawn(move || {
                let seq = published.load(Ordering::Acquire);
                assert_eq!(scan(&memtable, seq).len() as u64, seq);
            })
        });
        for (seq, bytes) in [(1, b"a"), (2, b"b")] {
            put(&memtable, seq, bytes);
            published.store(seq, Ordering::Release);
        }
        for seeker in seekers {
            seeker.join().unwrap();
        }
        assert_eq!(scan(&memtable, 2), [b"a", b"b"]);
    });
}

/// What a view covers by its number, it holds: also when the number is another seeker's, and a third commit
/// is under way.
#[test]
fn loom_a_view_holds_what_it_covers() {
    model(|| {
        let memtable = memtable();
        put(&memtable, 1, b"a");
        let seeker = {
            let memtable = memtable.clone();
            thread::spawn(move || drop(memtable.cursor(1, 1)))
        };
        let inserter = {
            let memtable = memtable.clone();
            thread::spawn(move || put(&memtable, 3, b"c"))
        };
        put(&memtable, 2, b"b");
        drop(memtable.cursor(1, 2));
        let (view, covered_seq) = {
            let order = memtable.lock_order();
            (order.view.clone(), order.covered_seq)
        };
        assert_eq!(covered_seq, Some(2), "3 was never published");
        let nodes: usize = view.vectors().iter().map(|vector| vector.len()).sum();
        assert!((2..=3).contains(&nodes));
        assert_eq!(scan(&memtable, 2), [b"a", b"b"]);
        seeker.join().unwrap();
        inserter.join().unwrap();
        assert_eq!(scan(&memtable, 3), [b"a", b"b", b"c"]);
    });
}
