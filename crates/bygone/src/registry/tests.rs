//! Reader slots as threads use them.

use std::sync::{Arc, Mutex, Weak, mpsc};

use super::{Contents, Held, Owned, Registry, Slot, Stack, pin_again};

/// A kind of layers with statics of its own, so that tests that run at once do not share spare slots.
macro_rules! layers_of_their_own {
    () => {
        #[allow(dead_code)] // Not every test looks at it.
        struct Layers {
            version: u64,
        }

        static SPARES: Mutex<Vec<&'static Slot<Layers>>> = Mutex::new(Vec::new());

        thread_local! {
            static STACK: Stack<Layers> = const { Stack::new() };
            static OWNED: Owned<Layers> = const { Owned::new() };
        }

        impl Contents for Layers {
            fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>> {
                &SPARES
            }

            fn with_stack<R>(f: impl FnOnce(&Stack<Self>) -> R) -> R {
                STACK.with(f)
            }

            fn with_owned<R>(f: impl FnOnce(&Owned<Self>) -> R) -> Option<R> {
                OWNED.try_with(f).ok()
            }
        }

        #[allow(dead_code)] // Not every test needs the layers themselves.
        fn fill_with(layers: &Arc<Layers>) -> impl Fn(Held<'_, Layers>) {
            let layers = layers.clone();
            move |held| held.set(1, 1, layers.clone())
        }
    };
}

fn unpin<L: Contents>(slot: &'static Slot<L>) {
    // SAFETY: each test gives back the pins it took.
    unsafe { super::unpin(slot) };
}

fn only_weak<L>(layers: Arc<L>) -> Weak<L> {
    Arc::downgrade(&layers)
}

fn nothing<L>(_: Held<'_, L>) {}

#[test]
fn one_thread_holds_thousands_of_views_and_uses_their_slots_again() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let slots: Vec<_> = (0..5000).map(|seq| registry.pin(|mut held| held.set_seq(seq))).collect();
    assert_eq!(registry.slot_count(), 5000);
    for (seq, slot) in slots.iter().enumerate() {
        assert_eq!(slot.seq(), seq as u64);
    }
    slots.iter().for_each(|slot| unpin(slot));
    for _ in 0..3 {
        let again: Vec<_> = (0..5000).map(|_| registry.pin(nothing)).collect();
        again.iter().for_each(|slot| unpin(slot));
    }
    assert_eq!(registry.slot_count(), 5000);
}

#[test]
fn a_thread_that_takes_one_view_after_another_uses_one_slot() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let first = registry.pin(nothing);
    unpin(first);
    for _ in 0..1000 {
        let slot = registry.pin(nothing);
        assert!(std::ptr::eq(first, slot));
        unpin(slot);
    }
}

#[test]
fn any_thread_may_release_and_the_owner_pins_the_slot_again() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    for _ in 0..100 {
        let slot = registry.pin(nothing);
        std::thread::scope(|scope| {
            scope.spawn(|| unpin(slot));
        });
    }
    assert_eq!(registry.slot_count(), 1);
}

#[test]
fn the_slots_of_a_thread_that_ended_serve_others() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    for _ in 0..20 {
        // Not scoped: the end of a scoped thread does not wait for its thread-locals' destructors.
        let registry = registry.clone();
        std::thread::spawn(move || {
            let slots = [0; 3].map(|_| registry.pin(nothing));
            slots.into_iter().for_each(unpin);
        })
        .join()
        .unwrap();
    }
    assert_eq!(registry.slot_count(), 3);
}

#[test]
fn a_view_that_outlives_its_thread_keeps_its_slot() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let other = registry.clone();
    let held = std::thread::spawn(move || other.pin(|mut held| held.set_seq(7))).join().unwrap();
    let mine = registry.pin(|mut held| held.set_seq(8));
    assert!(!std::ptr::eq(held, mine));
    assert_eq!(held.seq(), 7);
    unpin(held);
    unpin(mine);
}

/// A thread that is being torn down has no list of slots any more.
#[test]
fn a_thread_without_a_list_takes_views_too() {
    struct Layers;

    static SPARES: Mutex<Vec<&'static Slot<Layers>>> = Mutex::new(Vec::new());

    thread_local! {
        static STACK: Stack<Layers> = const { Stack::new() };
    }

    impl Contents for Layers {
        fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>> {
            &SPARES
        }

        fn with_stack<R>(f: impl FnOnce(&Stack<Self>) -> R) -> R {
            STACK.with(f)
        }

        fn with_owned<R>(_: impl FnOnce(&Owned<Self>) -> R) -> Option<R> {
            None
        }
    }

    let registry = Registry::<Layers>::new(false);
    for _ in 0..10 {
        unpin(registry.pin(nothing));
    }
    let (first, second) = (registry.pin(nothing), registry.pin(nothing));
    assert!(!std::ptr::eq(first, second));
    [first, second].into_iter().for_each(unpin);
    assert_eq!(registry.slot_count(), 2);
}

