//! Tables of changes that have the columns of the table, and whether they tell all changes.
//!
//! Owns: tests of `CREATE VIRTUAL TABLE ... USING bygone_diff` and `bygone_history`; both kinds of differences against
//! comparing all rows. May call: the support.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use crate::support::{Place, Random, failure, rows, run};

/// Rows as text, one line each, NULL as a dash.
fn lines(connection: &Connection, sql: &str) -> Vec<String> {
    let quoted = rows(connection, sql);
    let plain = |line: String| {
        let values = line.split('|').map(|value| match value {
            "Null" => "-".to_owned(),
            number if number.starts_with("Integer(") => number[8..number.len() - 1].to_owned(),
            real if real.starts_with("Real(") => real[5..real.len() - 1].to_owned(),
            text => {
                let bytes =
                    text.trim_start_matches("Text([").trim_start_matches("Blob([").trim_end_matches("])");
                let bytes = bytes.split(", ").filter_map(|byte| byte.parse().ok()).collect();
                String::from_utf8(bytes).unwrap()
            }
        });
        values.collect::<Vec<_>>().join(" ")
    };
    quoted.into_iter().map(plain).collect()
}

fn sorted(connection: &Connection, sql: &str) -> Vec<String> {
    let mut found = lines(connection, sql);
    found.sort();
    found
}

#[test]
fn differences_have_the_columns_of_the_table() {
    let place = Place::new();
    let connection = place.sql();
    run(
        &connection,
        "CREATE TABLE accounts(owner TEXT COLLATE NOCASE PRIMARY KEY, balance INTEGER, change REAL);
         INSERT INTO accounts VALUES ('alice', 100, 1.5), ('bob', 20, NULL), ('carl', 7, 0); SELECT snapshot_now('a');
         UPDATE accounts SET balance = 95 WHERE owner = 'alice'; DELETE FROM accounts WHERE owner = 'bob';
         INSERT INTO accounts VALUES ('dora', 1, 2); SELECT snapshot_now('b');
         CREATE VIRTUAL TABLE temp.d USING bygone_diff(accounts, a, 'b')",
    );
    assert_eq!(
        lines(&connection, "SELECT name, type FROM pragma_table_xinfo('d')"),
        [
            "change:1 TEXT",
            "owner TEXT",
            "balance INTEGER",
            "old_balance INTEGER",
            "change REAL",
            "old_change REAL"
        ]
    );
    assert_eq!(
        sorted(&connection, "SELECT * FROM d"),
        ["delete bob - 20 - -", "insert dora 1 - 2.0 -", "update alice 95 100 1.5 1.5"]
    );
    assert_eq!(
        lines(&connection, "SELECT old_balance FROM d WHERE owner = 'ALICE'"),
        ["100"],
        "the collation"
    );
    assert_eq!(lines(&connection, "SELECT total(balance) - total(old_balance) FROM d"), ["-24.0"]);

    // Columns of both schemas are there; what is in both is compared.
    run(
        &connection,
        "ALTER TABLE accounts DROP COLUMN change; ALTER TABLE accounts ADD COLUMN note;
         UPDATE accounts SET note = 'rich' WHERE owner = 'alice'; SELECT snapshot_now('c');
         CREATE VIRTUAL TABLE temp.e USING bygone_diff(accounts, b, c)",
    );
    assert_eq!(
        sorted(&connection, "SELECT * FROM e"),
        ["update alice 95 95 rich - - 1.5", "update carl 7 7 - - - 0.0", "update dora 1 1 - - - 2.0"]
    );
    // The present moves on, and so does its table.
    run(&connection, "CREATE VIRTUAL TABLE temp.f USING bygone_diff(accounts, c, now)");
    assert_eq!(lines(&connection, "SELECT * FROM f"), [""; 0]);
    run(&connection, "DELETE FROM accounts WHERE owner = 'carl'");
    assert_eq!(lines(&connection, "SELECT * FROM f"), ["delete carl - 7 - -"]);
    run(&connection, "DROP TABLE d; DROP TABLE temp.e; DROP TABLE f");
}

