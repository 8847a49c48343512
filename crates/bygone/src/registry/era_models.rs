//! Model checks of the eras: a block is read by one thread while another takes it out of reach and frees it.
//! As in `models`, each is run again without the fence or the confirmation.

use std::sync::Arc as Shared;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::era::{Dead, Eras, Record};
use super::fence::{Asymmetric, Fences};
use super::models::{WithoutConfirmation, WithoutFence, check, check_bounded};

struct Memory(UnsafeCell<u64>);

// SAFETY: whether it is shared soundly is what the models are to show; `loom` says so if not.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new(value: u64) -> Arc<Memory> {
        Arc::new(Memory(UnsafeCell::new(value)))
    }
}

/// `loom` notices when the cell is written (freed) while or without being ordered after a read.
struct Block {
    birth: u64,
    memory: Arc<Memory>,
}

impl Dead for Block {
    fn birth(&self) -> u64 {
        self.birth
    }

    fn free(self) {
        // SAFETY: what the model is to show.
        self.memory.0.with_mut(|memory| unsafe { *memory = 0 });
    }
}

struct World<F: Fences> {
    eras: Eras<Block, F>,
    reader: Shared<Record>,
    /// Where a block is found: 1 if there is one.
    slot: AtomicUsize,
    memory: Arc<Memory>,
}

impl<F: Fences> World<F> {
    fn new(slot: usize) -> Arc<World<F>> {
        let eras = Eras::new();
        let reader = eras.take_record();
        Arc::new(World { eras, reader, slot: AtomicUsize::new(slot), memory: Memory::new(1) })
    }

    fn read(&self) {
        if self.eras.protect(&self.reader, || self.slot.load(Ordering::Acquire)) == 1 {
            // SAFETY: what the model is to show.
            assert_eq!(self.memory.0.with(|memory| unsafe { *memory }), 1, "a freed block was read");
        }
    }

    fn take_out_and_free(&self, birth: u64) {
        if self.slot.swap(0, Ordering::AcqRel) == 1 {
            // SAFETY: it was just taken out.
            unsafe { self.eras.retire(Block { birth, memory: self.memory.clone() }) };
        }
        self.eras.collect();
    }
}

/// A reader comes while a block goes.
fn read_while_it_is_freed<F: Fences + 'static>() {
    let world = World::<F>::new(1);
    let birth = world.eras.now();
    let freeing = {
        let world = world.clone();
        thread::spawn(move || world.take_out_and_free(birth))
    };
    world.eras.enter(&world.reader);
    world.read();
    world.eras.leave(&world.reader);
    freeing.join().unwrap();
    world.eras.collect();
    assert_eq!(world.eras.waiting(), 0, "nobody reads, but something is kept");
}

#[test]
fn loom_a_block_is_not_freed_under_its_reader() {
    check(read_while_it_is_freed::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_the_fence_a_block_is_freed_under_its_reader() {
    check(read_while_it_is_freed::<WithoutFence>);
}

/// A reader that came long ago finds a block that was born since.
fn born_after_the_reader_came<F: Fences + 'static>() {
    let world = World::<F>::new(0);
    world.eras.enter(&world.reader);
    // The clock moves.
    let memory = Memory::new(2);
    // SAFETY: nobody ever found it.
    unsafe { world.eras.retire(Block { birth: world.eras.now(), memory }) };
    world.eras.collect();
    let birth = world.eras.now();
    let writing = {
        let world = world.clone();
        thread::spawn(move || {
            world.slot.store(1, Ordering::Release);
            world.take_out_and_free(birth);
        })
    };
    world.read();
    world.eras.leave(&world.reader);
    writing.join().unwrap();
}

#[test]
fn loom_a_block_born_after_its_reader_came_is_not_freed_under_it() {
    check_bounded(3, born_after_the_reader_came::<Asymmetric>);
}

#[test]
#[should_panic]
fn loom_without_confirmation_a_young_block_is_freed_under_its_reader() {
    check_bounded(3, born_after_the_reader_came::<WithoutConfirmation>);
}

#[test]
#[should_panic]
fn loom_without_the_fence_a_young_block_is_freed_under_its_reader() {
    check_bounded(3, born_after_the_reader_came::<WithoutFence>);
}

/// A reader that stays keeps what was there when it looked, and nothing that was born since.
#[test]
fn loom_a_reader_that_stays_keeps_no_young_blocks() {
    check(|| {
        let world = World::<Asymmetric>::new(1);
        let birth = world.eras.now();
        world.eras.enter(&world.reader);
        world.read();
        let freeing = {
            let world = world.clone();
            thread::spawn(move || {
                world.take_out_and_free(birth);
                let memory = Memory::new(2);
                // SAFETY: nobody ever found it.
                unsafe { world.eras.retire(Block { birth: world.eras.now(), memory }) };
                world.eras.collect();
            })
        };
        freeing.join().unwrap();
        assert_eq!(world.eras.waiting(), 1);
        world.eras.leave(&world.reader);
    });
}
