//! Whose slot it is, in one word.
//!
//! Owns: the owner's mark with the two facts that lie in its low bits. Promises: who gives a view back needs
//! this word only to know what to do, and it fits into the cache line of the slot's counts. May call: nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Which thread it is; the address of something that only it has, aligned so that [`FACTS`] are clear. 0 is
/// none.
pub(crate) type ThreadMark = usize;

/// The slot is on its owner's stack of slots that may be idle.
const LISTED: usize = 1;
/// Views in the slot may be ended from outside: then the layers are touched only under the lease.
const EXPIRES: usize = 2;
const FACTS: usize = LISTED | EXPIRES;

/// Written by the owner's thread, or under the registry's lock while nobody owns the slot. Everything is
/// relaxed: the mark is equal only to the owner's own, which wrote it or got it with the slot, and a thread's
/// slots lose their owner before it ends; what else the word says only the owner asks for, except whether
/// views expire, which is set before the slot is ever pinned for the registry.
pub(super) struct OwnerWord(AtomicUsize);

impl OwnerWord {
    pub const fn nobody() -> OwnerWord {
        OwnerWord(AtomicUsize::new(0))
    }

    /// Gives the slot, which nobody owns, to a thread or to nobody.
    pub fn set(&self, thread: ThreadMark, expires: bool) {
        debug_assert_eq!(thread & FACTS, 0);
        self.0.store(thread | if expires { EXPIRES } else { 0 }, Ordering::Relaxed);
    }

    /// Makes it nobody's if it is this thread's: the slot of a closed database may be another's by now.
    pub fn leave(&self, thread: ThreadMark) {
        let word = self.0.load(Ordering::Relaxed);
        if word & !FACTS == thread {
            // Exchanged: only for who takes the slot of a closed database at this moment; then it is theirs.
            let _ = self.0.compare_exchange(word, word & EXPIRES, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn is(&self, thread: ThreadMark) -> bool {
        self.0.load(Ordering::Relaxed) & !FACTS == thread
    }

    #[inline]
    pub fn expires(&self) -> bool {
        self.0.load(Ordering::Relaxed) & EXPIRES != 0
    }

    /// For the owner.
    #[inline]
    pub fn is_listed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LISTED != 0
    }

    /// For the owner, who alone writes the word: a load and a store will do.
    #[inline]
    pub fn set_listed(&self, listed: bool) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(if listed { word | LISTED } else { word & !LISTED }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_do_not_change_whose_slot_it_is() {
        let word = OwnerWord::nobody();
        word.set(64, true);
        assert!(word.is(64) && word.expires() && !word.is_listed());
        word.set_listed(true);
        assert!(word.is(64) && word.expires() && word.is_listed());
        word.set_listed(false);
        assert!(word.is(64) && word.expires() && !word.is_listed());
        word.set(128, false);
        assert!(word.is(128) && !word.expires());
    }

    #[test]
    fn only_its_own_thread_leaves_a_slot() {
        let word = OwnerWord::nobody();
        word.set(64, true);
        word.set_listed(true);
        word.leave(128);
        assert!(word.is(64) && word.is_listed());
        word.leave(64);
        assert!(word.is(0) && word.expires() && !word.is_listed());
    }
}
