//! send, receive, backup.

use super::Place;

fn with_past() -> Place {
    let place = Place::new();
    for (value, name) in [("one", "first"), ("two", "second")] {
        place.ok(&format!("put db t k {value}"));
        place.ok(&format!("snapshot db {name}"));
    }
    place
}

fn receive(place: &Place, line: &str, stream: &[u8]) -> super::Ended {
    place.run_with(&line.split_whitespace().collect::<Vec<_>>(), stream)
}

#[test]
fn a_stream_is_sent_and_received() {
    let place = with_past();
    let all = place.run("send db first");
    assert_eq!((all.code, all.stderr.as_str()), (0, ""));
    assert_eq!(receive(&place, "receive copy", &all.stdout).ok(), "1\n");
    let changes = place.run("send db second --from first").stdout;
    assert_eq!(receive(&place, "receive copy", &changes).ok(), "2\n");
    assert_eq!(place.ok("get copy t k"), "two\n");
    assert_eq!(place.ok("get copy t k --as-of first"), "one\n");
    let again = receive(&place, "receive copy", &all.stdout);
    assert_eq!(again.ok(), "1\n", "it was received already");
    place.fails("send db nobody", 1, "nobody");
    place.fails("send db second --resume x", 2, "no point in a stream");
}

#[test]
fn a_stream_that_broke_off_says_how_to_go_on() {
    let place = with_past();
    let all = place.run("send db second").stdout;
    place.fails("receive db --status", 1, "nothing is being received");
    let cut = receive(&place, "receive copy", &all[..all.len() - 5]);
    assert_eq!(cut.code, 4);
    assert!(cut.stderr.contains("the rest can be sent from"), "{}", cut.stderr);
    let point = place.ok("receive copy --status");
    let rest = place.run(&format!("send db second --resume {point}")).stdout;
    assert_eq!(receive(&place, "receive copy", &rest).ok(), "1\n");
    assert_eq!(place.ok("get copy t k"), "two\n");
}

#[test]
fn a_backup_is_made_and_brought_up_to_date() {
    let place = with_past();
    place.ok("backup db saved");
    place.ok("put db t k three");
    place.ok("backup db saved");
    assert_eq!(place.ok("get saved t k"), "three\n");
    assert_eq!(place.ok("get saved t k --as-of first"), "one\n");
    place.fails("backup db db", 4, "is open in process");
}
