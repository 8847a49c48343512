//! Measurements, not checks: `cargo test --release -p bygone --lib measure_memtable -- --ignored --nocapture
//! --test-threads 1`. Figures are of processor time, which other programs disturb less than a clock's.

use std::time::Duration;

use super::tests::hashed;
use super::*;
use crate::layer::{LayerCursor, Versions};

const KEYS: u64 = 2_000_000;

fn key(n: u64) -> [u8; 16] {
    let mix = |n: u64| {
        let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(n).to_be_bytes());
    key[8..].copy_from_slice(&mix(!n).to_be_bytes());
    key
}

/// Measures the processor time of the whole process, as `Instant` measures the clock's.
struct Instant(Duration);

impl Instant {
    fn now() -> Instant {
        #[cfg(target_os = "linux")]
        // SAFETY: the call fills the structure that it is given, for which zeros are valid.
        return Instant(unsafe {
            let mut time = std::mem::zeroed::<libc::timespec>();
            libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        });
        #[cfg(not(target_os = "linux"))]
        return Instant(std::time::UNIX_EPOCH.elapsed().unwrap());
    }

    fn elapsed(&self) -> Duration {
        Instant::now().0 - self.0
    }
}

/// Runs `work` on `threads` parts of `total` operations and prints millions of operations that each does in
/// a second.
fn timed(what: &str, threads: u64, total: u64, work: impl Fn(u64) + Sync) {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || (thread..total).step_by(threads as usize).for_each(work));
        }
    });
    println!("{what}, {threads} threads: {:.2} M/s each", total as f64 / start.elapsed().as_secs_f64() / 1e6);
}

#[test]
#[ignore = "a measurement"]
fn measure_memtable_point_operations() {
    for (threads, touched) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut memtable = Memtable::new(256 << 20);
        if touched {
            memtable.touch();
        }
        println!("touched: {touched}");
        timed("insert", threads, KEYS, |n| {
            let key = key(n);
            memtable.insert_batch(n + 1, [(hashed(1, &key), Some(&n.to_le_bytes()[..]))]);
        });
        timed("get", threads, KEYS, |n| {
            let key = key(n * 7919 % KEYS);
            assert_eq!(memtable.get(&hashed(1, &key), u64::MAX, &mut |_| {}), Lookup::Found);
        });
        timed("get of absent keys", threads, KEYS, |n| {
            let key = key(n + KEYS);
            assert_eq!(memtable.get(&hashed(1, &key), u64::MAX, &mut |_| {}), Lookup::Absent);
        });
        println!("{:.1} bytes a record", memtable.memory_bytes() as f64 / KEYS as f64);
        order(&memtable, KEYS, KEYS);
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_memtable_batches() {
    let value = [7; 100];
    for (threads, touched) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut memtable = Memtable::new(512 << 20);
        if touched {
            memtable.touch();
        }
        print!("touched: {touched}, ");
        timed("batches of 10 records of 100 bytes", threads, KEYS / 10, |n| {
            let keys: [_; 10] = std::array::from_fn(|i| key(n * 10 + i as u64));
            memtable.insert_batch(n + 1, keys.iter().map(|key| (hashed(1, key), Some(&value[..]))));
        });
    }
    let memtable = Memtable::new(64 << 20);
    let mut seq = 0;
    while !memtable.is_full() {
        seq += 1;
        memtable.insert_batch(seq, [(hashed(1, &key(seq)), Some(&value[..]))]);
    }
    println!("64 MiB full: {seq} records of 116 bytes");
    order(&memtable, seq, seq);
}

