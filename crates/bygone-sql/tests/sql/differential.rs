//! Random SQL, beside stock SQLite.
//!
//! Owns: the generator of scripts, and the comparison. Promises: the same seed makes the same script; every statement
//! has the same outcome on both, and every snapshot reads for ever as the copy that was made when it was declared.
//! `BYGONE_SEEDS` says how many seeds there are. May call: the support.

use bygone_sql::Sql;
use rusqlite::Connection;
use rusqlite::backup::Backup;

use crate::support::{Place, Random, check, rows};

const STEPS: u64 = 250;
const TABLES: u64 = 5;

#[test]
fn random_sql_has_the_same_outcome_as_on_stock_sqlite() {
    for seed in 0..seeds(6) {
        Both::new(seed).play();
    }
}

fn seeds(usual: u64) -> u64 {
    std::env::var("BYGONE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// The same database on both, and what it was.
struct Both {
    seed: u64,
    random: Random,
    place: Place,
    ours: Connection,
    stock: Connection,
    /// By the snapshot's number from 1 on.
    copies: Vec<Connection>,
    log: Vec<String>,
}

impl Both {
    fn new(seed: u64) -> Both {
        let mut random = Random(seed);
        let place =
            Place::with(bygone::Options::new().memtable_bytes(256 << 10).background(seed.is_multiple_of(2)));
        let ours = place.sql();
        let stock = Connection::open_in_memory().unwrap();
        let page_bytes = 512 << random.below(6);
        let both = Both { seed, random, place, ours, stock, copies: Vec::new(), log: Vec::new() };
        for connection in [&both.ours, &both.stock] {
            crate::support::run(
                connection,
                &format!("PRAGMA page_size = {page_bytes}; PRAGMA recursive_triggers = 1"),
            );
        }
        crate::support::run(&both.ours, "PRAGMA cache_size = 10; PRAGMA synchronous = NORMAL");
        both
    }

    fn play(mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        if !self.stock.is_autocommit() {
            self.same("COMMIT");
        }
        self.compare("in the end");
        self.compare_copies();
        let Both { seed, place, ours, copies, .. } = self;
        drop(ours);
        let Place { db, directory } = place;
        drop(db);
        let db = bygone::Db::open(directory.path().join("bank")).unwrap();
        for (copy, id) in copies.iter().zip(1..) {
            check_copy(&db, copy, id, &format!("seed {seed}, reopened"));
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..6 => self.snapshot(),
            6..9 => self.place.db.merge().unwrap(),
            9..11 => self.place.db.flush().unwrap(),
            11..15 if self.stock.is_autocommit() => self.compare("on the way"),
            15..17 => self.compare_copies(),
            _ => {
                let sql = self.statement();
                self.same(&sql);
            }
        }
    }

    /// Runs a statement on both.
    fn same(&mut self, sql: &str) {
        self.log.push(sql.to_owned());
        let outcome =
            |connection: &Connection| connection.execute_batch(sql).map_err(|error| error.to_string());
        let (ours, stock) = (outcome(&self.ours), outcome(&self.stock));
        assert_eq!(ours, stock, "seed {}: {sql}\nafter\n{}", self.seed, self.log.join(";\n"));
        assert_eq!(self.ours.is_autocommit(), self.stock.is_autocommit());
        assert_eq!(self.ours.last_insert_rowid(), self.stock.last_insert_rowid());
    }

    fn snapshot(&mut self) {
        let in_transaction = !self.stock.is_autocommit();
        crate::support::run(&self.ours, "SELECT snapshot_now()");
        if in_transaction {
            self.same("COMMIT");
        }
        let mut copy = Connection::open_in_memory().unwrap();
        Backup::new(&self.stock, &mut copy)
            .and_then(|backup| backup.run_to_completion(1000, std::time::Duration::ZERO, None))
            .unwrap();
        self.copies.push(copy);
        assert_eq!(self.place.db.snapshots().unwrap().len(), self.copies.len());
    }

    fn compare(&self, when: &str) {
        let expected = dump(&self.stock);
        let log = || self.log.join(";\n");
        assert_eq!(dump(&self.ours), expected, "seed {}, {when}, after\n{}", self.seed, log());
        let other = self.place.sql();
        assert_eq!(
            dump(&other),
            expected,
            "seed {}, {when}, on another connection, after\n{}",
            self.seed,
            log()
        );
        check(&other);
    }

    /// Some snapshots, by a connection of their own and by a session that goes from one to the other.
    fn compare_copies(&mut self) {
        let session = self.place.sql();
        for _ in 0..4 {
            if self.copies.is_empty() {
                return;
            }
            let index = self.random.below(self.copies.len() as u64);
            let expected = dump(&self.copies[index as usize]);
            let context = format!("seed {}: snapshot {}", self.seed, index + 1);
            check_copy(&self.place.db, &self.copies[index as usize], index + 1, &context);
            crate::support::run(&session, &format!("PRAGMA as_of = 'id:{}'", index + 1));
            assert_eq!(dump(&session), expected, "{context}, in a session");
        }
        crate::support::run(&session, "PRAGMA as_of = now");
    }

    fn statement(&mut self) -> String {
        let table = format!("t{}", self.random.below(TABLES));
        let key = self.random.below(300);
        let value = self.value();
        match self.random.below(100) {
            0..8 => format!("CREATE TABLE {table}(a INTEGER PRIMARY KEY, b, c TEXT DEFAULT 'c')"),
            8..10 => format!("CREATE TABLE {table}(a, b, c, PRIMARY KEY (a, b)) WITHOUT ROWID"),
            10..12 => format!("DROP TABLE {table}"),
            12..15 => format!("CREATE INDEX {table}_b{} ON {table}(b)", self.random.below(2)),
            15..16 => format!("DROP INDEX {table}_b0"),
            16..18 => format!("ALTER TABLE {table} ADD COLUMN d{} DEFAULT {key}", self.random.below(4)),
            18..19 => format!("ALTER TABLE {table} RENAME TO t{}", self.random.below(TABLES)),
            19..20 => format!("ALTER TABLE {table} DROP COLUMN d{}", self.random.below(4)),
            20..21 => format!(
                "CREATE VIEW v{} AS SELECT b, count(*) AS n FROM {table} GROUP BY b",
                self.random.below(2)
            ),
            21..22 => format!("DROP VIEW v{}", self.random.below(2)),
            22..24 => format!(
                "CREATE TRIGGER r{} AFTER UPDATE ON {table} BEGIN \
                 UPDATE {table} SET c = 'by trigger' WHERE a = new.a + 1; END",
                self.random.below(3)
            ),
            24..25 => format!("DROP TRIGGER r{}", self.random.below(3)),
            25..50 => format!("INSERT INTO {table}(a, b) VALUES ({key}, {value})"),
            50..55 => format!(
                "INSERT OR REPLACE INTO {table}(a, b, c) SELECT a + {key}, b, {value} FROM {table} LIMIT 40"
            ),
            55..65 => format!("UPDATE {table} SET b = {value} WHERE a BETWEEN {key} AND {key} + 20"),
            65..68 => format!("UPDATE {table} SET a = a + 1000"),
            68..76 => format!("DELETE FROM {table} WHERE a % 7 = {}", key % 7),
            76..77 => format!("DELETE FROM {table}"),
            77..84 => "BEGIN".to_owned(),
            84..88 => "COMMIT".to_owned(),
            88..90 => "ROLLBACK".to_owned(),
            90..93 => format!("SAVEPOINT s{}", self.random.below(3)),
            93..95 => format!("ROLLBACK TO s{}", self.random.below(3)),
            95..97 => format!("RELEASE s{}", self.random.below(3)),
            97..98 => "VACUUM".to_owned(),
            98..99 => "ANALYZE".to_owned(),
            _ => "REINDEX".to_owned(),
        }
    }

    fn value(&mut self) -> String {
        let number = self.random.below(100);
        match self.random.below(6) {
            0 => "NULL".to_owned(),
            1 => number.to_string(),
            2 => format!("'text {number}'"),
            3 => format!("zeroblob({})", number * 7),
            4 => format!("'{}'", format!("{number} and ").repeat(1 + self.random.below(900) as usize)),
            _ => format!("{number}.5"),
        }
    }
}

/// A snapshot, by a connection of its own.
fn check_copy(db: &bygone::Db, copy: &Connection, id: u64, context: &str) {
    match db.sql_as_of("main", bygone::SnapshotId::from(id)) {
        Ok(past) => {
            assert_eq!(dump(&past), dump(copy), "{context}: snapshot {id}");
            check(&past);
        }
        // Declared before there was a database.
        Err(_) => assert!(dump(copy).is_empty(), "{context}: snapshot {id}"),
    }
}

/// Schema and rows of everything.
fn dump(connection: &Connection) -> Vec<String> {
    let mut out = rows(connection, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name");
    let mut statement =
        connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").unwrap();
    let names: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap();
    for name in names {
        // What ANALYZE finds depends on nothing else, so it is compared too.
        out.extend(rows(connection, &format!("SELECT * FROM \"{name}\"")));
    }
    out
}
