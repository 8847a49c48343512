//! Readers beside a writer.
//!
//! Owns: tests over several threads. May call: the support.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use bygone_sql::Sql;
use rusqlite::{Connection, ErrorCode};

use crate::support::{Place, check, failure, number, run, text};

#[test]
fn readers_see_whole_commits_and_keep_what_they_see() {
    let place = Place::new();
    let writer = place.sql();
    run(&writer, "PRAGMA synchronous = NORMAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c)");
    run(
        &writer,
        "INSERT INTO t WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 200)
                  SELECT i, 0, randomblob(300) FROM c",
    );
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let db = place.db.clone();
                let done = &done;
                scope.spawn(move || {
                    let reader = db.sql("main").unwrap();
                    let (mut last, mut looks) = (0, 0);
                    let mut ends = false;
                    while !ends {
                        ends = done.load(Ordering::Relaxed) && looks >= 3;
                        run(&reader, "BEGIN");
                        // Every commit adds one to each row.
                        let first = number(&reader, "SELECT min(b) FROM t");
                        assert_eq!(number(&reader, "SELECT max(b) FROM t"), first);
                        thread::yield_now();
                        assert_eq!(number(&reader, "SELECT sum(b) FROM t"), 200 * first);
                        run(&reader, "COMMIT");
                        assert!(first >= last);
                        last = first;
                        looks += 1;
                    }
                    check(&reader);
                    (looks, last)
                })
            })
            .collect();
        for i in 0..150 {
            run(&writer, "UPDATE t SET b = b + 1, c = randomblob(300)");
            if i % 20 == 0 {
                place.db.merge().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (looks, last) = reader.join().unwrap();
            assert_eq!(last, 150, "after {looks} looks");
        }
    });
    check(&writer);
}

#[test]
fn writers_on_many_threads_lose_nothing() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); INSERT INTO t VALUES (0)");
    let committed = AtomicI64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let connection = place.db.sql("main").unwrap();
                connection.busy_timeout(Duration::from_secs(60)).unwrap();
                run(&connection, "PRAGMA synchronous = OFF");
                for _ in 0..100 {
                    run(&connection, "BEGIN IMMEDIATE; UPDATE t SET a = a + 1; COMMIT");
                    committed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(number(&place.sql(), "SELECT a FROM t"), 400);
    assert_eq!(committed.into_inner(), 400);
}

#[test]
fn connections_open_and_close_on_many_threads() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    let uri = place.uri("");
    let Place { db, directory } = place;
    drop(db);
    bygone_sql::register().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    // The last one that goes closes the directory, and the next one opens it again.
                    let connection = rusqlite::Connection::open(&uri).unwrap();
                    assert_eq!(number(&connection, "SELECT a FROM t"), 1);
                }
            });
        }
    });
    drop(directory);
}

#[test]
fn what_is_opened_as_immutable_stays_one_state() {
    let place = Place::new();
    let writer = place.sql();
    run(
        &writer,
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c);
         INSERT INTO t WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 500)
                  SELECT i, 0, randomblob(300) FROM c;
         SELECT snapshot_now('full')",
    );
    let open = |parameters: &str| Connection::open(place.uri(parameters));
    // SQLite takes no locks here, and keeps what it has read.
    let reader = open("&immutable=1").unwrap();
    assert_eq!(number(&reader, "SELECT count(*) FROM t WHERE a <= 100"), 100);
    run(&writer, "UPDATE t SET b = 1; DELETE FROM t WHERE a > 200; CREATE TABLE more(a)");
    assert_eq!(number(&reader, "SELECT count(*) - sum(b) FROM t"), 500);
    check(&reader);
    assert!(text(&reader, "PRAGMA as_of").starts_with("seq:"));
    let (_, _, words) = failure(&reader, "PRAGMA as_of = 'full'");
    assert!(words.contains("immutable"), "{words}");
    let (code, _, _) = failure(&reader, "DELETE FROM t");
    assert_eq!(code, ErrorCode::ReadOnly);

    let past = open("&immutable=1&as_of=full").unwrap();
    assert_eq!(number(&past, "SELECT count(*) - sum(b) FROM t"), 500);
    assert_eq!(text(&past, "PRAGMA as_of"), "full");
    assert_eq!(number(&open("&immutable=1").unwrap(), "SELECT count(*) - sum(b) FROM t"), 0);
}

#[test]
fn a_database_without_locks_is_refused() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a)");
    for parameters in ["&nolock=1", "&nolock=yes&mode=ro"] {
        let error = Connection::open(place.uri(parameters)).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen), "{parameters}");
    }
    assert_eq!(number(&Connection::open(place.uri("&nolock=0")).unwrap(), "SELECT count(*) FROM t"), 0);
}

/// Large transactions go straight into the base, which nobody who writes to another SQL database notices.
#[test]
fn large_transactions_beside_small_ones_of_another_database() {
    let place = Place::with(bygone::Options::new().memtable_bytes(1 << 20));
    for name in ["large", "small"] {
        run(&place.db.sql(name).unwrap(), "CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    }
    let before = place.db.stats().unwrap().bulk_commits;
    let done = AtomicBool::new(false);
    let committed = thread::scope(|scope| {
        let small = scope.spawn(|| {
            let connection = place.db.sql("small").unwrap();
            run(&connection, "PRAGMA synchronous = NORMAL");
            let mut committed = 0;
            while !done.load(Ordering::Relaxed) {
                run(&connection, "BEGIN; INSERT INTO t(b) VALUES ('small')");
                thread::yield_now();
                run(&connection, "COMMIT");
                committed += 1;
            }
            committed
        });
        let connection = place.db.sql("large").unwrap();
        for round in 0..12 {
            run(
                &connection,
                "INSERT INTO t(b) WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 3000)
                 SELECT randomblob(1000) FROM c",
            );
            if round % 4 == 3 {
                run(&connection, "VACUUM");
            }
        }
        done.store(true, Ordering::Relaxed);
        small.join().unwrap()
    });
    assert!(place.db.stats().unwrap().bulk_commits > before);
    for (name, rows) in [("large", 12 * 3000), ("small", committed)] {
        let connection = place.db.sql(name).unwrap();
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), rows);
        check(&connection);
    }
}
