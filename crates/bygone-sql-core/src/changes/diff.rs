//! `bygone_diff`: the table-valued function, and the module of virtual tables.
//!
//! Owns: both shapes of it. Promises: what is compared is as of when the query runs, with the schema of each moment.
//! May call: `columns`, `compare`, `described`, `vtab`.

use std::ffi::c_int;

use super::columns::{Columns, declaration};
use super::compare::{Differences, Form, Opened, Shown, no_table};
use super::described::Described;
use super::{made_in_temp, refused, value_text, wanted};
use crate::failure::Result;
use crate::ffi::{sqlite3, sqlite3_context, sqlite3_value};
use crate::host::Host;
use crate::vtab::{self, Made, Plan, VirtualTable};

const DECLARATION: &str = "CREATE TABLE x(change TEXT, key, before TEXT, after TEXT, \
                           tbl HIDDEN, a HIDDEN, b HIDDEN, schema HIDDEN)";

/// The hidden columns of it: the arguments.
const ARGUMENTS: [c_int; 3] = [4, 5, 6];
const SCHEMA: c_int = 7;

const USAGE: &str = "bygone_diff is asked as bygone_diff('table', a, b), where a and b are moments";
const USAGE_MADE: &str =
    "write CREATE VIRTUAL TABLE temp.NAME USING bygone_diff(table, a, b), where a and b are moments";

/// The table, on a connection.
pub(super) struct Diff {
    connection: *mut sqlite3,
    /// What it is of, if it was made for that.
    fixed: Option<Fixed>,
}

struct Fixed {
    asked: Asked,
    names: Vec<String>,
    shown: Vec<Shown>,
}

/// What is asked.
struct Asked {
    table: String,
    before: String,
    after: String,
    schema: Option<String>,
}

impl Asked {
    fn open(&self, host: &'static Host, connection: *mut sqlite3) -> Result<(Opened, Opened)> {
        let (directory, database) = wanted(host, connection, self.schema.clone())?;
        let open = |moment: &str| Opened::new(host, (&directory, &database), moment);
        Ok((open(&self.before)?, open(&self.after)?))
    }

    fn ask(&self, host: &'static Host, connection: *mut sqlite3, form: Form) -> Result<Differences> {
        let (before, after) = self.open(host, connection)?;
        let found = Differences::new(Some(before), after, &self.table, form)?;
        found.ok_or_else(|| no_table(&self.table, &self.before, &self.after))
    }
}

/// The differences, with what is shown of them.
pub(super) struct Rows {
    differences: Differences,
    shown: Vec<Shown>,
}

impl VirtualTable for Diff {
    type Kind = ();
    type Rows = Rows;

    const IS_CREATABLE: bool = true;

    unsafe fn connect(host: &'static Host, _kind: &(), made: &Made) -> Result<(Diff, String)> {
        let connection = made.connection;
        let Some(arguments) = made_in_temp(made, "bygone_diff(table, a, b)")? else {
            return Ok((Diff { connection, fixed: None }, DECLARATION.to_owned()));
        };
        let (table, before, after, schema) = match arguments {
            [table, before, after] => (table, before, after, None),
            [table, before, after, schema] => (table, before, after, Some(schema.clone())),
            _ => return Err(refused(USAGE_MADE)),
        };
        let asked = Asked { table: table.clone(), before: before.clone(), after: after.clone(), schema };
        let (a, b) = asked.open(host, connection)?;
        let found = [Described::find(&b.connection, table)?, Described::find(&a.connection, table)?];
        let found: Vec<Described> = found.into_iter().flatten().collect();
        if found.is_empty() {
            return Err(no_table(table, before, after));
        }
        let columns = Columns::of(&found);
        let wanted = columns.of_differences();
        let shown = wanted.iter().map(|(shown, ..)| *shown).collect();
        let fixed = Fixed { asked, names: columns.names(), shown };
        Ok((Diff { connection, fixed: Some(fixed) }, declaration(&[], &wanted)))
    }

    fn plan(&self, plan: &mut Plan<'_>) -> Result<bool> {
        plan.settle(0, 1e6, 1000);
        if self.fixed.is_some() {
            return Ok(true);
        }
        plan.arguments(&ARGUMENTS, SCHEMA, USAGE)
    }

    unsafe fn find(
        &self,
        host: &'static Host,
        _number: c_int,
        values: &[*mut sqlite3_value],
    ) -> Result<Rows> {
        if let Some(Fixed { asked, names, shown }) = &self.fixed {
            let differences = asked.ask(host, self.connection, Form::Columns(names.clone()))?;
            return Ok(Rows { differences, shown: shown.clone() });
        }
        // SAFETY: the values are those of the call.
        let mut words = values.iter().map(|value| unsafe { value_text(host, *value) });
        let (Some(table), Some(before), Some(after)) = (words.next(), words.next(), words.next()) else {
            return Err(refused(USAGE));
        };
        let asked = Asked { table, before, after, schema: words.next() };
        let differences = asked.ask(host, self.connection, Form::Json)?;
        Ok(Rows { differences, shown: vec![Shown::Change, Shown::Key(0), Shown::Old(0), Shown::New(0)] })
    }
}

impl vtab::Rows for Rows {
    fn step(&mut self) -> Result<bool> {
        self.differences.step()
    }

    unsafe fn answer(&self, host: &Host, context: *mut sqlite3_context, column: c_int) {
        if let Some(shown) = usize::try_from(column).ok().and_then(|column| self.shown.get(column)) {
            // SAFETY: as promised.
            unsafe { self.differences.answer(host, context, *shown) };
        }
    }
}
