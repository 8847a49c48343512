//! Reading beside the process that writes: leases, what they keep, and their end.
//!
//! Owns: the tests of `Options::read_only` and `Db::refresh` beside an owner. Promises: a sample that names its seed,
//! for as many seconds as `BYGONE_SECONDS` says where time decides. May call: the engine's public face only.

#[path = "../support/mod.rs"]
mod support;

mod faults;
mod killed;
mod past;
mod pruning;
mod races;
mod random;
mod usage;

use std::path::PathBuf;

use bygone::io::{Disk, SimDisk};

use support::PATH;

/// The lease files of a simulated database.
fn leases(disk: &SimDisk) -> Vec<PathBuf> {
    let directory = PathBuf::from(PATH).join("leases");
    let names = disk.list(&directory).unwrap_or_default();
    names.into_iter().map(|name| directory.join(name)).collect()
}
