//! What a stretch of work cost this process.
//!
//! Owns: the clocks and counters. Promises: figures are of this process alone, as the kernel counts them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Started at the beginning of the work.
pub struct Meter {
    start: Instant,
    cpu: f64,
    write_bytes: u64,
}

/// What the work cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub time: Duration,
    /// Seconds of processor time, user and system, of all threads.
    pub cpu: f64,
    /// Bytes handed to the operating system by `write` and the like.
    pub written_bytes: u64,
}

impl Meter {
    pub fn start() -> Result<Meter> {
        Ok(Meter { cpu: cpu_seconds()?, write_bytes: written_bytes()?, start: Instant::now() })
    }

    pub fn cost(&self) -> Result<Cost> {
        let time = self.start.elapsed();
        Ok(Cost { time, cpu: cpu_seconds()? - self.cpu, written_bytes: written_bytes()? - self.write_bytes })
    }
}

impl Cost {
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64()
    }

    pub fn cpu_nanos_each(&self, count: u64) -> f64 {
        self.cpu * 1e9 / count as f64
    }
}

/// Of all threads.
fn cpu_seconds() -> Result<f64> {
    seconds_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Seconds of processor time of this thread.
pub fn thread_cpu_seconds() -> Result<f64> {
    seconds_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn seconds_of(clock: libc::clockid_t) -> Result<f64> {
    // SAFETY: a structure of numbers, for which zeros are valid, and which the call fills.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        if libc::clock_gettime(clock, &raw mut time) != 0 {
            return Err(io::Error::last_os_error().into());
        }
        time
    };
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

fn written_bytes() -> Result<u64> {
    let io = fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar:"));
    Ok(line.context("/proc/self/io has no wchar")?.trim().parse()?)
}

/// What a file takes up on the disk; nothing if it is not there.
pub fn file_bytes(path: &Path) -> u64 {
    // A block is 512 bytes, whatever the file system's own are.
    fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512)
}

/// What the files below a directory take up on the disk. A file that vanishes meanwhile counts nothing.
pub fn directory_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let Ok(entry) = entry else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        // A block is 512 bytes, whatever the file system's own are.
        bytes += if metadata.is_dir() { directory_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}
