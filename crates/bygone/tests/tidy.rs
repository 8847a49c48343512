//! The rules of this source tree that a program can check: size and width of files, their first line, words
//! that must not stay, and which module may call which.
//!
//! Owns: the order of the modules ([`GROUPS`]). Promises: every breach is listed with file and line, all at
//! once. May call: nothing of the engine; it reads the files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 600;
const LINE_COLUMNS_MAX: usize = 120;

/// The folders that hold source files; some come later.
const SOURCE_FOLDERS: [&str; 3] = ["crates", "bench", "fuzz"];

/// What must not stay in a source file. Written in halves, so that this file does not hold them.
const UNFINISHED: [(&str, &str); 6] =
    [("TO", "DO"), ("FIX", "ME"), ("XX", "X:"), ("db", "g!("), ("to", "do!("), ("unimpl", "emented!(")];

/// What code that is not a test must not do: a panic is for bugs, and these are for what input or another
/// thread did.
const PANICS: [&str; 3] = [".unwrap()", ".lock().expect(", ".write().expect("];

/// The modules of the engine from the bottom to the top, in groups. A module may call those of the groups
/// below its own; modules of one group never call each other, but for those in the first, which are words
/// rather than parts.
const GROUPS: [&[&str]; 13] = [
    &[
        "limits", "error", "ids", "value", "codec", "layer", "sync", "health", "hint", "signal", "utc",
        "mutation", "pages",
    ],
    &["registry"],
    &["cache"],
    &["io"],
    &["lease"],
    &["wal", "memtable", "run", "stream"],
    &["archive"],
    &["base"],
    &["snapshot"],
    &["history"],
    &["txn"],
    &["db", "internals"],
    &["lib"],
];

/// Types that are called by their place at the crate's root.
const ROOT_TYPES: [&str; 2] = ["Error", "Result"];

#[test]
fn files_are_short_and_narrow_and_say_what_they_are() {
    let mut breaches = Vec::new();
    for (path, text) in sources() {
        let name = path.display();
        let lines = text.lines().count();
        if lines >= FILE_LINES_MAX {
            breaches.push(format!("{name}: {lines} lines; a file has fewer than {FILE_LINES_MAX}"));
        }
        if !text.starts_with("//!") {
            breaches.push(format!("{name}:1: a file begins with a //! comment that says what it owns"));
        }
        for (line, number) in text.lines().zip(1..) {
            let columns = line.chars().count();
            if columns > LINE_COLUMNS_MAX {
                breaches.push(format!(
                    "{name}:{number}: {columns} columns; a line has at most {LINE_COLUMNS_MAX}"
                ));
            }
        }
    }
    assert_none(&breaches);
}

#[test]
fn nothing_is_left_unfinished() {
    let mut breaches = Vec::new();
    for (path, text) in sources() {
        for (line, number) in text.lines().zip(1..) {
            for (head, tail) in UNFINISHED {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    breaches.push(format!("{}:{number}: {word} must not stay", path.display()));
                }
            }
        }
    }
    assert_none(&breaches);
}

#[test]
fn what_input_or_threads_decide_is_not_unwrapped() {
    let all = sources();
    let tests = test_files(&all);
    let mut breaches = Vec::new();
    for (path, text) in &all {
        if is_test(path, &tests) {
            continue;
        }
        for (line, number) in code_lines(without_tests(text)) {
            for call in PANICS {
                if line.contains(call) {
                    breaches.push(format!("{}:{number}: {call} outside a test", path.display()));
                }
            }
        }
    }
    assert_none(&breaches);
}

#[test]
fn modules_call_only_what_is_below_them() {
    let all = sources();
    let tests = test_files(&all);
    let engine = Path::new("crates/bygone/src");
    let mut breaches = Vec::new();
    for (path, text) in &all {
        let Ok(inside) = path.strip_prefix(engine) else { continue };
        if is_test(path, &tests) {
            continue;
        }
        let module =
            inside.iter().next().and_then(|part| Path::new(part).file_stem()?.to_str()).unwrap_or("");
        let Some(group) = group_of(module) else {
            breaches.push(format!("{}: {module} has no place in the order of the modules", path.display()));
            continue;
        };
        for (called, number) in calls(without_tests(text)) {
            let allowed = called == module
                || ROOT_TYPES.contains(&called.as_str())
                || group_of(&called).is_some_and(|called| called < group || (called == 0 && group == 0));
            if !allowed {
                breaches.push(format!("{}:{number}: {module} may not call {called}", path.display()));
            }
        }
    }
    assert_none(&breaches);
}

