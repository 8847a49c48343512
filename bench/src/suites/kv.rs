//! Suite `kv`: plain key-value work, and what keeping the past adds to it.
//!
//! Owns: the cases and their sizes. Promises: keys in random order, values that do not compress, every get
//! finds its record, every scan sees all.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;

use super::{Suite, new_histogram, on_threads};
use crate::arguments::Scale;
use crate::context::Context;
use crate::data::{self, RECORD_BYTES, Random, Record, VALUE_BYTES};
use crate::engines::{self, Access, Durability, Engine, Past, Reader, Setup};
use crate::machine;
use crate::meter::{Meter, directory_bytes};

pub const SUITE: Suite = Suite {
    name: "kv",
    engines: &["bygone", "redb", "fjall", "lmdb"],
    cases: &["load", "get", "scan", "begin", "overwrite", "durable", "as_of", "declare"],
    feature: None,
    sizes: |scale| serde_json::to_value(Sizes::of(scale)).unwrap_or_default(),
    run,
};

/// Records in one commit, but where a case says otherwise.
const BATCH: u64 = 10;

/// Keys are made outside the clock, this many at a time.
const KEYS_AT_ONCE: usize = 10_000;

#[derive(serde::Serialize)]
struct Sizes {
    keys: u64,
    overwrites: u64,
    gets: u64,
    scans: u64,
    durable_commits_each: u64,
    begins: u64,
    declared_keys: u64,
    declared_commits: u64,
    as_of_opens: u64,
    cache_bytes: usize,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        Sizes {
            keys: scale.pick(200_000, 5_000_000),
            overwrites: scale.pick(600_000, 30_000_000),
            gets: scale.pick(400_000, 5_000_000),
            scans: scale.pick(10, 3),
            durable_commits_each: scale.pick(500, 3_000),
            begins: scale.pick(2_000_000, 20_000_000),
            declared_keys: scale.pick(50_000, 1_000_000),
            declared_commits: scale.pick(5_000, 100_000),
            as_of_opens: scale.pick(2_000, 20_000),
            cache_bytes: scale.pick(256 << 20, 2 << 30) as usize,
        }
    }
}

fn run(context: &Context) -> Result<()> {
    let sizes = Sizes::of(context.scale);
    let setup = Setup { cache_bytes: sizes.cache_bytes, memtable_bytes: None, split: false };
    let on_loaded = ["load", "get", "scan", "begin", "overwrite", "durable", "as_of"];
    if on_loaded.iter().any(|case| context.wants(case)) {
        let (engine, dir) = load(context, &sizes, setup)?;
        let engine = &*engine;
        get(context, &sizes, engine)?;
        scan(context, &sizes, engine)?;
        begin(context, &sizes, engine)?;
        overwrite(context, &sizes, engine, &dir)?;
        durable(context, &sizes, engine, &dir)?;
        if let Some(past) = engine.past() {
            as_of(context, &sizes, engine, past)?;
        }
    }
    if context.wants("declare") {
        let engine = engines::open(&context.engine, &context.dir.join("declare"), setup)?;
        if let Some(past) = engine.past() {
            declare(context, &sizes, &*engine, past)?;
        }
    }
    Ok(())
}

/// Puts all keys once, in random order. The database of the last number of threads is the one the other cases
/// go on with.
fn load(context: &Context, sizes: &Sizes, setup: Setup) -> Result<(Box<dyn Engine>, PathBuf)> {
    let counts = if context.wants("load") { context.threads_or(&[2]) } else { vec![2] };
    let mut loaded: Option<(Box<dyn Engine>, PathBuf)> = None;
    for threads in counts {
        if let Some((engine, dir)) = loaded.take() {
            drop(engine);
            std::fs::remove_dir_all(dir)?;
        }
        let dir = context.dir.join(format!("load-{threads}"));
        let engine = engines::open(&context.engine, &dir, setup)?;
        let meter = Meter::start()?;
        put_all(&*engine, sizes.keys, threads)?;
        let cost = meter.cost()?;
        engine.settle()?;
        let settled = meter.cost()?;
        if context.wants("load") {
            context.measured("load", threads, cost.per_second(sizes.keys), "puts/s")?;
            context.measured("load settled", threads, settled.per_second(sizes.keys), "puts/s")?;
            context.measured("load cpu", threads, settled.cpu_nanos_each(sizes.keys), "ns/put")?;
            let live_bytes = (sizes.keys * RECORD_BYTES) as f64;
            context.measured(
                "load bytes written",
                threads,
                settled.written_bytes as f64 / live_bytes,
                "x",
            )?;
            context.measured("load size", threads, directory_bytes(&dir)? as f64 / live_bytes, "x")?;
        }
        loaded = Some((engine, dir));
    }
    loaded.context("at least one number of threads")
}

