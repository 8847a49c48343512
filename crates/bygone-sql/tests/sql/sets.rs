//! Set queries: one query, asked of many snapshots.
//!
//! Owns: tests of the four mechanisms against asking each snapshot by itself, of what is skipped, and of what can be
//! wrong. May call: the support.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bygone_sql::{SetProgress, SetStats, on_set_progress, set_stats};
use rusqlite::{Connection, ErrorCode};

use crate::support::{Place, failure, number, rows, run, text};

/// Accounts as of three snapshots: one owner, the same again, two owners.
fn bank() -> (Place, Connection) {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance INTEGER)");
    run(&connection, "INSERT INTO accounts VALUES ('alice', 100); SELECT snapshot_now('one')");
    run(&connection, "CREATE TABLE others(a); SELECT snapshot_now('two')");
    run(
        &connection,
        "UPDATE accounts SET balance = 90; INSERT INTO accounts VALUES ('bob', 10); SELECT snapshot_now()",
    );
    run(&connection, "DELETE FROM accounts");
    (place, connection)
}

fn stats(connection: &Connection) -> SetStats {
    set_stats(connection).expect("a set query has been answered")
}

#[test]
fn results_are_collated() {
    let (_place, connection) = bank();
    let collate = "SELECT CollateData(id, 'SELECT owner, balance FROM accounts ORDER BY owner', 'result')
                   FROM bygone_snapshots";
    assert_eq!(number(&connection, collate), 4);
    let listed: Vec<String> =
        ["1|alice|100", "2|alice|100", "3|alice|90", "3|bob|10"].map(str::to_owned).into();
    let list = "SELECT snapshot || '|' || owner || '|' || balance FROM temp.result ORDER BY rowid";
    assert_eq!(texts(&connection, list), listed);
    assert_eq!(
        texts(&connection, "SELECT name FROM pragma_table_info('result')"),
        ["snapshot", "owner", "balance"]
    );
    // A second time there is such a table.
    let (_, _, words) = failure(&connection, collate);
    assert!(words.contains("result already exists"), "{words}");
    // Others do not see it; in the database itself they do.
    assert_eq!(number(&connection, &collate.replace("'result'", "'main.Re\"sult'")), 4);
    let others = "SELECT snapshot || '|' || owner || '|' || balance FROM \"re\"\"sult\" ORDER BY rowid";
    assert_eq!(texts(&_place.sql(), others), listed);
    // Some of the snapshots, out of order, twice, by name.
    let some = "SELECT CollateData(column1, 'SELECT owner FROM accounts ORDER BY owner DESC', 'some')
                FROM (VALUES (3), ('one'), (NULL), (1), (3))";
    assert_eq!(number(&connection, some), 3);
    assert_eq!(
        texts(&connection, "SELECT snapshot || owner FROM some ORDER BY rowid"),
        ["1alice", "3bob", "3alice"]
    );
    // The session reads the past, the snapshots are what they are.
    run(&connection, "PRAGMA as_of = 'one'");
    assert_eq!(number(&connection, &collate.replace("'result'", "'again'")), 4);
    assert_eq!(failure(&connection, &collate.replace("'result'", "'main.other'")).0, ErrorCode::ReadOnly);
    run(&connection, "PRAGMA as_of = now");
    assert!(connection.is_autocommit());
}

/// The texts in a query's first column.
fn texts(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap();
    let found = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    found.map(Result::unwrap).collect()
}

