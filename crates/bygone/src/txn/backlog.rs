//! Memtables between the write path and the flush, and how writers are slowed when it grows.
//!
//! Owns: the frozen memtables in order, the standby memtable, and the pressure on writers. Promises: writers
//! slow down smoothly before they are ever stopped, and are never stopped for good: a poisoned database wakes
//! them. May call: memtable.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::health::Health;
use crate::memtable::{Memtable, MemtableBytes};

/// How many frozen memtables may wait before writers are stopped. They are memory beyond the active one.
const FROZEN_MAX: usize = 4;

/// Runs that may wait for a merge before writers are slowed, and before they are stopped.
const RUNS_SLOW: usize = 28;
const RUNS_STOP: usize = crate::limits::RUNS_MAX - 8;

/// How many bytes of runs may wait for each byte of the base, before writers are slowed and before they are
/// stopped. A merge begins at half of it; this is for what is written meanwhile, and bounds the room that the
/// database takes.
const RUN_PART_SLOW: f64 = 0.65;
const RUN_PART_STOP: f64 = 1.0;

/// A base that is smaller than this many memtables counts as so large: as long as there is little data, there
/// is little to bound, and each merge that writers wait for rewrites much of the base for few records. Where
/// somebody scans, many runs cost more than that, and writers wait sooner.
const BASE_MEMTABLES_MIN: u64 = 8;
const BASE_MEMTABLES_MIN_SCANNED: u64 = 4;

/// The delay at full pressure, in nanoseconds for each byte committed: about 5 MB/s.
const DELAY_NANOS_PER_BYTE: f64 = 200.0;

/// Shorter delays are saved up: the kernel does not sleep well for less.
const SLEEP_NANOS_MIN: u64 = 500_000;

/// How long to wait before looking again whether the database was poisoned meanwhile.
const RECHECK: Duration = Duration::from_millis(50);

/// A memtable that takes no more commits.
#[derive(Clone)]
pub(crate) struct Frozen {
    pub memtable: Arc<Memtable>,
    /// The last commit in it, or before it if it is empty.
    pub last_seq: u64,
    /// The log segment with which the next memtable begins: after the flush, nothing before it is needed.
    pub next_segment: u64,
    /// The id of the first snapshot declared behind it.
    pub next_snapshot_id: u64,
    pub last_time_micros: u64,
}

pub(crate) struct Backlog {
    health: Arc<Health>,
    memtable_bytes: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    delay_debt_nanos: AtomicU64,
    /// What a commit calls in place of waiting when there are no background threads.
    inline_work: OnceLock<Box<dyn Fn() -> Result<()> + Send + Sync>>,
}

struct Queue {
    /// Oldest first.
    frozen: VecDeque<Frozen>,
    standby: Option<Memtable>,
    runs: usize,
    /// Bytes of runs for each byte of the base.
    run_part: f64,
    closing: bool,
}

impl Backlog {
    pub fn new(health: Arc<Health>, memtable_bytes: usize) -> Backlog {
        let queue = Queue { frozen: VecDeque::new(), standby: None, runs: 0, run_part: 0.0, closing: false };
        Backlog {
            health,
            memtable_bytes,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            delay_debt_nanos: AtomicU64::new(0),
            inline_work: OnceLock::new(),
        }
    }

