//! The pagelog: files that pages are appended to.
//!
//! Owns: the format of a segment (`docs/format/archive.md`), its writer and the reading of one record. Promises: what
//! is read is what was appended under that id, or the answer is `Error::Corruption` with file and offset; writes are
//! large and sequential. May call: `io`, `codec`, `limits`, `error`.

use std::path::Path;

use super::address::{Address, PageId};
use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::io::{Disk, File, OpenMode};
use crate::limits::PAGE_BYTES;

const MAGIC: &[u8; 8] = b"BygnPlog";
const VERSION: u32 = 1;

pub(super) const HEADER_BYTES: usize = 32;

/// What stands before the bytes of a page: CRC of all that follows (u32), number of bytes (u16), encoding (u8), zero
/// (u8), slot and birth (u48 each), CRC of the page (u32).
const HEAD_BYTES: usize = 24;

/// The longest record: a page that does not get smaller is stored as it is.
const RECORD_BYTES_MAX: usize = HEAD_BYTES + PAGE_BYTES;

const AS_IS: u8 = 0;
const LZ4: u8 = 1;

/// How many bytes are collected for one write.
const WRITE_BYTES: usize = 512 << 10;

pub(super) type Page = [u8; PAGE_BYTES];

/// The name of a segment's file in its directory.
pub(super) fn file_name(id: u64) -> String {
    format!("{id:016x}.pages")
}

/// The segment whose file has this name.
pub(super) fn file_id(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(".pages")?, 16).ok()
}

pub(super) fn encode_header(database_id: u64, id: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..20].copy_from_slice(&database_id.to_le_bytes());
    out[20..28].copy_from_slice(&id.to_le_bytes());
    let checksum = crc32c::crc32c(&out[..28]);
    out[28..].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// Opens a segment and checks that it is the one that is meant.
pub(super) fn open(disk: &dyn Disk, path: &Path, mode: OpenMode, database_id: u64, id: u64) -> Result<File> {
    let file = File::open(disk, path, mode)?;
    let mut header = [0; HEADER_BYTES];
    file.read_at(&mut header, 0)?;
    if header == encode_header(database_id, id) {
        return Ok(file);
    }
    let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    let intact = crc32c::crc32c(&header[..28]).to_le_bytes() == header[28..];
    if header[..8] == *MAGIC && intact && found > VERSION {
        return Err(Error::Incompatible { path: path.to_owned(), found, supported: VERSION });
    }
    Err(Error::corruption(path, 0, "this is not the segment of archived pages that belongs here"))
}

/// Appends records to one segment.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    file: File,
    id: u64,
    /// How many bytes the file has.
    written: u64,
    /// What follows them.
    buffer: Vec<u8>,
}

impl SegmentWriter {
    /// Makes a new segment; its name is not durable before the directory is synced.
    pub fn create(disk: &dyn Disk, directory: &Path, database_id: u64, id: u64) -> Result<SegmentWriter> {
        let file = File::open(disk, &directory.join(file_name(id)), OpenMode::Create)?;
        let buffer = encode_header(database_id, id).to_vec();
        Ok(SegmentWriter { file, id, written: 0, buffer })
    }

    /// Goes on behind the first `end` bytes of a segment; what is behind is of no use to anybody.
    pub fn resume(disk: &dyn Disk, directory: &Path, database_id: u64, id: u64, end: u64) -> Result<Self> {
        let path = directory.join(file_name(id));
        let file = open(disk, &path, OpenMode::Write, database_id, id)?;
        let len = file.len()?;
        if len < end {
            return Err(Error::corruption(&path, len, format!("the file has {len} bytes instead of {end}")));
        }
        if len > end {
            file.set_len(end)?;
        }
        Ok(SegmentWriter { file, id, written: end, buffer: Vec::new() })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where the next record begins.
    pub fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends a page whose CRC is `checksum`.
    pub fn append(&mut self, id: PageId, checksum: u32, page: &Page) -> Result<Address> {
        let start = self.buffer.len();
        let room = lz4_flex::block::get_maximum_output_size(PAGE_BYTES).max(PAGE_BYTES);
        self.buffer.resize(start + HEAD_BYTES + room, 0);
        let body = &mut self.buffer[start + HEAD_BYTES..];
        let (encoding, bytes) = match lz4_flex::block::compress_into(page, body) {
            Ok(bytes) if bytes < PAGE_BYTES => (LZ4, bytes),
            _ => {
                body[..PAGE_BYTES].copy_from_slice(page);
                (AS_IS, PAGE_BYTES)
            }
        };
        self.buffer.truncate(start + HEAD_BYTES + bytes);
        let head = &mut self.buffer[start..start + HEAD_BYTES];
        head[4..6].copy_from_slice(&(bytes as u16).to_le_bytes());
        head[6] = encoding;
        head[8..14].copy_from_slice(&id.slot.to_le_bytes()[..6]);
        head[14..20].copy_from_slice(&id.birth.to_le_bytes()[..6]);
        head[20..].copy_from_slice(&checksum.to_le_bytes());
        let own = crc32c::crc32c(&self.buffer[start + 4..]);
        self.buffer[start..start + 4].copy_from_slice(&own.to_le_bytes());
        self.appended(start)
    }

    /// Appends a record as it stands in another segment.
    pub fn append_record(&mut self, record: &[u8]) -> Result<Address> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(record);
        self.appended(start)
    }

