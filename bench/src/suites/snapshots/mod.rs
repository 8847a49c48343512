//! Suite `snapshots`: what it costs to take a snapshot of the present and to let it go.
//!
//! Owns: the cases and their sizes. Promises: the pair of take and release is counted where it is made, in loops of the
//! engine's own; each thread takes a snapshot now and then that it reads from, and finds in it what was committed
//! before; held snapshots are read at the end, and hold what was there when they were taken.

mod stage;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use self::stage::{Clock, Phase, Span, Spent, Stage};
use super::Suite;
use crate::arguments::Scale;
use crate::context::Context;
use crate::data::{self, Key, Random, Record, VALUE_BYTES};
use crate::engines::snapshots::{self as engines, Held, Opening, Snapshots, Taker};

pub const SUITE: Suite = Suite {
    name: "snapshots",
    engines: &[
        "bygone",
        "rocksdb",
        "speedb",
        "speedb-snap",
        "lmdb",
        "lmdb-renew",
        "redb",
        "fjall",
        "canopydb",
        "wiredtiger",
        "sqlite",
    ],
    cases: &["idle", "paced", "flat_out", "held", "moved", "get"],
    feature: None,
    sizes: |scale| serde_json::to_value(Sizes::of(scale)).unwrap_or_default(),
    run,
};

const THREADS: &[usize] = &[1, 2, 4, 8, 16];

/// Records in one commit of the loading. In the cases a commit has one.
const BATCH: u64 = 1000;

/// Pairs from one look at the phase to the next: some hundred nanoseconds at least.
const PAIRS_AT_ONCE: usize = 100;

/// After these many rounds a thread takes a snapshot that it reads from: every 100,000 pairs.
const ROUNDS_PER_CHECK: u64 = 1000;

/// Handles that go to the next thread at once.
const MOVED_AT_ONCE: usize = 1000;

/// Held snapshots that are of one moment.
const HELD_PER_COMMIT: usize = 100;

#[derive(serde::Serialize)]
struct Sizes {
    keys: u64,
    /// Pairs, or begin, get and end, on each thread.
    span: Span,
    /// How long readers work, and how long they spin, in turns beside the writer that is flat out.
    slice_millis: u64,
    paced_commits_per_second: u64,
    held: usize,
    cache_bytes: usize,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        Sizes {
            keys: scale.pick(100_000, 1_000_000),
            span: Span {
                rounds: scale.pick(100_000, 1_000_000),
                min_millis: scale.pick(100, 1000),
                max_millis: scale.pick(400, 4000),
            },
            slice_millis: scale.pick(50, 250),
            paced_commits_per_second: 10_000,
            held: scale.pick(1000, 10_000) as usize,
            cache_bytes: scale.pick(256 << 20, 1 << 30) as usize,
        }
    }
}

fn run(context: &Context) -> Result<()> {
    let sizes = Sizes::of(context.scale);
    let dir = context.dir.join("snapshots");
    load(&*open(context, &sizes, &dir, false)?, &sizes)?;
    // Each case opens the database anew: what one leaves behind (sessions, slots, a log) is not the next one's.
    for (case, many, run) in [
        ("idle", false, idle as Case),
        ("paced", false, paced),
        ("flat_out", false, flat_out),
        ("held", true, held),
        ("moved", true, moved),
        ("get", false, get),
    ] {
        if context.wants(case) {
            run(context, &sizes, &*open(context, &sizes, &dir, many)?)?;
        }
    }
    Ok(())
}

type Case = fn(&Context, &Sizes, &dyn Snapshots) -> Result<()>;

fn open(context: &Context, sizes: &Sizes, dir: &Path, many: bool) -> Result<Box<dyn Snapshots>> {
    engines::open(
        &context.engine,
        dir,
        Opening { cache_bytes: sizes.cache_bytes, many, memtable_bytes: None, split: false },
    )
}

