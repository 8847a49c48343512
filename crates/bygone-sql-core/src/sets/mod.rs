//! Set queries: one query, asked of many snapshots.
//!
//! Owns: the SQL functions `CollateData`, `AggregateDataInVariable`, `AggregateDataInTable`,
//! `CollateDataIntoIntervals`, `current_snapshot` and `bygone_set_stats`. Promises: the query runs as of each snapshot,
//! in their order, on a connection of its own; a table of results is made whole or not at all. May call: `reader`,
//! `staging`, `session`.
//!
//! The four are aggregates: each row gives a snapshot, and the end does the work. SQLite ends an aggregate also where a
//! statement fails half-way, and does not say so; but then it has closed the statement's cursors before. So where one
//! of `bygone_snapshots` or another table of ours was open at the last row, and is not at the end, nothing is done.

mod asking;
mod reader;
mod staging;
mod values;
mod workers;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) use asking::as_of;
pub(crate) use reader::{Asker, Sink, uri};
pub(crate) use staging::Staging;
use staging::{aggregates, checked, make_table};
use values::Values;

use crate::api::text;
use crate::directory::locked;
use crate::failure::{self, Failure, Result, shielded};
use crate::ffi::*;
use crate::functions::wanted_file;
use crate::host::Host;
use crate::session::{OnProgress, Session, SetStats, release};
use crate::statement::Statement;

/// What is made of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mechanism {
    Collate,
    InVariable,
    InTable,
    Intervals,
}

type Final = unsafe extern "C" fn(*mut sqlite3_context);

/// A name, how many arguments, flags, and what is called: a function itself, or the steps and the end of an aggregate.
type Function = (&'static CStr, c_int, c_int, Option<ScalarFunction>, Option<(ScalarFunction, Final)>);

/// What the rows of an aggregate have given so far.
#[derive(Default)]
struct Gathered {
    snapshots: BTreeSet<u64>,
    /// The arguments behind the snapshot.
    texts: Vec<String>,
    failed: bool,
    /// How many cursors of our tables were open at the last row.
    cursors: usize,
}

/// Makes the functions known to a connection.
///
/// # Safety
/// The connection is open.
pub(crate) unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    let session = Session::begin(connection);
    let aggregates: [(&CStr, c_int, ScalarFunction, Final); 4] = [
        (c"CollateData", 3, step::<3>, collate),
        (c"AggregateDataInVariable", 3, step::<3>, in_variable),
        (c"AggregateDataInTable", 4, step::<4>, in_table),
        (c"CollateDataIntoIntervals", 3, step::<3>, intervals),
    ];
    let aggregates = aggregates.into_iter().flat_map(|(name, count, step, end)| {
        let flags = SQLITE_UTF8 | SQLITE_DIRECTONLY;
        // Without the schema, or with it behind the others.
        [count, count + 1].map(|count| -> Function { (name, count, flags, None, Some((step, end))) })
    });
    let scalars: [Function; 2] = [
        (c"current_snapshot", 0, SQLITE_UTF8 | SQLITE_INNOCUOUS, Some(current_snapshot), None),
        (c"bygone_set_stats", 0, SQLITE_UTF8, Some(stats), None),
    ];
    for (name, count, flags, function, aggregate) in aggregates.chain(scalars) {
        let (step, end) = aggregate.unzip();
        // SAFETY: the connection is open; SQLite releases the share, also when it refuses.
        let code = unsafe {
            (host.api.create_function_v2)(
                connection,
                name.as_ptr(),
                count,
                flags,
                session.share(),
                function,
                step,
                end,
                Some(release),
            )
        };
        if code != SQLITE_OK {
            return code;
        }
    }
    SQLITE_OK
}

/// Has a connection's set queries report; `None` ends that. Answers whether the connection is one that was prepared.
pub fn on_set_progress(connection: *mut sqlite3, report: Option<OnProgress>) -> bool {
    let Some(session) = Session::of(connection) else { return false };
    *locked(&session.on_progress) = report;
    true
}

