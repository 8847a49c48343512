//! Case `speedtest`: a spread of statements, as text, each kind timed by itself.
//!
//! It is in the manner of SQLite's own `speedtest1`. The text is such that SQLite 3.7 takes it, too. What each kind
//! answers is compared with what SQLite answers with its database in memory.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::Sizes;
use crate::context::Context;
use crate::data::Random;
use crate::engines::sql::{self as engines, Script};

pub fn run(context: &Context, sizes: &Sizes, dir: &Path) -> Result<()> {
    let kinds = kinds(sizes.speedtest.rows);
    let mut engine = engines::open_script(&context.engine, dir, sizes.opening())?;
    let mut reference = engines::reference()?;
    let mut total = 0.0;
    for (number, (name, text)) in (1..).zip(&kinds) {
        let name = format!("speedtest {number:02} {name}");
        let expected = reference.run(text).with_context(|| name.clone())?;
        let start = Instant::now();
        let found = engine.run(text).with_context(|| name.clone())?;
        let time = start.elapsed().as_secs_f64() * 1e3;
        ensure!(found == expected, "{name} answers {found:?}, not {expected:?}");
        total += time;
        context.measured(&name, 1, time, "ms")?;
    }
    context.measured("speedtest, all", 1, total, "ms")
}

/// Text of several statements.
struct Text {
    sql: String,
    random: Random,
    rows: u64,
}

impl Text {
    fn add(&mut self, statement: &str) {
        self.sql.push_str(statement);
        self.sql.push_str(";\n");
    }

    /// A row's number, at random.
    fn any(&mut self) -> u64 {
        1 + self.random.below(self.rows)
    }

    fn in_transaction(&mut self, statements: impl FnOnce(&mut Text)) {
        self.add("BEGIN");
        statements(self);
        self.add("COMMIT");
    }

    /// A row of the first three tables.
    fn insert(&mut self, table: &str, id: u64) {
        let number = self.any();
        let words = words(number);
        self.add(&format!("INSERT INTO {table} VALUES ({id}, {number}, '{words}')"));
    }
}

/// A number by its digits' names, as long as a line of text.
fn words(number: u64) -> String {
    const NAMES: [&str; 10] =
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    let mut text = String::new();
    for digit in number.to_string().bytes() {
        let _ = write!(text, "{} ", NAMES[usize::from(digit - b'0')]);
    }
    text.push_str("and what there is to say of it");
    text
}

