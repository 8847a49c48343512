//! Reader slots: where a pinned view is noted, so that beginning and ending a read touch only the thread's
//! own cache line.
//!
//! Owns: the slots and which thread looks at which. Promises: taking a view is one compare-and-swap on the
//! thread's own line, releasing it one subtraction; nothing is allocated unless the thread already holds all
//! its slots; any thread may release; there is no upper limit. May call: nothing of the engine; what a slot
//! keeps is a type parameter.
//!
//! After Voron's reader tracking (per-thread arrays of reusable records that another thread may clear) and
//! Speedb's snapshot reuse (an unchanged sequence number takes the last view again). A slot remembers the
//! layers of its last view. They are what keeps memtables, runs and the base alive, by plain reference
//! counts, so no reader is ever left with freed layers; the writer sweeps idle slots when it publishes new
//! layers, so that an idle thread does not keep old ones.
//!
//! **Protocol.** One word says it all: `pins` counts the handles that share the view, and has two flags
//! beside the count. Only who moved it from 0 to one pin or to `LOCKED` writes the contents, and only while
//! nobody else can have a handle; everybody with a handle may read them. `FORGET` says that the contents
//! should not stay when the slot falls idle. It may be set at any time, by anybody. Because it is in the same
//! word as the count, all changes have one order: whoever brings the word to `FORGET` without pins (the last
//! handle, or who sets the flag on an idle slot) clears the contents, and nobody else does.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Somebody is clearing the contents.
const LOCKED: u64 = 1 << 63;

/// The contents are out of date, or of the past: they go when the last pin does.
const FORGET: u64 = 1 << 62;

/// How many busy slots a thread looks at before it takes a new one.
const PROBES: usize = 8;

/// What a slot remembers of the view that it holds or held last.
pub(crate) struct Held<L> {
    pub seq: u64,
    /// Which publication `layers` is; 0 is none that will ever be current.
    pub version: u64,
    pub layers: Option<Arc<L>>,
}

/// Aligned so that two slots never share a cache line, nor the pair that the processor fetches together.
#[repr(align(128))]
pub(crate) struct Slot<L> {
    /// 64 bits, so that handles cannot overflow it, not even forgotten ones.
    pins: AtomicU64,
    held: UnsafeCell<Held<L>>,
}

// SAFETY: the contents are shared by the protocol of `pins` (see the module's comment); `L` is shared behind
// an `Arc`.
unsafe impl<L: Send + Sync> Sync for Slot<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Send for Slot<L> {}

impl<L> Slot<L> {
    pub fn new() -> Slot<L> {
        Slot { pins: AtomicU64::new(0), held: UnsafeCell::new(Held { seq: 0, version: 0, layers: None }) }
    }

    /// Takes an idle slot and lets `fill` bring its contents up to date. If `fill` panics the slot stays
    /// pinned for ever, so nobody meets half-made contents.
    #[inline]
    pub fn try_pin(&self, fill: impl FnOnce(&mut Held<L>)) -> bool {
        // Acquire: pairs with `unpin` and `clear`, so that all uses of the contents by earlier owners are
        // over.
        if self.pins.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // SAFETY: the only pin is this thread's, and no handle of it was given out: nobody else reads, or
        // adds a pin, or clears.
        self.held.with_mut(|held| fill(unsafe { &mut *held }));
        true
    }

    /// What the slot holds.
    ///
    /// # Safety
    /// The caller has a pin, and keeps it as long as it uses the reference.
    #[inline]
    pub unsafe fn held(&self) -> &Held<L> {
        // SAFETY: while there is a pin nobody writes the contents.
        self.held.with(|held| unsafe { &*held })
    }

    /// One more handle on the same view.
    ///
    /// # Safety
    /// The caller has a pin.
    pub unsafe fn pin_again(&self) {
        // Relaxed: like `Arc::clone`, the caller's own pin already orders everything.
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a pin back.
    ///
    /// # Safety
    /// The caller has a pin, and does not use the contents any more.
    #[inline]
    pub unsafe fn unpin(&self) {
        // Release: our reads of the contents end before whoever writes them next begins.
        if self.pins.fetch_sub(1, Ordering::Release) == FORGET | 1 {
            self.clear();
        }
    }

    /// Lets the contents go: now if the slot is idle, else when its last pin is given back.
    pub fn expire(&self) {
        // Relaxed: only the flag is passed on; `clear` does its own ordering.
        if self.pins.fetch_or(FORGET, Ordering::Relaxed) == 0 {
            self.clear();
        }
    }

    /// Called by who made the slot idle and to be forgotten.
    #[cold]
    fn clear(&self) {
        // Acquire: as in `try_pin`. Whatever is stored next, nobody can have pinned the slot in between:
        // pinning takes an idle slot without flags.
        let before = self.pins.swap(LOCKED | FORGET, Ordering::Acquire);
        debug_assert_eq!(before, FORGET);
        // SAFETY: the slot is locked by this thread.
        let layers = self.held.with_mut(|held| unsafe {
            (*held).version = 0;
            (*held).layers.take()
        });
        // Release: pairs with `try_pin`. A flag that somebody set meanwhile is done with, too. An exchange,
        // so that every change of the word is one that takes its place right behind what it saw.
        self.pins.swap(0, Ordering::Release);
        // Dropped after the slot is free again: letting go of layers may close files.
        drop(layers);
    }
}

/// What slots may hold.
pub(crate) trait SlotContents: Send + Sync + Sized + 'static {
    /// Slots of databases that were closed. A static can't be generic, so who uses the registry declares it.
    fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>>;
}