/// From how long on that it would still take, a set query of this connection is shared with threads of its own; `None`
/// keeps it to the one that asks. Answers whether the connection is one that was prepared.
pub fn share_sets(connection: *mut sqlite3, left: Option<Duration>) -> bool {
    let Some(session) = Session::of(connection) else { return false };
    locked(&session.sharing).left = left;
    true
}

/// What a connection's last set query did.
pub fn set_stats(connection: *mut sqlite3) -> Option<SetStats> {
    *locked(&Session::of(connection)?.stats)
}

/// Runs a function's body, and answers with its failure.
///
/// # Safety
/// `context` is that of a call of a function.
unsafe fn answer(
    context: *mut sqlite3_context,
    host: &'static Host,
    body: impl FnOnce() -> Result<()>,
) -> bool {
    let mut failed = None;
    let code = shielded(&host.api, || {
        failed = body().err();
        Ok(SQLITE_OK)
    });
    // SAFETY: as promised.
    unsafe {
        match &failed {
            Some(failure) => host.api.answer_error(context, failure.code, &failure.text),
            None if code != SQLITE_OK => host.api.answer_error(context, code, "a panic in Bygone"),
            None => {}
        }
    }
    failed.is_none() && code == SQLITE_OK
}

/// The session of the connection that a function of [`register`]'s was called on.
///
/// # Safety
/// As [`answer`].
unsafe fn session<'s>(host: &Host, context: *mut sqlite3_context) -> &'s Session {
    // SAFETY: it is a share, which lives as long as the function; a function lives as long as its call.
    unsafe { &*(host.api.user_data)(context).cast::<Session>() }
}

/// A row of an aggregate, which has so many arguments without the schema.
unsafe extern "C" fn step<const ARGUMENTS: usize>(
    context: *mut sqlite3_context,
    count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let Some(host) = Host::get() else { return };
    // SAFETY: what SQLite passes. The memory is zeros at first, and then what was put there.
    unsafe {
        let place = (host.api.aggregate_context)(context, size_of::<*mut Gathered>() as c_int);
        let place = place.cast::<*mut Gathered>();
        if place.is_null() {
            return host.api.answer_error(context, SQLITE_NOMEM, "out of memory");
        }
        if (*place).is_null() {
            *place = Box::into_raw(Box::default());
        }
        let gathered = &mut **place;
        let values = std::slice::from_raw_parts(values, usize::try_from(count).unwrap_or(0));
        // Relaxed: all cursors of a connection are opened and closed in calls of it.
        gathered.cursors = session(host, context).cursors.load(Ordering::Relaxed);
        let gone_on = answer(context, host, || {
            gathered.add(host, (host.api.context_db_handle)(context), values, ARGUMENTS)
        });
        gathered.failed |= !gone_on;
    }
}

impl Gathered {
    /// # Safety
    /// The values are those of a call of this connection's.
    unsafe fn add(
        &mut self,
        host: &Host,
        connection: *mut sqlite3,
        values: &[*mut sqlite3_value],
        arguments: usize,
    ) -> Result<()> {
        let [snapshot, others @ ..] = values else { return Ok(()) };
        // SAFETY: as promised.
        let texts = others.iter().map(|value| unsafe { text((host.api.value_text)(*value).cast()) });
        let texts: Option<Vec<String>> = texts.collect();
        let texts = texts.ok_or_else(|| {
            Failure::new(SQLITE_ERROR, "the arguments behind the snapshot of a set query are texts, not NULL")
        })?;
        // SAFETY: as promised.
        let snapshot = match unsafe { (host.api.value_type)(*snapshot) } {
            SQLITE_NULL => return Ok(()),
            // SAFETY: as promised.
            SQLITE_INTEGER => unsafe { (host.api.value_int64)(*snapshot) as u64 },
            // SAFETY: as promised.
            SQLITE_TEXT => unsafe {
                let name = text((host.api.value_text)(*snapshot).cast()).unwrap_or_default();
                let file = &*wanted_file(host, connection, texts.get(arguments - 1).cloned())?;
                file.directory.db.snapshot_info(&name[..])?.id.into()
            },
            _ => return Err(Failure::new(SQLITE_ERROR, "a snapshot is named by its id or its name")),
        };
        if self.snapshots.is_empty() {
            self.texts = texts;
        } else if self.texts != texts {
            let text = "a set query asks the same of every snapshot: its other arguments may not change";
            return Err(Failure::new(SQLITE_ERROR, text));
        }
        self.snapshots.insert(snapshot);
        Ok(())
    }
}

