//! Streams: what differs between two declared snapshots, as bytes that go from one database to another.
//!
//! Owns: the stream's format (`docs/format/stream.md`), and the file in which a database gathers one until it is
//! whole. Promises: the same two snapshots give the same bytes, so that a stream can be taken up where it broke off;
//! a chunk that is damaged, left out or out of place is noticed before anything in it is used. May call: `io`,
//! `codec`, `limits`, `error`.

mod chunk;
mod head;
mod spool;

pub(crate) use chunk::{Changes, ChunkWriter, Kind};
pub(crate) use head::Head;
pub(crate) use spool::{Spool, SpoolReader};
