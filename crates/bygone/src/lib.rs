//! Bygone: an embedded, transactional, ordered key-value store that keeps its past.
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(dead_code)] // SKELETON ONLY: goes when the modules are wired together.

mod base;
mod cache;
mod codec;
mod error;
pub mod io;
mod layer;
mod limits;
mod memtable;
mod run;
mod sync;
mod wal;

pub use error::{Error, Result};
