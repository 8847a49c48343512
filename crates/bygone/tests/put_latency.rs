//! A measurement, not a check: how long single puts take while memtables are switched.
//! `cargo test --release -p bygone --test put_latency -- --ignored --nocapture`
//!
//! Owns: the figures. Promises: prints the quantiles of a put, and of plain work of about the same length on
//! the same machine at the same time: no engine can be steadier than that. Both also without those that lost
//! their processor to another thread, where the system tells. May call: the public API.

use std::time::Instant;

use bygone::{Durability, Options};

const PUTS: u64 = 2_500_000;
const WORK_STEPS: u64 = 9_000;

#[test]
#[ignore = "a measurement"]
fn measure_put_latency_across_switches() {
    let directory = tempfile::tempdir().unwrap();
    let db = Options::new()
        .durability(Durability::Buffered)
        .memtable_bytes(64 << 20)
        .open(directory.path().join("db"))
        .unwrap();
    let table = db.table("t").unwrap();
    let (mut puts, mut work) = (Vec::with_capacity(PUTS as usize), Vec::with_capacity(PUTS as usize));
    let start = Instant::now();
    for n in 0..PUTS {
        let key = key(n);
        puts.push(timed(|| db.put(&table, key, [7; 100]).unwrap()));
        work.push(timed(|| {
            std::hint::black_box((0..WORK_STEPS).fold(n, |z, i| std::hint::black_box(z ^ i)));
        }));
    }
    let seconds = start.elapsed().as_secs_f64();
    let stats = db.stats().unwrap();
    println!("{PUTS} puts in {seconds:.1} s, {} flushes, {} merges", stats.flushes, stats.merges);
    quantiles("put", &puts);
    quantiles("plain work", &work);
}

/// How long something took, in nanoseconds, and how often it waited and how often it lost its processor.
#[derive(Clone, Copy)]
struct Timed {
    nanos: u64,
    waits: i64,
    preemptions: i64,
}

fn timed(work: impl FnOnce()) -> Timed {
    let (waits, preemptions) = context_switches();
    let start = Instant::now();
    work();
    let nanos = start.elapsed().as_nanos() as u64;
    let now = context_switches();
    Timed { nanos, waits: now.0 - waits, preemptions: now.1 - preemptions }
}

/// Of this thread.
#[cfg(target_os = "linux")]
fn context_switches() -> (i64, i64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills what it is given, and zeros are a value of it too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_nvcsw as i64, usage.ru_nivcsw as i64)
}

#[cfg(not(target_os = "linux"))]
fn context_switches() -> (i64, i64) {
    (0, 0)
}

fn quantiles(what: &str, all: &[Timed]) {
    let undisturbed: Vec<_> = all.iter().copied().filter(|timed| timed.preemptions == 0).collect();
    for (which, timed) in [("all", all), ("those that kept their processor", &undisturbed)] {
        let mut nanos: Vec<_> = timed.iter().map(|timed| timed.nanos).collect();
        nanos.sort_unstable();
        let at = |part: f64| nanos[((nanos.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
        println!(
            "{what}, {which}: median {:.1} us, p99 {:.1}, p99.9 {:.1}, p99.99 {:.1} ({:.1} times p99), longest \
             {:.1}; {} waited",
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            at(0.9999) / at(0.99),
            at(1.0),
            timed.iter().filter(|timed| timed.waits > 0).count(),
        );
    }
}

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
