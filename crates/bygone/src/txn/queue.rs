//! The queue of commits that wait for a leader.
//!
//! Owns: tickets, and who leads. Promises: one thread leads at a time; while somebody waits, somebody leads or
//! is on its way to, also when the leader panics; nobody calls the system to wake a thread that does not sleep.
//! May call: `commit`'s words.
//!
//! Who finds nobody leading leads with its own commit in its hands: a commit that meets no other takes no ticket.
//!
//! **Handing on.** Commits may take a microsecond, and a thread that sleeps takes many of them to wake. If it were
//! made the leader in its sleep, all others would queue up behind its waking, fall asleep, too, and each commit
//! from then on would wait for a thread to be woken. So leadership goes to a waiting thread that is awake; if all
//! sleep, nobody leads while the first is being woken to try, and whoever comes by meanwhile leads, and takes those
//! who wait into its group. One who was passed over once gets leadership for good: nobody starves.
//!
//! **Lock order**: the queue, then a ticket's state.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::commit::{Accepted, Request, lock};
use super::record::{Encoded, Place};
use crate::error::Error;
use crate::wal::{GROUP_COMMITS_MAX, Payload};

/// A leader takes no more into its group once the group's log record has this many bytes.
const GROUP_BYTES_SOFT: usize = 1 << 20;

/// How often a thread that waits looks before it sleeps. At first the processor is told to take it easy between
/// two looks; then another thread may have it, which may be the one that is waited for.
const LOOKS: u32 = 40;
const LOOKS_IN_PLACE: u32 = 20;
const PAUSES_A_LOOK: u32 = 10;

/// How long a waiting thread sleeps before it looks whether the database was poisoned.
const RECHECK: Duration = Duration::from_millis(100);

/// A commit that has no place yet.
pub(super) struct Pending {
    pub request: Request,
    /// Its record for the log, without its place.
    pub encoded: Encoded,
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
    /// Nobody led when this was said. It may be that somebody does now.
    Try,
    Refused(Error),
    /// It has its place in the log; its thread puts it into the memtable.
    Accepted(Box<Accepted>),
    /// It is in the memtable, too.
    Inserted(Place),
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
    /// It was told to try once.
    tried: bool,
}

impl Pending {
    /// A commit that changes the catalogue of tables, or snapshots that are declared already, is a group of its
    /// own: the others are validated entirely before or after it.
    fn stands_alone(&self) -> bool {
        self.request.marks.stands_alone()
    }
}

impl Payload for &Pending {
    fn bytes(&self) -> usize {
        self.encoded.bytes()
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.encoded.pieces(&self.request.writes)
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
            bytes: pending.encoded.bytes(),
            stands_alone: pending.stands_alone(),
            state: Mutex::new(State {
                pending: Some(Box::new(pending)),
                word: None,
                sleeps: false,
                tried: false,
            }),
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
        let mut bytes = own.encoded.bytes();
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

    /// Waits for a word, which is never to try. Whoever should give it may have panicked, so `is_given_up` is asked
    /// now and then once the commit is in somebody's hands: `None` if it says yes and there is no word.
    pub fn wait(&self, ticket: &Arc<Ticket>, is_given_up: impl Fn() -> bool) -> Option<Word> {
        loop {
            match ticket.wait(&is_given_up)? {
                Word::Try => {
                    if let Some(own) = self.try_to_lead(ticket) {
                        return Some(Word::Lead(own));
                    }
                }
                word => return Some(word),
            }
        }
    }

    /// Leads with the commit of a ticket that waits, unless somebody leads already.
    fn try_to_lead(&self, ticket: &Arc<Ticket>) -> Option<Box<Pending>> {
        let mut queue = lock(&self.queue);
        if queue.led {
            return None;
        }
        let place = queue.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, ticket))?;
        queue.waiting.remove(place);
        queue.led = true;
        // In a queue it is in nobody's hands.
        ticket.take()
    }
}

