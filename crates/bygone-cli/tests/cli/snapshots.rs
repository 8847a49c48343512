//! snapshot, snapshots, `--as-of`, stats, verify.

use serde_json::{Value, json};

use super::Place;

/// Three states of one key, each declared: "first", "2" (a name that looks like an id) and one without a
/// name.
fn with_past() -> Place {
    let place = Place::new();
    place.ok("put db t k one");
    assert_eq!(place.ok("snapshot db first"), "1\n");
    place.ok("put db t k two");
    place.ok("put db t other x");
    assert_eq!(place.json("snapshot db 1"), [json!({ "id": 2, "name": "1" })]);
    place.ok("delete db t k");
    assert_eq!(place.ok("snapshot db --metadata nightly"), "3\n");
    place.ok("put db t k four");
    place
}

fn time_of(place: &Place, id: usize) -> String {
    place.json("snapshots db")[id - 1]["time"].as_str().expect("a time").to_owned()
}

#[test]
fn names_ids_and_times_find_the_past() {
    let place = with_past();
    let get = |as_of: &str| place.run_with(&["get", "db", "t", "k", "--as-of", as_of], b"").ok();
    assert_eq!(place.ok("get db t k"), "four\n");
    assert_eq!(get("first"), "one\n");
    assert_eq!(get("name:first"), "one\n");
    assert_eq!(get("2"), "two\n");
    assert_eq!(get("id:1"), "one\n");
    assert_eq!(get(&time_of(&place, 1)), "one\n");
    assert_eq!(get(&format!("time:{}", time_of(&place, 2))), "two\n");
    place.fails("get db t k --as-of 3", 1, "no key \"k\" in table \"t\" as of 3");
    place.fails("get db t k --as-of 9999-01-01", 1, "as of 9999-01-01");
}

#[test]
fn a_name_wins_over_an_id() {
    let place = with_past();
    assert_eq!(place.ok("get db t k --as-of 1"), "two\n");
    assert_eq!(place.ok("get db t k --as-of id:1"), "one\n");
}

#[test]
fn an_unknown_past_is_a_no() {
    let place = with_past();
    place.fails("get db t k --as-of 4", 1, "no snapshot has the id 4");
    place.fails("get db t k --as-of whenever", 1, "no snapshot is named \"whenever\"");
    place.fails("get db t k --as-of name:2", 1, "2");
    place.fails("scan db t --as-of 2020-01-01", 1, "at or before \"2020-01-01\"");
    place.fails("get db t k --as-of id:first", 2, "write name:NAME, id:NUMBER");
}

#[test]
fn scan_and_export_read_the_past() {
    let place = with_past();
    assert_eq!(place.ok("scan db t --as-of first"), "k\tone\n");
    assert_eq!(place.ok("scan db t --as-of 2"), "k\ttwo\nother\tx\n");
    assert_eq!(place.ok("scan db t --as-of id:3"), "other\tx\n");
    assert_eq!(place.ok("export db t --format csv --as-of first"), "key,value\nk,one\n");
}

#[test]
fn a_table_is_not_there_before_it_was_made() {
    let place = with_past();
    place.ok("put db later k v");
    assert_eq!(place.ok("get db later k"), "v\n");
    place.fails("get db later k --as-of first", 1, "no table \"later\"");
}

#[test]
fn the_list_shows_everything() {
    let place = with_past();
    let list = place.json("snapshots db");
    let column = |name: &str| list.iter().map(|info| info[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("id"), [1, 2, 3]);
    assert_eq!(column("name"), [json!("first"), json!("1"), Value::Null]);
    assert_eq!(column("metadata"), ["", "", "nightly"]);
    assert!(list.is_sorted_by_key(|info| info["seq"].as_u64()), "{list:?}");

    let shown = place.ok("snapshots db");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}");
    assert!(lines[0].starts_with("ID  NAME   TIME (UTC)"), "{shown}");
    assert!(lines[1].starts_with(" 1  first  20"), "{shown}");
    assert!(lines[3].ends_with("nightly"), "{shown}");
}

#[test]
fn a_name_is_given_once() {
    let place = with_past();
    place.fails("snapshot db first", 1, "\"first\" is taken by snapshot 1");
    assert_eq!(place.json("snapshots db").len(), 3);
}

#[test]
fn a_database_without_snapshots_lists_none() {
    let place = Place::new();
    place.ok("put db t k v");
    assert_eq!(place.ok("snapshots db"), "");
    assert_eq!(place.ok("snapshots db --json"), "");
}

#[test]
fn stats_are_numbers_for_programs_and_words_for_people() {
    let place = with_past();
    let stats = &place.json("stats db")[0];
    assert_eq!((&stats["tables"], &stats["snapshots"]), (&json!(1), &json!(3)));
    let fields = stats.as_object().expect("an object");
    // Nobody else can read in the process that asks.
    assert_eq!(stats["held_snapshots"], json!([]));
    let figures = fields.iter().filter(|(name, _)| *name != "held_snapshots");
    assert!(figures.clone().all(|(_, figure)| figure.is_u64()), "{stats}");
    let shown = place.ok("stats db");
    assert_eq!(shown.lines().count(), figures.count());
    assert!(shown.contains("declared snapshots") && shown.contains("write-ahead log"), "{shown}");
}

#[test]
fn verify_finds_nothing_wrong() {
    let place = with_past();
    assert!(place.ok("verify db").starts_with("no damage: "));
    assert_eq!(place.json("verify db")[0]["ok"], true);
}

#[test]
fn sizes_are_listed() {
    let place = Place::new();
    for value in ["one", "two"] {
        place.ok(&format!("put db t k {value}"));
        place.ok(&format!("snapshot db {value}"));
    }
    let listed = place.ok("snapshots db --sizes");
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.lines().nth(2).is_some_and(|line| line.ends_with("two")), "{listed}");
    let sizes = place.json("snapshots db --sizes");
    assert!(
        sizes.iter().all(|size| size["own_bytes"].is_u64() && size["shared_bytes"].is_u64()),
        "{sizes:?}"
    );
    assert_eq!(sizes[1]["name"], "two");
}