fn put_all(engine: &dyn Engine, keys: u64, threads: usize) -> Result<()> {
    on_threads(threads, |thread| {
        let (first, end) = (keys * thread / threads as u64, keys * (thread + 1) / threads as u64);
        let mut batch = Vec::new();
        let mut next = first;
        while next < end {
            batch.clear();
            batch.extend((next..end.min(next + BATCH)).map(|index| Record::new(index, 0)));
            engine.commit(&batch, Durability::Buffered)?;
            next += BATCH;
        }
        Ok(())
    })?;
    Ok(())
}

/// Random puts over what is there, while flushes and merges keep up: the clock stops when the work that was
/// put off is bounded.
fn overwrite(context: &Context, sizes: &Sizes, engine: &dyn Engine, dir: &Path) -> Result<()> {
    if !context.wants("overwrite") {
        return Ok(());
    }
    for threads in context.threads_or(&[2]) {
        let commits_each = sizes.overwrites / BATCH / threads as u64;
        let puts = commits_each * BATCH * threads as u64;
        let before = engine.written()?;
        let meter = Meter::start()?;
        let latencies = on_threads(threads, |thread| overwrite_on(engine, sizes.keys, commits_each, thread))?;
        engine.catch_up()?;
        let cost = meter.cost()?;
        let drain = Instant::now();
        engine.settle()?;
        let drain = drain.elapsed();
        let settled = meter.cost()?;
        let mut latency = new_histogram()?;
        for other in latencies {
            latency.add(other)?;
        }
        let application_bytes = (puts * RECORD_BYTES) as f64;
        context.measured("overwrite", threads, cost.per_second(puts), "puts/s")?;
        context.measured("overwrite drain", threads, drain.as_secs_f64(), "s")?;
        context.measured("overwrite cpu", threads, settled.cpu_nanos_each(puts), "ns/put")?;
        let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        context.measured("overwrite p50", threads, micros(0.5), "us")?;
        context.measured("overwrite p99.99", threads, micros(0.9999), "us")?;
        context.measured("overwrite worst", threads, latency.max() as f64 / 1e3, "us")?;
        let written = settled.written_bytes as f64 / application_bytes;
        context.measured("overwrite bytes written", threads, written, "x")?;
        if let (Some(before), Some(after)) = (before, engine.written()?) {
            let application_bytes = (after.application_bytes - before.application_bytes) as f64;
            let written = (after.file_bytes - before.file_bytes) as f64 / application_bytes;
            context.measured("overwrite bytes written, own", threads, written, "x")?;
        }
        let live_bytes = (sizes.keys * RECORD_BYTES) as f64;
        context.measured("overwrite size", threads, directory_bytes(dir)? as f64 / live_bytes, "x")?;
    }
    Ok(())
}

/// Answers the latencies of the commits.
fn overwrite_on(engine: &dyn Engine, keys: u64, commits: u64, thread: u64) -> Result<Histogram<u64>> {
    let mut latencies = new_histogram()?;
    let mut random = Random::new(1 + thread);
    let mut batch = Vec::new();
    for commit in 0..commits {
        batch.clear();
        batch.extend((0..BATCH).map(|_| Record::new(random.below(keys), 1 + commit)));
        let start = Instant::now();
        engine.commit(&batch, Durability::Buffered)?;
        latencies.saturating_record(start.elapsed().as_nanos() as u64);
    }
    Ok(latencies)
}

