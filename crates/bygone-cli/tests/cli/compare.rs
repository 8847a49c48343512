//! diff, history, export --database.

use serde_json::json;

use super::Place;

/// Two tables and three snapshots: "first", "second" and one without a name; and something newer.
fn with_past() -> Place {
    let place = Place::new();
    place.ok("put db t changed one");
    place.ok("put db t gone two");
    place.ok("put db t left three");
    place.ok("snapshot db first");
    place.ok("put db t changed four");
    place.ok("delete db t gone");
    place.ok(r"put db t -e new\x00 \t");
    place.ok("put db u k v");
    place.ok("snapshot db second");
    place.ok("snapshot db");
    place.ok("put db t changed five");
    place
}

#[test]
fn diff_shows_what_was_added_removed_and_changed() {
    let place = with_past();
    let expected = "~\tchanged\tone\tfour\n-\tgone\ttwo\n+\tnew\\x00\t\\t\n";
    assert_eq!(place.ok("diff db first second t"), expected);
    assert_eq!(place.ok("diff db 1 id:2 t"), expected);
    assert_eq!(place.ok("diff db second first t"), "~\tchanged\tfour\tone\n+\tgone\ttwo\n-\tnew\\x00\t\\t\n");
    assert_eq!(place.ok("diff db first second t --keys-only"), "~\tchanged\n-\tgone\n+\tnew\\x00\n");
    assert_eq!(place.ok("diff db first second t --limit 1"), "~\tchanged\tone\tfour\n");
}

#[test]
fn diff_without_a_table_names_each() {
    let place = with_past();
    assert_eq!(
        place.ok("diff db first second"),
        "~\tt\tchanged\tone\tfour\n-\tt\tgone\ttwo\n+\tt\tnew\\x00\t\\t\n+\tu\tk\tv\n"
    );
    assert_eq!(place.ok("diff db first second --limit 4").lines().count(), 4);
    assert_eq!(place.ok("diff db first second u"), "+\tk\tv\n");
}

#[test]
fn diff_compares_with_the_present() {
    let place = with_past();
    assert_eq!(place.ok("diff db second now"), "~\tt\tchanged\tfour\tfive\n");
    assert_eq!(place.ok("diff db now 3 t"), "~\tchanged\tfive\tfour\n");
    assert_eq!(place.ok("diff db now now"), "");
    place.ok("snapshot db now");
    place.ok("put db t changed six");
    assert_eq!(place.ok("diff db second now t"), "~\tchanged\tfour\tsix\n", "the word means the present");
    assert_eq!(place.ok("diff db second name:now t"), "~\tchanged\tfour\tfive\n");
}

#[test]
fn no_difference_is_no_failure() {
    let place = with_past();
    assert_eq!(place.ok("diff db second 3"), "");
    assert_eq!(place.ok("diff db second 3 t --json"), "");
}

#[test]
fn diff_is_for_programs_too() {
    let place = with_past();
    assert_eq!(
        place.json("diff db first second"),
        [
            json!({ "table": "t", "change": "changed", "key": "changed", "before": "one", "after": "four" }),
            json!({ "table": "t", "change": "removed", "key": "gone", "before": "two" }),
            json!({ "table": "t", "change": "added", "key": "new\0", "after": "\t" }),
            json!({ "table": "u", "change": "added", "key": "k", "after": "v" }),
        ]
    );
    place.ok(r"put db b -e \xff \xfe");
    assert_eq!(
        place.json("diff db second now b"),
        [json!({ "table": "b", "change": "added", "key_base64": "/w==", "after_base64": "/g==" })]
    );
}

#[test]
fn what_cannot_be_compared_is_said() {
    let place = with_past();
    place.fails("diff db first none t", 1, "no snapshot is named \"none\"");
    place.fails(
        "diff db first second absent",
        1,
        "no table \"absent\", neither as of first nor as of second",
    );
    place.fails("diff db first", 2, "<B>");
    place.fails("diff absent first second", 2, "there is no database at absent");
}

#[test]
fn history_shows_each_value_once() {
    let place = with_past();
    let times: Vec<String> = place
        .json("snapshots db")
        .iter()
        .map(|info| info["time"].as_str().expect("a time").to_owned())
        .collect();
    let (first, second) = (&times[0], &times[1]);
    assert_eq!(
        place.ok("history db t changed"),
        format!("+\t1\t{first}\tfirst\tone\n+\t2\t{second}\tsecond\tfour\n")
    );
    assert_eq!(
        place.ok("history db t gone --reverse"),
        format!("-\t2\t{second}\tsecond\n+\t1\t{first}\tfirst\ttwo\n")
    );
    assert_eq!(place.ok("history db t left"), format!("+\t1\t{first}\tfirst\tthree\n"));
    assert_eq!(place.ok(r"history db t -e new\x00 --limit 1"), format!("+\t2\t{second}\tsecond\t\\t\n"));
    assert_eq!(
        place.json("history db t gone"),
        [
            json!({ "id": 1, "name": "first", "time": first, "value": "two" }),
            json!({ "id": 2, "name": "second", "time": second, "deleted": true }),
        ]
    );
}

#[test]
fn a_key_without_a_history_is_a_no() {
    let place = with_past();
    place.ok("put db t youngest v");
    place.fails("history db t youngest", 1, "no declared snapshot has key \"youngest\" in table \"t\"");
    place.fails("history db absent k", 1, "no table \"absent\", now or in any declared snapshot");
}

#[test]
fn a_state_can_be_exported_as_a_database() {
    let place = with_past();
    assert_eq!(place.ok("export db --database copy --as-of first"), "snapshot 1 written to copy\n");
    assert_eq!(place.ok("scan copy t"), place.ok("scan db t --as-of first"));
    assert_eq!(place.ok("scan copy t --as-of first"), place.ok("scan copy t"));
    assert_eq!(place.json("snapshots copy").len(), 1);
    place.ok("put copy t k v");
    assert_eq!(place.ok("diff copy first now"), "+\tt\tk\tv\n");

    assert_eq!(
        place.json("export db --database now"),
        [json!({ "database": "now", "snapshot": serde_json::Value::Null })]
    );
    assert_eq!(place.ok("scan now t"), place.ok("scan db t"));
    assert_eq!(place.ok("snapshots now"), "");
}

#[test]
fn a_directory_that_is_there_is_not_exported_to() {
    let place = with_past();
    place.fails("export db --database db", 2, "db is there already and is not empty");
    place.fails("export db t --database copy", 2, "cannot be used with");
    place.fails("export db", 2, "say which table to export, or --database DIR");
    assert!(!place.path("copy").exists());
}