#[test]
fn results_are_aggregated_into_one_value() {
    let (_place, connection) = bank();
    let ask = |query: &str, function: &str| {
        let sql =
            format!("SELECT AggregateDataInVariable(id, '{query}', '{function}') FROM bygone_snapshots");
        rows(&connection, &sql).remove(0)
    };
    let sum = "SELECT sum(balance) FROM accounts";
    for (function, value) in [
        ("min", "Integer(100)"),
        ("max", "Integer(100)"),
        ("SUM", "Integer(300)"),
        ("total", "Real(300.0)"),
        (" avg ", "Real(100.0)"),
        ("count", "Integer(3)"),
    ] {
        assert_eq!(ask(sum, function), value, "{function}");
    }
    let least = "SELECT min(balance) FROM accounts";
    assert_eq!((ask(least, "first"), ask(least, "last")), ("Integer(100)".into(), "Integer(10)".into()));
    let bob = "SELECT balance FROM accounts WHERE owner = ''bob''";
    assert_eq!((ask(bob, "count"), ask(bob, "first")), ("Integer(1)".into(), "Integer(10)".into()));
    assert_eq!(ask("SELECT NULL", "sum"), "Null");
    assert_eq!(ask("SELECT x''00ff''", "last"), "Blob([0, 255])");
    let fails = |query: &str, function: &str, part: &str| {
        let sql =
            format!("SELECT AggregateDataInVariable(id, '{query}', '{function}') FROM bygone_snapshots");
        let (_, _, words) = failure(&connection, &sql);
        assert!(words.contains(part), "{query}: {words}");
    };
    fails("SELECT owner FROM accounts", "min", "as of snapshot 3: the query gives 2 rows");
    fails("SELECT 1, 2", "min", "as of snapshot 1 (\"one\"): the query gives 1 rows of 2 columns");
    fails("SELECT 1", "median", "\"median\" is none of the aggregates");
}

