//! restore.

use super::Place;

#[test]
fn a_snapshot_is_restored_and_the_way_back_is_told() {
    let place = Place::new();
    place.ok("put db t k one");
    place.ok("snapshot db first");
    place.ok("put db t k two");
    place.ok("put db other k x");
    assert!(place.ok("restore db first").contains("snapshot 2 is what was before"));
    assert_eq!(place.ok("get db t k"), "one\n");
    place.fails("get db other k", 1, "other");
    let told = place.json("restore db 2");
    assert_eq!((told[0]["restored"].as_u64(), told[0]["before"].as_u64()), (Some(2), Some(3)));
    assert_eq!(place.ok("get db t k"), "two\n");
    assert_eq!(place.ok("get db other k"), "x\n");
    assert_eq!(place.ok("get db t k --as-of first"), "one\n");
    place.fails("restore db nobody", 1, "nobody");
    place.fails("restore db", 2, "<S>");
}
