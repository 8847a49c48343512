//! Engines that keep their past.
//!
//! Owns: what suite `past` asks of an engine, and which engines can answer. Promises: reads answer what a suite needs
//! to tell which version of a record they found, so that each is checked, outside the clock.

use std::path::Path;

use anyhow::Result;

use crate::data::Key;

/// With the key a record has 108 bytes.
pub const VALUE_BYTES: usize = 108 - crate::data::KEY_BYTES;

/// The head of a value that is not there.
pub const MISSING: u64 = u64::MAX;

#[derive(Clone, Copy)]
pub struct Row {
    pub key: Key,
    pub value: [u8; VALUE_BYTES],
}

/// The first eight bytes of a value, by which a suite knows it.
#[inline]
pub fn head_of(value: &[u8]) -> u64 {
    value.first_chunk().map_or(MISSING, |head| u64::from_le_bytes(*head))
}

/// How to open an engine.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Memory for what was read.
    pub cache_bytes: usize,
    /// Memory of each memtable, for engines that have them.
    pub memtable_bytes: usize,
    /// Whether the past goes to a directory of its own, for engines that can split it from the present.
    pub split: bool,
    /// Whether the past is kept at all, for engines that keep either all of it or none.
    #[cfg_attr(not(any(feature = "rocksdb", feature = "wiredtiger")), allow(dead_code))]
    pub keeps: bool,
}

pub trait Keeper: Send + Sync {
    /// One transaction that puts these rows, buffered.
    fn commit(&self, rows: &[Row]) -> Result<()>;

    /// The same, after which the state that the commit made can be read for good; answers the state's number.
    fn commit_and_keep(&self, rows: &[Row]) -> Result<u64>;

    /// Reads of now, or as of a state that was kept, for one thread.
    fn view(&self, state: Option<u64>) -> Result<Box<dyn View + '_>>;

    /// Does all work that commits have put off.
    fn settle(&self) -> Result<()>;

    /// For engines that have a declared past.
    fn declared(&self) -> Option<&dyn Declared> {
        None
    }
}

pub trait View {
    /// Gets each of these keys; pushes the heads of their values.
    fn heads(&mut self, keys: &[Key], heads: &mut Vec<u64>) -> Result<()>;

    /// Goes through all rows; answers how many there are, and the sum of their heads.
    fn scan(&mut self) -> Result<(u64, u64)>;
}

/// What only engines have whose past can be opened, compared and deleted by the snapshot.
pub trait Declared {
    /// Opens each of these snapshots, and drops it.
    fn open_each(&self, snapshots: &[u64]) -> Result<()>;

    /// Hands the rows that differ to `each`: the key, the head before, and after.
    fn diff(&self, before: u64, after: u64, each: &mut dyn FnMut(&[u8], u64, u64)) -> Result<()>;

    fn delete(&self, snapshot: u64) -> Result<()>;

    fn footprint(&self) -> Result<Footprint>;
}

/// Bytes on the disk, and bytes that were written since the database was opened.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// The file of the present.
    pub base: u64,
    /// Of it, what only the past needs.
    pub kept_in_base: u64,
    pub history_runs: u64,
    pub pagelog: u64,
    pub page_map: u64,
    /// Pages in the pagelog.
    pub archived_pages: u64,
    /// What was committed.
    pub application: u64,
    /// What went to files.
    pub written: u64,
}

/// Opens an engine over an empty or its own directory; `None` if it keeps no past.
pub fn open(name: &str, dir: &Path, opening: Opening) -> Result<Option<Box<dyn Keeper>>> {
    std::fs::create_dir_all(dir)?;
    Ok(Some(match name {
        "bygone" => Box::new(super::bygone_past::Bygone::open(dir, opening)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(super::rocks_past::Timestamped::open(dir, opening)?),
        #[cfg(feature = "wiredtiger")]
        "wiredtiger" => Box::new(super::wiredtiger_past::Timestamped::open(dir, opening)?),
        _ => return Ok(None),
    }))
}
