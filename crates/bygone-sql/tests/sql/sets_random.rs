//! Set queries over random histories.
//!
//! Owns: databases that change at random, whose snapshots lie in all kinds of places, and what asking each of them by
//! itself gives. May call: the support.

use std::time::Duration;

use bygone_sql::{SetStats, Sql, set_stats, share_sets};
use rusqlite::Connection;

use crate::support::{Place, Random, number, rows, run};

#[test]
fn random_histories_give_what_asking_each_snapshot_gives() {
    for seed in 0..12_u64 {
        History::new(seed).check();
    }
}

/// A database that changes at random, with snapshots.
struct History {
    seed: u64,
    random: Random,
    place: Place,
    connection: Connection,
    snapshots: u64,
    _elsewhere: tempfile::TempDir,
}

impl History {
    fn new(seed: u64) -> History {
        let mut random = Random(seed);
        let options = bygone::Options::new().memtable_bytes(256 << 10).background(seed.is_multiple_of(2));
        // Where the past is elsewhere, it is moved there now and then.
        let elsewhere = tempfile::tempdir().unwrap();
        let options = if seed % 3 == 2 { options.history_dir(elsewhere.path()) } else { options };
        let place = Place::with(options);
        let connection = place.sql();
        let page_bytes = 512 << random.below(4);
        run(
            &connection,
            &format!(
                "PRAGMA page_size = {page_bytes}; PRAGMA synchronous = OFF; PRAGMA auto_vacuum = {}",
                seed % 3
            ),
        );
        run(&connection, "CREATE TABLE t(k INTEGER PRIMARY KEY, g INTEGER, v INTEGER, pad BLOB)");
        run(&connection, "CREATE INDEX by_g ON t(g, v)");
        let mut history = History { seed, random, place, connection, snapshots: 0, _elsewhere: elsewhere };
        while history.snapshots < 25 {
            history.step();
        }
        history
    }

    fn step(&mut self) {
        let key = self.random.below(400);
        let (group, value) = (self.random.below(6), self.random.below(1000));
        let sql = match self.random.below(43) {
            40 => {
                // There and back, with a snapshot in between; the pages are the same again.
                self.snapshots += 2;
                format!(
                    "UPDATE t SET v = v + 1 WHERE k > {key}; SELECT snapshot_now();
                     UPDATE t SET v = v - 1 WHERE k > {key}; SELECT snapshot_now()"
                )
            }
            41 if self.snapshots > 0 => {
                let id = bygone::SnapshotId::from(1 + self.random.below(self.snapshots));
                self.place.db.restore(id).unwrap();
                return;
            }
            42 => {
                self.place.db.archive().unwrap();
                return;
            }
            0..8 => {
                self.snapshots += 1;
                "SELECT snapshot_now()".to_owned()
            }
            8 => return self.place.db.merge().unwrap(),
            9 => return self.place.db.flush().unwrap(),
            10 => "VACUUM".to_owned(),
            11 => format!("CREATE TABLE IF NOT EXISTS u{group}(a); INSERT INTO u{group} VALUES ({value})"),
            12 => format!("DROP TABLE IF EXISTS u{group}"),
            13 => format!("DELETE FROM t WHERE k BETWEEN {key} AND {key} + 100"),
            14 => "ANALYZE".to_owned(),
            15..25 => format!(
                "WITH RECURSIVE n(k) AS (SELECT {key} UNION ALL SELECT k + 1 FROM n WHERE k < {key} + 60)
                 INSERT OR REPLACE INTO t SELECT k, k % 6, {value}, zeroblob(k % 90) FROM n"
            ),
            _ => format!("UPDATE t SET v = {value} WHERE k = {key}"),
        };
        run(&self.connection, &sql);
    }

