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

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// `std::cell::UnsafeCell` with the interface of `loom`'s.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