    fn appended(&mut self, start: usize) -> Result<Address> {
        let address = Address {
            segment: self.id,
            offset: (self.written + start as u64) as u32,
            bytes: (self.buffer.len() - start) as u32,
        };
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(address)
    }

    /// Hands everything to the operating system. After an error the writer must not be used any more.
    pub fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_at(&self.buffer, self.written)?;
            self.written += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Makes everything durable but the file's name.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync()
    }
}

/// One record, its head checked.
pub(super) struct Record<'a> {
    pub id: PageId,
    encoding: u8,
    body: &'a [u8],
    /// All of it, as it stands in the file.
    pub bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record that begins at the first of these bytes; says what is wrong with it.
    fn decode(bytes: &'a [u8]) -> std::result::Result<Record<'a>, &'static str> {
        const CUT: &str = "a record of an archived page is cut";
        let mut reader = Reader::new(bytes);
        let own = reader.u32().ok_or(CUT)?;
        let length = usize::from(reader.u16().ok_or(CUT)?);
        let encoding = reader.u8().ok_or(CUT)?;
        let zero = reader.u8().ok_or(CUT)?;
        let numbers = reader.bytes(12).ok_or(CUT)?;
        reader.u32().ok_or(CUT)?;
        let body = reader.bytes(length).ok_or(CUT)?;
        let bytes = &bytes[..HEAD_BYTES + length];
        if crc32c::crc32c(&bytes[4..]) != own {
            return Err("the checksum of an archived page is wrong");
        }
        let sound = zero == 0
            && match encoding {
                AS_IS => length == PAGE_BYTES,
                LZ4 => (1..PAGE_BYTES).contains(&length),
                _ => false,
            };
        if !sound {
            return Err("the record of an archived page makes no sense");
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let id = PageId { slot: number(&numbers[..6]), birth: number(&numbers[6..]) };
        Ok(Record { id, encoding, body, bytes })
    }

    fn unpack(&self, page: &mut Page) -> std::result::Result<(), &'static str> {
        if self.encoding == AS_IS {
            page.copy_from_slice(self.body);
            return Ok(());
        }
        match lz4_flex::block::decompress_into(self.body, page) {
            Ok(PAGE_BYTES) => Ok(()),
            _ => Err("an archived page cannot be unpacked"),
        }
    }
}

/// Reads the page that was appended under `id` at this address.
pub(super) fn read(file: &File, address: Address, id: PageId, page: &mut Page) -> Result<()> {
    let damaged = |reason| Error::corruption(file.path(), u64::from(address.offset), reason);
    let bytes = address.bytes as usize;
    if !(HEAD_BYTES + 1..=RECORD_BYTES_MAX).contains(&bytes) || (address.offset as usize) < HEADER_BYTES {
        return Err(damaged("the page map leads to no record of an archived page"));
    }
    let mut buffer = [0; RECORD_BYTES_MAX];
    let buffer = &mut buffer[..bytes];
    file.read_at(buffer, u64::from(address.offset))?;
    let record = Record::decode(buffer).map_err(damaged)?;
    if record.id != id || record.bytes.len() != bytes {
        return Err(damaged("another archived page was expected here"));
    }
    record.unpack(page).map_err(damaged)
}

/// Hands all records of a segment up to `end`, with their addresses, to `visit`.
pub(super) fn for_each(
    file: &File,
    segment: u64,
    end: u64,
    visit: &mut dyn FnMut(Address, &Record<'_>) -> Result<()>,
) -> Result<()> {
    let mut buffer = Vec::new();
    let mut at = HEADER_BYTES as u64;
    while at < end {
        let bytes = (end - at).min(WRITE_BYTES as u64) as usize;
        buffer.resize(bytes, 0);
        file.read_at(&mut buffer, at)?;
        let is_last = at + bytes as u64 == end;
        let mut passed = 0;
        while passed < bytes && (is_last || bytes - passed >= RECORD_BYTES_MAX) {
            let offset = at + passed as u64;
            let record = Record::decode(&buffer[passed..])
                .map_err(|reason| Error::corruption(file.path(), offset, reason))?;
            let length = record.bytes.len();
            visit(Address { segment, offset: offset as u32, bytes: length as u32 }, &record)?;
            passed += length;
        }
        at += passed as u64;
    }
    Ok(())
}
