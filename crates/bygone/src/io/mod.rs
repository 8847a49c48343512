//! All file access of the engine goes through here.
//!
//! Owns: the [`Disk`] trait, its two implementations ([`RealDisk`], and [`SimDisk`] for tests), [`Mapping`], and
//! [`File`], which adds the path to every error. Promises: no other module names `std::fs`. May call: the operating
//! system.

mod mapping;
mod real;
mod sim;

pub use mapping::Mapping;
pub use real::RealDisk;
pub(crate) use real::{FileIdentity, identity};
pub use sim::{Operation, SimDisk};

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
/// Durability: what was written to a file survives a power cut only after `sync` on that file; that a file
/// was created, renamed or removed survives only after `sync_dir` on its directory. Until then any subset of
/// it may be lost, in any order, and single writes may be torn at 512-byte boundaries.
pub trait Disk: Send + Sync + Debug {
    /// Opens a file, or makes one.
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn DiskFile>>;
    /// Makes a directory and those above it, as far as they are missing.
    fn create_dir_all(&self, path: &Path) -> std::io::Result<()>;
    /// The names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> std::io::Result<Vec<String>>;
    /// Whether a directory holds neither files nor directories.
    fn is_vacant(&self, dir: &Path) -> std::io::Result<bool> {
        Ok(self.list(dir)?.is_empty())
    }
    /// Whether there is a file or directory of this name.
    fn exists(&self, path: &Path) -> std::io::Result<bool>;
    /// Replaces `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()>;
    /// Gives a file a second name, `to`, which must not exist yet; `false` if the disk cannot, or not there.
    fn link(&self, _from: &Path, _to: &Path) -> std::io::Result<bool> {
        Ok(false)
    }
    /// Removes a name of a file; who has the file open goes on.
    fn remove(&self, path: &Path) -> std::io::Result<()>;
    /// Makes durable which names there are in a directory.
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()>;
    /// The path from the root, of one that is given from the working directory. A disk without such a directory gives
    /// it back as it is.
    fn absolute(&self, path: &Path) -> std::io::Result<PathBuf> {
        Ok(path.to_owned())
    }
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
    /// The file's length in bytes.
    fn len(&self) -> std::io::Result<u64>;
    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> std::io::Result<()>;

    /// Extends the file with zeros and takes the space for them, if the disk does so without writing them; answers
    /// whether it did. Else nothing has changed.
    fn reserve(&self, _len: u64) -> std::io::Result<bool> {
        Ok(false)
    }
    /// The file's first `len` bytes for writing without calls, if the disk offers that and the file allows it. It
    /// must not be cut as long as the mapping lives.
    fn map(&self, _len: u64) -> Option<Mapping> {
        None
    }
}

/// [`Disk::exists`], with the path in its error.
pub(crate) fn exists(disk: &dyn Disk, path: &Path) -> Result<bool> {
    disk.exists(path).map_err(|e| Error::io(path, "look for", e))
}

/// [`Disk::list`], with the path in its error.
pub(crate) fn list(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>> {
    disk.list(directory).map_err(|e| Error::io(directory, "list", e))
}

/// [`Disk::link`], with the path in its error. A file that a crash left under the second name is replaced.
pub(crate) fn link_anew(disk: &dyn Disk, from: &Path, to: &Path) -> Result<bool> {
    if exists(disk, to)? {
        remove(disk, to)?;
    }
    disk.link(from, to).map_err(|e| Error::io(to, "link", e))
}

/// [`Disk::remove`], with the path in its error.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.remove(path).map_err(|e| Error::io(path, "remove", e))
}

/// [`Disk::sync_dir`], with the path in its error.
pub(crate) fn sync_dir(disk: &dyn Disk, directory: &Path) -> Result<()> {
    disk.sync_dir(directory).map_err(|e| Error::io(directory, "sync", e))
}

/// Makes a directory and those above it, as far as they are missing, and their names durable: without its
/// name everything in it is lost.
pub(crate) fn make_dir(disk: &dyn Disk, directory: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for ancestor in directory.ancestors().take_while(|ancestor| *ancestor != Path::new("")) {
        if exists(disk, ancestor)? {
            break;
        }
        missing.push(ancestor);
    }
    if missing.is_empty() {
        return Ok(());
    }
    disk.create_dir_all(directory).map_err(|e| Error::io(directory, "create", e))?;
    missing.into_iter().rev().try_for_each(|made| sync_parent(disk, made))
}

