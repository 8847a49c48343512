//! `bygone_history`: the table-valued function, and the module of virtual tables.
//!
//! Owns: both shapes of it. Promises: what declared snapshots have is told, in their order; of one row, it is read only
//! where pages that it was found in have changed. May call: `columns`, `compare`, `described`, `sets`, `vtab`.

use std::cell::RefCell;
use std::ffi::c_int;

use bygone::{Snapshot, SnapshotInfo};

use super::columns::{Columns, declaration};
use super::compare::{Differences, Form, Opened, Shown};
use super::described::{Described, literal};
use super::{made_in_temp, of_key, refused, value_text, wanted};
use crate::directory::Handle;
use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, sqlite3, sqlite3_context, sqlite3_value};
use crate::host::Host;
use crate::pages::Shape;
use crate::sets::{Asker, Sink, Staging, as_of};
use crate::statement::{Connection, Statement, quoted};
use crate::vfs;
use crate::vtab::{self, Equal, Made, Plan, VirtualTable};

const DECLARATION: &str =
    "CREATE TABLE x(snapshot INTEGER, change TEXT, state TEXT, tbl HIDDEN, key HIDDEN, schema HIDDEN)";

/// The hidden columns of it: the arguments.
const ARGUMENTS: [c_int; 2] = [3, 4];
const SCHEMA: c_int = 5;

/// In a table that was made, the key is behind the snapshot and the change.
const KEY: c_int = 2;

/// What a plan settles: the key is given.
const BY_KEY: c_int = 1;

const USAGE: &str = "bygone_history is asked as bygone_history('table', key)";
const USAGE_MADE: &str = "write CREATE VIRTUAL TABLE temp.NAME USING bygone_history(table)";

/// The table, on a connection.
pub(super) struct History {
    connection: *mut sqlite3,
    fixed: Option<Fixed>,
}

/// What it is of, if it was made for that.
struct Fixed {
    table: String,
    schema: Option<String>,
    columns: Columns,
    shown: Vec<Shown>,
}

/// Where rows come from.
pub(super) enum Rows {
    /// Of one row: an answer of these columns, from what was gathered.
    OfKey(Statement, #[expect(dead_code, reason = "it is there to be closed after the statement")] Staging),
    OfAll(Box<Walk>),
}

/// From snapshot to snapshot.
pub(super) struct Walk {
    host: &'static Host,
    directory: Handle,
    database: String,
    table: String,
    form: Form,
    /// Behind the snapshot.
    shown: Vec<Shown>,
    left: std::vec::IntoIter<SnapshotInfo>,
    /// The last snapshot before, and its shape.
    before: Option<(u64, Shape)>,
    snapshot: u64,
    differences: Option<Differences>,
}

impl VirtualTable for History {
    type Kind = ();
    type Rows = Rows;

    const IS_CREATABLE: bool = true;

    unsafe fn connect(host: &'static Host, _kind: &(), made: &Made) -> Result<(History, String)> {
        let connection = made.connection;
        let Some(arguments) = made_in_temp(made, "bygone_history(table)")? else {
            return Ok((History { connection, fixed: None }, DECLARATION.to_owned()));
        };
        let (table, schema) = match arguments {
            [table] => (table, None),
            [table, schema] => (table, Some(schema.clone())),
            _ => return Err(refused(USAGE_MADE)),
        };
        let (directory, database) = wanted(host, connection, schema.clone())?;
        let found = RefCell::new(Vec::new());
        let note = |past: &Connection| {
            found.borrow_mut().extend(Described::find(past, table)?);
            Ok("SELECT 1 WHERE 0".to_owned())
        };
        let db = directory.db.clone();
        let ids: Vec<u64> = db.snapshots()?.iter().map(|snapshot| snapshot.id.into()).collect();
        let place = (directory, database);
        // SAFETY: as promised.
        let mut asker = unsafe { Asker::new(host, connection, place, Box::new(note), ids.clone()) }?;
        for id in ids {
            asker.turn(id).map_err(|failure| as_of(&db, id, failure))?;
        }
        drop(asker);
        let mut found = found.into_inner();
        if found.is_empty() {
            return Err(never_there(table));
        }
        found.reverse();
        let columns = Columns::of(&found);
        let wanted = columns.of_history();
        let shown = wanted.iter().map(|(shown, ..)| *shown).collect();
        let fixed = Fixed { table: table.clone(), schema, columns, shown };
        Ok((History { connection, fixed: Some(fixed) }, declaration(&[("snapshot", "INTEGER")], &wanted)))
    }

    fn plan(&self, plan: &mut Plan<'_>) -> Result<bool> {
        if let Some(Fixed { columns, .. }) = &self.fixed {
            let keys = c_int::try_from(columns.keys).unwrap_or(0);
            let is_given = (KEY..KEY + keys).filter(|column| plan.equal(*column, true) == Equal::Yes).count();
            match keys > 0 && is_given == columns.keys {
                true => plan.settle(BY_KEY, 1e5, 100),
                false => plan.settle(0, 1e8, 1_000_000),
            }
            return Ok(true);
        }
        plan.settle(0, 1e6, 1000);
        plan.arguments(&ARGUMENTS, SCHEMA, USAGE)
    }

