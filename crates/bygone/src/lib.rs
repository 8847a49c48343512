//! Bygone: an embedded, transactional, ordered key-value store that keeps its past.
//!
//! An application commits, declares snapshots, and from then on reads the whole database as of any of them,
//! beside live traffic and with the code it already has: [`Db::as_of`] gives the same [`Snapshot`] that
//! [`Db::snapshot`] gives of the present.
//!
//! ```
//! use bygone::{Db, Result};
//!
//! # fn main() -> Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("bank");
//! let db = Db::open(&path)?;
//! let accounts = db.table("accounts")?;
//! db.put(&accounts, "alice", "100")?;
//! db.snapshot_now("before-fees")?;
//!
//! let mut tx = db.begin()?;
//! tx.put(&accounts, "alice", "90")?;
//! tx.commit()?;
//!
//! assert_eq!(db.get(&accounts, "alice")?.as_deref(), Some(&b"90"[..]));
//! assert_eq!(db.as_of("before-fees")?.get(&accounts, "alice")?.as_deref(), Some(&b"100"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! What is inside, and why, is told in `ARCHITECTURE.md`.
#![deny(unsafe_op_in_unsafe_fn)]
#![deny(missing_docs)]

// What the tests of the public face share with those in here names it so.
#[cfg(test)]
extern crate self as bygone;

mod archive;
mod base;
mod cache;
mod codec;
mod db;
mod error;
mod health;
mod hint;
mod history;
mod ids;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
pub mod io;
mod layer;
mod lease;
pub mod limits;
mod memtable;
mod mutation;
mod pages;
#[cfg(test)]
#[path = "../tests/support/random.rs"]
mod random;
mod registry;
mod run;
mod signal;
mod snapshot;
mod stream;
mod sync;
mod txn;
mod utc;
mod value;
mod wal;

pub use db::{Db, Options, Receiving, Restored, SnapshotSize, Stats, VerifyReport};
pub use error::{Error, Result, SnapshotDeletion};
pub use history::of_key::History;
pub use history::retention::Retention;
pub use history::{SnapshotInfo, SnapshotRef};
pub use ids::{ResumePoint, Seq, SnapshotId, Window};
pub use snapshot::{Change, Diff, HeldSnapshot, Range, Snapshot, Table};
pub use txn::{Durability, Transaction, TransactionRange};
pub use value::Value;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
