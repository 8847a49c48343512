//! What any SQLite database does.
//!
//! Owns: tests of reading, writing, rolling back, sizes of pages, and pragmas. May call: the support.

use std::sync::Arc;

use bygone::Options;
use bygone::io::SimDisk;
use bygone_sql::Sql;
use rusqlite::{Connection, ErrorCode};

use crate::support::{Place, check, failure, number, rows, run, text};

#[test]
fn what_is_written_is_there_for_others_and_after_reopening() {
    let place = Place::new();
    let one = place.sql();
    run(&one, "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y')");
    let two = place.sql();
    assert_eq!(number(&two, "SELECT count(*) FROM t"), 2);
    run(&two, "INSERT INTO t VALUES (3, 'z')");
    assert_eq!(text(&one, "SELECT b FROM t WHERE a = 3"), "z");
    check(&one);
    drop((one, two));
    let Place { db, directory } = place;
    drop(db);
    let db = bygone::Db::open(directory.path().join("bank")).unwrap();
    let again = db.sql("main").unwrap();
    assert_eq!(number(&again, "SELECT sum(a) FROM t"), 6);
    check(&again);
}

#[test]
fn the_database_stays_open_for_its_connections() {
    let place = Place::new();
    let connection = place.sql();
    let Place { db, directory } = place;
    drop(db);
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES (7)");
    assert_eq!(number(&connection, "SELECT a FROM t"), 7);
    drop(connection);
    drop(bygone::Db::open(directory.path().join("bank")).unwrap());
}

#[test]
fn sql_databases_of_one_directory_are_apart() {
    let place = Place::new();
    let (one, two) = (place.sql(), place.db.sql("another / one ?&=%").unwrap());
    run(&one, "CREATE TABLE t AS SELECT 1 AS a");
    run(&two, "CREATE TABLE t AS SELECT 2 AS a");
    assert_eq!(number(&one, "SELECT a FROM t"), 1);
    assert_eq!(number(&two, "SELECT a FROM t"), 2);
    assert_eq!(place.db.tables().unwrap(), ["sql/another / one ?&=%", "sql/main"]);
    assert!(place.db.sql("").is_err());
    assert!(place.db.sql(&"x".repeat(252)).is_err());
}

#[test]
fn a_rolled_back_transaction_leaves_nothing() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 1)");
    let before = place.db.stats().unwrap().seq;
    // So that pages are written before the end.
    run(&connection, "PRAGMA cache_size = 5; BEGIN; DELETE FROM t");
    let many = "INSERT INTO t WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 5000)
                SELECT i, randomblob(100) FROM c";
    run(&connection, many);
    let other = place.sql();
    assert_eq!(number(&other, "SELECT count(*) FROM t"), 1);
    run(&connection, "ROLLBACK");
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 1);
    check(&connection);
    assert_eq!(place.db.stats().unwrap().seq, before);
    run(&connection, &format!("BEGIN; {many}; COMMIT"));
    assert_eq!(number(&other, "SELECT count(*) FROM t"), 5001);
    check(&other);
    assert_eq!(u64::from(place.db.stats().unwrap().seq), u64::from(before) + 1);
}

#[test]
fn one_commit_is_one_commit_whatever_the_settings() {
    for settings in ["", "PRAGMA synchronous = OFF", "PRAGMA journal_mode = OFF", "PRAGMA cache_size = 3"] {
        let place = Place::new();
        let connection = place.sql();
        run(&connection, settings);
        run(&connection, "CREATE TABLE t(a)");
        let seq = || u64::from(place.db.stats().unwrap().seq);
        for count in [1, 10, 1000] {
            let before = seq();
            run(&connection, "BEGIN");
            for _ in 0..count {
                run(&connection, "INSERT INTO t VALUES (randomblob(500))");
            }
            run(&connection, "COMMIT");
            assert_eq!(seq(), before + 1, "{settings}");
        }
        let before = seq();
        run(&connection, "BEGIN; SELECT 1; COMMIT; BEGIN IMMEDIATE; COMMIT; UPDATE t SET a = 1 WHERE a = 2");
        assert_eq!(seq(), before, "{settings}: nothing was written");
        check(&connection);
    }
}

#[test]
fn savepoints_nest() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "PRAGMA cache_size = 5; CREATE TABLE t(a)");
    run(
        &connection,
        "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT one; INSERT INTO t VALUES (2); SAVEPOINT two",
    );
    for _ in 0..300 {
        run(&connection, "INSERT INTO t VALUES (randomblob(900))");
    }
    run(&connection, "ROLLBACK TO two; INSERT INTO t VALUES (3); RELEASE one");
    assert_eq!(rows(&connection, "SELECT a FROM t"), ["Integer(1)", "Integer(2)", "Integer(3)"]);
    run(&connection, "SAVEPOINT three; DELETE FROM t; ROLLBACK TO three; COMMIT");
    assert_eq!(number(&place.sql(), "SELECT sum(a) FROM t"), 6);
    check(&connection);
}

