//! Model checks: `loom` runs the shipped slots and [`Current`] through the orders in which threads and
//! memory may behave. `RUSTFLAGS="--cfg loom" cargo test -p bygone --release --lib loom_`
//!
//! The asymmetric fence is modelled by what it is specified to equal, a sequentially consistent fence on both
//! sides (`fence`). Each model is run again without that fence, and without the look that confirms an
//! announcement: then it must fail.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use loom::thread;

use super::fence::{Asymmetric, Fences};
use super::slot::{Held, Side, Slot};
use crate::snapshot::current::Current;

/// The light half does nothing.
pub(super) struct WithoutFence;

impl Fences for WithoutFence {
    fn light() {}

    fn heavy() {
        Asymmetric::heavy();
    }
}

/// Who announces himself does not look again.
pub(super) struct WithoutConfirmation;

impl Fences for WithoutConfirmation {
    const CONFIRMS: bool = false;

    fn light() {
        Asymmetric::light();
    }

    fn heavy() {
        Asymmetric::heavy();
    }
}

/// The marks of two threads.
const OWNER: usize = 4;
const OTHER: usize = 8;

/// Layers, as far as views depend on them.
struct Stack {
    /// The last commit that its memtables can take.
    holds: u64,
    exact_from: u64,
}

/// A slot, and the number of the newest layers. Slots live for ever in the engine; here a model's threads share
/// one that ends with the run.
struct World<F: Fences> {
    slot: Slot<Stack, F>,
    published: loom::sync::atomic::AtomicU64,
}

type Shared<F> = loom::sync::Arc<World<F>>;

impl<F: Fences> World<F> {
    fn new() -> Shared<F> {
        let world = World { slot: Slot::new(), published: loom::sync::atomic::AtomicU64::new(1) };
        world.own(OWNER);
        Shared::new(world)
    }

    fn own(&self, thread: usize) {
        self.slot.owner.set(thread, false);
    }

    fn unpin(&self, thread: usize) {
        // SAFETY: each model gives back the pins it took, on the thread it says.
        unsafe {
            if self.slot.owner.is(thread) {
                self.slot.unpin_owned(thread);
            } else {
                self.slot.unpin_elsewhere();
            }
        }
    }

    fn pin_again(&self, thread: usize) {
        // SAFETY: the models copy only handles they have, on the thread they say.
        unsafe { self.slot.pin_again(thread) };
    }

    /// Pins on the owner's thread; takes new layers where the old ones are out of date, as [`Current::fill`]
    /// does.
    fn try_pin(&self) -> bool {
        let fill = |held: Held<'_, Stack>| {
            let published = self.published.load(Ordering::Acquire);
            if held.version() != published {
                held.set(published, published, Arc::new(Stack { holds: published, exact_from: 1 }));
            }
        };
        // SAFETY: only called on the thread that is `OWNER`.
        unsafe { self.slot.try_pin(fill) }
    }

    /// Reads what a pinned slot holds, as a handle does.
    fn read(&self) -> u64 {
        // SAFETY: the caller has a pin.
        unsafe { self.slot.layers() }.holds
    }

    /// What a writer does that publishes new layers.
    fn publish(&self) {
        self.published.store(2, Ordering::Release);
        self.sweep();
    }

    /// What a registry does with one slot.
    fn sweep(&self) {
        self.slot.mark();
        F::heavy();
        self.slot.clear_if_idle(Side::Sure);
    }
}

/// An idle slot of `OWNER`, with layers of its last view.
fn slot_with_layers<F: Fences>() -> (Shared<F>, Weak<Stack>) {
    let world = World::new();
    assert!(world.try_pin());
    // SAFETY: pinned above.
    let layers = Arc::downgrade(unsafe { world.slot.layers() });
    world.unpin(OWNER);
    (world, layers)
}

pub(super) fn check(model: fn()) {
    check_bounded(3, model);
}

