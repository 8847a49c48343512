//! The `bygone` command as a shell sees it: what it prints, what it leaves on disk, how it ends.
//!
//! Owns: the helpers to run it in a directory of its own. Promises: each test is independent of the others.
//! May call: nothing of the engine, only the command.

mod beside;
mod compare;
mod demo;
mod errors;
mod forget;
mod records;
mod restore;
mod send;
mod snapshots;
mod sql;
mod sqlite_files;
mod transfer;
mod window;

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A directory with room for a database, gone when the test is.
struct Place {
    dir: TempDir,
}

/// How a command ended.
struct Ended {
    code: i32,
    stdout: Vec<u8>,
    stderr: String,
}

impl Place {
    fn new() -> Self {
        Place { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A path in the directory.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command in the directory and feeds it `stdin`.
    fn run_with(&self, arguments: &[impl AsRef<OsStr>], stdin: &[u8]) -> Ended {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bygone"))
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        // What a test feeds fits the pipe's buffer; a command that does not read it may be gone already.
        let _ = child.stdin.take().expect("a pipe").write_all(stdin);
        let output = child.wait_with_output().expect("the command ends");
        Ended {
            code: output.status.code().expect("no signal"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("messages are UTF-8"),
        }
    }

    fn run(&self, line: &str) -> Ended {
        self.run_with(&line.split_whitespace().collect::<Vec<_>>(), b"")
    }

    /// A process that has `db` open until its standard input ends.
    fn owner(&self) -> Child {
        let mut owner = Command::new(env!("CARGO_BIN_EXE_bygone"))
            .args(["import", "db", "other", "-", "--format", "csv"])
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the command starts");
        // Watched, not asked by a command that writes: that command would take the lock, and turn the owner away.
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::read_to_string(self.path("db/lock")).expect("readable") != owner.id().to_string() {
            assert_eq!(owner.try_wait().expect("asked"), None, "the owner ended");
            assert!(Instant::now() < deadline, "the owner does not open the database");
            std::thread::sleep(Duration::from_millis(5));
        }
        owner
    }

    /// Runs a command that must succeed in silence on standard error, and answers what it printed.
    fn ok(&self, line: &str) -> String {
        self.run(line).ok()
    }

    /// The same, with `--json`: the values that it printed.
    fn json(&self, line: &str) -> Vec<Value> {
        self.ok(&format!("{line} --json"))
            .lines()
            .map(|line| serde_json::from_str(line).expect("one JSON value a line"))
            .collect()
    }

    /// Runs a command that must end with `code`, print nothing, and say one line that contains `expected`.
    fn fails(&self, line: &str, code: i32, expected: &str) {
        let ended = self.run(line);
        assert_eq!(ended.code, code, "{line}: {}", ended.stderr);
        assert_eq!(ended.stdout, b"", "{line}");
        assert_eq!(ended.stderr.lines().count(), 1, "{line}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{line}: {}", ended.stderr);
    }
}

impl Ended {
    fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""));
        String::from_utf8(self.stdout).expect("text")
    }
}
