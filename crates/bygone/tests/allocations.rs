//! What reads allocate: nothing, but for a value that is handed out.
//!
//! Owns: an allocator that counts, so this is a test of its own. Promises: counts are of the calling thread
//! alone. May call: the engine's public face.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;

use bygone::{Db, Options, Table};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: u64 = 1000;

/// Allocations of a thousand calls, after a few that prepare the thread.
fn allocations(mut call: impl FnMut(u64)) -> u64 {
    (0..10).for_each(&mut call);
    let before = COUNT.get();
    (0..ROUNDS).for_each(&mut call);
    COUNT.get() - before
}

/// Values of `length` bytes, half of them merged into the base and cached, half in the memtable.
fn database(length: usize) -> (tempfile::TempDir, Db, Table) {
    let directory = tempfile::tempdir().unwrap();
    let db = Options::new().durability(bygone::Durability::Buffered).open(directory.path()).unwrap();
    let table = db.table("t").unwrap();
    let fill = |keys: std::ops::Range<u32>| {
        let mut tx = db.begin().unwrap();
        keys.for_each(|key| tx.put(&table, key.to_be_bytes(), vec![7; length]).unwrap());
        tx.commit().unwrap();
    };
    fill(0..500);
    db.merge().unwrap();
    fill(500..1000);
    db.snapshot().for_each(&table, .., |_, _| ControlFlow::Continue(())).unwrap();
    (directory, db, table)
}

fn key(round: u64) -> [u8; 4] {
    ((round * 7 % 1000) as u32).to_be_bytes()
}

#[test]
fn beginning_reading_borrowed_and_ending_allocate_nothing() {
    let (_directory, db, table) = database(100);
    let count = allocations(|round| {
        let snapshot = db.snapshot();
        assert_eq!(snapshot.get_with(&table, key(round), |value| value.len()).unwrap(), Some(100));
    });
    assert_eq!(count, 0, "begin, get_with, end");
    let count = allocations(|round| {
        let table = db.open_table("t").unwrap();
        let snapshot = db.snapshot();
        assert_eq!(snapshot.get_with(&table, key(round), |value| value.len()).unwrap(), Some(100));
        let copy = snapshot.clone();
        assert!(copy.contains_key(&table, key(round)).unwrap());
        assert!(!copy.contains_key(&table, "another").unwrap());
    });
    assert_eq!(count, 0, "with the table opened and the snapshot cloned");
}

#[test]
fn getting_allocates_the_value_alone() {
    let (_directory, db, table) = database(100);
    let count = allocations(|round| assert!(db.get(&table, key(round)).unwrap().is_some()));
    assert_eq!(count, ROUNDS);
    let (_directory, db, table) = database(22);
    let count = allocations(|round| assert!(db.get(&table, key(round)).unwrap().is_some()));
    assert_eq!(count, 0, "a small value is kept in place");
}

#[test]
fn a_transaction_that_only_reads_allocates_nothing() {
    let (_directory, db, table) = database(100);
    let count = allocations(|round| {
        let tx = db.begin().unwrap();
        assert_eq!(tx.get_with(&table, key(round), |value| value.len()).unwrap(), Some(100));
        tx.commit().unwrap();
    });
    assert_eq!(count, 0);
}

#[test]
fn thousands_held_meanwhile_change_nothing() {
    let (_directory, db, table) = database(100);
    let held: Vec<_> = (0..10_000).map(|_| db.snapshot()).collect();
    let count = allocations(|round| {
        let snapshot = db.snapshot();
        assert_eq!(snapshot.get_with(&table, key(round), |value| value.len()).unwrap(), Some(100));
    });
    assert_eq!(count, 0);
    drop(held);
}
