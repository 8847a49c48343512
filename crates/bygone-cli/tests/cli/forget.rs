//! forget, hold, release.

use super::Place;

/// Three snapshots of three states of one key; the second has no name.
fn with_past() -> Place {
    let place = Place::new();
    for (value, name) in [("one", "first"), ("two", ""), ("three", "third")] {
        place.ok(&format!("put db t k {value}"));
        place.ok(&format!("snapshot db {name}"));
    }
    place
}

#[test]
fn what_is_forgotten_is_listed_and_gone() {
    let place = with_past();
    assert_eq!(place.ok("forget db first 2 --dry-run"), "1 first\n2\n");
    assert_eq!(place.json("snapshots db").len(), 3);
    assert_eq!(place.ok("forget db first 2"), "1 first\n2\n");
    assert_eq!(place.json("snapshots db").len(), 1);
    assert_eq!(place.ok("get db t k --as-of third"), "three\n");
    for gone in ["first", "1", "2", "id:2"] {
        place.fails(&format!("get db t k --as-of {gone}"), 1, "it was deleted at 20");
        place.fails(&format!("forget db {gone}"), 1, "it was deleted at 20");
    }
    place.ok("snapshot db first");
    assert_eq!(place.ok("get db t k --as-of first"), "three\n");
}

#[test]
fn a_set_is_forgotten_as_a_whole_or_not_at_all() {
    let place = with_past();
    place.fails("forget db first nobody", 1, "nobody");
    assert_eq!(place.json("snapshots db").len(), 3);
}

#[test]
fn rules_say_what_is_kept() {
    let place = with_past();
    let listed = place.json("forget db --keep-last 1 --dry-run");
    assert_eq!(listed.iter().map(|info| info["id"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(place.ok("forget db --keep-within 2h --keep-daily 3"), "");
    assert_eq!(place.ok("forget db --keep-last 1 --keep-named"), "2\n");
    assert_eq!(place.ok("forget db --max-bytes 1000000000"), "");
    place.fails("get db t k --as-of 2", 1, "by the rule \"keep last 1, named\"");
}

#[test]
fn what_is_held_stays() {
    let place = with_past();
    assert_eq!(place.ok("hold db first backup"), "");
    assert_eq!(place.json("snapshots db")[0]["holders"], serde_json::json!(["backup"]));
    assert!(place.ok("snapshots db").contains("HELD BY"));
    place.fails("forget db first", 1, "held by [\"backup\"]");
    assert_eq!(place.ok("forget db --keep-last 0"), "2\n3 third\n");
    place.fails("release db first nobody", 2, "is not held by \"nobody\"");
    place.ok("release db first backup");
    assert_eq!(place.ok("forget db first"), "1 first\n");
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let place = with_past();
    place.fails("forget db", 2, "--keep-last 30");
    place.fails("forget db first --keep-last 1", 2, "not both");
    place.fails("forget db --keep-within yesterday", 2, "3 days");
    place.fails("forget db --keep-within -1h", 2, "");
    place.fails("hold db nothing me", 1, "nothing");
}