#[test]
#[ignore = "a measurement"]
fn measure_memtable_alternating_reads_and_writes() {
    const ROUNDS: u64 = 100_000;
    let memtable = Memtable::new(256 << 20);
    for n in 1..=1_000_000 {
        memtable.insert_batch(n, [(hashed(1, &key(n)), Some(&n.to_le_bytes()[..]))]);
    }
    drop(memtable.cursor(1, 1_000_000));
    let start = Instant::now();
    for n in 1_000_001..=1_000_000 + ROUNDS {
        memtable.insert_batch(n, [(hashed(1, &key(n)), Some(&n.to_le_bytes()[..]))]);
        memtable.cursor(1, n).seek(&key(n * 31)).unwrap();
    }
    println!("one insert of a new key, one cursor, one seek: {:?}", start.elapsed() / ROUNDS as u32);
    let start = Instant::now();
    for n in 1_000_001..=1_000_000 + ROUNDS {
        memtable.insert_batch(n + ROUNDS, [(hashed(1, &key(n)), Some(&n.to_le_bytes()[..]))]);
        memtable.cursor(1, n + ROUNDS).seek(&key(n * 31)).unwrap();
    }
    println!("the same with a known key: {:?}", start.elapsed() / ROUNDS as u32);
    println!("{} vectors", memtable.view(Some(1_000_000 + 2 * ROUNDS)).vectors().len());
    order(&memtable, 1_000_000 + ROUNDS, 1_000_000 + 2 * ROUNDS);
}

#[test]
#[ignore = "a measurement"]
fn measure_memtable_preparing_a_standby() {
    for _ in 0..8 {
        let start = Instant::now();
        let mut memtable = Memtable::new(64 << 20);
        let made = start.elapsed();
        memtable.touch();
        let touched = start.elapsed();
        drop(memtable);
        println!("made in {made:?}, touched in {touched:?}, gone in {:?}", start.elapsed() - touched);
    }
}

fn order(memtable: &Memtable, records: u64, seq: u64) {
    let start = Instant::now();
    let mut cursor = memtable.cursor(1, seq);
    println!("sort: {:?}", start.elapsed());
    let start = Instant::now();
    let (mut count, mut bytes) = (0, 0);
    cursor.seek(b"").unwrap();
    while let Some(key) = cursor.key() {
        count += 1;
        bytes += key.len();
        bytes += cursor.value().unwrap().map_or(0, <[u8]>::len);
        cursor.next().unwrap();
    }
    assert_eq!(count, records);
    println!("scan: {:.1} M/s, {bytes} bytes", count as f64 / start.elapsed().as_secs_f64() / 1e6);
    let start = Instant::now();
    let mut count = 0;
    cursor.seek_before(None).unwrap();
    while let Some(key) = cursor.key() {
        count += 1;
        bytes -= key.len();
        bytes -= cursor.value().unwrap().map_or(0, <[u8]>::len);
        cursor.prev().unwrap();
    }
    assert_eq!((count, bytes), (records, 0));
    println!("scan backward: {:.1} M/s", count as f64 / start.elapsed().as_secs_f64() / 1e6);
    let start = Instant::now();
    for n in 0..200_000 {
        cursor.seek(&key(n % records)).unwrap();
    }
    println!("seek: {:.2} M/s", 0.2 / start.elapsed().as_secs_f64());
    let mut versions = memtable.versions();
    let start = Instant::now();
    let mut count = 0;
    while versions.advance().unwrap() {
        count += versions.value().unwrap().map_or(0, |_| 1usize);
    }
    assert_eq!(count, memtable.records());
    println!("versions: {:.1} M/s", count as f64 / start.elapsed().as_secs_f64() / 1e6);
}

#[test]
#[ignore = "a measurement"]
fn measure_memtable_sorting() {
    let value = [7; 100];
    for _ in 0..10 {
        let mut memtable = Memtable::new(64 << 20);
        memtable.touch();
        let mut seq = 0;
        while !memtable.is_full() {
            seq += 1;
            memtable.insert_batch(seq, [(hashed(1, &key(seq)), Some(&value[..]))]);
        }
        let start = Instant::now();
        drop(memtable.cursor(1, seq));
        println!("{seq} nodes sorted in {:?}", start.elapsed());
    }
}
