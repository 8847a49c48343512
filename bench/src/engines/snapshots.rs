//! Engines whose snapshots are taken and let go at a high rate.
//!
//! Owns: what suite `snapshots` asks of an engine, and which engines can answer. Promises: a thread keeps from one
//! snapshot to the next whatever the engine's manual lets it keep (a session, a transaction object, a cursor, a
//! statement), and the loops of nanoseconds are the engine's own, so that no virtual call is measured with them.
//!
//! A snapshot here is whatever the engine has to read one unchanging state of the database: a snapshot, a view, or
//! a read transaction.

use std::path::Path;

use anyhow::{Result, bail};

use crate::data::{Key, Record};

/// How to open an engine.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Memory for what was read, if the engine has a cache of its own.
    pub cache_bytes: usize,
    /// Whether a thread holds many snapshots at a time, or hands them on to another. LMDB is faster if not.
    #[cfg_attr(not(feature = "lmdb"), allow(dead_code))]
    pub many: bool,
    /// Memory of each memtable, for engines that have them; `None` leaves it to the engine.
    pub memtable_bytes: Option<usize>,
    /// Whether pages that only held snapshots need go to a directory of their own, beside the other, for engines that
    /// can split the past from the present.
    pub split: bool,
}

pub trait Snapshots: Send + Sync {
    /// One transaction that puts these records, buffered.
    fn put(&self, records: &[Record]) -> Result<()>;

    /// Does all work that puts have put off.
    fn settle(&self) -> Result<()>;

    /// Makes what was put durable, for engines that use the space of what was replaced again only then.
    fn make_durable(&self) -> Result<()> {
        Ok(())
    }

    /// The files of the directory that hold the records; none if that is not to be told from other files.
    fn data_files(&self) -> &'static [&'static str] {
        &[]
    }

    /// Snapshots for one thread, which makes it and uses it alone.
    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>>;

    /// How many snapshots can be held at a time.
    fn held_max(&self) -> usize {
        usize::MAX
    }

    /// Whether a snapshot may be handed to another thread, which then lets it go.
    fn can_move(&self) -> bool {
        true
    }
}

pub trait Taker<'e> {
    /// Takes a snapshot and lets it go, this many times.
    fn pairs(&mut self, count: usize) -> Result<()>;

    /// For each key takes a snapshot, gets the key's value from it, and lets it go; answers how many bytes of values
    /// there were.
    fn get_each(&mut self, keys: &[Key]) -> Result<u64>;

    /// Takes a snapshot, reads one key from it, and lets it go.
    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>>;

    /// Takes these many snapshots, to be held until what is answered is dropped: on any thread, if the engine can
    /// move them.
    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>>;
}

/// Snapshots that are held.
pub trait Held: Send {
    /// Reads a key from one of them.
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>>;
}

/// Opens an engine over an empty or its own directory.
pub fn open(name: &str, dir: &Path, opening: Opening) -> Result<Box<dyn Snapshots>> {
    std::fs::create_dir_all(dir)?;
    let setup = super::Setup {
        cache_bytes: opening.cache_bytes,
        memtable_bytes: opening.memtable_bytes,
        split: opening.split,
    };
    Ok(match name {
        "bygone" => Box::new(super::bygone::Bygone::open(dir, setup)?),
        #[cfg(feature = "redb")]
        "redb" => Box::new(super::redb::Redb::open(dir, setup)?),
        #[cfg(feature = "fjall")]
        "fjall" => Box::new(super::fjall::Fjall::open(dir, setup)?),
        #[cfg(feature = "lmdb")]
        "lmdb" | "lmdb-renew" => super::lmdb_snapshots::open(name, dir, opening)?,
        #[cfg(any(feature = "rocksdb", feature = "speedb"))]
        "rocksdb" | "speedb" | "speedb-snap" => super::rocks_snapshots::open(name, dir, setup)?,
        #[cfg(feature = "canopydb")]
        "canopydb" => Box::new(super::canopydb::Canopy::open(dir, opening)?),
        #[cfg(feature = "wiredtiger")]
        "wiredtiger" => Box::new(super::wiredtiger::WiredTiger::open(dir, opening)?),
        #[cfg(feature = "sqlite")]
        "sqlite" => Box::new(super::sqlite::Sqlite::open(dir, opening)?),
        _ => bail!("no engine {name}"),
    })
}
