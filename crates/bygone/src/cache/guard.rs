//! The guard under which frames are read.
//!
//! Owns: the eras of frames, and which record a thread has. Promises: what is said of [`Guard`]. May call:
//! registry.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::frame::{DeadFrame, Header};
use crate::registry::{Eras, Record};

#[cfg(not(loom))]
pub(super) static ERAS: Eras<DeadFrame> = Eras::new();

// `loom`'s atomics have no constant constructor; its models have eras of their own.
#[cfg(loom)]
pub(super) static ERAS: std::sync::LazyLock<Eras<DeadFrame>> = std::sync::LazyLock::new(Eras::new);

thread_local! {
    /// The thread's record, if it has one. Has no destructor, so that looking is nothing but an address.
    static RECORD: Cell<Option<NonNull<Record>>> = const { Cell::new(None) };
    /// Gives the record back when the thread ends.
    static OWNED: Owned = Owned::take();
}

struct Owned(Arc<Record>);

impl Owned {
    fn take() -> Owned {
        let record = ERAS.take_record();
        RECORD.set(Some(NonNull::from(&*record)));
        Owned(record)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        RECORD.set(None);
        // Guards live in stack frames, so none is left when thread-locals go.
        ERAS.give_record(&self.0);
    }
}

/// Keeps every frame seen under it readable. Costs about a nanosecond. However long it is held, it keeps
/// only frames that were there while it was read under, so it may be held while a user's code runs.
pub(crate) struct Guard {
    /// Not sendable, as its owner is a thread.
    record: NonNull<Record>,
}

/// Begins to read.
#[inline]
pub(crate) fn pin() -> Guard {
    let Some(record) = RECORD.get() else { return pin_first() };
    let guard = Guard { record };
    guard.enter();
    guard
}

#[cold]
fn pin_first() -> Guard {
    let record = OWNED.try_with(|owned| NonNull::from(&*owned.0)).unwrap_or_else(|_| {
        // The thread is being torn down.
        let record = ERAS.take_record();
        record.one_use.store(true, Ordering::Relaxed);
        NonNull::from(&*record)
    });
    let guard = Guard { record };
    guard.enter();
    guard
}

impl Guard {
    #[inline]
    fn record(&self) -> &Record {
        // SAFETY: records are never freed: `ERAS` keeps them all.
        unsafe { self.record.as_ref() }
    }

    #[inline]
    fn enter(&self) {
        if self.record().deepen(|depth| depth + 1) == 0 {
            ERAS.enter(self.record());
        }
    }

    /// The frame in a slot; it stays readable while the guard lives.
    #[inline]
    pub(super) fn load(&self, slot: &AtomicPtr<Header>) -> Option<NonNull<Header>> {
        // Acquire: pairs with the release in `FrameTable::insert`, so that the frame's bytes are seen whole.
        NonNull::new(ERAS.protect(self.record(), || slot.load(Ordering::Acquire)))
    }

    #[cold]
    fn give_back(&self) {
        self.record().one_use.store(false, Ordering::Relaxed);
        ERAS.give_record(self.record());
    }

    /// From now on what is put into a slot stays readable while the guard lives.
    pub(super) fn extend(&self) {
        ERAS.extend(self.record());
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if self.record().deepen(|depth| depth - 1) == 1 {
            ERAS.leave(self.record());
            // Relaxed: only the owner's thread looks.
            if self.record().one_use.load(Ordering::Relaxed) {
                self.give_back();
            }
        }
    }
}