/// Names and texts.
fn kinds(rows: u64) -> Vec<(&'static str, String)> {
    let mut kinds = Vec::new();
    let mut add = |name, write: &dyn Fn(&mut Text)| {
        let random = Random::new(kinds.len() as u64);
        let mut text = Text { sql: String::new(), random, rows };
        write(&mut text);
        kinds.push((name, text.sql));
    };
    let some = rows / 5;

    add("inserts, no key", &|text| {
        text.in_transaction(|text| {
            text.add("CREATE TABLE plain(a INTEGER, b INTEGER, c TEXT)");
            (1..=rows).for_each(|id| text.insert("plain", id));
        });
    });
    add("inserts in order", &|text| {
        text.in_transaction(|text| {
            text.add("CREATE TABLE keyed(a INTEGER PRIMARY KEY, b INTEGER, c TEXT)");
            (1..=rows).for_each(|id| text.insert("keyed", id));
        });
    });
    add("inserts at random, indexed", &|text| {
        text.in_transaction(|text| {
            text.add("CREATE TABLE indexed(a INTEGER PRIMARY KEY, b INTEGER, c TEXT)");
            text.add("CREATE INDEX indexed_b ON indexed(b)");
            text.add("CREATE INDEX indexed_c ON indexed(c)");
            // A prime stride: each number once.
            (0..rows).for_each(|index| text.insert("indexed", 1 + index * 7919 % rows));
        });
    });
    add("ranges without an index", &|text| {
        for _ in 0..20 {
            let from = text.any();
            text.add(&format!(
                "SELECT count(*), sum(b), sum(length(c)) FROM plain WHERE b BETWEEN {from} AND {from} + 1000"
            ));
        }
    });
    add("LIKE", &|text| {
        for digit in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"] {
            text.add(&format!("SELECT count(*), sum(b) FROM plain WHERE c LIKE '%{digit} {digit}%'"));
        }
    });
    add("ORDER BY", &|text| {
        for digit in ["one", "two", "three", "four", "five"] {
            text.add(&format!("SELECT a, b FROM plain WHERE c LIKE '%{digit}%' ORDER BY c, a LIMIT 10"));
        }
    });
    add("CREATE INDEX", &|text| {
        text.add("CREATE INDEX plain_b ON plain(b)");
        text.add("CREATE INDEX plain_c ON plain(c)");
    });
    add("ranges by key", &|text| {
        for _ in 0..some {
            let from = text.any();
            text.add(&format!("SELECT count(*), sum(b) FROM keyed WHERE a BETWEEN {from} AND {from} + 10"));
        }
    });
    add("ranges by index", &|text| {
        for _ in 0..some {
            let from = text.any();
            text.add(&format!(
                "SELECT count(*), sum(a), sum(length(c)) FROM indexed WHERE b BETWEEN {from} AND {from} + 10"
            ));
        }
    });
    add("lookups by text", &|text| {
        for _ in 0..some {
            let words = words(text.any());
            text.add(&format!("SELECT count(*), sum(b) FROM plain WHERE c = '{words}'"));
        }
    });
    add("joins", &|text| {
        text.add("SELECT count(*), sum(keyed.b) FROM keyed JOIN indexed ON keyed.b = indexed.a");
        text.add(
            "SELECT count(*), sum(plain.a) FROM plain JOIN keyed ON plain.b = keyed.a WHERE keyed.b < 1000",
        );
        text.add(
            "SELECT count(*) FROM plain LEFT JOIN indexed ON plain.a = indexed.b WHERE indexed.a IS NULL",
        );
    });
    add("subqueries", &|text| {
        text.add("SELECT count(*) FROM keyed WHERE b IN (SELECT a FROM indexed WHERE b < 1000)");
        text.add("SELECT count(*) FROM keyed WHERE EXISTS (SELECT 1 FROM plain WHERE plain.b = keyed.a)");
        text.add("SELECT sum(b) FROM keyed WHERE b > (SELECT b FROM indexed WHERE indexed.a = keyed.a)");
    });
    add("GROUP BY", &|text| {
        text.add("SELECT b % 10, count(*), min(a), max(a), sum(b) FROM keyed GROUP BY b % 10 ORDER BY 1");
        text.add("SELECT count(DISTINCT c), count(DISTINCT b) FROM plain");
        text.add("SELECT count(*) FROM (SELECT b, count(*) AS n FROM plain GROUP BY b HAVING n > 1)");
    });
    add("updates of ranges", &|text| {
        text.in_transaction(|text| {
            for _ in 0..20 {
                let from = text.any();
                text.add(&format!("UPDATE plain SET a = a + 1 WHERE b + 0 BETWEEN {from} AND {from} + 1000"));
            }
        });
    });
    add("updates by key", &|text| {
        text.in_transaction(|text| {
            for _ in 0..rows {
                let (id, number) = (text.any(), text.any());
                text.add(&format!("UPDATE keyed SET b = {number} WHERE a = {id}"));
            }
        });
    });
    add("updates of an index", &|text| {
        text.in_transaction(|text| {
            for _ in 0..some {
                let (id, number) = (text.any(), text.any());
                text.add(&format!("UPDATE indexed SET b = {number}, c = '{}' WHERE a = {id}", words(number)));
            }
        });
    });
    add("updates one by one", &|text| {
        for _ in 0..some {
            let id = text.any();
            text.add(&format!("UPDATE keyed SET b = b + 1 WHERE a = {id}"));
        }
    });
    add("INSERT SELECT", &|text| {
        text.add("CREATE TABLE copied(a INTEGER PRIMARY KEY, b INTEGER, c TEXT)");
        text.add("INSERT INTO copied SELECT a, b, c FROM indexed");
        text.add("INSERT INTO copied SELECT a + (SELECT max(a) FROM copied), b, c FROM keyed ORDER BY b, a");
    });
    add("large rows", &|text| {
        text.add("CREATE TABLE large(a INTEGER PRIMARY KEY, c TEXT)");
        text.add(
            "INSERT INTO large SELECT a, replace(hex(zeroblob(200)), '00', c) FROM keyed WHERE a % 100 = 7",
        );
        text.add("UPDATE large SET c = c || 'end' WHERE a % 3 = 0");
        text.add("SELECT count(*), sum(length(c)) FROM large WHERE c LIKE '%end'");
    });
    add("ROLLBACK", &|text| {
        text.add("BEGIN");
        text.add("UPDATE copied SET b = b + 1");
        text.add("DELETE FROM indexed WHERE b % 2 = 0");
        text.add("ROLLBACK");
    });
    add("deletes of ranges", &|text| {
        text.in_transaction(|text| {
            for _ in 0..20 {
                let from = text.any();
                text.add(&format!("DELETE FROM plain WHERE b BETWEEN {from} AND {from} + {}", rows / 100));
            }
        });
    });
    add("deletes by key", &|text| {
        text.in_transaction(|text| {
            for _ in 0..some {
                let id = text.any();
                text.add(&format!("DELETE FROM indexed WHERE a = {id}"));
            }
        });
    });
    add("inserts into holes", &|text| {
        text.in_transaction(|text| {
            for index in 0..some {
                text.insert("indexed", rows + 1 + index);
            }
        });
    });
    add("VACUUM", &|text| text.add("VACUUM"));
    add("integrity_check", &|text| text.add("PRAGMA integrity_check"));
    add("what is left", &|text| {
        for table in ["plain", "keyed", "indexed", "copied"] {
            text.add(&format!("SELECT count(*), sum(a), sum(b), sum(length(c)) FROM {table}"));
        }
    });
    add("DROP", &|text| {
        for table in ["plain", "keyed", "indexed", "copied", "large"] {
            text.add(&format!("DROP TABLE {table}"));
        }
    });
    kinds
}
