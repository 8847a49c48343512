//! A disk on which something happens beside what is asked of it.
//!
//! Owns: [`Hooked`]. Promises: all that is asked is done by the disk below. May call: `bygone::io`.
// Each test that has it uses a part of this.
#![allow(dead_code)]

use std::fmt;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bygone::io::{Disk, DiskFile, LockOutcome, Mapping, OpenMode, SimDisk};

/// What a hook is told of.
pub enum Call<'c> {
    /// A file was opened or made, or could not be.
    Open(&'c Path),
    /// A lock is about to be asked for.
    Lock,
    /// A file is about to be written.
    Write(&'c Path),
    /// A file was read: from where, and what, which may be changed.
    Read(&'c Path, u64, &'c mut [u8]),
    /// A sync of a file has done its work, but has not returned yet.
    Synced,
}

type Hook = Box<dyn FnMut(Call<'_>) + Send>;

#[derive(Clone)]
pub struct Hooked {
    disk: SimDisk,
    hook: Arc<Mutex<Option<Hook>>>,
    /// Whether a file may have two names.
    links: bool,
}

impl Hooked {
    pub fn new(disk: &SimDisk, hook: impl FnMut(Call<'_>) + Send + 'static) -> Hooked {
        let hooked = Hooked::idle(disk);
        hooked.set(hook);
        hooked
    }

    /// With no hook yet.
    pub fn idle(disk: &SimDisk) -> Hooked {
        Hooked { disk: disk.clone(), hook: Arc::default(), links: true }
    }

    pub fn without_links(self) -> Hooked {
        Hooked { links: false, ..self }
    }

    pub fn set(&self, hook: impl FnMut(Call<'_>) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn clear(&self) {
        *self.hook.lock().unwrap() = None;
    }

    fn call(&self, call: Call<'_>) {
        // Taken out meanwhile: what the hook itself does meets no hook.
        let hook = self.hook.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook(call);
            self.hook.lock().unwrap().get_or_insert(hook);
        }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)
    }
}

impl Disk for Hooked {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode);
        self.call(Call::Open(path));
        Ok(Arc::new(HookedFile { disk: self.clone(), path: path.to_owned(), file: file? }))
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
        self.call(Call::Lock);
        self.disk.lock(path, exclusive)
    }
}

struct HookedFile {
    disk: Hooked,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl DiskFile for HookedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buffer, offset)?;
        self.disk.call(Call::Read(&self.path, offset, buffer));
        Ok(())
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.disk.call(Call::Write(&self.path));
        self.file.write_at(bytes, offset)
    }
    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        self.disk.call(Call::Synced);
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
