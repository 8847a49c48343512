//! Whether somebody scans.
//!
//! Owns: [`Scans`]. Promises: a scan that notes itself writes to memory that others read only if it is the first
//! for a while. May call: nothing of the engine.
//!
//! A get asks the filters of the runs, and most say no. A scan has to find its place in every run: many runs cost
//! writers nothing, but they cost those who scan. So the backlog wants to know.

use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Scans {
    noted: AtomicBool,
}

impl Scans {
    /// Somebody looks for a place in runs.
    #[inline]
    pub fn note(&self) {
        // Relaxed, here and below: nothing is published through it, and a scan that is missed or counted twice
        // moves a limit a little later or earlier.
        if !self.noted.load(Ordering::Relaxed) {
            self.noted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether anybody did since this was asked for the last time.
    pub fn take(&self) -> bool {
        self.noted.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_count_once() {
        let scans = Scans::default();
        assert!(!scans.take());
        scans.note();
        scans.note();
        assert!(scans.take());
        assert!(!scans.take());
    }
}
