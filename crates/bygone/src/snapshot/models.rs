//! Model checks: `loom` runs the shipped slots and the shipped [`Current`] through the orders in which
//! threads and memory may behave. `RUSTFLAGS="--cfg loom" cargo test -p bygone --release --lib loom_`

use std::sync::{Arc, Weak};

use loom::thread;

use super::current::Current;
use super::slots::{Held, Slot};

/// Layers, as far as views depend on them.
struct Stack {
    /// The last commit that its memtables can take.
    holds: u64,
    exact_from: u64,
}

/// Slots live for ever in the engine; here a model's threads share one that ends with the run.
type Shared = loom::sync::Arc<Slot<Stack>>;

fn slot_with_layers() -> (Shared, Weak<Stack>) {
    let layers = Arc::new(Stack { holds: 1, exact_from: 0 });
    let weak = Arc::downgrade(&layers);
    let slot = Shared::new(Slot::new());
    assert!(slot.try_pin(|held| *held = Held { seq: 1, version: 1, layers: Some(layers) }));
    // SAFETY: pinned above.
    unsafe { slot.unpin() };
    (slot, weak)
}

/// Reads what a pinned slot holds, as a handle does.
fn read(slot: &Slot<Stack>) -> u64 {
    // SAFETY: the caller has a pin.
    unsafe { slot.held() }.layers.as_ref().expect("a pinned slot holds layers").holds
}

/// Takes new layers where the old ones are gone, as [`Current::fill`] does.
fn fill(held: &mut Held<Stack>) {
    if held.version == 0 {
        *held = Held { seq: 2, version: 2, layers: Some(Arc::new(Stack { holds: 2, exact_from: 2 })) };
    }
}

#[test]
fn loom_a_view_taken_while_the_writer_sweeps_keeps_its_layers_and_leaves_none_behind() {
    loom::model(|| {
        let (slot, old) = slot_with_layers();
        let sweeper = {
            let slot = slot.clone();
            thread::spawn(move || slot.expire())
        };
        if slot.try_pin(fill) {
            assert!((1..=2).contains(&read(&slot)));
            // SAFETY: pinned above.
            unsafe { slot.unpin() };
        }
        sweeper.join().unwrap();
        assert!(old.upgrade().is_none(), "nobody let the old layers go");
        assert!(slot.try_pin(fill), "the slot can be used again");
        assert_eq!(read(&slot), 2);
    });
}

#[test]
fn loom_handles_dropped_on_two_threads_while_the_writer_sweeps_leave_no_layers() {
    loom::model(|| {
        let (slot, old) = slot_with_layers();
        assert!(slot.try_pin(fill));
        // SAFETY: pinned above.
        unsafe { slot.pin_again() };
        let threads = [0, 1].map(|_| {
            let slot = slot.clone();
            thread::spawn(move || {
                assert_eq!(read(&slot), 1);
                // SAFETY: each of the two threads has one of the two pins.
                unsafe { slot.unpin() };
            })
        });
        slot.expire();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(old.upgrade().is_none(), "nobody let the old layers go");
    });
}

#[test]
fn loom_two_sweeps_and_a_release_clear_once() {
    loom::model(|| {
        let (slot, old) = slot_with_layers();
        assert!(slot.try_pin(fill));
        let sweeper = {
            let slot = slot.clone();
            thread::spawn(move || slot.expire())
        };
        let releaser = {
            let slot = slot.clone();
            // SAFETY: the pin above is handed to this thread.
            thread::spawn(move || unsafe { slot.unpin() })
        };
        slot.expire();
        sweeper.join().unwrap();
        releaser.join().unwrap();
        assert!(old.upgrade().is_none());
        assert!(slot.try_pin(fill));
    });
}

#[test]
fn loom_of_two_that_want_one_slot_one_gets_it_at_a_time() {
    loom::model(|| {
        let (slot, _) = slot_with_layers();
        let want = |slot: &Slot<Stack>, seq: u64| {
            let got = slot.try_pin(|held| held.seq = seq);
            if got {
                // SAFETY: pinned just now.
                assert_eq!(unsafe { slot.held() }.seq, seq, "another thread changed a pinned view");
                // SAFETY: as above.
                unsafe { slot.unpin() };
            }
            got
        };
        let other = {
            let slot = slot.clone();
            thread::spawn(move || want(&slot, 7))
        };
        let mine = want(&slot, 8);
        assert!(other.join().unwrap() | mine, "one of them finds it idle");
    });
}

/// A reader takes views while a writer publishes a memtable, makes the commit in it visible, and a flush
/// replaces the memtable.
fn views_are_exact(publish: fn(&Current<Stack>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(move || {
        let current = loom::sync::Arc::new(Current::new(Stack { holds: 1, exact_from: 1 }, 1));
        let slot = Shared::new(Slot::new());
        let writer = {
            let (current, slot) = (current.clone(), slot.clone());
            thread::spawn(move || {
                publish(&current);
                slot.expire();
                let visible = current.visible_seq();
                current.publish(|layers| Stack { holds: layers.holds, exact_from: visible });
                slot.expire();
            })
        };
        for _ in 0..2 {
            if slot.try_pin(|held| current.fill(held)) {
                // SAFETY: pinned just now.
                let held = unsafe { slot.held() };
                let layers = held.layers.as_ref().expect("a pinned slot holds layers");
                assert!(held.seq <= layers.holds, "a visible commit is missing");
                assert!(layers.exact_from <= held.seq, "what the view should see was dropped");
                // SAFETY: as above.
                unsafe { slot.unpin() };
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
    views_are_exact(memtable_first);
}

/// The model would notice a writer with the wrong order.
#[test]
#[should_panic(expected = "a visible commit is missing")]
fn loom_a_number_that_is_published_before_its_memtable_is_noticed() {
    views_are_exact(number_first);
}