unsafe extern "C" fn collate(context: *mut sqlite3_context) {
    // SAFETY: what SQLite passes.
    unsafe { finish(context, Mechanism::Collate) }
}

unsafe extern "C" fn in_variable(context: *mut sqlite3_context) {
    // SAFETY: what SQLite passes.
    unsafe { finish(context, Mechanism::InVariable) }
}

unsafe extern "C" fn in_table(context: *mut sqlite3_context) {
    // SAFETY: what SQLite passes.
    unsafe { finish(context, Mechanism::InTable) }
}

unsafe extern "C" fn intervals(context: *mut sqlite3_context) {
    // SAFETY: what SQLite passes.
    unsafe { finish(context, Mechanism::Intervals) }
}

/// # Safety
/// What SQLite passes to the end of an aggregate.
unsafe fn finish(context: *mut sqlite3_context, mechanism: Mechanism) {
    let Some(host) = Host::get() else { return };
    // SAFETY: as promised; `step` put the box there, and this is called once.
    unsafe {
        let place = (host.api.aggregate_context)(context, 0).cast::<*mut Gathered>();
        let gathered = if place.is_null() || (*place).is_null() {
            Box::default()
        } else {
            Box::from_raw(std::mem::replace(&mut *place, std::ptr::null_mut()))
        };
        // Relaxed: as in `step`. The statement has failed, for reasons of its own.
        let is_torn_down = session(host, context).cursors.load(Ordering::Relaxed) < gathered.cursors;
        if gathered.failed || is_torn_down {
            return;
        }
        answer(context, host, || {
            let connection = (host.api.context_db_handle)(context);
            let set = Set { host, connection, session: session(host, context), mechanism };
            set.answer(context, &gathered)
        });
    }
}

/// A set query whose snapshots are known.
struct Set<'s> {
    host: &'static Host,
    connection: *mut sqlite3,
    session: &'s Session,
    mechanism: Mechanism,
}