/// Makes the name of a file or directory durable.
pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<()> {
    match path.parent() {
        None => Ok(()),
        Some(parent) if parent == Path::new("") => sync_dir(disk, Path::new(".")),
        Some(parent) => sync_dir(disk, parent),
    }
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

    /// Fills `buffer` from `offset`. That the file ends before is damage: nothing asks for bytes that were
    /// not written.
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

    pub fn map(&self, len: u64) -> Option<Mapping> {
        self.file.map(len)
    }

    /// As [`File::write_at`], by a mapping of this file.
    #[inline]
    pub fn write_mapped(&self, mapping: &mut Mapping, bytes: &[u8], offset: u64) -> Result<()> {
        mapping.write(bytes, offset).map_err(|e| Error::io(&self.path, "write", e))
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| Error::io(&self.path, "sync", e))
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<u64> {
        self.file.len().map_err(|e| Error::io(&self.path, "get the length of", e))
    }

    /// As [`DiskFile::reserve`].
    pub fn reserve(&self, len: u64) -> Result<bool> {
        self.file.reserve(len).map_err(|e| Error::io(&self.path, "extend", e))
    }

    pub fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| Error::io(&self.path, "set the length of", e))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::ErrorKind;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A directory of its own for a test on the real disk, removed at the end.
    pub(crate) struct TempDir {
        path: PathBuf,
    }

    impl TempDir {
        pub fn new(name: &str) -> TempDir {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            // Relaxed: only has to give each caller another number.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("bygone-{name}-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            TempDir { path }
        }

        pub fn path(&self) -> &Path {
            &self.path
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }

    /// What every disk must do alike, so that tests on the simulated disk say something about the real one.
    pub(super) fn exercise_disk(disk: &dyn Disk, dir: &Path) {
        let sub = dir.join("a/b");
        let path = sub.join("file");
        assert_eq!(disk.open(&path, OpenMode::Create).unwrap_err().kind(), ErrorKind::NotFound);
        disk.create_dir_all(&sub).unwrap();
        disk.create_dir_all(&sub).unwrap();
        assert_eq!(disk.open(&path, OpenMode::Write).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!disk.exists(&path).unwrap());

        let file = disk.open(&path, OpenMode::Create).unwrap();
        assert_eq!(disk.open(&path, OpenMode::Create).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(disk.exists(&path).unwrap());
        file.write_at(b"hello", 100_000).unwrap();
        assert_eq!(file.len().unwrap(), 100_005);
        let mut bytes = [1; 7];
        file.read_at(&mut bytes, 99_998).unwrap();
        assert_eq!(&bytes, b"\0\0hello");
        assert_eq!(file.read_at(&mut bytes, 99_999).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        file.set_len(100_002).unwrap();
        file.set_len(100_005).unwrap();
        file.read_at(&mut bytes, 99_998).unwrap();
        assert_eq!(&bytes, b"\0\0he\0\0\0", "a cut file grows back as zeros");
        let reserved = file.reserve(100_010).unwrap();
        assert_eq!(file.len().unwrap(), if reserved { 100_010 } else { 100_005 });
        if reserved {
            let mut tail = [1; 12];
            file.read_at(&mut tail, 99_998).unwrap();
            assert_eq!(&tail, b"\0\0he\0\0\0\0\0\0\0\0", "what is reserved is zeros");
        }
        file.sync().unwrap();

        let reader = disk.open(&path, OpenMode::Read).unwrap();
        assert!(reader.write_at(b"x", 0).is_err());
        file.write_at(b"x", 0).unwrap();
        let mut byte = [0];
        reader.read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"x", "all handles see the same file");

        assert!(!disk.is_vacant(dir).unwrap() && !disk.is_vacant(&sub).unwrap());
        disk.create_dir_all(&sub.join("empty/empty")).unwrap();
        assert!(!disk.is_vacant(&sub.join("empty")).unwrap(), "a directory counts as well");
        assert!(disk.is_vacant(&sub.join("empty/empty")).unwrap());

        let other = sub.join("other");
        disk.open(&other, OpenMode::Create).unwrap().write_at(b"o", 0).unwrap();
        disk.rename(&path, &other).unwrap();
        assert_eq!(disk.list(&sub).unwrap(), ["other"]);
        file.write_at(b"y", 0).unwrap();
        disk.open(&other, OpenMode::Read).unwrap().read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"y", "a handle follows its file to the new name");
        disk.sync_dir(&sub).unwrap();

        let second = dir.join("a/second");
        assert!(disk.link(&other, &second).unwrap());
        assert_eq!(disk.link(&other, &second).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(disk.link(&path, &sub.join("third")).unwrap_err().kind(), ErrorKind::NotFound);
        file.write_at(b"z", 0).unwrap();
        disk.open(&second, OpenMode::Read).unwrap().read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"z", "both names are the same file");
        disk.remove(&second).unwrap();
        assert!(disk.exists(&other).unwrap());
        file.write_at(b"y", 0).unwrap();

        disk.remove(&other).unwrap();
        assert_eq!(disk.remove(&other).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(disk.rename(&other, &path).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(disk.list(&sub).unwrap().is_empty());
        assert_eq!(disk.list(&dir.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        reader.read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"y", "an open file outlives its name");

        let lock = sub.join("lock");
        let held = |exclusive| match disk.lock(&lock, exclusive).unwrap() {
            LockOutcome::Held(guard) => Some(guard),
            LockOutcome::Taken(_) => None,
        };
        let owner = held(true).expect("free");
        assert!(held(true).is_none());
        assert!(held(false).is_none());
        drop(owner);
        let (first, second) = (held(false).expect("free"), held(false).expect("shared"));
        assert!(held(true).is_none());
        drop(first);
        assert!(held(true).is_none(), "one reader is left");
        drop(second);
        assert!(held(true).is_some());
    }

    #[test]
    fn a_file_that_ends_too_early_is_damage_at_a_known_place() {
        let disk = SimDisk::new();
        let file = File::open(&disk, Path::new("f"), OpenMode::Create).unwrap();
        file.write_at(&[1; 10], 0).unwrap();
        match file.read_at(&mut [0; 4], 8).unwrap_err() {
            Error::Corruption { path, offset: 8, .. } => assert_eq!(path, Path::new("f")),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_the_system_refuses_names_the_file_and_the_attempt() {
        let missing = File::open(&SimDisk::new(), Path::new("f"), OpenMode::Read).unwrap_err();
        assert!(missing.to_string().starts_with("cannot open f: "), "{missing}");
    }
}