#[test]
fn results_are_aggregated_into_a_table() {
    let (_place, connection) = bank();
    let ask = |query: &str, table: &str, pairs: &str| {
        let sql =
            format!("SELECT AggregateDataInTable(id, '{query}', '{table}', '{pairs}') FROM bygone_snapshots");
        number(&connection, &sql)
    };
    assert_eq!(ask("SELECT owner, balance FROM accounts", "a", "balance:min"), 2);
    assert_eq!(rows(&connection, "SELECT * FROM a ORDER BY owner").len(), 2);
    assert_eq!(number(&connection, "SELECT balance FROM a WHERE owner = 'alice'"), 90);
    assert_eq!(
        ask("SELECT balance, owner FROM accounts", "b", "BALANCE:sum, balance:count, balance:last"),
        2
    );
    assert_eq!(
        texts(&connection, "SELECT name FROM pragma_table_info('b')"),
        ["balance_sum", "balance_count", "balance_last", "owner"]
    );
    assert_eq!(
        rows(&connection, "SELECT balance_sum, balance_count, balance_last FROM b ORDER BY owner"),
        ["Integer(290)|Integer(3)|Integer(90)", "Integer(10)|Integer(1)|Integer(10)"]
    );
    // Nothing to group by, no rows, NULL as a group.
    assert_eq!(ask("SELECT count(*) AS n FROM accounts", "c", "n:first,n:max"), 1);
    assert_eq!(rows(&connection, "SELECT n_first, n_max FROM c"), ["Integer(1)|Integer(2)"]);
    assert_eq!(ask("SELECT owner, balance FROM accounts WHERE 0", "d", "balance:first"), 0);
    assert_eq!(ask("SELECT NULL AS g, balance FROM accounts", "e", "balance:max"), 1);
    assert_eq!(ask("SELECT NULL AS g, balance FROM accounts", "f", "balance:first"), 1);
    for (pairs, part) in [("nothing:sum", "no column \"nothing\""), ("balance", "column:function")] {
        let sql = format!(
            "SELECT AggregateDataInTable(id, 'SELECT balance FROM accounts', 'x', '{pairs}') FROM bygone_snapshots"
        );
        let (_, _, words) = failure(&connection, &sql);
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn results_become_intervals() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE users(name)");
    let logged_in = ["", "ab", "ab", "b", "", "abb", "a"];
    for names in logged_in {
        run(&connection, "DELETE FROM users");
        for name in names.chars() {
            run(&connection, &format!("INSERT INTO users VALUES ('{name}')"));
        }
        run(&connection, "SELECT snapshot_now()");
    }
    let sql = "SELECT CollateDataIntoIntervals(id, 'SELECT name FROM users', 'r') FROM bygone_snapshots";
    assert_eq!(number(&connection, sql), 4);
    let list = "SELECT name || start_snapshot || end_snapshot FROM r ORDER BY rowid";
    assert_eq!(texts(&connection, list), ["a23", "b24", "a67", "b66"]);
    // Snapshots that are not asked make no gap.
    let odd =
        "SELECT CollateDataIntoIntervals(id, 'SELECT name, NULL FROM users', 'odd') FROM bygone_snapshots
               WHERE id <> 5";
    assert_eq!(number(&connection, odd), 3);
    let list = "SELECT name || start_snapshot || end_snapshot FROM odd ORDER BY rowid";
    assert_eq!(texts(&connection, list), ["a23", "b26", "a67"]);
}

#[test]
fn what_cannot_have_changed_is_not_run_again() {
    let place = Place::new();
    let connection = place.sql();
    run(
        &connection,
        "CREATE TABLE big(k INTEGER PRIMARY KEY, v TEXT); CREATE TABLE small(a);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         INSERT INTO big SELECT i, printf('%0200d', i) FROM n;
         INSERT INTO small VALUES (1); SELECT snapshot_now()",
    );
    // Even ones change a far row, every fourth one also a near one.
    for i in 1..20 {
        let key = if i % 4 == 0 { 1 } else { 2000 };
        run(
            &connection,
            &format!("UPDATE big SET v = printf('%0200d', -{i}) WHERE k = {key}; SELECT snapshot_now()"),
        );
    }
    let ask = |query: &str| {
        let sql = format!("SELECT AggregateDataInVariable(id, '{query}', 'count') FROM bygone_snapshots");
        number(&connection, &sql);
        let stats = stats(&connection);
        assert_eq!((stats.snapshots, stats.runs + stats.skipped), (20, 20), "{query}");
        stats.runs
    };
    assert_eq!(ask("SELECT v FROM big WHERE k = 1"), 5);
    assert_eq!(ask("SELECT v FROM big WHERE k = 1000"), 1);
    assert_eq!(ask("SELECT max(a) FROM small"), 1);
    assert_eq!(ask("SELECT max(v) FROM big"), 20);
    assert_eq!(ask("SELECT count(*) FROM sqlite_schema"), 1);
    assert_eq!(ask("SELECT 1"), 1);
    // These cannot be told from what they read.
    assert_eq!(ask("SELECT current_snapshot()"), 20);
    assert_eq!(ask("SELECT random()"), 20);
    assert_eq!(ask("SELECT count(*) FROM bygone_snapshots"), 20);
    assert_eq!(ask("SELECT max(freelist_count) FROM pragma_freelist_count"), 20);
    // It is not asked for.
    assert_eq!(ask("SELECT a FROM small WHERE a = 2 AND current_snapshot() = 7"), 1);
    assert_eq!(ask("SELECT max(v) FROM big"), 20);
    assert!(stats(&connection).page_reads > 20, "{:?}", stats(&connection));
    let json = text(&connection, "SELECT bygone_set_stats()");
    assert_eq!(number(&connection, &format!("SELECT '{json}' ->> 'runs'")), 20);
    assert_eq!(number(&connection, "SELECT current_snapshot() IS NULL"), 1);
}

#[test]
fn a_schema_that_changes_is_that_of_each_snapshot() {
    let place = Place::new();
    place.db.snapshot_now("before").unwrap();
    let connection = place.sql();
    run(&connection, "CREATE TABLE u(a); SELECT snapshot_now('without')");
    run(&connection, "CREATE TABLE t(a); INSERT INTO t VALUES (1); SELECT snapshot_now('with')");
    run(&connection, "ALTER TABLE t ADD COLUMN b DEFAULT 7; SELECT snapshot_now('wide')");
    run(&connection, "DROP TABLE t; CREATE VIEW t AS SELECT 5 AS a; SELECT snapshot_now('view')");
    let collate = |query: &str, table: &str, snapshots: &str| {
        format!("SELECT CollateData(id, '{query}', '{table}') FROM bygone_snapshots WHERE {snapshots}")
    };
    assert_eq!(number(&connection, &collate("SELECT a FROM t", "r", "id >= 3")), 3);
    assert_eq!(texts(&connection, "SELECT snapshot || '|' || a FROM r ORDER BY 1"), ["3|1", "4|1", "5|5"]);
    let fails = |query: &str, snapshots: &str, part: &str| {
        let (_, _, words) = failure(&connection, &collate(query, "x", snapshots));
        assert!(words.contains(part), "{words}");
        assert_eq!(rows(&connection, "SELECT * FROM temp.sqlite_schema WHERE name = 'x'"), [""; 0]);
        assert!(set_stats(&connection).is_none());
    };
    fails("SELECT a FROM t", "1", "as of snapshot 1 (\"before\"): no such table: t");
    fails("SELECT a FROM t", "id >= 2", "as of snapshot 2 (\"without\"): no such table: t");
    fails(
        "SELECT * FROM t",
        "id >= 3",
        "as of snapshot 4 (\"wide\"): the query gives (a, b) here, and (a) before",
    );
    let count = collate("SELECT count(*) AS n FROM sqlite_schema", "counts", "1");
    assert_eq!(number(&connection, &count), 5);
    assert_eq!(
        rows(&connection, "SELECT n FROM counts ORDER BY snapshot"),
        ["Integer(0)", "Integer(1)", "Integer(2)", "Integer(2)", "Integer(2)"]
    );
    // The same schema counter twice, by a restore.
    run(&connection, "DROP TABLE u; CREATE TABLE w(a); SELECT snapshot_now('one way')");
    place.db.restore("view").unwrap();
    let again = place.sql();
    run(&again, "DROP TABLE u; CREATE TABLE w AS SELECT 9 AS a; SELECT snapshot_now('the other')");
    let which = "SELECT name FROM pragma_table_info(''w'')";
    let ways = "name IN ('one way', 'the other')";
    assert_eq!(number(&again, &collate("SELECT max(a) AS m FROM w", "ways", ways)), 2);
    assert_eq!(rows(&again, "SELECT m FROM ways ORDER BY snapshot"), ["Null", "Integer(9)"]);
    assert_eq!(number(&again, &collate(which, "columns", ways)), 2);
}

#[test]
fn no_snapshot_is_no_table_and_no_value() {
    let (_place, connection) = bank();
    let none = "FROM bygone_snapshots WHERE id > 1000";
    assert_eq!(number(&connection, &format!("SELECT CollateData(id, 'SELECT 1', 'r') {none}")), 0);
    assert_eq!(stats(&connection), SetStats::default());
    assert_eq!(
        rows(&connection, &format!("SELECT AggregateDataInVariable(id, 'SELECT 1', 'sum') {none}")),
        ["Null"]
    );
    assert_eq!(rows(&connection, "SELECT * FROM temp.sqlite_schema"), [""; 0]);
    assert_eq!(number(&connection, "SELECT CollateData(NULL, 'SELECT 1', 'r')"), 0);
}

#[test]
fn what_is_wrong_is_said() {
    let (place, connection) = bank();
    let fails = |sql: &str, part: &str| {
        let (_, _, words) = failure(&connection, sql);
        assert!(words.contains(part), "{sql}: {words}");
        assert!(connection.is_autocommit());
    };
    let collate = |query: &str| format!("SELECT CollateData(id, '{query}', 'x') FROM bygone_snapshots");
    fails(&collate("SELEC 1"), "as of snapshot 1 (\"one\"): near \"SELEC\": syntax error");
    fails(&collate(""), "there is no statement");
    fails(&collate("SELECT 1; SELECT 2"), "more than one statement");
    fails(&collate("DELETE FROM accounts"), "one that selects");
    fails(&collate("DELETE FROM accounts RETURNING *"), "");
    fails(&collate("BEGIN"), "one that selects");
    fails(&collate("PRAGMA as_of = now"), "not authorized");
    fails(
        &collate("SELECT abs(-9223372036854775808) FROM accounts"),
        "as of snapshot 1 (\"one\"): integer overflow",
    );
    fails("SELECT CollateData(1, 'SELECT 1', 'nowhere.x')", "no database \"nowhere\"");
    fails("SELECT CollateData(1, 'SELECT 1', '')", "no name");
    fails("SELECT CollateData(1, 'SELECT 1', NULL)", "not NULL");
    fails("SELECT CollateData(1.5, 'SELECT 1', 'x')", "by its id or its name");
    fails("SELECT CollateData('nobody', 'SELECT 1', 'x')", "nobody");
    fails("SELECT CollateData(77, 'SELECT 1', 'x')", "as of snapshot 77");
    fails("SELECT CollateData(id, 'SELECT ' || id, 'x') FROM bygone_snapshots", "the same of every snapshot");
    fails("INSERT INTO others SELECT CollateData(id, 'SELECT 1', 'x') FROM bygone_snapshots", "in progress");
    run(
        &connection,
        "INSERT INTO others SELECT AggregateDataInVariable(id, 'SELECT 1', 'sum') FROM bygone_snapshots",
    );
    assert_eq!(number(&connection, "SELECT a FROM others"), 3);
    place.db.delete_snapshot("two").unwrap();
    fails("SELECT CollateData(column1, 'SELECT 1', 'x') FROM (VALUES (1), (2))", "as of snapshot 2");
    let elsewhere = Connection::open_in_memory().unwrap();
    let (_, _, words) = failure(&elsewhere, "SELECT CollateData(1, 'SELECT 1', 'x')");
    assert!(words.contains("no database of this connection"), "{words}");
}

#[test]
fn a_table_of_results_belongs_to_its_transaction() {
    let (place, connection) = bank();
    let collate = "SELECT CollateData(id, 'SELECT owner FROM accounts', 'main.x') FROM bygone_snapshots";
    run(&connection, "BEGIN; INSERT INTO others VALUES (1)");
    assert_eq!(number(&connection, collate), 4);
    assert_eq!(number(&connection, "SELECT count(*) FROM x"), 4);
    run(&connection, "ROLLBACK");
    failure(&connection, "SELECT * FROM x");
    assert_eq!(number(&connection, collate), 4);
    assert_eq!(number(&place.sql(), "SELECT count(*) FROM x"), 4);
}

#[test]
fn progress_is_reported_and_all_can_be_ended() {
    let (_place, connection) = bank();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reports = seen.clone();
    on_set_progress(&connection, move |progress: &SetProgress| {
        reports.lock().unwrap().push(*progress);
        true
    });
    let collate = "SELECT CollateData(id, 'SELECT owner FROM accounts', 'x') FROM bygone_snapshots";
    assert_eq!(number(&connection, collate), 4);
    let seen: Vec<_> =
        seen.lock().unwrap().iter().map(|p| (p.snapshot, p.done, p.total, p.skipped)).collect();
    assert_eq!(seen, [(1, 0, 3, 0), (2, 1, 3, 0), (3, 2, 3, 0)]);
    let calls = AtomicU64::new(0);
    on_set_progress(&connection, move |_| calls.fetch_add(1, Ordering::Relaxed) < 1);
    let again = collate.replace("'x'", "'y'");
    assert_eq!(failure(&connection, &again).0, ErrorCode::OperationInterrupted);
    on_set_progress(&connection, |_| true);
    // An endless query, ended from elsewhere.
    let handle = connection.get_interrupt_handle();
    on_set_progress(&connection, move |progress| {
        handle.interrupt();
        progress.done < 100
    });
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let sql = format!("SELECT AggregateDataInVariable(id, '{endless}', 'sum') FROM bygone_snapshots");
    assert_eq!(failure(&connection, &sql).0, ErrorCode::OperationInterrupted);
    on_set_progress(&connection, |_| true);
    let handle = connection.get_interrupt_handle();
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        handle.interrupt();
    });
    assert_eq!(failure(&connection, &sql).0, ErrorCode::OperationInterrupted);
    other.join().unwrap();
    assert!(connection.is_autocommit());
    assert_eq!(number(&connection, &again), 4);
}

