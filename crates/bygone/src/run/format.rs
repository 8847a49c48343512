//! The fixed parts of a run file: name, header, footer, and what the superblock remembers.
//!
//! Owns: their bytes. Promises: what decodes was encoded by this version of the format; nothing is used
//! before its checksum and its bounds were checked. May call: `codec`, `error`, `limits`.

use std::path::Path;

use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::limits::VALUE_BYTES_MAX;

/// The version of the format that this program writes and reads.
pub(super) const VERSION: u32 = 1;

const HEADER_MAGIC: &[u8; 8] = b"BygonRun";
const FOOTER_MAGIC: &[u8; 8] = b"RunBygon";

pub(super) const HEADER_BYTES: usize = 32;
pub(super) const FOOTER_BYTES: usize = 96;

/// The size at which a block is cut, in bytes. A block is larger only if it holds a single record.
pub(super) const BLOCK_BYTES_TARGET: usize = 4 << 10;

/// The largest block, in bytes: offsets within a block are 16 bits wide.
pub(super) const BLOCK_BYTES_MAX: usize = 1 << 16;

/// Longer values, in bytes, are stored outside the blocks.
pub(super) const INLINE_VALUE_BYTES_MAX: usize = 32 << 10;

/// The name of a run's file in its directory.
pub(crate) fn file_name(id: u64) -> String {
    format!("{id:016x}.run")
}

/// The run whose file has this name.
pub(crate) fn file_id(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(".run")?, 16).ok()
}

/// Identity of a run, as the superblock remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunMeta {
    pub id: u64,
    /// The run holds every version in `min_seq..=max_seq` of what it was made from, and none outside.
    pub min_seq: u64,
    pub max_seq: u64,
    /// How many versions it holds, deletions included.
    pub records: u64,
    /// The file's length.
    pub bytes: u64,
    /// CRC-32C of the footer, which holds the checksums of index and filter: opening another or an older
    /// file under this name is noticed.
    pub footer_checksum: u32,
}

impl RunMeta {
    /// The bytes of several runs.
    pub fn total_bytes(runs: &[RunMeta]) -> u64 {
        runs.iter().map(|run| run.bytes).sum()
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.id, self.min_seq, self.max_seq, self.records, self.bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.footer_checksum.to_le_bytes());
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<RunMeta> {
        Some(RunMeta {
            id: reader.u64()?,
            min_seq: reader.u64()?,
            max_seq: reader.u64()?,
            records: reader.u64()?,
            bytes: reader.u64()?,
            footer_checksum: reader.u32()?,
        })
    }
}

/// What a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub id: u64,
    pub hash_seed: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(HEADER_MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..20].copy_from_slice(&self.id.to_le_bytes());
        out[20..28].copy_from_slice(&self.hash_seed.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..28]);
        out[28..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES], path: &Path) -> Result<Header> {
        let damaged = |reason| Error::corruption(path, 0, reason);
        let mut reader =
            check_sealed(bytes).ok_or_else(|| damaged("the header's checksum does not match"))?;
        if reader.bytes(8) != Some(HEADER_MAGIC) {
            return Err(damaged("this is not a run"));
        }
        check_version(&mut reader, path)?;
        (|| Some(Header { id: reader.u64()?, hash_seed: reader.u64()? }))()
            .ok_or_else(|| damaged("the header is too short"))
    }
}

/// What a file ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub id: u64,
    pub min_seq: u64,
    pub max_seq: u64,
    pub records: u64,
    /// How many distinct keys.
    pub keys: u64,
    pub blocks: u64,
    /// Where the index begins, and the blocks and values end. The filter follows the index, the footer the
    /// filter.
    pub index_offset: u64,
    pub index_bytes: u64,
    pub filter_bytes: u64,
    pub index_checksum: u32,
    pub filter_checksum: u32,
}