fn get(context: &Context, sizes: &Sizes, engine: &dyn Engine) -> Result<()> {
    if !context.wants("get") {
        return Ok(());
    }
    for threads in context.threads_or(&[1]) {
        for (name, access) in [("get", Access::Owned), ("get_with", Access::Borrowed)] {
            // Once without the clock: then everything is in memory.
            on_threads(threads, |thread| get_random(&*engine.reader()?, sizes, thread, access))?;
            let meter = Meter::start()?;
            let times = on_threads(threads, |thread| get_random(&*engine.reader()?, sizes, thread, access))?;
            let cpu = meter.cost()?.cpu;
            let rate: f64 = times.iter().map(|time| sizes.gets as f64 / time.as_secs_f64()).sum();
            context.measured(name, threads, rate, "gets/s")?;
            // With the making of the keys, which is the same for all.
            let gets = sizes.gets * threads as u64;
            context.measured(&format!("{name} cpu"), threads, cpu * 1e9 / gets as f64, "ns/get")?;
        }
    }
    Ok(())
}

/// Random gets; answers the time they took, without the making of the keys.
fn get_random(reader: &dyn Reader, sizes: &Sizes, seed: u64, access: Access) -> Result<Duration> {
    get_random_of(reader, sizes.keys, sizes.gets, seed, access)
}

fn get_random_of(reader: &dyn Reader, keys: u64, gets: u64, seed: u64, access: Access) -> Result<Duration> {
    let mut random = Random::new(seed);
    let mut time = Duration::ZERO;
    let mut chosen = Vec::with_capacity(KEYS_AT_ONCE);
    let mut done = 0;
    while done < gets {
        chosen.clear();
        chosen.extend((done..gets).take(KEYS_AT_ONCE).map(|_| data::key(random.below(keys))));
        let start = Instant::now();
        let bytes = reader.get_all(&chosen, access)?;
        time += start.elapsed();
        ensure!(bytes == (chosen.len() * VALUE_BYTES) as u64, "a get did not find its record");
        done += chosen.len() as u64;
    }
    Ok(time)
}

fn scan(context: &Context, sizes: &Sizes, engine: &dyn Engine) -> Result<()> {
    if !context.wants("scan") {
        return Ok(());
    }
    let reader = engine.reader()?;
    for (name, access) in [("scan owned", Access::Owned), ("scan borrowed", Access::Borrowed)] {
        reader.scan(access)?;
        let meter = Meter::start()?;
        for _ in 0..sizes.scans {
            let records = reader.scan(access)?;
            ensure!(records == sizes.keys, "a scan saw {records} records of {}", sizes.keys);
        }
        let cost = meter.cost()?;
        context.measured(name, 1, cost.per_second(sizes.scans * sizes.keys), "records/s")?;
    }
    Ok(())
}

fn begin(context: &Context, sizes: &Sizes, engine: &dyn Engine) -> Result<()> {
    if !context.wants("begin") {
        return Ok(());
    }
    let nanos = || -> Result<f64> {
        let start = Instant::now();
        engine.begin_and_drop(sizes.begins)?;
        Ok(start.elapsed().as_secs_f64() * 1e9 / sizes.begins as f64)
    };
    context.measured("begin, idle", 1, nanos()?, "ns")?;
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            let mut random = Random::new(99);
            // Relaxed: nothing is published through it.
            while !stop.load(Ordering::Relaxed) {
                let batch: Vec<_> = (0..BATCH).map(|_| Record::new(random.below(sizes.keys), 2)).collect();
                engine.commit(&batch, Durability::Buffered)?;
            }
            Ok(())
        });
        let nanos = nanos();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        nanos
    })?;
    context.measured("begin, beside a writer", 1, beside, "ns")?;
    engine.settle()
}

/// Commits of one record that are durable when they return.
fn durable(context: &Context, sizes: &Sizes, engine: &dyn Engine, dir: &Path) -> Result<()> {
    if !context.wants("durable") {
        return Ok(());
    }
    context.measured("durable, bare sync", 1, 1e6 / machine::sync_micros(dir)?, "syncs/s")?;
    for threads in context.threads_or(&[1, 2, 4]) {
        let commits = sizes.durable_commits_each * threads as u64;
        let meter = Meter::start()?;
        on_threads(threads, |thread| {
            let mut random = Random::new(7 + thread);
            for commit in 0..sizes.durable_commits_each {
                engine.commit(&[Record::new(random.below(sizes.keys), 3 + commit)], Durability::Sync)?;
            }
            Ok(())
        })?;
        context.measured("durable", threads, meter.cost()?.per_second(commits), "commits/s")?;
    }
    Ok(())
}

