//! Scripts in the format of SQLite's own logic tests.
//!
//! Owns: running them on stock SQLite and on Bygone, and their queries again as of the snapshots that they declare.
//! Promises: all three give what the script says, the last after everything was changed and the database opened anew.
//! May call: the public API.
//!
//! `SNAPSHOT name` in a script declares a snapshot; stock SQLite passes over it. The queries between the last change
//! and it are those that are asked again as of it.

use std::path::Path;

use bygone::Db;
use bygone_sql::Sql;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sqllogictest::{DB, DBOutput, DefaultColumnType, Record, Runner};

/// What a script runs on.
struct Session {
    connection: Connection,
    /// Whether snapshots can be declared here.
    on_bygone: bool,
}

impl DB for Session {
    type Error = bygone_sql::Error;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, bygone_sql::Error> {
        if let Some(name) = sql.strip_prefix("SNAPSHOT ") {
            if self.on_bygone {
                self.connection.query_row("SELECT snapshot_now(?1)", [name], |_| Ok(()))?;
            }
            return Ok(DBOutput::StatementComplete(0));
        }
        let (mut columns, mut found) = (0, Vec::new());
        bygone_sql::run(&self.connection, sql, |statement| {
            columns = statement.column_count();
            let mut rows = statement.raw_query();
            while let Some(row) = rows.next()? {
                let value = |index| row.get_ref(index).map(shown);
                found.push((0..columns).map(value).collect::<rusqlite::Result<Vec<String>>>()?);
            }
            Ok(())
        })?;
        if columns == 0 {
            return Ok(DBOutput::StatementComplete(self.connection.changes()));
        }
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows: found })
    }
}

/// As SQLite's own tests show values.
fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => format!("{number:.3}"),
        ValueRef::Text([]) => "(empty)".to_owned(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => format!("x'{}'", bytes.escape_ascii()),
    }
}

type Records = Vec<Record<DefaultColumnType>>;

fn play(records: &Records, connection: impl Fn() -> Session + Clone, context: &str) {
    let mut runner = Runner::new(move || {
        let session = connection();
        async move { Ok(session) }
    });
    for record in records {
        runner.run(record.clone()).unwrap_or_else(|error| panic!("{context}: {}", error.display(false)));
    }
}

/// The queries that are asked as of each snapshot, by its name.
fn queries(records: &Records) -> Vec<(String, Records)> {
    let mut out = Vec::new();
    let mut since_change = Records::new();
    for record in records {
        match record {
            Record::Query { .. } => since_change.push(record.clone()),
            Record::Statement { sql, .. } => match sql.strip_prefix("SNAPSHOT ") {
                Some(name) => out.push((name.to_owned(), since_change.clone())),
                None => since_change.clear(),
            },
            _ => {}
        }
    }
    out
}

fn check(script: &Path) {
    let name = script.display();
    let records: Records = sqllogictest::parse_file(script).unwrap_or_else(|error| panic!("{name}: {error}"));
    let stock = || Session { connection: Connection::open_in_memory().unwrap(), on_bygone: false };
    play(&records, stock, &format!("{name} on stock SQLite"));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Db::open(&path).unwrap();
    let now = db.clone();
    let ours = move || Session { connection: now.sql("main").unwrap(), on_bygone: true };
    play(&records, ours, &format!("{name} on Bygone"));
    db.merge().unwrap();
    drop(db);

    let db = Db::open(&path).unwrap();
    let queries = queries(&records);
    assert!(
        queries.iter().all(|(_, records)| !records.is_empty()) && queries.len() >= 2,
        "{name} asks nothing"
    );
    for (snapshot, records) in &queries {
        let of_then = db.clone();
        let wanted = snapshot.clone();
        let past =
            move || Session { connection: of_then.sql_as_of("main", &wanted).unwrap(), on_bygone: false };
        play(records, past, &format!("{name} as of {snapshot}"));
        let of_then = db.clone();
        let wanted = snapshot.clone();
        let session = move || {
            let connection = of_then.sql("main").unwrap();
            connection.execute_batch(&format!("PRAGMA as_of = '{wanted}'")).unwrap();
            Session { connection, on_bygone: false }
        };
        play(records, session, &format!("{name} in a session as of {snapshot}"));
    }
}

#[test]
fn scripts_say_the_same_of_stock_sqlite_of_bygone_and_of_the_past() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logic/scripts");
    let mut scripts: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 6);
    scripts.iter().for_each(|script| check(script));
}