fn load(engine: &dyn Snapshots, sizes: &Sizes) -> Result<()> {
    let mut next = 0;
    while next < sizes.keys {
        let batch: Vec<_> = (next..sizes.keys.min(next + BATCH)).map(|index| numbered(index, 0)).collect();
        engine.put(&batch)?;
        next += BATCH;
    }
    engine.settle()
}

/// A record that tells in which commit it was written.
fn numbered(index: u64, commit: u64) -> Record {
    let mut record = Record { key: data::key(index), value: [0x5a; VALUE_BYTES] };
    record.value[..8].copy_from_slice(&commit.to_le_bytes());
    record
}

fn number_in(value: Option<Vec<u8>>) -> Result<u64> {
    let value = value.context("a snapshot without a record that is there")?;
    let head = value.first_chunk().context("a value that is too short")?;
    Ok(u64::from_le_bytes(*head))
}

/// Commits of one record each, of which everybody can tell which record it was.
struct Commits {
    keys: u64,
    /// The number of the last that was committed.
    last: AtomicU64,
}

impl Commits {
    fn new(keys: u64) -> Commits {
        Commits { keys, last: AtomicU64::new(0) }
    }

    fn index(&self, commit: u64) -> u64 {
        Random::new(commit).below(self.keys)
    }

    /// The next one. Called by one thread.
    fn commit(&self, engine: &dyn Snapshots) -> Result<()> {
        let commit = self.last.load(Ordering::Relaxed) + 1;
        engine.put(&[numbered(self.index(commit), commit)])?;
        // Release: who sees the number knows that the commit has returned.
        self.last.store(commit, Ordering::Release);
        Ok(())
    }

    /// Takes a snapshot and finds the last commit before it in it, or one after that.
    fn check(&self, taker: &mut dyn Taker) -> Result<()> {
        // Acquire: pairs with `commit`.
        let commit = self.last.load(Ordering::Acquire);
        let found = number_in(taker.read(&data::key(self.index(commit)))?)?;
        ensure!(commit <= found, "a snapshot taken after commit {commit} shows a record of commit {found}");
        Ok(())
    }
}

/// A thread's pairs, with a check now and then.
fn pairs(stage: &Stage, thread: usize, engine: &dyn Snapshots, commits: &Commits) -> Result<Spent> {
    let mut taker = engine.taker()?;
    taker.pairs(PAIRS_AT_ONCE)?;
    let mut rounds = 0;
    stage.play(thread, || {
        taker.pairs(PAIRS_AT_ONCE)?;
        rounds += 1;
        if rounds % ROUNDS_PER_CHECK == 0 {
            commits.check(&mut *taker)?;
        }
        Ok(PAIRS_AT_ONCE as u64)
    })
}