#[test]
fn pages_have_every_size() {
    for shift in 9..=16 {
        let place = Place::new();
        let connection = place.sql();
        let bytes = 1 << shift;
        run(&connection, &format!("PRAGMA page_size = {bytes}; CREATE TABLE t(a INTEGER PRIMARY KEY, b)"));
        assert_eq!(number(&connection, "PRAGMA page_size"), bytes);
        for i in 0..200 {
            connection.execute("INSERT INTO t VALUES (?1, randomblob(?2))", [i, i * i * 7]).unwrap();
        }
        let other = place.sql();
        assert_eq!(number(&other, "PRAGMA page_size"), bytes);
        assert_eq!(number(&other, "SELECT count(*) FROM t WHERE length(b) = max(a * a * 7, 1)"), 200);
        check(&other);
        let pages = number(&other, "PRAGMA page_count");
        run(&connection, "DELETE FROM t WHERE a % 3; VACUUM");
        check(&other);
        assert!(number(&other, "PRAGMA page_count") < pages);
        let records = place.db.snapshot().range(&place.db.table("sql/main").unwrap(), ..).unwrap().count();
        assert!(records as i64 <= number(&other, "PRAGMA page_count") + 1, "what was cut off is deleted");
    }
}

#[test]
fn a_database_gets_smaller_and_larger_again() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "PRAGMA auto_vacuum = INCREMENTAL; CREATE TABLE t(a)");
    for round in 0..5 {
        for _ in 0..200 {
            run(&connection, "INSERT INTO t VALUES (randomblob(2000))");
        }
        run(&connection, "DELETE FROM t WHERE rowid % 5; PRAGMA incremental_vacuum(1000)");
        check(&connection);
        run(
            &connection,
            "BEGIN; DELETE FROM t; PRAGMA incremental_vacuum(1000); INSERT INTO t VALUES (1); COMMIT",
        );
        check(&connection);
        assert_eq!(number(&place.sql(), "SELECT count(*) FROM t"), 1, "round {round}");
    }
}

#[test]
fn the_journal_is_in_memory_and_locks_are_short_whatever_is_asked() {
    let place = Place::new();
    let connection = place.sql();
    assert_eq!(text(&connection, "PRAGMA journal_mode"), "memory");
    for mode in ["WAL", "DELETE", "OFF", "PERSIST", "TRUNCATE"] {
        assert_eq!(text(&connection, &format!("PRAGMA journal_mode = {mode}")), "memory");
        assert_eq!(text(&connection, &format!("PRAGMA main.journal_mode = {mode}")), "memory");
    }
    assert_eq!(text(&connection, "PRAGMA locking_mode = EXCLUSIVE"), "normal");
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    run(&place.sql(), "INSERT INTO t VALUES (2)");
    assert_eq!(number(&connection, "SELECT sum(a) FROM t"), 3);
}

#[test]
fn only_one_writes_at_a_time_and_a_stale_one_is_told() {
    let place = Place::new();
    let (one, two) = (place.sql(), place.sql());
    run(&one, "CREATE TABLE t(a)");
    two.busy_timeout(std::time::Duration::ZERO).unwrap();
    run(&one, "BEGIN IMMEDIATE; INSERT INTO t VALUES (1)");
    assert_eq!(failure(&two, "INSERT INTO t VALUES (2)").0, ErrorCode::DatabaseBusy);
    assert_eq!(number(&two, "SELECT count(*) FROM t"), 0, "reading goes on");
    run(&two, "BEGIN; SELECT * FROM t");
    run(&one, "COMMIT");
    let (code, extended, _) = failure(&two, "INSERT INTO t VALUES (2)");
    assert_eq!((code, extended), (ErrorCode::DatabaseBusy, rusqlite::ffi::SQLITE_BUSY_SNAPSHOT));
    assert_eq!(number(&two, "SELECT count(*) FROM t"), 0, "still the same view");
    run(&two, "ROLLBACK; INSERT INTO t VALUES (2)");
    assert_eq!(number(&one, "SELECT count(*) FROM t"), 2);
}

#[test]
fn other_tables_of_the_directory_make_no_writer_stale() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a); BEGIN; SELECT * FROM t");
    let table = place.db.table("keys").unwrap();
    place.db.put(&table, "a", "b").unwrap();
    run(&place.db.sql("other").unwrap(), "CREATE TABLE t(a)");
    run(&connection, "INSERT INTO t VALUES (1); COMMIT");
    assert_eq!(number(&place.sql(), "SELECT a FROM t"), 1);
}

