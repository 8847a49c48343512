//! SQL on Bygone through the Rust API.
//!
//! Owns: the modules. Promises: each is about what its name says. May call: the public API.

mod attach;
mod basics;
mod by_path;
mod changes;
mod crash;
mod differential;
mod diffs;
mod diffs_measured;
mod files;
mod layout;
mod layouts;
mod page_sizes;
mod past;
mod readers;
mod sets;
mod sets_measured;
mod sets_random;
mod sets_readers;
mod statements;
mod support;
