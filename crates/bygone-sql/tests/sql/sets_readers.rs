//! The connections on which set queries run: one that waits for the next set query, and those of threads.
//!
//! Owns: tests that neither shows in what is answered, failed and reported, nor in who may have the directory. May
//! call: the support.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bygone::{Db, Options, SnapshotId};
use bygone_sql::{SetProgress, SetStats, Sql, on_set_progress, set_stats, share_sets};
use rusqlite::{Connection, ErrorCode};

use crate::support::{Place, failure, number, rows, run, text};

/// A table with one row, which is another one as of each of so many snapshots.
fn counting(snapshots: u64) -> (Place, Connection) {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(v INTEGER); INSERT INTO t VALUES (0)");
    for v in 1..=snapshots {
        run(&connection, &format!("UPDATE t SET v = {v}; SELECT snapshot_now()"));
    }
    (place, connection)
}

fn stats(connection: &Connection) -> SetStats {
    set_stats(connection).expect("a set query has been answered")
}

fn variable(query: &str, function: &str, snapshots: &str) -> String {
    format!(
        "SELECT AggregateDataInVariable(id, '{query}', '{function}') FROM bygone_snapshots WHERE {snapshots}"
    )
}

#[test]
fn the_next_set_query_reads_what_is_there_then() {
    let (place, connection) = counting(3);
    let sum = |snapshots: &str| number(&connection, &variable("SELECT v FROM t", "sum", snapshots));
    assert_eq!(sum("1"), 6);
    // The same again, backwards, one of them alone.
    assert_eq!((sum("1"), sum("id = 3"), sum("id = 1"), sum("id < 3")), (6, 3, 1, 3));
    // What was read before holds no longer.
    run(&connection, "UPDATE t SET v = 10; SELECT snapshot_now()");
    assert_eq!((sum("1"), sum("id = 4")), (16, 10));
    // Another query on the same connection, and the first one again.
    assert_eq!(number(&connection, &variable("SELECT v + 1 FROM t", "max", "1")), 11);
    assert_eq!(sum("1"), 16);
    // Other schemas: of the next set query, within one, and back again.
    run(&connection, "ALTER TABLE t ADD COLUMN w DEFAULT 5; SELECT snapshot_now()");
    assert_eq!(sum("id = 5"), 10);
    assert_eq!(number(&connection, &variable("SELECT w FROM t", "sum", "id = 5")), 5);
    assert!(failure(&connection, &variable("SELECT w FROM t", "sum", "1")).2.contains("as of snapshot 1"));
    assert_eq!(sum("1"), 26);
    run(&connection, "DROP TABLE t; CREATE VIEW t AS SELECT 7 AS v; SELECT snapshot_now()");
    assert_eq!((sum("id = 6"), sum("id = 1"), sum("id = 6"), sum("1")), (7, 1, 7, 33));
    // The same counter of the schema with another schema, by a restore.
    place.db.restore(SnapshotId::from(5)).unwrap();
    assert_eq!(number(&connection, "SELECT v FROM t"), 10);
    run(&connection, "DROP TABLE t; CREATE VIEW t AS SELECT 100 AS v; SELECT snapshot_now()");
    assert_eq!((sum("id = 6"), sum("id = 7")), (7, 100));
    // What reads more than pages does so the next time, too.
    for _ in 0..2 {
        assert_eq!(number(&connection, &variable("SELECT current_snapshot()", "sum", "1")), 28);
        assert_eq!(stats(&connection).runs, 7);
    }
    for _ in 0..2 {
        number(&connection, &variable("SELECT random()", "count", "1"));
        assert_eq!(stats(&connection).runs, 7);
        number(&connection, &variable("SELECT 1", "count", "1"));
        assert_eq!(stats(&connection).runs, 4, "the first, and where the schema is another one");
    }
    // A table of the name that ours has: it is the query's, not the aggregate's.
    run(&connection, "CREATE TABLE bygone_values(value); INSERT INTO bygone_values VALUES (1), (2)");
    run(&connection, "SELECT snapshot_now()");
    let own = variable("SELECT sum(value) FROM bygone_values", "sum", "id = 8");
    assert_eq!((number(&connection, &own), number(&connection, &own)), (3, 3));
}

