//! The operating system's file system.
//!
//! Owns: how each call of [`Disk`] is made here. Promises: what the trait says. `sync` is `fdatasync`, which
//! covers a changed length; a directory is synced through a handle of its own; locks are `flock` locks, which
//! belong to the open file and not to the process, so that a second opening in the same process is refused
//! like one in another process. May call: `std::fs`.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskFile, LockOutcome, Mapping, OpenMode};

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// What tells a file from all others that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

/// The file that a path leads to.
///
/// # Errors
/// If it leads to none, or may not be asked.
pub fn identity(path: &Path) -> Result<FileIdentity> {
    let metadata = std::fs::metadata(path)?;
    Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create_new(true);
            }
        }
        Ok(Arc::new(RealFile { file: options.open(path)? }))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        std::fs::create_dir_all(path)
    }

    /// Leaves out names that are not UTF-8: the engine makes none.
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn is_vacant(&self, dir: &Path) -> Result<bool> {
        Ok(std::fs::read_dir(dir)?.next().is_none())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<bool> {
        match std::fs::hard_link(from, to) {
            Ok(()) => Ok(true),
            // Another file system; one without links (Linux calls that not permitted); a file with too many names.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::CrossesDevices
                        | ErrorKind::Unsupported
                        | ErrorKind::PermissionDenied
                        | ErrorKind::TooManyLinks
                ) =>
            {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        File::open(dir)?.sync_all()
    }

    fn absolute(&self, path: &Path) -> Result<PathBuf> {
        std::path::absolute(path)
    }

    fn lock(&self, path: &Path, exclusive: bool) -> Result<LockOutcome> {
        let file = match OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path) {
            // Whoever only reads may have no right to write here.
            Err(e)
                if !exclusive
                    && matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
            {
                File::open(path)?
            }
            opened => opened?,
        };
        match if exclusive { file.try_lock() } else { file.try_lock_shared() } {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(LockOutcome::Taken(read_owner(&file))),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        if exclusive {
            file.set_len(0)?;
            file.write_all_at(std::process::id().to_string().as_bytes(), 0)?;
        } else {
            // What an owner left that was killed would name the wrong process. Not being able to clear it
            // harms nobody.
            let _ = file.set_len(0);
        }
        Ok(LockOutcome::Held(Box::new(HeldLock { file, exclusive })))
    }
}

/// The process id in a lock file; the owner may be about to write it, then there is none yet.
fn read_owner(file: &File) -> Option<u32> {
    let mut text = [0; 10];
    let count = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..count]).ok()?.parse().ok()
}

/// Closing the file releases the lock.
struct HeldLock {
    file: File,
    exclusive: bool,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.exclusive {
            // While the lock is still held: nobody else's number can be there. It is only a courtesy to
            // people.
            let _ = self.file.set_len(0);
        }
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        check_offset(offset)?;
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        check_offset(offset)?;
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    #[cfg(target_os = "linux")]
    fn reserve(&self, len: u64) -> Result<bool> {
        use std::os::fd::AsRawFd;

        let bytes = libc::off64_t::try_from(len).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        loop {
            // SAFETY: a call on a file that is open; it touches no memory of ours.
            let code = unsafe { libc::fallocate64(self.file.as_raw_fd(), 0, 0, bytes) };
            if code == 0 {
                return Ok(true);
            }
            let error = Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(false),
                _ => return Err(error),
            }
        }
    }

    fn map(&self, len: u64) -> Option<Mapping> {
        Mapping::new(&self.file, len)
    }
}

/// The system's offsets are signed, and a damaged file may ask for any; such a read is one past the end.
fn check_offset(offset: u64) -> Result<()> {
    match i64::try_from(offset) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::new(ErrorKind::UnexpectedEof, "the offset is past the end of any file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::tests::{TempDir, exercise_disk};

    #[test]
    fn it_keeps_the_contract_that_all_disks_share() {
        let dir = TempDir::new("real-disk");
        exercise_disk(&RealDisk, dir.path());
    }

    #[test]
    fn a_lock_names_its_owner_and_excludes_this_process_too() {
        let dir = TempDir::new("real-lock");
        let path = dir.path().join("lock");
        let held = RealDisk.lock(&path, true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), std::process::id().to_string());
        match RealDisk.lock(&path, false).unwrap() {
            LockOutcome::Taken(owner) => assert_eq!(owner, Some(std::process::id())),
            LockOutcome::Held(_) => panic!("two owners"),
        }
        drop(held);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn the_number_of_a_killed_owner_is_not_believed() {
        let dir = TempDir::new("real-stale-lock");
        let path = dir.path().join("lock");
        std::fs::write(&path, "4000000000").unwrap();
        let _reader = RealDisk.lock(&path, false).unwrap();
        assert!(matches!(RealDisk.lock(&path, true).unwrap(), LockOutcome::Taken(None)));
    }

    #[test]
    fn an_offset_beyond_what_the_system_knows_is_past_the_end() {
        let dir = TempDir::new("real-offset");
        let file = RealDisk.open(&dir.path().join("f"), OpenMode::Create).unwrap();
        assert_eq!(file.read_at(&mut [0], u64::MAX).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn directories_are_not_listed_as_files() {
        let dir = TempDir::new("real-list");
        RealDisk.create_dir_all(&dir.path().join("sub")).unwrap();
        RealDisk.open(&dir.path().join("f"), OpenMode::Create).unwrap();
        assert_eq!(RealDisk.list(dir.path()).unwrap(), ["f"]);
    }
}
