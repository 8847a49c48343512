//! Files in memory: writing without a call to the system.
//!
//! Owns: a shared mapping of a file's beginning. Promises: what was stored here is in the hands of the system at
//! once, as after `write_at`: it is seen by everybody who reads the file, it outlives the process however that
//! ends, and `sync` makes it durable. A store needs no space on the disk, so it can't fail for want of it. May call:
//! `mmap`, `madvise`, `fstatfs`.
//!
//! The system answers a store that it can't serve with a signal that ends the process, where a call would give an
//! error. So only files are mapped of which this is not to be expected: all their blocks are there, on a file system
//! that writes a file's blocks in place, and every page could be read. What is left is a disk that fails under a
//! page which was dropped from memory since, a file system that shuts down, and another program that cuts
//! the file.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ptr::NonNull;

/// The beginning of a file, for writing.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its addresses, and nothing in it belongs to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file that is open for reading and writing; `None` where that is not as good
    /// as `write_at`, or not possible.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    pub(super) fn new(file: &File, len: u64) -> Option<Mapping> {
        use std::os::fd::AsRawFd;

        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        if !system::writes_in_place(file) || !system::has_all_blocks(file, len as u64) {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let mapping = Mapping { start: NonNull::new(start.cast())?, len };
        system::can_be_read(&mapping).then_some(mapping)
    }

    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    pub(super) fn new(_: &File, _: u64) -> Option<Mapping> {
        None
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` if they do not all lie within the mapping.
    #[inline]
    pub fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let room = (self.len as u64).checked_sub(offset).filter(|room| bytes.len() as u64 <= *room);
        if room.is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "a write past the end of the mapping"));
        }
        // SAFETY: the range lies within the mapping, by the check above; a mapping is no Rust object that `bytes`
        // could be part of; and `&mut self` keeps this program's writers apart. Others read the file by calls only.
        unsafe {
            self.start.as_ptr().add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
        // SAFETY: mapped in `new` with this length, and nobody keeps an address of it.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod system {
    use std::fs::File;
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::Mapping;

    /// `EXT4_SUPER_MAGIC`, which ext2 and ext3 have too.
    const EXT: u64 = 0xef53;
    /// The unit of `st_blocks`, whatever the file system's blocks are.
    const BLOCK_BYTES: u64 = 512;

    /// Whether a store to a block that is there needs no other one. File systems that copy on write may have no room
    /// for the copy, and some others (XFS) copy what files share: there, a full disk would answer with a signal.
    pub fn writes_in_place(file: &File) -> bool {
        let mut found = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the call fills what it is given, unless it fails.
        let kind = unsafe {
            if libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) != 0 {
                return false;
            }
            found.assume_init().f_type
        };
        kind as u64 == EXT
    }

    pub fn has_all_blocks(file: &File, len: u64) -> bool {
        file.metadata().is_ok_and(|found| found.len() >= len && found.blocks() * BLOCK_BYTES >= len)
    }

    /// Brings the pages into memory, so that neither a slow nor a failing disk is met at a store. Systems that can't
    /// be asked for that bring them one by one.
    pub fn can_be_read(mapping: &Mapping) -> bool {
        // SAFETY: advice on this very mapping that changes no contents.
        let refused = unsafe {
            libc::madvise(mapping.start.as_ptr().cast(), mapping.len, libc::MADV_POPULATE_READ) != 0
        };
        !refused || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use super::super::tests::TempDir;
    use super::super::{Disk, OpenMode, RealDisk};
    use super::*;

    const LEN: u64 = 64 << 10;

    #[test]
    fn what_is_stored_is_in_the_file_and_stays() {
        let dir = TempDir::new("mapping");
        let path = dir.path().join("f");
        let file = RealDisk.open(&path, OpenMode::Create).unwrap();
        file.write_at(&[1; LEN as usize], 0).unwrap();
        file.sync().unwrap();
        // Another file system than usual; then there is nothing to test.
        let Some(mut mapping) = file.map(LEN) else { return };
        let mut expected = vec![1; LEN as usize];
        for (offset, count) in [(0, 1), (4095, 2), (10_000, 20_000), (LEN as usize - 8, 8), (LEN as usize, 0)]
        {
            mapping.write(&vec![7; count], offset as u64).unwrap();
            expected[offset..offset + count].fill(7);
        }
        let mut found = vec![0; LEN as usize];
        file.read_at(&mut found, 0).unwrap();
        assert_eq!(found, expected, "while it is mapped");
        file.sync().unwrap();
        drop(mapping);
        assert_eq!(std::fs::read(&path).unwrap(), expected, "and afterwards");
    }

    #[test]
    fn nothing_is_stored_past_the_end() {
        let dir = TempDir::new("mapping-end");
        let file = RealDisk.open(&dir.path().join("f"), OpenMode::Create).unwrap();
        file.write_at(&[1; LEN as usize], 0).unwrap();
        let Some(mut mapping) = file.map(LEN) else { return };
        for (offset, count) in [(LEN, 1), (LEN - 1, 2), (u64::MAX, 1), (u64::MAX, 0), (0, LEN as usize + 1)] {
            let refused = mapping.write(&vec![7; count], offset).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn files_with_holes_and_files_that_are_too_short_are_not_mapped() {
        let dir = TempDir::new("mapping-holes");
        let holes = RealDisk.open(&dir.path().join("holes"), OpenMode::Create).unwrap();
        holes.set_len(LEN).unwrap();
        assert!(holes.map(LEN).is_none(), "a store would need a block");
        let short = RealDisk.open(&dir.path().join("short"), OpenMode::Create).unwrap();
        short.write_at(&[1; 8192], 0).unwrap();
        assert!(short.map(LEN).is_none());
        assert!(short.map(0).is_none() && short.map(u64::MAX).is_none());
    }
}