impl Footer {
    /// The bytes, and their checksum, which is also the last four of them.
    pub fn encode(&self) -> ([u8; FOOTER_BYTES], u32) {
        let mut out = [0; FOOTER_BYTES];
        let numbers = [
            self.id,
            self.min_seq,
            self.max_seq,
            self.records,
            self.keys,
            self.blocks,
            self.index_offset,
            self.index_bytes,
            self.filter_bytes,
        ];
        out[..8].copy_from_slice(FOOTER_MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (place, number) in out[12..84].as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        out[84..88].copy_from_slice(&self.index_checksum.to_le_bytes());
        out[88..92].copy_from_slice(&self.filter_checksum.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..92]);
        out[92..].copy_from_slice(&checksum.to_le_bytes());
        (out, checksum)
    }

    /// Decodes the footer of the run that `meta` remembers, and checks that it is the one, and that the parts
    /// of the file fill the file.
    pub fn decode(bytes: &[u8; FOOTER_BYTES], path: &Path, meta: &RunMeta) -> Result<Footer> {
        let offset = meta.bytes.saturating_sub(FOOTER_BYTES as u64);
        let damaged = |reason| Error::corruption(path, offset, reason);
        let mut reader =
            check_sealed(bytes).ok_or_else(|| damaged("the footer's checksum does not match"))?;
        if bytes[92..] != meta.footer_checksum.to_le_bytes() {
            return Err(damaged("this is another run, or another version of it, than the one expected here"));
        }
        if reader.bytes(8) != Some(FOOTER_MAGIC) {
            return Err(damaged("the footer of a run was expected here"));
        }
        check_version(&mut reader, path)?;
        let footer = Self::decode_fields(&mut reader).ok_or_else(|| damaged("the footer is too short"))?;
        let remembered = (meta.id, meta.min_seq, meta.max_seq, meta.records);
        if (footer.id, footer.min_seq, footer.max_seq, footer.records) != remembered {
            return Err(damaged("the footer contradicts what is remembered of the run"));
        }
        let end = (footer.index_offset.checked_add(footer.index_bytes))
            .and_then(|end| end.checked_add(footer.filter_bytes))
            .and_then(|end| end.checked_add(FOOTER_BYTES as u64));
        if end != Some(meta.bytes) || footer.index_offset < HEADER_BYTES as u64 {
            return Err(damaged("the parts of the run do not fill the file"));
        }
        Ok(footer)
    }

    fn decode_fields(reader: &mut Reader<'_>) -> Option<Footer> {
        Some(Footer {
            id: reader.u64()?,
            min_seq: reader.u64()?,
            max_seq: reader.u64()?,
            records: reader.u64()?,
            keys: reader.u64()?,
            blocks: reader.u64()?,
            index_offset: reader.u64()?,
            index_bytes: reader.u64()?,
            filter_bytes: reader.u64()?,
            index_checksum: reader.u32()?,
            filter_checksum: reader.u32()?,
        })
    }
}

/// A reader over bytes whose last four are the CRC-32C of the ones before.
fn check_sealed(bytes: &[u8]) -> Option<Reader<'_>> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(body).to_le_bytes() == *checksum).then(|| Reader::new(body))
}

fn check_version(reader: &mut Reader<'_>, path: &Path) -> Result<()> {
    match reader.u32() {
        Some(VERSION) => Ok(()),
        found => {
            Err(Error::Incompatible { path: path.to_owned(), found: found.unwrap_or(0), supported: VERSION })
        }
    }
}

/// Where a value lies that is stored outside the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutsideValue {
    /// From the beginning of the file.
    pub offset: u64,
    pub bytes: u32,
    /// CRC-32C of the value.
    pub checksum: u32,
}

