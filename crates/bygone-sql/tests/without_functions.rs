//! A host that keeps our functions from its connections, as `sqlite3_reset_auto_extension` does for a whole process.
//!
//! Owns: one test, alone in its process. Promises: the VFS needs none of them. May call: the public API, and SQLite.

use bygone::Db;
use bygone_sql::Sql;
use rusqlite::{Connection, ffi};

#[test]
fn pages_of_another_size_a_past_and_a_commit_need_no_function_of_ours() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path().join("db")).unwrap();
    // This makes the VFS known, and asks SQLite for our functions in every connection.
    drop(db.sql("main").unwrap());
    // SAFETY: no other thread uses SQLite.
    unsafe { ffi::sqlite3_reset_auto_extension() };

    let connection = Connection::open(format!("file:{}?vfs=bygone", db.path().display())).unwrap();
    assert!(connection.prepare("SELECT snapshot_now()").is_err(), "the host has our functions after all");
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b UNIQUE); INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        )
        .unwrap();
    db.snapshot_now("small-pages").unwrap();

    connection.execute_batch("PRAGMA page_size = 8192; VACUUM").unwrap();
    assert_eq!(number("PRAGMA page_size"), 8192);
    connection.execute_batch("DELETE FROM t WHERE a = 1").unwrap();
    assert_eq!(number("SELECT sum(a) FROM t"), 2);
    assert_eq!(
        connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap(),
        "ok"
    );

    connection.execute_batch("PRAGMA as_of = 'small-pages'").unwrap();
    assert_eq!(number("SELECT sum(a) FROM t"), 3);
    assert_eq!(number("PRAGMA page_size"), 4096);
}
