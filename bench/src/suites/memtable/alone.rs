//! The structure alone: a memtable without an engine around it, beside ordered maps in memory.
//!
//! Owns: the case `alone`. Promises: operations are made before the clock starts, and follow each other without
//! a pause.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{Keys, Sizes};
use crate::context::Context;
use crate::data::{self, Random, Values};
use crate::engines::operations::{Direction, Log, Operation, Worker};
use crate::engines::{self, Memory};
use crate::suites::on_threads;

const VALUE_BYTES: usize = 8;

pub fn run(context: &Context, sizes: &Sizes) -> Result<()> {
    if !context.wants("alone") {
        return Ok(());
    }
    let values = Values::new(VALUE_BYTES);
    let keys = Keys::new(sizes.alone_keys);
    for threads in context.threads_or(&[1, 2, 4]) {
        let puts = in_shares(sizes.alone_keys, threads, |index, _| Operation::Put(data::key(index)));
        let Some(untouched) = make(context, sizes, false)? else { return Ok(()) };
        let rate = work(&*untouched, &puts, &values)?;
        context.measured("alone insert, untouched memory", threads, rate, "inserts/s")?;
        drop(untouched);

        let map = make(context, sizes, true)?.context("there was one just now")?;
        let rate = work(&*map, &puts, &values)?;
        context.measured("alone insert", threads, rate, "inserts/s")?;
        ensure!(map.is_in_memtable()?, "more than the memtable's budget: give the case more");
        if let Some(bytes) = map.memory_bytes() {
            context.measured("alone memory", threads, bytes as f64 / sizes.alone_keys as f64, "B/record")?;
        }

        let gets = in_shares(sizes.alone_keys, threads, |_, random| Operation::Get(keys.any(random)));
        let rate = work(&*map, &gets, &values)?;
        context.measured("alone get", threads, rate, "gets/s")?;

        if threads == 1 {
            // The first makes the order, where there is none yet.
            for name in ["alone scan, first", "alone scan"] {
                scan(context, name, &*map, &values, Direction::Forward, sizes)?;
            }
            scan(context, "alone scan, backwards", &*map, &values, Direction::Backward, sizes)?;
        }

        let count = sizes.alone_keys / 10;
        let seeks = in_shares(count, threads, |_, random| Operation::Seek(keys.any_to_seek(random)));
        let rate = work(&*map, &seeks, &values)?;
        context.measured("alone seek + 10 next", threads, rate, "seeks/s")?;
    }
    Ok(())
}

fn make(context: &Context, sizes: &Sizes, touched: bool) -> Result<Option<Box<dyn Worker>>> {
    engines::alone(&context.engine, Memory { bytes: sizes.alone_bytes, touched })
}

/// This many operations, in equal parts for so many threads.
fn in_shares(
    count: u64,
    threads: usize,
    operation: impl Fn(u64, &mut Random) -> Operation,
) -> Vec<Vec<Operation>> {
    let threads = threads as u64;
    let share = |thread: u64| {
        let mut random = Random::new(1 + thread);
        (count * thread / threads..count * (thread + 1) / threads)
            .map(|index| operation(index, &mut random))
            .collect()
    };
    (0..threads).map(share).collect()
}

/// Does each share on a thread of its own; answers how many operations a second that are.
fn work(map: &dyn Worker, shares: &[Vec<Operation>], values: &Values) -> Result<f64> {
    let count: usize = shares.iter().map(Vec::len).sum();
    let start = Instant::now();
    on_threads(shares.len(), |thread| map.work(&shares[thread as usize], values, Log::None))?;
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn scan(
    context: &Context,
    name: &str,
    map: &dyn Worker,
    values: &Values,
    direction: Direction,
    sizes: &Sizes,
) -> Result<()> {
    let start = Instant::now();
    let records = map.scan(direction, values)?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(records == sizes.alone_keys, "{name} saw {records} records of {}", sizes.alone_keys);
    context.measured(name, 1, records as f64 / seconds, "records/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_everything_once() {
        for threads in [1, 2, 3, 4, 7] {
            let shares = in_shares(100, threads, |index, _| Operation::Put(data::key(index)));
            assert_eq!(shares.len(), threads);
            let mut keys: Vec<_> = shares.iter().flatten().map(put_key).collect();
            keys.sort_unstable();
            let mut all: Vec<_> = (0..100).map(data::key).collect();
            all.sort_unstable();
            assert_eq!(keys, all);
        }
    }

    fn put_key(operation: &Operation) -> data::Key {
        match operation {
            Operation::Put(key) | Operation::Get(key) | Operation::Seek(key) => *key,
        }
    }
}
