//! All file access of the engine goes through here.
//!
//! Owns: the [`Disk`] trait, and [`File`], which adds the path to every error. Promises: no other module names
//! `std::fs`. May call: the operating system.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    Write,
    /// For reading and writing; it must not exist yet.
    Create,
}

/// What became of an attempt to lock.
pub enum LockOutcome {
    /// Held until the guard is dropped or the process ends.
    Held(Box<dyn Send + Sync>),
    /// Somebody else has it; its process id if known.
    Taken(Option<u32>),
}

/// A place that files live in. Every call may fail. Paths are used as given.
///
/// Durability: what was written to a file survives a power cut only after `sync` on that file; that a file was created, renamed or
/// removed survives only after `sync_dir` on its directory. Until then any subset of it may be lost, in any order, and single writes
/// may be torn at 512-byte boundaries.
pub trait Disk: Send + Sync + Debug {
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn DiskFile>>;
    fn create_dir_all(&self, path: &Path) -> std::io::Result<()>;
    /// The names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> std::io::Result<Vec<String>>;
    fn exists(&self, path: &Path) -> std::io::Result<bool>;
    /// Replaces `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()>;
    fn remove(&self, path: &Path) -> std::io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()>;
    /// Takes the lock file at `path`: exclusively, or shared with other readers.
    fn lock(&self, path: &Path, exclusive: bool) -> std::io::Result<LockOutcome>;
}

/// An open file. Reads and writes may come from many threads at once.
#[allow(clippy::len_without_is_empty)] // A length on disk, which may fail; nobody asks whether a file is empty.
pub trait DiskFile: Send + Sync + Debug {
    /// Fills `buffer` from `offset`; fails with `UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()>;
    /// Writes all of `bytes` at `offset`, extending the file if need be.
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()>;
    /// Makes all that was written durable, the file's length included.
    fn sync(&self) -> std::io::Result<()>;
    fn len(&self) -> std::io::Result<u64>;
    fn set_len(&self, len: u64) -> std::io::Result<()>;
}

/// An open file that knows its path: what the engine's modules hold.
#[derive(Clone, Debug)]
pub(crate) struct File {
    path: Arc<PathBuf>,
    file: Arc<dyn DiskFile>,
}

impl File {
    pub fn open(disk: &dyn Disk, path: &Path, mode: OpenMode) -> Result<File> {
        let operation = if mode == OpenMode::Create { "create" } else { "open" };
        let file = disk.open(path, mode).map_err(|e| Error::io(path, operation, e))?;
        Ok(File { path: Arc::new(path.to_owned()), file })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `buffer` from `offset`. That the file ends before is damage: nothing asks for bytes that were not written.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::corruption(
                &self.path,
                offset,
                format!("the file ends within the {} bytes expected here", buffer.len()),
            ),
            _ => Error::io(&self.path, "read", e),
        })
    }

    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(bytes, offset).map_err(|e| Error::io(&self.path, "write", e))
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| Error::io(&self.path, "sync", e))
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<u64> {
        self.file.len().map_err(|e| Error::io(&self.path, "get the length of", e))
    }

    pub fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| Error::io(&self.path, "set the length of", e))
    }
}
