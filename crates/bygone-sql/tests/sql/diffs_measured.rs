//! How long differences take, beside comparing all rows.
//!
//! Owns: the measurement, which is run by hand: `cargo test --release -p bygone-sql --test sql measured -- --ignored
//! --nocapture`. May call: the support.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::support::{Place, number, run};

const ROWS: u64 = 1_000_000;

fn timed(connection: &Connection, sql: &str) -> (i64, Duration) {
    let begun = Instant::now();
    (number(connection, sql), begun.elapsed())
}

#[test]
#[ignore = "a measurement"]
fn differences_are_measured_beside_comparing_all_rows() {
    for (key, how) in
        [("INTEGER PRIMARY KEY", ""), ("TEXT PRIMARY KEY", ""), ("INTEGER PRIMARY KEY", "WITHOUT ROWID")]
    {
        let place = Place::new();
        let connection = place.sql();
        run(
            &connection,
            &format!(
                "PRAGMA synchronous = OFF; CREATE TABLE t(k {key}, v INTEGER, pad BLOB) {how};
                 WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n LIMIT {ROWS})
                 INSERT INTO t SELECT k, k, zeroblob(60) FROM n; SELECT snapshot_now('a');
                 UPDATE t SET v = v + 1 WHERE k BETWEEN 500000 AND 500999; SELECT snapshot_now('b');
                 UPDATE t SET v = v + 1 WHERE k % 1000 = 7; SELECT snapshot_now('c')"
            ),
        );
        place.db.merge().unwrap();
        for (what, a, b) in [("side by side", "a", "b"), ("anywhere", "b", "c")] {
            run(&connection, &format!("CREATE VIRTUAL TABLE temp.d USING bygone_diff(t, {a}, {b})"));
            for _ in 0..3 {
                let (count, columns) = timed(&connection, "SELECT count(*) FROM temp.d");
                let json = format!("SELECT count(*) FROM bygone_diff('t', '{a}', '{b}')");
                let (json_count, json) = timed(&connection, &json);
                assert_eq!(count, json_count);
                println!("{key} {how}: {count} rows {what}: columns {columns:?}, JSON {json:?}");
            }
            run(&connection, "DROP TABLE temp.d");
        }
        // The same by hand: all rows are joined.
        for moment in ["a", "b"] {
            run(&connection, &format!("ATTACH '{}' AS at_{moment}", place.uri(&format!("&as_of={moment}"))));
        }
        let (count, all) = timed(
            &connection,
            "SELECT count(*) FROM at_a.t AS a JOIN at_b.t AS b USING (k) WHERE a.v IS NOT b.v OR a.pad IS NOT b.pad",
        );
        println!("{key} {how}: {count} rows by a join of all: {all:?}");
    }
}
