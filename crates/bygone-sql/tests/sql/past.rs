//! The past in SQL.
//!
//! Owns: tests of declaring snapshots and of reading them. May call: the support.

use bygone_sql::Sql;
use rusqlite::ErrorCode;

use crate::support::{Place, check, failure, number, rows, run, text};

fn bank() -> (Place, rusqlite::Connection) {
    let place = Place::new();
    let connection = place.sql();
    run(
        &connection,
        "CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance); INSERT INTO accounts VALUES ('alice', 100)",
    );
    (place, connection)
}

const ALICE: &str = "SELECT balance FROM accounts WHERE owner = 'alice'";

#[test]
fn a_snapshot_is_declared_at_once_outside_of_a_transaction() {
    let (place, connection) = bank();
    let id = number(&connection, "SELECT snapshot_now('before-fees')");
    assert_eq!(place.db.snapshot_info("before-fees").unwrap().id, bygone::SnapshotId::from(id as u64));
    assert_eq!(number(&connection, "SELECT last_snapshot()"), id);
    assert_eq!(number(&connection, "SELECT snapshot_now()"), id + 1);
    assert_eq!(number(&connection, "SELECT snapshot_now(NULL)"), id + 2);
    assert_eq!(text(&connection, "PRAGMA snapshot = 'by pragma'"), (id + 3).to_string());
    assert_eq!(number(&connection, "SELECT snapshot_now('of main', 'main')"), id + 4);
    let (_, _, words) = failure(&connection, "SELECT snapshot_now('before-fees')");
    assert!(words.contains("taken"), "{words}");
    let (_, _, words) = failure(&connection, "SELECT snapshot_now('x', 'nowhere')");
    assert!(words.contains("nowhere"), "{words}");
}

#[test]
fn a_snapshot_is_declared_by_the_commit_of_its_transaction() {
    let (place, connection) = bank();
    let seq = || u64::from(place.db.stats().unwrap().seq);
    for declare in ["SELECT snapshot_now('a')", "PRAGMA snapshot = 'b'"] {
        let before = seq();
        run(&connection, "BEGIN; UPDATE accounts SET balance = balance + 1");
        run(&connection, declare);
        run(&connection, "UPDATE accounts SET balance = balance + 1");
        assert_eq!(seq(), before, "nothing yet");
        run(&connection, "COMMIT");
        assert_eq!(seq(), before + 1, "{declare}");
    }
    assert_eq!(number(&place.db.sql_as_of("main", "a").unwrap(), ALICE), 102);
    assert_eq!(number(&place.db.sql_as_of("main", "b").unwrap(), ALICE), 104);
    // Before anything is written.
    run(&connection, "BEGIN; SELECT snapshot_now('c'); UPDATE accounts SET balance = 7; COMMIT");
    run(&connection, "BEGIN; SELECT snapshot_now('nothing else'); COMMIT");
    run(&connection, "BEGIN; PRAGMA snapshot = 'by pragma alone'; COMMIT");
    run(&connection, "UPDATE accounts SET balance = 8");
    for name in ["c", "nothing else", "by pragma alone"] {
        assert_eq!(number(&place.db.sql_as_of("main", name).unwrap(), ALICE), 7, "{name}");
    }
    run(&connection, "BEGIN; UPDATE accounts SET balance = 9; SELECT snapshot_now('rolled back'); ROLLBACK");
    assert!(place.db.snapshot_info("rolled back").is_err());
    run(&connection, "BEGIN; SELECT snapshot_now('one')");
    let (_, _, words) = failure(&connection, "SELECT snapshot_now('two')");
    assert!(words.contains("another snapshot"), "{words}");
    run(&connection, "COMMIT");
    run(&connection, "INSERT INTO accounts SELECT 'bob', snapshot_now('by its own statement') IS NULL");
    assert_eq!(
        number(&place.db.sql_as_of("main", "by its own statement").unwrap(), "SELECT count(*) FROM accounts"),
        2
    );
    check(&connection);
}

#[test]
fn a_snapshot_of_a_commit_over_several_databases_has_them_all() {
    let (place, connection) = bank();
    run(&connection, &format!("ATTACH '{}' AS b; CREATE TABLE b.t(a)", place.uri("&db=b")));
    run(
        &connection,
        "BEGIN; INSERT INTO b.t VALUES (1); UPDATE accounts SET balance = 1; SELECT snapshot_now('both'); COMMIT",
    );
    run(&connection, "UPDATE b.t SET a = 2; UPDATE accounts SET balance = 2");
    assert_eq!(number(&place.db.sql_as_of("main", "both").unwrap(), ALICE), 1);
    assert_eq!(number(&place.db.sql_as_of("b", "both").unwrap(), "SELECT a FROM t"), 1);
}