#[test]
fn durability_follows_synchronous() {
    let disk = SimDisk::new();
    let db = Options::new().background(false).open_on(Arc::new(disk.clone()), "follows").unwrap();
    let connection = db.sql("main").unwrap();
    run(&connection, "CREATE TABLE t(a)");
    // How many of five commits are there after a power cut that took all that it could.
    let kept = |sql: &str| {
        run(&connection, sql);
        run(&connection, "PRAGMA synchronous = FULL; DELETE FROM t");
        run(&connection, sql);
        for _ in 0..5 {
            run(&connection, "INSERT INTO t VALUES (1)");
        }
        let image = Arc::new(disk.crash_image(0));
        let after = Options::new().background(false).open_on(image, "follows").unwrap();
        number(&after.sql("main").unwrap(), "SELECT count(*) FROM t")
    };
    assert_eq!(kept("PRAGMA synchronous = FULL"), 5);
    assert_eq!(kept("PRAGMA synchronous = NORMAL"), 0);
    assert_eq!(kept("PRAGMA synchronous = 2"), 5);
    assert_eq!(kept("PRAGMA synchronous = OFF"), 0);
    assert_eq!(kept("PRAGMA main.synchronous = EXTRA"), 5);
}

#[test]
fn the_cache_stays_warm_over_own_commits() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    for i in 0..500 {
        connection.execute("INSERT INTO t VALUES (?1, randomblob(1000))", [i]).unwrap();
    }
    let misses = |connection: &Connection, sql: &str| {
        let count = || {
            let (mut now, mut most) = (0, 0);
            // SAFETY: the connection is open.
            let code = unsafe {
                rusqlite::ffi::sqlite3_db_status(
                    connection.handle(),
                    rusqlite::ffi::SQLITE_DBSTATUS_CACHE_MISS,
                    &mut now,
                    &mut most,
                    0,
                )
            };
            assert_eq!(code, 0);
            now
        };
        let before = count();
        run(connection, sql);
        count() - before
    };
    let other = place.sql();
    assert_eq!(number(&connection, "SELECT count(b) FROM t"), 500);
    assert!(misses(&other, "SELECT sum(length(b)) FROM t") > 100);
    for _ in 0..5 {
        assert_eq!(misses(&connection, "UPDATE t SET b = randomblob(1000) WHERE a = 7"), 0);
        assert_eq!(misses(&connection, "SELECT sum(length(b)) FROM t"), 0);
    }
    assert!(misses(&other, "SELECT sum(length(b)) FROM t") > 100, "what others wrote is seen");
    place.db.put(&place.db.table("keys").unwrap(), "a", "b").unwrap();
    assert_eq!(misses(&connection, "SELECT sum(length(b)) FROM t"), 0, "another table is not ours");
    let foreign = text(&other, "SELECT hex(b) FROM t WHERE a = 7");
    assert_eq!(text(&connection, "SELECT hex(b) FROM t WHERE a = 7"), foreign);
}

#[test]
fn a_restored_state_is_read_and_written_to() {
    let place = Place::new();
    let (one, two) = (place.sql(), place.sql());
    run(&one, "CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    place.db.snapshot_now("one").unwrap();
    run(&one, "INSERT INTO t VALUES (2)");
    assert_eq!(number(&two, "SELECT count(*) FROM t"), 2);
    run(&two, "BEGIN; SELECT * FROM t");
    place.db.restore("one").unwrap();
    assert_eq!(failure(&two, "INSERT INTO t VALUES (9)").1, rusqlite::ffi::SQLITE_BUSY_SNAPSHOT);
    run(&two, "ROLLBACK");
    // As many changes as were undone: SQLite's own counter is where it was.
    run(&one, "INSERT INTO t VALUES (3)");
    assert_eq!(rows(&two, "SELECT a FROM t"), ["Integer(1)", "Integer(3)"]);
    check(&two);
}

#[test]
fn schemas_that_went_apart_are_not_taken_for_each_other() {
    let place = Place::new();
    let (one, two) = (place.sql(), place.sql());
    run(&one, "CREATE TABLE a(x)");
    place.db.snapshot_now("a").unwrap();
    for round in 0..3 {
        run(&one, "CREATE TABLE b(y); INSERT INTO b VALUES ('b')");
        assert_eq!(text(&two, "SELECT y FROM b"), "b", "round {round}");
        place.db.restore("a").unwrap();
        // As many changes of the schema as before, to another one.
        run(&one, "CREATE TABLE c(z); INSERT INTO c VALUES ('c')");
        assert!(failure(&two, "SELECT y FROM b").2.contains("no such table"));
        assert_eq!(text(&two, "SELECT z FROM c"), "c");
        run(&two, "INSERT INTO c VALUES ('d')");
        // With a reader that keeps its lock, and so its page 1, across the correction.
        place.db.restore("a").unwrap();
        let mut statement = one.prepare("SELECT name FROM sqlite_schema UNION ALL SELECT 'second'").unwrap();
        let mut names = statement.query([]).unwrap();
        names.next().unwrap();
        run(&one, "CREATE TABLE c2(z); CREATE TABLE c3(z)");
        drop(names);
        assert!(failure(&two, "SELECT z FROM c").2.contains("no such table"));
        run(&two, "INSERT INTO c2 VALUES (1)");
        check(&one);
        check(&two);
        place.db.restore("a").unwrap();
    }
}