#[test]
fn another_database_of_the_session_is_asked_by_its_name() {
    let (place, connection) = bank();
    run(&connection, &format!("ATTACH '{}' AS aux", place.uri("&db=second")));
    run(&connection, "CREATE TABLE aux.t(x); INSERT INTO aux.t VALUES (7); SELECT snapshot_now('seven')");
    run(&connection, "UPDATE aux.t SET x = 8; SELECT snapshot_now('eight')");
    let ids = "FROM bygone_snapshots('aux') WHERE name IN ('seven', 'eight')";
    let count = |sql: &str| number(&connection, &format!("SELECT {sql} {ids}"));
    assert_eq!(count("CollateData(id, 'SELECT x FROM t', 'a', 'aux')"), 2);
    assert_eq!(rows(&connection, "SELECT x FROM a"), ["Integer(7)", "Integer(8)"]);
    assert_eq!(count("AggregateDataInVariable(name, 'SELECT x FROM t', 'sum', 'aux')"), 15);
    assert_eq!(count("AggregateDataInTable(id, 'SELECT x FROM t', 'b', 'x:max', 'aux')"), 1);
    assert_eq!(count("CollateDataIntoIntervals(id, 'SELECT x FROM t', 'c', 'AUX')"), 2);
    let of_main = format!("SELECT CollateData(id, 'SELECT x FROM t', 'd') {ids}");
    assert!(failure(&connection, &of_main).2.contains("no such table"));
    let of_nothing = format!("SELECT CollateData(id, 'SELECT x FROM t', 'd', 'temp') {ids}");
    assert!(failure(&connection, &of_nothing).2.contains("\"temp\" is not a database on Bygone"));
}