#[test]
fn a_session_reads_the_past_and_comes_back() {
    let (place, connection) = bank();
    run(&connection, "SELECT snapshot_now('before-fees'); UPDATE accounts SET balance = 95");
    run(
        &connection,
        "ALTER TABLE accounts ADD COLUMN note TEXT; UPDATE accounts SET note = 'fee'; SELECT snapshot_now('now')",
    );
    run(&connection, "DROP TABLE accounts; CREATE TABLE others(a)");
    assert_eq!(text(&connection, "PRAGMA as_of"), "now");
    for (as_of, balance, columns) in
        [("'before-fees'", 100, 2), ("1", 100, 2), ("'name:now'", 95, 3), ("'id:2'", 95, 3)]
    {
        let answer = text(&connection, &format!("PRAGMA as_of = {as_of}"));
        assert_eq!(answer, as_of.trim_matches('\''));
        assert_eq!(text(&connection, "PRAGMA as_of"), answer);
        assert_eq!(number(&connection, ALICE), balance, "{as_of}");
        assert_eq!(number(&connection, "SELECT count(*) FROM pragma_table_info('accounts')"), columns);
        check(&connection);
    }
    assert_eq!(text(&connection, "PRAGMA as_of = now"), "now");
    assert_eq!(rows(&connection, "SELECT name FROM sqlite_schema").len(), 1);
    run(&connection, "INSERT INTO others VALUES (1)");
    let other = place.sql();
    assert_eq!(number(&other, "SELECT a FROM others"), 1);
}

#[test]
fn times_mean_the_latest_snapshot_before() {
    let (place, connection) = bank();
    run(
        &connection,
        "SELECT snapshot_now('one'); UPDATE accounts SET balance = 95; SELECT snapshot_now('two')",
    );
    let times = rows(&connection, "SELECT time FROM bygone_snapshots ORDER BY id");
    assert_eq!(times.len(), 2);
    let time = text(&connection, "SELECT time FROM bygone_snapshots WHERE name = 'one'");
    run(&connection, &format!("PRAGMA as_of = '{time}'"));
    assert_eq!(number(&connection, ALICE), 100);
    run(&connection, "PRAGMA as_of = '0 seconds ago'");
    assert_eq!(number(&connection, ALICE), 95);
    let info = place.db.snapshot_info("one").unwrap();
    assert_eq!(number(&place.db.sql_as_of("main", info.time).unwrap(), ALICE), 100);
    let (_, _, words) = failure(&connection, "PRAGMA as_of = '2001-01-01'");
    assert!(words.contains("2001-01-01"), "{words}");
    let (_, _, words) = failure(&connection, "PRAGMA as_of = 'yesterday or so'");
    assert!(words.contains("yesterday or so"), "{words}");
    assert_eq!(number(&connection, ALICE), 95, "as before");
}

#[test]
fn any_commit_in_the_window_is_read() {
    let place = Place::with(bygone::Options::new().window(std::time::Duration::from_secs(3600)));
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES (0)");
    let mut seqs = Vec::new();
    for i in 1..10 {
        run(&connection, &format!("UPDATE t SET a = {i}"));
        seqs.push((i, place.db.snapshot().seq()));
    }
    place.db.merge().unwrap();
    for (i, seq) in seqs {
        run(&connection, &format!("PRAGMA as_of = 'seq:{seq}'"));
        assert_eq!(number(&connection, "SELECT a FROM t"), i);
        assert_eq!(number(&place.db.sql_as_of("main", seq).unwrap(), "SELECT a FROM t"), i);
    }
    run(&connection, "PRAGMA as_of = '0 seconds ago'");
    assert_eq!(number(&connection, "SELECT a FROM t"), 9);
    failure(&connection, "PRAGMA as_of = 'seq:1000'");
    failure(&connection, "PRAGMA as_of = 'seq:x'");
}

#[test]
fn the_past_is_not_written_to() {
    let (place, connection) = bank();
    run(&connection, "SELECT snapshot_now('then'); UPDATE accounts SET balance = 95; PRAGMA as_of = 'then'");
    for write in [
        "UPDATE accounts SET balance = 0",
        "CREATE TABLE t(a)",
        "BEGIN IMMEDIATE",
        "VACUUM",
        "DROP TABLE accounts",
    ] {
        assert_eq!(failure(&connection, write).0, ErrorCode::ReadOnly, "{write}");
        run(&connection, if connection.is_autocommit() { "" } else { "ROLLBACK" });
    }
    assert_eq!(failure(&connection, "SELECT snapshot_now('x')").0, ErrorCode::ReadOnly);
    run(&connection, "CREATE TEMP TABLE mine AS SELECT * FROM accounts");
    assert_eq!(number(&connection, "SELECT balance FROM mine"), 100);
    assert_eq!(number(&connection, ALICE), 100);
    let past = place.db.sql_as_of("main", "then").unwrap();
    assert_eq!(failure(&past, "DELETE FROM accounts").0, ErrorCode::ReadOnly);
    run(&connection, "PRAGMA as_of = now; UPDATE accounts SET balance = 1");
}

