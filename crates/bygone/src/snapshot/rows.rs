//! The system tables: what the engine itself keeps as records beside the application's.
//!
//! Owns: the numbers of the system tables and the rows in them, byte for byte. Promises: a row that does not
//! decode is reported as damage. Because they are ordinary records, they are as of the same moment as the
//! data, in every view. May call: `codec`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::codec::{Reader, put_varint};
use crate::limits::{METADATA_BYTES_MAX, NAME_BYTES_MAX};

/// Table name to [`TableRow`].
pub(crate) const TABLES: u32 = 0;
/// Snapshot id (big-endian) to [`SnapshotRow`].
pub(crate) const SNAPSHOTS: u32 = 1;
/// Snapshot name to its id (big-endian).
pub(crate) const SNAPSHOT_NAMES: u32 = 2;
/// Time in microseconds since 1970 and snapshot id (both big-endian) to nothing.
pub(crate) const SNAPSHOT_TIMES: u32 = 3;
/// End of a merged interval (big-endian) to what is kept of it; written by merges only, straight into the
/// base.
pub(crate) const HISTORY: u32 = 4;
/// The last of a range of snapshot ids (big-endian) that were deleted together to [`DeletedRow`]; the empty key
/// to the number of the last commit that deleted any (little-endian).
pub(crate) const DELETED: u32 = 5;
/// Snapshot id (big-endian) and the holder's name to nothing: the snapshot may not be deleted.
pub(crate) const HOLDS: u32 = 6;
/// A database's id and the id of a snapshot there (both big-endian) to the id of the snapshot here that it was
/// received as (big-endian).
pub(crate) const RECEIVED: u32 = 7;
/// Of each commit while there is a window: its time in microseconds since 1970 and its number (both big-endian) to
/// nothing.
pub(crate) const COMMIT_TIMES: u32 = 8;
/// The first id of an application's table.
pub(crate) const FIRST_TABLE: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRow {
    pub id: u32,
    pub created_seq: u64,
}

impl TableRow {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.id.to_le_bytes().to_vec();
        out.extend_from_slice(&self.created_seq.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<TableRow> {
        let mut reader = Reader::new(bytes);
        let row = TableRow { id: reader.u32()?, created_seq: reader.u64()? };
        (reader.remaining() == 0 && row.id >= FIRST_TABLE).then_some(row)
    }
}

/// What a declared snapshot's row holds beside its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRow {
    pub seq: u64,
    pub time_micros: u64,
    pub name: Option<String>,
    pub metadata: Vec<u8>,
}

impl SnapshotRow {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.seq.to_le_bytes().to_vec();
        out.extend_from_slice(&self.time_micros.to_le_bytes());
        encode_name(&mut out, self.name.as_deref());
        put_varint(&mut out, self.metadata.len() as u64);
        out.extend_from_slice(&self.metadata);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<SnapshotRow> {
        let mut reader = Reader::new(bytes);
        let (seq, time_micros) = (reader.u64()?, reader.u64()?);
        let name = decode_name(&mut reader)?;
        let count = reader.length(METADATA_BYTES_MAX)?;
        let metadata = reader.bytes(count)?.to_vec();
        (reader.remaining() == 0).then_some(SnapshotRow { seq, time_micros, name, metadata })
    }
}

/// Consecutive snapshots that one commit deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeletedRow {
    /// The first id of the range.
    pub first: u64,
    pub time_micros: u64,
    /// By what, in words; empty if somebody asked for just this.
    pub rule: String,
}

impl DeletedRow {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.first.to_le_bytes().to_vec();
        out.extend_from_slice(&self.time_micros.to_le_bytes());
        out.extend_from_slice(self.rule.as_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<DeletedRow> {
        let mut reader = Reader::new(bytes);
        let (first, time_micros) = (reader.u64()?, reader.u64()?);
        let rule = std::str::from_utf8(reader.bytes(reader.remaining())?).ok()?.to_owned();
        Some(DeletedRow { first, time_micros, rule })
    }
}

/// An optional name: its length plus one, then its bytes.
pub(crate) fn encode_name(out: &mut Vec<u8>, name: Option<&str>) {
    put_varint(out, name.map_or(0, |name| name.len() as u64 + 1));
    out.extend_from_slice(name.unwrap_or_default().as_bytes());
}

pub(crate) fn decode_name(reader: &mut Reader<'_>) -> Option<Option<String>> {
    match reader.length(NAME_BYTES_MAX + 1)? {
        0 => Some(None),
        length => Some(Some(std::str::from_utf8(reader.bytes(length - 1)?).ok()?.to_owned())),
    }
}

/// The id in a key or in the row of a name.
pub(crate) fn decode_id(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

pub(crate) fn time_key(time_micros: u64, id: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&time_micros.to_be_bytes());
    key[8..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(crate) fn decode_time_key(key: &[u8]) -> Option<(u64, u64)> {
    let (time, id) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*time), decode_id(id)?))
}

pub(crate) fn received_key(database_id: u64, id: u64) -> [u8; 16] {
    time_key(database_id, id)
}

pub(crate) fn hold_key(id: u64, holder: &str) -> Vec<u8> {
    let mut key = id.to_be_bytes().to_vec();
    key.extend_from_slice(holder.as_bytes());
    key
}

/// Microseconds since 1970; times before that count as 1970.
pub(crate) fn micros(time: SystemTime) -> u64 {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    u64::try_from(micros).unwrap_or(u64::MAX)
}

pub(crate) fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back() {
        let row = TableRow { id: 77, created_seq: 1 << 40 };
        assert_eq!(TableRow::decode(&row.encode()), Some(row));
        for name in [None, Some(String::new()), Some("end of day".to_owned())] {
            let row = SnapshotRow { seq: 9, time_micros: 12, name, metadata: vec![1, 2, 3] };
            assert_eq!(SnapshotRow::decode(&row.encode()), Some(row));
        }
    }

    #[test]
    fn a_deleted_row_comes_back_and_a_cut_one_is_refused() {
        let row = DeletedRow { first: 3, time_micros: 4, rule: "keep the last 7".into() };
        assert_eq!(DeletedRow::decode(&row.encode()), Some(row.clone()));
        assert_eq!(DeletedRow::decode(&row.encode()[..15]), None);
        assert_eq!(DeletedRow::decode(&[&row.encode()[..16], &[0xff]].concat()), None, "not UTF-8");
    }

    #[test]
    fn cut_rows_are_refused() {
        let row = SnapshotRow { seq: 9, time_micros: 12, name: Some("x".into()), metadata: vec![1, 2, 3] };
        let bytes = row.encode();
        for length in 0..bytes.len() {
            assert_eq!(SnapshotRow::decode(&bytes[..length]), None);
        }
        let system = TableRow { id: 3, created_seq: 1 };
        assert_eq!(TableRow::decode(&system.encode()), None, "a table's row may not name a system table");
    }
}
