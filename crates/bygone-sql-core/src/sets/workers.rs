//! Long set queries, shared between two threads.
//!
//! Owns: [`Work`]: the threads, each with a connection of its own, the stretches of snapshots that they take, and what
//! they tell until it is collected. Promises: what is collected is in the order of the snapshots, a failure the first
//! in it; threads end before this does; memory is bounded, however much the query gives. May call: `reader`.
//!
//! A query whose runs take milliseconds spends them in SQLite, which is one thread to a connection. So two threads take
//! stretch after stretch of the snapshots that are left, the shorter the fewer there are. The thread that asks runs
//! nothing any more: it collects, reports, and looks whether all is to end. Functions of the application's are on none
//! of these connections.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::asking::{Place, as_of};
use super::reader::{Asker, Sink};
use crate::directory::locked;
use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, SQLITE_INTERRUPT};
use crate::host::Host;
use crate::statement::{Connection, Kept, Row};

/// How many threads run the query.
const WORKERS: usize = 2;

/// A stretch is a part of the snapshots that are left: this one, but no more than so many.
const STRETCHES: usize = 6;
const STRETCH_MAX: usize = 4;

/// What a thread has told, and nobody has collected, takes as much memory, or is one row.
const TOLD_BYTES_MAX: usize = 4 << 20;

/// Rows are told together.
const BATCH_BYTES: usize = 64 << 10;

/// So often who collects is woken, and not for each short run.
const WAKE_EVERY: Duration = Duration::from_millis(2);

/// How often it is asked whether all is to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a thread may need of stack: as much as those have that applications begin with.
const STACK_BYTES: usize = 8 << 20;

/// Whether set queries can be shared in this process.
pub(super) fn are_possible(host: &Host) -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        thread::available_parallelism().is_ok_and(|threads| threads.get() >= WORKERS)
            && Connection::may_be_many_threads(host)
    })
}

/// A query to be asked of snapshots.
pub(super) struct Work<'w> {
    pub host: &'static Host,
    pub place: &'w Place,
    pub query: &'w str,
    pub snapshots: &'w [u64],
}

/// What is said of each snapshot, in their order: that it is next, and then whether the query was run.
type OnSnapshot<'r> = &'r mut dyn FnMut(u64, Option<bool>) -> Result<()>;

/// What threads tell of a snapshot, in this order: a run, if there was one, and the end.
enum Told {
    Run(Vec<String>),
    Row(Vec<Kept>),
    RunEnd,
    Done,
    Failed(Failure),
}

/// What the threads share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// That all is to end.
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    /// How many snapshots are taken.
    taken: usize,
    /// Stretches that are taken and not collected, by their ends, with who has them.
    stretches: VecDeque<(usize, usize)>,
    workers: [Worker; WORKERS],
    page_reads: u64,
}

#[derive(Default)]
struct Worker {
    told: VecDeque<Told>,
    bytes: usize,
    has_ended: bool,
}

