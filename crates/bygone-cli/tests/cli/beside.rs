//! Commands beside a process that has the database open: what reads works, what writes says why not.

use std::io::Write;

use super::Place;

#[test]
fn reading_works_beside_a_process_that_writes() {
    let place = Place::new();
    place.ok("put db t k v");
    place.ok("snapshot db first");
    place.ok("put db t k w");
    place.ok("snapshot db second");
    let mut owner = place.owner();
    // The lock's file names the owner just before the database is open; what reads may come a little early.
    let refused = place.run("put db t k w");
    assert_eq!(refused.code, 4);
    let owner_named = refused.stderr.contains(&format!("process {}", owner.id()));
    assert!(owner_named && refused.stderr.contains("can be read"), "{}", refused.stderr);
    assert_eq!(place.ok("get db t k"), "w\n");
    assert_eq!(place.ok("get db t k --as-of first"), "v\n");
    assert_eq!(place.ok("scan db t --as-of first"), "k\tv\n");
    assert_eq!(place.json("snapshots db").len(), 2);
    assert_eq!(place.json("history db t k").len(), 2);
    assert_eq!(place.json("diff db first second").len(), 1);
    assert_eq!(place.json("export db --database copy --as-of first")[0]["snapshot"], 1);
    assert_eq!(place.ok("get copy t k"), "v\n");
    let stats = &place.json("stats db")[0];
    assert_eq!(stats["snapshots"], 2);
    assert!(stats["wal_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{stats}");
    assert!(place.ok("verify db").starts_with("no damage"));
    assert_eq!(place.json("forget db --keep-last 1 --dry-run").len(), 1);
    place.fails("forget db first", 4, "can be read");
    let mut input = owner.stdin.take().expect("a pipe");
    input.write_all(b"key,value\na,b\n").expect("it reads");
    drop(input);
    assert!(owner.wait().expect("it ends").success());
    assert_eq!(place.ok("get db other a"), "b\n");
    place.ok("forget db first");
    assert_eq!(std::fs::read_dir(place.path("db/leases")).expect("readable").count(), 0);
}
