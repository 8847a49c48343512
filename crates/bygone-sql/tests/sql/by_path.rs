//! A directory that the application has open, opened again by its path.
//!
//! Owns: tests of who shares what. May call: the support.

use std::os::unix::fs::PermissionsExt;

use bygone::{Db, Options};
use bygone_sql::Sql;
use rusqlite::{Connection, ErrorCode};

use crate::support::{Place, check, number, run, text};

fn by_path(place: &Place, parameters: &str) -> Connection {
    bygone_sql::register().unwrap();
    Connection::open(place.uri(parameters)).unwrap_or_else(|error| panic!("{parameters}: {error}"))
}

#[test]
fn a_path_leads_to_the_database_that_the_application_has_open() {
    let place = Place::new();
    // No connection was ever made from it.
    let one = by_path(&place, "");
    run(&one, "CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    place.db.snapshot_now("then").unwrap();
    let two = place.sql();
    run(&two, "INSERT INTO t VALUES (2)");
    assert_eq!(number(&one, "SELECT sum(a) FROM t"), 3);
    assert_eq!(number(&by_path(&place, "&mode=ro"), "SELECT sum(a) FROM t"), 3);
    assert_eq!(number(&by_path(&place, "&as_of=then"), "SELECT sum(a) FROM t"), 1);
    // They are one to the writer's lock as well.
    run(&one, "BEGIN IMMEDIATE");
    assert!(two.execute_batch("BEGIN IMMEDIATE").is_err());
    run(&one, "COMMIT");
    check(&one);
}

#[test]
fn it_is_closed_with_the_last_that_has_a_share() {
    let place = Place::new();
    let connection = by_path(&place, "");
    run(&connection, "CREATE TABLE t(a)");
    let Place { db, directory } = place;
    drop(db);
    // The connection keeps it open, and others find it.
    let found = Db::find_open(directory.path().join("bank")).expect("it is open");
    run(&found.sql("main").unwrap(), "INSERT INTO t VALUES (7)");
    assert_eq!(number(&connection, "SELECT a FROM t"), 7);
    drop(connection);
    drop(found);
    assert!(Db::find_open(directory.path().join("bank")).is_none());
    let again = Db::open(directory.path().join("bank")).unwrap();
    assert_eq!(number(&again.sql("main").unwrap(), "SELECT a FROM t"), 7);
}

#[test]
fn every_path_to_it_leads_to_it() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); INSERT INTO t VALUES ('here')");
    let link = place.directory.path().join("link");
    std::os::unix::fs::symlink(place.path(), &link).unwrap();
    bygone_sql::register().unwrap();
    let linked = Connection::open(format!("file:{}?vfs=bygone", link.display())).unwrap();
    assert_eq!(text(&linked, "SELECT a FROM t"), "here");
    // And when it has another name.
    let moved = place.directory.path().join("moved");
    std::fs::rename(place.path(), &moved).unwrap();
    let moved = Connection::open(format!("file:{}?vfs=bygone", moved.display())).unwrap();
    run(&moved, "INSERT INTO t VALUES ('moved')");
    assert_eq!(number(&linked, "SELECT count(*) FROM t"), 2);
}

#[test]
fn one_that_is_open_for_reading_only_stands_in_no_way() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    let path = place.path();
    let Place { db, directory: _directory } = place;
    drop(db);
    let reader = Options::new().read_only(true).open(&path).unwrap();
    assert!(Db::find_open(&path).is_none());
    bygone_sql::register().unwrap();
    let writer = Connection::open(format!("file:{}?vfs=bygone", path.display())).unwrap();
    run(&writer, "INSERT INTO t VALUES (2)");
    assert_eq!(number(&reader.sql("main").unwrap(), "SELECT count(*) FROM t"), 1);
    reader.refresh().unwrap();
    assert_eq!(number(&reader.sql("main").unwrap(), "SELECT count(*) FROM t"), 2);
}

#[test]
fn where_nobody_may_write_it_is_opened_for_reading() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); INSERT INTO t VALUES (7)");
    let path = place.path();
    let Place { db, directory: _directory } = place;
    drop(db);
    let set_writable = |writable: bool| {
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap().path();
            let bits = if entry.is_dir() { 0o555 } else { 0o444 } | if writable { 0o200 } else { 0 };
            std::fs::set_permissions(entry, std::fs::Permissions::from_mode(bits)).unwrap();
        }
        let bits = if writable { 0o755 } else { 0o555 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
    };
    set_writable(false);
    // Whoever may do everything is not told by permissions.
    if std::fs::write(path.join("lock"), "").is_err() {
        bygone_sql::register().unwrap();
        for _ in 0..2 {
            let connection = Connection::open(format!("file:{}?vfs=bygone", path.display())).unwrap();
            assert_eq!(number(&connection, "SELECT a FROM t"), 7);
            let error = connection.execute("INSERT INTO t VALUES (8)", []).unwrap_err();
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
        }
    }
    set_writable(true);
}
