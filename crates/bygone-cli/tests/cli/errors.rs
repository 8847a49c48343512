//! Exit codes and what is said with them; pipes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Place;

#[test]
fn usage_errors_take_one_line_and_say_what_is_right() {
    let place = Place::new();
    let cases = [
        ("", "bygone --help"),
        ("gte", "unrecognized subcommand 'gte'"),
        ("get", "<DB>; <TABLE>; <KEY>; Usage: bygone get"),
        ("scan db t --limt 3", "a similar argument exists: '--limit'"),
        ("scan db t --limit many", "a whole number is wanted"),
        ("put db t k v extra", "unexpected argument 'extra'"),
        ("import db t f --format xml", "[possible values: csv, jsonl]"),
    ];
    for (line, expected) in cases {
        place.fails(line, 2, expected);
    }
    let files = std::fs::read_dir(place.dir.path()).expect("readable").count();
    assert_eq!(files, 0, "a usage error leaves nothing behind");
}

#[test]
fn limits_are_usage_errors() {
    let place = Place::new();
    let long = "k".repeat(5000);
    place.fails(&format!("put db t {long} v"), 2, "too large");
}

#[test]
fn errors_are_json_when_asked() {
    let place = Place::new();
    place.ok("put db t k v");
    for (line, code) in [("get db t absent --json", 1), ("get db --json", 2), ("get absent t k --json", 2)] {
        let ended = place.run(line);
        assert_eq!((ended.code, ended.stdout.as_slice()), (code, &b""[..]), "{line}");
        let error: Value = serde_json::from_str(&ended.stderr).expect("one JSON value");
        assert_eq!(error["exit"], code, "{line}");
        assert!(error["error"].is_string(), "{line}");
    }
}

#[test]
fn help_is_no_error() {
    let place = Place::new();
    let help = place.ok("--help");
    for command in [
        "demo",
        "put",
        "get",
        "delete",
        "scan",
        "import",
        "export",
        "snapshot",
        "snapshots",
        "diff",
        "history",
        "sql",
        "stats",
        "verify",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}: {help}"
        );
        assert!(place.ok(&format!("{command} --help")).contains("--json"), "{command}");
    }
    assert!(help.contains("Exit codes"), "{help}");
    assert!(!help.contains("demo-loader"), "{help}");
    assert!(place.ok("--version").starts_with("bygone 0."));
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
    let place = Place::new();
    let value = "v".repeat(100);
    let lines: String = (0..20_000).map(|n| format!("{n},{value}\n")).collect();
    std::fs::write(place.path("many.csv"), format!("key,value\n{lines}")).expect("a file");
    place.ok("import db t many.csv");
    for command in [&["scan", "db", "t"][..], &["scan", "db", "t", "--json"], &["export", "db", "t"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bygone"))
            .args(command)
            .current_dir(place.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        // Dropped at the end of the statement: the pipe is closed long before everything is written.
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert!(!line.is_empty());
        let ended = child.wait_with_output().expect("the command ends");
        assert_eq!(ended.status.code(), Some(0), "{command:?}");
        assert_eq!(ended.stderr, b"", "{command:?}");
    }
}

#[test]
fn no_colour_and_no_bars_in_a_pipe() {
    let place = Place::new();
    std::fs::write(place.path("one.csv"), "key,value\na,b\n").expect("a file");
    for command in [
        "import db t one.csv",
        "export db t",
        "verify db",
        "stats db",
        "snapshots db",
        "diff db now now",
        "sql db .tables",
        "demo",
        "--help",
    ] {
        let ended = place.run(command);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{command}");
        assert!(!ended.stdout.contains(&0x1b), "{command}");
    }
}

/// Damages each file of a database in turn, and wants either the truth or exit code 3 with the file's name.
#[test]
fn damage_is_told_apart_from_everything_else() {
    let place = Place::new();
    let lines: String = (0..2000).map(|n| format!("{n},value-{n}\n")).collect();
    std::fs::write(place.path("many.csv"), format!("key,value\n{lines}")).expect("a file");
    place.ok("import db t many.csv");
    let truth = place.ok("scan db t");

    let mut noticed = 0;
    for path in files_below(&place.path("db")) {
        let whole = std::fs::read(&path).expect("readable");
        // In the middle of what was written, not of what was only preallocated.
        let Some(last) = whole.iter().rposition(|byte| *byte != 0) else { continue };
        let mut damaged = whole.clone();
        damaged[last / 2] ^= 0x10;
        std::fs::write(&path, &damaged).expect("writable");
        let ended = place.run("verify db --json");
        match ended.code {
            0 => assert_eq!(place.ok("scan db t"), truth, "{}", path.display()),
            3 => {
                noticed += 1;
                let answer: Value = serde_json::from_slice(&ended.stdout).expect("one JSON value");
                assert_eq!(answer["ok"], false);
                let named = answer["path"].as_str().expect("a path");
                assert!(named.ends_with(&*path.file_name().expect("a name").to_string_lossy()), "{named}");
                assert!(answer["offset"].is_u64());
                let ended = place.run("verify db");
                assert_eq!((ended.code, ended.stdout.len(), ended.stderr.lines().count()), (3, 0, 1));
            }
            code => panic!("{}: exit code {code}: {}", path.display(), ended.stderr),
        }
        std::fs::write(&path, &whole).expect("writable");
    }
    assert!(noticed > 0, "no damage was noticed anywhere");
    assert_eq!(place.ok("scan db t"), truth);
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}