    fn check(mut self) {
        let queries = [
            "SELECT g, v FROM t WHERE k = 7",
            "SELECT g, v FROM t WHERE k BETWEEN 20 AND 40 ORDER BY k",
            "SELECT g, sum(v) AS v FROM t GROUP BY g ORDER BY g",
            "SELECT g, v FROM t WHERE g = 3 AND v > 900 ORDER BY k",
            "SELECT length(pad) AS g, count(*) AS v FROM t WHERE k < 100 GROUP BY 1 ORDER BY 1",
        ];
        let shares = [None, Some(Duration::ZERO)];
        let asked = queries.iter().flat_map(|query| shares.map(|share| (*query, share)));
        for ((query, share), index) in asked.zip(0..) {
            share_sets(&self.connection, share);
            // Some of the snapshots.
            let picked: Vec<u64> = (1..=self.snapshots).filter(|_| self.random.below(4) > 0).collect();
            let list = picked.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            let from = format!("FROM bygone_snapshots WHERE id IN ({list})");
            let apart = |id: u64| {
                let past = self.place.db.sql_as_of("main", bygone::SnapshotId::from(id)).unwrap();
                rows(&past, query)
            };
            let brute: Vec<(u64, String)> =
                picked.iter().flat_map(|id| apart(*id).into_iter().map(|row| (*id, row))).collect();
            let ask = |call: &str| number(&self.connection, &format!("SELECT {call} {from}"));
            let log = format!("seed {}, {query}, {list}, {share:?}", self.seed);

            ask(&format!("CollateData(id, '{query}', 'collated{index}')"));
            let collated = rows(&self.connection, &format!("SELECT * FROM collated{index} ORDER BY rowid"));
            let expected: Vec<String> =
                brute.iter().map(|(id, row)| format!("Integer({id})|{row}")).collect();
            assert_eq!(collated, expected, "{log}");
            let SetStats { snapshots, runs, skipped, .. } =
                set_stats(&self.connection).expect("a set query has been answered");
            assert_eq!((snapshots, runs + skipped), (picked.len() as u64, snapshots), "{log}");

            ask(&format!("AggregateDataInTable(id, '{query}', 'table{index}', 'v:max,v:count,v:first')"));
            let table = rows(&self.connection, &format!("SELECT * FROM table{index}"));
            let grouped = rows(
                &self.connection,
                &format!(
                    "SELECT g, max(v), count(v),
                            (SELECT v FROM collated{index} AS f WHERE f.g IS c.g ORDER BY rowid LIMIT 1)
                     FROM collated{index} AS c GROUP BY g ORDER BY g"
                ),
            );
            assert_eq!(table, grouped, "{log}");

            ask(&format!("CollateDataIntoIntervals(id, '{query}', 'intervals{index}')"));
            let mut intervals = rows(&self.connection, &format!("SELECT * FROM intervals{index}"));
            intervals.sort();
            assert_eq!(intervals, stretches(&picked, &brute), "{log}");

            let sum = format!("SELECT sum(v) FROM ({query})");
            let variable =
                ask(&format!("AggregateDataInVariable(id, 'SELECT total(v) FROM ({query})', 'max') IS NULL"));
            assert_eq!(variable, i64::from(picked.is_empty()), "{log}");
            let of_sums =
                rows(&self.connection, &format!("SELECT AggregateDataInVariable(id, '{sum}', 'max') {from}"));
            let of_groups = rows(
                &self.connection,
                &format!("SELECT max(s) FROM (SELECT sum(v) AS s FROM collated{index} GROUP BY snapshot)"),
            );
            assert_eq!(of_sums, of_groups, "{log}");
        }
    }
}

/// Each row with the snapshots of its stretches, sorted.
fn stretches(picked: &[u64], rows: &[(u64, String)]) -> Vec<String> {
    let mut distinct: Vec<&String> = rows.iter().map(|(_, row)| row).collect();
    distinct.sort();
    distinct.dedup();
    let mut out = Vec::new();
    for row in distinct {
        let mut begun = None;
        let mut last = 0;
        for &id in picked {
            let has = rows.iter().any(|(other, found)| *other == id && found == row);
            if let (Some(since), false) = (begun, has) {
                out.push(format!("{row}|Integer({since})|Integer({last})"));
                begun = None;
            }
            if has {
                begun.get_or_insert(id);
            }
            last = id;
        }
        if let Some(since) = begun {
            out.push(format!("{row}|Integer({since})|Integer({last})"));
        }
    }
    out.sort();
    out
}