/// Hands leadership on, also when the leader panics.
pub(super) struct Leadership<'q>(&'q CommitQueue);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        let next = queue.waiting.iter().position(|ticket| ticket.takes_the_lead()).or_else(|| {
            let passed_over = queue.waiting.front().is_some_and(|ticket| !ticket.is_first_try());
            passed_over.then_some(0)
        });
        if let Some(next) = next.and_then(|place| queue.waiting.remove(place)) {
            drop(queue);
            next.tell_to_lead();
            return;
        }
        queue.led = false;
        let first = queue.waiting.front().cloned();
        drop(queue);
        if let Some(first) = first {
            first.tell_to_try();
        }
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

    /// Whether its thread is awake.
    fn takes_the_lead(&self) -> bool {
        !lock(&self.state).sleeps
    }

    /// Whether it is told to try for the first time, which it is from now on.
    fn is_first_try(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).tried, true)
    }

    /// In one step: a commit that is in nobody's hands has a thread that will lead, whatever happens meanwhile.
    fn tell_to_lead(&self) {
        self.tell_with(|pending| pending.take().map(Word::Lead));
    }

    /// Says nothing if the commit was taken in hand meanwhile: then there is or will be another word.
    fn tell_to_try(&self) {
        self.tell_with(|pending| pending.is_some().then_some(Word::Try));
    }

    fn tell_with(&self, word: impl FnOnce(&mut Option<Box<Pending>>) -> Option<Word>) {
        let mut state = lock(&self.state);
        let Some(word) = word(&mut state.pending) else { return };
        state.word = Some(word);
        let sleeps = state.sleeps;
        drop(state);
        // A thread says that it sleeps under the lock, so who does not say so has yet to look at the word.
        if sleeps {
            self.changed.notify_one();
        }
    }

    fn wait(&self, is_given_up: impl Fn() -> bool) -> Option<Word> {
        if let Some(word) = look(|| lock(&self.state).word.take()) {
            return Some(word);
        }
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

/// Looks a few times whether there is something yet.
pub(super) fn look<T>(mut there: impl FnMut() -> Option<T>) -> Option<T> {
    for count in 0..LOOKS {
        if let Some(found) = there() {
            return Some(found);
        }
        if count < LOOKS_IN_PLACE {
            (0..PAUSES_A_LOOK).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
    }
    None
}

/// Sleeps until it is woken, or for a while.
pub(super) fn sleep<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, RECHECK).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::commit::Durability;
    use crate::txn::record::Marks;
    use crate::txn::write_set::Writes;

    fn pending() -> Pending {
        let request = Request {
            writes: Writes::one(1, b"key", Some(b"value")),
            hashes: vec![1],
            marks: Marks::default(),
            tables: Vec::new(),
            read: None,
            reads: None,
            durability: Durability::Buffered,
        };
        Pending { request, encoded: Encoded::default() }
    }

    fn leads(queue: &CommitQueue) -> bool {
        matches!(queue.join(pending()), Joined::Leads(_))
    }

    fn waits(queue: &CommitQueue, sleeps: bool) -> Arc<Ticket> {
        let Joined::Waits(ticket) = queue.join(pending()) else { panic!("somebody leads") };
        lock(&ticket.state).sleeps = sleeps;
        ticket
    }

    fn word(ticket: &Ticket) -> Option<Word> {
        lock(&ticket.state).word.take()
    }

    #[test]
    fn who_is_awake_leads_before_who_came_first() {
        let queue = CommitQueue::default();
        assert!(leads(&queue));
        let (asleep, awake) = (waits(&queue, true), waits(&queue, false));
        drop(queue.lead());
        assert!(word(&asleep).is_none());
        assert!(matches!(word(&awake), Some(Word::Lead(_))));
        assert!(!leads(&queue), "the other one does");
    }

    #[test]
    fn nobody_leads_in_its_sleep_but_who_was_passed_over() {
        let queue = CommitQueue::default();
        assert!(leads(&queue));
        let (first, second) = (waits(&queue, true), waits(&queue, true));
        drop(queue.lead());
        assert!(matches!(word(&first), Some(Word::Try)));
        // Somebody comes by before it is awake.
        assert!(leads(&queue));
        assert!(queue.try_to_lead(&first).is_none());
        drop(queue.lead());
        assert!(matches!(word(&first), Some(Word::Lead(_))));
        assert!(word(&second).is_none());
        assert!(!leads(&queue));
    }

    #[test]
    fn who_tries_and_finds_nobody_leading_leads() {
        let queue = CommitQueue::default();
        assert!(leads(&queue));
        let (first, second) = (waits(&queue, true), waits(&queue, true));
        drop(queue.lead());
        assert!(queue.try_to_lead(&first).is_some());
        let group = queue.take_group(&pending());
        assert!(group.len() == 1 && Arc::ptr_eq(&group[0], &second));
        drop(queue.lead());
        assert!(leads(&queue), "nobody waits");
    }

    #[test]
    fn a_commit_in_a_group_is_not_led_with() {
        let queue = CommitQueue::default();
        assert!(leads(&queue));
        let ticket = waits(&queue, true);
        drop(queue.lead());
        assert!(leads(&queue));
        let group = queue.take_group(&pending());
        assert!(group[0].take().is_some());
        drop(queue.lead());
        assert!(queue.try_to_lead(&ticket).is_none());
        // The word to try is still there; the last word counts.
        ticket.tell_to_try();
        ticket.tell(Word::Refused(Error::NotFound { path: "db".into() }));
        assert!(matches!(word(&ticket), Some(Word::Refused(_))));
    }
}