#[test]
fn calls_are_found_in_every_form() {
    let text = [
        "use crate::io::File;",
        "// crate::comment",
        "use crate::{",
        "    codec::{a, b}, error::Error,",
        "    layer,",
        "};",
        "fn f() { crate::wal::g(crate::Error) }",
        "pub(crate) fn h() {}",
    ];
    let expected = [("io", 1), ("codec", 3), ("error", 3), ("layer", 3), ("wal", 7), ("Error", 7)];
    assert_eq!(calls(&text.join("\n")), expected.map(|(name, line)| (name.to_owned(), line)));
}

#[test]
fn tests_at_the_end_of_a_file_are_recognised() {
    let code = "code\n#[cfg(test)]\nmod tests;\nmore\n#[cfg(unix)]\nmod real {\n}\n";
    for tests in ["#[cfg(test)]\nmod tests {\n", "#[cfg(all(loom, test))]\npub(crate) mod models {\n"] {
        assert_eq!(without_tests(&format!("{code}{tests} x.unwrap();\n}}\n")), code);
    }
}

fn assert_none(breaches: &[String]) {
    assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), breaches.join("\n"));
}

/// Every source file, by its path from the root of the repository.
fn sources() -> Vec<(PathBuf, String)> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("two folders above");
    let mut files = Vec::new();
    for folder in SOURCE_FOLDERS {
        collect(&root.join(folder), &mut files);
    }
    assert!(!files.is_empty(), "no source files below {}", root.display());
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("source files are UTF-8");
            (path.strip_prefix(root).expect("below the root").to_owned(), text)
        })
        .collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    // A folder that comes with a later part is not there yet.
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries {
        let path = entry.expect("readable").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The files that a `#[cfg(test)]`-like line in front of `mod name;` makes a test.
fn test_files(all: &[(PathBuf, String)]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for (path, text) in all {
        let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod" | "lib" | "main") => path.with_file_name(""),
            _ => path.with_extension(""),
        };
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2) {
            let name = module_line(pair[1]).and_then(|rest| rest.strip_suffix(';'));
            if let (true, Some(name)) = (is_test_attribute(pair[0]), name) {
                found.insert(folder.join(format!("{name}.rs")));
                found.insert(folder.join(name));
            }
        }
    }
    found
}

/// What follows `mod `, whoever may see the module.
fn module_line(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    line.strip_prefix("mod ")
}

fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[cfg(") && line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
}

/// Whether a file is only there for tests: named so by its parent module, below such a folder, or in
/// `tests/`.
fn is_test(path: &Path, tests: &BTreeSet<PathBuf>) -> bool {
    path.ancestors().any(|part| tests.contains(part) || part.file_name().is_some_and(|name| name == "tests"))
}

/// The text up to the tests at its end.
fn without_tests(text: &str) -> &str {
    let mut end = 0;
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let module = lines.peek().and_then(|next| module_line(next));
        if is_test_attribute(line) && module.is_some_and(|rest| rest.trim_end().ends_with('{')) {
            break;
        }
        end += line.len();
    }
    &text[..end]
}

/// The lines that are not comments, with their numbers.
fn code_lines(text: &str) -> impl Iterator<Item = (&str, usize)> {
    text.lines().zip(1..).filter(|(line, _)| !line.trim_start().starts_with("//"))
}

/// Each `crate::name`, also in groups, with the number of its line.
fn calls(text: &str) -> Vec<(String, usize)> {
    // Comments become empty lines, so that the others keep their numbers.
    let code: Vec<&str> =
        text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line }).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, path) in code.match_indices("crate::") {
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(names_of_group(group).into_iter().map(|name| (name, line))),
            None => found.push((leading_name(rest), line)),
        }
    }
    found
}

/// The first names in `a::b, c::{d, e}, f}...`: a, c, f.
fn names_of_group(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            ',' if depth == 0 => {
                names.push(leading_name(&group[start..at]));
                start = at + 1;
            }
            '}' if depth == 0 => {
                names.push(leading_name(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn leading_name(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn group_of(module: &str) -> Option<usize> {
    GROUPS.iter().position(|group| group.contains(&module))
}