#[test]
fn a_statement_that_fails_makes_no_table() {
    let (_place, connection) = bank();
    let collate = "CollateData(id, 'SELECT owner FROM accounts', 'result')";
    for failing in [
        format!("SELECT {collate} FROM bygone_snapshots WHERE id < 3 OR json('x' || id)"),
        format!(
            "SELECT {collate} FROM (SELECT id FROM bygone_snapshots ORDER BY name DESC) WHERE id > 1 OR json('x' || id)"
        ),
        format!(
            "WITH s AS MATERIALIZED (SELECT id FROM bygone_snapshots) SELECT {collate} FROM s
             WHERE id < 3 OR json('x' || id)"
        ),
    ] {
        assert!(failure(&connection, &failing).2.contains("malformed JSON"), "{failing}");
        let found = number(&connection, "SELECT count(*) FROM temp.sqlite_schema WHERE name = 'result'");
        assert_eq!(found, 0, "{failing}");
    }
    // However the snapshots are found, a statement that does not fail makes its table.
    for source in [
        "bygone_snapshots",
        "(SELECT id FROM bygone_snapshots ORDER BY name DESC LIMIT 3)",
        "(SELECT max(id) AS id FROM bygone_snapshots GROUP BY id)",
        "(SELECT id FROM bygone_snapshots UNION SELECT 1)",
        "bygone_snapshots AS s JOIN (SELECT 1 AS x) ON x IN (SELECT id FROM bygone_snapshots)",
        "(SELECT value AS id FROM json_each('[1,2,3]'))",
    ] {
        let ids =
            if source.contains(" AS s") { collate.replacen("id", "s.id", 1) } else { collate.to_owned() };
        let count = number(&connection, &format!("SELECT {ids} FROM {source}"));
        assert!(count > 2, "{source}: {count}");
        run(&connection, "DROP TABLE temp.result");
    }
    assert_eq!(
        number(
            &connection,
            &format!("WITH s AS MATERIALIZED (SELECT id FROM bygone_snapshots) SELECT {collate} FROM s")
        ),
        4
    );
}
