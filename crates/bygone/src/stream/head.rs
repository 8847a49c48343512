//! The head of a stream.
//!
//! Owns: its bytes. Promises: two streams with the same identity have the same chunks. May call: `codec`,
//! `limits`.

use xxhash_rust::xxh3::xxh3_64;

use crate::codec::{Reader, put_varint};
use crate::ids::ResumePoint;
use crate::limits::{METADATA_BYTES_MAX, NAME_BYTES_MAX};

const MAGIC: &[u8; 8] = b"bygsend\0";
const VERSION: u16 = 1;

/// Which snapshots a stream is between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The database that it comes from.
    pub database_id: u64,
    /// The snapshot, by its id there, that the changes are made to; 0 for none: everything is sent.
    pub from: u64,
    /// The snapshot that they lead to, by its id there.
    pub to: u64,
    pub time_micros: u64,
    pub name: Option<String>,
    pub metadata: Vec<u8>,
    /// Where it goes on.
    pub start: ResumePoint,
}

impl Head {
    /// The point before the first chunk.
    pub fn origin(&self) -> ResumePoint {
        ResumePoint { chunks: 0, chain: xxh3_64(&self.identity()) }
    }

    fn identity(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        for number in [self.database_id, self.from, self.to, self.time_micros] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_varint(&mut out, self.name.as_ref().map_or(0, |name| name.len() as u64 + 1));
        out.extend_from_slice(self.name.as_deref().unwrap_or_default().as_bytes());
        put_varint(&mut out, self.metadata.len() as u64);
        out.extend_from_slice(&self.metadata);
        out
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.identity();
        out.extend_from_slice(&self.start.chunks.to_le_bytes());
        out.extend_from_slice(&self.start.chain.to_le_bytes());
        out
    }

    /// `None` if the bytes are no head of this version.
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC || reader.u16()? != VERSION {
            return None;
        }
        let (database_id, from, to, time_micros) =
            (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let name = match reader.length(NAME_BYTES_MAX + 1)? {
            0 => None,
            length => Some(std::str::from_utf8(reader.bytes(length - 1)?).ok()?.to_owned()),
        };
        let count = reader.length(METADATA_BYTES_MAX)?;
        let metadata = reader.bytes(count)?.to_vec();
        let start = ResumePoint { chunks: reader.u64()?, chain: reader.u64()? };
        let named = name.as_deref() != Some("");
        (reader.remaining() == 0 && to != 0 && named).then_some(Head {
            database_id,
            from,
            to,
            time_micros,
            name,
            metadata,
            start,
        })
    }
}
