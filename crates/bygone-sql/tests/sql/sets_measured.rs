//! How long set queries take, beside asking each snapshot by itself.
//!
//! Owns: the measurement, which is run by hand: `cargo test --release -p bygone-sql --test sql measured -- --ignored
//! --nocapture`. May call: the support.

use std::time::{Duration, Instant};

use bygone::SnapshotId;
use bygone_sql::{Sql, set_stats};
use rusqlite::Connection;

use crate::support::{Place, number, run};

const ROWS: u64 = 100_000;
const SNAPSHOTS: u64 = 100;
const CHANGED: u64 = ROWS / 100;
const ROUNDS: usize = 3;

#[test]
#[ignore = "a measurement"]
fn a_set_query_is_measured_beside_separate_ones() {
    for (how, which) in [
        // One stretch of keys, another one each time.
        ("1% of the rows, side by side", "k BETWEEN ?1 * 7919 % 100000 AND ?1 * 7919 % 100000 + 999"),
        ("1% of the rows, anywhere", "k % 100 = ?1 % 100"),
    ] {
        let place = Place::new();
        let connection = place.sql();
        run(
            &connection,
            "PRAGMA synchronous = OFF; CREATE TABLE t(k INTEGER PRIMARY KEY, g INTEGER, v INTEGER, pad BLOB)",
        );
        run(
            &connection,
            &format!(
                "WITH RECURSIVE n(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k < {ROWS} - 1)
                 INSERT INTO t SELECT k, k % 100, k, zeroblob(50) FROM n"
            ),
        );
        run(&connection, "CREATE INDEX by_g ON t(g, v)");
        let mut changed = 0;
        for snapshot in 1..=SNAPSHOTS {
            let update = format!("UPDATE t SET v = v + 1 WHERE {which}");
            changed += connection.execute(&update, [snapshot as i64]).unwrap() as u64;
            run(&connection, "SELECT snapshot_now()");
        }
        place.db.merge().unwrap();
        println!(
            "{how}: {:.0} rows a snapshot, {} pages",
            changed as f64 / SNAPSHOTS as f64,
            number(&connection, "PRAGMA page_count")
        );
        assert!(changed <= SNAPSHOTS * CHANGED);
        for query in [
            "SELECT v FROM t WHERE k = 50000",
            "SELECT sum(v) FROM t WHERE k BETWEEN 50000 AND 51000",
            "SELECT max(v) FROM t WHERE g = 7",
            "SELECT sum(v) FROM t",
        ] {
            measure(&place, &connection, query);
        }
    }
}

fn measure(place: &Place, connection: &Connection, query: &str) {
    let mut times: [Vec<Duration>; 3] = Default::default();
    let ids = 1..=SNAPSHOTS;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let apart: Vec<i64> = ids
            .clone()
            .map(|id| number(&place.db.sql_as_of("main", SnapshotId::from(id)).unwrap(), query))
            .collect();
        times[0].push(begun.elapsed());
        let moved = place.sql();
        let begun = Instant::now();
        for (id, expected) in ids.clone().zip(&apart) {
            run(&moved, &format!("PRAGMA as_of = 'id:{id}'"));
            assert_eq!(number(&moved, query), *expected);
        }
        times[1].push(begun.elapsed());
        let begun = Instant::now();
        let set = format!("SELECT AggregateDataInVariable(id, '{query}', 'total') FROM bygone_snapshots");
        let total: f64 = connection.query_row(&set, [], |row| row.get(0)).unwrap();
        times[2].push(begun.elapsed());
        assert_eq!(total, apart.iter().sum::<i64>() as f64);
    }
    let [apart, moved, set] = times.map(|mut times| {
        times.sort();
        times[ROUNDS / 2].as_secs_f64() * 1e3
    });
    let stats = set_stats(connection).unwrap();
    println!(
        "  {query}: apart {apart:.2} ms, one connection moved {moved:.2} ms, set {set:.2} ms: {:.1} times; {} runs, \
         {} reads of pages",
        apart / set,
        stats.runs,
        stats.page_reads
    );
}
