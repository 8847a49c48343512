//! Files of SQLite's, in and out.
//!
//! Owns: what the Rust API promises of them, and imports that are cut off. May call: the support.

use std::path::Path;
use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Options};
use bygone_sql::{Error, Sql, export_file, import_file};
use rusqlite::Connection;

use crate::support::{Place, Random, check, number, run};

/// A file with so many rows of about 4,000 bytes.
fn make_file(path: &Path, rows: u32) {
    let source = Connection::open(path).unwrap();
    run(
        &source,
        &format!(
            "PRAGMA user_version = 5; CREATE TABLE t(a INTEGER PRIMARY KEY, b);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})
             INSERT INTO t SELECT i, randomblob(3900) FROM n;"
        ),
    );
}

#[test]
fn a_file_comes_in_and_goes_out() {
    let place = Place::new();
    let file = place.directory.path().join("app.db");
    make_file(&file, 100);
    let mut last = (0, 0);
    let imported = import_file(&place.db, "app", &file, false, |done, all| last = (done, all)).unwrap();
    let bytes = u64::from(imported.pages) * u64::from(imported.page_bytes);
    assert_eq!(last, (bytes, bytes));
    let app = place.db.sql("app").unwrap();
    check(&app);
    assert_eq!(number(&app, "PRAGMA user_version"), 5);
    place.db.snapshot_now("imported").unwrap();
    run(&app, "DELETE FROM t WHERE a > 10");

    let out = place.directory.path().join("out.db");
    export_file(&app, &out, |_, _| {}).unwrap();
    let past = place.db.sql_as_of("app", "imported").unwrap();
    let out_past = place.directory.path().join("past.db");
    export_file(&past, &out_past, |done, all| last = (done, all)).unwrap();
    assert_eq!(last.0, last.1);
    for (path, rows) in [(&out, 10), (&out_past, 100)] {
        let stock = Connection::open(path).unwrap();
        check(&stock);
        assert_eq!(number(&stock, "SELECT count(*) FROM t"), rows);
    }
    assert!(matches!(export_file(&app, &out, |_, _| {}), Err(Error::Exists { .. })));
}

#[test]
fn who_writes_or_is_there_already_is_not_written_over() {
    let place = Place::new();
    let file = place.directory.path().join("app.db");
    make_file(&file, 3);
    let main = place.sql();
    run(&main, "BEGIN IMMEDIATE; CREATE TABLE x(y)");
    assert!(matches!(import_file(&place.db, "main", &file, false, |_, _| {}), Err(Error::Statement { .. })));
    run(&main, "COMMIT");
    assert!(matches!(import_file(&place.db, "main", &file, false, |_, _| {}), Err(Error::Exists { .. })));
    assert_eq!(number(&main, "SELECT count(*) FROM x"), 0);
    // A connection that is open meets the new one.
    import_file(&place.db, "main", &file, true, |_, _| {}).unwrap();
    assert_eq!(number(&main, "SELECT count(*) FROM t"), 3);
    check(&main);
}

#[test]
fn an_import_that_is_cut_off_is_not_seen_and_can_be_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    // More than one commit takes.
    const ROWS: u32 = 4500;
    make_file(&file, ROWS);
    let open = |disk: &SimDisk, path: &str| -> bygone::Result<Db> {
        Options::new().background(false).memtable_bytes(4 << 20).open_on(Arc::new(disk.clone()), path)
    };
    let import = |db: &Db| import_file(db, "main", &file, false, |_, _| {});
    let whole = SimDisk::new();
    import(&open(&whole, "import").unwrap()).unwrap();
    let operations = whole.operations();
    let mut random = Random(7);
    let (mut unseen, mut seen) = (0, 0);
    for n in (0..8).map(|_| 1 + random.below(operations)).chain([operations - 1]) {
        let disk = SimDisk::new();
        disk.crash_at(n);
        let returned = open(&disk, "import").is_ok_and(|db| import(&db).is_ok());
        let db = open(&disk.crash_image(n), "import").unwrap();
        let connection = db.sql("main").unwrap();
        check(&connection);
        if number(&connection, "SELECT count(*) FROM sqlite_schema") == 0 {
            assert!(!returned, "cut at {n}: what was durable is gone");
            unseen += 1;
            import(&db).unwrap();
        } else {
            seen += 1;
        }
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), i64::from(ROWS), "cut at {n}");
        check(&connection);
    }
    println!("{operations} operations, {unseen} cut off, {seen} whole");
    assert!(unseen > 0);
}

#[test]
fn what_a_killed_import_left_is_removed() {
    let place = Place::new();
    let file = place.directory.path().join("app.db");
    make_file(&file, 10);
    let abandoned = place.directory.path().join(".bygone-import-x1");
    let in_use = place.directory.path().join(".bygone-import-x2");
    for folder in [&abandoned, &in_use] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("copy"), "half").unwrap();
    }
    let lock = std::fs::File::open(&in_use).unwrap();
    lock.lock().unwrap();
    import_file(&place.db, "app", &file, false, |_, _| {}).unwrap();
    assert!(!abandoned.exists() && in_use.exists());
    drop(lock);
    import_file(&place.db, "app", &file, true, |_, _| {}).unwrap();
    assert!(!in_use.exists());
    let left: Vec<_> = std::fs::read_dir(place.directory.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the file and the database: {left:?}");
}

/// The page size changes where another file takes the place of a database; the past keeps its own.
#[test]
fn states_of_several_page_sizes_are_read_and_compared() {
    let place = Place::new();
    let mut expected = Vec::new();
    for (page_bytes, encoding, rows) in [(1024, "UTF-16le", 45), (512, "UTF-8", 40), (8192, "UTF-8", 50)] {
        let file = place.directory.path().join(format!("{page_bytes}.db"));
        let source = Connection::open(&file).unwrap();
        run(
            &source,
            &format!(
                "PRAGMA page_size = {page_bytes}; PRAGMA encoding = '{encoding}';
                 CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})
                 INSERT INTO t SELECT i, 'text ' || i || iif(i = 7, {page_bytes}, '') FROM n"
            ),
        );
        drop(source);
        import_file(&place.db, "app", &file, true, |_, _| {}).unwrap();
        let id = place.db.snapshot_now(None).unwrap();
        expected.push((id, page_bytes, rows));
    }
    let app = place.db.sql("app").unwrap();
    for (id, page_bytes, rows) in &expected {
        let past = place.db.sql_as_of("app", *id).unwrap();
        let mut connections = vec![&past];
        // SQLite's connections have one text encoding.
        if *page_bytes != 1024 {
            run(&app, &format!("PRAGMA as_of = 'id:{id}'"));
            connections.push(&app);
        }
        for connection in connections {
            assert_eq!(number(connection, "SELECT count(*) FROM t"), *rows);
            assert_eq!(number(connection, "PRAGMA page_size"), *page_bytes);
            check(connection);
        }
    }
    let changes = |a: usize, b: usize, change: &str| {
        let (a, b) = (expected[a].0, expected[b].0);
        number(&app, &format!("SELECT count(*) FROM bygone_diff('t', {a}, {b}) WHERE change = '{change}'"))
    };
    assert_eq!((changes(0, 1, "insert"), changes(0, 1, "update"), changes(0, 1, "delete")), (0, 1, 5));
    assert_eq!((changes(1, 2, "insert"), changes(1, 2, "update"), changes(1, 2, "delete")), (10, 1, 0));
}