#[test]
fn who_waits_for_the_next_set_query_holds_nothing() {
    let (place, connection) = counting(5);
    let sum = variable("SELECT v FROM t", "sum", "1");
    assert_eq!(number(&connection, &sum), 15);
    assert_eq!(place.db.stats().unwrap().held_snapshots.len(), 0, "no view");
    // One that was asked can be deleted, and is not found any more.
    place.db.delete_snapshot(SnapshotId::from(3)).unwrap();
    assert_eq!(number(&connection, &sum), 12);
    let gone = "SELECT AggregateDataInVariable(column1, 'SELECT v FROM t', 'sum') FROM (VALUES (2), (3))";
    assert!(failure(&connection, gone).2.contains("as of snapshot 3"));
    // Closed with the connection, at once.
    let Place { db, directory } = place;
    drop(db);
    connection.close().unwrap();
    assert!(Db::find_open(directory.path().join("bank")).is_none());
    let db = Options::new().create(false).open(directory.path().join("bank")).unwrap();
    // And with a database that is detached.
    let elsewhere = tempfile::tempdir().unwrap();
    let connection = Connection::open(format!("file:{}?vfs=bygone", elsewhere.path().join("main").display()));
    let connection = connection.unwrap();
    drop(db);
    let uri = format!("file:{}?vfs=bygone", directory.path().join("bank").display());
    run(&connection, &format!("ATTACH '{uri}' AS aux"));
    let of_aux =
        "SELECT AggregateDataInVariable(id, 'SELECT v FROM t', 'sum', 'aux') FROM bygone_snapshots('aux')";
    assert_eq!(number(&connection, of_aux), 12);
    run(&connection, "DETACH aux");
    assert!(Db::find_open(directory.path().join("bank")).is_none());
    drop(Options::new().open(directory.path().join("bank")).unwrap());
    // The same name for another database.
    run(&connection, &format!("ATTACH '{uri}&db=other' AS aux; CREATE TABLE aux.t AS SELECT 1000 AS v"));
    run(&connection, "SELECT snapshot_now(NULL, 'aux')");
    let of_last = format!("{of_aux} WHERE id = 6");
    assert_eq!(number(&connection, &of_last), 1000);
}

#[test]
fn values_that_take_much_memory_go_elsewhere() {
    let (_place, connection) = counting(12);
    let long = "SELECT hex(zeroblob(500000)) || v FROM t WHERE v <> 5";
    for share in [None, Some(Duration::ZERO)] {
        share_sets(&connection, share);
        assert_eq!(number(&connection, &variable(long, "count", "1")), 11);
        assert_eq!((stats(&connection).rows, stats(&connection).runs), (11, 12));
        for (function, end) in [("first", "01"), ("last", "012"), ("max", "09")] {
            let found = text(&connection, &variable(long, function, "1"));
            assert!(found.len() > 1_000_000 && found.ends_with(end), "{function}");
        }
    }
    // Those of one run more than may wait to be collected.
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
                SELECT v, i, hex(zeroblob(50000)) AS pad FROM t, n";
    let sql = format!(
        "SELECT AggregateDataInTable(id, '{many}', 'counts', 'i:sum,pad:count') FROM bygone_snapshots"
    );
    assert_eq!(number(&connection, &sql), 12);
    assert_eq!(rows(&connection, "SELECT DISTINCT i, pad FROM counts"), ["Integer(1830)|Integer(60)"]);
}

#[test]
fn threads_give_what_one_gives_and_report_in_order() {
    let (_place, connection) = counting(60);
    let collate =
        "SELECT CollateData(id, 'SELECT v, current_snapshot() AS s FROM t', 'NAME') FROM bygone_snapshots";
    let mut told = Vec::new();
    for (name, share) in [("alone", None), ("shared", Some(Duration::ZERO))] {
        share_sets(&connection, share);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let reports = seen.clone();
        let here = std::thread::current().id();
        on_set_progress(&connection, move |progress: &SetProgress| {
            assert_eq!(std::thread::current().id(), here);
            reports.lock().unwrap().push(*progress);
            true
        });
        assert_eq!(number(&connection, &collate.replace("NAME", name)), 60);
        let seen = seen.lock().unwrap().clone();
        assert!((1..=60).zip(0..).eq(seen.iter().map(|told| (told.snapshot, told.done))));
        told.push((seen, stats(&connection).runs, rows(&connection, &format!("SELECT * FROM {name}"))));
    }
    assert_eq!(told[0], told[1]);
    assert!(told[1].2.contains(&"Integer(42)|Integer(42)|Integer(42)".to_owned()));
}

