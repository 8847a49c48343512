//! Files that are not in memory.
//!
//! Owns: taking what a directory holds out of the page cache. Promises: what was written is on the disk before. Caches
//! below the operating system, of the disk or of who simulates it, are not its own.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::Result;

/// Takes the files below a directory, which nobody has mapped, out of the page cache.
pub fn evict(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            evict(&path)?;
            continue;
        }
        let file = File::open(&path)?;
        file.sync_all()?;
        // SAFETY: the file is open; no length stands for all of it.
        let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code).into());
        }
    }
    Ok(())
}
