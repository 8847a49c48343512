//! Whether a snapshot of the engine's is the same as a state of the model's.
//!
//! Owns: the comparison. Promises: every table, key and value is compared, in one of the ways there are to
//! read them. May call: the engine.

use std::ops::ControlFlow;

use bygone::Snapshot;

use crate::model::{Rows, State};

/// How to read a table in full.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    ForEach,
    Forward,
    Backward,
    /// From both ends in turn.
    Inward,
    Gets,
}

pub const WAYS: [Way; 5] = [Way::ForEach, Way::Forward, Way::Backward, Way::Inward, Way::Gets];

/// Compares in full; tells the first difference.
pub fn same(snapshot: &Snapshot, state: &State, way: Way) -> Result<(), String> {
    if u64::from(snapshot.seq()) != state.seq {
        return Err(format!("the snapshot is of commit {}, not {}", snapshot.seq(), state.seq));
    }
    let tables = snapshot.tables().map_err(|e| e.to_string())?;
    if !tables.iter().eq(state.tables.keys()) {
        return Err(format!("tables {tables:?}, not {:?}", state.tables.keys()));
    }
    for (name, table) in &state.tables {
        same_table(snapshot, name, &table.rows, way)
            .map_err(|difference| format!("table {name:?} read {way:?}: {difference}"))?;
    }
    Ok(())
}

fn same_table(snapshot: &Snapshot, name: &str, rows: &Rows, way: Way) -> Result<(), String> {
    let fail = |error: bygone::Error| error.to_string();
    let table = snapshot.table(name).map_err(fail)?;
    let mut expected = rows.iter();
    match way {
        Way::ForEach => {
            let mut difference = Ok(());
            let each = |key: &[u8], value: &[u8]| {
                difference = same_record(Some((key, value)), expected.next());
                if difference.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            snapshot.for_each(&table, .., each).map_err(fail)?;
            difference?;
        }
        Way::Gets => {
            for (key, value) in expected.by_ref() {
                let found = snapshot.get(&table, key).map_err(fail)?;
                same_record(found.as_deref().map(|found| (&key[..], found)), Some((key, value)))?;
            }
        }
        Way::Forward | Way::Backward | Way::Inward => {
            let mut range = snapshot.range(&table, ..).map_err(fail)?;
            let mut from_back = matches!(way, Way::Backward);
            loop {
                let found = if from_back { range.next_back() } else { range.next() };
                let wanted = if from_back { expected.next_back() } else { expected.next() };
                let found = found.transpose().map_err(fail)?;
                same_record(found.as_ref().map(|(key, value)| (&key[..], &value[..])), wanted)?;
                if found.is_none() {
                    break;
                }
                from_back ^= matches!(way, Way::Inward);
            }
        }
    }
    same_record(None, expected.next())
}

pub fn same_record(
    found: Option<(&[u8], &[u8])>,
    expected: Option<(&Vec<u8>, &std::sync::Arc<Vec<u8>>)>,
) -> Result<(), String> {
    let expected = expected.map(|(key, value)| (&key[..], &value[..]));
    if found == expected {
        return Ok(());
    }
    let show = |record: Option<(&[u8], &[u8])>| match record {
        None => "nothing".to_owned(),
        Some((key, value)) => {
            let start = &value[..value.len().min(12)];
            format!("{:?} = {} bytes from {start:02x?}", key.escape_ascii().to_string(), value.len())
        }
    };
    Err(format!("found {}, not {}", show(found), show(expected)))
}
