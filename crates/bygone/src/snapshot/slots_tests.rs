//! Reader slots as threads use them, and through a whole database.

use std::sync::{Arc, Mutex, Weak, mpsc};

use super::slots::{Held, Local, Registry, Slot, SlotContents};
use crate::io::SimDisk;
use crate::{Db, Options, Snapshot};

/// A kind of layers with statics of its own, so that tests that run at once do not share spare slots.
macro_rules! layers_of_their_own {
    () => {
        struct Layers;

        static SPARES: Mutex<Vec<&'static Slot<Layers>>> = Mutex::new(Vec::new());

        thread_local! {
            static LOCAL: Local<Layers> = const { Local::new() };
        }

        impl SlotContents for Layers {
            fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>> {
                &SPARES
            }
        }

        #[allow(dead_code)] // Not every test needs the layers themselves.
        fn fill_with(layers: &Arc<Layers>) -> impl Fn(&mut Held<Layers>) {
            let layers = layers.clone();
            move |held| *held = Held { seq: 1, version: 1, layers: Some(layers.clone()) }
        }

        fn pin(registry: &Registry<Layers>, fill: impl FnMut(&mut Held<Layers>)) -> &'static Slot<Layers> {
            LOCAL.with(|local| registry.pin(Some(local), fill))
        }
    };
}

fn unpin<L>(slot: &Slot<L>) {
    // SAFETY: each test gives back the pins it took.
    unsafe { slot.unpin() };
}

fn only_weak<L>(layers: Arc<L>) -> Weak<L> {
    Arc::downgrade(&layers)
}

fn nothing<L>(_: &mut Held<L>) {}

#[test]
fn one_thread_holds_thousands_of_views_and_uses_their_slots_again() {
    layers_of_their_own!();
    let registry = Registry::new();
    let slots: Vec<_> = (0..5000).map(|seq| pin(&registry, |held| held.seq = seq)).collect();
    assert_eq!(registry.slot_count(), 5000);
    for (seq, slot) in slots.iter().enumerate() {
        // SAFETY: pinned above.
        assert_eq!(unsafe { slot.held() }.seq, seq as u64);
    }
    slots.iter().for_each(|slot| unpin(slot));
    for _ in 0..3 {
        let again: Vec<_> = (0..5000).map(|_| pin(&registry, nothing)).collect();
        again.iter().for_each(|slot| unpin(slot));
    }
    assert_eq!(registry.slot_count(), 5000);
}

#[test]
fn a_thread_that_takes_one_view_after_another_uses_one_slot() {
    layers_of_their_own!();
    let registry = Registry::new();
    let first = pin(&registry, nothing);
    unpin(first);
    for _ in 0..1000 {
        let slot = pin(&registry, nothing);
        assert!(std::ptr::eq(first, slot));
        unpin(slot);
    }
}

#[test]
fn any_thread_may_release_and_the_owner_pins_the_slot_again() {
    layers_of_their_own!();
    let registry = Registry::new();
    for _ in 0..100 {
        let slot = pin(&registry, nothing);
        std::thread::scope(|scope| {
            scope.spawn(|| unpin(slot));
        });
    }
    assert_eq!(registry.slot_count(), 1);
}