#[test]
fn keys_that_are_no_columns_or_others_later() {
    let place = Place::new();
    let connection = place.sql();
    run(
        &connection,
        "CREATE TABLE plain(x); INSERT INTO plain VALUES (1), (2);
         CREATE TABLE other(x, y, PRIMARY KEY (x)); INSERT INTO other VALUES (1, 2);
         CREATE TABLE pair(z, x, y, PRIMARY KEY (y, x)) WITHOUT ROWID; INSERT INTO pair VALUES (1, 2, 'p');
         SELECT snapshot_now('a');
         UPDATE plain SET x = 3 WHERE x = 2; UPDATE pair SET z = 4;
         DROP TABLE other; CREATE TABLE other(x, y, PRIMARY KEY (y)); INSERT INTO other VALUES (1, 2);
         SELECT snapshot_now('b');
         CREATE VIRTUAL TABLE temp.plain_diff USING bygone_diff(plain, a, b);
         CREATE VIRTUAL TABLE temp.pair_diff USING bygone_diff(\"pair\", a, b);
         CREATE VIRTUAL TABLE temp.other_diff USING bygone_diff(other, a, b);
         CREATE VIRTUAL TABLE temp.plain_history USING bygone_history(plain);
         CREATE VIRTUAL TABLE temp.pair_history USING bygone_history([pair])",
    );
    assert_eq!(lines(&connection, "SELECT change, rowid, x, old_x FROM plain_diff"), ["update 2 3 2"]);
    assert_eq!(lines(&connection, "SELECT change, y, x, z, old_z FROM pair_diff"), ["update p 2 4 1"]);
    assert_eq!(
        sorted(&connection, "SELECT change, x, old_x, y, old_y FROM other_diff"),
        ["delete - 1 - 2", "insert 1 - 2 -"]
    );
    assert_eq!(
        lines(&connection, "SELECT * FROM plain_history WHERE rowid = 2"),
        ["1 insert 2 2", "2 update 2 3"]
    );
    assert_eq!(
        lines(&connection, "SELECT * FROM pair_history WHERE x = 2 AND y = 'p'"),
        ["1 insert p 2 1", "2 update p 2 4"]
    );
    assert_eq!(lines(&connection, "SELECT * FROM pair_history"), ["1 insert p 2 1", "2 update p 2 4"]);
}

#[test]
fn histories_have_the_columns_of_the_table() {
    let place = Place::new();
    let connection = place.sql();
    for statement in [
        "CREATE TABLE others(a)",
        "CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance INTEGER)",
        "INSERT INTO accounts VALUES ('alice', 100), ('bob', 7)",
        "UPDATE accounts SET balance = 95 WHERE owner = 'alice'",
        "ALTER TABLE accounts ADD COLUMN note TEXT COLLATE NOCASE",
        "UPDATE accounts SET note = 'Rich' WHERE owner = 'bob'",
        "DELETE FROM accounts WHERE owner = 'alice'",
        "ALTER TABLE accounts DROP COLUMN balance",
        "DROP TABLE accounts",
    ] {
        run(&connection, &format!("{statement}; SELECT snapshot_now()"));
    }
    run(&connection, "CREATE VIRTUAL TABLE temp.h USING bygone_history(accounts)");
    let all = [
        "3 insert alice - 100",
        "3 insert bob - 7",
        "4 update alice - 95",
        "6 update bob Rich 7",
        "7 delete alice - -",
        "8 update bob Rich -",
        "9 delete bob - -",
    ];
    assert_eq!(sorted(&connection, "SELECT * FROM h"), all);
    let of = |owner: &str| lines(&connection, &format!("SELECT * FROM h WHERE owner = '{owner}'"));
    for owner in ["alice", "bob"] {
        let expected: Vec<&str> = all.into_iter().filter(|line| line.contains(owner)).collect();
        assert_eq!(of(owner), expected);
    }
    assert_eq!(of("nobody"), [""; 0]);
    assert_eq!(lines(&connection, "SELECT snapshot FROM h WHERE note = 'rich'"), ["6", "8"], "the collation");
    assert_eq!(
        lines(
            &connection,
            "SELECT h.snapshot, h.balance FROM (SELECT 'bob' AS who) JOIN h ON h.owner = who WHERE h.change = 'insert'"
        ),
        ["3 7"]
    );
}

#[test]
fn what_cannot_be_made_is_refused() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(x); CREATE VIEW v AS SELECT 1; SELECT snapshot_now('a')");
    for (sql, part) in [
        ("CREATE VIRTUAL TABLE d USING bygone_diff(t, a, now)", "CREATE VIRTUAL TABLE temp.NAME"),
        ("CREATE VIRTUAL TABLE temp.d USING bygone_diff(t, a)", "bygone_diff(table, a, b)"),
        ("CREATE VIRTUAL TABLE temp.d USING bygone_diff", "bygone_diff(table, a, b)"),
        ("CREATE VIRTUAL TABLE temp.d USING bygone_diff(u, a, now)", "no table \"u\""),
        ("CREATE VIRTUAL TABLE temp.d USING bygone_diff(v, a, now)", "is a view"),
        ("CREATE VIRTUAL TABLE temp.d USING bygone_diff(t, a, nobody)", "nobody"),
        ("CREATE VIRTUAL TABLE temp.d USING bygone_diff(t, a, now, x)", "\"x\" is not a database on Bygone"),
        ("CREATE VIRTUAL TABLE h USING bygone_history(t)", "CREATE VIRTUAL TABLE temp.NAME"),
        ("CREATE VIRTUAL TABLE temp.h USING bygone_history(t, main, a)", "bygone_history(table)"),
        ("CREATE VIRTUAL TABLE temp.h USING bygone_history(u)", "as of any snapshot"),
        ("SELECT * FROM bygone_diff('t', 'a')", "bygone_diff('table', a, b)"),
        ("CREATE VIRTUAL TABLE temp.s USING bygone_snapshots", "no such module"),
    ] {
        let (_, _, words) = failure(&connection, sql);
        assert!(words.contains(part), "{sql}: {words}");
    }
}

