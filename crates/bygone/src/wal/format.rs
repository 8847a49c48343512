//! The bytes of a segment: its header, and the headers of its records. The whole format is described in
//! `docs/format/wal.md`.
//!
//! Owns: encoding and checking. Promises: a header that is accepted was written by this format version, for
//! this database, this segment and this offset; so neither what is left of a recycled segment's earlier life
//! nor a copy of a log inside somebody's value is ever taken for a record. May call: `codec`, `error`,
//! `limits`.

use std::path::Path;

use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::limits::COMMIT_BYTES_MAX;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"BYGNWAL\0");
const VERSION: u32 = 1;
const SEGMENT_HEADER_BYTES: usize = 48;

/// Records begin here: appending never rewrites the page that holds the segment's header.
pub(super) const RECORDS_OFFSET: u64 = 4096;

pub(super) const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"BYGR");
pub(super) const RECORD_HEADER_BYTES: usize = 40;

/// Records begin at multiples of this.
pub(super) const ALIGNMENT: u64 = 8;

/// How many commits one record may hold.
pub(crate) const GROUP_COMMITS_MAX: usize = 65_536;

/// The longest body of a record: one table of lengths and as many payload bytes as one commit may have.
pub(super) const BODY_BYTES_MAX: u64 = COMMIT_BYTES_MAX as u64 + 4 * GROUP_COMMITS_MAX as u64 + ALIGNMENT;

/// Checksum over which database, segment and offset something belongs to; everything else is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    checksum: u32,
}

impl Place {
    pub fn of_segment(database_id: u64, segment_id: u64) -> Place {
        let checksum = crc32c::crc32c(&database_id.to_le_bytes());
        Place { checksum: crc32c::crc32c_append(checksum, &segment_id.to_le_bytes()) }
    }

    /// What checksums of the record at `offset` begin with. CRC-32C notices every difference that lies within
    /// 32 bits, so two ids or offsets that differ in their low halves only can never be confused,
    /// whatever the bytes are.
    pub fn at(self, offset: u64) -> u32 {
        crc32c::crc32c_append(self.checksum, &offset.to_le_bytes())
    }
}

/// What stands at the beginning of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub database_id: u64,
    pub segment_id: u64,
    pub superblock_number: u64,
    /// The length of the file.
    pub len: u64,
}

impl SegmentHeader {
    /// The first [`RECORDS_OFFSET`] bytes of the segment.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORDS_OFFSET as usize);
        out.extend_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for number in [self.database_id, self.segment_id, self.superblock_number, self.len] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&out);
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out.resize(RECORDS_OFFSET as usize, 0);
        out
    }

    /// `None` if this is not a segment's header. A whole header of another format version is an error of its
    /// own.
    pub fn decode(page: &[u8], path: &Path) -> Result<Option<SegmentHeader>> {
        let Some(bytes) = page.first_chunk::<SEGMENT_HEADER_BYTES>() else { return Ok(None) };
        Self::parse(bytes)
            .map(|(version, header)| match version {
                VERSION => Ok(header),
                found => Err(Error::Incompatible { path: path.to_owned(), found, supported: VERSION }),
            })
            .transpose()
    }

    fn parse(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Option<(u32, SegmentHeader)> {
        let mut plain = *bytes;
        plain[12..16].fill(0);
        let mut reader = Reader::new(bytes);
        let magic = reader.u64()?;
        let version = reader.u32()?;
        if magic != SEGMENT_MAGIC || reader.u32()? != crc32c::crc32c(&plain) {
            return None;
        }
        let header = SegmentHeader {
            database_id: reader.u64()?,
            segment_id: reader.u64()?,
            superblock_number: reader.u64()?,
            len: reader.u64()?,
        };
        Some((version, header))
    }
}

/// What stands before a record's body. A record without commits is a *mark*: it only says what is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// Length of the body with its padding, a multiple of [`ALIGNMENT`].
    pub body_bytes: u64,
    /// Sequence number of the first commit; of a mark, of the next commit there will be.
    pub first_seq: u64,
    /// Every commit with a smaller sequence number was durable when this was written.
    pub durable_end: u64,
    pub commits: u32,
    /// Of the body, begun with the record's place.
    pub body_checksum: u32,
}

