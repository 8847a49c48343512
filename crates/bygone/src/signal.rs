//! How one thread tells another that there is work.
//!
//! Owns: [`Signal`]. Promises: a signal that is raised while nobody waits is not lost. May call: nothing of
//! the engine.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A flag that one thread waits for.
#[derive(Default)]
pub(crate) struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    raised: bool,
    closing: bool,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Raised,
    TimedOut,
    Closing,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn raise(&self) {
        self.lock().raised = true;
        self.changed.notify_all();
    }

    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    pub fn wait(&self, timeout: Duration) -> Woken {
        let mut state = self.lock();
        if !state.raised && !state.closing {
            state = self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        match (state.closing, std::mem::take(&mut state.raised)) {
            (true, _) => Woken::Closing,
            (false, true) => Woken::Raised,
            (false, false) => Woken::TimedOut,
        }
    }
}
