//! A slot: the note that a view is held, written by its owner's thread with plain stores.
//!
//! Owns: the protocol of one slot. Promises: pinning and unpinning on the owner's thread execute no locked
//! instruction and no fence; any thread may add and give back pins; the contents are written only while
//! nobody has a pin. May call: `fence`,
//! `owner`.
//!
//! **Counting.** After biased reference counting (Choi, Shull and Torrellas, PACT 2018): the owner's thread
//! counts its pins in words that only it writes, all other threads in words of atomic additions. Each side
//! counts what was taken and what was given back apart, and both only grow. So anybody may find out without
//! stopping anybody whether the slot is idle: read what was given back, then what was taken; if they are
//! equal, every pin whose taking can be seen has ended, and a pin that cannot be seen would have to be a copy
//! of another one that cannot be seen, and so on down to the one that the owner took from an idle slot. Only
//! that one needs a fence.
//!
//! **Announce and confirm.** The owner takes an idle slot by announcing the pin, then looking whether it
//! really is idle and without marks. Whoever wants to clear a slot behind its owner's back sets
//! [`FORGET`] first, passes the heavy fence, then looks for pins. So either the owner sees the mark, or who
//! clears sees the pin. An owner that finds a mark takes its announcement back and takes the slot under
//! [`LOCKED`], like those who clear.
//!
//! **Clearing.** `FORGET` says that the contents should not stay when the slot falls idle. Whoever unpins
//! looks for it, and clears if that was the last pin. An attempt that meets another leaves [`AGAIN`] for it,
//! so none is lost.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, atomic as plain};
use std::time::Duration;

use super::fence::{Asymmetric, Fences};
use super::owner::{OwnerWord, ThreadMark};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The contents are out of date, or of the past: they go when the last pin does.
const FORGET: u64 = 1;
/// Somebody is clearing the contents, or taking the slot although it is marked.
const LOCKED: u64 = 2;
/// Somebody found the slot locked and wants it looked at again.
const AGAIN: u64 = 4;
const MARKS: u64 = FORGET | LOCKED | AGAIN;
/// One pin: counts stand above the marks. 61 bits, so that handles cannot overflow them, not even forgotten
/// ones.
const ONE: u64 = 8;

/// Aligned so that two slots never share a cache line, nor the pair that the processor fetches together. All
/// that beginning and ending a view ask for is in the first line: a view that ends on another thread than it
/// began on moves this line, and no other, from one to the other and back.
#[repr(C, align(128))]
pub(crate) struct Slot<L, F: Fences = Asymmetric> {
    /// Pins taken by the owner; only its thread writes it.
    taken: AtomicU64,
    /// Pins given back on the owner's thread; only that writes it.
    given: AtomicU64,
    /// Pins added on other threads.
    taken_elsewhere: AtomicU64,
    /// Pins given back on other threads, and the marks.
    given_elsewhere: AtomicU64,
    pub(super) owner: OwnerWord,
    place: Place,
    layers: UnsafeCell<Option<Arc<L>>>,
    /// The rest is for the owner's thread, and for who watches the slot.
    pub(super) listing: Listing<L, F>,
    /// What `taken` was when the slot was pinned last: tells one holding of it from the next.
    holding: plain::AtomicU64,
    /// Taken by who looks after a view that may expire; see [`Slot::lease`].
    lease: Mutex<Lease>,
    fences: PhantomData<fn() -> F>,
}

/// Which view it is. Written like the contents, only by who has the slot to itself; read by anybody.
struct Place {
    seq: plain::AtomicU64,
    /// Which publication the layers are; 0 is none that will ever be current.
    version: plain::AtomicU64,
}

#[cfg(not(loom))]
const _: () =
    assert!(std::mem::offset_of!(Slot<u8>, listing) == 64, "the first line is full and holds it all");

/// Where the owner's thread has the slot. Read and written by that thread alone.
pub(super) struct Listing<L, F: Fences> {
    /// Whose slots it is among. Changed only while nobody owns it, under the registry's lock.
    pub registry: plain::AtomicU64,
    /// The next on the owner's stack of slots that may be idle.
    pub next: plain::AtomicPtr<Slot<L, F>>,
}

/// Who wants to clear a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The owner, who is not just pinning it; or who marked it and has passed the heavy fence since.
    Sure,
    /// Who gave back a pin as the owner; by now the slot may be another's, if its database was closed.
    Owner(ThreadMark),
    /// Anybody else.
    Stranger,
}

#[derive(Default)]
struct Lease {
    expired: Option<Box<Expired>>,
    /// The owner's name.
    thread: Option<Arc<str>>,
}

/// How long a view was held when it was ended, and how long it was allowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired {
    pub age: Duration,
    pub limit: Duration,
}

