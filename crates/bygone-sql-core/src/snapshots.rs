//! The table `bygone_snapshots`.
//!
//! Owns: that virtual table: id, name, time, bytes, and hidden the schema whose directory it lists. Promises: it lists
//! what is declared when it is read, also where the connection reads the past; what snapshots take is counted only if
//! the query asks for it. May call: `functions`, `moment`, `vtab`.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};

use bygone::SnapshotInfo;

use crate::api::text;
use crate::failure::Result;
use crate::ffi::*;
use crate::functions::wanted_file;
use crate::host::Host;
use crate::moment;
use crate::vtab::{self, Equal, Made, Plan, VirtualTable};

const NAME: &CStr = c"bygone_snapshots";
const DECLARATION: &str =
    "CREATE TABLE x(id INTEGER PRIMARY KEY, name TEXT, time TEXT, bytes INTEGER, schema TEXT HIDDEN)";

const BYTES: c_int = 3;
const SCHEMA: c_int = 4;

/// What a plan settles.
const WITH_BYTES: c_int = 1;

/// Makes the table known to a connection.
///
/// # Safety
/// The connection is open.
pub unsafe fn register(host: &Host, connection: *mut sqlite3) -> c_int {
    // SAFETY: as promised.
    unsafe { vtab::register::<Snapshots>(host, connection, NAME, &()) }
}

struct Snapshots {
    connection: *mut sqlite3,
}

struct Rows {
    rows: std::vec::IntoIter<SnapshotInfo>,
    row: Option<SnapshotInfo>,
    bytes: HashMap<u64, u64>,
}

impl VirtualTable for Snapshots {
    type Kind = ();
    type Rows = Rows;

    const IS_CREATABLE: bool = false;

    unsafe fn connect(_host: &'static Host, _kind: &(), made: &Made) -> Result<(Snapshots, String)> {
        Ok((Snapshots { connection: made.connection }, DECLARATION.to_owned()))
    }

    fn plan(&self, plan: &mut Plan<'_>) -> Result<bool> {
        if plan.equal(SCHEMA, false) == Equal::NotHere {
            return Ok(false);
        }
        let with_bytes = plan.uses(BYTES);
        plan.settle(if with_bytes { WITH_BYTES } else { 0 }, if with_bytes { 1e6 } else { 1e3 }, 1000);
        Ok(true)
    }

    unsafe fn find(&self, host: &'static Host, number: c_int, values: &[*mut sqlite3_value]) -> Result<Rows> {
        // SAFETY: the value is that of the call.
        let schema = values.first().and_then(|value| unsafe { text((host.api.value_text)(*value).cast()) });
        let file = wanted_file(host, self.connection, schema)?;
        // SAFETY: the files of a connection that is in a call are borrowed by nobody else; this borrow ends here.
        let db = unsafe { &*file }.directory.db.clone();
        let rows = db.snapshots()?.into_iter();
        let mut bytes = HashMap::new();
        if number & WITH_BYTES != 0 {
            let sizes = db.snapshot_sizes()?;
            bytes = sizes.iter().map(|size| (size.id.into(), size.own_bytes)).collect();
        }
        Ok(Rows { rows, row: None, bytes })
    }
}

impl vtab::Rows for Rows {
    fn step(&mut self) -> Result<bool> {
        self.row = self.rows.next();
        Ok(self.row.is_some())
    }

    unsafe fn answer(&self, host: &Host, context: *mut sqlite3_context, column: c_int) {
        let Some(row) = &self.row else { return };
        let id = u64::from(row.id);
        // SAFETY: the context is that of this call.
        unsafe {
            match (column, &row.name) {
                (0, _) => (host.api.result_int64)(context, id as i64),
                (1, Some(name)) => host.api.answer_text(context, name),
                (2, _) => host.api.answer_text(context, &moment::written(row.time)),
                (BYTES, _) => {
                    (host.api.result_int64)(context, self.bytes.get(&id).copied().unwrap_or(0) as i64);
                }
                _ => (host.api.result_null)(context),
            }
        }
    }

    fn rowid(&self) -> Option<i64> {
        self.row.as_ref().map(|row| u64::from(row.id) as i64)
    }
}