/// The last thing that many threads do with a view: it ends with its thread, in a thread-local.
#[test]
fn a_view_that_ends_with_its_thread_frees_its_slot() {
    layers_of_their_own!();
    struct Kept(&'static Slot<Layers>);
    impl Drop for Kept {
        fn drop(&mut self) {
            unpin(self.0);
        }
    }
    thread_local! {
        static KEPT: std::cell::RefCell<Vec<Kept>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let registry = Registry::<Layers>::new(false);
    for _ in 0..20 {
        let registry = registry.clone();
        std::thread::spawn(move || {
            // Both orders of the thread-locals: made before the registry's own, and after.
            KEPT.with(|kept| kept.borrow_mut().push(Kept(registry.pin(nothing))));
            KEPT.with(|kept| kept.borrow_mut().push(Kept(registry.pin(nothing))));
        })
        .join()
        .unwrap();
    }
    assert!(registry.slot_count() <= 4, "{} slots", registry.slot_count());
    registry.for_each(|slot| assert!(slot.is_idle()));
}

#[test]
fn ten_thousand_held_views_cost_those_that_come_and_go_no_slot() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let held: Vec<_> = (0..10_000).map(|_| registry.pin(nothing)).collect();
    let other = Registry::<Layers>::new(false);
    for round in 0..10_000 {
        let mut nested: Vec<_> = (0..20).map(|_| registry.pin(nothing)).collect();
        if round % 3 == 0 {
            // Another database in between.
            unpin(other.pin(nothing));
        }
        if round % 2 == 0 {
            nested.reverse();
        }
        nested.into_iter().for_each(unpin);
    }
    assert!(registry.slot_count() < 11_500, "{} slots", registry.slot_count());
    assert_eq!(other.slot_count(), 1);
    held.into_iter().for_each(unpin);
    for _ in 0..2 {
        let again: Vec<_> = (0..10_000).map(|_| registry.pin(nothing)).collect();
        again.into_iter().for_each(unpin);
    }
    assert!(registry.slot_count() < 11_500, "{} slots", registry.slot_count());
}

#[test]
fn views_that_end_elsewhere_leave_their_slots_to_the_next() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let held: Vec<_> = (0..100).map(|_| registry.pin(nothing)).collect();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel::<&'static Slot<Layers>>(10);
        scope.spawn(move || receiver.into_iter().for_each(unpin));
        for _ in 0..20_000 {
            sender.send(registry.pin(nothing)).unwrap();
        }
    });
    assert!(registry.slot_count() < 200, "{} slots", registry.slot_count());
    held.into_iter().for_each(unpin);
}

#[test]
fn the_last_of_several_handles_lets_expired_layers_go() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let layers = Arc::new(Layers { version: 1 });
    let slot = registry.pin(fill_with(&layers));
    let layers = only_weak(layers);
    for _ in 0..3 {
        // SAFETY: pinned above.
        unsafe { pin_again(slot) };
    }
    registry.sweep();
    for _ in 0..3 {
        unpin(slot);
        assert!(layers.upgrade().is_some(), "a handle is left");
    }
    unpin(slot);
    assert!(layers.upgrade().is_none());
}

#[test]
fn idle_slots_keep_their_layers_until_they_are_swept() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let layers = Arc::new(Layers { version: 1 });
    unpin(registry.pin(fill_with(&layers)));
    let layers = only_weak(layers);
    assert!(layers.upgrade().is_some());
    registry.sweep();
    assert!(layers.upgrade().is_none());
    let slot = registry.pin(|held| assert_eq!(held.version(), 0, "what was cleared must be filled anew"));
    unpin(slot);
}

#[test]
fn a_closed_database_s_slots_serve_the_next_even_while_an_old_view_is_held() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let layers = Arc::new(Layers { version: 1 });
    let (held, idle) = (registry.pin(fill_with(&layers)), registry.pin(fill_with(&layers)));
    let layers = only_weak(layers);
    unpin(idle);
    drop(registry);
    assert!(layers.upgrade().is_some(), "a view is still held");
    let next = Registry::<Layers>::new(false);
    let first = next.pin(nothing);
    assert!(std::ptr::eq(first, idle));
    let second = next.pin(nothing);
    assert!(!std::ptr::eq(second, held));
    unpin(held);
    assert!(layers.upgrade().is_none());
    let third = next.pin(nothing);
    assert!(std::ptr::eq(third, held));
    [first, second, third].into_iter().for_each(unpin);
}

#[test]
fn threads_that_take_clone_send_and_drop_views_while_others_sweep_leave_nothing() {
    layers_of_their_own!();
    let registry = Registry::<Layers>::new(false);
    let mut all: Vec<Weak<Layers>> = Vec::new();
    let current = Mutex::new((1u64, Arc::new(Layers { version: 1 })));
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<&'static Slot<Layers>>();
        scope.spawn(move || receiver.into_iter().for_each(unpin));
        for _ in 0..2 {
            let (registry, current, sender) = (&registry, &current, sender.clone());
            scope.spawn(move || {
                for round in 0..20_000u64 {
                    let slot = registry.pin(|held| {
                        let (version, layers) = current.lock().unwrap().clone();
                        if held.version() != version {
                            held.set(version, version, layers);
                        }
                    });
                    assert_eq!(slot.seq(), slot.version());
                    // SAFETY: pinned above; views do not expire here.
                    assert_eq!(unsafe { slot.layers() }.version, slot.version());
                    if round % 3 == 0 {
                        // SAFETY: pinned above; the copy is given away.
                        unsafe { pin_again(slot) };
                        sender.send(slot).unwrap();
                    }
                    unpin(slot);
                }
            });
        }
        drop(sender);
        for version in 2..200 {
            let old =
                std::mem::replace(&mut *current.lock().unwrap(), (version, Arc::new(Layers { version })));
            all.push(Arc::downgrade(&old.1));
            drop(old);
            registry.sweep();
            std::thread::yield_now();
        }
    });
    registry.sweep();
    assert!(all.iter().all(|layers| layers.upgrade().is_none()), "layers leaked");
}
