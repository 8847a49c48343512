//! `VACUUM` after `PRAGMA page_size`.
//!
//! Owns: tests of databases whose pages get another size. Promises: all rows are the same, the past keeps its pages,
//! readers are not disturbed, a power cut leaves one or the other. May call: the support.

use std::sync::Arc;

use bygone::io::SimDisk;
use bygone_sql::Sql;
use rusqlite::{Connection, params};

use crate::support::{Place, Random, check, number, reserve, reserved, rows, run, small_options, text};

const TABLE: &str = "sql/main";

const SIZES: [i64; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Rows, keys and texts of all lengths; trees with rowids and without, whose order is an application's.
fn fill(connection: &Connection, random: &mut Random) {
    connection.create_collation("reversed", |a, b| b.cmp(a)).unwrap();
    run(
        connection,
        "BEGIN;
         CREATE TABLE rows(a INTEGER PRIMARY KEY, b, c TEXT COLLATE reversed UNIQUE);
         CREATE TABLE keyed(k TEXT COLLATE reversed, n, v, PRIMARY KEY(k, n)) WITHOUT ROWID;
         CREATE TABLE numbered(a INTEGER PRIMARY KEY AUTOINCREMENT, b);
         CREATE TABLE empty(a, b UNIQUE);
         CREATE INDEX by_length ON rows(length(b), b) WHERE b IS NOT NULL;
         CREATE VIEW seen AS SELECT a FROM rows;
         CREATE TRIGGER told AFTER DELETE ON rows BEGIN INSERT INTO numbered(b) VALUES (old.a); END;
         INSERT INTO numbered(b) VALUES ('x');",
    );
    for i in 0..600 {
        let bytes = match random.below(20) {
            0 => random.below(100_000),
            1..=4 => random.below(5000),
            _ => random.below(100),
        };
        let key = (random.next() as i64) >> random.below(64);
        let sql = "INSERT OR IGNORE INTO rows
                   VALUES (?1, iif(?2 % 7 = 0, NULL, randomblob(?2)), ?3 || hex(randomblob(?2 % 700)))";
        connection.execute(sql, params![key, bytes as i64, i]).unwrap();
        let sql = "INSERT INTO keyed VALUES (hex(randomblob(?1)), ?2, zeroblob(?3))";
        connection.execute(sql, params![random.below(400) as i64, i, (bytes % 3000) as i64]).unwrap();
    }
    // Enough for a schema of many pages.
    for i in 0..40 {
        run(connection, &format!("CREATE TABLE t{i}(a, b DEFAULT '{}')", "d".repeat(i * 13)));
    }
    run(connection, "ANALYZE; DELETE FROM rows WHERE a % 5 = 0; COMMIT");
}

/// All that is in the database, in its own order.
fn all(connection: &Connection) -> Vec<String> {
    let mut out = rows(connection, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name");
    for table in ["rows", "keyed", "numbered", "sqlite_sequence", "sqlite_stat1"] {
        out.extend(rows(connection, &format!("SELECT * FROM {table}")));
    }
    out.extend(rows(connection, "SELECT c FROM rows ORDER BY c"));
    out
}

#[test]
fn pages_get_any_other_size_and_rows_stay() {
    let mut random = Random(3);
    for (round, auto_vacuum) in ["none", "full", "incremental"].into_iter().enumerate() {
        let place = Place::new();
        let connection = place.sql();
        let first = SIZES[round * 3];
        run(&connection, &format!("PRAGMA page_size = {first}; PRAGMA auto_vacuum = {auto_vacuum}"));
        fill(&connection, &mut random);
        let other = place.sql();
        other.create_collation("reversed", |a, b| b.cmp(a)).unwrap();
        let mut expected = all(&connection);
        let first_expected = expected.clone();
        place.db.snapshot_now("first").unwrap();
        let mut at = first;
        for step in 0..10 {
            let wanted = SIZES[(random.next() % 8) as usize];
            let snapshots = place.db.snapshot().seq();
            run(&connection, &format!("PRAGMA page_size = {wanted}; VACUUM"));
            assert!(wanted == at || place.db.snapshot().seq() != snapshots);
            let context = format!("{auto_vacuum}, step {step}: from {at} to {wanted}");
            for reader in [&connection, &other] {
                assert_eq!(number(reader, "PRAGMA page_size"), wanted, "{context}");
                assert_eq!(all(reader), expected, "{context}");
                assert_eq!(rows(reader, "PRAGMA integrity_check"), ["Text([111, 107])"], "{context}");
                assert_eq!(number(reader, "PRAGMA freelist_count"), 0);
            }
            let mode = ["none", "full", "incremental"].iter().position(|mode| *mode == auto_vacuum);
            assert_eq!(number(&connection, "PRAGMA auto_vacuum"), mode.unwrap() as i64);
            at = wanted;
            // And goes on, with either.
            let writer = if step % 2 == 0 { &connection } else { &other };
            run(
                writer,
                &format!(
                    "BEGIN; INSERT INTO numbered(b) VALUES ({step}); CREATE TABLE new{step}(a, b);
                     INSERT INTO new{step} SELECT c, b FROM rows; DELETE FROM rows WHERE a % 11 = {step};
                     DROP TABLE t{step}; COMMIT"
                ),
            );
            check(&connection);
            run(writer, &format!("DROP TABLE new{step}; VACUUM"));
            expected = all(&other);
        }
        run(&connection, "PRAGMA as_of = first");
        assert_eq!(number(&connection, "PRAGMA page_size"), first);
        assert_eq!(all(&connection), first_expected);
        check(&connection);
    }
}

#[test]
fn it_is_one_commit_and_readers_read_on() {
    let place = Place::new();
    let (connection, reader) = (place.sql(), place.sql());
    run(
        &connection,
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, randomblob(50000)), (2, 'x')",
    );
    place.db.snapshot_now("before").unwrap();
    run(&reader, "BEGIN; SELECT count(*) FROM t");
    let before = rows(&reader, "SELECT * FROM t");
    let seq = u64::from(place.db.snapshot().seq());
    run(&connection, "PRAGMA page_size = 16384; VACUUM");
    assert_eq!(u64::from(place.db.snapshot().seq()), seq + 1);
    assert_eq!(rows(&reader, "SELECT * FROM t"), before);
    assert_eq!(number(&reader, "PRAGMA page_size"), 4096);
    run(&reader, "COMMIT");
    assert_eq!(number(&reader, "PRAGMA page_size"), 16_384);
    assert_eq!(rows(&reader, "SELECT * FROM t"), before);
    // The bytes that the engine wants of a page of this size, and no others, are reserved.
    assert_eq!(reserved(&place.db, TABLE), Some(128));
    // Present and past in one query, with pages of two sizes; and what differs between them.
    run(&connection, "UPDATE t SET b = 'y' WHERE a = 2");
    run(&connection, &format!("ATTACH '{}' AS past", place.uri("&as_of=before")));
    assert_eq!(
        text(&connection, "SELECT n.b || p.b FROM main.t n JOIN past.t p USING (a) WHERE a = 2"),
        "yx"
    );
    assert_eq!(
        rows(&connection, "SELECT key, change FROM bygone_diff('t', 'before', 'now')"),
        ["Integer(2)|Text([117, 112, 100, 97, 116, 101])"]
    );
    // It belongs to the connection, not to one of its databases, as SQLite has it.
    run(&connection, &format!("ATTACH '{}' AS second", place.uri("&db=second")));
    run(&connection, "CREATE TABLE second.s(a); PRAGMA second.page_size = 512; VACUUM main");
    assert_eq!(number(&connection, "PRAGMA main.page_size"), 512);
    // A size that there is not asks for nothing.
    run(&connection, "PRAGMA page_size = 1000; VACUUM");
    assert_eq!(number(&connection, "PRAGMA page_size"), 512);
    check(&connection);
}

#[test]
fn what_others_reserve_stays_as_far_as_it_fits() {
    let place = Place::new();
    let connection = place.sql();
    reserve(&connection, 100);
    fill(&connection, &mut Random(9));
    let expected = all(&connection);
    for (page_bytes, expected_bytes) in [(8192, 100), (512, 32), (1024, 52)] {
        run(&connection, &format!("PRAGMA page_size = {page_bytes}; VACUUM"));
        assert_eq!(reserved(&place.db, TABLE), Some(expected_bytes), "pages of {page_bytes}");
        assert_eq!(all(&connection), expected);
        check(&connection);
    }
}

#[test]
fn a_backup_from_pages_of_another_size_is_refused_still() {
    let place = Place::new();
    let mut connection = place.sql();
    run(&connection, "CREATE TABLE t(a)");
    let source = Connection::open_in_memory().unwrap();
    run(&source, "PRAGMA page_size = 1024; CREATE TABLE t(a)");
    let backup = rusqlite::backup::Backup::new(&source, &mut connection).unwrap();
    assert!(backup.step(-1).unwrap_err().to_string().contains("readonly"));
}

#[test]
fn a_power_cut_leaves_the_old_pages_or_the_new() {
    // `known` is whether the change of size had begun, and whether it had returned.
    let work = |disk: &SimDisk, known: &mut (u64, bool)| -> Option<Vec<String>> {
        let db = small_options().open_on(Arc::new(disk.clone()), "page-sizes").ok()?;
        let connection = db.sql("main").ok()?;
        fill(&connection, &mut Random(5));
        let expected = all(&connection);
        db.snapshot_now("before").ok()?;
        known.0 = disk.operations();
        known.1 = connection.execute_batch("PRAGMA page_size = 1024; VACUUM").is_ok();
        Some(expected)
    };
    let whole = SimDisk::new();
    let mut known = (0, false);
    work(&whole, &mut known).unwrap();
    let operations = whole.operations();
    let mut left = [0, 0];
    let cuts = (known.0 + 1..=operations).step_by(((operations - known.0) / 10).max(1) as usize);
    // Such a commit goes straight into the base: only its last operations lie behind it.
    for cut in cuts.chain(operations - 4..=operations) {
        let disk = SimDisk::new();
        disk.crash_at(cut);
        let mut known = (0, false);
        let expected = work(&disk, &mut known).expect("the cut comes later");
        for seed in 0..3 {
            let context = format!("cut at {cut} of {operations}, image {seed}");
            let db = small_options().open_on(Arc::new(disk.crash_image(seed)), "page-sizes").unwrap();
            let connection = db.sql("main").unwrap();
            connection.create_collation("reversed", |a, b| b.cmp(a)).unwrap();
            let page_bytes = number(&connection, "PRAGMA page_size");
            assert!(page_bytes == 1024 || page_bytes == 4096 && !known.1, "{context}: {page_bytes}");
            left[usize::from(page_bytes == 1024)] += 1;
            assert_eq!(all(&connection), expected, "{context}");
            check(&connection);
            run(&connection, "PRAGMA as_of = before");
            assert_eq!(number(&connection, "PRAGMA page_size"), 4096);
            assert_eq!(all(&connection), expected, "{context}");
        }
    }
    assert!(left.iter().all(|count| *count > 0), "old and new: {left:?}");
}
