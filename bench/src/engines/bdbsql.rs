//! Berkeley DB's SQL: SQLite 3.7 on Berkeley DB's B-trees, by its shell.
//!
//! The shell is a child process that reads statements from a pipe. Its answers go to a pipe, too, and would lie in a
//! buffer of the C library: `stdbuf` has it hand on each line. What is measured has the parsing of the text in it, and
//! the two pipes, so only text that takes much longer to run is given to it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::sql::{Opening, Script};

/// In Debian's package `db5.3-sql-util`.
const SHELL: &str = "db5.3_sql";

pub struct Shell {
    child: Child,
    /// `None` once it is told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    runs: u64,
}

impl Shell {
    pub fn open(dir: &Path, opening: Opening) -> Result<Shell> {
        // The shell says here what it can't do.
        let errors = dir.join("errors");
        let mut child = Command::new("stdbuf")
            .args(["-oL", SHELL, "-bail", "-batch"])
            .arg(dir.join("bdbsql"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?)
            .spawn()
            .context("stdbuf, which runs the shell")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut shell = Shell { child, input, output, runs: 0 };
        // Its cache is that of the whole database, in the place of the operating system's.
        let pages = opening.cache_bytes / 4096;
        let settings =
            format!("PRAGMA page_size=4096; PRAGMA cache_size={pages}; PRAGMA synchronous=NORMAL;");
        let opened = shell.run(&settings);
        opened.with_context(|| {
            let errors = std::fs::read_to_string(errors).unwrap_or_default();
            format!("{SHELL}, of Debian's package db5.3-sql-util, does not run: {}", errors.trim())
        })?;
        Ok(shell)
    }
}

impl Script for Shell {
    fn run(&mut self, sql: &str) -> Result<Vec<String>> {
        self.runs += 1;
        let mark = format!("end of run {}", self.runs);
        let Shell { input, output, .. } = self;
        let input = input.as_mut().context("it is open")?;
        std::thread::scope(|scope| {
            // Beside the reading: neither pipe holds much, and none should wait for the other.
            let written = scope.spawn(|| {
                input.write_all(sql.as_bytes())?;
                writeln!(input, "\nSELECT '{mark}';")?;
                input.flush()
            });
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                if output.read_line(&mut line)? == 0 {
                    bail!("{SHELL} has ended");
                }
                let line = line.trim_end_matches('\n');
                if line == mark {
                    break;
                }
                lines.push(line.to_owned());
            }
            written.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(lines)
        })
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.input = None;
        // What can't be waited for is gone.
        let _ = self.child.wait();
    }
}