/// Runs the readers, and who is `beside` them, under a conductor; answers what the readers spent together. All begin
/// their parts with [`Stage::wait`] or [`Stage::play`].
fn perform<T: Send>(
    stage: &Stage,
    reader: impl Fn(usize) -> Result<Spent> + Sync,
    beside: Option<impl FnOnce() -> Result<T> + Send>,
    conduct: impl FnOnce(usize),
) -> Result<(Spent, Option<T>)> {
    std::thread::scope(|scope| {
        let reader = &reader;
        let readers: Vec<_> = (0..stage.threads())
            .map(|thread| scope.spawn(move || stage.unless_it_fails(|| reader(thread))))
            .collect();
        let beside = beside.map(|part| scope.spawn(|| stage.unless_it_fails(part)));
        conduct(readers.len() + usize::from(beside.is_some()));
        let mut sum = Spent::default();
        for reader in readers {
            sum = sum.plus(reader.join().unwrap_or_else(|p| std::panic::resume_unwind(p))?);
        }
        let beside = beside.map(|part| part.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        let beside = beside.transpose()?;
        Ok((sum, beside))
    })
}

/// Nobody is beside the readers.
const NOBODY: Option<fn() -> Result<()>> = None;

fn report(context: &Context, case: &str, threads: usize, spent: &Spent) -> Result<()> {
    context.measured(case, threads, spent.nanos_each(), "ns/pair")?;
    context.measured(&format!("{case} cpu"), threads, spent.cpu_nanos_each(), "ns/pair")
}

/// Nobody else is there.
fn idle(context: &Context, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    pairs_alone(context, "idle", sizes, engine)
}

fn pairs_alone(context: &Context, case: &str, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    let commits = Commits::new(sizes.keys);
    for threads in context.threads_or(THREADS) {
        let stage = Stage::new(threads, 0);
        let readers = |thread| pairs(&stage, thread, engine, &commits);
        let (spent, _) = perform(&stage, readers, NOBODY, |all| stage.work(all, sizes.span))?;
        report(context, case, threads, &spent)?;
    }
    Ok(())
}

/// Beside a writer that has a beat.
fn paced(context: &Context, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    let commits = Commits::new(sizes.keys);
    for threads in context.threads_or(THREADS) {
        let stage = Stage::new(threads, 1);
        let readers = |thread| pairs(&stage, thread, engine, &commits);
        let writer = || write_paced(&stage, engine, &commits, sizes.paced_commits_per_second);
        let (spent, written) = perform(&stage, readers, Some(writer), |all| stage.work(all, sizes.span))?;
        report(context, "paced", threads, &spent)?;
        let written = written.context("there is a writer")?;
        let rate = written.count as f64 / written.time.as_secs_f64();
        context.measured("paced writer", threads, rate, "commits/s")?;
    }
    Ok(())
}

/// One commit a beat. Beats that were missed, because the thread did not get a processor, are made up for.
fn write_paced(stage: &Stage, engine: &dyn Snapshots, commits: &Commits, per_second: u64) -> Result<Spent> {
    stage.wait();
    let mut spent = Spent::default();
    let clock = Clock::start();
    let start = Instant::now();
    let mut done = 0;
    while stage.is(Phase::Work) {
        let due = start + Duration::from_nanos(done * 1_000_000_000 / per_second);
        let wait = due.saturating_duration_since(Instant::now());
        if wait > Duration::ZERO {
            std::thread::sleep(wait);
            continue;
        }
        commits.commit(engine)?;
        done += 1;
        if done == 1 {
            stage.reach_goal();
        }
    }
    spent.add(done, &clock);
    Ok(spent)
}

/// Beside a writer that commits as fast as it can. Readers take turns between their pairs and a loop that touches
/// nothing: what the writer commits per processor time beside the one and beside the other tells what the pairs cost
/// the writer, whatever sharing the processor costs it.
fn flat_out(context: &Context, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    let commits = Commits::new(sizes.keys);
    let slice = Duration::from_millis(sizes.slice_millis);
    let mut counts = vec![0];
    counts.extend(context.threads_or(THREADS));
    for threads in counts {
        let stage = Stage::new(threads, 2);
        let readers = |thread| pairs(&stage, thread, engine, &commits);
        let writer = || write_flat_out(&stage, engine, &commits);
        let conduct = |all| stage.work_and_spin(all, sizes.span, slice);
        let (spent, written) = perform(&stage, readers, Some(writer), conduct)?;
        let (beside_pairs, beside_none) = written.context("there is a writer")?;
        context.measured("flat_out writer", threads, rate(&beside_pairs), "commits/s")?;
        context.measured("flat_out writer, of its cpu", threads, cpu_rate(&beside_pairs), "commits/s")?;
        if threads > 0 {
            report(context, "flat_out", threads, &spent)?;
            let lost = 1.0 - cpu_rate(&beside_pairs) / cpu_rate(&beside_none);
            context.measured("flat_out writer lost", threads, lost * 100.0, "%")?;
        }
    }
    Ok(())
}

fn rate(spent: &Spent) -> f64 {
    spent.count as f64 / spent.time.as_secs_f64()
}

fn cpu_rate(spent: &Spent) -> f64 {
    spent.count as f64 / spent.cpu.as_secs_f64()
}

/// What the writer spent while readers worked, and while they spun.
fn write_flat_out(stage: &Stage, engine: &dyn Snapshots, commits: &Commits) -> Result<(Spent, Spent)> {
    let (mut working, mut spinning) = (Spent::default(), Spent::default());
    stage.wait();
    while !stage.is(Phase::Stop) {
        for (phase, spent) in [(Phase::Work, &mut working), (Phase::Spin, &mut spinning)] {
            let clock = Clock::start();
            let mut count = 0;
            while stage.is(phase) {
                commits.commit(engine)?;
                count += 1;
            }
            // Beside many threads the writer may not run in each phase.
            if spent.count == 0 && count > 0 {
                stage.reach_goal();
            }
            spent.add(count, &clock);
        }
    }
    Ok((working, spinning))
}

/// While snapshots of different moments are held.
fn held(context: &Context, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    let wanted = sizes.held.min(engine.held_max());
    let mut taker = engine.taker()?;
    let key = data::key(0);
    let mut moments: Vec<(u64, Box<dyn Held + '_>)> = Vec::new();
    let mut taken = 0;
    while taken < wanted {
        let commit = moments.len() as u64 + 1;
        engine.put(&[numbered(0, commit)])?;
        let count = HELD_PER_COMMIT.min(wanted - taken);
        moments.push((commit, taker.take(count)?));
        taken += count;
    }
    pairs_alone(context, "held", sizes, engine)?;
    for (commit, held) in &moments {
        let found = number_in(held.read(0, &key)?)?;
        ensure!(found == *commit, "a snapshot held since commit {commit} shows a record of commit {found}");
    }
    Ok(())
}

/// Snapshots taken by one thread and let go by the next, in a ring.
fn moved(context: &Context, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    if !engine.can_move() {
        return Ok(());
    }
    for threads in context.threads_or(THREADS).into_iter().filter(|threads| *threads > 1) {
        let stage = Stage::new(threads, 0);
        let inboxes: Vec<_> = (0..threads).map(|_| Inbox::default()).collect();
        let readers = |thread| pass_on(&stage, thread, engine, &inboxes);
        let (spent, _) = perform(&stage, readers, NOBODY, |all| stage.work(all, sizes.span))?;
        report(context, "moved", threads, &spent)?;
    }
    Ok(())
}

type Inbox<'e> = Mutex<Option<Box<dyn Held + 'e>>>;

/// Takes batches for the next thread, lets go those of the one before. The clocks run only while it does either: what
/// it takes to hand over and to wait is not counted.
fn pass_on<'e>(
    stage: &Stage,
    thread: usize,
    engine: &'e dyn Snapshots,
    inboxes: &[Inbox<'e>],
) -> Result<Spent> {
    let (own, next) = (&inboxes[thread], &inboxes[(thread + 1) % inboxes.len()]);
    let mut taker = engine.taker()?;
    // As many as there will be at a time: in hand, in the inbox, and being let go.
    drop((0..3).map(|_| taker.take(MOVED_AT_ONCE)).collect::<Result<Vec<_>>>()?);
    let (mut taking, mut dropping) = (Spent::default(), Spent::default());
    stage.wait();
    while stage.is(Phase::Work) {
        let clock = Clock::start();
        let batch = taker.take(MOVED_AT_ONCE)?;
        taking.add(MOVED_AT_ONCE as u64, &clock);
        let mut batch = Some(batch);
        while batch.is_some() && stage.is(Phase::Work) {
            {
                let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                if next.is_none() {
                    *next = batch.take();
                }
            }
            let received = own.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(received) = received {
                let clock = Clock::start();
                drop(received);
                dropping.add(MOVED_AT_ONCE as u64, &clock);
                stage.count(thread, MOVED_AT_ONCE as u64);
            } else if batch.is_some() {
                std::thread::yield_now();
            }
        }
    }
    // Of each sort of work the mean; at the end some were taken that nobody counted when they were let go.
    let dropped = dropping.count as f64 / taking.count as f64;
    Ok(Spent {
        count: dropping.count,
        time: taking.time.mul_f64(dropped) + dropping.time,
        cpu: taking.cpu.mul_f64(dropped) + dropping.cpu,
    })
}

/// Begin, get of a record that is in memory, end.
fn get(context: &Context, sizes: &Sizes, engine: &dyn Snapshots) -> Result<()> {
    // Each thread begins at another place.
    let mut random = Random::new(3);
    let keys: Vec<Key> = (0..sizes.keys).map(|_| data::key(random.below(sizes.keys))).collect();
    for threads in context.threads_or(THREADS) {
        let stage = Stage::new(threads, 0);
        let readers = |thread| {
            let (then, first) = keys.split_at(keys.len() / threads * thread);
            gets(&stage, thread, engine, first, then)
        };
        let (spent, _) = perform(&stage, readers, NOBODY, |all| stage.work(all, sizes.span))?;
        report(context, "get", threads, &spent)?;
    }
    Ok(())
}

fn gets(stage: &Stage, thread: usize, engine: &dyn Snapshots, first: &[Key], then: &[Key]) -> Result<Spent> {
    let mut taker = engine.taker()?;
    let mut get = |keys: &[Key]| -> Result<u64> {
        let bytes = taker.get_each(keys)?;
        ensure!(bytes == (keys.len() * VALUE_BYTES) as u64, "a get did not find its record");
        Ok(keys.len() as u64)
    };
    // Once without the clock: then everything is in memory.
    get(first)?;
    get(then)?;
    let mut rounds = [first, then].into_iter().cycle().flat_map(|keys| keys.chunks(PAIRS_AT_ONCE));
    stage.play(thread, || get(rounds.next().context("it goes round and round")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::is_built_in;

    /// On each engine that this program has.
    fn on_each(many: bool, test: impl Fn(&dyn Snapshots)) {
        let built = SUITE.engines.iter().filter(|engine| is_built_in(engine));
        for engine in built {
            let dir = tempfile::tempdir().unwrap();
            let engine = engines::open(
                engine,
                dir.path(),
                Opening { cache_bytes: 16 << 20, many, memtable_bytes: None, split: false },
            )
            .unwrap();
            engine.put(&(0..100).map(|index| numbered(index, 0)).collect::<Vec<_>>()).unwrap();
            test(&*engine);
        }
    }

    #[test]
    fn a_snapshot_shows_the_commits_before_it() {
        on_each(false, |engine| {
            let commits = Commits::new(100);
            let mut taker = engine.taker().unwrap();
            for _ in 0..100 {
                commits.commit(engine).unwrap();
                taker.pairs(3).unwrap();
                commits.check(&mut *taker).unwrap();
            }
        });
    }

    #[test]
    fn a_held_snapshot_shows_no_commit_after_it() {
        on_each(true, |engine| {
            let mut taker = engine.taker().unwrap();
            let before = taker.take(3).unwrap();
            engine.put(&[numbered(7, 1)]).unwrap();
            let after = taker.take(2).unwrap();
            let number =
                |held: &dyn Held, index| number_in(held.read(index, &data::key(7)).unwrap()).unwrap();
            assert_eq!(number(&*before, 2), 0);
            assert_eq!(number(&*after, 1), 1);
            drop(after);
            assert_eq!(number(&*before, 0), 0);
        });
    }

    #[test]
    fn another_thread_lets_snapshots_go() {
        on_each(true, |engine| {
            if !engine.can_move() {
                return;
            }
            for _ in 0..3 {
                let held = engine.taker().unwrap().take(10).unwrap();
                std::thread::scope(|scope| scope.spawn(move || drop(held)).join().unwrap());
            }
            engine.put(&[numbered(7, 1)]).unwrap();
            let found = engine.taker().unwrap().read(&data::key(7)).unwrap();
            assert_eq!(number_in(found).unwrap(), 1);
        });
    }

    #[test]
    fn gets_find_what_is_there() {
        on_each(false, |engine| {
            let mut taker = engine.taker().unwrap();
            let keys: Vec<_> = (0..200).map(data::key).collect();
            assert_eq!(taker.get_each(&keys).unwrap(), 100 * VALUE_BYTES as u64);
        });
    }
}