impl Work<'_> {
    /// Asks all snapshots. Answers how often a page was read; `None` if no thread could be begun: nothing was asked.
    /// The asker is that of the thread that is in a call.
    pub fn share(
        &self,
        asker: &Asker<'_>,
        sink: &mut dyn Sink,
        on_snapshot: OnSnapshot<'_>,
    ) -> Result<Option<u64>> {
        let shared = Shared::default();
        let collected = thread::scope(|scope| {
            // Before the threads are waited for, whatever happens here.
            let _end = EndAll(&shared);
            let mut begun = 0;
            for worker in 0..WORKERS {
                let builder = thread::Builder::new().name("bygone-set".to_owned()).stack_size(STACK_BYTES);
                let shared = &shared;
                let work = move || {
                    let _ended = Ended(shared, worker);
                    self.run(shared, worker);
                };
                match builder.spawn_scoped(scope, work) {
                    Ok(_) => begun += 1,
                    // If there is another one, it does all.
                    Err(_) => locked(&shared.state).workers[worker].has_ended = true,
                }
            }
            if begun == 0 {
                return Ok(false);
            }
            self.collect(&shared, asker, sink, on_snapshot).map(|()| true)
        })?;
        Ok(collected.then(|| locked(&shared.state).page_reads))
    }

    /// What a thread does.
    fn run(&self, shared: &Shared, worker: usize) {
        let query = Box::new(|_: &Connection| Ok(self.query.to_owned()));
        let of = (self.place.directory.clone(), self.place.table.clone());
        let mut asker = Asker::of_worker(self.host, shared.stop.clone(), of, query, self.snapshots.to_vec());
        let mut tell =
            Tell { host: self.host, shared, worker, batch: Vec::new(), bytes: 0, woken: Instant::now() };
        while let Some(stretch) = shared.take(worker, self.snapshots.len()) {
            for index in stretch.clone() {
                let snapshot = self.snapshots[index];
                let turned = match index == stretch.start {
                    true => asker.turn_behind_others(snapshot),
                    false => asker.turn(snapshot),
                };
                let asked = turned.and_then(|to_be_run| {
                    if to_be_run {
                        asker.run(snapshot, &mut tell)?;
                    }
                    tell.holds_for(snapshot)
                });
                if let Err(failure) = asked {
                    tell.batch.push(Told::Failed(failure));
                    tell.flush(true);
                    return;
                }
            }
            tell.flush(true);
        }
        locked(&shared.state).page_reads += asker.page_reads();
    }

    fn collect(
        &self,
        shared: &Shared,
        asker: &Asker<'_>,
        sink: &mut dyn Sink,
        on_snapshot: OnSnapshot<'_>,
    ) -> Result<()> {
        let mut told: [VecDeque<Told>; WORKERS] = Default::default();
        for (index, &snapshot) in self.snapshots.iter().enumerate() {
            on_snapshot(snapshot, None)?;
            let worker = shared.who_has(index, asker)?;
            let mut was_run = false;
            loop {
                if told[worker].is_empty() {
                    told[worker] = shared.collect(worker, asker)?;
                }
                let put = match told[worker].pop_front() {
                    None => continue,
                    Some(Told::Run(columns)) => {
                        was_run = true;
                        sink.begin_run(columns)
                    }
                    Some(Told::Row(values)) => sink.push(&Row::Kept(&values)),
                    Some(Told::RunEnd) => sink.end_run(),
                    Some(Told::Done) => break,
                    Some(Told::Failed(failure)) => Err(failure),
                };
                put.map_err(|failure| as_of(&self.place.directory.db, snapshot, failure))?;
            }
            sink.holds_for(snapshot)?;
            on_snapshot(snapshot, Some(was_run))?;
        }
        // They tell how often they have read when nothing is left.
        shared.wait(asker, |state| state.workers.iter().all(|worker| worker.has_ended).then_some(()))
    }
}

impl Default for Shared {
    fn default() -> Shared {
        Shared { state: Mutex::default(), changed: Condvar::new(), stop: Arc::default() }
    }
}

impl Shared {
    /// A stretch of those snapshots that nobody has taken; `None` if there are none, or all is to end.
    fn take(&self, worker: usize, count: usize) -> Option<Range<usize>> {
        let mut state = locked(&self.state);
        let left = count - state.taken;
        if left == 0 || self.is_stopped() {
            return None;
        }
        let first = state.taken;
        state.taken += (left / STRETCHES).clamp(1, STRETCH_MAX);
        let stretch = first..state.taken;
        state.stretches.push_back((stretch.end, worker));
        self.changed.notify_all();
        Some(stretch)
    }

    /// Who has a snapshot; those before it are collected.
    fn who_has(&self, index: usize, asker: &Asker<'_>) -> Result<usize> {
        self.wait(asker, |state| {
            while state.stretches.front().is_some_and(|(end, _)| *end <= index) {
                state.stretches.pop_front();
            }
            state.stretches.front().map(|(_, worker)| *worker)
        })
    }

