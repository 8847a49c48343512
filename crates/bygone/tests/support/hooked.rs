//! A disk on which something happens beside what is asked of it.
//!
//! Owns: [`Hooked`]. Promises: all that is asked is done by the disk below. May call: `bygone::io`.
// Each test that has it uses a part of this.
#![allow(dead_code)]

use std::fmt;
use std::io::Result;
use std::path::Path;
use std::sync::Arc;

use bygone::io::{Disk, DiskFile, LockOutcome, Mapping, OpenMode, SimDisk};

/// What a hook is told of.
#[derive(Clone, Copy, Debug)]
pub enum Call<'c> {
    /// A file is about to be opened, or made.
    Open(&'c Path),
    /// A lock is about to be asked for.
    Lock,
    /// A sync of a file has done its work, but has not returned yet.
    Synced,
}

type Hook = Arc<dyn Fn(Call<'_>) + Send + Sync>;

#[derive(Clone)]
pub struct Hooked {
    disk: SimDisk,
    hook: Hook,
    /// Whether a file may have two names.
    links: bool,
}

impl Hooked {
    pub fn new(disk: &SimDisk, hook: impl Fn(Call<'_>) + Send + Sync + 'static) -> Hooked {
        Hooked { disk: disk.clone(), hook: Arc::new(hook), links: true }
    }

    pub fn without_links(self) -> Hooked {
        Hooked { links: false, ..self }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)
    }
}

impl Disk for Hooked {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        (self.hook)(Call::Open(path));
        Ok(Arc::new(HookedFile { file: self.disk.open(path, mode)?, hook: self.hook.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.disk.create_dir_all(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> Result<bool> {
        if self.links { self.disk.link(from, to) } else { Ok(false) }
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path, exclusive: bool) -> Result<LockOutcome> {
        (self.hook)(Call::Lock);
        self.disk.lock(path, exclusive)
    }
}

struct HookedFile {
    file: Arc<dyn DiskFile>,
    hook: Hook,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl DiskFile for HookedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        (self.hook)(Call::Synced);
        Ok(())
    }
    fn len(&self) -> Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }
    fn reserve(&self, len: u64) -> Result<bool> {
        self.file.reserve(len)
    }
    fn map(&self, len: u64) -> Option<Mapping> {
        self.file.map(len)
    }
}
