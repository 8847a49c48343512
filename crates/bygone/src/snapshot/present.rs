//! The present: the newest view, and how readers take it.
//!
//! Owns: the wiring of [`Current`] with the reader slots. Promises: a view taken here is exact at its
//! sequence number, and holds all that it needs. May call: `current`, `slots`, `layers`.

use std::sync::{Arc, Mutex};

use super::Snapshot;
use super::current::Current;
use super::layers::{Context, Layers};
use super::slots::{Held, Local, Registry, Slot, SlotContents};

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
    current: Current<Layers>,
    registry: Arc<Registry<Layers>>,
    context: Arc<Context>,
}

impl Present {
    pub fn new(layers: Layers, visible_seq: u64) -> Present {
        let context = layers.context.clone();
        Present { current: Current::new(layers, visible_seq), registry: Registry::new(), context }
    }

    #[inline]
    pub fn visible_seq(&self) -> u64 {
        self.current.visible_seq()
    }

    /// Makes commits up to `seq` readable. Called in order, by one thread at a time.
    pub fn set_visible(&self, seq: u64) {
        self.current.set_visible(seq);
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn layers(&self) -> Arc<Layers> {
        self.current.layers()
    }

    /// Replaces the layers by what `change` makes of them.
    pub fn publish(&self, change: impl FnOnce(&Layers) -> Layers) {
        let old = self.current.publish(|layers| {
            let new = change(layers);
            assert!(new.exact_from <= self.visible_seq(), "a view of now must be exact");
            new
        });
        self.registry.sweep();
        drop(old);
    }

    /// Pins the newest view. When nothing was committed since this thread's last, this touches only the
    /// thread's own cache line (and reads two shared ones that seldom change).
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        self.pin(|held| self.current.fill(held))
    }

    /// Pins a view of the past in the same way.
    pub fn snapshot_of(&self, seq: u64, layers: Arc<Layers>) -> Snapshot {
        let snapshot = self.pin(|held| *held = Held { seq, version: 0, layers: Some(layers.clone()) });
        snapshot.forget_when_idle();
        snapshot
    }

    #[inline]
    fn pin(&self, fill: impl Fn(&mut Held<Layers>)) -> Snapshot {
        let slot = match LOCAL.try_with(|local| self.registry.pin(Some(local), &fill)) {
            Ok(slot) => slot,
            Err(_) => self.registry.pin(None, &fill),
        };
        // SAFETY: the pin was just taken for this handle.
        unsafe { Snapshot::from_pinned(slot) }
    }

    pub fn reader_slots(&self) -> usize {
        self.registry.slot_count()
    }
}