    /// All that a thread has told since the last time.
    fn collect(&self, worker: usize, asker: &Asker<'_>) -> Result<VecDeque<Told>> {
        let told = self.wait(asker, |state| {
            let worker = &mut state.workers[worker];
            worker.bytes = 0;
            let told = std::mem::take(&mut worker.told);
            (!told.is_empty() || worker.has_ended).then_some(told)
        })?;
        self.changed.notify_all();
        if told.is_empty() { Err(panicked()) } else { Ok(told) }
    }

    /// Waits until there is something, as the thread that asks.
    fn wait<T>(&self, asker: &Asker<'_>, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let mut state = locked(&self.state);
        loop {
            // Also where nothing is to be waited for: rows may come without end.
            if asker.is_interrupted() {
                return Err(Failure::new(SQLITE_INTERRUPT, "interrupted"));
            }
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if state.workers.iter().all(|worker| worker.has_ended) {
                return Err(panicked());
            }
            state = self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_stopped(&self) -> bool {
        // Relaxed: nothing but the flag is told by it.
        self.stop.load(Ordering::Relaxed)
    }
}

fn panicked() -> Failure {
    Failure::new(SQLITE_ERROR, "a thread of the set query has ended with a panic in Bygone")
}

/// Where the runs of a thread go.
struct Tell<'t> {
    host: &'static Host,
    shared: &'t Shared,
    worker: usize,
    batch: Vec<Told>,
    bytes: usize,
    /// When it last woke who collects.
    woken: Instant,
}

impl Tell<'_> {
    /// Tells what was gathered, when there is room for it. Who waits for it is woken, or looks by itself after a while.
    fn flush(&mut self, wake: bool) {
        let mut state = locked(&self.shared.state);
        let is_full = |worker: &Worker| worker.bytes > 0 && worker.bytes + self.bytes > TOLD_BYTES_MAX;
        while is_full(&state.workers[self.worker]) && !self.shared.is_stopped() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let worker = &mut state.workers[self.worker];
        worker.told.extend(self.batch.drain(..));
        worker.bytes += std::mem::take(&mut self.bytes);
        if wake {
            self.woken = Instant::now();
            self.shared.changed.notify_all();
        }
    }

    fn tell(&mut self, told: Told, bytes: usize) -> Result<()> {
        self.batch.push(told);
        self.bytes += bytes;
        if self.bytes >= BATCH_BYTES {
            self.flush(true);
        }
        match self.shared.is_stopped() {
            true => Err(Failure::new(SQLITE_INTERRUPT, "interrupted")),
            false => Ok(()),
        }
    }
}

impl Sink for Tell<'_> {
    fn begin_run(&mut self, columns: Vec<String>) -> Result<()> {
        self.tell(Told::Run(columns), 0)
    }

    fn push(&mut self, row: &Row<'_>) -> Result<()> {
        let values = (0..row.len()).map(|column| Kept::of(self.host, row.value(column)));
        let values = values.collect::<Result<Vec<Kept>>>()?;
        let bytes = values.iter().map(Kept::bytes).sum();
        self.tell(Told::Row(values), bytes)
    }

    fn end_run(&mut self) -> Result<()> {
        self.tell(Told::RunEnd, 0)
    }

    fn holds_for(&mut self, _snapshot: u64) -> Result<()> {
        self.tell(Told::Done, 0)?;
        self.flush(self.woken.elapsed() >= WAKE_EVERY);
        Ok(())
    }

    fn rows(&self) -> u64 {
        0
    }
}

/// Ends all threads when it goes.
struct EndAll<'s>(&'s Shared);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        // Under the lock: who waits for room has looked at the flag before, or will.
        let _state: MutexGuard<'_, State> = locked(&self.0.state);
        // Relaxed: as where it is read.
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.changed.notify_all();
    }
}

/// Says that a thread has ended, also by a panic.
struct Ended<'s>(&'s Shared, usize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).workers[self.1].has_ended = true;
        self.0.changed.notify_all();
    }
}