/// What a watcher sees of a slot that is held.
pub(crate) struct Sighting {
    pub holding: u64,
    pub seq: u64,
    pub version: u64,
    pub thread: Option<Arc<str>>,
}

/// What a slot remembers of the view that it holds or held last, for who brings it up to date.
pub(crate) struct Held<'s, L> {
    place: &'s Place,
    pub layers: &'s mut Option<Arc<L>>,
}

impl<L> Held<'_, L> {
    #[inline]
    pub fn version(&self) -> u64 {
        // Relaxed, here and below: written only by who has the slot to itself; watchers read it for what it
        // is worth.
        self.place.version.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set_seq(&mut self, seq: u64) {
        self.place.seq.store(seq, Ordering::Relaxed);
    }

    pub fn set_version(&mut self, version: u64) {
        self.place.version.store(version, Ordering::Relaxed);
    }

    pub fn set(mut self, seq: u64, version: u64, layers: Arc<L>) {
        self.set_seq(seq);
        self.set_version(version);
        *self.layers = Some(layers);
    }
}

// SAFETY: the contents are shared by the protocol of the counts (see the module's comment); `L` is shared
// behind an `Arc`.
unsafe impl<L: Send + Sync, F: Fences> Sync for Slot<L, F> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync, F: Fences> Send for Slot<L, F> {}

impl<L, F: Fences> Slot<L, F> {
    pub fn new() -> Slot<L, F> {
        Slot {
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            taken_elsewhere: AtomicU64::new(0),
            given_elsewhere: AtomicU64::new(0),
            owner: OwnerWord::nobody(),
            place: Place { seq: plain::AtomicU64::new(0), version: plain::AtomicU64::new(0) },
            layers: UnsafeCell::new(None),
            listing: Listing {
                registry: plain::AtomicU64::new(0),
                next: plain::AtomicPtr::new(std::ptr::null_mut()),
            },
            holding: plain::AtomicU64::new(0),
            lease: Mutex::default(),
            fences: PhantomData,
        }
    }