#[test]
fn another_database_of_the_session_is_meant_by_its_name() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, &format!("ATTACH '{}' AS aux", place.uri("&db=second")));
    run(
        &connection,
        "CREATE TABLE aux.t(k PRIMARY KEY, v); INSERT INTO aux.t VALUES (1, 1); SELECT snapshot_now('a', 'aux');
         UPDATE aux.t SET v = 2; SELECT snapshot_now('b', 'aux');
         CREATE VIRTUAL TABLE temp.d USING bygone_diff(t, a, b, aux);
         CREATE VIRTUAL TABLE temp.h USING bygone_history(t, aux)",
    );
    assert_eq!(lines(&connection, "SELECT * FROM d"), ["update 1 2 1"]);
    assert_eq!(lines(&connection, "SELECT * FROM h WHERE k = 1"), ["1 insert 1 1", "2 update 1 2"]);
    assert_eq!(lines(&connection, "SELECT change, key FROM bygone_diff('t', 'a', 'b', 'aux')"), ["update 1"]);
    assert_eq!(lines(&connection, "SELECT change FROM bygone_history('t', 1, 'aux')"), ["insert", "update"]);
    let (_, _, words) = failure(&connection, "SELECT * FROM bygone_diff('t', 'a', 'b')");
    assert!(words.contains("no table"), "{words}");
}

/// SQLite writes over the end of a long row in place, and leaves the page alone that leads there.
#[test]
fn ends_of_long_rows_are_compared() {
    for table in ["k INTEGER PRIMARY KEY, b", "b, k, PRIMARY KEY (k)) WITHOUT ROWID; CREATE TABLE more(x"] {
        let place = Place::new();
        let connection = place.sql();
        let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200)
                    INSERT INTO t(k, b) SELECT i, zeroblob(3000) FROM n";
        run(
            &connection,
            &format!(
                "PRAGMA page_size = 1024; CREATE TABLE t({table}); {fill}; CREATE TABLE other AS SELECT * FROM t;
                 SELECT snapshot_now();
                 UPDATE t SET b = CAST(substr(b, 1, 2996) || 'abcd' AS BLOB) WHERE k = 100; SELECT snapshot_now();
                 UPDATE t SET b = CAST(substr(b, 1, 1500) || 'x' || substr(b, 1502) AS BLOB) WHERE k % 50 = 0;
                 SELECT snapshot_now();
                 UPDATE other SET b = CAST(substr(b, 1, 2996) || 'abcd' AS BLOB); SELECT snapshot_now()"
            ),
        );
        let keys = |a: u32, b: u32| {
            let sql =
                format!("SELECT key FROM bygone_diff('t', {a}, {b}) WHERE change = 'update' ORDER BY 1");
            lines(&connection, &sql)
        };
        assert_eq!(keys(1, 2), ["100"]);
        assert_eq!(keys(2, 1), ["100"]);
        assert_eq!(keys(2, 3), ["50", "100", "150", "200"]);
        assert_eq!(keys(1, 3), ["50", "100", "150", "200"]);
        assert_eq!(keys(3, 4), [""; 0]);
    }
}

