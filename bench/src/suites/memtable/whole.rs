//! Whole engines: what an application gets of their memtables.
//!
//! Owns: the cases but `alone`. Promises: writers put flat out unless a case says otherwise, each record in a
//! commit of its own; between cases the backlog is bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Keys, OPERATIONS_AT_ONCE, Sizes, ValueSizes};
use crate::context::Context;
use crate::data::{self, Random, Values};
use crate::engines::operations::{Direction, Log, Operation, Worker};
use crate::engines::{self, Engine, Setup};
use crate::meter::{Meter, thread_cpu_seconds};
use crate::suites::{new_histogram, on_threads};

/// Seeks take longer than other operations: fewer at a time, so that a case ends in time.
const SEEKS_AT_ONCE: u64 = 10;

struct Case<'a> {
    context: &'a Context,
    sizes: &'a Sizes,
    of: &'a ValueSizes,
    values: Values,
    keys: Keys,
    engine: Box<dyn Engine>,
}

/// What one thread did until it was stopped.
struct Work {
    count: u64,
    seconds: f64,
    /// Seconds of processor time of this thread alone.
    cpu: f64,
}

/// What these threads did in a second, together.
fn rate(work: &[Work]) -> f64 {
    work.iter().map(|work| work.count as f64 / work.seconds).sum()
}

fn cpu_micros_each(work: &[Work]) -> f64 {
    let count: u64 = work.iter().map(|work| work.count).sum();
    work.iter().map(|work| work.cpu).sum::<f64>() * 1e6 / count.max(1) as f64
}

pub fn run(context: &Context, sizes: &Sizes, of: &ValueSizes) -> Result<()> {
    let setup =
        Setup { cache_bytes: sizes.cache_bytes, memtable_bytes: Some(sizes.memtable_bytes), split: false };
    let open = |name: &str, keys: u64| -> Result<Case> {
        let dir = context.dir.join(format!("{name}-{}", of.value_bytes));
        let engine = engines::open(&context.engine, &dir, setup)?;
        let case =
            Case { context, sizes, of, values: Values::new(of.value_bytes), keys: Keys::new(keys), engine };
        case.load()?;
        Ok(case)
    };
    if context.wants("scan") {
        open("scan", of.scan_keys)?.scan()?;
    }
    if ["overwrite", "mixed", "seek", "alternate", "latency"].iter().any(|case| context.wants(case)) {
        let case = open("all", of.keys)?;
        let mut logs = vec![Log::Buffered];
        if case.worker()?.works_without_log() {
            logs.push(Log::None);
        }
        for log in logs {
            case.overwrite(log)?;
            case.mixed(log)?;
            case.seek(log)?;
            case.alternate(log)?;
            case.latency(log)?;
        }
    }
    Ok(())
}

