//! window, and `--as-of` a commit or a time that nobody declared.

use serde_json::{Value, json};

use super::Place;

/// Three values of a key, of which nobody has declared any, in a database with a window.
fn with_window() -> Place {
    let place = Place::new();
    place.ok("put db t k one");
    let shown = place.run_with(&["window", "db", "1 hour"], b"").ok();
    assert!(shown.starts_with("1h: commits 2 to 2, since 20"), "{shown}");
    place.ok("put db t k two");
    place.ok("delete db t k");
    place
}

fn window(place: &Place) -> Value {
    place.json("window db").remove(0)
}

#[test]
fn commits_and_times_find_what_nobody_declared() {
    let place = with_window();
    assert_eq!(place.ok("get db t k --as-of @2"), "one\n");
    assert_eq!(place.ok("get db t k --as-of @3"), "two\n");
    assert_eq!(place.ok("scan db t --as-of commit:3"), "k\ttwo\n");
    place.fails("get db t k --as-of @4", 1, "no key \"k\" in table \"t\" as of @4");
    place.fails("get db t k --as-of @1", 1, "nothing is kept of commit 1");
    place.fails("get db t k --as-of @1", 1, "from commit 2 of 20");
    place.fails("get db t k --as-of @5", 1, "to commit 4");
    place.fails("get db t k --as-of @", 1, "no snapshot is named \"@\"");
    place.fails("get db t k --as-of commit:x", 2, "commit:NUMBER");
    let since = window(&place)["since"].as_str().expect("a time").to_owned();
    assert_eq!(place.run_with(&["get", "db", "t", "k", "--as-of", &since], b"").ok(), "one\n");
    let ended = place.run_with(&["scan", "db", "t", "--as-of", "0 seconds ago"], b"");
    assert_eq!(ended.ok(), "");
    place.fails("scan db t --as-of 2020-01-01", 1, "the window begins at 20");
    assert_eq!(place.ok("diff db @2 @3 t"), "~\tk\tone\ttwo\n");
    assert_eq!(place.ok("diff db @3 now t"), "-\tk\ttwo\n");
}

#[test]
fn a_name_wins_over_a_commit() {
    let place = with_window();
    place.ok("snapshot db @2");
    place.fails("get db t k --as-of @2", 1, "no key");
    assert_eq!(place.ok("get db t k --as-of commit:2"), "one\n");
}

#[test]
fn a_commit_is_restored_and_exported() {
    let place = with_window();
    let shown = place.ok("restore db @3");
    assert!(shown.starts_with("commit 3 is the present again; snapshot 1 is what was before"), "{shown}");
    assert_eq!(place.ok("get db t k"), "two\n");
    assert_eq!(place.ok("export db --database copy --as-of @2"), "commit 2 written to copy\n");
    assert_eq!(place.ok("get copy t k"), "one\n");
    assert_eq!(place.json("restore db 1")[0]["restored"], 1);
    place.fails("get db t k", 1, "no key");
    let restored = place.json("restore db @2").remove(0);
    assert_eq!((&restored["restored"], &restored["restored_seq"]), (&Value::Null, &json!(2)));
}

#[test]
fn a_window_is_shown_changed_and_ended() {
    let place = with_window();
    let shown = window(&place);
    assert_eq!(
        (&shown["length_seconds"], &shown["first"], &shown["last"]),
        (&json!(3600.0), &json!(2), &json!(4))
    );
    place.ok("window db 2h");
    assert_eq!(window(&place)["length_seconds"], 7200.0);
    assert_eq!(window(&place)["first"], 2);
    assert_eq!(place.ok("window db off"), "there is no window: only declared snapshots can be read\n");
    assert_eq!(place.json("window db"), [json!({ "length_seconds": 0 })]);
    place.fails("get db t k --as-of @3", 1, "has no window");
    place.fails("window db soon", 2, "write a span");
    place.fails("window db 0s", 2, "write a span");
    place.fails("window nowhere", 2, "no database");
}

#[test]
fn declared_snapshots_are_found_by_their_commits_without_a_window() {
    let place = Place::new();
    place.ok("put db t k one");
    place.ok("snapshot db first");
    place.ok("put db t k two");
    let seq = place.json("snapshots db")[0]["seq"].as_u64().expect("a number");
    assert_eq!(place.ok(&format!("get db t k --as-of @{seq}")), "one\n");
    place.ok(&format!("forget db @{seq}"));
    place.fails(&format!("get db t k --as-of @{seq}"), 1, "has no window");
}