/// Blobs that are zeros but for their end.
fn told(column: &str) -> String {
    format!("length({column}) || ':' || hex(substr({column}, -4))")
}

/// All rows of a table, by their keys.
fn state(connection: &Connection, table: &str) -> BTreeMap<String, String> {
    let sql = format!("SELECT k, v, {} FROM {table}", told("b"));
    let split = |line: String| {
        let (key, row) = line.split_once(' ').unwrap();
        (key.to_owned(), row.to_owned())
    };
    lines(connection, &sql).into_iter().map(split).collect()
}

fn between(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for key in a.keys().chain(b.keys()) {
        out.extend(match (a.get(key), b.get(key)) {
            (Some(old), Some(new)) if old == new => None,
            (Some(old), Some(new)) => Some(format!("update {key} {old} {new}")),
            (Some(old), None) => Some(format!("delete {key} {old}")),
            (None, Some(new)) => Some(format!("insert {key} {new}")),
            (None, None) => None,
        });
    }
    out
}

/// Everything that may befall a table, in random order; then differences between random moments are those that
/// comparing all rows gives.
#[test]
fn differences_told_by_pages_are_all_differences() {
    for seed in 0..24_u64 {
        let mut random = Random(seed + 1000);
        let place = Place::with(bygone::Options::new().memtable_bytes(256 << 10).background(seed % 2 == 0));
        let connection = place.sql();
        let table = [
            "k INTEGER PRIMARY KEY, v, b",
            "k TEXT PRIMARY KEY, v, b",
            "k, v, b, PRIMARY KEY (k)) WITHOUT ROWID; CREATE INDEX by_v ON t(v",
            "v REAL, b, k, PRIMARY KEY (k DESC)) WITHOUT ROWID; CREATE INDEX by_b ON t(b",
        ][seed as usize % 4];
        let page_bytes = [512, 1024, 4096][random.below(3) as usize];
        run(
            &connection,
            &format!(
                "PRAGMA page_size = {page_bytes}; PRAGMA auto_vacuum = {}; PRAGMA synchronous = OFF;
                 CREATE TABLE t({table}); CREATE TABLE other(k INTEGER PRIMARY KEY, v, b)",
                random.below(3)
            ),
        );
        let mut states: Vec<BTreeMap<String, String>> = Vec::new();
        while states.len() < 10 {
            let (key, value, length) =
                (random.below(3000), random.below(5), random.below(3) * random.below(3000));
            let name = if random.below(4) == 0 { "other" } else { "t" };
            let sql = match random.below(40) {
                0..8 => {
                    run(&connection, "SELECT snapshot_now()");
                    states.push(state(&connection, "t"));
                    continue;
                }
                8 => "VACUUM".to_owned(),
                9 => "PRAGMA incremental_vacuum(5)".to_owned(),
                10 => {
                    place.db.merge().unwrap();
                    continue;
                }
                11 => format!("DELETE FROM {name}"),
                12..14 => format!("DELETE FROM {name} WHERE k BETWEEN {key} AND {key} + 200"),
                14 => format!("DROP TABLE t; CREATE TABLE t({table})"),
                15 => format!(
                    "CREATE TABLE IF NOT EXISTS more(x); INSERT INTO more VALUES (zeroblob({length}))"
                ),
                16 => "DROP TABLE IF EXISTS more".to_owned(),
                // In the place of the record's end, without touching the page that leads there.
                17..22 => format!(
                    "UPDATE {name} SET b = CAST(substr(b, 1, length(b) - 4) || '{:04}' AS BLOB)
                     WHERE length(b) > 8 AND k > {key} AND v = {value}",
                    random.below(10_000)
                ),
                22..25 => format!("UPDATE {name} SET v = {value} WHERE k = {key}"),
                25..30 => format!(
                    "INSERT OR REPLACE INTO {name}(k, v, b)
                     WITH RECURSIVE n(i) AS (SELECT {key} UNION ALL SELECT i + 1 FROM n LIMIT 150)
                     SELECT i, {value}, zeroblob({length} / {}) FROM n",
                    1 + random.below(30)
                ),
                _ => format!(
                    "INSERT OR REPLACE INTO {name}(k, v, b) VALUES ({key}, {value}, zeroblob({length}))"
                ),
            };
            run(&connection, &sql);
        }
        for _ in 0..12 {
            let (a, b) = (random.below(10) as usize, random.below(10) as usize);
            let expected = between(&states[a], &states[b]);
            let ids = format!("{}, {}", a + 1, b + 1);
            run(&connection, &format!("CREATE VIRTUAL TABLE temp.d USING bygone_diff(t, {ids})"));
            let found = lines(
                &connection,
                &format!(
                    "SELECT change || ' ' || k || iif(change <> 'insert', ' ' || old_v || ' ' || {}, '')
                            || iif(change <> 'delete', ' ' || v || ' ' || {}, '') FROM d",
                    told("old_b"),
                    told("b")
                ),
            );
            let count = found.len();
            let found: BTreeSet<String> = found.into_iter().collect();
            assert_eq!(found.len(), count, "each is told once");
            assert!(found == expected, "seed {seed}, {ids}: {}", first_difference(&found, &expected));
            run(&connection, "DROP TABLE temp.d");
            let changes = lines(&connection, &format!("SELECT change, key FROM bygone_diff('t', {ids})"));
            assert_eq!(changes.len(), count, "seed {seed}, {ids}");
        }
    }
}