impl Case<'_> {
    fn worker(&self) -> Result<&dyn Worker> {
        self.engine.worker().with_context(|| format!("{} has no memtable", self.context.engine))
    }

    fn name(&self, case: &str, log: Log) -> String {
        let log = if log == Log::None { ", no log" } else { "" };
        format!("{case} {}{log}", self.of.value)
    }

    fn load(&self) -> Result<()> {
        let threads = 2;
        on_threads(threads, |thread| {
            let first = self.keys.count * thread / threads as u64;
            let end = self.keys.count * (thread + 1) / threads as u64;
            let mut next = first;
            self.work(end - first, Log::Buffered, || {
                next += 1;
                Operation::Put(data::key(next - 1))
            })
        })?;
        self.engine.catch_up()
    }

    /// Does this many operations, made a few at a time.
    fn work(&self, count: u64, log: Log, mut operation: impl FnMut() -> Operation) -> Result<()> {
        let worker = self.worker()?;
        let mut operations = Vec::new();
        let mut left = count;
        while left > 0 {
            let some = left.min(OPERATIONS_AT_ONCE);
            operations.clear();
            operations.extend((0..some).map(|_| operation()));
            worker.work(&operations, &self.values, log)?;
            left -= some;
        }
        Ok(())
    }

    /// Does operations until it is time to stop.
    fn work_until(
        &self,
        stop: &AtomicBool,
        at_once: u64,
        log: Log,
        mut operation: impl FnMut() -> Operation,
    ) -> Result<Work> {
        let (start, cpu) = (Instant::now(), thread_cpu_seconds()?);
        let mut count = 0;
        // Relaxed: nothing is published through it.
        while !stop.load(Ordering::Relaxed) {
            self.work(at_once, log, &mut operation)?;
            count += at_once;
        }
        Ok(Work { count, seconds: start.elapsed().as_secs_f64(), cpu: thread_cpu_seconds()? - cpu })
    }

    /// All records of one memtable, which the scan finds there.
    fn scan(&self) -> Result<()> {
        let worker = self.worker()?;
        let scan = |what: &str, direction, scans: u64| -> Result<()> {
            ensure!(worker.is_in_memtable()?, "the records to scan are not in the memtable");
            let meter = Meter::start()?;
            for _ in 0..scans {
                let records = worker.scan(direction, &self.values)?;
                ensure!(records == self.keys.count, "a scan saw {records} records of {}", self.keys.count);
            }
            let rate = meter.cost()?.per_second(self.keys.count * scans);
            let name = format!("{}{what}", self.name("scan", Log::Buffered));
            self.context.measured(&name, 1, rate, "records/s")
        };
        scan(", first", Direction::Forward, 1)?;
        scan("", Direction::Forward, self.sizes.scans)?;
        scan(", backwards", Direction::Backward, self.sizes.scans)
    }

    fn overwrite(&self, log: Log) -> Result<()> {
        self.counted("overwrite", "puts/s", self.of.overwrites, log, |random| {
            Operation::Put(self.keys.any(random))
        })
    }

    fn mixed(&self, log: Log) -> Result<()> {
        self.counted("mixed", "ops/s", self.of.mixed, log, |random| {
            let key = self.keys.any(random);
            if random.below(2) == 0 { Operation::Put(key) } else { Operation::Get(key) }
        })
    }

    /// The clock stops when the work that the writers put off is bounded.
    fn counted(
        &self,
        case: &str,
        unit: &str,
        count: u64,
        log: Log,
        operation: impl Fn(&mut Random) -> Operation + Sync,
    ) -> Result<()> {
        if !self.context.wants(case) {
            return Ok(());
        }
        for threads in self.context.threads_or(&[1, 2, 4]) {
            let each = count / threads as u64;
            let meter = Meter::start()?;
            on_threads(threads, |thread| {
                let mut random = Random::new(1 + thread);
                self.work(each, log, || operation(&mut random))
            })?;
            self.engine.catch_up()?;
            let cost = meter.cost()?;
            let done = each * threads as u64;
            let name = self.name(case, log);
            self.context.measured(&name, threads, cost.per_second(done), unit)?;
            self.context.measured(&format!("{name} cpu"), threads, cost.cpu_nanos_each(done), "ns/op")?;
        }
        Ok(())
    }

    /// Seeks on so many threads, and puts on one more, flat out all.
    fn seek(&self, log: Log) -> Result<()> {
        if !self.context.wants("seek") {
            return Ok(());
        }
        for threads in self.context.threads_or(&[1, 2, 4]) {
            let mut work = self.for_a_while(threads + 1, |thread, stop| {
                let mut random = Random::new(100 + thread);
                if thread == 0 {
                    let put = || Operation::Put(self.keys.any(&mut random));
                    self.work_until(stop, OPERATIONS_AT_ONCE, log, put)
                } else {
                    let seek = || Operation::Seek(self.keys.any_to_seek(&mut random));
                    self.work_until(stop, SEEKS_AT_ONCE, log, seek)
                }
            })?;
            let seeks: Vec<_> = work.drain(1..).collect();
            let name = self.name("seek", log);
            self.context.measured(&name, threads, rate(&seeks), "seeks/s")?;
            self.context.measured(&format!("{name} cpu"), threads, cpu_micros_each(&seeks), "us/seek")?;
            self.context.measured(&format!("{name}, beside"), threads, rate(&work), "puts/s")?;
            let micros = cpu_micros_each(&work);
            self.context.measured(&format!("{name}, beside cpu"), threads, micros, "us/put")?;
            self.engine.catch_up()?;
        }
        Ok(())
    }

    /// A put, a seek, a put, ... on one thread.
    fn alternate(&self, log: Log) -> Result<()> {
        if !self.context.wants("alternate") {
            return Ok(());
        }
        let work = self.for_a_while(1, |_, stop| {
            let mut random = Random::new(200);
            let mut put = false;
            let mut work = self.work_until(stop, 2 * SEEKS_AT_ONCE, log, || {
                put = !put;
                if put {
                    Operation::Put(self.keys.any(&mut random))
                } else {
                    Operation::Seek(self.keys.any_to_seek(&mut random))
                }
            })?;
            work.count /= 2;
            Ok(work)
        })?;
        let name = self.name("alternate", log);
        self.context.measured(&name, 1, rate(&work), "pairs/s")?;
        self.context.measured(&format!("{name} cpu"), 1, cpu_micros_each(&work), "us/pair")?;
        self.engine.catch_up()
    }

    /// Runs this on so many threads until the time of such a case is over.
    fn for_a_while(
        &self,
        threads: usize,
        work: impl Fn(u64, &AtomicBool) -> Result<Work> + Sync,
    ) -> Result<Vec<Work>> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs_f64(self.sizes.seconds));
                stop.store(true, Ordering::Relaxed);
            });
            on_threads(threads, |thread| work(thread, &stop))
        })
    }

    /// How long single puts take while memtables are switched: flat out, and at a pace that leaves time for all
    /// that goes on beside them.
    fn latency(&self, log: Log) -> Result<()> {
        if !self.context.wants("latency") {
            return Ok(());
        }
        for threads in self.context.threads_or(&[1]) {
            self.latency_of("latency", self.of.latency_puts, threads, log, None)?;
        }
        self.latency_of("paced", self.of.paced_puts, 1, log, Some(self.of.paced_puts_per_milli))
    }

    fn latency_of(
        &self,
        case: &str,
        puts: u64,
        threads: usize,
        log: Log,
        per_milli: Option<u64>,
    ) -> Result<()> {
        let each = puts / threads as u64;
        let worker = self.worker()?;
        let latencies = on_threads(threads, |thread| {
            let mut latencies = new_histogram()?;
            let mut random = Random::new(300 + thread);
            let beginning = Instant::now();
            for done in 0..each {
                if let Some(per_milli) = per_milli
                    && done % per_milli == 0
                {
                    let due = beginning + Duration::from_millis(done / per_milli);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                let put = [Operation::Put(self.keys.any(&mut random))];
                let start = Instant::now();
                worker.work(&put, &self.values, log)?;
                latencies.saturating_record(start.elapsed().as_nanos() as u64);
            }
            Ok(latencies)
        })?;
        let mut latency = new_histogram()?;
        for other in latencies {
            latency.add(other)?;
        }
        let name = self.name(case, log);
        for (quantile, of) in [("p50", 0.5), ("p99", 0.99), ("p99.99", 0.9999)] {
            let micros = latency.value_at_quantile(of) as f64 / 1e3;
            self.context.measured(&format!("{name} {quantile}"), threads, micros, "us")?;
        }
        self.context.measured(&format!("{name} worst"), threads, latency.max() as f64 / 1e3, "us")?;
        self.engine.catch_up()
    }
}
