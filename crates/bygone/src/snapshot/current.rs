//! The newest sequence number and the newest layers, and how a view is put together from both.
//!
//! Owns: the order in which writers publish and readers look. Promises: what [`Current::fill`] leaves in a
//! slot is exact: the layers hold every commit up to the number, and have dropped nothing that this number
//! can see. May call: registry; what layers are is a type parameter, so that `loom` can check the code
//! that ships (`registry::models`).
//!
//! **Why a view is exact.** A reader loads `visible_seq`, then the version of the layers. The layers are at
//! least as new as the number, because a memtable is published before a commit in it becomes visible. They
//! may be *too* new: a flush or merge that finished in between may have dropped versions that only older
//! numbers can see. Each stack says from which number on it is exact (never more than what was visible when
//! it was published). So a reader that finds another version than it remembers takes its number anew, after
//! the layers; and one that finds the version it remembers loaded its number after that version was
//! published.

use std::sync::{Arc, PoisonError};

use crate::registry::Held;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Current<L> {
    /// Every commit up to this one is whole and may be read.
    visible_seq: AtomicU64,
    /// Counts publications of `layers`; starts at 1.
    version: AtomicU64,
    layers: Mutex<Arc<L>>,
}

impl<L> Current<L> {
    pub fn new(layers: L, visible_seq: u64) -> Current<L> {
        Current {
            visible_seq: AtomicU64::new(visible_seq),
            version: AtomicU64::new(1),
            layers: Mutex::new(Arc::new(layers)),
        }
    }

    #[inline]
    pub fn visible_seq(&self) -> u64 {
        // Acquire: everything that was inserted before this number was published is seen by who reads at it.
        self.visible_seq.load(Ordering::Acquire)
    }

    /// Makes commits up to `seq` readable. Called in order, by one thread at a time, after the layers that
    /// hold them were published.
    pub fn set_visible(&self, seq: u64) {
        // Release: pairs with `visible_seq`.
        self.visible_seq.store(seq, Ordering::Release);
    }

    pub fn layers(&self) -> Arc<L> {
        self.versioned().1
    }

    /// The newest layers, with their version.
    pub fn versioned(&self) -> (u64, Arc<L>) {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: under the lock, layers and version belong together.
        (self.version.load(Ordering::Relaxed), layers.clone())
    }

    /// Replaces the layers by what `change` makes of them; answers the old ones.
    pub fn publish(&self, change: impl FnOnce(&L) -> L) -> Arc<L> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Arc::new(change(&layers));
        let old = std::mem::replace(&mut *layers, new);
        // Release: a reader that sees the new version finds the new layers (it takes the lock, too).
        self.version.fetch_add(1, Ordering::Release);
        old
    }

    /// Makes commits up to `seq` readable by replacing the layers: the two at once. A view has both or neither.
    pub fn publish_at(&self, seq: u64, change: impl FnOnce(&L) -> L) -> Arc<L> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Arc::new(change(&layers));
        let old = std::mem::replace(&mut *layers, new);
        // Release, both: as above. The number last: a reader that sees it sees that the layers changed, too, and
        // one that sees but the layers' version waits for the lock before it takes its number anew.
        self.version.fetch_add(1, Ordering::Release);
        self.visible_seq.store(seq, Ordering::Release);
        old
    }

    /// Brings what a slot holds up to date.
    #[inline]
    pub fn fill(&self, mut held: Held<'_, L>) {
        let seq = self.visible_seq();
        // Acquire: pairs with `publish`. After the sequence number: see the module's comment.
        if held.version() == self.version.load(Ordering::Acquire) {
            held.set_seq(seq);
        } else {
            self.refill(held);
        }
    }

    #[cold]
    fn refill(&self, mut held: Held<'_, L>) {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: under the lock, layers and version belong together.
        held.set_version(self.version.load(Ordering::Relaxed));
        let old = held.layers.replace(layers.clone());
        // Loaded after the layers were published, so they are exact for it.
        held.set_seq(self.visible_seq());
        // The last to let go of old layers closes files: not while others wait for the new ones.
        drop(layers);
        drop(old);
    }
}
