//! Figures from the real disk, for whoever changes the write path: `cargo test --release -- --ignored
//! --nocapture measure`.

use std::time::Instant;

use super::*;
use crate::io::RealDisk;
use crate::io::tests::TempDir;

fn measured(name: &str, count: u64, each: impl Fn(&Wal, u64)) {
    let dir = TempDir::new("wal-measure");
    let settings = Settings { dir: dir.path().join("wal"), segment_bytes: SEGMENT_BYTES, ..settings() };
    let wal = Wal::create(Arc::new(RealDisk), settings, 1).unwrap();
    wal.prepare_standby().unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (wal, done) = (&wal, &done);
        // Relaxed: only ends the loop.
        scope.spawn(move || {
            while done.load(Ordering::Relaxed) == 0 {
                wal.release_before(wal.active_segment()).unwrap();
                wal.prepare_standby().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        let start = Instant::now();
        for seq in 1..=count {
            each(wal, seq);
        }
        println!("{name}: {:.0}/s", count as f64 / start.elapsed().as_secs_f64());
        done.store(1, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "measures the machine"]
fn measure_append_and_sync() {
    measured("append and sync of 1.3 KB", 5_000, |wal, seq| {
        wal.append(seq, &[&[7; 1300]]).unwrap();
        wal.sync().unwrap();
    });
}

#[test]
#[ignore = "measures the machine"]
fn measure_append() {
    measured("append of 1.3 KB", 300_000, |wal, seq| {
        wal.append(seq, &[&[7; 1300]]).unwrap();
    });
}
