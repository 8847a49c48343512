//! put, get, delete, scan.

use serde_json::json;

use super::Place;

fn filled() -> Place {
    let place = Place::new();
    for key in ["a", "ab", "abc", "b", "c"] {
        place.ok(&format!("put db t {key} value-{key}"));
    }
    place
}

#[test]
fn put_is_silent_and_get_answers() {
    let place = filled();
    assert_eq!(place.ok("put db t d 1"), "");
    assert_eq!(place.ok("get db t d"), "1\n");
    place.ok("put db t d 2");
    assert_eq!(place.ok("get db t d"), "2\n");
}

#[test]
fn put_reads_standard_input() {
    let place = Place::new();
    for (key, arguments) in [("a", &["put", "db", "t", "a", "-"][..]), ("b", &["put", "db", "t", "b"])] {
        place.run_with(arguments, b"line\n\xff").ok();
        assert_eq!(place.ok(&format!("get db t {key}")), "line\\n\\xff\n");
        assert_eq!(place.run(&format!("get db t {key} --raw")).stdout, b"line\n\xff");
        assert_eq!(
            place.json(&format!("get db t {key}")),
            [json!({ "key": key, "value_base64": "bGluZQr/" })]
        );
    }
}

#[test]
fn an_empty_value_is_a_value() {
    let place = Place::new();
    place.run_with(&["put", "db", "t", "k", ""], b"not read").ok();
    assert_eq!(place.ok("get db t k"), "\n");
    assert_eq!(place.run("get db t k --raw").stdout, b"");
}

#[test]
fn escaped_arguments_reach_every_byte() {
    let place = Place::new();
    place.ok(r"put db t -e k\x00\xff v\\\n");
    assert_eq!(place.ok(r"get db t -e k\x00\xff"), "v\\\\\\n\n");
    assert_eq!(place.ok("scan db t"), "k\\x00\\xff\tv\\\\\\n\n");
    assert_eq!(place.ok(r"scan db t -e --prefix k\x00 --keys-only"), "k\\x00\\xff\n");
    place.fails(r"get db t -e k\q", 2, "unknown escape");
}

#[test]
fn commits_are_numbered_in_json() {
    let place = Place::new();
    let first = place.json("put db t a 1")[0]["seq"].as_u64().expect("a number");
    let second = place.json("put db t a 2")[0]["seq"].as_u64().expect("a number");
    let third = place.json("delete db t a")[0]["seq"].as_u64().expect("a number");
    assert!(first < second && second < third, "{first} {second} {third}");
}

#[test]
fn delete_says_no_to_what_is_not_there() {
    let place = filled();
    assert_eq!(place.ok("delete db t ab"), "");
    place.fails("get db t ab", 1, "no key \"ab\" in table \"t\"");
    place.fails("delete db t ab", 1, "no key");
    place.fails("delete db absent ab", 1, "no table \"absent\"");
}

#[test]
fn scan_answers_in_key_order() {
    let place = filled();
    assert_eq!(place.ok("scan db t"), "a\tvalue-a\nab\tvalue-ab\nabc\tvalue-abc\nb\tvalue-b\nc\tvalue-c\n");
    assert_eq!(
        place.json("scan db t --limit 2"),
        [json!({ "key": "a", "value": "value-a" }), json!({ "key": "ab", "value": "value-ab" })]
    );
    assert_eq!(place.json("scan db t --limit 1 --keys-only"), [json!({ "key": "a" })]);
}

#[test]
fn scan_takes_bounds() {
    let place = filled();
    let keys = |options: &str| place.ok(&format!("scan db t --keys-only {options}")).replace('\n', " ");
    assert_eq!(keys("--from ab"), "ab abc b c ");
    assert_eq!(keys("--to b"), "a ab abc ");
    assert_eq!(keys("--from ab --to b"), "ab abc ");
    assert_eq!(keys("--from ab --to ab"), "");
    assert_eq!(keys("--prefix ab"), "ab abc ");
    assert_eq!(keys("--prefix x"), "");
    assert_eq!(keys("--reverse"), "c b abc ab a ");
    assert_eq!(keys("--reverse --limit 2 --to c"), "b abc ");
    assert_eq!(keys("--limit 0"), "");
    place.fails("scan db t --from b --to a", 2, "--from must not be greater");
    place.fails("scan db t --prefix a --from a", 2, "cannot be used with");
}

#[test]
fn reading_creates_nothing() {
    let place = Place::new();
    for command in [
        "get absent t k",
        "delete absent t k",
        "scan absent t",
        "export absent t",
        "snapshot absent",
        "snapshots absent",
        "stats absent",
        "verify absent",
    ] {
        place.fails(command, 2, "there is no database at absent");
        assert!(!place.path("absent").exists(), "{command}");
    }
    std::fs::create_dir(place.path("empty")).expect("a directory");
    place.fails("scan empty t", 2, "there is no database at empty");
    assert_eq!(std::fs::read_dir(place.path("empty")).expect("readable").count(), 0);

    place.ok("put db t k v");
    for command in ["get db other k", "delete db other k", "scan db other", "export db other"] {
        place.fails(command, 1, "no table \"other\"");
    }
    assert_eq!(place.json("stats db")[0]["tables"], 1);
}
