//! Suite `memtable`: what decides how fast writes are taken, and how fast is read what was just written.
//!
//! Owns: the cases and their sizes. Promises: keys in random order, each get finds its record, each seek the
//! records that follow, every scan sees all in order. The structure alone is in [`alone`], whole engines are in
//! [`whole`].

mod alone;
mod whole;

use anyhow::Result;

use super::Suite;
use crate::arguments::Scale;
use crate::context::Context;
use crate::data::{self, Key, Random};
use crate::engines::operations::SEEK_RECORDS;

pub const SUITE: Suite = Suite {
    name: "memtable",
    engines: &["bygone", "rocksdb", "speedb", "skiplist", "art"],
    cases: &["alone", "scan", "overwrite", "mixed", "seek", "alternate", "latency"],
    feature: None,
    sizes: |scale| serde_json::to_value(Sizes::of(scale)).unwrap_or_default(),
    run,
};

/// Operations are made outside of the engine's loop, this many at a time: they stay in the nearest cache.
const OPERATIONS_AT_ONCE: u64 = 500;

#[derive(serde::Serialize)]
struct Sizes {
    alone_keys: u64,
    alone_bytes: usize,
    memtable_bytes: usize,
    cache_bytes: usize,
    /// How long a case takes that is not bounded by a count.
    seconds: f64,
    scans: u64,
    values: [ValueSizes; 2],
}

/// The sizes that follow from the size of the values. All operations are of all threads together.
#[derive(serde::Serialize)]
struct ValueSizes {
    value: &'static str,
    value_bytes: usize,
    keys: u64,
    /// Records that fit in one memtable of each engine.
    scan_keys: u64,
    overwrites: u64,
    mixed: u64,
    latency_puts: u64,
    paced_puts: u64,
    paced_puts_per_milli: u64,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        Sizes {
            alone_keys: scale.pick(200_000, 2_000_000),
            alone_bytes: scale.pick(20 << 20, 200 << 20) as usize,
            memtable_bytes: scale.pick(8 << 20, 64 << 20) as usize,
            cache_bytes: 256 << 20,
            seconds: scale.pick(300, 2_000) as f64 / 1e3,
            scans: 5,
            values: [
                ValueSizes {
                    value: "100 B",
                    value_bytes: 100,
                    keys: scale.pick(100_000, 1_000_000),
                    scan_keys: scale.pick(30_000, 300_000),
                    overwrites: scale.pick(200_000, 2_000_000),
                    mixed: scale.pick(200_000, 2_000_000),
                    latency_puts: scale.pick(100_000, 1_500_000),
                    paced_puts: scale.pick(100_000, 1_000_000),
                    paced_puts_per_milli: 200,
                },
                ValueSizes {
                    value: "1 KiB",
                    value_bytes: 1024,
                    keys: scale.pick(15_000, 150_000),
                    scan_keys: scale.pick(5_000, 45_000),
                    overwrites: scale.pick(40_000, 400_000),
                    mixed: scale.pick(40_000, 400_000),
                    latency_puts: scale.pick(20_000, 300_000),
                    paced_puts: scale.pick(20_000, 300_000),
                    paced_puts_per_milli: 50,
                },
            ],
        }
    }
}

fn run(context: &Context) -> Result<()> {
    let sizes = Sizes::of(context.scale);
    alone::run(context, &sizes)?;
    // An ordered map is no engine.
    if !["skiplist", "art"].contains(&context.engine.as_str()) {
        for values in &sizes.values {
            whole::run(context, &sizes, values)?;
        }
    }
    Ok(())
}

/// The keys of a table, chosen from at random.
#[derive(Clone, Copy)]
struct Keys {
    count: u64,
    /// The last key that ten more follow.
    last_to_seek: Key,
}

impl Keys {
    fn new(count: u64) -> Keys {
        let mut sorted: Vec<_> = (0..count).map(data::key).collect();
        let place = sorted.len() - SEEK_RECORDS;
        let (_, last_to_seek, _) = sorted.select_nth_unstable(place);
        Keys { count, last_to_seek: *last_to_seek }
    }

    fn any(&self, random: &mut Random) -> Key {
        data::key(random.below(self.count))
    }

    fn any_to_seek(&self, random: &mut Random) -> Key {
        loop {
            let key = self.any(random);
            if key <= self.last_to_seek {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engines::operations::{Direction, Log, Operation};
    use crate::engines::{self, Memory, Setup};

    #[test]
    fn exactly_the_last_ten_keys_are_not_to_be_sought() {
        let count = 500;
        let keys = Keys::new(count);
        let beyond = (0..count).map(data::key).filter(|key| *key > keys.last_to_seek).count();
        assert_eq!(beyond, SEEK_RECORDS - 1);
        let mut random = Random::new(1);
        assert!((0..10_000).all(|_| keys.any_to_seek(&mut random) <= keys.last_to_seek));
    }

    /// Puts, gets, seeks and scans of everything.
    fn do_everything(worker: &dyn engines::operations::Worker, value_bytes: usize) {
        let (keys, values) = (Keys::new(2_000), data::Values::new(value_bytes));
        let mut log = vec![Log::Buffered];
        if worker.works_without_log() {
            log.push(Log::None);
        }
        for log in log {
            let all: Vec<_> = (0..keys.count).map(data::key).collect();
            let puts: Vec<_> = all.iter().map(|key| Operation::Put(*key)).collect();
            worker.work(&puts, &values, log).unwrap();
            let reads: Vec<_> = all.iter().map(|key| Operation::Get(*key)).collect();
            worker.work(&reads, &values, log).unwrap();
        }
        let mut random = Random::new(3);
        let seeks: Vec<_> = (0..500).map(|_| Operation::Seek(keys.any_to_seek(&mut random))).collect();
        worker.work(&seeks, &values, Log::Buffered).unwrap();
        for direction in [Direction::Forward, Direction::Backward] {
            assert_eq!(worker.scan(direction, &values).unwrap(), keys.count);
        }
        assert!(worker.is_in_memtable().unwrap());
    }

    /// All that this program has in it.
    #[test]
    fn every_structure_does_everything() {
        for name in SUITE.engines.iter().filter(|name| engines::is_built_in(name)) {
            for touched in [false, true] {
                if let Some(map) = engines::alone(name, Memory { bytes: 8 << 20, touched }).unwrap() {
                    do_everything(&*map, 8);
                }
            }
        }
    }

    #[test]
    fn every_engine_does_everything() {
        let dir = tempfile::tempdir_in(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        let maps = ["skiplist", "art"];
        for name in SUITE.engines.iter().filter(|name| engines::is_built_in(name) && !maps.contains(name)) {
            let setup = Setup { cache_bytes: 1 << 20, memtable_bytes: Some(8 << 20), split: false };
            let engine = engines::open(name, &dir.path().join(name), setup).unwrap();
            do_everything(engine.worker().unwrap(), 100);
        }
    }
}
