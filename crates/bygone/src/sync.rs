//! The one place that decides between the standard library's atomics and `loom`'s.
//!
//! Owns: nothing. Promises: code that takes its atomics from here is the very code that ships when built
//! plainly, and the very code that `loom` explores when built with `--cfg loom`.

#[allow(unused_imports)]
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic};

#[allow(unused_imports)]
#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic};
