//! Power cuts and failing disks, beneath SQLite.
//!
//! Owns: a workload of transactions over two SQL databases, cut at many operations of the simulated disk. Promises:
//! what was committed with a sync is there, no commit in part, both databases of one commit, every snapshot as it was.
//! May call: the support.

use std::sync::Arc;

use bygone::Db;
use bygone::io::SimDisk;
use bygone_sql::Sql;
use rusqlite::ErrorCode;

use crate::support::{Random, check, number, run, small_options};

const COMMITS: i64 = 24;

/// Opens the database on a disk. Each test has a path of its own: connections find an open directory by its path.
fn open(disk: &SimDisk, path: &str) -> bygone::Result<Db> {
    small_options().open_on(Arc::new(disk.clone()), path)
}

/// What the workload knows of its commits.
#[derive(Default)]
struct Known {
    /// The last commit that returned.
    returned: i64,
    /// The last that returned and was to be durable then.
    durable: i64,
    /// The last that was begun.
    begun: i64,
}

/// Runs the workload as far as it gets. Commit `i` sets both databases to `i`, and declares the snapshot `i` if it is
/// odd.
fn work(db: &Db, known: &mut Known) -> Result<(), bygone_sql::Error> {
    let connection = db.sql("main")?;
    let path = db.path().display();
    connection.execute_batch(&format!(
        "ATTACH 'file:{path}?vfs=bygone&db=second' AS second; PRAGMA cache_size = 5"
    ))?;
    for i in 1..=COMMITS {
        known.begun = i;
        let sync = i % 3 != 0;
        connection.execute_batch(if sync {
            "PRAGMA main.synchronous = FULL; PRAGMA second.synchronous = FULL"
        } else {
            "PRAGMA main.synchronous = NORMAL; PRAGMA second.synchronous = NORMAL"
        })?;
        let script = format!(
            "BEGIN;
             CREATE TABLE IF NOT EXISTS main.t(a INTEGER PRIMARY KEY, b, c);
             CREATE TABLE IF NOT EXISTS second.t(b);
             INSERT INTO main.t VALUES ({i}, 0, randomblob(3000));
             UPDATE main.t SET b = {i}, c = randomblob(700 + a * 10);
             DELETE FROM second.t;
             INSERT INTO second.t VALUES ({i});"
        );
        connection.execute_batch(&script)?;
        if i % 2 == 1 {
            connection.execute_batch(&format!("SELECT snapshot_now('{i}')"))?;
        }
        connection.execute_batch("COMMIT")?;
        known.returned = i;
        if sync {
            known.durable = i;
        }
        if i % 8 == 0 {
            db.merge().map_err(|error| bygone_sql::Error::Statement { reason: error.to_string() })?;
        }
    }
    Ok(())
}

/// Checks a database that a cut left; answers which commit it is at.
fn check_left(db: &Db, known: &Known, context: &str) -> i64 {
    let main = db.sql("main").unwrap();
    let second = db.sql("second").unwrap();
    check(&main);
    check(&second);
    let at = if number(&main, "SELECT count(*) FROM sqlite_schema") == 0 {
        assert_eq!(number(&second, "SELECT count(*) FROM sqlite_schema"), 0, "{context}");
        0
    } else {
        let at = number(&main, "SELECT max(b) FROM t");
        assert_eq!(number(&main, "SELECT min(b) FROM t"), at, "{context}");
        assert_eq!(number(&main, "SELECT count(*) FROM t"), at, "{context}");
        assert_eq!(number(&second, "SELECT b FROM t"), at, "{context}");
        at
    };
    assert!((known.durable..=known.begun).contains(&at), "{context}: at {at}, durable {}", known.durable);
    let snapshots = db.snapshots().unwrap();
    assert_eq!(snapshots.len() as i64, (at + 1) / 2, "{context}");
    for snapshot in snapshots {
        let name = snapshot.name.unwrap();
        let i: i64 = name.parse().unwrap();
        let past = db.sql_as_of("main", &name).unwrap();
        assert_eq!(number(&past, "SELECT sum(b) FROM t"), i * i, "{context}: snapshot {name}");
        assert_eq!(number(&db.sql_as_of("second", &name).unwrap(), "SELECT b FROM t"), i, "{context}");
        check(&past);
    }
    at
}

