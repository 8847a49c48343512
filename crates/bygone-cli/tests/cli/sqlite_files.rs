//! import --sqlite, export --sqlite: whole files of SQLite's, compared with what stock SQLite reads in them.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::Place;

/// Everything that can be asked of a database: its schema, its settings, all of its rows.
fn contents(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    // A file that an application made with a collation of its own.
    connection.create_collation("backwards", |a, b| b.cmp(a)).unwrap();
    let all = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).unwrap();
        let count = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        let mut found = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let values: Vec<Value> = (0..count).map(|index| row.get(index).unwrap()).collect();
            found.push(format!("{values:?}"));
        }
        found
    };
    let mut found = Vec::new();
    for pragma in [
        "integrity_check",
        "page_size",
        "user_version",
        "application_id",
        "auto_vacuum",
        "encoding",
        "foreign_key_check",
    ] {
        found.extend(all(&format!("PRAGMA {pragma}")));
    }
    found.extend(all("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"));
    let tables: Vec<String> = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for table in tables {
        let has_rowid: bool = connection
            .query_row(
                "SELECT type = 'table' AND NOT wr FROM pragma_table_list WHERE name = ?1",
                [&table],
                |row| row.get(0),
            )
            .unwrap();
        let columns = if has_rowid { "rowid, *" } else { "*" };
        let mut rows = all(&format!("SELECT {columns} FROM \"{table}\""));
        rows.sort();
        found.extend(rows);
    }
    assert_eq!(found[0], "[Text(\"ok\")]");
    found
}

const SCHEMA: &str = "
    CREATE TABLE t(a TEXT, b BLOB, c REAL CHECK (c IS NULL OR c < 1e6));
    CREATE TABLE keyed(k TEXT PRIMARY KEY, v) WITHOUT ROWID;
    CREATE INDEX by_a ON t(a, c DESC) WHERE a NOT NULL;
    CREATE INDEX by_length ON t(length(a));
    CREATE VIEW long AS SELECT a, c FROM t WHERE length(a) > 5;
    CREATE TRIGGER mirror AFTER INSERT ON t WHEN new.a NOT NULL BEGIN
        INSERT OR REPLACE INTO keyed VALUES (new.a, new.c);
    END;
    CREATE VIRTUAL TABLE words USING fts5(text);
    INSERT INTO t SELECT 'row ' || value, zeroblob(value * 3), value / 7.0 FROM generate;
    DELETE FROM t WHERE rowid % 3 = 0;
    INSERT INTO words SELECT a FROM t;";

fn fill(connection: &Connection, rows: u32) {
    connection
        .execute_batch(&format!(
            "CREATE TEMP TABLE generate(value);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})
             INSERT INTO generate SELECT i FROM n;"
        ))
        .unwrap();
    connection.execute_batch(SCHEMA).unwrap();
}

#[test]
fn files_make_the_round_trip() {
    let place = Place::new();
    let settings = [
        "PRAGMA page_size = 512",
        "PRAGMA auto_vacuum = full; PRAGMA encoding = 'UTF-16le'; PRAGMA user_version = 42",
        "PRAGMA page_size = 65536; PRAGMA application_id = 7; PRAGMA auto_vacuum = incremental",
    ];
    for (settings, number) in settings.into_iter().zip(0..) {
        let file = format!("app{number}.db");
        let source = Connection::open(place.path(&file)).unwrap();
        source.execute_batch(settings).unwrap();
        fill(&source, 300);
        drop(source);
        let before = fs::read(place.path(&file)).unwrap();
        let shown = place.ok(&format!("import db --sqlite {file} --db n{number}"));
        assert!(shown.contains(&format!("imported as SQL database \"n{number}\"")), "{shown}");
        assert_eq!(fs::read(place.path(&file)).unwrap(), before, "the source is only read");
        place.ok(&format!("export db --sqlite out{number}.db --db n{number}"));
        let expected = contents(&place.path(&file));
        assert_eq!(contents(&place.path(&format!("out{number}.db"))), expected, "{settings}");
        let check = place
            .run_with(&["sql", "db", "--db", &format!("n{number}"), "--json", "PRAGMA integrity_check"], b"");
        assert_eq!(check.ok(), "{\"integrity_check\":\"ok\"}\n");
    }
    let left: Vec<_> =
        fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2 * settings.len() + 1, "{left:?}");
}

#[test]
fn what_a_log_holds_is_imported_and_the_log_left_alone() {
    let place = Place::new();
    let source = Connection::open(place.path("app.db")).unwrap();
    source.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    source.execute_batch("CREATE TABLE t(x); PRAGMA wal_checkpoint; INSERT INTO t VALUES (1), (2)").unwrap();
    let read = || (fs::read(place.path("app.db")).unwrap(), fs::read(place.path("app.db-wal")).unwrap());
    let before = read();
    // Open in another process, and then by none.
    place.ok("import db --sqlite app.db");
    assert_eq!(read(), before);
    source.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    drop(source);
    place.ok("import db --sqlite app.db --db again");
    assert_eq!(read(), before);
    for name in ["main", "again"] {
        let sum =
            place.run_with(&["sql", "db", "--db", name, "--json", "SELECT sum(x) AS n FROM t"], b"").ok();
        assert_eq!(sum, "{\"n\":3}\n");
        place.run_with(&["sql", "db", "--db", name, "INSERT INTO t VALUES (3)"], b"").ok();
    }
    place.ok("export db --sqlite out.db");
    let mode: String = Connection::open(place.path("out.db"))
        .unwrap()
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete");
}

