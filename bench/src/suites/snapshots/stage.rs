//! Threads that do the same at the same time, and what it cost each.
//!
//! Owns: the phases of a measurement and the clocks of its threads. Promises: what is counted was done while all
//! threads were at it: they begin together and end together, however slow one is; processor time is a thread's own,
//! as the kernel counts it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// What threads do at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Wait for the others.
    Ready,
    /// What is measured.
    Work,
    /// Keep the processor busy without touching the engine. Beside it a writer runs as if the others' work cost it
    /// nothing.
    Spin,
    Stop,
}

/// How long a measurement goes on.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Span {
    /// At least these many rounds on each thread ...
    pub rounds: u64,
    /// ... and these many milliseconds ...
    pub min_millis: u64,
    /// ... but, if not all threads get there, no more than these, as soon as all have done something, and the
    /// goals are reached.
    pub max_millis: u64,
}

/// What was done, and what it cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub count: u64,
    pub time: Duration,
    pub cpu: Duration,
}

impl Spent {
    pub fn add(&mut self, count: u64, clock: &Clock) {
        let (time, cpu) = clock.read();
        self.count += count;
        self.time += time;
        self.cpu += cpu;
    }

    pub fn plus(self, other: Spent) -> Spent {
        Spent { count: self.count + other.count, time: self.time + other.time, cpu: self.cpu + other.cpu }
    }

    pub fn nanos_each(&self) -> f64 {
        self.time.as_secs_f64() * 1e9 / self.count as f64
    }

    pub fn cpu_nanos_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / self.count as f64
    }
}

/// The wall's clock and this thread's processor time, from a moment on.
pub struct Clock {
    start: Instant,
    cpu: Duration,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { cpu: thread_cpu(), start: Instant::now() }
    }

    fn read(&self) -> (Duration, Duration) {
        (self.start.elapsed(), thread_cpu().saturating_sub(self.cpu))
    }
}

/// The processor time that this thread has used.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that each thread has, and a place for its time.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(code, 0, "this kernel has no processor time of threads");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// On cache lines of its own, so that threads who watch one word do not slow who writes another.
#[repr(align(128))]
struct Apart<T>(T);

/// Threads beside a conductor, who tells them what to do.
pub struct Stage {
    phase: Apart<AtomicU8>,
    ready: AtomicU64,
    failed: AtomicBool,
    /// Rounds that each of the counted threads has done.
    done: Vec<Apart<AtomicU64>>,
    /// What must be reached before the end, besides.
    goals: AtomicU64,
}

impl Stage {
    /// For these many counted threads, and any others, who reach these many goals.
    pub fn new(threads: usize, goals: u64) -> Stage {
        Stage {
            goals: AtomicU64::new(goals),
            phase: Apart(AtomicU8::new(Phase::Ready as u8)),
            ready: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            done: (0..threads).map(|_| Apart(AtomicU64::new(0))).collect(),
        }
    }

    // All atomics here are relaxed: they only say when to begin and end; results come with the threads' ends.

    #[inline]
    pub fn is(&self, phase: Phase) -> bool {
        self.phase.0.load(Ordering::Relaxed) == phase as u8
    }

    fn set(&self, phase: Phase) {
        self.phase.0.store(phase as u8, Ordering::Relaxed);
    }

    pub fn count(&self, thread: usize, rounds: u64) {
        self.done[thread].0.fetch_add(rounds, Ordering::Relaxed);
    }