    unsafe fn find(&self, host: &'static Host, number: c_int, values: &[*mut sqlite3_value]) -> Result<Rows> {
        let Some(Fixed { table, schema, columns, shown }) = &self.fixed else {
            let [table, key, schema @ ..] = values else { return Err(refused(USAGE)) };
            // SAFETY: the values are those of the call.
            let (table, schema) =
                unsafe { (value_text(host, *table), schema.first().map(|schema| value_text(host, *schema))) };
            // SAFETY: as promised.
            return unsafe {
                let names = ["state".to_owned()];
                self.of_key(host, schema, &table, &[*key], (&names, 0), |table, key| {
                    Ok(table.json_of(&key[0]))
                })
            };
        };
        if number != BY_KEY {
            let (directory, database) = wanted(host, self.connection, schema.clone())?;
            return Ok(Rows::OfAll(Box::new(Walk {
                host,
                left: directory.db.snapshots()?.into_iter(),
                directory,
                database,
                table: table.clone(),
                form: Form::Columns(columns.names()),
                shown: shown.clone(),
                before: None,
                snapshot: 0,
                differences: None,
            })));
        }
        let names = columns.names();
        let query = |described: &Described, key: &[String]| {
            // Since the table was made it may have become another.
            if described.key.len() != key.len() {
                let text = format!("{table:?} has another key now: make this table of its history anew");
                return Err(Failure::new(SQLITE_ERROR, text));
            }
            Ok(described.columns_of(&names, key))
        };
        // SAFETY: as promised.
        unsafe { self.of_key(host, schema.clone(), table, values, (&names, columns.keys), query) }
    }
}

impl History {
    /// What became of one row; `query` selects it, by its key as SQL has it, with columns of these names, the first
    /// `keys` of which are the key.
    ///
    /// # Safety
    /// As [`find`](VirtualTable::find).
    unsafe fn of_key(
        &self,
        host: &'static Host,
        schema: Option<String>,
        table: &str,
        key: &[*mut sqlite3_value],
        (names, keys): (&[String], usize),
        query: impl Fn(&Described, &[String]) -> Result<String>,
    ) -> Result<Rows> {
        let (directory, database) = wanted(host, self.connection, schema)?;
        let db = directory.db.clone();
        let mut staging = Staging::new(host)?;
        let key: Result<Vec<String>> =
            key.iter().map(|value| literal(staging.connection(), *value)).collect();
        let key = key?;
        let was_there = RefCell::new(false);
        let selected = |past: &Connection| match Described::find(past, table)? {
            Some(described) => {
                *was_there.borrow_mut() = true;
                query(&described, &key)
            }
            None => Ok(no_row(names)),
        };
        let ids: Vec<u64> = db.snapshots()?.iter().map(|snapshot| snapshot.id.into()).collect();
        let place = (directory, database);
        // SAFETY: as promised.
        let mut asker = unsafe { Asker::new(host, self.connection, place, Box::new(selected), ids.clone()) }?;
        for id in ids {
            let asked = asker.turn(id).and_then(|to_be_run| {
                if to_be_run {
                    asker.run(id, &mut staging)?;
                }
                staging.holds_for(id)
            });
            asked.map_err(|failure| as_of(&db, id, of_key(table, None, failure)))?;
        }
        drop(asker);
        if !was_there.into_inner() {
            return Err(never_there(table));
        }
        Ok(Rows::OfKey(staging.changes(keys)?, staging))
    }
}

/// A query without a row, whose columns have these names.
fn no_row(names: &[String]) -> String {
    let columns: Vec<String> = names.iter().map(|name| format!("NULL AS {}", quoted(name))).collect();
    format!("SELECT {} WHERE 0", columns.join(", "))
}

fn never_there(table: &str) -> Failure {
    Failure::new(SQLITE_ERROR, format!("there is no table {table:?} as of any snapshot"))
}

impl Walk {
    fn step(&mut self) -> Result<bool> {
        loop {
            if let Some(differences) = &mut self.differences
                && differences.step().map_err(|failure| as_of(&self.directory.db, self.snapshot, failure))?
            {
                return Ok(true);
            }
            self.differences = None;
            let Some(next) = self.left.next() else { return Ok(false) };
            let id = u64::from(next.id);
            let turned = self.turn(id);
            turned.map_err(|failure| as_of(&self.directory.db, id, failure))?;
        }
    }

    fn turn(&mut self, id: u64) -> Result<()> {
        let moment = |id: u64| format!("id:{id}");
        let shape = match vfs::past(&self.directory, &self.database, moment(id))? {
            Some(past) => {
                let view: &Snapshot = &past.view;
                past.table.as_ref().map_or(Ok(Shape::default()), |table| Shape::load(view, table))?
            }
            None => Shape::default(),
        };
        let before = self.before.replace((id, shape));
        self.snapshot = id;
        if before.is_some_and(|(_, before)| before == shape) {
            return Ok(());
        }
        let open = |id| Opened::new(self.host, (&self.directory, &self.database), &moment(id));
        let before = before.map(|(id, _)| open(id)).transpose()?;
        self.differences = Differences::new(before, open(id)?, &self.table, self.form.clone())?;
        Ok(())
    }
}

impl vtab::Rows for Rows {
    fn step(&mut self) -> Result<bool> {
        match self {
            Rows::OfKey(statement, _) => statement.step(),
            Rows::OfAll(walk) => walk.step(),
        }
    }

    unsafe fn answer(&self, host: &Host, context: *mut sqlite3_context, column: c_int) {
        let Ok(column) = usize::try_from(column) else { return };
        // SAFETY: as promised; a value is copied.
        unsafe {
            match self {
                Rows::OfKey(statement, _) if column < statement.column_count() => {
                    (host.api.result_value)(context, statement.value(column));
                }
                Rows::OfKey(..) => {}
                Rows::OfAll(walk) if column == 0 => (host.api.result_int64)(context, walk.snapshot as i64),
                Rows::OfAll(walk) => {
                    if let (Some(differences), Some(shown)) = (&walk.differences, walk.shown.get(column - 1))
                    {
                        differences.answer(host, context, *shown);
                    }
                }
            }
        }
    }
}
