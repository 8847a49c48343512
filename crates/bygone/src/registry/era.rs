//! Eras: freeing what others may be reading without having counted themselves in.
//!
//! Owns: the clock of eras, the threads' records, and the limbo of what is not freed yet. Promises: what a
//! guard has seen stays until the guard is dropped; entering and leaving are plain stores to the thread's own
//! cache line; a reader that stays for ever keeps at most what existed while it looked, not what comes and
//! goes later. May call: `fence`.
//!
//! Interval-based reclamation (Wen et al., PPoPP 2018), with the fence moved to those who free. Each block
//! knows the era of its birth; when it is taken out of reach it gets the era of its end. A reader announces
//! the interval of eras in which it has looked at blocks, and looks again when the clock has moved on since
//! it announced. A block is freed when its interval overlaps nobody's. The clock moves whenever the limbo is
//! looked through, so blocks born after a reader went to sleep are never kept by it.

use std::marker::PhantomData;
use std::sync::{Arc as Shared, PoisonError};

use super::fence::{Asymmetric, Fences};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// `Record::from` of who is not reading.
const IDLE: u64 = u64::MAX;

/// The end of what was just taken out of reach: not known yet.
const FRESH: u64 = u64::MAX;

/// How much is taken out of reach before the limbo is looked through; more where readers keep more.
const LOOK_AT: usize = 64;

/// One that waits to be freed.
pub(crate) trait Dead: Send {
    /// What [`Eras::now`] was before it could be found.
    fn birth(&self) -> u64;

    /// Nobody reads it any more.
    fn free(self);
}

/// What one thread reads. Aligned so that two never share a cache line, nor the pair that is fetched together.
#[repr(align(128))]
pub(crate) struct Record {
    /// The first era in which the thread may be looking; written by its owner alone, as is `to`.
    from: AtomicU64,
    /// The last.
    to: AtomicU64,
    /// Guards of the thread, one inside the other. Only its owner looks.
    depth: std::sync::atomic::AtomicU32,
    owned: AtomicBool,
    /// Whether it is given back with its last guard: its thread is being torn down.
    pub one_use: std::sync::atomic::AtomicBool,
}

impl Record {
    /// How many guards its thread holds, changed by `change`.
    #[inline]
    pub fn deepen(&self, change: impl FnOnce(u32) -> u32) -> u32 {
        // Relaxed: only the owner's thread looks.
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(change(depth), Ordering::Relaxed);
        depth
    }
}

/// The clock, the records and the limbo for one kind of blocks.
#[repr(C)]
pub(crate) struct Eras<D, F: Fences = Asymmetric> {
    /// Read by everybody all the time, so it has a cache line of its own.
    era: AtomicU64,
    apart: [u64; 15],
    records: Mutex<Vec<Shared<Record>>>,
    limbo: Mutex<Limbo<D>>,
    fences: PhantomData<fn() -> F>,
}

struct Limbo<D> {
    /// With the era of its end.
    dead: Vec<(D, u64)>,
    look_at: usize,
}

macro_rules! new_eras {
    () => {
        Eras {
            era: AtomicU64::new(1),
            apart: [0; 15],
            records: Mutex::new(Vec::new()),
            limbo: Mutex::new(Limbo { dead: Vec::new(), look_at: LOOK_AT }),
            fences: PhantomData,
        }
    };
}

impl<D: Dead, F: Fences> Eras<D, F> {
    #[cfg(not(loom))]
    pub const fn new() -> Eras<D, F> {
        new_eras!()
    }

    #[cfg(loom)]
    pub fn new() -> Eras<D, F> {
        new_eras!()
    }

    /// A record for one thread, until it is given back.
    pub fn take_record(&self) -> Shared<Record> {
        super::fence::prepare();
        let mut records = lock(&self.records);
        // Acquire: pairs with `give_record`.
        if let Some(record) = records.iter().find(|record| !record.owned.swap(true, Ordering::Acquire)) {
            return record.clone();
        }
        let record = Shared::new(Record {
            from: AtomicU64::new(IDLE),
            to: AtomicU64::new(0),
            depth: 0.into(),
            one_use: false.into(),
            owned: AtomicBool::new(true),
        });
        records.push(record.clone());
        record
    }

    /// The record's thread has ended and holds no guard.
    pub fn give_record(&self, record: &Record) {
        // Release: pairs with `take_record`.
        record.owned.store(false, Ordering::Release);
    }

