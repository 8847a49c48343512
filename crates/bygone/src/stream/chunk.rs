//! Chunks: the parts of a stream.
//!
//! Owns: their bytes. Promises: a chunk's checksum covers its content and, through the one before it, all that came
//! before. May call: `codec`, `limits`, `error`.

use std::io::{Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::head::Head;
use crate::codec::{Reader, put_varint};
use crate::error::{Error, Result};
use crate::ids::ResumePoint;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Changes are gathered until a chunk has this many bytes.
const CHANGES_BYTES: usize = 256 << 10;

/// The largest content of a chunk: changes that are one record short of a chunk, and the largest record.
pub(super) const CONTENT_BYTES_MAX: usize = CHANGES_BYTES + VALUE_BYTES_MAX + KEY_BYTES_MAX + 32;

/// Length and kind of the content, and the checksum.
pub(super) const HEADER_BYTES: usize = 4 + 4 + 8;

/// What a chunk is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Which snapshots the stream is between; the first chunk, and the first of every continuation.
    Head = 0,
    /// A table's name, whose changes follow; it is made if it is not there.
    Table = 1,
    /// The name of a table that is dropped.
    Drop = 2,
    /// Changes of the table that was named last, in the order of keys.
    Changes = 3,
    /// There is no more: the number of changes.
    End = 4,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        [Kind::Head, Kind::Table, Kind::Drop, Kind::Changes, Kind::End]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

/// The checksum of a chunk behind another.
fn checksum(before: u64, start: &[u8; 8], content: &[u8]) -> u64 {
    xxh3_64_with_seed(content, xxh3_64_with_seed(start, before))
}

/// What a stream is called in errors about reading and writing it.
fn stream() -> &'static Path {
    Path::new("the stream")
}

/// Reads the next chunk; `None` at the end of what there is. Bytes that end within a chunk count as an end before
/// it. Checks nothing but the length.
pub(super) fn read(input: &mut dyn Read) -> Result<Option<Chunk>> {
    let mut header = [0; HEADER_BYTES];
    if !fill(input, &mut header)? {
        return Ok(None);
    }
    let mut reader = Reader::new(&header);
    let (length, number, checksum) = (reader.u32(), reader.u32(), reader.u64());
    let (length, number, checksum) =
        (length.unwrap_or_default(), number.unwrap_or_default(), checksum.unwrap_or_default());
    let start = header.first_chunk().copied().unwrap_or_default();
    let damaged = |reason: &str| Error::corruption(stream(), 0, reason);
    let kind = Kind::of(number).ok_or_else(|| damaged("a chunk is of no known kind"))?;
    if length as usize > CONTENT_BYTES_MAX {
        return Err(damaged("a chunk is longer than any can be"));
    }
    // Grown as the bytes come: the length is not checked yet.
    let mut content = Vec::new();
    let read = input.take(u64::from(length)).read_to_end(&mut content);
    read.map_err(|e| Error::io(stream(), "read", e))?;
    Ok((content.len() == length as usize).then_some(Chunk { kind, content, start, checksum }))
}

fn fill(input: &mut dyn Read, buffer: &mut [u8]) -> Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::io(stream(), "read", error)),
    }
}

/// A chunk as it was read.
pub(super) struct Chunk {
    pub kind: Kind,
    pub content: Vec<u8>,
    start: [u8; 8],
    checksum: u64,
}

impl Chunk {
    /// Whether it is what was sent behind a chunk with that checksum; answers its own.
    pub fn check(&self, before: u64) -> Option<u64> {
        (checksum(before, &self.start, &self.content) == self.checksum).then_some(self.checksum)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.start.to_vec();
        out.extend_from_slice(&self.checksum.to_le_bytes());
        out.extend_from_slice(&self.content);
        out
    }
}

/// Writes a stream, from its beginning or from where it broke off.
pub(crate) struct ChunkWriter<W> {
    out: W,
    /// How far the stream is, written or passed over.
    at: ResumePoint,
    /// Chunks before this one are there already.
    start: ResumePoint,
    changes: Vec<u8>,
    count: u64,
}

