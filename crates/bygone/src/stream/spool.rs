//! The file in which a stream is gathered until it is whole.
//!
//! Owns: that file. Promises: only chunks that are what was sent get into it; what is in it after a crash is a
//! beginning of the stream, whatever the disk lost. May call: `io`, `chunk`, `head`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunk::{self, Chunk, HEADER_BYTES, Kind};
use super::head::Head;
use crate::error::{Error, Result};
use crate::ids::ResumePoint;
use crate::io::{Disk, File, OpenMode, exists, remove, sync_dir};
use crate::limits::NAME_BYTES_MAX;

/// How often what has come is made durable, in bytes.
const SYNC_EVERY_BYTES: u64 = 32 << 20;

/// A stream as far as it is there.
pub(crate) struct Spool {
    file: File,
    pub head: Head,
    /// Up to where it is there.
    pub at: ResumePoint,
    end: u64,
    unsynced: u64,
    pub is_whole: bool,
}

impl Spool {
    /// What is there of a stream; `None` if there is nothing.
    pub fn find(disk: &dyn Disk, path: &Path) -> Result<Option<Spool>> {
        if !exists(disk, path)? {
            return Ok(None);
        }
        let file = File::open(disk, path, OpenMode::Write)?;
        let mut input = Input { file: &file, at: 0, len: file.len()? };
        // A crash may have left the end of the file, or all of it, in any state.
        let first = chunk::read(&mut input).ok().flatten();
        let head = first.filter(|chunk| chunk.kind == Kind::Head && chunk.check(0).is_some());
        let Some(head) = head.and_then(|chunk| Head::decode(&chunk.content)) else { return Ok(None) };
        let mut spool = Spool {
            at: head.origin(),
            head,
            end: input.at,
            file: file.clone(),
            unsynced: 0,
            is_whole: false,
        };
        while !spool.is_whole
            && let Ok(Some(chunk)) = chunk::read(&mut input)
            && let Some(chain) = chunk.check(spool.at.chain)
        {
            spool.took(chunk.kind, chain, input.at);
        }
        Ok(Some(spool))
    }

    /// Takes what `input` has of a stream: one from the beginning, or one that goes on where this file's ends. When
    /// the input ends too early, what has come is kept.
    pub fn take(disk: &dyn Disk, path: &Path, input: &mut dyn Read) -> Result<Spool> {
        let Some(first) = chunk::read(input)? else { return Err(incomplete(None)) };
        let head = first.check(0).filter(|_| first.kind == Kind::Head);
        let head = head.and_then(|_| Head::decode(&first.content));
        let head = head.ok_or_else(|| damaged(0, "it does not begin as a stream of this version does"))?;
        let mut spool = if head.start.chunks == 0 {
            Spool::create(disk, path, &first, head)?
        } else {
            Spool::find_to_go_on(disk, path, &head)?
        };
        while !spool.is_whole {
            let Some(chunk) = chunk::read(input)? else {
                spool.file.sync()?;
                return Err(incomplete(Some(spool.at)));
            };
            let Some(chain) = chunk.check(spool.at.chain) else {
                return Err(damaged(spool.end, "a chunk is not what was sent"));
            };
            spool.append(&chunk.encode())?;
            spool.took(chunk.kind, chain, spool.end);
        }
        spool.file.sync()?;
        Ok(spool)
    }

    fn create(disk: &dyn Disk, path: &Path, first: &Chunk, head: Head) -> Result<Spool> {
        if exists(disk, path)? {
            remove(disk, path)?;
        }
        let file = File::open(disk, path, OpenMode::Create)?;
        if let Some(directory) = path.parent() {
            sync_dir(disk, directory)?;
        }
        let mut spool = Spool { at: head.origin(), head, end: 0, file, unsynced: 0, is_whole: false };
        spool.append(&first.encode())?;
        Ok(spool)
    }

    fn find_to_go_on(disk: &dyn Disk, path: &Path, head: &Head) -> Result<Spool> {
        let found = Spool::find(disk, path)?;
        let spool = found.filter(|spool| spool.at == head.start && spool.head.origin() == head.origin());
        spool.ok_or_else(|| Error::InvalidArgument {
            reason: format!(
                "the stream goes on at {}, which is not where the last one broke off",
                head.start
            ),
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_EVERY_BYTES {
            self.file.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    fn took(&mut self, kind: Kind, chain: u64, end: u64) {
        self.at = ResumePoint { chunks: self.at.chunks + 1, chain };
        self.end = end;
        self.is_whole = kind == Kind::End;
    }

    /// Reads the stream, which is whole, behind its head.
    pub fn read(&self) -> Result<SpoolReader> {
        let at = (HEADER_BYTES + self.first_bytes()?) as u64;
        Ok(SpoolReader { file: self.file.clone(), at, len: self.end, chain: self.head.origin().chain })
    }

    fn first_bytes(&self) -> Result<usize> {
        let mut length = [0; 4];
        self.file.read_at(&mut length, 0)?;
        Ok(u32::from_le_bytes(length) as usize)
    }

    pub fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }
}

/// Gives a stream's chunks once more.
pub(crate) struct SpoolReader {
    file: File,
    at: u64,
    len: u64,
    chain: u64,
}

impl SpoolReader {
    /// The next chunk's kind and content.
    pub fn next(&mut self) -> Result<(Kind, Arc<Vec<u8>>)> {
        let mut input = Input { file: &self.file, at: self.at, len: self.len };
        let chunk = chunk::read(&mut input)?;
        let checked = chunk.and_then(|chunk| Some((chunk.check(self.chain)?, chunk)));
        let (chain, chunk) = checked.ok_or_else(|| self.damaged("a chunk is not what was received"))?;
        (self.at, self.chain) = (input.at, chain);
        Ok((chunk.kind, Arc::new(chunk.content)))
    }

    pub fn damaged(&self, reason: &str) -> Error {
        Error::corruption(self.file.path(), self.at, reason)
    }

    /// The name in a chunk.
    pub fn name(&self, content: &[u8]) -> Result<String> {
        let name = std::str::from_utf8(content).ok();
        let name = name.filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
        name.map(str::to_owned).ok_or_else(|| self.damaged("a table's name cannot be read"))
    }
}

/// A file as a stream of bytes.
struct Input<'f> {
    file: &'f File,
    at: u64,
    len: u64,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = (self.len - self.at).min(buffer.len() as u64) as usize;
        self.file.read_at(&mut buffer[..count], self.at).map_err(std::io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn damaged(offset: u64, reason: &str) -> Error {
    Error::corruption(Path::new("the stream"), offset, reason)
}

fn incomplete(at: Option<ResumePoint>) -> Error {
    Error::StreamIncomplete { at }
}
