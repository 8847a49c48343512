//! The engines: one file each.
//!
//! Owns: what a suite may ask of an engine. Promises: each engine is driven in the way its own manual calls
//! fast for the case. Loops that take
//! nanoseconds a turn are the engine's own, so that no virtual call is measured with them.

#[cfg(feature = "art")]
mod art;
#[cfg(feature = "sql")]
mod bdbsql;
mod bygone;
mod bygone_past;
#[cfg(feature = "sql")]
mod bygone_sql;
#[cfg(feature = "canopydb")]
mod canopydb;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "lmdb")]
mod lmdb_snapshots;
mod memtable;
pub mod operations;
pub mod past;
#[cfg(feature = "redb")]
mod redb;
#[cfg(any(feature = "rocksdb", feature = "speedb"))]
mod rocks;
#[cfg(feature = "rocksdb")]
mod rocks_past;
#[cfg(any(feature = "rocksdb", feature = "speedb"))]
mod rocks_snapshots;
#[cfg(feature = "skiplist")]
mod skiplist;
pub mod snapshots;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sql")]
mod stock_sql;
#[cfg(feature = "wiredtiger")]
mod wiredtiger;
#[cfg(feature = "wiredtiger")]
mod wiredtiger_past;

#[cfg(all(feature = "rocksdb", feature = "speedb"))]
compile_error!("rocksdb and speedb have symbols in common: a program has one of them");

use std::path::Path;

use anyhow::{Result, bail};

use crate::data::{Key, Record};
use operations::Worker;

/// How to open an engine.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Memory for what was read, if the engine has a cache of its own.
    pub cache_bytes: usize,
    /// Memory for what was written last, of each memtable; `None` leaves it to the engine, as do those without
    /// memtables.
    pub memtable_bytes: Option<usize>,
    /// Whether the past goes to a directory of its own, beside the other, for engines that can split it from the
    /// present.
    pub split: bool,
}

/// How durable a commit is when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power cut loses nothing.
    Sync,
    /// The end of the process loses nothing, or the nearest to that which the engine has: see the engine.
    Buffered,
}

/// How records are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Key and value may be kept: copied, or counted.
    Owned,
    /// Only looked at, the fastest way there is.
    Borrowed,
}

/// Bytes since the engine was opened, as it tells itself.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Keys and values that were committed.
    pub application_bytes: u64,
    /// What went to files.
    pub file_bytes: u64,
}

pub trait Engine: Send + Sync {
    /// One transaction that puts these records.
    fn commit(&self, records: &[Record], durability: Durability) -> Result<()>;

    /// Reads of the present, for one thread.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Begins and drops a read of the present, this many times.
    fn begin_and_drop(&self, count: u64) -> Result<()>;

    /// Waits until the work that commits have put off is no more than what goes on at any moment of steady
    /// writing.
    fn catch_up(&self) -> Result<()>;

    /// Does all work that commits have put off: afterwards reads are as fast as they get.
    fn settle(&self) -> Result<()>;

    fn written(&self) -> Result<Option<Written>> {
        Ok(None)
    }

    /// For engines that keep their past.
    fn past(&self) -> Option<&dyn Past> {
        None
    }

    /// For engines with memtables.
    fn worker(&self) -> Option<&dyn Worker> {
        None
    }
}

pub trait Reader {
    /// Gets each of these keys; answers how many bytes of values there were.
    fn get_all(&self, keys: &[Key], access: Access) -> Result<u64>;

    /// Goes through all records; answers how many there are.
    fn scan(&self, access: Access) -> Result<u64>;
}

pub trait Past {
    /// Commits, and declares a snapshot of exactly this commit; answers its id.
    fn commit_and_declare(&self, records: &[Record]) -> Result<u64>;

    /// Reads as of a declared snapshot.
    fn as_of(&self, id: u64) -> Result<Box<dyn Reader + '_>>;

    /// Bytes on the disk that only the past needs.
    fn history_bytes(&self) -> Result<u64>;
}

/// Whether this program has the engine in it; else one built with the feature of its name has.
pub fn is_built_in(name: &str) -> bool {
    match name {
        "bygone" => true,
        "redb" => cfg!(feature = "redb"),
        "fjall" => cfg!(feature = "fjall"),
        "lmdb" | "lmdb-renew" => cfg!(feature = "lmdb"),
        "canopydb" => cfg!(feature = "canopydb"),
        "sqlite" => cfg!(feature = "sqlite"),
        "wiredtiger" => cfg!(feature = "wiredtiger"),
        "rocksdb" => cfg!(feature = "rocksdb"),
        "speedb" => cfg!(all(feature = "speedb", not(feature = "speedb-snap"))),
        "speedb-snap" => cfg!(feature = "speedb-snap"),
        "skiplist" => cfg!(feature = "skiplist"),
        "art" => cfg!(feature = "art"),
        _ => false,
    }
}

/// Whether this program was built with a feature that is no engine's.
pub fn is_feature_built_in(feature: &str) -> bool {
    feature == "sql" && cfg!(feature = "sql")
}

/// Opens an engine over an empty or its own directory.
pub fn open(name: &str, dir: &Path, setup: Setup) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(dir)?;
    Ok(match name {
        "bygone" => Box::new(bygone::Bygone::open(dir, setup)?),
        #[cfg(feature = "redb")]
        "redb" => Box::new(redb::Redb::open(dir, setup)?),
        #[cfg(feature = "fjall")]
        "fjall" => Box::new(fjall::Fjall::open(dir, setup)?),
        #[cfg(feature = "lmdb")]
        "lmdb" => Box::new(lmdb::Lmdb::open(dir, setup)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocks::Rocks::open(dir, setup)?),
        #[cfg(feature = "speedb")]
        "speedb" => Box::new(rocks::Rocks::open(dir, setup)?),
        _ => bail!("no engine {name}"),
    })
}

/// How to make a structure that is in memory alone.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What it may take, if that is to be said before.
    pub bytes: usize,
    /// Whether the operating system has been made to give it before, where that can be done.
    pub touched: bool,
}

/// Makes the ordered map of this name; `None` if it is not one, or not alone.
pub fn alone(name: &str, memory: Memory) -> Result<Option<Box<dyn Worker>>> {
    Ok(Some(match name {
        "bygone" => Box::new(memtable::Memtable::new(memory.bytes, memory.touched)),
        #[cfg(feature = "skiplist")]
        "skiplist" => Box::new(skiplist::SkipList::default()),
        #[cfg(feature = "art")]
        "art" => Box::new(art::Art::new(memory.bytes, memory.touched)?),
        _ => return Ok(None),
    }))
}