#[test]
fn as_of_does_not_change_under_who_reads() {
    let (_place, connection) = bank();
    run(&connection, "SELECT snapshot_now('then'); UPDATE accounts SET balance = 95; BEGIN");
    let (_, _, words) = failure(&connection, "PRAGMA as_of = 'then'");
    assert!(words.contains("inside a transaction"), "{words}");
    run(&connection, "SELECT * FROM accounts");
    failure(&connection, "PRAGMA as_of = now");
    run(&connection, "COMMIT");
    let mut statement = connection.prepare("SELECT balance FROM accounts").unwrap();
    let mut found = statement.query([]).unwrap();
    assert_eq!(found.next().unwrap().unwrap().get::<_, i64>(0).unwrap(), 95);
    failure(&connection, "PRAGMA as_of = 'then'");
    drop(found);
    run(&connection, "PRAGMA as_of = 'then'");
    let mut found = statement.query([]).unwrap();
    assert_eq!(found.next().unwrap().unwrap().get::<_, i64>(0).unwrap(), 100, "the same prepared statement");
}

#[test]
fn past_and_present_join() {
    let (place, connection) = bank();
    run(&connection, "SELECT snapshot_now('before-fees'); UPDATE accounts SET balance = 95");
    run(&connection, &format!("ATTACH '{}' AS past", place.uri("&as_of=before-fees")));
    let difference = "SELECT past.accounts.balance - main.accounts.balance FROM main.accounts
                      JOIN past.accounts USING (owner)";
    assert_eq!(number(&connection, difference), 5);
    run(&connection, "UPDATE main.accounts SET balance = 90");
    assert_eq!(number(&connection, difference), 10);
    assert_eq!(failure(&connection, "UPDATE past.accounts SET balance = 1").0, ErrorCode::ReadOnly);
    run(&connection, "BEGIN; UPDATE main.accounts SET balance = (SELECT balance FROM past.accounts); COMMIT");
    assert_eq!(number(&connection, ALICE), 100);
    run(
        &connection,
        "SELECT snapshot_now('later'); UPDATE main.accounts SET balance = 1; PRAGMA past.as_of = now",
    );
    assert_eq!(number(&connection, "SELECT balance FROM past.accounts"), 1);
    run(&connection, "PRAGMA past.as_of = 'later'");
    assert_eq!(number(&connection, "SELECT balance FROM past.accounts"), 100);
    assert_eq!(number(&connection, ALICE), 1);
}

#[test]
fn a_past_without_the_database_is_empty() {
    let place = Place::new();
    place.db.snapshot_now("before").unwrap();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES (1); PRAGMA as_of = 'before'");
    assert_eq!(number(&connection, "SELECT count(*) FROM sqlite_schema"), 0);
    run(&connection, "PRAGMA as_of = now");
    assert_eq!(number(&connection, "SELECT a FROM t"), 1);
    let error = place.db.sql_as_of("main", "before").unwrap_err().to_string();
    assert!(error.contains("no SQL database"), "{error}");
}

#[test]
fn snapshots_are_listed() {
    let (place, connection) = bank();
    run(&connection, "SELECT snapshot_now('one'); UPDATE accounts SET balance = 2; SELECT snapshot_now()");
    let listed = rows(&connection, "SELECT id, name FROM bygone_snapshots ORDER BY id DESC");
    assert_eq!(listed, ["Integer(2)|Null", "Integer(1)|Text([111, 110, 101])"]);
    assert_eq!(
        number(
            &connection,
            "SELECT count(*) FROM bygone_snapshots WHERE time <= datetime('now', '+1 second')"
        ),
        2
    );
    assert_eq!(number(&connection, "SELECT count(*) FROM bygone_snapshots('main') WHERE bytes >= 0"), 2);
    assert_eq!(number(&connection, "SELECT count(*) FROM pragma_table_info('bygone_snapshots')"), 4);
    let (_, _, words) = failure(&connection, "SELECT * FROM bygone_snapshots('temp')");
    assert!(words.contains("temp"), "{words}");
    let elsewhere = rusqlite::Connection::open_in_memory().unwrap();
    failure(&elsewhere, "SELECT * FROM bygone_snapshots");
    place.db.merge().unwrap();
    run(&connection, "UPDATE accounts SET balance = 3; SELECT snapshot_now()");
    place.db.merge().unwrap();
    let bytes = number(&connection, "SELECT sum(bytes) FROM bygone_snapshots");
    let sizes = place.db.snapshot_sizes().unwrap();
    assert_eq!(bytes, sizes.iter().map(|size| size.own_bytes as i64).sum::<i64>());
    let (_, _, words) = failure(&connection, "DELETE FROM bygone_snapshots");
    assert!(words.contains("bygone_snapshots"), "{words}");
}

#[test]
fn a_deleted_snapshot_that_is_read_reads_on() {
    let (place, connection) = bank();
    run(&connection, "SELECT snapshot_now('then'); UPDATE accounts SET balance = 95; PRAGMA as_of = 'then'");
    place.db.delete_snapshot("then").unwrap();
    place.db.merge().unwrap();
    assert_eq!(number(&connection, ALICE), 100);
    run(&connection, "PRAGMA as_of = now");
    failure(&connection, "PRAGMA as_of = 'then'");
    assert_eq!(number(&connection, ALICE), 95);
}
