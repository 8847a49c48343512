//! The present: the newest view, and how readers take it.
//!
//! Owns: `visible_seq`, the current layers, and the reader slots. Promises: a view taken here is exact at its sequence number, and holds all that it
//! needs. May call: `slots`, `layers`.
//!
//! **Why a view is exact.** A reader loads `visible_seq`, then the layers. The layers are at least as new as the number, because a
//! memtable is published before a commit in it becomes visible. They may be *too* new: a flush or merge that finished in between may
//! have dropped versions that only older numbers can see. Each stack says from which number on it is exact (`exact_from`, never more than what was
//! visible when it was published), so a reader whose number is older takes a fresh number, and that one is exact.

use std::sync::{Arc, Mutex, PoisonError};

use super::Snapshot;
use super::layers::{Context, Layers};
use super::slots::{Held, Local, Registry, Slot, SlotContents};
use crate::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static LOCAL: Local<Layers> = const { Local::new() };
}

static SPARES: Mutex<Vec<&'static Slot<Layers>>> = Mutex::new(Vec::new());

impl SlotContents for Layers {
    fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>> {
        &SPARES
    }
}

pub(crate) struct Present {
    /// Every commit up to this one is whole and may be read.
    visible_seq: AtomicU64,
    /// Counts publications of `layers`; starts at 1.
    version: AtomicU64,
    layers: Mutex<Arc<Layers>>,
    registry: Arc<Registry<Layers>>,
    context: Arc<Context>,
}

impl Present {
    pub fn new(layers: Layers, visible_seq: u64) -> Present {
        Present {
            visible_seq: AtomicU64::new(visible_seq),
            version: AtomicU64::new(1),
            context: layers.context.clone(),
            layers: Mutex::new(Arc::new(layers)),
            registry: Registry::new(),
        }
    }

    #[inline]
    pub fn visible_seq(&self) -> u64 {
        // Acquire: everything that was inserted before this number was published is seen by who reads at it.
        self.visible_seq.load(Ordering::Acquire)
    }

    /// Makes commits up to `seq` readable. Called in order, by one thread at a time.
    pub fn set_visible(&self, seq: u64) {
        // Release: pairs with `visible_seq`.
        self.visible_seq.store(seq, Ordering::Release);
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn layers(&self) -> Arc<Layers> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the layers by what `change` makes of them.
    pub fn publish(&self, change: impl FnOnce(&Layers) -> Layers) {
        let old = {
            let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
            let new = Arc::new(change(&layers));
            assert!(new.exact_from <= self.visible_seq(), "a view of now must be exact");
            let old = std::mem::replace(&mut *layers, new);
            // Release: a reader that sees the new version finds the new layers (it takes the lock, too).
            self.version.fetch_add(1, Ordering::Release);
            old
        };
        self.registry.sweep();
        drop(old);
    }

    /// Pins the newest view. When nothing was committed since this thread's last, this touches only the thread's own cache line (and reads two
    /// shared ones that seldom change).
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        let fill = |held: &mut Held<Layers>| {
            let seq = self.visible_seq();
            // Acquire: pairs with `publish`. After the sequence number: see the module's comment.
            if held.version == self.version.load(Ordering::Acquire) {
                held.seq = seq;
            } else {
                self.refill(held);
            }
        };
        let slot = match LOCAL.try_with(|local| self.registry.pin(Some(local), fill)) {
            Ok(slot) => slot,
            Err(_) => self.registry.pin(None, fill),
        };
        // SAFETY: the pin was just taken for this handle.
        unsafe { Snapshot::from_pinned(slot) }
    }

    /// Pins a view of the past in the same way.
    pub fn snapshot_of(&self, seq: u64, layers: Arc<Layers>) -> Snapshot {
        let fill = |held: &mut Held<Layers>| {
            *held = Held { seq, version: 0, layers: Some(layers.clone()) };
        };
        let slot = match LOCAL.try_with(|local| self.registry.pin(Some(local), fill)) {
            Ok(slot) => slot,
            Err(_) => self.registry.pin(None, fill),
        };
        // An idle slot should not keep the past.
        slot.expire();
        // SAFETY: the pin was just taken for this handle.
        unsafe { Snapshot::from_pinned(slot) }
    }

    #[cold]
    fn refill(&self, held: &mut Held<Layers>) {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, layers and version belong together; the number is loaded after they were published, so they are exact for it.
        held.version = self.version.load(Ordering::Relaxed);
        let old = held.layers.replace(layers.clone());
        held.seq = self.visible_seq();
        debug_assert!(held.seq >= layers.exact_from);
        // The last to let go of old layers closes files: not while others wait for the new ones.
        drop(layers);
        drop(old);
    }

    pub fn reader_slots(&self) -> usize {
        self.registry.slot_count()
    }
}