impl OutsideValue {
    pub const ENCODED_BYTES: usize = 16;

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut out = [0; Self::ENCODED_BYTES];
        out[..8].copy_from_slice(&self.offset.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        out[12..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// `None` if a value of this length has no business outside a block. The caller checks the place against
    /// the file.
    pub fn decode(bytes: &[u8]) -> Option<OutsideValue> {
        let mut reader = Reader::new(bytes);
        let value = OutsideValue { offset: reader.u64()?, bytes: reader.u32()?, checksum: reader.u32()? };
        let expected = INLINE_VALUE_BYTES_MAX + 1..=VALUE_BYTES_MAX;
        (reader.remaining() == 0 && expected.contains(&(value.bytes as usize))).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer() -> (Footer, RunMeta) {
        let footer = Footer {
            id: 7,
            min_seq: 10,
            max_seq: 20,
            records: 3,
            keys: 2,
            blocks: 1,
            index_offset: 100,
            index_bytes: 50,
            filter_bytes: 64,
            index_checksum: 1,
            filter_checksum: 2,
        };
        let footer_checksum = footer.encode().1;
        let bytes = 100 + 50 + 64 + FOOTER_BYTES as u64;
        (footer, RunMeta { id: 7, min_seq: 10, max_seq: 20, records: 3, bytes, footer_checksum })
    }

    #[test]
    fn names_sort_as_ids_do() {
        assert_eq!(file_name(1), "0000000000000001.run");
        assert!(file_name(255) < file_name(256));
    }

    #[test]
    fn meta_comes_back() {
        let meta = footer().1;
        let mut out = Vec::new();
        meta.encode(&mut out);
        assert_eq!(out.len(), 44);
        assert_eq!(RunMeta::decode(&mut Reader::new(&out)), Some(meta));
        assert_eq!(RunMeta::decode(&mut Reader::new(&out[1..])), None);
    }

    #[test]
    fn header_comes_back_and_no_bit_of_it_may_change() {
        let header = Header { id: 3, hash_seed: 4 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes, Path::new("x")).unwrap(), header);
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(
                Header::decode(&damaged, Path::new("x")),
                Err(Error::Corruption { offset: 0, .. })
            ));
        }
    }

    #[test]
    fn footer_comes_back_and_no_bit_of_it_may_change() {
        let (footer, meta) = footer();
        let bytes = footer.encode().0;
        assert_eq!(Footer::decode(&bytes, Path::new("x"), &meta).unwrap(), footer);
        for bit in 0..FOOTER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = Footer::decode(&damaged, Path::new("x"), &meta).unwrap_err();
            assert!(matches!(error, Error::Corruption { offset: 214, .. }), "{error}");
        }
    }

    #[test]
    fn a_newer_version_is_called_that() {
        let mut bytes = Header { id: 3, hash_seed: 4 }.encode();
        bytes[8] = 9;
        let checksum = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        let error = Header::decode(&bytes, Path::new("x")).unwrap_err();
        assert!(matches!(error, Error::Incompatible { found: 9, supported: VERSION, .. }), "{error}");
    }

    #[test]
    fn parts_that_do_not_fill_the_file_are_refused() {
        let (footer, meta) = footer();
        for damaged in [
            Footer { index_offset: u64::MAX, ..footer },
            Footer { index_offset: 0, index_bytes: 150, ..footer },
            Footer { filter_bytes: 128, ..footer },
            Footer { index_bytes: u64::MAX - 10, ..footer },
        ] {
            let (bytes, footer_checksum) = damaged.encode();
            let meta = RunMeta { footer_checksum, ..meta };
            assert!(Footer::decode(&bytes, Path::new("x"), &meta).is_err());
        }
    }

    #[test]
    fn values_outside_have_the_length_that_puts_them_there() {
        for bytes in [0, INLINE_VALUE_BYTES_MAX as u32, VALUE_BYTES_MAX as u32 + 1, u32::MAX] {
            assert_eq!(OutsideValue::decode(&OutsideValue { offset: 1, bytes, checksum: 2 }.encode()), None);
        }
        for bytes in [INLINE_VALUE_BYTES_MAX as u32 + 1, VALUE_BYTES_MAX as u32] {
            let value = OutsideValue { offset: 1, bytes, checksum: 2 };
            assert_eq!(OutsideValue::decode(&value.encode()), Some(value));
            assert_eq!(OutsideValue::decode(&value.encode()[1..]), None);
        }
    }
}