impl Set<'_> {
    /// # Safety
    /// The connection is in the call that the context is of.
    unsafe fn answer(&self, context: *mut sqlite3_context, gathered: &Gathered) -> Result<()> {
        *locked(&self.session.stats) = None;
        failure::take_last();
        let [query, others @ ..] = &gathered.texts[..] else {
            // No snapshot, so no query, and no columns for a table.
            *locked(&self.session.stats) = Some(SetStats::default());
            // SAFETY: as promised.
            unsafe {
                match self.mechanism {
                    Mechanism::InVariable => (self.host.api.result_null)(context),
                    _ => (self.host.api.result_int64)(context, 0),
                }
            }
            return Ok(());
        };
        let other = |index: usize| others.get(index).map(String::as_str).unwrap_or_default();
        // Behind the snapshot, the query and what the mechanism takes.
        let schema = others.get(if self.mechanism == Mechanism::InTable { 2 } else { 1 }).cloned();
        // What is wrong in these need not wait for the query.
        let pairs = if self.mechanism == Mechanism::InTable { aggregates(other(1))? } else { Vec::new() };
        let target = match self.mechanism {
            Mechanism::InVariable => {
                checked(other(0))?;
                None
            }
            _ => Some(self.target(other(0))?),
        };
        let place = self.place(schema)?;
        let Some((schema, name)) = &target else {
            let mut values = Values::new(self.host);
            // SAFETY: as promised.
            let asker = unsafe { self.ask_all(&place, &gathered.snapshots, query, &mut values) }?;
            let Some(connection) = asker.connection() else { return Ok(()) };
            // SAFETY: as promised; the value is copied.
            values.answer(other(0), connection, |value| unsafe {
                (self.host.api.result_value)(context, value)
            })?;
            self.keep(&place, asker);
            return Ok(());
        };
        let mut staging = Staging::new(self.host)?;
        // SAFETY: as promised.
        let asker = unsafe { self.ask_all(&place, &gathered.snapshots, query, &mut staging) }?;
        self.keep(&place, asker);
        let table = match self.mechanism {
            Mechanism::InTable => staging.in_table(&pairs)?,
            Mechanism::Intervals => staging.intervals()?,
            Mechanism::Collate | Mechanism::InVariable => staging.collated()?,
        };
        // SAFETY: as promised.
        unsafe {
            let count = make_table(self.host, self.connection, (schema, name), table)?;
            (self.host.api.result_int64)(context, count);
        }
        Ok(())
    }

    /// Which schema and table a name means; one without a schema is temporary. There must be no such table yet.
    fn target(&self, name: &str) -> Result<(String, String)> {
        let (schema, table) = name.split_once('.').unwrap_or(("temp", name));
        let schemas = self.host.schemas(self.connection);
        let is_known = schemas.iter().any(|known| known.to_bytes().eq_ignore_ascii_case(schema.as_bytes()));
        // There is none before it is used.
        if !is_known && !schema.eq_ignore_ascii_case("temp") {
            let text = format!("{name:?} is no table's name: this connection has no database {schema:?}");
            return Err(Failure::new(SQLITE_ERROR, text));
        }
        if table.is_empty() {
            return Err(Failure::new(SQLITE_ERROR, "the table for the results has no name"));
        }
        let lookup = format!(
            "SELECT count(*) FROM {}.sqlite_schema WHERE name = '{}' COLLATE NOCASE",
            crate::statement::quoted(schema),
            table.replace('\'', "''")
        );
        // SAFETY: the connection is in this call.
        let mut found = unsafe { Statement::prepare(self.host, self.connection, &lookup) }?;
        if found.step()? && found.number(0) > 0 {
            return Err(Failure::new(SQLITE_ERROR, format!("table {name} already exists")));
        }
        Ok((schema.to_owned(), table.to_owned()))
    }
}

unsafe extern "C" fn current_snapshot(
    context: *mut sqlite3_context,
    _count: c_int,
    _values: *mut *mut sqlite3_value,
) {
    let Some(host) = Host::get() else { return };
    // SAFETY: what SQLite passes.
    unsafe {
        answer(context, host, || {
            let mut asked = locked(&session(host, context).asked);
            asked.told = true;
            match asked.snapshot {
                Some(snapshot) => (host.api.result_int64)(context, snapshot as i64),
                None => (host.api.result_null)(context),
            }
            Ok(())
        });
    }
}

unsafe extern "C" fn stats(context: *mut sqlite3_context, _count: c_int, _values: *mut *mut sqlite3_value) {
    let Some(host) = Host::get() else { return };
    // SAFETY: what SQLite passes.
    unsafe {
        answer(context, host, || {
            let Some(stats) = *locked(&session(host, context).stats) else {
                (host.api.result_null)(context);
                return Ok(());
            };
            let SetStats { snapshots, runs, skipped, rows, page_reads } = stats;
            let text = format!(
                "{{\"snapshots\":{snapshots},\"runs\":{runs},\"skipped\":{skipped},\"rows\":{rows},\
                 \"page_reads\":{page_reads}}}"
            );
            host.api.answer_text(context, &text);
            Ok(())
        });
    }
}
