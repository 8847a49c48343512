//! A disk in memory that records what is written, and fails when told to.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::io::{Disk, DiskFile, LockOutcome, OpenMode};

#[derive(Clone, Debug)]
pub enum Operation {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
    Sync,
}

#[derive(Debug, Default)]
pub struct MemoryDisk {
    files: Mutex<HashMap<PathBuf, Arc<MemoryFile>>>,
}

#[derive(Debug)]
pub struct MemoryFile {
    pub bytes: Mutex<Vec<u8>>,
    pub log: Mutex<Vec<Operation>>,
    pub logging: AtomicBool,
    /// How many more writes and syncs succeed; negative: all.
    pub successes: AtomicI64,
    pub reads: AtomicI64,
    pub read_bytes: AtomicI64,
}

impl MemoryDisk {
    /// A disk with one file.
    pub fn with(path: &str, bytes: Vec<u8>) -> Arc<MemoryDisk> {
        let disk = MemoryDisk::default();
        disk.files.lock().unwrap().insert(path.into(), MemoryFile::new(bytes));
        Arc::new(disk)
    }

    pub fn file(&self, path: &str) -> Arc<MemoryFile> {
        self.files.lock().unwrap()[Path::new(path)].clone()
    }
}

impl MemoryFile {
    fn new(bytes: Vec<u8>) -> Arc<MemoryFile> {
        Arc::new(MemoryFile {
            bytes: Mutex::new(bytes),
            log: Mutex::default(),
            logging: AtomicBool::new(true),
            successes: AtomicI64::new(-1),
            reads: AtomicI64::new(0),
            read_bytes: AtomicI64::new(0),
        })
    }

    fn allow(&self) -> Result<()> {
        let left = self.successes.load(Ordering::Relaxed);
        if left == 0 {
            return Err(Error::other("injected failure"));
        }
        if left > 0 {
            self.successes.store(left - 1, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn write(bytes: &mut Vec<u8>, offset: u64, written: &[u8]) {
    let end = offset as usize + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(written);
}

pub fn apply(bytes: &mut Vec<u8>, operation: &Operation) {
    match operation {
        Operation::Write { offset, bytes: written } => write(bytes, *offset, written),
        Operation::SetLen(len) => bytes.resize(*len as usize, 0),
        Operation::Sync => {}
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let mut files = self.files.lock().unwrap();
        if mode == OpenMode::Create {
            files.insert(path.to_owned(), MemoryFile::new(Vec::new()));
        }
        match files.get(path) {
            Some(file) => Ok(file.clone()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn create_dir_all(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn list(&self, _: &Path) -> Result<Vec<String>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.files.lock().unwrap().contains_key(path))
    }

    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn remove(&self, _: &Path) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path, _: bool) -> Result<LockOutcome> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(buffer.len() as i64, Ordering::Relaxed);
        let bytes = self.bytes.lock().unwrap();
        let found = bytes.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.allow()?;
        write(&mut self.bytes.lock().unwrap(), offset, bytes);
        if self.logging.load(Ordering::Relaxed) {
            self.log.lock().unwrap().push(Operation::Write { offset, bytes: bytes.to_vec() });
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.allow()?;
        self.log.lock().unwrap().push(Operation::Sync);
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.allow()?;
        let operation = Operation::SetLen(len);
        apply(&mut self.bytes.lock().unwrap(), &operation);
        self.log.lock().unwrap().push(operation);
        Ok(())
    }
}
