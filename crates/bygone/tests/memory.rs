//! The memory that memtables use, against what the figures say.
//!
//! Owns: an allocator that counts the bytes that are there, so this is a test of its own, with a single thread at a
//! time. Promises: what `Stats` says of memtables is what the program's allocator gave, within a few percent;
//! memtables ask nobody else for memory. May call: the engine's public face.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use bygone::{Db, Durability, Options, Stats, Table};

struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    // Relaxed: tests look at it when nobody else allocates.
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: they count all that the process allocates.
static TURN: Mutex<()> = Mutex::new(());

/// Keys by number.
type Keys<'k> = &'k dyn Fn(u64) -> Vec<u8>;

const MIB: i64 = 1 << 20;

fn open(memtable_bytes: i64) -> (tempfile::TempDir, Db, Table) {
    let directory = tempfile::tempdir().unwrap();
    let db = Options::new()
        .durability(Durability::Buffered)
        .memtable_bytes(memtable_bytes as usize)
        // Its frames come and go; they are none of this test's concern.
        .cache_bytes(1 << 20)
        .background(false)
        .open(directory.path().join("db"))
        .unwrap();
    let table = db.table("t").unwrap();
    (directory, db, table)
}

/// All that the figures say memtables have.
fn stated(stats: &Stats) -> i64 {
    let parts = stats.memtable_directory_bytes + stats.memtable_entry_bytes + stats.memtable_vector_bytes;
    assert_eq!(parts, stats.memtable_bytes, "the sum of its parts");
    (parts + stats.memtable_reserved_bytes) as i64
}

/// What is there, by the allocator and by the figures.
fn figures(db: &Db) -> (i64, i64) {
    let stats = db.stats().unwrap();
    (LIVE.load(Ordering::Relaxed), stated(&stats))
}

fn assert_close(what: &str, counted: i64, expected: i64, slack: i64) {
    assert!(
        (counted - expected).abs() <= slack,
        "{what}: {counted} bytes, expected {expected}, within {slack}"
    );
}

fn scattered(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

#[test]
fn a_budget_costs_what_it_says() {
    let _turn = TURN.lock();
    // What else a database has is the same whatever the memtable's budget is.
    let cost = |budget| {
        let before = LIVE.load(Ordering::Relaxed);
        let (_directory, db, _table) = open(budget);
        let (live, stated) = figures(&db);
        (live - before, stated)
    };
    cost(MIB);
    let (small, small_stated) = cost(MIB);
    for budget in [8 * MIB, 32 * MIB, 100 * MIB] {
        let (large, large_stated) = cost(budget);
        assert_close("a memtable of that budget", large - small, budget - MIB, budget / 50);
        assert_close("what is stated", large - small, large_stated - small_stated, budget / 100);
    }
}

/// Fills the memtable to about three quarters, and checks on the way that figures move as bytes do.
fn fill(db: &Db, table: &Table, budget: i64, key: impl Fn(u64) -> Vec<u8>, value: &[u8]) -> u64 {
    let (live, said) = figures(db);
    let mut count = 0;
    while (db.stats().unwrap().memtable_bytes as i64) < budget * 3 / 4 {
        for _ in 0..64 {
            db.put(table, key(count), value).unwrap();
            count += 1;
        }
    }
    let (live_now, said_now) = figures(db);
    assert_close("records", live_now - live, said_now - said, budget / 50);
    count
}

#[test]
fn records_and_orders_are_counted_and_given_back() {
    let _turn = TURN.lock();
    const BUDGET: i64 = 32 * MIB;
    let shapes: [(&str, Keys<'_>, usize); 5] = [
        ("small records", &|n| scattered(n).to_vec(), 16),
        ("usual records", &|n| scattered(n).to_vec(), 100),
        ("long keys", &|n| [&scattered(n)[..], &[7; 1000]].concat(), 100),
        ("large values", &|n| scattered(n).to_vec(), 20_000),
        ("a hot key", &|_| b"hot".to_vec(), 30),
    ];
    for (name, key, value_bytes) in shapes {
        let (_directory, db, table) = open(BUDGET);
        let (empty, _) = figures(&db);
        let count = fill(&db, &table, BUDGET, key, &vec![7; value_bytes]);
        let records = count as i64 * (key(0).len() + value_bytes) as i64;
        let entries = db.stats().unwrap().memtable_entry_bytes as i64;
        assert!(entries >= records, "{name}: {entries} bytes for {records} bytes of records");
        // Cursors, and the vectors that they make.
        let (live, said) = figures(&db);
        let mut range = db.snapshot().range(&table, ..).unwrap();
        assert!(range.next().is_some());
        let (live_now, said_now) = figures(&db);
        assert_close(name, live_now - live, said_now - said, BUDGET / 100);
        let vectors = db.stats().unwrap().memtable_vector_bytes as i64;
        let keys = if name == "a hot key" { 1 } else { count as i64 };
        assert!(vectors >= keys * 8, "{name}: {vectors} bytes of vectors for {keys} keys");
        assert_eq!(db.stats().unwrap().flushes, 0, "{name}");
        // The range keeps the memtable, the flush makes another one.
        db.flush().unwrap();
        let (both, _) = figures(&db);
        assert_close(name, both - live_now, BUDGET, BUDGET / 10);
        drop(range);
        assert!(db.get(&table, key(0)).unwrap().is_some(), "and the thread's last view is of the new one");
        let (after, _) = figures(&db);
        // A cached run has an index and a filter.
        let run_memory = db.stats().unwrap().run_memory_bytes as i64;
        assert_close(name, after - empty - run_memory, 0, MIB + BUDGET / 50);
    }
}

#[test]
fn a_memtable_is_switched_when_its_budget_is_used_up() {
    let _turn = TURN.lock();
    const BUDGET: i64 = 8 * MIB;
    for value_bytes in [20, 100, 1000, 100_000] {
        let (_directory, db, table) = open(BUDGET);
        let mut most = 0;
        let mut n = 0;
        while db.stats().unwrap().flushes == 0 {
            // One in eight reads make an order, which counts too.
            if n % (400_000 / value_bytes as u64 + 2) == 0 {
                assert_eq!(db.snapshot().range(&table, ..).unwrap().next().is_some(), n > 0);
            }
            for _ in 0..(8000 / value_bytes).max(1) {
                db.put(&table, scattered(n), vec![7; value_bytes]).unwrap();
                n += 1;
            }
            let stats = db.stats().unwrap();
            if stats.flushes == 0 {
                most = most.max(stats.memtable_bytes as i64);
            }
        }
        // Full, and not much more: a chunk, and the records of one round.
        let slack = BUDGET / 20 + 8 * value_bytes as i64;
        assert_close("the largest memtable seen", most, BUDGET, slack);
    }
}

#[test]
fn writing_for_long_needs_no_more_than_two_memtables_and_the_work_of_a_flush() {
    let _turn = TURN.lock();
    const BUDGET: i64 = 16 * MIB;
    let (_directory, db, table) = open(BUDGET);
    let (live, _) = figures(&db);
    PEAK.store(live, Ordering::Relaxed);
    for n in 0..600_000u64 {
        db.put(&table, scattered(n % 150_000), [7; 100]).unwrap();
    }
    assert!(db.stats().unwrap().flushes > 3);
    let peak = PEAK.load(Ordering::Relaxed) - live;
    // Beside the first one: that which follows it, its order, and what flush and merge work in.
    assert!(peak <= BUDGET + BUDGET / 2 + 6 * MIB, "{peak} bytes beyond the first memtable");
}