impl RecordHeader {
    pub fn encode(&self, place: u32) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.first_seq.to_le_bytes());
        out[24..32].copy_from_slice(&self.durable_end.to_le_bytes());
        out[32..36].copy_from_slice(&self.commits.to_le_bytes());
        out[36..].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = crc32c::crc32c_append(place, &out[8..]);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// The header at a place, if it is whole and makes sense.
    pub fn decode(bytes: &[u8], place: u32) -> Option<RecordHeader> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let mut reader = Reader::new(bytes);
        if reader.u32()? != RECORD_MAGIC || reader.u32()? != crc32c::crc32c_append(place, &bytes[8..]) {
            return None;
        }
        let header = RecordHeader {
            body_bytes: reader.u64()?,
            first_seq: reader.u64()?,
            durable_end: reader.u64()?,
            commits: reader.u32()?,
            body_checksum: reader.u32()?,
        };
        let makes_sense = header.body_bytes <= BODY_BYTES_MAX
            && header.body_bytes.is_multiple_of(ALIGNMENT)
            && header.body_bytes >= u64::from(header.commits) * 4
            && (header.commits > 0 || header.body_bytes == 0)
            && header.first_seq.checked_add(u64::from(header.commits)).is_some();
        makes_sense.then_some(header)
    }

    /// The sequence number after the last one in the record.
    pub fn end_seq(&self) -> u64 {
        // Checked by `decode`.
        self.first_seq + u64::from(self.commits)
    }

    pub fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + self.body_bytes
    }
}

/// The payloads of a body whose checksum was right; `None` if its lengths do not fit, which only a bug can
/// write.
pub(super) fn payloads(body: &[u8], commits: u32) -> Option<Vec<&[u8]>> {
    let table_bytes = usize::try_from(commits).ok()?.checked_mul(4)?;
    let (table, mut rest) = body.split_at_checked(table_bytes)?;
    let mut table = Reader::new(table);
    let mut payloads = Vec::with_capacity(commits as usize);
    while table.remaining() > 0 {
        let (payload, after) = rest.split_at_checked(table.u32()? as usize)?;
        payloads.push(payload);
        rest = after;
    }
    (rest.len() < ALIGNMENT as usize).then_some(payloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentHeader =
        SegmentHeader { database_id: 7, segment_id: 3, superblock_number: 9, len: 8192 };
    const RECORD: RecordHeader =
        RecordHeader { body_bytes: 16, first_seq: 5, durable_end: 4, commits: 2, body_checksum: 77 };

    #[test]
    fn headers_come_back() {
        let page = SEGMENT.encode();
        assert_eq!(page.len() as u64, RECORDS_OFFSET);
        assert_eq!(SegmentHeader::decode(&page, Path::new("s")).unwrap(), Some(SEGMENT));
        let place = Place::of_segment(7, 3).at(4096);
        assert_eq!(RecordHeader::decode(&RECORD.encode(place), place), Some(RECORD));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let page = SEGMENT.encode();
        let place = Place::of_segment(7, 3).at(4096);
        let record = RECORD.encode(place);
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut page = page.clone();
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&page, Path::new("s")).unwrap(), None, "bit {bit}");
        }
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            let mut record = record;
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&record, place), None, "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut page = SEGMENT.encode();
        page[8] = 2;
        page[12..16].fill(0);
        let checksum = crc32c::crc32c(&page[..SEGMENT_HEADER_BYTES]);
        page[12..16].copy_from_slice(&checksum.to_le_bytes());
        let error = SegmentHeader::decode(&page, Path::new("s")).unwrap_err();
        assert!(matches!(error, Error::Incompatible { found: 2, supported: 1, .. }));
    }

    #[test]
    fn a_record_counts_only_in_its_own_place() {
        let bytes = RECORD.encode(Place::of_segment(7, 3).at(4096));
        for place in [
            Place::of_segment(7, 4).at(4096),
            Place::of_segment(8, 3).at(4096),
            Place::of_segment(7, 3).at(4104),
        ] {
            assert_eq!(RecordHeader::decode(&bytes, place), None);
        }
    }

    #[test]
    fn senseless_numbers_are_refused_though_the_checksum_is_right() {
        let place = Place::of_segment(7, 3).at(4096);
        for bad in [
            RecordHeader { body_bytes: BODY_BYTES_MAX + ALIGNMENT, ..RECORD },
            RecordHeader { body_bytes: 17, ..RECORD },
            RecordHeader { commits: 5, ..RECORD },
            RecordHeader { commits: 0, ..RECORD },
            RecordHeader { first_seq: u64::MAX, ..RECORD },
        ] {
            assert_eq!(RecordHeader::decode(&bad.encode(place), place), None, "{bad:?}");
        }
    }

    #[test]
    fn lengths_that_do_not_fit_the_body_are_refused() {
        let body = |lengths: [u32; 2], bytes: usize| {
            let mut body = lengths.map(u32::to_le_bytes).concat();
            body.resize(8 + bytes, b'x');
            body
        };
        assert_eq!(payloads(&body([3, 4], 8), 2).unwrap(), [&b"xxx"[..], b"xxxx"]);
        assert_eq!(payloads(&body([3, 6], 8), 2), None, "too long");
        assert_eq!(payloads(&body([u32::MAX, u32::MAX], 8), 2), None);
        assert_eq!(payloads(&body([3, 4], 16), 2), None, "bytes that belong to nobody");
        assert_eq!(payloads(&[0; 4], 2), None);
    }
}
