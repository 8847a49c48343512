//! Relief: pages that only held views need leave the file of the present.
//!
//! Owns: how many may stay, and how long a merge waits for the others to go. Promises: while somebody reads, the
//! file grows by no more than a small part of the base, if the history directory takes what is moved; a merge never
//! waits for a slow one longer than [`PATIENCE`], and then not again for some time. May call: everything below db.
//!
//! A merge asks between its steps, because it could use the slots at once. With background threads one of their own
//! does it, so that a disk that does not answer holds up nobody but that thread.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::limits::PAGE_BYTES;

/// How many pages are moved at once.
pub(super) const RELIEF_PAGES: usize = 1024;

/// So many pages may be kept in their slots only for views: a number, or a part of the base, whichever is more. Most
/// views end before it would be worth moving anything.
const VIEW_PAGES_MIN: u64 = 64;
const VIEW_PART: u64 = 128;

/// How long a merge waits at one step.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who asks and who moves.
#[derive(Default)]
pub(crate) struct Relief {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often was asked, and up to which time of asking all was moved.
    asked: u64,
    done: u64,
    closing: bool,
    /// When somebody waited in vain.
    in_vain: Option<Instant>,
}

impl Relief {
    /// Asks, and waits for a while; whether it was done.
    fn ask(&self, retry_after: Duration) -> bool {
        let mut state = lock(&self.state);
        state.asked += 1;
        let ticket = state.asked;
        self.changed.notify_all();
        if state.in_vain.is_some_and(|at| at.elapsed() < retry_after) {
            return true;
        }
        let waits = |state: &mut State| state.done < ticket && !state.closing;
        let (mut state, outcome) =
            self.changed.wait_timeout_while(state, PATIENCE, waits).unwrap_or_else(PoisonError::into_inner);
        state.in_vain = outcome.timed_out().then(Instant::now);
        !outcome.timed_out()
    }

    /// Waits until somebody asks; `None` if the database is being closed.
    pub fn wait(&self) -> Option<u64> {
        let state = lock(&self.state);
        let idle = |state: &mut State| state.done == state.asked && !state.closing;
        let state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        (!state.closing).then_some(state.asked)
    }

    /// All is moved that could be, as of this time of asking.
    pub fn done(&self, ticket: u64) {
        lock(&self.state).done = ticket;
        self.changed.notify_all();
    }

    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}

impl Engine {
    /// Lets pages that only views need be moved to the archive, if they are many.
    pub fn relieve(&self) {
        if !self.wants_relief() {
            return;
        }
        if !self.options.background {
            return self.relieve_now();
        }
        if !self.relief.ask(super::archive::RETRY_AFTER) {
            let cause = format!("it did not take in {} s what views need", PATIENCE.as_secs());
            let path = self.past.directory.clone();
            self.note_archive_failure(Error::HistoryUnavailable { path, cause });
        }
    }

    fn wants_relief(&self) -> bool {
        if self.store.archive().is_none() || self.history_failed_lately() {
            return false;
        }
        let allowed = VIEW_PAGES_MIN.max(self.base_bytes() / PAGE_BYTES as u64 / VIEW_PART);
        self.store.kept_for_views() > allowed
    }

    /// The same at once. A failure is noted.
    pub fn relieve_now(&self) {
        while self.wants_relief() {
            match self.store.relieve(RELIEF_PAGES) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return self.note_archive_failure(error),
            }
        }
    }
}

/// What the thread does that moves pages for merges.
pub(super) fn relief_loop(engine: &Engine) -> Result<()> {
    while let Some(ticket) = engine.relief.wait() {
        engine.relieve_now();
        engine.relief.done(ticket);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn who_asks_waits_until_it_is_done_and_not_twice_in_vain() {
        let relief = Arc::new(Relief::default());
        let mover = relief.clone();
        let thread = std::thread::spawn(move || {
            while let Some(ticket) = mover.wait() {
                mover.done(ticket);
            }
        });
        for _ in 0..100 {
            assert!(relief.ask(Duration::from_secs(60)));
        }
        relief.close();
        thread.join().unwrap();

        let slow = Relief::default();
        let started = Instant::now();
        assert!(!slow.ask(Duration::from_secs(60)));
        assert!(slow.ask(Duration::from_secs(60)) && slow.ask(Duration::from_secs(60)));
        assert!(started.elapsed() < 2 * PATIENCE);
    }
}