#[test]
fn the_slots_of_a_thread_that_ended_serve_others() {
    layers_of_their_own!();
    let registry = Registry::new();
    for _ in 0..20 {
        // Not scoped: the end of a scoped thread does not wait for its thread-locals' destructors.
        let registry = registry.clone();
        std::thread::spawn(move || {
            let slots = [0; 3].map(|_| pin(&registry, nothing));
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
    let registry = Registry::new();
    let other = registry.clone();
    let held = std::thread::spawn(move || pin(&other, |held| held.seq = 7)).join().unwrap();
    let mine = pin(&registry, |held| held.seq = 8);
    assert!(!std::ptr::eq(held, mine));
    // SAFETY: pinned above.
    assert_eq!(unsafe { held.held() }.seq, 7);
    unpin(held);
    unpin(mine);
}

#[test]
fn a_thread_without_locals_takes_views_too() {
    layers_of_their_own!();
    let registry: Arc<Registry<Layers>> = Registry::new();
    for _ in 0..10 {
        unpin(registry.pin(None, nothing));
    }
    unpin(pin(&registry, nothing));
    assert_eq!(registry.slot_count(), 1);
}

#[test]
fn the_last_of_several_handles_lets_expired_layers_go() {
    layers_of_their_own!();
    let registry = Registry::new();
    let layers = Arc::new(Layers);
    let slot = pin(&registry, fill_with(&layers));
    let layers = only_weak(layers);
    for _ in 0..3 {
        // SAFETY: pinned above.
        unsafe { slot.pin_again() };
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
    let registry = Registry::new();
    let layers = Arc::new(Layers);
    unpin(pin(&registry, fill_with(&layers)));
    let layers = only_weak(layers);
    assert!(layers.upgrade().is_some());
    registry.sweep();
    assert!(layers.upgrade().is_none());
    let slot = pin(&registry, |held| assert_eq!(held.version, 0, "what was cleared must be filled anew"));
    unpin(slot);
}

#[test]
fn a_closed_database_s_slots_serve_the_next_even_while_an_old_view_is_held() {
    layers_of_their_own!();
    let registry = Registry::new();
    let layers = Arc::new(Layers);
    let (held, idle) = (pin(&registry, fill_with(&layers)), pin(&registry, fill_with(&layers)));
    let layers = only_weak(layers);
    unpin(idle);
    drop(registry);
    assert!(layers.upgrade().is_some(), "a view is still held");
    let next = Registry::new();
    let first = pin(&next, nothing);
    assert!(std::ptr::eq(first, idle));
    let second = pin(&next, nothing);
    assert!(!std::ptr::eq(second, held));
    unpin(held);
    assert!(layers.upgrade().is_none());
    let third = pin(&next, nothing);
    assert!(std::ptr::eq(third, held));
    [first, second, third].into_iter().for_each(unpin);
}

#[test]
fn threads_that_take_clone_send_and_drop_views_while_others_sweep_leave_nothing() {
    layers_of_their_own!();
    let registry = Registry::new();
    let mut all: Vec<Weak<Layers>> = Vec::new();
    let current = Mutex::new((1u64, Arc::new(Layers)));
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<&'static Slot<Layers>>();
        scope.spawn(move || receiver.into_iter().for_each(unpin));
        for _ in 0..2 {
            let (registry, current, sender) = (&registry, &current, sender.clone());
            scope.spawn(move || {
                for round in 0..20_000u64 {
                    let slot = pin(registry, |held| {
                        let (version, layers) = current.lock().unwrap().clone();
                        if held.version != version {
                            *held = Held { seq: version, version, layers: Some(layers) };
                        }
                    });
                    // SAFETY: pinned above.
                    let held = unsafe { slot.held() };
                    assert!(held.layers.is_some() && held.seq == held.version);
                    if round % 3 == 0 {
                        // SAFETY: pinned above; the copy is given away.
                        unsafe { slot.pin_again() };
                        sender.send(slot).unwrap();
                    }
                    unpin(slot);
                }
            });
        }
        drop(sender);
        for version in 2..200 {
            let old = std::mem::replace(&mut *current.lock().unwrap(), (version, Arc::new(Layers)));
            all.push(Arc::downgrade(&old.1));
            drop(old);
            registry.sweep();
            std::thread::yield_now();
        }
    });
    registry.sweep();
    assert!(all.iter().all(|layers| layers.upgrade().is_none()), "layers leaked");
}

fn small_database() -> Db {
    let options = Options::new().background(false).memtable_bytes(64 << 10).log_segment_bytes(64 << 10);
    options.open_on(Arc::new(SimDisk::new()), "db").unwrap()
}

#[test]
fn no_layers_outlive_flushes_merges_past_views_and_the_database() {
    let db = small_database();
    let table = db.table("t").unwrap();
    let mut seen: Vec<Weak<super::Layers>> = Vec::new();
    let mut note = |snapshot: &Snapshot| seen.push(Arc::downgrade(snapshot.layers()));
    let mut held = Vec::new();
    for round in 0..12u32 {
        db.put(&table, "k", round.to_be_bytes()).unwrap();
        let id = db.snapshot_now(None).unwrap();
        if round % 3 == 1 {
            db.flush().unwrap();
        }
        if round % 5 == 4 {
            db.merge().unwrap();
        }
        let (now, past) = (db.snapshot(), db.as_of(id).unwrap());
        note(&now);
        note(&past);
        if round % 4 == 0 {
            held.push((round, now));
        }
    }
    note(&db.as_of(bygone_id(1)).unwrap());
    let past = db.as_of(bygone_id(1)).unwrap();
    drop(db);
    for (round, snapshot) in &held {
        assert_eq!(snapshot.get(&table, "k").unwrap().unwrap(), &round.to_be_bytes());
    }
    assert_eq!(past.get(&table, "k").unwrap().unwrap(), &0u32.to_be_bytes());
    drop((held, past));
    let left = seen.iter().filter(|layers| layers.upgrade().is_some()).count();
    assert_eq!(left, 0, "of {} stacks of layers", seen.len());
}

fn bygone_id(id: u64) -> crate::SnapshotId {
    id.into()
}

#[test]
fn an_idle_thread_keeps_no_old_layers() {
    let db = small_database();
    let table = db.table("t").unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let (answer, layers) = mpsc::channel();
    let reader = {
        let db = db.clone();
        std::thread::spawn(move || {
            answer.send(Arc::downgrade(db.snapshot().layers())).unwrap();
            // Idle until the test is over.
            let _ = wait.recv();
        })
    };
    let layers: Weak<super::Layers> = layers.recv().unwrap();
    db.put(&table, "k", "v").unwrap();
    db.merge().unwrap();
    assert!(layers.upgrade().is_none());
    drop(go);
    reader.join().unwrap();
}