#[test]
fn a_schema_that_names_what_is_not_known_is_copied_as_it_is() {
    let place = Place::new();
    let source = Connection::open(place.path("app.db")).unwrap();
    source.create_collation("backwards", |a, b| b.cmp(a)).unwrap();
    source
        .execute_batch(
            "CREATE TABLE t(x TEXT); CREATE INDEX i ON t(x COLLATE backwards); INSERT INTO t VALUES ('a'), ('b')",
        )
        .unwrap();
    drop(source);
    place.ok("import db --sqlite app.db");
    place.ok("export db --sqlite out.db");
    assert_eq!(contents(&place.path("out.db")), contents(&place.path("app.db")));
}

#[test]
fn large_files_are_imported_in_commits_and_exported_as_of_snapshots() {
    let place = Place::new();
    let source = Connection::open(place.path("app.db")).unwrap();
    source
        .execute_batch(
            "CREATE TABLE t(id INTEGER PRIMARY KEY, x BLOB);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)
             INSERT INTO t SELECT i, randomblob(4000) FROM n;",
        )
        .unwrap();
    drop(source);
    let report = &place.json("import db --sqlite app.db")[0];
    assert_eq!(report["page_bytes"], 4096);
    assert!(report["pages"].as_u64().is_some_and(|pages| pages >= 5000), "{report}");
    let expected = contents(&place.path("app.db"));
    place.ok("snapshot db whole");
    place.run_with(&["sql", "db", "DELETE FROM t WHERE id % 2 = 0; VACUUM"], b"").ok();
    place.ok("export db --sqlite then.db --as-of whole");
    place.ok("export db --sqlite now.db");
    assert_eq!(contents(&place.path("then.db")), expected);
    let count: i64 = Connection::open(place.path("now.db"))
        .unwrap()
        .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 2500);

    // Replaced by a smaller one, and the snapshot keeps what was.
    let small = Connection::open(place.path("small.db")).unwrap();
    small.execute_batch("CREATE TABLE s(x); INSERT INTO s VALUES (1)").unwrap();
    drop(small);
    place.fails("import db --sqlite small.db", 1, "--replace replaces it");
    place.ok("import db --sqlite small.db --replace");
    place.ok("export db --sqlite small-out.db");
    assert_eq!(contents(&place.path("small-out.db")), contents(&place.path("small.db")));
    place.ok("export db --sqlite then-again.db --as-of whole");
    assert_eq!(contents(&place.path("then-again.db")), expected);
    assert!(place.ok("verify db").starts_with("no damage"));
}

#[test]
fn what_is_no_sqlite_file_is_refused() {
    let place = Place::new();
    // What an encrypted file looks like.
    let noise: Vec<u8> = (0..8192_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(place.path("noise.db"), noise).unwrap();
    fs::write(place.path("empty.db"), b"").unwrap();
    fs::create_dir(place.path("folder")).unwrap();
    for file in ["noise.db", "empty.db", "folder"] {
        place.fails(&format!("import db --sqlite {file}"), 2, &format!("{file} is no SQLite database"));
    }
    place.fails("import db --sqlite absent.db", 2, "absent.db does not exist");
    place.fails("import db --sqlite app.db --key a", 2, "cannot be used with");
    place.fails("import db t --db x", 2, "cannot be used with");
    place.fails("import db t app.db --replace", 2, "cannot be used with");
    place.fails("export db --db x", 2, "--sqlite");

    // Cut in the middle.
    let source = Connection::open(place.path("app.db")).unwrap();
    fill(&source, 200);
    drop(source);
    let whole = fs::read(place.path("app.db")).unwrap();
    fs::write(place.path("half.db"), &whole[..whole.len() / 2]).unwrap();
    place.fails("import db --sqlite half.db", 3, "malformed");
    place.ok("import db --sqlite app.db");

    place.fails("export db --sqlite app.db", 1, "app.db exists already");
    assert_eq!(fs::read(place.path("app.db")).unwrap(), whole);
    place.fails("export db --sqlite out.db --db absent", 1, "there is no SQL database \"absent\"");
    place.fails("export db --sqlite no/such/out.db", 2, "no/such/out.db");
    place.ok("snapshot db first");
    place.fails("export db --sqlite out.db --as-of never", 1, "never");
    assert!(!place.path("out.db").exists());
    assert_eq!(fs::read_dir(place.dir.path()).unwrap().count(), 6);
}