/// Explores every order with at most so many forced switches between threads.
pub(super) fn check_bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Announce and confirm against publish and reclaim.
fn owner_beside_sweep<F: Fences + 'static>() {
    let (slot, old) = slot_with_layers::<F>();
    let sweeper = {
        let slot = slot.clone();
        thread::spawn(move || slot.publish())
    };
    if slot.try_pin() {
        assert!((1..=2).contains(&slot.read()));
        slot.unpin(OWNER);
    }
    sweeper.join().unwrap();
    assert!(old.upgrade().is_none(), "nobody let the old layers go");
    assert!(slot.try_pin(), "the slot can be used again");
    assert_eq!(slot.read(), 2);
}

#[test]
fn loom_a_view_taken_while_the_writer_sweeps_keeps_its_layers_and_leaves_none_behind() {
    check(owner_beside_sweep::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_the_fence_a_view_is_taken_while_it_is_cleared() {
    check(owner_beside_sweep::<WithoutFence>);
}

#[test]
#[should_panic]
fn loom_without_confirmation_a_view_is_taken_while_it_is_cleared() {
    check(owner_beside_sweep::<WithoutConfirmation>);
}

/// The owner and another thread each give a pin back while the slot is swept; the owner then takes it again.
fn released_on_another_thread<F: Fences + 'static>() {
    let (slot, old) = slot_with_layers::<F>();
    assert!(slot.try_pin());
    slot.pin_again(OWNER);
    let other = {
        let slot = slot.clone();
        thread::spawn(move || {
            assert_eq!(slot.read(), 1);
            slot.unpin(OTHER);
        })
    };
    let sweeper = {
        let slot = slot.clone();
        thread::spawn(move || slot.publish())
    };
    assert_eq!(slot.read(), 1);
    slot.unpin(OWNER);
    if slot.try_pin() {
        slot.read();
        slot.unpin(OWNER);
    }
    other.join().unwrap();
    sweeper.join().unwrap();
    assert!(old.upgrade().is_none(), "nobody let the old layers go");
}

#[test]
fn loom_handles_dropped_on_two_threads_while_the_writer_sweeps_leave_no_layers() {
    check_bounded(2, released_on_another_thread::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_the_fence_handles_on_two_threads_are_noticed_too() {
    check_bounded(2, released_on_another_thread::<WithoutFence>);
}

#[test]
#[should_panic]
fn loom_without_confirmation_handles_on_two_threads_are_noticed_too() {
    check_bounded(2, released_on_another_thread::<WithoutConfirmation>);
}

/// The last handle ends on another thread, which clears, while the owner wants the slot again.
fn cleared_by_a_stranger<F: Fences + 'static>() {
    let (slot, old) = slot_with_layers::<F>();
    assert!(slot.try_pin());
    slot.published.store(2, Ordering::Release);
    slot.slot.mark();
    let other = {
        let slot = slot.clone();
        thread::spawn(move || slot.unpin(OTHER))
    };
    for _ in 0..2 {
        if slot.try_pin() {
            assert!((1..=2).contains(&slot.read()));
            slot.unpin(OWNER);
        }
    }
    other.join().unwrap();
    assert!(old.upgrade().is_none(), "nobody let the old layers go");
    assert!(slot.try_pin());
    assert_eq!(slot.read(), 2);
}

#[test]
fn loom_a_stranger_that_drops_the_last_handle_clears_once() {
    check(cleared_by_a_stranger::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_confirmation_a_stranger_clears_under_the_owner() {
    check(cleared_by_a_stranger::<WithoutConfirmation>);
}

/// Two handles of one view, one of them copied on another thread: only the end of all of them lets go.
fn two_readers_at_one_number<F: Fences + 'static>() {
    let (slot, old) = slot_with_layers::<F>();
    assert!(slot.try_pin());
    slot.pin_again(OWNER);
    let other = {
        let slot = slot.clone();
        thread::spawn(move || {
            slot.pin_again(OTHER);
            slot.unpin(OTHER);
            assert_eq!(slot.read(), 1, "the other reader's end took the view away");
            slot.unpin(OTHER);
        })
    };
    slot.unpin(OWNER);
    slot.publish();
    if slot.try_pin() {
        assert_eq!(slot.read(), 2);
        slot.unpin(OWNER);
    }
    other.join().unwrap();
    assert!(old.upgrade().is_none(), "nobody let the old layers go");
}

#[test]
fn loom_two_readers_at_one_number_are_two_pins() {
    check(two_readers_at_one_number::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_confirmation_the_second_reader_loses_its_view() {
    check(two_readers_at_one_number::<WithoutConfirmation>);
}

/// The owner ends while a handle of its view lives on; the next owner takes the slot when that is gone, while
/// the writer publishes.
fn reused_after_thread_exit<F: Fences + 'static>() {
    let (slot, old) = slot_with_layers::<F>();
    assert!(slot.try_pin());
    let other = {
        let slot = slot.clone();
        thread::spawn(move || {
            assert_eq!(slot.read(), 1);
            slot.unpin(OTHER);
        })
    };
    // The owner's thread ends; this one is a new thread from here on.
    slot.own(0);
    let publisher = {
        let slot = slot.clone();
        thread::spawn(move || slot.publish())
    };
    if slot.slot.is_free_for_all() {
        slot.own(OWNER);
        if slot.try_pin() {
            slot.read();
            slot.unpin(OWNER);
        }
    }
    other.join().unwrap();
    publisher.join().unwrap();
    assert!(old.upgrade().is_none(), "nobody let the old layers go");
}

#[test]
fn loom_a_slot_is_used_again_after_its_thread_ended() {
    check_bounded(2, reused_after_thread_exit::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_the_fence_the_next_owner_is_not_seen() {
    check_bounded(2, reused_after_thread_exit::<WithoutFence>);
}

#[test]
#[should_panic]
fn loom_without_confirmation_the_next_owner_sees_nobody() {
    check_bounded(2, reused_after_thread_exit::<WithoutConfirmation>);
}

/// A reader takes views while a writer publishes a memtable, makes the commit in it visible, and a flush
/// replaces the memtable.
fn views_are_exact<F: Fences + 'static>(publish: fn(&Current<Stack>)) {
    check_bounded(3, move || {
        let current = loom::sync::Arc::new(Current::new(Stack { holds: 1, exact_from: 1 }, 1));
        let slot = World::<F>::new();
        let writer = {
            let (current, slot) = (current.clone(), slot.clone());
            thread::spawn(move || {
                publish(&current);
                slot.sweep();
                let visible = current.visible_seq();
                current.publish(|layers| Stack { holds: layers.holds, exact_from: visible });
                slot.sweep();
            })
        };
        for _ in 0..2 {
            // SAFETY: this thread is the owner.
            if unsafe { slot.slot.try_pin(|held| current.fill(held)) } {
                // SAFETY: pinned just now.
                let layers = unsafe { slot.slot.layers() };
                assert!(slot.slot.seq() <= layers.holds, "a visible commit is missing");
                assert!(layers.exact_from <= slot.slot.seq(), "what the view should see was dropped");
                slot.unpin(OWNER);
            }
        }
        writer.join().unwrap();
    });
}

fn memtable_first(current: &Current<Stack>) {
    current.publish(|_| Stack { holds: 2, exact_from: 1 });
    current.set_visible(2);
}

fn number_first(current: &Current<Stack>) {
    current.set_visible(2);
    current.publish(|_| Stack { holds: 2, exact_from: 1 });
}

#[test]
fn loom_every_view_is_exact_whatever_is_published_meanwhile() {
    views_are_exact::<Asymmetric>(memtable_first);
}

/// The model would notice a writer with the wrong order.
#[test]
#[should_panic(expected = "a visible commit is missing")]
fn loom_a_number_that_is_published_before_its_memtable_is_noticed() {
    views_are_exact::<Asymmetric>(number_first);
}

#[test]
#[should_panic]
fn loom_without_the_fence_a_view_is_not_exact() {
    views_are_exact::<WithoutFence>(memtable_first);
}

fn both_at_once(current: &Current<Stack>) {
    current.publish_at(2, |_| Stack { holds: 2, exact_from: 2 });
}

fn layers_then_number(current: &Current<Stack>) {
    current.publish(|_| Stack { holds: 2, exact_from: 2 });
    current.set_visible(2);
}

#[test]
fn loom_a_view_has_number_and_layers_of_a_bulk_commit_or_neither() {
    views_are_exact::<Asymmetric>(both_at_once);
}

#[test]
#[should_panic]
fn loom_a_bulk_commit_in_two_steps_is_seen_halfway() {
    views_are_exact::<Asymmetric>(layers_then_number);
}