#[test]
fn the_first_failure_is_told_whoever_meets_it() {
    let (place, connection) = counting(10);
    // Of one snapshot the query fails, as of another it makes no sense, as of the last it is endless.
    run(&connection, "UPDATE t SET v = -9223372036854775808; SELECT snapshot_now('overflow')");
    for v in 1..5 {
        run(&connection, &format!("UPDATE t SET v = {v}; SELECT snapshot_now()"));
    }
    run(&connection, "ALTER TABLE t RENAME COLUMN v TO x; SELECT snapshot_now('renamed')");
    share_sets(&connection, Some(Duration::ZERO));
    let failing = variable("SELECT abs(v) FROM t", "sum", "1");
    for _ in 0..20 {
        let (_, _, words) = failure(&connection, &failing);
        assert!(words.contains("as of snapshot 11 (\"overflow\"): integer overflow"), "{words}");
        assert!(set_stats(&connection).is_none());
    }
    place.db.delete_snapshot("overflow").unwrap();
    let (_, _, words) = failure(&connection, &failing);
    assert!(words.contains("as of snapshot 16 (\"renamed\"): no such column: v"), "{words}");
    place.db.delete_snapshot("renamed").unwrap();
    assert_eq!(number(&connection, &failing), 65);
    let two_rows = variable("SELECT v FROM t UNION SELECT 8 FROM t", "sum", "1");
    assert!(failure(&connection, &two_rows).2.contains("as of snapshot 1: the query gives 2 rows"));
    let two_rows = variable("SELECT v FROM t UNION ALL SELECT 0 FROM t WHERE v = 8", "sum", "1");
    assert!(failure(&connection, &two_rows).2.contains("as of snapshot 8: the query gives 2 rows"));
}

#[test]
fn threads_end_when_all_is_to_end() {
    let (place, connection) = counting(30);
    share_sets(&connection, Some(Duration::ZERO));
    let endless =
        "WITH RECURSIVE n(i) AS (SELECT v FROM t UNION ALL SELECT i + 1 FROM n WHERE (SELECT v FROM t) > 9)
                   SELECT count(*) FROM n";
    let sql = variable(endless, "sum", "1");
    let handle = connection.get_interrupt_handle();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        handle.interrupt();
    });
    let begun = Instant::now();
    assert_eq!(failure(&connection, &sql).0, ErrorCode::OperationInterrupted);
    assert!(begun.elapsed() < Duration::from_secs(20));
    other.join().unwrap();
    // By the report, which comes before the endless ones.
    on_set_progress(&connection, |progress| progress.done < 7);
    assert_eq!(failure(&connection, &sql).0, ErrorCode::OperationInterrupted);
    // And where rows come without end.
    on_set_progress(&connection, |_| true);
    let handle = connection.get_interrupt_handle();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        handle.interrupt();
    });
    let rows = endless.replace("count(*)", "i");
    let collate = format!("SELECT CollateData(id, '{rows}', 'x') FROM bygone_snapshots");
    assert_eq!(failure(&connection, &collate).0, ErrorCode::OperationInterrupted);
    other.join().unwrap();
    assert!(connection.is_autocommit());
    // Nobody is left who reads, or has the directory.
    assert_eq!(place.db.stats().unwrap().held_snapshots.len(), 0);
    assert_eq!(number(&connection, &variable("SELECT v FROM t", "sum", "id < 10")), 45);
    let Place { db, directory } = place;
    drop(db);
    drop(connection);
    assert!(Db::find_open(directory.path().join("bank")).is_none());
    drop(Db::open(directory.path().join("bank")).unwrap().sql("main").unwrap());
}
