//! The values of a variable, one a run.
//!
//! Owns: [`Values`], which gathers them, and the table `bygone_values`, in which SQLite's own aggregates find them.
//! Promises: a value is kept once for all snapshots that it holds for; when they come to take much memory, they go to a
//! staging database. May call: `reader`, `staging`, `vtab`.
//!
//! Most are numbers, and few: to write them into tables would take longer than many a run.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use super::reader::Sink;
use super::staging::{Staging, checked, other_columns, value_of};
use crate::directory::locked;
use crate::failure::{Failure, Result};
use crate::ffi::*;
use crate::host::Host;
use crate::session::Session;
use crate::statement::{Connection, Kept, Row};
use crate::vtab::{self, Made, Plan, VirtualTable};

pub(super) const NAME: &CStr = c"bygone_values";
const DECLARATION: &str = "CREATE TABLE x(value)";

/// In this schema there is no table of the database's that could have the name.
const FROM: &str = "temp.bygone_values";

/// How much memory values may take here.
const BYTES_MAX: usize = 4 << 20;

/// What gathers them.
pub(super) struct Values {
    host: &'static Host,
    columns: Option<Vec<String>>,
    /// That of each run, if it gave one.
    runs: Vec<Option<Kept>>,
    /// The snapshots, in their order, each with its run.
    holds: Vec<(u64, usize)>,
    /// How many rows the last run gave.
    rows: u64,
    bytes: usize,
    bytes_max: usize,
    /// Where they are when they take too much memory.
    staging: Option<Staging>,
}

impl Values {
    pub fn new(host: &'static Host) -> Values {
        Values {
            host,
            columns: None,
            runs: Vec::new(),
            holds: Vec::new(),
            rows: 0,
            bytes: 0,
            bytes_max: BYTES_MAX,
            staging: None,
        }
    }

    fn spill(&mut self) -> Result<()> {
        let mut staging = Staging::new(self.host)?;
        let mut holds = self.holds.drain(..).peekable();
        for (value, run) in self.runs.drain(..).zip(0..) {
            staging.begin_run(self.columns.clone().unwrap_or_default())?;
            if let Some(value) = value {
                staging.push(&Row::Kept(&[value]))?;
            }
            while let Some((snapshot, _)) = holds.next_if(|(_, of)| *of == run) {
                staging.holds_for(snapshot)?;
            }
        }
        drop(holds);
        self.staging = Some(staging);
        Ok(())
    }

    /// Gives what a function makes of the values of all snapshots; nothing stands for NULL. The connection is one that
    /// has the table, and the session is its.
    pub fn answer(
        mut self,
        function: &str,
        (connection, session): (&Connection, &Session),
        give: impl FnOnce(*mut sqlite3_value),
    ) -> Result<()> {
        if let Some(staging) = &self.staging {
            let mut answer = staging.in_variable(function)?;
            give(value_of(&mut answer)?);
            return Ok(());
        }
        let function = checked(function)?;
        let mut ordered = self.holds.iter().map(|(_, run)| *run).filter(|run| self.runs[*run].is_some());
        let placed = match &function[..] {
            "first" => Some(ordered.next()),
            "last" => Some(ordered.next_back()),
            _ => None,
        };
        if let Some(run) = placed {
            if let Some(Some(value)) = run.map(|run| &self.runs[run]) {
                give(value.value());
            }
            return Ok(());
        }
        let mut counts = vec![0; self.runs.len()];
        self.holds.iter().for_each(|(_, run)| counts[*run] += 1);
        let values = self.runs.drain(..).zip(counts);
        let values = values.filter_map(|(value, count)| Some((value?, count))).collect();
        *locked(&session.values) = values;
        let mut answer = connection.prepare(&format!("SELECT {function}(value) FROM {FROM}"))?;
        give(value_of(&mut answer)?);
        Ok(())
    }
}

impl Sink for Values {
    fn begin_run(&mut self, columns: Vec<String>) -> Result<()> {
        self.rows = 0;
        if let Some(staging) = &mut self.staging {
            return staging.begin_run(columns);
        }
        match &self.columns {
            Some(before) if *before != columns => return Err(other_columns(&columns, before)),
            Some(_) => {}
            None => self.columns = Some(columns),
        }
        self.runs.push(None);
        Ok(())
    }

    fn push(&mut self, row: &Row<'_>) -> Result<()> {
        self.rows += 1;
        if let Some(staging) = &mut self.staging {
            return staging.push(row);
        }
        if let Some(run) = self.runs.last_mut().filter(|run| run.is_none()) {
            let value = Kept::of(self.host, row.value(0))?;
            self.bytes += value.bytes();
            *run = Some(value);
        }
        Ok(())
    }

    fn end_run(&mut self) -> Result<()> {
        let (rows, columns) = (self.rows, self.columns.as_ref().map_or(0, Vec::len));
        if rows > 1 || columns != 1 {
            let text =
                format!("the query gives {rows} rows of {columns} columns, and a variable takes one value");
            return Err(Failure::new(SQLITE_ERROR, text));
        }
        if self.bytes > self.bytes_max && self.staging.is_none() { self.spill() } else { Ok(()) }
    }

    fn rows(&self) -> u64 {
        let here = self.runs.iter().flatten().count() as u64;
        self.staging.as_ref().map_or(here, Sink::rows)
    }

    fn holds_for(&mut self, snapshot: u64) -> Result<()> {
        if let Some(staging) = &mut self.staging {
            return staging.holds_for(snapshot);
        }
        self.holds.push((snapshot, self.runs.len().saturating_sub(1)));
        Ok(())
    }
}

/// Makes the table known to a connection.
///
/// # Safety
/// The connection is open.
pub(super) unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    // SAFETY: as promised.
    unsafe { vtab::register::<Table>(host, connection, NAME, &()) }
}

struct Table {
    session: Option<Arc<Session>>,
}

struct Rows {
    values: std::vec::IntoIter<(Kept, u64)>,
    /// The value of the row, and how often it is still there.
    value: Option<(Kept, u64)>,
}

impl VirtualTable for Table {
    type Kind = ();
    type Rows = Rows;

    const IS_CREATABLE: bool = false;

    unsafe fn connect(_host: &'static Host, _kind: &(), made: &Made) -> Result<(Table, String)> {
        Ok((Table { session: Session::of(made.connection) }, DECLARATION.to_owned()))
    }

    fn plan(&self, plan: &mut Plan<'_>) -> Result<bool> {
        plan.settle(0, 1e3, 1000);
        Ok(true)
    }

    unsafe fn find(
        &self,
        _host: &'static Host,
        _number: c_int,
        _values: &[*mut sqlite3_value],
    ) -> Result<Rows> {
        let values = self.session.as_ref().map(|session| std::mem::take(&mut *locked(&session.values)));
        Ok(Rows { values: values.unwrap_or_default().into_iter(), value: None })
    }
}

impl vtab::Rows for Rows {
    fn step(&mut self) -> Result<bool> {
        match &mut self.value {
            Some((_, left)) if *left > 1 => *left -= 1,
            _ => self.value = self.values.next(),
        }
        Ok(self.value.is_some())
    }

    unsafe fn answer(&self, host: &Host, context: *mut sqlite3_context, _column: c_int) {
        if let Some((value, _)) = &self.value {
            // SAFETY: the context is that of this call; the value is copied.
            unsafe { (host.api.result_value)(context, value.value()) };
        }
    }
}