/// Reads as of a declared snapshot that lies under a fifth of the database overwritten and merged since,
/// beside the same reads of now.
fn as_of(context: &Context, sizes: &Sizes, engine: &dyn Engine, past: &dyn Past) -> Result<()> {
    if !context.wants("as_of") {
        return Ok(());
    }
    engine.settle()?;
    let id = past.commit_and_declare(&[Record::new(0, 4)])?;
    on_threads(2, |thread| overwrite_on(engine, sizes.keys, sizes.keys / BATCH / 10, 50 + thread))?;
    engine.settle()?;
    let now = engine.reader()?;
    let then = past.as_of(id)?;
    for (name, reader) in [("as_of get now", &now), ("as_of get then", &then)] {
        get_random(&**reader, sizes, 1, Access::Borrowed)?;
        let time = get_random(&**reader, sizes, 1, Access::Borrowed)?;
        context.measured(name, 1, sizes.gets as f64 / time.as_secs_f64(), "gets/s")?;
    }
    for (name, reader) in [("as_of scan now", &now), ("as_of scan then", &then)] {
        reader.scan(Access::Borrowed)?;
        let meter = Meter::start()?;
        let records = reader.scan(Access::Borrowed)?;
        let cost = meter.cost()?;
        ensure!(records == sizes.keys, "{name} saw {records} records of {}", sizes.keys);
        context.measured(name, 1, cost.per_second(records), "records/s")?;
    }
    let start = Instant::now();
    for _ in 0..sizes.as_of_opens {
        past.as_of(id)?;
    }
    let micros = start.elapsed().as_secs_f64() * 1e6 / sizes.as_of_opens as f64;
    context.measured("as_of open", 1, micros, "us")
}

/// A snapshot after each commit of ten puts, on a smaller database of its own; then reads as of any of them.
fn declare(context: &Context, sizes: &Sizes, engine: &dyn Engine, past: &dyn Past) -> Result<()> {
    put_all(engine, sizes.declared_keys, 2)?;
    engine.settle()?;
    let mut random = Random::new(5);
    let mut first = None;
    let meter = Meter::start()?;
    for commit in 0..sizes.declared_commits {
        let batch: Vec<_> =
            (0..BATCH).map(|_| Record::new(random.below(sizes.declared_keys), 1 + commit)).collect();
        first.get_or_insert(past.commit_and_declare(&batch)?);
    }
    let cost = meter.cost()?;
    engine.settle()?;
    let settled = meter.cost()?;
    let first = first.context("at least one commit")?;
    let application_bytes = (sizes.declared_commits * BATCH * RECORD_BYTES) as f64;
    context.measured("declare", 1, cost.per_second(sizes.declared_commits), "commits/s")?;
    context.measured("declare settled", 1, settled.per_second(sizes.declared_commits), "commits/s")?;
    context.measured("declare history", 1, past.history_bytes()? as f64 / application_bytes, "x")?;
    context.measured("declare bytes written", 1, settled.written_bytes as f64 / application_bytes, "x")?;

    let opens = sizes.as_of_opens;
    let start = Instant::now();
    for _ in 0..opens {
        past.as_of(first + random.below(sizes.declared_commits))?;
    }
    let micros = start.elapsed().as_secs_f64() * 1e6 / opens as f64;
    context.measured("declare as_of open", 1, micros, "us")?;
    let gets_each = 100;
    let (mut time, mut rounds) = (Duration::ZERO, 0);
    while rounds < opens / 10 {
        let then = past.as_of(first + random.below(sizes.declared_commits))?;
        time += get_random_of(&*then, sizes.declared_keys, gets_each, rounds, Access::Borrowed)?;
        rounds += 1;
    }
    context.measured("declare get then", 1, (rounds * gets_each) as f64 / time.as_secs_f64(), "gets/s")
}
