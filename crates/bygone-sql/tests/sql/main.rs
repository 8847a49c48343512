//! SQL on Bygone through the Rust API.
//!
//! Owns: the modules. Promises: each is about what its name says. May call: the public API.

mod attach;
mod basics;
mod layout;
mod past;
mod readers;
mod statements;
mod support;
