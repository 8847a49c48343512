//! Tests of runs as a whole. Owns: a disk in memory whose bytes tests may damage, and the model that answers
//! are compared with.

mod behaviour;
mod damage;
mod random;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Run, RunMeta, RunWriter};
use crate::cache::Cache;
use crate::error::Result;
use crate::io::{Disk, DiskFile, LockOutcome, OpenMode};
use crate::layer::{HashedKey, Key, LayerCursor, Lookup, Versions};
use crate::random::Random;

const SEED: u64 = 0x5eed;

type Contents = Arc<Mutex<Vec<u8>>>;

/// Files in memory; what was written is there.
#[derive(Clone, Debug, Default)]
struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<PathBuf, Contents>>>,
    /// How long a file was at each sync.
    syncs: Arc<Mutex<Vec<usize>>>,
    /// How often a file was read.
    reads: Arc<AtomicUsize>,
    /// Whether reads and writes are refused.
    refuses: Arc<AtomicBool>,
}

#[derive(Debug)]
struct MemoryFile {
    contents: Contents,
    disk: MemoryDisk,
}

impl MemoryDisk {
    fn contents(&self, path: &Path) -> Vec<u8> {
        self.files.lock().unwrap()[path].lock().unwrap().clone()
    }

    fn refuse(&self) -> io::Result<()> {
        if self.refuses.load(Ordering::Relaxed) { Err(io::Error::other("refused")) } else { Ok(()) }
    }

    fn set_contents(&self, path: &Path, bytes: Vec<u8>) {
        self.files.lock().unwrap().insert(path.to_owned(), Arc::new(Mutex::new(bytes)));
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.files.lock().unwrap();
        let file = match (files.get(path), mode) {
            (Some(_), OpenMode::Create) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(file), _) => file.clone(),
            (None, OpenMode::Create) => files.entry(path.to_owned()).or_default().clone(),
            (None, _) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Arc::new(MemoryFile { contents: file, disk: self.clone() }))
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.files.lock().unwrap().contains_key(path))
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.lock().unwrap().remove(path).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path, _: bool) -> io::Result<LockOutcome> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.refuse()?;
        self.disk.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.contents.lock().unwrap();
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = offset.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes.get(offset..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.refuse()?;
        let mut file = self.contents.lock().unwrap();
        let offset = offset as usize;
        let len = file.len().max(offset + bytes.len());
        file.resize(len, 0);
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.syncs.lock().unwrap().push(self.contents.lock().unwrap().len());
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.contents.lock().unwrap().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.contents.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }
}

/// All versions of a run, by table, key and sequence number descending (stored inverted).
#[derive(Clone, Default)]
struct Model {
    versions: BTreeMap<(u32, Vec<u8>, u64), Option<Vec<u8>>>,
}

impl Model {
    fn insert(&mut self, table: u32, key: impl Into<Vec<u8>>, seq: u64, value: Option<Vec<u8>>) {
        self.versions.insert((table, key.into(), !seq), value);
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &[u8], u64, Option<&[u8]>)> {
        self.versions.iter().map(|((table, key, seq), value)| (*table, &key[..], !seq, value.as_deref()))
    }

    fn get(&self, table: u32, key: &[u8], seq: u64) -> Option<(u64, Option<&[u8]>)> {
        let ((_, _, found), value) =
            self.versions.range((table, key.to_vec(), !seq)..=(table, key.to_vec(), u64::MAX)).next()?;
        Some((!found, value.as_deref()))
    }

    /// What a cursor over the table sees.
    fn view(&self, table: u32, seq: u64) -> BTreeMap<&[u8], Option<&[u8]>> {
        let mut view = BTreeMap::new();
        for (other, key, version, value) in self.iter() {
            if other == table && version <= seq {
                view.entry(key).or_insert(value);
            }
        }
        view
    }

    fn write(&self, disk: &MemoryDisk, path: &Path, id: u64) -> RunMeta {
        let mut writer = RunWriter::create(disk, path, id, SEED).unwrap();
        for (table, bytes, seq, value) in self.iter() {
            writer.add(Key { table, bytes }, seq, value).unwrap();
        }
        writer.finish(None).unwrap()
    }

    /// A run with these versions, on a disk of its own.
    fn run(&self) -> Arc<Run> {
        let (disk, path) = (MemoryDisk::default(), Path::new("dir/1.run"));
        let meta = self.write(&disk, path, 1);
        open(&disk, path, &meta).unwrap()
    }
}

fn open(disk: &MemoryDisk, path: &Path, meta: &RunMeta) -> Result<Arc<Run>> {
    Run::open(disk, path, meta, SEED, &Cache::new(1 << 20))
}

/// `None` is absent, `Some(None)` deleted.
fn get(run: &Run, table: u32, key: &[u8], seq: u64) -> Result<Option<Option<Vec<u8>>>> {
    let mut found = Vec::new();
    let key = HashedKey::new(table, key, SEED);
    let lookup = run.get(&key, seq, &mut |value| found.push(value.to_vec()))?;
    assert_eq!(found.len(), usize::from(lookup == Lookup::Found), "the callback is called once for a value");
    Ok(match lookup {
        Lookup::Absent => None,
        Lookup::Deleted => Some(None),
        Lookup::Found => Some(found.pop()),
    })
}

/// A key and its value; `None` is a deletion.
type Item = (Vec<u8>, Option<Vec<u8>>);

/// Where a cursor stands, with the value.
fn item(cursor: &mut dyn LayerCursor) -> Result<Option<Item>> {
    let Some(key) = cursor.key().map(<[u8]>::to_vec) else {
        assert!(!cursor.is_deletion());
        return Ok(None);
    };
    let deletion = cursor.is_deletion();
    let value = cursor.value()?.map(<[u8]>::to_vec);
    assert_eq!(deletion, value.is_none());
    Ok(Some((key, value)))
}

fn scan(run: &Arc<Run>, table: u32, seq: u64) -> Result<Vec<Item>> {
    let mut cursor = run.cursor(table, seq);
    let mut out = Vec::new();
    cursor.seek(b"")?;
    while let Some(item) = item(&mut cursor)? {
        out.push(item);
        cursor.next()?;
    }
    Ok(out)
}

fn scan_back(run: &Arc<Run>, table: u32, seq: u64) -> Result<Vec<Item>> {
    let mut cursor = run.cursor(table, seq);
    let mut out = Vec::new();
    cursor.seek_before(None)?;
    while let Some(item) = item(&mut cursor)? {
        out.push(item);
        cursor.prev()?;
    }
    Ok(out)
}

fn owned(view: &BTreeMap<&[u8], Option<&[u8]>>) -> Vec<Item> {
    view.iter().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect()
}

type Version = (u32, Vec<u8>, u64, Option<Vec<u8>>);

fn drain(versions: &mut dyn Versions) -> Result<Vec<Version>> {
    let mut out = Vec::new();
    while versions.advance()? {
        let (key, seq) = (versions.key(), versions.seq());
        let (table, bytes) = (key.table, key.bytes.to_vec());
        out.push((table, bytes, seq, versions.value()?.map(<[u8]>::to_vec)));
    }
    Ok(out)
}

fn all(model: &Model) -> Vec<Version> {
    model
        .iter()
        .map(|(table, key, seq, value)| (table, key.to_vec(), seq, value.map(<[u8]>::to_vec)))
        .collect()
}