    /// Makes commits do the flushing and merging themselves as soon as something is frozen. Called once,
    /// before any commit.
    pub fn set_inline_work(&self, work: impl Fn() -> Result<()> + Send + Sync + 'static) {
        let set = self.inline_work.set(Box::new(work));
        assert!(set.is_ok(), "inline work is set once");
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The standby memtable, or one made now if the background has not come round to it.
    pub fn next_memtable(&self) -> Memtable {
        let standby = self.lock().standby.take();
        standby.unwrap_or_else(|| Memtable::new(self.memtable_bytes))
    }

    pub fn needs_standby(&self) -> bool {
        self.lock().standby.is_none()
    }

    /// Prepares the next memtable off the write path.
    pub fn prepare_standby(&self) {
        if self.needs_standby() {
            let mut memtable = Memtable::new(self.memtable_bytes);
            memtable.touch();
            self.lock().standby.get_or_insert(memtable);
        }
    }

    pub fn standby_bytes(&self) -> MemtableBytes {
        self.lock().standby.as_ref().map(Memtable::bytes).unwrap_or_default()
    }

    /// Adds what is to be flushed; [`Backlog::wake`] tells the flush of it.
    pub fn push(&self, frozen: Frozen) {
        self.lock().frozen.push_back(frozen);
    }

    pub fn oldest(&self) -> Option<Frozen> {
        self.lock().frozen.front().cloned()
    }

    /// The oldest frozen memtable is in a run now.
    pub fn pop(&self) {
        self.lock().frozen.pop_front();
        self.changed.notify_all();
    }

    /// Tells how many runs wait for a merge, how many bytes they and the base hold, and whether somebody scans.
    pub fn set_runs(&self, runs: usize, run_bytes: u64, base_bytes: u64, scanned: bool) {
        let memtables = if scanned { BASE_MEMTABLES_MIN_SCANNED } else { BASE_MEMTABLES_MIN };
        let base_bytes = base_bytes.max(memtables * self.memtable_bytes as u64);
        {
            let mut queue = self.lock();
            queue.runs = runs;
            queue.run_part = run_bytes as f64 / base_bytes as f64;
        }
        self.changed.notify_all();
    }

    /// Wakes everybody who waits here, to look round.
    pub fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    /// Waits for a frozen memtable; `None` when closing, or after `timeout`.
    pub fn wait_for_work(&self, timeout: Duration) -> (Option<Frozen>, bool) {
        let mut queue = self.lock();
        if queue.frozen.is_empty() && !queue.closing {
            queue = self.changed.wait_timeout(queue, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        (queue.frozen.front().cloned(), queue.closing)
    }

    /// Waits until everything up to this commit is flushed, none of which is in the active memtable any more.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn wait_until_flushed(&self, seq: u64) -> Result<()> {
        let mut queue = self.lock();
        // Others may freeze faster than the flush comes round, so an empty queue may never be seen.
        while queue.frozen.front().is_some_and(|oldest| oldest.last_seq <= seq) {
            self.health.check()?;
            queue = self.changed.wait_timeout(queue, RECHECK).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.health.check()
    }

    /// How full the backlog is: 0 is no pressure, 1 stops writers.
    fn pressure(queue: &Queue) -> f64 {
        // One frozen memtable is how it should be: it is being flushed while the next fills.
        let frozen = queue.frozen.len().saturating_sub(1) as f64 / (FROZEN_MAX - 1) as f64;
        let runs = queue.runs.saturating_sub(RUNS_SLOW) as f64 / (RUNS_STOP - RUNS_SLOW) as f64;
        let run_part = (queue.run_part - RUN_PART_SLOW) / (RUN_PART_STOP - RUN_PART_SLOW);
        frozen.max(runs).max(run_part)
    }

    /// Called after each commit, with its size in bytes: waits as long as the backlog asks for.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn slow_down(&self, bytes: usize) -> Result<()> {
        let mut queue = self.lock();
        if let Some(work) = self.inline_work.get() {
            let due = !queue.frozen.is_empty();
            drop(queue);
            return if due { work() } else { Ok(()) };
        }
        let mut pressure = Self::pressure(&queue);
        if pressure <= 0.0 {
            return Ok(());
        }
        while pressure >= 1.0 {
            self.health.check()?;
            queue = self.changed.wait_timeout(queue, RECHECK).unwrap_or_else(PoisonError::into_inner).0;
            pressure = Self::pressure(&queue);
        }
        drop(queue);
        // The square keeps light pressure light.
        let nanos = (bytes as f64 * DELAY_NANOS_PER_BYTE * pressure * pressure) as u64;
        // Relaxed: a running sum; nothing is published through it.
        let debt = self.delay_debt_nanos.fetch_add(nanos, Ordering::Relaxed) + nanos;
        if debt >= SLEEP_NANOS_MIN
            && self.delay_debt_nanos.compare_exchange(debt, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let end = Instant::now() + Duration::from_nanos(debt.min(1_000_000_000));
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                self.health.check()?;
                std::thread::sleep(left.min(RECHECK));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMTABLE_BYTES: usize = 64 << 10;

    fn backlog() -> Arc<Backlog> {
        Arc::new(Backlog::new(Arc::new(Health::default()), MEMTABLE_BYTES))
    }

    fn frozen() -> Frozen {
        let memtable = Arc::new(Memtable::new(MEMTABLE_BYTES));
        Frozen { memtable, last_seq: 0, next_segment: 1, next_snapshot_id: 1, last_time_micros: 0 }
    }

    fn pressure(backlog: &Backlog) -> f64 {
        Backlog::pressure(&backlog.lock())
    }

    #[test]
    fn pressure_grows_with_whatever_waits_and_goes_again() {
        let backlog = backlog();
        let mut last = pressure(&backlog);
        assert!(last <= 0.0);
        for _ in 0..FROZEN_MAX {
            backlog.push(frozen());
            assert!(pressure(&backlog) >= last);
            last = pressure(&backlog);
        }
        assert!(last >= 1.0, "so many frozen memtables stop writers");
        (0..FROZEN_MAX).for_each(|_| backlog.pop());
        let gib = 1 << 30;
        let steps = [(RUNS_SLOW, 0, 0.0), (RUNS_STOP, 0, 1.0), (1, gib / 2, 0.0), (1, gib, 1.0), (0, 0, 0.0)];
        for (runs, run_bytes, expected) in steps {
            backlog.set_runs(runs, run_bytes, gib, false);
            assert_eq!(pressure(&backlog).clamp(0.0, 1.0), expected, "{runs} runs of {run_bytes} bytes");
        }
    }

    #[test]
    fn over_a_small_base_scans_make_writers_wait_sooner() {
        let backlog = backlog();
        let run_bytes = BASE_MEMTABLES_MIN_SCANNED * MEMTABLE_BYTES as u64;
        backlog.set_runs(4, run_bytes, 0, true);
        assert!(pressure(&backlog) >= 1.0);
        backlog.set_runs(4, run_bytes, 0, false);
        assert!(pressure(&backlog) <= 0.0);
        for scanned in [false, true] {
            backlog.set_runs(4, run_bytes, 4 * run_bytes, scanned);
            assert!(pressure(&backlog) <= 0.0, "a larger base counts as it is");
        }
    }

    #[test]
    fn a_stopped_writer_goes_on_when_the_flush_has_caught_up() {
        let backlog = backlog();
        (0..FROZEN_MAX).for_each(|_| backlog.push(frozen()));
        let writer = std::thread::spawn({
            let backlog = backlog.clone();
            move || backlog.slow_down(100)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!writer.is_finished());
        (0..FROZEN_MAX).for_each(|_| backlog.pop());
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn a_stopped_writer_learns_that_the_database_is_poisoned() {
        let backlog = backlog();
        (0..FROZEN_MAX).for_each(|_| backlog.push(frozen()));
        let writer = std::thread::spawn({
            let backlog = backlog.clone();
            move || backlog.slow_down(100)
        });
        backlog.health.poison("the flush failed");
        backlog.wake();
        assert!(writer.join().unwrap().is_err());
    }
}