/// All slots of one open database.
pub(crate) struct Registry<L: SlotContents> {
    /// Tells this database's entries in a thread's list from those of databases that were closed.
    id: u64,
    this: Weak<Registry<L>>,
    slots: Mutex<Slots<L>>,
}

struct Slots<L: SlotContents> {
    all: Vec<&'static Slot<L>>,
    /// Slots whose thread has ended.
    orphans: Vec<&'static Slot<L>>,
}

/// What one thread knows of one database: its slots, and where it looks next.
struct ThreadSlots<L: SlotContents> {
    registry: u64,
    home: Weak<Registry<L>>,
    slots: Vec<&'static Slot<L>>,
    next: usize,
}

impl<L: SlotContents> Drop for ThreadSlots<L> {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            // A slot whose view lives on in another thread is skipped by its next owner until it is idle.
            home.slots.lock().unwrap_or_else(PoisonError::into_inner).orphans.append(&mut self.slots);
        }
    }
}

/// The thread-local state for one kind of layers: `thread_local!` can't be generic, so who uses the registry
/// declares it.
pub(crate) struct Local<L: SlotContents> {
    /// The slot used last and its registry: the whole fast path.
    last: Cell<Option<(u64, &'static Slot<L>)>>,
    lists: RefCell<Vec<ThreadSlots<L>>>,
}

impl<L: SlotContents> Local<L> {
    pub const fn new() -> Local<L> {
        Local { last: Cell::new(None), lists: RefCell::new(Vec::new()) }
    }
}

static NEXT_REGISTRY: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

impl<L: SlotContents> Registry<L> {
    pub fn new() -> Arc<Registry<L>> {
        // Relaxed: only uniqueness matters.
        let id = NEXT_REGISTRY.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new_cyclic(|this| Registry {
            id,
            this: this.clone(),
            slots: Mutex::new(Slots { all: Vec::new(), orphans: Vec::new() }),
        })
    }

    /// Pins a slot of this thread after `fill` has brought it up to date. `local` is `None` while the thread
    /// is being torn down; then a slot is taken that no thread owns.
    #[inline]
    pub fn pin(&self, local: Option<&Local<L>>, mut fill: impl FnMut(&mut Held<L>)) -> &'static Slot<L> {
        if let Some(local) = local {
            if let Some((registry, slot)) = local.last.get()
                && registry == self.id
                && slot.try_pin(&mut fill)
            {
                return slot;
            }
            return self.pin_other(local, &mut fill);
        }
        let slot = self.take_slot(&mut fill);
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).orphans.push(slot);
        slot
    }

    #[cold]
    fn pin_other(&self, local: &Local<L>, fill: &mut dyn FnMut(&mut Held<L>)) -> &'static Slot<L> {
        // `fill` and what it drops may not come back here: it only reads the present.
        let mut lists = local.lists.borrow_mut();
        if !lists.iter().any(|list| list.registry == self.id) {
            lists.retain(|list| list.home.strong_count() > 0);
            lists.push(ThreadSlots {
                registry: self.id,
                home: self.this.clone(),
                slots: Vec::new(),
                next: 0,
            });
        }
        let list = lists.iter_mut().find(|list| list.registry == self.id).expect("just made");
        for _ in 0..list.slots.len().min(PROBES) {
            list.next = (list.next + 1) % list.slots.len();
            let slot = list.slots[list.next];
            if slot.try_pin(&mut *fill) {
                local.last.set(Some((self.id, slot)));
                return slot;
            }
        }
        let slot = self.take_slot(fill);
        list.slots.push(slot);
        local.last.set(Some((self.id, slot)));
        slot
    }

    /// A slot whose thread has ended, or a new one, pinned.
    fn take_slot(&self, fill: &mut dyn FnMut(&mut Held<L>)) -> &'static Slot<L> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..slots.orphans.len().min(PROBES) {
            let Some(slot) = slots.orphans.pop() else { break };
            if slot.try_pin(&mut *fill) {
                return slot;
            }
            slots.orphans.insert(0, slot);
        }
        // Slots are never freed: handles in other threads point at them without counting. They are few: as
        // many as views were held at one time, and those of a closed database serve the next.
        let mut spares = L::spares().lock().unwrap_or_else(PoisonError::into_inner);
        let spare = spares.iter().rev().take(PROBES).position(|slot| slot.try_pin(&mut *fill));
        let slot = match spare {
            Some(from_end) => {
                let index = spares.len() - 1 - from_end;
                spares.swap_remove(index)
            }
            None => {
                let slot: &'static Slot<L> = Box::leak(Box::new(Slot::new()));
                assert!(slot.try_pin(fill), "nobody else knows a new slot");
                slot
            }
        };
        slots.all.push(slot);
        slot
    }

    /// Lets idle slots forget layers that are out of date, and tells busy ones to when they fall idle.
    pub fn sweep(&self) {
        for slot in &self.slots.lock().unwrap_or_else(PoisonError::into_inner).all {
            slot.expire();
        }
    }

    /// How many slots there are, busy or idle.
    pub fn slot_count(&self) -> usize {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).all.len()
    }
}

impl<L: SlotContents> Drop for Registry<L> {
    fn drop(&mut self) {
        self.sweep();
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        L::spares().lock().unwrap_or_else(PoisonError::into_inner).append(&mut slots.all);
    }
}
