//! Crashes: power cuts at every operation of the simulated disk, and child processes killed on the real one.
//!
//! Owns: the tests of what survives. Promises: a sample that is spread over all operations and names its
//! seed; all of them with `BYGONE_FULL=1`. May call: the engine's public face only.

#[path = "../support/mod.rs"]
mod support;

mod creation;
mod killed;
mod power;
mod steps;
mod window;
