//! Statements that are the API's own.
//!
//! Owns: tests of `COMMIT WITH SNAPSHOT` and `SELECT AS OF`. May call: the support.

use bygone_sql::{Error, execute, run};
use rusqlite::Connection;

use crate::support::{Place, number, text};

fn numbers(connection: &Connection, script: &str) -> Vec<i64> {
    let mut out = Vec::new();
    run(connection, script, |statement| {
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            out.push(row.get(0)?);
        }
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{script}: {error}"));
    out
}

#[test]
fn a_commit_declares_a_snapshot() {
    let place = Place::new();
    let connection = place.sql();
    let one = execute(
        &connection,
        "CREATE TABLE t(a); BEGIN; INSERT INTO t VALUES (1); COMMIT WITH SNAPSHOT 'one'",
    )
    .unwrap();
    assert_eq!(one, Some(place.db.snapshot_info("one").unwrap().id));
    let two =
        execute(&connection, "BEGIN; INSERT INTO t VALUES (2); END TRANSACTION WITH SNAPSHOT;").unwrap();
    assert_eq!(u64::from(two.unwrap()), 2);
    assert_eq!(execute(&connection, "DELETE FROM t").unwrap(), None);
    assert_eq!(
        numbers(
            &connection,
            "SELECT AS OF one a FROM t; SELECT AS OF 2 sum(a) FROM t; SELECT count(*) FROM t"
        ),
        [1, 3, 0]
    );
    let error = execute(&connection, "COMMIT WITH SNAPSHOT").unwrap_err();
    assert!(matches!(error, Error::Statement { .. }), "{error}");
    let error = execute(&connection, "BEGIN; COMMIT WITH SNAPSHOT one").unwrap_err().to_string();
    assert!(error.contains("taken"), "{error}");
    assert!(!connection.is_autocommit(), "the transaction is still there");
    execute(&connection, "COMMIT").unwrap();
}

#[test]
fn a_select_of_the_past_leaves_the_session_where_it_was() {
    let place = Place::new();
    let connection = place.sql();
    execute(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES (1); SELECT snapshot_now('one')").unwrap();
    execute(&connection, "UPDATE t SET a = 2; SELECT snapshot_now('two'); UPDATE t SET a = 3").unwrap();
    assert_eq!(numbers(&connection, "SELECT AS OF 'one' a FROM t; SELECT a FROM t"), [1, 3]);
    execute(&connection, "PRAGMA as_of = two").unwrap();
    assert_eq!(
        numbers(&connection, "SELECT AS OF now a FROM t; SELECT a FROM t; SELECT AS OF one a FROM t"),
        [3, 2, 1]
    );
    assert_eq!(text(&connection, "PRAGMA as_of"), "two");
    assert!(execute(&connection, "SELECT AS OF one nothing FROM t").is_err());
    assert!(execute(&connection, "SELECT AS OF one * FROM nowhere").is_err());
    assert_eq!(number(&connection, "SELECT a FROM t"), 2);
    let error = execute(&connection, "SELECT AS OF nobody 1").unwrap_err().to_string();
    assert!(error.contains("nobody"), "{error}");
    execute(&connection, "PRAGMA as_of = now; BEGIN; UPDATE t SET a = 4").unwrap();
    let error = execute(&connection, "SELECT AS OF one 1").unwrap_err().to_string();
    assert!(error.contains("inside a transaction"), "{error}");
    execute(&connection, "ROLLBACK").unwrap();
    let failed = run(&connection, "SELECT AS OF one a FROM t", |_| Err(rusqlite::Error::InvalidQuery));
    assert!(failed.is_err());
    assert_eq!(number(&connection, "SELECT a FROM t"), 3);
    assert!(execute(&Connection::open_in_memory().unwrap(), "SELECT AS OF one 1").is_err());
}

#[test]
fn scripts_of_sqlite_run_as_they_are() {
    let place = Place::new();
    let connection = place.sql();
    let script = "CREATE TABLE t(a, b); CREATE TABLE log(a);
        CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO log VALUES (';'); INSERT INTO log VALUES (new.a); END;
        -- a comment; with a semicolon
        INSERT INTO t VALUES ('SELECT AS OF 1; COMMIT WITH SNAPSHOT', 2); /* ; */ ;;";
    execute(&connection, script).unwrap();
    assert_eq!(number(&connection, "SELECT count(*) FROM log"), 2);
    assert_eq!(place.db.snapshots().unwrap(), []);
}