    /// The era that a new block is born in.
    pub fn now(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Announces that the record's thread is going to read.
    #[inline]
    pub fn enter(&self, record: &Record) {
        // Acquire: the clock moved after what ended before was out of reach.
        let era = self.era.load(Ordering::Acquire);
        record.to.store(era, Ordering::Relaxed);
        // Release: who sees this sees at least that `to`.
        record.from.store(era, Ordering::Release);
        F::light();
    }

    #[inline]
    pub fn leave(&self, record: &Record) {
        // Release: our reads end before what we read is freed.
        record.from.store(IDLE, Ordering::Release);
    }

    /// Looks with `load` for a block to read; what it answers stays readable until [`leave`](Eras::leave).
    /// `load` acquires what it finds.
    #[inline(always)]
    pub fn protect<T>(&self, record: &Record, load: impl Fn() -> T) -> T {
        let found = load();
        // Acquire: not before `load`. If the clock has not moved since we announced that era, the block was
        // born in it or before, and whoever takes it out of reach from now on sees the announcement.
        let era = self.era.load(Ordering::Acquire);
        // Relaxed: our own.
        if !F::CONFIRMS || era == record.to.load(Ordering::Relaxed) {
            return found;
        }
        self.protect_anew(record, load)
    }

    #[cold]
    fn protect_anew<T>(&self, record: &Record, load: impl Fn() -> T) -> T {
        loop {
            self.extend(record);
            let found = load();
            // As in `protect`.
            if self.era.load(Ordering::Acquire) == record.to.load(Ordering::Relaxed) {
                return found;
            }
        }
    }

    /// Announces that the thread reads what is there now.
    pub fn extend(&self, record: &Record) {
        record.to.store(self.era.load(Ordering::Acquire), Ordering::Relaxed);
        F::light();
    }

    /// Frees a block when nobody reads it any more.
    ///
    /// # Safety
    /// Nobody can find it any more, and it is retired once.
    pub unsafe fn retire(&self, dead: D) {
        let mut limbo = lock(&self.limbo);
        limbo.dead.push((dead, FRESH));
        if limbo.dead.len() >= limbo.look_at {
            let free = self.look_through(&mut limbo);
            drop(limbo);
            free.into_iter().for_each(|(dead, _)| dead.free());
        }
    }

    /// Frees what nobody reads any more.
    pub fn collect(&self) {
        let mut limbo = lock(&self.limbo);
        if !limbo.dead.is_empty() {
            let free = self.look_through(&mut limbo);
            drop(limbo);
            free.into_iter().for_each(|(dead, _)| dead.free());
        }
    }

    fn look_through(&self, limbo: &mut Limbo<D>) -> Vec<(D, u64)> {
        // All in the limbo was taken out of reach before: who reads it announced so before this fence, or
        // will not find it.
        F::heavy();
        // AcqRel: all changes of the clock are one chain, so who sees this one sees what came before.
        let now = self.era.fetch_add(1, Ordering::AcqRel);
        limbo.dead.iter_mut().filter(|(_, end)| *end == FRESH).for_each(|(_, end)| *end = now);
        let read: Vec<_> = lock(&self.records)
            .iter()
            // Acquire: as said in `enter`, and pairs with `leave`.
            .map(|record| (record.from.load(Ordering::Acquire), record.to.load(Ordering::Acquire)))
            .filter(|(from, _)| *from != IDLE)
            .collect();
        let is_free = |(dead, end): &mut (D, u64)| {
            let birth = dead.birth();
            !read.iter().any(|(from, to)| *from <= *end && birth <= *to)
        };
        let free = limbo.dead.extract_if(.., is_free).collect();
        // Where much is kept it is not gone through for every few that come.
        limbo.look_at = limbo.dead.len() + LOOK_AT.max(limbo.dead.len() / 4);
        free
    }

    /// How many wait to be freed.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        lock(&self.limbo).dead.len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Block {
        birth: u64,
        freed: Shared<std::sync::atomic::AtomicUsize>,
    }

    impl Dead for Block {
        fn birth(&self) -> u64 {
            self.birth
        }

        fn free(self) {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes blocks and takes them out of reach again; answers how many were freed.
    fn come_and_go(eras: &Eras<Block>, count: usize) -> usize {
        let freed = Shared::default();
        for _ in 0..count {
            let dead = Block { birth: eras.now(), freed: Shared::clone(&freed) };
            // SAFETY: nobody ever found it.
            unsafe { eras.retire(dead) };
        }
        eras.collect();
        freed.load(Ordering::Relaxed)
    }

    #[test]
    fn what_nobody_reads_is_freed() {
        let eras = Eras::new();
        let record = eras.take_record();
        assert_eq!(come_and_go(&eras, 1000), 1000);
        eras.enter(&record);
        eras.leave(&record);
        assert_eq!(come_and_go(&eras, 1000), 1000);
        assert_eq!(eras.waiting(), 0);
    }

    #[test]
    fn a_reader_that_stays_keeps_what_was_there_and_no_more() {
        let eras = Eras::new();
        let record = eras.take_record();
        eras.enter(&record);
        // The clock stands while the reader's era lasts: these could be what it looks at.
        assert!(come_and_go(&eras, 10) == 0);
        for _ in 0..100 {
            assert_eq!(come_and_go(&eras, 1000), 1000);
        }
        assert_eq!(eras.waiting(), 10);
        // It looks again, and may see what is there now.
        eras.protect(&record, || ());
        assert!(come_and_go(&eras, 10) < 10);
        assert!(eras.waiting() >= 20);
        eras.leave(&record);
        eras.collect();
        assert_eq!(eras.waiting(), 0);
    }

    #[test]
    fn records_of_ended_threads_serve_others() {
        let eras = Eras::<Block>::new();
        for _ in 0..5 {
            let (first, second) = (eras.take_record(), eras.take_record());
            assert!(!Shared::ptr_eq(&first, &second));
            eras.give_record(&first);
            eras.give_record(&second);
        }
        assert_eq!(lock(&eras.records).len(), 2);
    }
}
