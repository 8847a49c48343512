//! The present: the newest view, and how readers take it.
//!
//! Owns: the wiring of [`Current`] with the registry. Promises: a view taken here is exact at its
//! sequence number, and holds all that it needs. May call: `current`, `layers`, registry.

use std::sync::{Arc, Mutex};

use super::Snapshot;
use super::current::Current;
use super::layers::{Context, Layers};
use super::watch::{HeldSnapshot, Limits, Watch};
use crate::registry::{Contents, Held, Owned, Registry, Slot, Stack};

thread_local! {
    static STACK: Stack<Layers> = const { Stack::new() };
    static OWNED: Owned<Layers> = const { Owned::new() };
}

static SPARES: Mutex<Vec<&'static Slot<Layers>>> = Mutex::new(Vec::new());

impl Contents for Layers {
    fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>> {
        &SPARES
    }

    #[inline]
    fn with_stack<R>(f: impl FnOnce(&Stack<Self>) -> R) -> R {
        // An address is all that is asked of the thread-local: `with` around all of `f` would not be inlined.
        let stack = STACK.with(std::ptr::from_ref);
        // SAFETY: it has no destructor, so it is there as long as this thread runs.
        f(unsafe { &*stack })
    }

    fn with_owned<R>(f: impl FnOnce(&Owned<Self>) -> R) -> Option<R> {
        OWNED.try_with(f).ok()
    }
}

pub(crate) struct Present {
    current: Current<Layers>,
    registry: Arc<Registry<Layers>>,
    context: Arc<Context>,
    watch: Watch,
}

impl Present {
    pub fn new(layers: Layers, visible_seq: u64, limits: Limits) -> Present {
        let context = layers.context.clone();
        let current = Current::new(layers, visible_seq);
        let registry = Registry::new(limits.max_age.is_some());
        let watch = Watch::new(limits);
        watch.note(1, &current.layers());
        Present { current, registry, context, watch }
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
        self.published(old);
    }

    /// Makes commits up to `seq` readable by replacing the layers, the two at once. Called as
    /// [`set_visible`](Present::set_visible).
    pub fn publish_at(&self, seq: u64, change: impl FnOnce(&Layers) -> Layers) {
        let old = self.current.publish_at(seq, |layers| {
            let new = change(layers);
            assert!(new.exact_from <= seq, "a view of now must be exact");
            new
        });
        self.published(old);
    }

    fn published(&self, old: Arc<Layers>) {
        let (version, layers) = self.current.versioned();
        self.watch.note(version, &layers);
        self.registry.sweep();
        drop(old);
    }

    /// Pins the newest view. When nothing was committed since this thread's last, this touches only the
    /// thread's own cache line (and reads two shared ones that seldom change).
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        self.pin(|held| self.current.fill(held))
    }

    /// Pins a view of other layers than the newest in the same way; `version` is theirs, see
    /// [`version_of_past`](Present::version_of_past).
    pub fn snapshot_of(&self, seq: u64, version: u64, layers: Arc<Layers>) -> Snapshot {
        let snapshot = self.pin(|held| held.set(seq, version, layers.clone()));
        snapshot.forget_when_idle();
        snapshot
    }

    /// A version for layers that never were the newest.
    pub fn version_of_past(&self, layers: &Arc<Layers>) -> u64 {
        self.watch.version_of_past(layers)
    }

    /// Looks who holds views and for how long, and does what the limits ask for.
    pub fn look(&self) -> Vec<HeldSnapshot> {
        self.watch.look(&self.registry, &self.layers())
    }

    #[inline]
    fn pin(&self, fill: impl Fn(Held<'_, Layers>)) -> Snapshot {
        let slot = self.registry.pin(fill);
        // SAFETY: the pin was just taken for this handle.
        unsafe { Snapshot::from_pinned(slot) }
    }

    pub fn reader_slots(&self) -> usize {
        self.registry.slot_count()
    }
}
