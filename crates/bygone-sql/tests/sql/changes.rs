//! What changed, row by row.
//!
//! Owns: tests of `bygone_diff` and `bygone_history`, also against comparing copies. May call: the support.

use std::collections::{BTreeMap, BTreeSet};

use bygone_sql::Sql;
use rusqlite::Connection;

use crate::support::{Place, Random, failure, number, rows, run};

/// Rows as text, one line each, NULL as a dash.
fn lines(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let count = statement.column_count();
    let mut found = statement.raw_query();
    let mut out = Vec::new();
    while let Some(row) = found.next().unwrap_or_else(|error| panic!("{sql}: {error}")) {
        let value = |index| match row.get_ref(index).unwrap() {
            rusqlite::types::ValueRef::Null => "-".to_owned(),
            rusqlite::types::ValueRef::Integer(number) => number.to_string(),
            other => other.as_str().unwrap().to_owned(),
        };
        out.push((0..count).map(value).collect::<Vec<_>>().join(" "));
    }
    out
}

#[test]
fn rows_that_differ_are_told_with_the_columns_of_their_time() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "SELECT snapshot_now('empty'); CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance)");
    run(
        &connection,
        "INSERT INTO accounts VALUES ('alice', 100), ('bob', 20), ('carl', NULL); SELECT snapshot_now('a')",
    );
    run(
        &connection,
        "UPDATE accounts SET balance = 95.5 WHERE owner = 'alice'; DELETE FROM accounts WHERE owner = 'bob'",
    );
    run(&connection, "INSERT INTO accounts VALUES ('dora \"d\"', x'00ff'); SELECT snapshot_now('b')");
    let diff = |a: &str, b: &str| {
        let mut found = lines(&connection, &format!("SELECT * FROM bygone_diff('accounts', '{a}', '{b}')"));
        found.sort();
        found
    };
    let expected = [
        r#"delete bob {"owner":"bob","balance":20} -"#,
        r#"insert dora "d" - {"owner":"dora \"d\"","balance":{"blob":"00FF"}}"#,
        r#"update alice {"owner":"alice","balance":100} {"owner":"alice","balance":95.5}"#,
    ];
    assert_eq!(diff("a", "b"), expected);
    assert_eq!(diff("a", "now"), expected);
    assert_eq!(diff("2", "id:3"), expected);
    assert_eq!(diff("b", "a").len(), 3);
    assert_eq!(diff("a", "a"), [""; 0]);
    assert_eq!(diff("empty", "a").len(), 3);
    assert!(diff("a", "empty").iter().all(|line| line.starts_with("delete")));
    run(&connection, "ALTER TABLE accounts ADD COLUMN note DEFAULT 'x'; SELECT snapshot_now('c')");
    assert_eq!(diff("b", "c").len(), 3, "each has a column more");
    assert_eq!(
        diff("b", "c")[1],
        r#"update carl {"owner":"carl","balance":null} {"owner":"carl","balance":null,"note":"x"}"#
    );
    assert_eq!(
        number(
            &connection,
            "SELECT sum(before ->> 'balance') FROM bygone_diff('accounts', 'a', 'b') WHERE key = 'alice'"
        ),
        100
    );
    run(&connection, "PRAGMA as_of = 'a'");
    assert_eq!(diff("a", "b"), expected);
    for (sql, part) in [
        ("SELECT * FROM bygone_diff('accounts', 'a')", "bygone_diff('table', a, b)"),
        ("SELECT * FROM bygone_diff", "bygone_diff('table', a, b)"),
        ("SELECT * FROM bygone_diff('nothing', 'a', 'b')", "no table \"nothing\""),
        ("SELECT * FROM bygone_diff('accounts', 'a', 'nobody')", "nobody"),
        ("SELECT * FROM bygone_diff('sqlite_schema', 'nobody', 'a')", "nobody"),
        ("SELECT * FROM bygone_history('nothing', 1)", "no table \"nothing\""),
        ("SELECT * FROM bygone_history('accounts')", "bygone_history('table', key)"),
        ("DELETE FROM bygone_diff", "may not be modified"),
    ] {
        let (_, _, words) = failure(&connection, sql);
        assert!(words.contains(part), "{sql}: {words}");
    }
}

