//! Several databases on one connection.
//!
//! Owns: tests of `ATTACH`, and of commits over several databases. May call: the support.

use bygone_sql::Sql;
use rusqlite::ErrorCode;

use crate::support::{Place, check, failure, number, reserved, run, text};

#[test]
fn a_commit_over_several_databases_of_a_directory_is_one() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, &format!("ATTACH '{}' AS b; ATTACH '{}' AS c", place.uri("&db=b"), place.uri("&db=c")));
    run(&connection, "CREATE TABLE main.t(a); CREATE TABLE b.t(a); CREATE TABLE c.t(a)");
    let before = u64::from(place.db.stats().unwrap().seq);
    for i in 0..10 {
        run(
            &connection,
            &format!(
                "BEGIN; INSERT INTO c.t VALUES ({i}); INSERT INTO main.t VALUES ({i});
                                   INSERT INTO b.t VALUES ({i}); COMMIT"
            ),
        );
    }
    assert_eq!(u64::from(place.db.stats().unwrap().seq), before + 10);
    for name in ["main", "b", "c"] {
        let other = place.db.sql(name).unwrap();
        assert_eq!(number(&other, "SELECT count(*) FROM t"), 10);
        check(&other);
    }
    run(&connection, "BEGIN; DELETE FROM b.t; DELETE FROM c.t; ROLLBACK");
    assert_eq!(number(&connection, "SELECT count(*) FROM b.t"), 10);
    // Each alone.
    run(&connection, "DELETE FROM b.t");
    run(&place.db.sql("c").unwrap(), "DELETE FROM t");
    assert_eq!(number(&connection, "SELECT count(*) FROM main.t, b.t"), 0);
    assert_eq!(number(&connection, "SELECT count(*) FROM c.t"), 0);
    run(&connection, "DETACH b; DETACH c");
}

#[test]
fn a_new_attached_database_reserves_the_end_of_its_pages() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, &format!("ATTACH '{}' AS b; CREATE TABLE b.t(a)", place.uri("&db=b")));
    assert_eq!(reserved(&place.db, "sql/b"), Some(32));
}

#[test]
fn one_writer_a_database_not_a_directory() {
    let place = Place::new();
    let (one, two) = (place.sql(), place.db.sql("b").unwrap());
    run(&one, "CREATE TABLE t(a); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)");
    run(&two, "CREATE TABLE t(a); INSERT INTO t VALUES (2)");
    run(&one, "COMMIT");
    assert_eq!(number(&place.sql(), "SELECT a FROM t"), 1);
}

#[test]
fn databases_of_other_kinds_are_attached_too() {
    let place = Place::new();
    let connection = place.sql();
    let file = place.directory.path().join("ordinary.db");
    run(&connection, &format!("ATTACH 'file:{}?vfs=unix' AS f; ATTACH ':memory:' AS m", file.display()));
    run(&connection, "CREATE TABLE main.t(a); CREATE TABLE f.t(a); CREATE TABLE m.t(a)");
    run(
        &connection,
        "BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO f.t VALUES (2); INSERT INTO m.t VALUES (3); COMMIT",
    );
    assert_eq!(number(&place.sql(), "SELECT a FROM t"), 1);
    let other = rusqlite::Connection::open(&file).unwrap();
    assert_eq!(number(&other, "SELECT a FROM t"), 2);
    // The other way round.
    run(&other, &format!("ATTACH '{}' AS b", place.uri("")));
    run(&other, "BEGIN; UPDATE b.t SET a = 5; UPDATE main.t SET a = 6; COMMIT");
    assert_eq!(number(&connection, "SELECT main.t.a + f.t.a FROM main.t, f.t"), 11);
}

#[test]
fn databases_are_copied_between_the_two() {
    let place = Place::new();
    let file = place.directory.path().join("ordinary.db");
    let ordinary = rusqlite::Connection::open(&file).unwrap();
    run(&ordinary, "PRAGMA page_size = 1024; CREATE TABLE t(a); INSERT INTO t VALUES (zeroblob(50000)), (1)");
    let mut connection = place.sql();
    rusqlite::backup::Backup::new(&ordinary, &mut connection)
        .and_then(|backup| backup.run_to_completion(5, std::time::Duration::ZERO, None))
        .unwrap();
    assert_eq!(number(&place.sql(), "SELECT count(*) FROM t"), 2);
    check(&connection);
    run(&connection, &format!("INSERT INTO t VALUES (2); VACUUM INTO '{}'", place.uri("&db=copy")));
    let copy = place.db.sql("copy").unwrap();
    assert_eq!(number(&copy, "SELECT max(a) FROM t WHERE typeof(a) = 'integer'"), 2);
    check(&copy);
    let other = place.directory.path().join("out.db");
    run(&copy, &format!("VACUUM INTO 'file:{}?vfs=unix'", other.display()));
    assert_eq!(number(&rusqlite::Connection::open(&other).unwrap(), "SELECT count(*) FROM t"), 3);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a)");
    let attach = |parameters: &str| failure(&connection, &format!("ATTACH '{}' AS x", place.uri(parameters)));
    assert_eq!(attach("&as_of=nobody").0, ErrorCode::Unknown);
    assert_eq!(attach("&db=none&mode=rw").0, ErrorCode::CannotOpen);
    assert_eq!(attach("&cache_bytes=many").0, ErrorCode::CannotOpen);
    let missing = place.directory.path().join("missing");
    let opened = rusqlite::Connection::open_with_flags(
        format!("file:{}?vfs=bygone", missing.display()),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_URI,
    );
    assert_eq!(opened.unwrap_err().sqlite_error_code(), Some(ErrorCode::CannotOpen));
    let error = place.db.sql_as_of("main", "nobody").unwrap_err().to_string();
    assert!(error.contains("nobody"), "{error}");
}

#[test]
fn a_uri_shares_what_is_open_and_opens_what_is_not() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    bygone_sql::register().unwrap();
    let first = place.sql();
    let second = rusqlite::Connection::open(place.uri("")).unwrap();
    run(&second, "INSERT INTO t VALUES (2)");
    assert_eq!(number(&first, "SELECT sum(a) FROM t"), 3);
    assert_eq!(text(&second, "SELECT name FROM pragma_database_list"), "main");
    let uri = place.uri("");
    let Place { db, directory } = place;
    drop((db, first, second));
    let third = rusqlite::Connection::open(&uri).unwrap();
    assert_eq!(number(&third, "SELECT sum(a) FROM t"), 3);
    drop((third, directory));
}
