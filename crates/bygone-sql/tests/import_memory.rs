//! The memory that importing a file takes.
//!
//! Owns: an allocator that counts, and one test, alone in its process. Promises: neither an import nor one that
//! replaces a database holds the file. May call: the public API.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bygone::Options;
use bygone_sql::{Sql, import_file};
use rusqlite::Connection;

/// What is allocated, and the most that ever was.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: figures, looked at when other threads are idle.
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FILE_BYTES: usize = 128 << 20;

#[test]
fn a_file_is_imported_and_replaced_in_bounded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("app.db");
    let source = Connection::open(&file).unwrap();
    let fill = |seed: i64| {
        let sql = format!(
            "PRAGMA synchronous = off; DROP TABLE IF EXISTS t; CREATE TABLE t(a INTEGER PRIMARY KEY, b);
             WITH RECURSIVE n(i) AS (SELECT {seed} UNION ALL SELECT i + 1 FROM n LIMIT {})
             INSERT INTO t SELECT i, randomblob(100000) FROM n; VACUUM",
            FILE_BYTES / 100_000
        );
        source.execute_batch(&sql).unwrap();
    };
    let options = Options::new().cache_bytes(4 << 20).memtable_bytes(4 << 20);
    let db = options.open(directory.path().join("db")).unwrap();
    for (round, replace) in [false, true, true].into_iter().enumerate() {
        fill(round as i64);
        let before = NOW.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        import_file(&db, "app", &file, replace, |_, _| {}).unwrap();
        let taken = MOST.load(Ordering::Relaxed) - before;
        println!("replace {replace}: {} KiB", taken >> 10);
        // What is not replaced goes through memtables, of which there may be some.
        let most = if replace { FILE_BYTES / 8 } else { FILE_BYTES / 2 };
        assert!(taken < most, "replace {replace}: {taken} bytes");
        let app = db.sql("app").unwrap();
        let least: i64 = app.query_row("SELECT min(a) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(least, round as i64);
        let check: String = app.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        db.snapshot_now(None).unwrap();
    }
}
