//! The queue of commits that wait for a leader.
//!
//! Owns: tickets, and who leads. Promises: one thread leads at a time; leadership goes on to the first who
//! waits, also when the leader panics; nobody calls the system to wake a thread that does not sleep. May call:
//! `commit`'s words.
//!
//! Who finds nobody leading leads with its own commit in its hands: a commit that meets no other takes no ticket.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::commit::{Accepted, Request, lock};
use crate::error::Error;
use crate::wal::GROUP_COMMITS_MAX;

/// A leader takes no more into its group once the group's log record has this many bytes.
const GROUP_BYTES_SOFT: usize = 1 << 20;

/// How long a waiting thread sleeps before it looks whether the database was poisoned.
const RECHECK: Duration = Duration::from_millis(100);

/// A commit that has no place yet.
pub(super) struct Pending {
    pub request: Request,
    /// Its record for the log, without its place.
    pub encoded: Vec<u8>,
}

/// What a thread is told that brought a commit.
#[allow(clippy::large_enum_variant)] // The large one is the usual one, and lives on the stack: no allocation.
pub(super) enum Joined {
    /// It leads, its own commit being the first of the group.
    Leads(Pending),
    Waits(Arc<Ticket>),
}

/// What became of waiting.
pub(super) enum Word {
    /// It leads, its own commit being the first of the group.
    Lead(Box<Pending>),
    Refused(Error),
    Accepted(Box<Accepted>),
}

#[derive(Default)]
pub(super) struct CommitQueue {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Ticket>>,
    led: bool,
}

/// A commit in the queue.
pub(super) struct Ticket {
    /// Bytes of the encoded commit: bounds the group.
    bytes: usize,
    stands_alone: bool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Until some leader takes it in hand.
    pending: Option<Box<Pending>>,
    word: Option<Word>,
    /// Its thread sleeps, or is about to.
    sleeps: bool,
}

impl Pending {
    /// A commit that changes the catalogue of tables, or snapshots that are declared already, is a group of its
    /// own: the others are validated entirely before or after it.
    fn stands_alone(&self) -> bool {
        self.request.marks.stands_alone()
    }
}

impl CommitQueue {
    pub fn join(&self, pending: Pending) -> Joined {
        let mut queue = lock(&self.queue);
        if !queue.led {
            queue.led = true;
            return Joined::Leads(pending);
        }
        let ticket = Arc::new(Ticket {
            bytes: pending.encoded.len(),
            stands_alone: pending.stands_alone(),
            state: Mutex::new(State { pending: Some(Box::new(pending)), word: None, sleeps: false }),
            changed: Condvar::new(),
        });
        queue.waiting.push_back(ticket.clone());
        Joined::Waits(ticket)
    }

    /// Who goes into one group with the leader's own commit, in order.
    pub fn take_group(&self, own: &Pending) -> Vec<Arc<Ticket>> {
        if own.stands_alone() {
            return Vec::new();
        }
        let mut queue = lock(&self.queue);
        let mut bytes = own.encoded.len();
        let mut count = 0;
        for ticket in &queue.waiting {
            let full = count + 1 == GROUP_COMMITS_MAX || bytes + ticket.bytes > GROUP_BYTES_SOFT;
            if ticket.stands_alone || full {
                break;
            }
            bytes += ticket.bytes;
            count += 1;
        }
        queue.waiting.drain(..count).collect()
    }

    /// Ends a thread's leadership when it is dropped.
    pub fn lead(&self) -> Leadership<'_> {
        Leadership(self)
    }
}

/// Hands leadership on, also when the leader panics.
pub(super) struct Leadership<'q>(&'q CommitQueue);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        let Some(next) = queue.waiting.pop_front() else {
            queue.led = false;
            return;
        };
        drop(queue);
        next.tell_to_lead();
    }
}

impl Ticket {
    /// The commit; once.
    pub fn take(&self) -> Option<Box<Pending>> {
        lock(&self.state).pending.take()
    }

    pub fn tell(&self, word: Word) {
        self.tell_with(|_| Some(word));
    }

    /// In one step: a commit that is in nobody's hands has a thread that will lead, whatever happens meanwhile.
    fn tell_to_lead(&self) {
        self.tell_with(|pending| pending.take().map(Word::Lead));
    }

    fn tell_with(&self, word: impl FnOnce(&mut Option<Box<Pending>>) -> Option<Word>) {
        let mut state = lock(&self.state);
        state.word = word(&mut state.pending);
        let sleeps = state.sleeps;
        drop(state);
        // A thread says that it sleeps under the lock, so who does not say so has yet to look at the word.
        if sleeps {
            self.changed.notify_one();
        }
    }

    /// Waits for a word. Whoever should give it may have panicked, so `is_given_up` is asked now and then once
    /// the commit is in somebody's hands: `None` if it says yes and there is no word.
    pub fn wait(&self, is_given_up: impl Fn() -> bool) -> Option<Word> {
        let mut state = lock(&self.state);
        loop {
            if let Some(word) = state.word.take() {
                return Some(word);
            }
            if state.pending.is_none() && is_given_up() {
                return None;
            }
            state.sleeps = true;
            state = sleep(&self.changed, state);
            state.sleeps = false;
        }
    }
}

/// Sleeps until it is woken, or for a while.
pub(super) fn sleep<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, RECHECK).unwrap_or_else(PoisonError::into_inner).0
}