fn first_difference(found: &BTreeSet<String>, expected: &BTreeSet<String>) -> String {
    let cut = |line: Option<&String>| line.map(|line| line.chars().take(80).collect::<String>());
    let missing = cut(expected.difference(found).next());
    format!("missing {missing:?}, too much {:?}", cut(found.difference(expected).next()))
}

#[test]
fn a_collation_of_the_application_matters_only_in_a_key_and_is_named() {
    let place = Place::new();
    let connection = place.sql();
    connection.create_collation("reversed", |a, b| b.cmp(a)).unwrap();
    run(
        &connection,
        "CREATE TABLE plain(a INTEGER PRIMARY KEY, b TEXT COLLATE reversed UNIQUE);
         CREATE TABLE keyed(k TEXT COLLATE reversed PRIMARY KEY, v) WITHOUT ROWID;
         CREATE TABLE unique_key(k TEXT COLLATE reversed PRIMARY KEY, v);
         INSERT INTO plain VALUES (1, 'a'), (2, 'b'), (3, 'c');
         INSERT INTO keyed SELECT b, a FROM plain; INSERT INTO unique_key SELECT b, a FROM plain;
         SELECT snapshot_now('a');
         UPDATE plain SET b = 'B' WHERE a = 2; UPDATE keyed SET v = 0 WHERE k = 'b';
         UPDATE unique_key SET v = 0 WHERE k = 'b'; SELECT snapshot_now('b')",
    );
    assert_eq!(rows(&connection, "SELECT key, change FROM bygone_diff('plain', 'a', 'b')").len(), 1);
    assert_eq!(rows(&connection, "SELECT * FROM bygone_history('plain', 2)").len(), 2);
    run(
        &connection,
        "CREATE VIRTUAL TABLE temp.d USING bygone_diff(plain, a, b);
         CREATE VIRTUAL TABLE temp.h USING bygone_history(plain)",
    );
    assert_eq!(rows(&connection, "SELECT a, b FROM d WHERE b = 'B' AND old_b = 'b'").len(), 1);
    assert_eq!(rows(&connection, "SELECT a FROM h ORDER BY b").len(), 4);
    for table in ["keyed", "unique_key"] {
        for sql in [
            format!("SELECT * FROM bygone_diff('{table}', 'a', 'b')"),
            format!("SELECT * FROM bygone_history('{table}', 'b')"),
            format!(
                "DROP TABLE IF EXISTS temp.m; CREATE VIRTUAL TABLE temp.m USING bygone_diff({table}, a, b);
                 SELECT count(*) FROM m"
            ),
            format!(
                "DROP TABLE IF EXISTS temp.m; CREATE VIRTUAL TABLE temp.m USING bygone_history({table});
                 SELECT count(*) FROM m"
            ),
        ] {
            let (.., words) = failure(&connection, &sql);
            assert!(words.contains("reversed") && words.contains(table), "{sql}: {words}");
        }
    }
}