#[test]
fn a_cut_at_any_operation_keeps_what_was_promised() {
    let whole = SimDisk::new();
    let mut known = Known::default();
    work(&open(&whole, "cut").unwrap(), &mut known).unwrap();
    let operations = whole.operations();
    assert_eq!(check_left(&open(&whole.crash_image(1), "cut").unwrap(), &known, "not cut"), COMMITS);
    println!("{operations} operations");
    let mut random = Random(1);
    let cuts: Vec<u64> = (0..40).map(|_| 1 + random.below(operations)).collect();
    for n in cuts {
        let disk = SimDisk::new();
        disk.crash_at(n);
        let mut known = Known::default();
        // It may fail at opening already, and come to its end if only the closing is cut.
        let _ = open(&disk, "cut").map(|db| work(&db, &mut known));
        for seed in [0, 1, random.next()] {
            let image = disk.crash_image(seed);
            let context = format!("cut at {n}, image {seed}");
            let db = open(&image, "cut").unwrap_or_else(|error| panic!("{context}: {error}"));
            let at = check_left(&db, &known, &context);
            // It goes on.
            let connection = db.sql("main").unwrap();
            run(
                &connection,
                "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b, c); INSERT INTO t VALUES (99, 99, 99)",
            );
            assert_eq!(number(&connection, "SELECT count(*) FROM t"), at + 1, "{context}");
            check(&connection);
        }
    }
}

#[test]
fn a_failing_operation_loses_nothing_that_was_promised() {
    let whole = SimDisk::new();
    work(&open(&whole, "fails").unwrap(), &mut Known::default()).unwrap();
    let operations = whole.operations();
    let mut random = Random(2);
    for _ in 0..30 {
        let n = 1 + random.below(operations);
        let disk = SimDisk::new();
        let kind =
            if random.below(2) == 0 { std::io::ErrorKind::Other } else { std::io::ErrorKind::StorageFull };
        disk.fail_at(n, kind);
        let mut known = Known::default();
        let _ = open(&disk, "fails").map(|db| work(&db, &mut known));
        disk.clear_faults();
        let context = format!("operation {n} fails: {kind}");
        check_left(
            &open(&disk, "fails").unwrap_or_else(|error| panic!("{context}: {error}")),
            &known,
            &context,
        );
    }
}

#[test]
fn a_full_disk_is_told_as_such_and_reading_goes_on() {
    let disk = SimDisk::new();
    let db = open(&disk, "full").unwrap();
    let connection = db.sql("main").unwrap();
    run(&connection, "CREATE TABLE t(a)");
    disk.set_capacity(disk.bytes() + (200 << 10));
    let error =
        (0..).find_map(|_| connection.execute("INSERT INTO t VALUES (randomblob(9000))", []).err()).unwrap();
    assert!(
        matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure)),
        "{error}"
    );
    let count = number(&connection, "SELECT count(*) FROM t");
    assert!(count > 0);
    check(&connection);
    assert!(connection.is_autocommit());
}

#[test]
fn damage_is_an_error_of_io_never_other_data() {
    let disk = SimDisk::new();
    let db = open(&disk, "damage").unwrap();
    run(
        &db.sql("main").unwrap(),
        "CREATE TABLE t(a); INSERT INTO t WITH RECURSIVE c(i) AS
        (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 2000) SELECT hex(zeroblob(100)) FROM c",
    );
    db.merge().unwrap();
    drop(db);
    let file = std::path::Path::new("damage").join("base.pages");
    let bytes = disk.read_file(&file).unwrap();
    let mut random = Random(3);
    let mut noticed = 0;
    for _ in 0..60 {
        let image = disk.crash_image(1);
        // In the middle of zeros written as text.
        let at = loop {
            let at = random.below(bytes.len() as u64);
            if bytes[at as usize] == b'0' {
                break at;
            }
        };
        image.flip(&file, at, 1).unwrap();
        let Ok(db) = open(&image, "damage") else { continue };
        let Ok(connection) = db.sql("main") else { continue };
        let sum = connection
            .query_row("SELECT count(*) FROM t WHERE a = hex(zeroblob(100))", [], |row| row.get::<_, i64>(0));
        match sum {
            Ok(2000) => {}
            Ok(other) => panic!("{other} rows are right after damage at {at}"),
            Err(error) => {
                let code = error.sqlite_error().unwrap().extended_code;
                assert_eq!(code, rusqlite::ffi::SQLITE_IOERR_DATA, "{error}");
                noticed += 1;
            }
        }
    }
    assert!(noticed > 10, "{noticed}");
}