#[test]
fn keys_are_those_of_the_table() {
    let place = Place::new();
    let connection = place.sql();
    run(
        &connection,
        "CREATE TABLE plain(rowid TEXT); INSERT INTO plain VALUES ('a'), ('b');
         CREATE TABLE pair(x, y, z, PRIMARY KEY (y, x)) WITHOUT ROWID; INSERT INTO pair VALUES (1, 'p', 1), (2, 'p', 2);
         CREATE TABLE loose(x TEXT PRIMARY KEY, z); INSERT INTO loose VALUES (NULL, 1), (NULL, 2), ('c', 3);
         CREATE TABLE cased(x TEXT COLLATE NOCASE PRIMARY KEY); INSERT INTO cased VALUES ('a'), ('b');
         CREATE TABLE numbers(x INTEGER PRIMARY KEY, z); INSERT INTO numbers VALUES (1, 1), (2, 0.1), (3, 0);
         CREATE VIEW seen AS SELECT 1; SELECT snapshot_now('a')",
    );
    run(
        &connection,
        "UPDATE plain SET rowid = 'c' WHERE _rowid_ = 2;
         UPDATE pair SET z = 3 WHERE x = 2; INSERT INTO pair VALUES (1, 'q', 0);
         UPDATE loose SET z = 4 WHERE z = 2;
         UPDATE cased SET x = 'A' WHERE x = 'a';
         UPDATE numbers SET z = 1.0 WHERE x = 1; UPDATE numbers SET z = 0.1 + 1e-18 WHERE x = 2;
         UPDATE numbers SET z = 0.30000000000000004 WHERE x = 3; SELECT snapshot_now('b')",
    );
    let diff = |table: &str| {
        let mut found =
            lines(&connection, &format!("SELECT change, key, after FROM bygone_diff('{table}', 'a', 'b')"));
        found.sort();
        found
    };
    assert_eq!(diff("plain"), [r#"update 2 {"rowid":"c"}"#]);
    assert_eq!(
        diff("PAIR"),
        [r#"insert ["q",1] {"x":1,"y":"q","z":0}"#, r#"update ["p",2] {"x":2,"y":"p","z":3}"#]
    );
    assert_eq!(diff("loose"), [r#"update - {"x":null,"z":4}"#]);
    assert_eq!(diff("cased"), [r#"update A {"x":"A"}"#]);
    assert_eq!(
        diff("numbers"),
        [r#"update 1 {"x":1,"z":1.0}"#, r#"update 3 {"x":3,"z":0.30000000000000004}"#],
        "0.1 + 1e-18 is 0.1"
    );
    let (_, _, words) = failure(&connection, "SELECT * FROM bygone_diff('seen', 'a', 'b')");
    assert!(words.contains("is a view"), "{words}");
    let history = |table: &str, key: &str| {
        lines(&connection, &format!("SELECT * FROM bygone_history('{table}', {key})"))
    };
    assert_eq!(history("plain", "2"), [r#"1 insert {"rowid":"b"}"#, r#"2 update {"rowid":"c"}"#]);
    assert_eq!(history("plain", "1"), [r#"1 insert {"rowid":"a"}"#]);
    assert_eq!(history("pair", r#"'["q",1]'"#), [r#"2 insert {"x":1,"y":"q","z":0}"#]);
    assert_eq!(history("cased", "'a'"), [r#"1 insert {"x":"a"}"#, r#"2 update {"x":"A"}"#]);
    assert_eq!(history("numbers", "1"), [r#"1 insert {"x":1,"z":1}"#, r#"2 update {"x":1,"z":1.0}"#]);
    assert_eq!(history("numbers", "77"), [""; 0]);
}

#[test]
fn a_row_has_a_history() {
    let place = Place::new();
    let connection = place.sql();
    let history = || lines(&connection, "SELECT * FROM bygone_history('accounts', 'alice')");
    run(&connection, "SELECT snapshot_now(); CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance)");
    let (_, _, words) = failure(&connection, "SELECT * FROM bygone_history('accounts', 'alice')");
    assert!(words.contains("as of any snapshot"), "{words}");
    for statement in [
        "INSERT INTO accounts VALUES ('alice', 100)",
        "INSERT INTO accounts VALUES ('bob', 100)",
        "UPDATE accounts SET balance = balance - 5",
        "ALTER TABLE accounts ADD COLUMN note",
        "DELETE FROM accounts",
        "INSERT INTO accounts VALUES ('alice', 1, 'again')",
        "DROP TABLE accounts",
        "CREATE TABLE others(a)",
    ] {
        run(&connection, &format!("{statement}; SELECT snapshot_now()"));
    }
    let expected = [
        r#"2 insert {"owner":"alice","balance":100}"#,
        r#"4 update {"owner":"alice","balance":95}"#,
        r#"5 update {"owner":"alice","balance":95,"note":null}"#,
        "6 delete -",
        r#"7 insert {"owner":"alice","balance":1,"note":"again"}"#,
        "8 delete -",
    ];
    assert_eq!(history(), expected);
    assert_eq!(
        lines(
            &connection,
            "SELECT s.id, h.change FROM bygone_snapshots AS s JOIN bygone_history('accounts', 'alice') AS h
             ON h.snapshot = s.id WHERE s.id > 6 ORDER BY 1"
        ),
        ["7 insert", "8 delete"]
    );
}

#[test]
fn random_changes_are_those_between_copies() {
    for seed in 0..8_u64 {
        let mut random = Random(seed);
        let place =
            Place::with(bygone::Options::new().memtable_bytes(256 << 10).background(seed.is_multiple_of(2)));
        let connection = place.sql();
        let table = match seed % 4 {
            0 => "k INTEGER PRIMARY KEY, v, w",
            1 => "k TEXT PRIMARY KEY, v, w",
            2 => "k, v, w, PRIMARY KEY (k)) WITHOUT ROWID; CREATE INDEX by_v ON t(v",
            _ => "k INTEGER, v, w, PRIMARY KEY (k DESC)",
        };
        run(
            &connection,
            &format!("PRAGMA page_size = 512; PRAGMA synchronous = OFF; CREATE TABLE t({table})"),
        );
        let mut states = Vec::new();
        let mut now: BTreeMap<String, String> = BTreeMap::new();
        while states.len() < 12 {
            let (key, value) = (random.below(60), random.below(5));
            match random.below(30) {
                0..3 => {
                    run(&connection, "SELECT snapshot_now()");
                    states.push(now.clone());
                }
                3 => run(&connection, "VACUUM"),
                4 => place.db.merge().unwrap(),
                5..12 => {
                    run(&connection, &format!("DELETE FROM t WHERE k = {key}"));
                    now.remove(&key.to_string());
                }
                _ => {
                    run(
                        &connection,
                        &format!("INSERT OR REPLACE INTO t VALUES ({key}, {value}, zeroblob({value} * 200))"),
                    );
                    now.insert(key.to_string(), value.to_string());
                }
            }
        }
        for _ in 0..20 {
            let (a, b) = (random.below(12) as usize, random.below(12) as usize);
            let found: BTreeSet<String> = lines(
                &connection,
                &format!(
                    "SELECT change, key, before ->> 'v', after ->> 'v' FROM bygone_diff('t', {}, {})",
                    a + 1,
                    b + 1
                ),
            )
            .into_iter()
            .collect();
            assert_eq!(found, between(&states[a], &states[b]), "seed {seed}, {a} to {b}");
        }
        for key in 0..60_u64 {
            let found = rows(
                &connection,
                &format!("SELECT snapshot, change, state ->> 'v' FROM bygone_history('t', {key})"),
            );
            let mut expected = Vec::new();
            let mut before = None;
            for (state, id) in states.iter().zip(1..) {
                let after = state.get(&key.to_string());
                let bytes = |text: &str| format!("Text({:?})", text.as_bytes());
                let value = |value: &String| format!("Integer({value})");
                match (before, after) {
                    (None, Some(new)) => {
                        expected.push(format!("Integer({id})|{}|{}", bytes("insert"), value(new)))
                    }
                    (Some(_), None) => expected.push(format!("Integer({id})|{}|Null", bytes("delete"))),
                    (Some(old), Some(new)) if old != new => {
                        expected.push(format!("Integer({id})|{}|{}", bytes("update"), value(new)));
                    }
                    _ => {}
                }
                before = after;
            }
            assert_eq!(found, expected, "seed {seed}, key {key}");
        }
        let past = place
            .db
            .sql_as_of("main", "1")
            .or_else(|_| place.db.sql_as_of("main", bygone::SnapshotId::from(1)));
        assert_eq!(number(&past.unwrap(), "SELECT count(*) FROM t"), states[0].len() as i64);
    }
}

/// What the differences between two states look like.
fn between(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> BTreeSet<String> {
    let deleted =
        a.iter().filter(|(key, _)| !b.contains_key(*key)).map(|(key, old)| format!("delete {key} {old} -"));
    let inserted =
        b.iter().filter(|(key, _)| !a.contains_key(*key)).map(|(key, new)| format!("insert {key} - {new}"));
    let updated = a.iter().filter_map(|(key, old)| {
        let new = b.get(key).filter(|new| *new != old)?;
        Some(format!("update {key} {old} {new}"))
    });
    deleted.chain(inserted).chain(updated).collect()
}