impl<W: Write> ChunkWriter<W> {
    pub fn new(out: W, head: &Head) -> Result<ChunkWriter<W>> {
        let start = head.start;
        let mut writer = ChunkWriter { out, at: head.origin(), start, changes: Vec::new(), count: 0 };
        let content = head.encode();
        let (header, _) = encode_header(0, Kind::Head, &content);
        writer.write(&[&header, &content])?;
        Ok(writer)
    }

    pub fn table(&mut self, name: &str) -> Result<()> {
        self.flush()?;
        self.chunk(Kind::Table, name.as_bytes())
    }

    pub fn dropped(&mut self, name: &str) -> Result<()> {
        self.flush()?;
        self.chunk(Kind::Drop, name.as_bytes())
    }

    /// A change of the table that was named last.
    pub fn change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        put_varint(&mut self.changes, key.len() as u64);
        self.changes.extend_from_slice(key);
        put_varint(&mut self.changes, value.map_or(0, |value| value.len() as u64 + 1));
        self.changes.extend_from_slice(value.unwrap_or_default());
        self.count += 1;
        if self.changes.len() >= CHANGES_BYTES { self.flush() } else { Ok(()) }
    }

    /// The stream is whole.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        let count = self.count.to_le_bytes();
        self.chunk(Kind::End, &count)?;
        if self.at.chunks < self.start.chunks {
            let reason = format!("the stream has {} chunks, not {}", self.at.chunks, self.start.chunks);
            return Err(Error::InvalidArgument { reason });
        }
        self.out.flush().map_err(|e| Error::io(stream(), "write", e))
    }

    fn flush(&mut self) -> Result<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let changes = std::mem::take(&mut self.changes);
        self.chunk(Kind::Changes, &changes)?;
        self.changes = changes;
        self.changes.clear();
        Ok(())
    }

    fn chunk(&mut self, kind: Kind, content: &[u8]) -> Result<()> {
        let passed_over = self.at.chunks < self.start.chunks;
        let (header, chain) = encode_header(self.at.chain, kind, content);
        self.at = ResumePoint { chunks: self.at.chunks + 1, chain };
        if !passed_over {
            return self.write(&[&header, content]);
        }
        if self.at.chunks == self.start.chunks && chain != self.start.chain {
            let reason = "what was received up to here is not what this database has".to_owned();
            return Err(Error::InvalidArgument { reason });
        }
        Ok(())
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<()> {
        let mut parts = parts.iter();
        parts.try_for_each(|part| self.out.write_all(part)).map_err(|e| Error::io(stream(), "write", e))
    }
}

fn encode_header(before: u64, kind: Kind, content: &[u8]) -> ([u8; HEADER_BYTES], u64) {
    debug_assert!(content.len() <= CONTENT_BYTES_MAX);
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(content.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&(kind as u32).to_le_bytes());
    let start = header.first_chunk().copied().unwrap_or_default();
    let chain = checksum(before, &start, content);
    header[8..].copy_from_slice(&chain.to_le_bytes());
    (header, chain)
}

/// The changes in a chunk.
pub(crate) struct Changes<'a>(Reader<'a>);

impl<'a> Changes<'a> {
    pub fn new(content: &'a [u8]) -> Changes<'a> {
        Changes(Reader::new(content))
    }
}

impl<'a> Iterator for Changes<'a> {
    /// Key and value; `None` if the bytes are no changes.
    type Item = Option<(&'a [u8], Option<&'a [u8]>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.remaining() == 0 {
            return None;
        }
        let mut change = || {
            let length = self.0.length(KEY_BYTES_MAX)?;
            let key = self.0.bytes(length)?;
            let value = match self.0.length(VALUE_BYTES_MAX + 1)? {
                0 => None,
                length => Some(self.0.bytes(length - 1)?),
            };
            Some((key, value))
        };
        let change = change();
        if change.is_none() {
            self.0 = Reader::new(&[]);
        }
        Some(change)
    }
}
