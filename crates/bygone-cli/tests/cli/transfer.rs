//! import, export.

use std::fs;

use serde_json::json;

use super::Place;

const SURVEYS: &str = "\
country,year,pop,note
Sweden,1952,7124673,\"tall, blond\"
Sweden,1957,7363802,
Norway,1952,3327728,007
Norway,1957,3491938,1.50
";

fn with_surveys() -> Place {
    let place = Place::new();
    fs::write(place.path("surveys.csv"), SURVEYS).expect("a file");
    place
}

#[test]
fn rows_are_stored_as_objects_under_their_key() {
    let place = with_surveys();
    let shown = place.ok("import db t surveys.csv --key country,year");
    assert!(shown.starts_with("4 rows in 1 commit, "), "{shown}");
    assert_eq!(
        place.ok("get db t Sweden/1952"),
        "{\"country\":\"Sweden\",\"year\":1952,\"pop\":7124673,\"note\":\"tall, blond\"}\n"
    );
    assert!(place.ok("get db t Norway/1952").contains("\"note\":\"007\""));
    assert!(place.ok("get db t Norway/1957").contains("\"note\":1.50"));
}

#[test]
fn snapshots_are_declared_by_column_wherever_its_rows_stand() {
    let place = with_surveys();
    let report = &place.json("import db t surveys.csv --key country --snapshot-by year")[0];
    assert_eq!((&report["rows"], &report["commits"]), (&json!(4), &json!(2)));
    assert_eq!(report["snapshots"], json!([{ "id": 1, "name": "1952" }, { "id": 2, "name": "1957" }]));
    assert!(place.ok("get db t Sweden --as-of 1952").contains("7124673"));
    assert!(place.ok("get db t Sweden --as-of 1957").contains("7363802"));
    assert!(place.ok("get db t Sweden").contains("7363802"));
}

#[test]
fn taken_names_are_refused_before_anything_is_written() {
    let place = with_surveys();
    place.ok("put db t Sweden untouched");
    place.ok("snapshot db 1957");
    place.fails(
        "import db t surveys.csv --key country --snapshot-by year",
        1,
        "\"1957\" is taken by snapshot 1",
    );
    assert_eq!(place.ok("scan db t"), "Sweden\tuntouched\n");
    assert_eq!(place.json("snapshots db").len(), 1);
}

#[test]
fn rows_make_the_round_trip_as_of_any_snapshot() {
    let place = with_surveys();
    place.ok("import db t surveys.csv --key country --snapshot-by year");
    let then = "country,year,pop,note\nNorway,1952,3327728,007\nSweden,1952,7124673,\"tall, blond\"\n";
    assert_eq!(place.ok("export db t --rows --format csv --as-of 1952"), then);
    let shown = place.ok("export db t copy.csv --rows --as-of 1952");
    assert_eq!(shown, "2 records written to copy.csv\n");
    assert_eq!(fs::read_to_string(place.path("copy.csv")).expect("written"), then);

    for format in ["csv", "jsonl"] {
        place.ok(&format!("export db t rows.{format} --rows --as-of 1957"));
        place.ok(&format!("import {format} t rows.{format} --key country"));
        assert_eq!(place.ok(&format!("scan {format} t")), place.ok("scan db t --as-of 1957"), "{format}");
    }
}

#[test]
fn rows_may_have_different_columns() {
    let place = Place::new();
    let rows = b"{\"id\":1,\"a\":null,\"b\":[1,2]}\n{\"id\":2,\"c\":true}\n";
    place.run_with(&["import", "db", "t", "--format", "jsonl", "--key", "id"], rows).ok();
    assert_eq!(place.ok("export db t --rows --format csv"), "id,a,b,c\n1,,\"[1,2]\",\n2,,,true\n");
    assert_eq!(place.run("export db t --rows --format jsonl").stdout, rows);
}

#[test]
fn records_make_the_round_trip_whatever_their_bytes() {
    let place = Place::new();
    place.ok(r"put db t -e a,\x22\n v\r\n");
    place.ok("put db t plain 007");
    place.ok("put db t back\\slash x");
    for (options, file) in [("", "text.csv"), ("", "text.jsonl"), ("--base64", "encoded.csv")] {
        place.ok(&format!("export db t {file} {options}"));
        place.ok(&format!("import from-{file} t {file}"));
        assert_eq!(place.ok(&format!("scan from-{file} t")), place.ok("scan db t"), "{file}");
    }

    place.ok(r"put db t -e \xff\x00 \xfe");
    place.fails("export db t binary.csv", 2, "--base64");
    assert!(!place.path("binary.csv").exists(), "nothing half written is left");
    for (options, file) in [("--base64", "binary.csv"), ("", "binary.jsonl")] {
        place.ok(&format!("export db t {file} {options}"));
        place.ok(&format!("import from-{file} t {file}"));
        assert_eq!(place.ok(&format!("scan from-{file} t")), place.ok("scan db t"), "{file}");
    }
}

#[test]
fn large_imports_are_cut_into_commits() {
    let place = Place::new();
    let rows = 20_000;
    let value = "x".repeat(1000);
    let lines: String = (0..rows).map(|n| format!("k{n:06},{value},{}\n", n % 2)).collect();
    fs::write(place.path("large.csv"), format!("key,value,half\n{lines}")).expect("a file");
    let report = &place.json("import plain t large.csv")[0];
    assert_eq!((&report["rows"], &report["commits"]), (&json!(rows), &json!(3)));
    let report = &place.json("import halves t large.csv --snapshot-by half")[0];
    assert_eq!((&report["rows"], &report["commits"]), (&json!(rows), &json!(4)));
    assert_eq!(place.ok("scan halves t --as-of name:0 --keys-only").lines().count(), rows / 2);
    assert_eq!(place.ok("scan halves t --as-of name:1 --keys-only").lines().count(), rows);
    assert_eq!(place.ok("scan plain t"), place.ok("scan halves t"));
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let place = with_surveys();
    place.fails("import db t surveys.csv", 2, "line 2: there is no column \"key\"");
    place.fails("import db t surveys.csv --key nation", 2, "there are country, year, pop, note");
    place.fails("import db t absent.csv", 2, "absent.csv does not exist");
    place.fails("import db t surveys.txt --key country", 2, "--format csv or --format jsonl");
    place.fails("import db t", 2, "--format csv or --format jsonl");
    place.fails("import db t surveys.csv --key country --separator", 2, "--separator");
    place.ok("put db t k no-object");
    place.fails("export db t --rows", 2, "export without --rows");
    place.fails("export db t no/such/dir.csv", 2, "no/such/dir.csv");
}
