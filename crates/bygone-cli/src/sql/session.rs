//! What a session has open, and its settings.
//!
//! Owns: [`Session`]: the connection, where its output goes, how it looks. Promises: after an error the session is as
//! usable as before; output that went to a file is on its way there when the session ends well. May call: `show`,
//! `commands`, `output`, `numbers`, `failure`.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use bygone::{Db, SnapshotId};
use bygone_sql::Sql;
use rusqlite::types::Value;
use rusqlite::{Connection, Params};

use super::commands;
use super::show::{self, Mode, Settings, Stop};
use crate::failure::{Failure, Result};
use crate::numbers;
use crate::output::Output;

/// Whether there is more to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    More,
    End,
}

pub struct Session<'o> {
    pub db: Db,
    pub connection: Rc<Connection>,
    pub settings: Settings,
    pub sink: Sink<'o>,
    /// Whether each input is timed.
    pub timer: bool,
    /// Whether a person looks at it, who wants to be told more than was asked for.
    pub chatty: bool,
    /// How many files are being read by commands, one from within the other.
    pub depth: usize,
}

impl<'o> Session<'o> {
    pub fn open(db: Db, name: &str, out: &'o mut Output) -> Result<Session<'o>> {
        let connection = Rc::new(db.sql(name)?);
        let settings = Settings { mode: Mode::Table, header: true, null: None };
        let sink = Sink { out, file: None };
        Ok(Session { db, connection, settings, sink, timer: false, chatty: false, depth: 0 })
    }

    /// Makes the session read the past, or the present again.
    pub fn read_as_of(&self, moment: &str) -> Result<()> {
        let pragma = format!("PRAGMA as_of = {}", quoted(moment));
        Ok(bygone_sql::execute(&self.connection, &pragma).map(drop)?)
    }

    /// What the session reads: `now`, or the moment as it was asked for.
    pub fn as_of(&self) -> Result<String> {
        Ok(self.connection.query_row("PRAGMA as_of", [], |row| row.get(0))?)
    }

    /// Runs statements, or one command.
    pub fn run(&mut self, input: &str) -> Result<Flow> {
        let start = Instant::now();
        let flow = match input.trim_start().strip_prefix('.') {
            Some(command) => commands::run(self, command.trim_end())?,
            None => {
                let declared = self.run_statements(input)?;
                if let Some(id) = declared
                    && self.chatty
                {
                    self.line(format_args!("snapshot {id}"))?;
                }
                Flow::More
            }
        };
        if self.timer {
            self.line(format_args!("{}", numbers::duration(start.elapsed())))?;
        }
        Ok(flow)
    }

    /// Runs what a pipe or a file brings, statement by statement, up to the first error. `file` names it in messages.
    pub fn run_lines(&mut self, lines: impl BufRead, file: &str) -> Result<Flow> {
        let mut script = String::new();
        // Where the statement that is read began.
        let mut first = 1;
        for (line, number) in lines.lines().zip(1_u64..) {
            let line = line.map_err(|error| Failure::usage(error).at_line(file, number))?;
            if script.trim().is_empty() {
                script.clear();
                first = number;
            }
            let is_command = script.is_empty() && line.starts_with('.');
            script.push_str(&line);
            script.push('\n');
            // Only a semicolon can complete a statement that was open.
            if is_command || (line.contains(';') && bygone_sql::is_complete(&script)) {
                let flow = self.run(&script).map_err(|failure| failure.at_line(file, first))?;
                script.clear();
                if flow == Flow::End {
                    return Ok(flow);
                }
            }
        }
        match script.trim() {
            "" => Ok(Flow::More),
            _ => self.run(&script).map_err(|failure| failure.at_line(file, first)),
        }
    }

    fn run_statements(&mut self, script: &str) -> Result<Option<SnapshotId>> {
        let mut stopped = None;
        let (settings, sink) = (&self.settings, &mut self.sink);
        let ran = bygone_sql::run(&self.connection, script, |statement| {
            show::statement(statement, settings, sink).map_err(|stop| match stop {
                Stop::Sqlite(error) => error,
                Stop::Output(error) => {
                    stopped = Some(error);
                    rusqlite::Error::InvalidQuery
                }
            })
        });
        match stopped {
            Some(error) => Err(self.sink.failure(error)),
            None => Ok(ran?),
        }
    }

    /// Runs one query of the shell's own, and shows its rows.
    pub fn query(&mut self, sql: &str, params: impl Params) -> Result<()> {
        let mut statement = self.connection.prepare(sql)?;
        show::query(&mut statement, params, &self.settings, &mut self.sink).map_err(|stop| match stop {
            Stop::Sqlite(error) => error.into(),
            Stop::Output(error) => self.sink.failure(error),
        })
    }

    /// Shows rows that no query has.
    pub fn rows(&mut self, names: &[&str], rows: &[Vec<Value>]) -> Result<()> {
        let shown = show::values(names, rows, &self.settings, &mut self.sink);
        shown.map_err(|error| self.sink.failure(error))
    }

    pub fn line(&mut self, line: impl std::fmt::Display) -> Result<()> {
        writeln!(self.sink, "{line}").map_err(|error| self.sink.failure(error))
    }

    /// Writes out what is held back.
    pub fn flush(&mut self) -> Result<()> {
        self.sink.flush().map_err(|error| self.sink.failure(error))
    }

    /// Sends what comes from now on to a file, or to standard output again.
    pub fn send_to(&mut self, path: Option<&Path>) -> Result<()> {
        self.flush()?;
        self.sink.file = match path {
            None => None,
            Some(path) => {
                let file = File::create(path).map_err(|error| Failure::file(path, "write", error))?;
                Some((path.to_owned(), BufWriter::new(file)))
            }
        };
        Ok(())
    }

    /// Must be the last call: what a dropped writer cannot write is lost unseen.
    pub fn finish(&mut self) -> Result<()> {
        self.send_to(None)
    }
}

/// Where output goes.
pub struct Sink<'o> {
    out: &'o mut Output,
    file: Option<(PathBuf, BufWriter<File>)>,
}

impl Sink<'_> {
    /// What an error in writing means.
    fn failure(&self, error: io::Error) -> Failure {
        match &self.file {
            None => Failure::output(error),
            Some((path, _)) => Failure::file(path, "write", error),
        }
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            None => Write::write(self.out, bytes),
            Some((_, file)) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some((_, file)) = &mut self.file {
            file.flush()?;
        }
        Write::flush(self.out)
    }
}

/// Text as a literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A name as one that is quoted.
pub fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
