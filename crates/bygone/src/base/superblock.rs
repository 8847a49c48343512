//! The superblock: where a file's present begins.
//!
//! Owns: its layout, and which of the four copies counts. Promises: a write that is cut leaves the previous
//! superblock whole; one damaged copy does no harm. May call: `io`.
//!
//! Slots 0 to 3 of the file hold copies. Superblock number N goes into slots 0 and 1 if N is even, into 2 and
//! 3 if it is odd: twice the same bytes, in one write. The valid copy with the highest number counts.

use std::path::Path;

use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::io::File;
use crate::limits::PAGE_BYTES;

use super::page::Page;
use super::pointer::{BaseRoot, PagePointer, SUPERBLOCK_SLOTS, decode_optional, encode_optional};
use super::space::SLOTS_MAX;

const MAGIC: [u8; 8] = *b"BygnBase";
const VERSION: u32 = 1;
const MANIFEST_AT: usize = 128;
const CHECKSUM_AT: usize = PAGE_BYTES - 4;

/// The largest manifest, in bytes.
pub(crate) const MANIFEST_BYTES_MAX: usize = 3840;

/// One published state of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub number: u64,
    pub database_id: u64,
    pub root: BaseRoot,
    /// Where the space map begins; none in a file without pages.
    pub space: Option<PagePointer>,
    /// How many slots the file has: no used one is beyond.
    pub slots: u64,
    /// The newest generation that is kept for the past; 0 if none is.
    pub newest_retained: u64,
    /// What the database layer keeps here; nothing of the base looks into it.
    pub manifest: Vec<u8>,
}

impl Superblock {
    fn encode(&self) -> Page {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[12..16].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
        page[16..24].copy_from_slice(&self.number.to_le_bytes());
        page[24..32].copy_from_slice(&self.database_id.to_le_bytes());
        page[32..68].copy_from_slice(&self.root.encode());
        page[68..84].copy_from_slice(&encode_optional(self.space));
        page[84..92].copy_from_slice(&self.slots.to_le_bytes());
        page[92..100].copy_from_slice(&self.newest_retained.to_le_bytes());
        page[100..104].copy_from_slice(&(self.manifest.len() as u32).to_le_bytes());
        page[MANIFEST_AT..MANIFEST_AT + self.manifest.len()].copy_from_slice(&self.manifest);
        let checksum = crc32c::crc32c(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    fn decode(page: &Page, slot: u64) -> Copy {
        if page[..8] != MAGIC {
            return Copy::Invalid;
        }
        let version = u32::from_le_bytes([page[8], page[9], page[10], page[11]]);
        let checksum = crc32c::crc32c(&page[..CHECKSUM_AT]);
        let intact = page[CHECKSUM_AT..] == checksum.to_le_bytes();
        if version > VERSION {
            return Copy::Newer { version, intact };
        }
        match intact.then(|| Self::decode_fields(page)).flatten() {
            Some(superblock) if slot / 2 == superblock.number % 2 => Copy::Valid(superblock),
            _ => Copy::Invalid,
        }
    }

    fn decode_fields(page: &Page) -> Option<Superblock> {
        let mut reader = Reader::new(&page[8..CHECKSUM_AT]);
        if reader.u32()? != VERSION || reader.u32()? as usize != PAGE_BYTES {
            return None;
        }
        let superblock = Superblock {
            number: reader.u64()?,
            database_id: reader.u64()?,
            root: BaseRoot::decode(reader.bytes(BaseRoot::BYTES)?.first_chunk()?)?,
            space: decode_optional(reader.bytes(PagePointer::BYTES)?.first_chunk()?),
            slots: reader.u64()?,
            newest_retained: reader.u64()?,
            manifest: {
                let len = reader.u32()? as usize;
                if len > MANIFEST_BYTES_MAX {
                    return None;
                }
                page[MANIFEST_AT..MANIFEST_AT + len].to_vec()
            },
        };
        let generation = superblock.root.generation;
        let sound = (SUPERBLOCK_SLOTS..=SLOTS_MAX).contains(&superblock.slots)
            && superblock.newest_retained <= generation
            && superblock.space.is_none_or(|space| space.is_sound(generation))
            && superblock.space.is_some() == (generation > 0);
        sound.then_some(superblock)
    }

    /// Writes both copies and makes them durable.
    pub fn write(&self, file: &File) -> Result<()> {
        let page = self.encode();
        let mut twins = [0; 2 * PAGE_BYTES];
        twins[..PAGE_BYTES].copy_from_slice(&page);
        twins[PAGE_BYTES..].copy_from_slice(&page);
        file.write_at(&twins, self.number % 2 * twins.len() as u64)?;
        file.sync()
    }

    /// The newest valid superblock of a file.
    pub fn read(file: &File) -> Result<Superblock> {
        let mut newest: Option<Superblock> = None;
        let mut newer_version = None;
        for slot in 0..SUPERBLOCK_SLOTS {
            let mut page = [0; PAGE_BYTES];
            match file.read_at(&mut page, slot * PAGE_BYTES as u64) {
                // The file ends before this copy: another one may be whole.
                Err(Error::Corruption { .. }) => continue,
                result => result?,
            }
            match Self::decode(&page, slot) {
                // An intact one of a newer version may be the newest: not ours to pass over.
                Copy::Newer { version, intact: true } => return Err(incompatible(file.path(), version)),
                Copy::Newer { version, intact: false } => newer_version = Some(version),
                Copy::Invalid => {}
                Copy::Valid(found) => {
                    if newest.as_ref().is_none_or(|newest| newest.number < found.number) {
                        newest = Some(found);
                    }
                }
            }
        }
        match (newest, newer_version) {
            (Some(superblock), _) => Ok(superblock),
            (None, Some(version)) => Err(incompatible(file.path(), version)),
            (None, None) => Err(Error::corruption(file.path(), 0, "no copy of the superblock is valid")),
        }
    }

    /// The newest superblock that was whole in the file when this was called, or a newer one, while another process
    /// may be writing the next.
    ///
    /// One pass over the copies may miss two superblocks: it reads one pair of copies before number N + 2 is written
    /// there, and the other, which had N + 1, while N + 3 is. So two passes must find the same. Say both find N, and
    /// N + 1 was whole when the first began. Then the first found no N + 1, because N + 3 was being written in its
    /// place; so N + 2 was whole in the place of N, and the second could not find N there.
    pub fn read_published(file: &File) -> Result<Superblock> {
        let mut last = Self::read(file)?;
        for _ in 0..READS {
            let next = Self::read(file)?;
            if next.number == last.number {
                return Ok(next);
            }
            last = next;
        }
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        Err(Error::io(file.path(), "read the superblock of", busy))
    }
}

/// How often a superblock is read again that changes under the reader. Writing one takes a sync, reading it does not.
const READS: u32 = 1000;

fn incompatible(path: &Path, found: u32) -> Error {
    Error::Incompatible { path: path.to_owned(), found, supported: VERSION }
}

enum Copy {
    Invalid,
    Newer { version: u32, intact: bool },
    Valid(Superblock),
}

pub(super) fn check_manifest(manifest: &[u8]) -> Result<()> {
    if manifest.len() > MANIFEST_BYTES_MAX {
        let (size, limit) = (manifest.len() as u64, MANIFEST_BYTES_MAX as u64);
        return Err(Error::TooLarge { what: "manifest", size, limit });
    }
    Ok(())
}