    /// Called once for each of the goals.
    pub fn reach_goal(&self) {
        self.goals.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn threads(&self) -> usize {
        self.done.len()
    }

    /// A thread's whole part: it says that it is ready, works in its phases, and answers what that cost. `round` does
    /// a piece of work and answers how much that was.
    pub fn play(&self, thread: usize, mut round: impl FnMut() -> Result<u64>) -> Result<Spent> {
        self.wait();
        let mut spent = Spent::default();
        while !self.is(Phase::Stop) {
            if !self.is(Phase::Work) {
                self.spin();
                continue;
            }
            let clock = Clock::start();
            let mut count = 0;
            while self.is(Phase::Work) {
                let more = round()?;
                self.count(thread, more);
                count += more;
            }
            spent.add(count, &clock);
        }
        Ok(spent)
    }

    /// Says that this thread is ready, and waits for the others.
    pub fn wait(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
        while self.is(Phase::Ready) {
            std::thread::yield_now();
        }
    }

    fn spin(&self) {
        let mut turns = 0u64;
        while self.is(Phase::Spin) {
            for _ in 0..1000 {
                turns = std::hint::black_box(turns + 1);
            }
        }
    }

    /// Wraps a thread's part: if it fails, the others need not wait, nor go on.
    pub fn unless_it_fails<T>(&self, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let answer = part();
        if answer.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// The conductor's part, when `all` threads were started: one phase of work.
    pub fn work(&self, all: usize, span: Span) {
        self.wait_for(all);
        let start = Instant::now();
        self.set(Phase::Work);
        while !self.is_over(span, start.elapsed()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.set(Phase::Stop);
    }

    /// The conductor's part: work and spinning in turns, as long of each.
    pub fn work_and_spin(&self, all: usize, span: Span, slice: Duration) {
        self.wait_for(all);
        let start = Instant::now();
        loop {
            self.set(Phase::Work);
            std::thread::sleep(slice);
            self.set(Phase::Spin);
            std::thread::sleep(slice);
            // Half of the time was work.
            if self.is_over(span, start.elapsed() / 2) {
                break;
            }
        }
        self.set(Phase::Stop);
    }

    fn wait_for(&self, all: usize) {
        while self.ready.load(Ordering::Relaxed) < all as u64 && !self.failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_over(&self, span: Span, elapsed: Duration) -> bool {
        let least = self.done.iter().map(|done| done.0.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX);
        let millis = elapsed.as_millis() as u64;
        let enough = least >= span.rounds && millis >= span.min_millis;
        let something = least > 0 && millis >= span.max_millis;
        ((enough || something) && self.goals.load(Ordering::Relaxed) == 0)
            || self.failed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Span = Span { rounds: 1000, min_millis: 20, max_millis: 10_000 };

    fn run(stage: &Stage, threads: usize, conduct: impl FnOnce()) -> Vec<Spent> {
        std::thread::scope(|scope| {
            let playing: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || {
                        stage.play(thread, || {
                            let _ = (0..1000).map(std::hint::black_box).sum::<i32>();
                            Ok(1)
                        })
                    })
                })
                .collect();
            conduct();
            playing.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        })
    }

    #[test]
    fn all_threads_work_for_the_whole_span() {
        let stage = Stage::new(3, 0);
        for spent in run(&stage, 3, || stage.work(3, SHORT)) {
            assert!(spent.count >= 1000);
            assert!(spent.cpu > Duration::ZERO);
        }
    }

    #[test]
    fn processor_time_is_the_threads_own() {
        let stage = Stage::new(2, 0);
        for spent in run(&stage, 2, || stage.work(2, SHORT)) {
            // A tenth more, for clocks that are not read at the same moment.
            assert!(spent.cpu <= spent.time + spent.time / 10, "{spent:?}");
        }
    }

    #[test]
    fn what_threads_spin_is_not_counted() {
        let stage = Stage::new(1, 0);
        let slice = Duration::from_millis(20);
        let start = Instant::now();
        let spent = run(&stage, 1, || stage.work_and_spin(1, SHORT, slice));
        assert!(spent[0].time < start.elapsed() - slice / 2);
    }

    #[test]
    fn a_thread_that_fails_ends_the_work() {
        let stage = &Stage::new(1, 0);
        let endless = Span { rounds: u64::MAX, min_millis: u64::MAX, max_millis: u64::MAX };
        std::thread::scope(|scope| {
            let play = || stage.play(0, || anyhow::bail!("on purpose"));
            let failing = scope.spawn(move || stage.unless_it_fails(play));
            stage.work(1, endless);
            assert!(failing.join().unwrap().is_err());
        });
    }
}
