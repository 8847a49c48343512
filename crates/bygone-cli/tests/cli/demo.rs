//! demo.

use super::Place;

#[test]
fn the_demo_tells_its_story_in_80_columns() {
    let place = Place::new();
    let story = place.ok("demo");
    for expected in [
        "1,704 rows, 12 durable commits, 12 snapshots",
        "Every row as of every year equals the file.",
        "as of 1957  72.5 years, 7,363,802 people, 9,912 dollars a head",
        "now         80.9 years, 9,031,088 people, 33,860 dollars a head",
        "Japan                 75.4 years   (now 82.6)",
        "1992    78.2    68.7    23.6",
        "on disk: history, 11 older years",
        "get as of 1952",
    ] {
        assert!(story.contains(expected), "{expected}\n{story}");
    }
    // The commands at the end carry the path of the program, which is as long as it is.
    let story = story.replace(env!("CARGO_BIN_EXE_bygone"), "bygone");
    for line in story.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(std::fs::read_dir(place.dir.path()).expect("readable").count(), 0, "nothing is left behind");
}

#[test]
fn the_commands_that_it_ends_with_work() {
    let place = Place::new();
    let story = place.ok("demo --dir kept");
    let next: Vec<&str> = story.lines().skip_while(|line| *line != "Next").skip(1).collect();
    assert_eq!(next.len(), 4, "{story}");
    for command in next {
        let (_, arguments) = command.trim().split_once(' ').expect("a program and arguments");
        assert!(!place.ok(arguments).is_empty(), "{command}");
    }
    assert!(place.ok("get kept countries Sweden --as-of 1957").contains("72.49"));
    assert_eq!(place.ok("scan kept countries --as-of 1977").lines().count(), 142);
    place.fails("demo --dir kept", 2, "and kept is neither");
}

#[test]
fn the_demo_is_one_json_object_for_programs() {
    let place = Place::new();
    let answers = place.json("demo");
    assert_eq!(answers.len(), 1);
    let answer = &answers[0];
    assert_eq!(answer["rows"], 1704);
    assert_eq!(answer["snapshots"].as_array().map(Vec::len), Some(12));
    assert_eq!(answer["point"]["then"]["population"], 7_363_802);
    assert_eq!(answer["scan"]["longest_lives"][0]["country"], "Japan");
    assert!(answer["dir"].is_null());
    for figure in ["base_bytes", "history_bytes", "get_now_seconds", "get_past_seconds", "commit_seconds"] {
        assert!(answer["cost"][figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {answer}");
    }
}

#[test]
fn a_place_that_cannot_be_written_to_is_told_in_one_line() {
    let place = Place::new();
    std::fs::write(place.path("file"), "in the way").expect("a file");
    place.fails("demo --dir file", 2, "and file is neither");
    let ended = place.run("demo --dir /proc/no-such-place");
    assert_eq!((ended.code, ended.stderr.lines().count()), (4, 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("the loader ended before"), "{}", ended.stderr);
}
