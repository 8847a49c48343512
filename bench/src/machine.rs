//! What the figures were measured on.
//!
//! Owns: the machine's facts and the probe of the disk. Promises: nothing that changes the machine.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

/// Facts that a figure depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: u64,
    pub kernel: String,
    pub file_system: String,
    /// The median time that one sync of one page in a preallocated file takes: no engine commits durably
    /// faster on one thread.
    pub disk_sync_micros: f64,
    /// The load average before the first run: above zero, others were at work too.
    pub load_before: f64,
}

impl Machine {
    pub fn probe(dir: &Path) -> Result<Machine> {
        let file_system = file_system(dir)?;
        ensure!(
            file_system != "tmpfs",
            "{} is in memory (tmpfs): durable commits would cost nothing; give a --dir on a disk",
            dir.display()
        );
        let line_after = |path: &str, name: &str| -> String {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or_else(String::new, |rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
        };
        let first_word = |text: &str| text.split_whitespace().next().unwrap_or("").to_owned();
        let memory_kib = first_word(&line_after("/proc/meminfo", "MemTotal:"));
        let load = first_word(&fs::read_to_string("/proc/loadavg").unwrap_or_default());
        Ok(Machine {
            cores: std::thread::available_parallelism()?.get(),
            cpu: line_after("/proc/cpuinfo", "model name"),
            memory_mib: memory_kib.parse::<u64>().unwrap_or(0) / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            file_system,
            disk_sync_micros: sync_micros(dir)?,
            load_before: load.parse().unwrap_or(0.0),
        })
    }
}

/// The type of the file system that a directory is on: that of the longest mount point above it.
fn file_system(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let above = fields.filter(|(point, _)| dir.starts_with(point));
    Ok(above.max_by_key(|(point, _)| point.len()).map_or_else(String::new, |(_, kind)| kind.to_owned()))
}

/// The median time, in microseconds, that writing and syncing one page in a preallocated file takes.
pub fn sync_micros(dir: &Path) -> Result<f64> {
    const PAGE: [u8; 4096] = [0x5a; 4096];
    const PAGES: u64 = 200;
    let path = dir.join("sync-probe");
    let file: File = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    for page in 0..PAGES {
        file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
    }
    file.sync_all()?;
    let mut micros = Vec::new();
    for page in 0..PAGES {
        let start = Instant::now();
        file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
        file.sync_data()?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    fs::remove_file(&path)?;
    micros.sort_by(f64::total_cmp);
    Ok(micros[micros.len() / 2].round())
}
