//! How an SQL database lies in its table.
//!
//! Owns: tests of the records, and of the room that they take in the engine's pages. May call: the support.

use bygone_sql::Sql;

use crate::support::{Place, check, number, reserve, reserved, run};

const TABLE: &str = "sql/main";

#[test]
fn a_page_is_a_record_and_its_reserved_end_is_not_stored() {
    for (page_bytes, stored) in [
        (512, 480),
        (1024, 972),
        (2048, 1956),
        (4096, 4064),
        (8192, 8128),
        (16_384, 16_256),
        (32_768, 32_768),
    ] {
        let place = Place::new();
        let connection = place.sql();
        run(&connection, &format!("PRAGMA page_size = {page_bytes}; CREATE TABLE t(a)"));
        connection.execute("INSERT INTO t VALUES (randomblob(200000))", []).unwrap();
        let table = place.db.table(TABLE).unwrap();
        let mut longest = 0;
        let mut pages = 0;
        for record in place.db.snapshot().range(&table, ..).unwrap() {
            let (key, value) = record.unwrap();
            assert_eq!(key.len(), 4);
            if key[..] == [0; 4] {
                assert_eq!(value.len(), 117);
                continue;
            }
            pages += 1;
            longest = longest.max(value.len());
        }
        assert_eq!(longest, stored, "pages of {page_bytes}");
        assert_eq!(pages, number(&connection, "PRAGMA page_count"));
        check(&place.sql());
    }
}

#[test]
fn a_full_page_takes_one_page_of_the_engine() {
    // Bytes of the base for each byte that SQLite has: the record's own page, its place in a leaf, and little else.
    for (page_bytes, most) in
        [(512, 1.02), (1024, 1.02), (2048, 1.02), (4096, 1.02), (8192, 1.02), (16_384, 1.02)]
    {
        let place = Place::new();
        let connection = place.sql();
        run(
            &connection,
            &format!("PRAGMA page_size = {page_bytes}; PRAGMA synchronous = OFF; CREATE TABLE t(a)"),
        );
        run(&connection, "BEGIN");
        for _ in 0..400 {
            run(&connection, "INSERT INTO t VALUES (randomblob(20000))");
        }
        run(&connection, "COMMIT");
        place.db.merge().unwrap();
        let stats = place.db.stats().unwrap();
        let used = (stats.base_bytes - stats.base_free_bytes) as f64;
        let bytes = (number(&connection, "PRAGMA page_count") * page_bytes) as f64;
        println!("pages of {page_bytes}: {:.3}", used / bytes);
        assert!(used < most * bytes, "pages of {page_bytes}: {used} for {bytes}");
    }
}

#[test]
fn what_others_reserve_stays() {
    let place = Place::new();
    let connection = place.sql();
    reserve(&connection, 100);
    run(&connection, "CREATE TABLE t(a)");
    assert_eq!(reserved(&place.db, TABLE), Some(100));
}

#[test]
fn a_record_that_is_none_of_ours_is_an_error() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a)");
    let table = place.db.table(TABLE).unwrap();
    for record in [&b""[..], &[b'1'; 116], &[0xff; 117], &[0; 117], &[0; 4096]] {
        place.db.put(&table, [0; 4], record).unwrap();
        let error = place.db.sql("main").unwrap_err().to_string();
        assert!(error.contains("record 0"), "{error}");
        let error = connection.query_row("SELECT * FROM t", [], |_| Ok(())).unwrap_err();
        assert_eq!(error.sqlite_error().unwrap().extended_code, rusqlite::ffi::SQLITE_IOERR_DATA);
    }
}

#[test]
fn pages_that_are_no_database_are_told_as_sqlite_tells_them() {
    let place = Place::new();
    run(&place.sql(), "CREATE TABLE t(a); CREATE TABLE u(a)");
    let table = place.db.table(TABLE).unwrap();
    place.db.put(&table, 2u32.to_be_bytes(), [7; 4096]).unwrap();
    let connection = place.sql();
    let error = connection.query_row("SELECT * FROM t", [], |_| Ok(())).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseCorrupt));
    let mut record = place.db.get(&table, [0; 4]).unwrap().unwrap().to_vec();
    record[17..40].fill(7);
    place.db.put(&table, [0; 4], record).unwrap();
    let error = place.sql().query_row("SELECT * FROM t", [], |_| Ok(())).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::NotADatabase));
}

#[test]
fn a_dropped_table_is_an_empty_database() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a)");
    place.db.snapshot_now("before").unwrap();
    place.db.drop_table(TABLE).unwrap();
    assert_eq!(number(&connection, "SELECT count(*) FROM sqlite_schema"), 0);
    run(&connection, "CREATE TABLE u(a); INSERT INTO u VALUES (5)");
    assert_eq!(number(&place.sql(), "SELECT a FROM u"), 5);
    let past = place.db.sql_as_of("main", "before").unwrap();
    assert_eq!(number(&past, "SELECT count(*) FROM t"), 0);
    check(&connection);
}

#[test]
fn a_small_commit_writes_what_it_changed_and_the_header() {
    let place = Place::new();
    let connection = place.sql();
    run(&connection, "CREATE TABLE t(a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, 1), (2, 2)");
    place.db.snapshot_now("before").unwrap();
    run(&connection, "UPDATE t SET b = 3 WHERE a = 2");
    let table = place.db.table(TABLE).unwrap();
    let (before, now) = (place.db.as_of("before").unwrap(), place.db.snapshot());
    let changed: Vec<Vec<u8>> =
        before.diff(&now, &table).unwrap().map(|change| change.unwrap().key.to_vec()).collect();
    assert_eq!(changed, [[0, 0, 0, 0], [0, 0, 0, 2]], "not page 1, of which only the header changed");
}
