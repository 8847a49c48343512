//! Standard output, for people or for programs.
//!
//! Owns: standard output. Promises: with `--json` each answer is one JSON value on a line of its own and
//! nothing else is written; a reader that goes away gives [`Failure::Closed`], never a panic. May call:
//! `failure`, `text`.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::text;

pub struct Output {
    writer: BufWriter<StdoutLock<'static>>,
    json: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Output { writer: BufWriter::with_capacity(64 << 10, io::stdout().lock()), json }
    }

    /// Whether programs read this.
    pub fn is_json(&self) -> bool {
        self.json
    }

    pub fn json(&mut self, value: &Value) -> Result<()> {
        serde_json::to_writer(&mut self.writer, value).map_err(|error| Failure::output(error.into()))?;
        self.raw(b"\n")
    }

    pub fn line(&mut self, line: impl Display) -> Result<()> {
        writeln!(self.writer, "{line}").map_err(Failure::output)
    }

    /// Bytes as escaped text, without a line end.
    pub fn escaped(&mut self, bytes: &[u8]) -> Result<()> {
        text::write_escaped(&mut self.writer, bytes).map_err(Failure::output)
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(Failure::output)
    }

    /// Shows what was written so far. Must be the last call: what a dropped writer cannot write is lost
    /// unseen.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(Failure::output)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