    /// Takes an idle slot and lets `fill` bring its contents up to date. If `fill` panics the slot stays
    /// pinned for ever, so nobody meets half-made contents.
    ///
    /// # Safety
    /// The calling thread owns the slot, or owns all that nobody owns because it holds the registry's lock.
    #[inline]
    pub unsafe fn try_pin(&self, fill: impl FnOnce(Held<'_, L>)) -> bool {
        // Relaxed: the caller is the only one who writes it.
        let taken = self.taken.load(Ordering::Relaxed);
        // Relaxed: the fence orders it before the look below.
        self.taken.store(taken.wrapping_add(ONE), Ordering::Relaxed);
        F::light();
        if F::CONFIRMS && !self.is_free(taken) {
            return self.try_pin_marked(taken, fill);
        }
        // SAFETY: the slot was idle without marks, and the only pin is this thread's, of which no handle was
        // given out: nobody else reads, or adds a pin; whoever clears sees the pin.
        unsafe { self.fill(taken, fill) };
        true
    }

    /// Whether the slot is idle and has no marks, as its owner sees it.
    #[inline]
    fn is_free(&self, taken: u64) -> bool {
        // Acquire: pairs with `unpin_elsewhere` and `clear`, so that all uses of the contents by others are
        // over. Before the counts of what was taken: see the module's comment.
        let given_elsewhere = self.given_elsewhere.load(Ordering::Acquire);
        // Relaxed: the owner's own word, and one that is ordered by the load above.
        let given = self.given.load(Ordering::Relaxed).wrapping_add(given_elsewhere);
        given == taken.wrapping_add(self.taken_elsewhere.load(Ordering::Relaxed))
    }

    /// # Safety
    /// Nobody else may read or write the contents.
    #[inline]
    unsafe fn fill(&self, holding: u64, fill: impl FnOnce(Held<'_, L>)) {
        if self.expires() {
            // SAFETY: as the caller promises.
            return unsafe { self.fill_expiring(holding, fill) };
        }
        // Relaxed: only told apart from others by those who watch.
        self.holding.store(holding, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        self.layers.with_mut(|layers| unsafe { fill(Held { place: &self.place, layers: &mut *layers }) });
    }

    /// # Safety
    /// As [`fill`](Slot::fill), but for who holds the lease.
    #[cold]
    unsafe fn fill_expiring(&self, holding: u64, fill: impl FnOnce(Held<'_, L>)) {
        let mut lease = self.lock_lease();
        lease.expired = None;
        self.holding.store(holding, Ordering::Relaxed);
        // SAFETY: as the caller promises; watchers are kept out by the lease.
        self.layers.with_mut(|layers| unsafe { fill(Held { place: &self.place, layers: &mut *layers }) });
    }

    /// Takes the announcement back, then takes the slot under its lock if it is idle but marked: the owner
    /// brings the contents up to date, so there is nothing left to forget.
    #[cold]
    fn try_pin_marked(&self, taken: u64, fill: impl FnOnce(Held<'_, L>)) -> bool {
        // Release: as in `unpin_owned`.
        self.taken.store(taken, Ordering::Release);
        F::light();
        loop {
            let word = self.given_elsewhere.load(Ordering::Relaxed);
            if word & LOCKED != 0 || !self.is_idle() {
                // Who looked meanwhile may have taken the announcement for a pin, and left the clearing.
                if word & FORGET != 0 {
                    self.clear_if_idle(Side::Sure);
                }
                return false;
            }
            // Acquire: as in `is_free`.
            let locked = self.given_elsewhere.compare_exchange(
                word,
                word | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if locked.is_ok() {
                break;
            }
        }
        // Idle when it was locked, and nobody but the owner pins an idle slot. The pin comes before the lock
        // goes; Release: who locks next sees it.
        self.taken.store(taken.wrapping_add(ONE), Ordering::Relaxed);
        // AcqRel: a sweep that set a mark which goes here published its layers before, so that `fill` finds
        // them.
        self.given_elsewhere.fetch_and(!MARKS, Ordering::AcqRel);
        // SAFETY: as in `try_pin`.
        unsafe { self.fill(taken, fill) };
        true
    }

    /// What the slot holds.
    ///
    /// # Safety
    /// The caller has a pin, and keeps it as long as it uses the reference; views in the slot do not expire.
    #[inline]
    pub unsafe fn layers(&self) -> &Arc<L> {
        debug_assert!(!self.expires());
        // SAFETY: while there is a pin nobody writes the contents.
        let layers = self.layers.with(|layers| unsafe { &*layers }).as_ref();
        layers.expect("a pinned slot holds layers")
    }

    /// What the slot holds, if it has not expired, where views may do so.
    ///
    /// # Errors
    /// How it expired.
    ///
    /// # Safety
    /// The caller has a pin.
    pub unsafe fn lease(&self) -> Result<Arc<L>, Expired> {
        let lease = self.lock_lease();
        if let Some(expired) = &lease.expired {
            return Err(**expired);
        }
        // SAFETY: while there is a pin only who expires it writes the contents, under the lease.
        let layers = self.layers.with(|layers| unsafe { (*layers).clone() });
        Ok(layers.expect("a pinned slot holds layers"))
    }

    /// The sequence number of the view that the caller has a pin on.
    #[inline]
    pub fn seq(&self) -> u64 {
        // Relaxed: whoever has a pin got it after the number was written.
        self.place.seq.load(Ordering::Relaxed)
    }

    /// Which publication the layers are, for who has a pin.
    pub fn version(&self) -> u64 {
        self.place.version.load(Ordering::Relaxed)
    }

    /// Whether the view that the caller has a pin on has expired.
    #[inline]
    pub fn has_expired(&self) -> bool {
        // Relaxed: only expiring a view takes the number away while there are pins.
        self.expires() && self.place.version.load(Ordering::Relaxed) == 0
    }

    #[inline]
    pub fn expires(&self) -> bool {
        self.owner.expires()
    }

    /// One more handle on the same view.
    ///
    /// # Safety
    /// The caller has a pin, and is the thread of that mark.
    #[inline]
    pub unsafe fn pin_again(&self, thread: ThreadMark) {
        // Relaxed, both: like `Arc::clone`, the caller's own pin already orders everything.
        if self.owner.is(thread) {
            let taken = self.taken.load(Ordering::Relaxed);
            self.taken.store(taken.wrapping_add(ONE), Ordering::Relaxed);
        } else {
            self.taken_elsewhere.fetch_add(ONE, Ordering::Relaxed);
        }
    }

    /// Gives a pin back on the owner's thread.
    ///
    /// # Safety
    /// The caller has a pin, and does not use the contents any more; its thread, of this mark, owns the slot.
    #[inline]
    pub unsafe fn unpin_owned(&self, thread: ThreadMark) {
        let given = self.given.load(Ordering::Relaxed);
        // Release: our reads of the contents end before whoever writes them next begins.
        self.given.store(given.wrapping_add(ONE), Ordering::Release);
        F::light();
        // Relaxed: only the mark is passed on; `clear_if_idle` does its own ordering. Who marks passes the
        // heavy fence and looks at the counts after; so one of the two sees the other.
        if self.given_elsewhere.load(Ordering::Relaxed) & FORGET != 0 {
            self.clear_if_idle(Side::Owner(thread));
        }
    }

    /// Gives a pin back on another thread than the owner's.
    ///
    /// # Safety
    /// The caller has a pin, and does not use the contents any more.
    pub unsafe fn unpin_elsewhere(&self) {
        // Release: as above.
        if self.given_elsewhere.fetch_add(ONE, Ordering::Release) & FORGET != 0 {
            self.clear_if_idle(Side::Stranger);
        }
    }

    /// Says that the contents should go: when the last pin is given back, or, where the slot may be idle
    /// already, by [`clear_if_idle`](Slot::clear_if_idle). Called by the owner, or by one sweep at a time.
    pub fn mark(&self) {
        // Release: pairs with `try_pin_marked`.
        self.given_elsewhere.fetch_or(FORGET, Ordering::Release);
    }

    /// Whether every pin has ended. For who is not the owner this is sure only when the slot has been marked
    /// and a heavy fence has passed since.
    pub fn is_idle(&self) -> bool {
        // Acquire: uses of the contents by those who gave pins back are over, and their pins are seen. What
        // was given back comes first: see the module's comment.
        let given = self.given.load(Ordering::Acquire);
        let given = given.wrapping_add(self.given_elsewhere.load(Ordering::Acquire) & !MARKS);
        let taken = self.taken.load(Ordering::Relaxed);
        given == taken.wrapping_add(self.taken_elsewhere.load(Ordering::Relaxed))
    }

    /// Whether a new owner can have it.
    pub(super) fn is_free_for_all(&self) -> bool {
        self.is_idle() && self.given_elsewhere.load(Ordering::Acquire) & MARKS == 0
    }

    /// Lets the contents go if the slot is idle and marked.
    #[cold]
    pub fn clear_if_idle(&self, side: Side) {
        let mut word = self.given_elsewhere.load(Ordering::Relaxed);
        loop {
            if word & FORGET == 0 {
                return;
            }
            let locked = word & LOCKED != 0;
            let next = word | if locked { AGAIN } else { LOCKED };
            // AcqRel: what this thread gave back is seen by who has the lock and looks again; and as in
            // `try_pin` for who gets it.
            match self.given_elsewhere.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if locked => return,
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        let sure = match side {
            Side::Sure => true,
            // Relaxed: whoever made another the owner did so before the mark was set under which this is
            // asked.
            Side::Owner(thread) => self.owner.is(thread),
            Side::Stranger => false,
        };
        if !sure {
            // Not before: the mark that this thread saw may have gone meanwhile, and this one be another's,
            // which the owner may still miss. It does not miss the lock.
            F::heavy();
        }
        loop {
            let before = self.given_elsewhere.fetch_and(!AGAIN, Ordering::AcqRel) & !AGAIN;
            if self.is_idle() {
                return self.clear();
            }
            // AcqRel: as above. Unchanged, so nobody gave a pin back elsewhere or asked for another look.
            let unlocked = self.given_elsewhere.compare_exchange(
                before,
                before & !LOCKED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if unlocked.is_ok() {
                return;
            }
        }
    }

    /// The slot is idle, and locked by this thread.
    fn clear(&self) {
        let lease = self.expires().then(|| self.lock_lease());
        self.place.version.store(0, Ordering::Relaxed);
        // SAFETY: the slot is locked and idle, and who expires views is kept out by the lease.
        let layers = self.layers.with_mut(|layers| unsafe { (*layers).take() });
        drop(lease);
        // Release: pairs with `is_free`. A mark that somebody set meanwhile is done with, too.
        self.given_elsewhere.fetch_and(!MARKS, Ordering::Release);
        // Dropped after the slot is free again: letting go of layers may close files.
        drop(layers);
    }

    fn lock_lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_thread(&self, name: Option<Arc<str>>) {
        self.lock_lease().thread = name;
    }

    /// What is to be seen of the slot from outside, if it is held. A figure for people: a view that is just
    /// beginning or ending may be seen or not.
    pub fn sight(&self) -> Option<Sighting> {
        let holding = self.holding.load(Ordering::Acquire);
        if self.is_idle() {
            return None;
        }
        let (seq, version) =
            (self.place.seq.load(Ordering::Relaxed), self.place.version.load(Ordering::Relaxed));
        let thread = self.lock_lease().thread.clone();
        (self.holding.load(Ordering::Relaxed) == holding).then_some(Sighting {
            holding,
            seq,
            version,
            thread,
        })
    }

    /// Ends the view of one holding: its handles stay, reads through them give what is said here, and what it
    /// kept is let go. For slots whose views expire.
    pub fn expire(&self, holding: u64, expired: Expired) -> bool {
        debug_assert!(self.expires());
        let mut lease = self.lock_lease();
        // Under the lease: a new holding would be noted under it.
        if lease.expired.is_some() || self.holding.load(Ordering::Relaxed) != holding || self.is_idle() {
            return false;
        }
        self.place.version.store(0, Ordering::Relaxed);
        // SAFETY: in slots whose views expire the layers are touched only under the lease.
        let layers = self.layers.with_mut(|layers| unsafe { (*layers).take() });
        lease.expired = Some(Box::new(expired));
        drop(lease);
        drop(layers);
        true
    }
}
