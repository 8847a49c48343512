//! A commit as the write-ahead log holds it.
//!
//! Owns: the bytes of a commit record, and what a commit does besides writing application records (declaring
//! a snapshot, deleting or holding some, making or dropping a table). Promises: commit and recovery derive the
//! very same records from it, because both go through [`insert_system_records`]. May call: `codec`, `memtable`,
//! the system tables' rows.
//!
//! Layout: flags (u8), time in microseconds since 1970 (u64), id of the declared snapshot (u64, 0 for none):
//! fixed in size, because the leader fills them in after the rest was encoded. Then, as the flags say: the
//! snapshot's name and metadata; the created table's id and name; the dropped table's name; the deletion's
//! rule, its count of snapshots, and id, number and time of each; the hold's snapshot id and holder. That a commit's
//! time is noted takes its flag alone. Then the writes: for each table its id and count, for each write the key's
//! length, the key, the value's length plus one (0 is a deletion), the value. Lengths, ids and counts are varints.

use super::write_set::Writes;
use crate::codec::{Reader, put_varint};
use crate::layer::{HashedKey, Key};
use crate::limits::{KEY_BYTES_MAX, METADATA_BYTES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::memtable::Memtable;
use crate::snapshot::rows::{self, DeletedRow, SnapshotRow, TableRow};

const DECLARES_SNAPSHOT: u8 = 1;
const CREATES_TABLE: u8 = 2;
const DROPS_TABLE: u8 = 4;
const DELETES_SNAPSHOTS: u8 = 8;
const HOLDS_SNAPSHOT: u8 = 16;
const LETS_SNAPSHOT_GO: u8 = 32;
const NOTES_TIME: u8 = 64;
/// Of each of these groups a commit has one flag at most.
const TABLE_CHANGES: u8 = CREATES_TABLE | DROPS_TABLE;
const SNAPSHOT_CHANGES: u8 = DELETES_SNAPSHOTS | HOLDS_SNAPSHOT | LETS_SNAPSHOT_GO;

/// Flags, time, snapshot id.
const HEADER_BYTES: usize = 17;

/// A value of so many bytes is not worth a copy.
const LEFT_OUT_BYTES_MIN: usize = 1024;

/// A snapshot that a commit declares. Its id is given by the commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declaration {
    pub name: Option<String>,
    pub metadata: Vec<u8>,
}

/// What a commit does to the catalogue of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableChange {
    Create { id: u32, name: String },
    Drop { name: String },
}

/// What a commit does to snapshots that are declared already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotChange {
    Delete { rule: String, snapshots: Vec<Doomed> },
    Hold { id: u64, holder: String },
    LetGo { id: u64, holder: String },
}

/// What a snapshot's rows are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doomed {
    pub id: u64,
    pub seq: u64,
    pub time_micros: u64,
}

/// All of a commit but its writes and what the leader decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub declaration: Option<Declaration>,
    pub table_change: Option<TableChange>,
    pub snapshot_change: Option<SnapshotChange>,
    /// The commit can be found by its time: there is a window.
    pub notes_time: bool,
}

impl Marks {
    /// Whether others' commits are to be validated entirely before or after this one.
    pub fn stands_alone(&self) -> bool {
        self.table_change.is_some() || self.snapshot_change.is_some()
    }
}

/// What the leader decides when it gives a commit its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub seq: u64,
    pub time_micros: u64,
    /// 0 if no snapshot is declared.
    pub snapshot_id: u64,
}

/// A commit's record. Large values are not copied into it: reading it takes the writes that it was made of.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    /// All but those values.
    plain: Vec<u8>,
    /// Where in `plain` they belong, in the order of the writes.
    gaps: Vec<usize>,
    left_out_bytes: usize,
}

impl Encoded {
    /// The length of all of it.
    pub fn bytes(&self) -> usize {
        self.plain.len() + self.left_out_bytes
    }

    /// All of it, in order. `writes` are those that it was made of.
    pub fn pieces<'a>(&'a self, writes: &'a Writes) -> impl Iterator<Item = &'a [u8]> {
        let left_out = (!self.gaps.is_empty()).then(|| writes.iter().filter_map(|(_, _, value)| value));
        let left_out = left_out.into_iter().flatten().filter(|value| is_left_out(value));
        let mut start = 0;
        let parts = self.gaps.iter().copied().zip(left_out).flat_map(move |(gap, value)| {
            let before = start;
            start = gap;
            [&self.plain[before..gap], value]
        });
        parts.chain([&self.plain[self.gaps.last().copied().unwrap_or(0)..]])
    }

    /// Fills in what the leader decided.
    pub fn set_place(&mut self, place: Place) {
        self.plain[1..9].copy_from_slice(&place.time_micros.to_le_bytes());
        self.plain[9..17].copy_from_slice(&place.snapshot_id.to_le_bytes());
    }

    fn table(&mut self, table: u32, writes: usize) {
        put_varint(&mut self.plain, u64::from(table));
        put_varint(&mut self.plain, writes as u64);
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) {
        let out = &mut self.plain;
        put_varint(out, key.len() as u64);
        out.extend_from_slice(key);
        put_varint(out, value.map_or(0, |value| value.len() as u64 + 1));
        match value {
            Some(value) if is_left_out(value) => {
                self.gaps.push(out.len());
                self.left_out_bytes += value.len();
            }
            value => out.extend_from_slice(value.unwrap_or_default()),
        }
    }
}

fn is_left_out(value: &[u8]) -> bool {
    value.len() >= LEFT_OUT_BYTES_MIN
}

/// Encodes a commit; [`Encoded::set_place`] completes it.
pub(crate) fn encode(marks: &Marks, writes: &Writes) -> Encoded {
    let keeps_little = writes.bytes() >= LEFT_OUT_BYTES_MIN * writes.count();
    let copied_bytes = if keeps_little { 64 * writes.count() } else { writes.bytes() + 8 * writes.count() };
    let mut out = Vec::with_capacity(HEADER_BYTES + 64 + copied_bytes);
    out.resize(HEADER_BYTES, 0);
    if marks.notes_time {
        out[0] |= NOTES_TIME;
    }
    if let Some(declaration) = &marks.declaration {
        out[0] |= DECLARES_SNAPSHOT;
        rows::encode_name(&mut out, declaration.name.as_deref());
        put_varint(&mut out, declaration.metadata.len() as u64);
        out.extend_from_slice(&declaration.metadata);
    }
    match &marks.table_change {
        Some(TableChange::Create { id, name }) => {
            out[0] |= CREATES_TABLE;
            put_varint(&mut out, u64::from(*id));
            rows::encode_name(&mut out, Some(name));
        }
        Some(TableChange::Drop { name }) => {
            out[0] |= DROPS_TABLE;
            rows::encode_name(&mut out, Some(name));
        }
        None => {}
    }
    match &marks.snapshot_change {
        Some(SnapshotChange::Delete { rule, snapshots }) => {
            out[0] |= DELETES_SNAPSHOTS;
            rows::encode_name(&mut out, Some(rule));
            put_varint(&mut out, snapshots.len() as u64);
            for Doomed { id, seq, time_micros } in snapshots {
                [id, seq, time_micros].into_iter().for_each(|number| put_varint(&mut out, *number));
            }
        }
        Some(SnapshotChange::Hold { id, holder }) => {
            out[0] |= HOLDS_SNAPSHOT;
            put_varint(&mut out, *id);
            rows::encode_name(&mut out, Some(holder));
        }
        Some(SnapshotChange::LetGo { id, holder }) => {
            out[0] |= LETS_SNAPSHOT_GO;
            put_varint(&mut out, *id);
            rows::encode_name(&mut out, Some(holder));
        }
        None => {}
    }
    let mut encoded = Encoded { plain: out, ..Encoded::default() };
    match writes {
        Writes::One(one) => {
            let (table, key, value) = one.write();
            encoded.table(table, 1);
            encoded.write(key, value);
        }
        Writes::Set(set) => {
            for (table, writes) in set.tables() {
                encoded.table(table, writes.len());
                writes.iter().for_each(|(key, value)| encoded.write(key, value.as_deref()));
            }
        }
    }
    encoded
}

/// A decoded commit, borrowing its writes.
pub(crate) struct Commit<'a> {
    pub marks: Marks,
    pub place: Place,
    pub writes: Vec<(Key<'a>, Option<&'a [u8]>)>,
}

/// Decodes a commit; `None` if the bytes are not one.
pub(crate) fn decode(seq: u64, bytes: &[u8]) -> Option<Commit<'_>> {
    let mut reader = Reader::new(bytes);
    let flags = reader.u8()?;
    let place = Place { seq, time_micros: reader.u64()?, snapshot_id: reader.u64()? };
    let mut marks = Marks { notes_time: flags & NOTES_TIME != 0, ..Marks::default() };
    if flags & DECLARES_SNAPSHOT != 0 {
        let name = rows::decode_name(&mut reader)?;
        let count = reader.length(METADATA_BYTES_MAX)?;
        marks.declaration = Some(Declaration { name, metadata: reader.bytes(count)?.to_vec() });
    }
    if marks.declaration.is_some() != (place.snapshot_id != 0) {
        return None;
    }
    if flags & !(DECLARES_SNAPSHOT | TABLE_CHANGES | SNAPSHOT_CHANGES | NOTES_TIME) != 0 {
        return None;
    }
    match flags & TABLE_CHANGES {
        0 => {}
        CREATES_TABLE => {
            let id = u32::try_from(reader.varint()?).ok()?;
            marks.table_change = Some(TableChange::Create { id, name: rows::decode_name(&mut reader)?? });
        }
        DROPS_TABLE => {
            marks.table_change = Some(TableChange::Drop { name: rows::decode_name(&mut reader)?? });
        }
        _ => return None,
    }
    marks.snapshot_change = match flags & SNAPSHOT_CHANGES {
        0 => None,
        DELETES_SNAPSHOTS => {
            let rule = rows::decode_name(&mut reader)??;
            let count = reader.varint()?;
            let mut snapshots = Vec::new();
            for _ in 0..count {
                let (id, seq, time_micros) = (reader.varint()?, reader.varint()?, reader.varint()?);
                snapshots.push(Doomed { id, seq, time_micros });
            }
            Some(SnapshotChange::Delete { rule, snapshots })
        }
        HOLDS_SNAPSHOT => {
            Some(SnapshotChange::Hold { id: reader.varint()?, holder: rows::decode_name(&mut reader)?? })
        }
        LETS_SNAPSHOT_GO => {
            Some(SnapshotChange::LetGo { id: reader.varint()?, holder: rows::decode_name(&mut reader)?? })
        }
        _ => return None,
    };
    let mut writes = Vec::new();
    while reader.remaining() > 0 {
        let table = u32::try_from(reader.varint()?).ok()?;
        for _ in 0..reader.varint()? {
            let length = reader.length(KEY_BYTES_MAX)?;
            let key = Key { table, bytes: reader.bytes(length)? };
            let value = match reader.length(VALUE_BYTES_MAX + 1)? {
                0 => None,
                length => Some(reader.bytes(length - 1)?),
            };
            writes.push((key, value));
        }
    }
    Some(Commit { marks, place, writes })
}

/// Inserts the rows that a commit's marks stand for; recovery does the same.
pub(crate) fn insert_system_records(memtable: &Memtable, marks: &Marks, place: Place, hash_seed: u64) {
    if marks.notes_time {
        // Every commit comes here while there is a window, mostly with nothing else: so without allocating.
        let key = rows::time_key(place.time_micros, place.seq);
        let key = HashedKey::new(rows::COMMIT_TIMES, &key, hash_seed);
        memtable.insert_batch(place.seq, [(key, Some(&[][..]))]);
    }
    let records = system_records(marks, place);
    if records.is_empty() {
        return;
    }
    let records =
        records.iter().map(|(table, key, value)| (HashedKey::new(*table, key, hash_seed), value.as_deref()));
    memtable.insert_batch(place.seq, records);
}

/// Table, key and value of a record in a system table.
type SystemRecord = (u32, Vec<u8>, Option<Vec<u8>>);

/// The records that a commit's marks stand for: rows of the system tables, but for that of its time.
pub(crate) fn system_records(marks: &Marks, place: Place) -> Vec<SystemRecord> {
    let mut records = Vec::new();
    match &marks.table_change {
        Some(TableChange::Create { id, name }) => {
            let row = TableRow { id: *id, created_seq: place.seq };
            records.push((rows::TABLES, name.as_bytes().to_vec(), Some(row.encode())));
        }
        Some(TableChange::Drop { name }) => records.push((rows::TABLES, name.as_bytes().to_vec(), None)),
        None => {}
    }
    match &marks.snapshot_change {
        Some(SnapshotChange::Delete { rule, snapshots }) => {
            deletion_records(rule, snapshots, place, &mut records);
        }
        Some(SnapshotChange::Hold { id, holder }) => {
            records.push((rows::HOLDS, rows::hold_key(*id, holder), Some(Vec::new())));
        }
        Some(SnapshotChange::LetGo { id, holder }) => {
            records.push((rows::HOLDS, rows::hold_key(*id, holder), None));
        }
        None => {}
    }
    if let Some(declaration) = &marks.declaration {
        let id = place.snapshot_id.to_be_bytes().to_vec();
        let row = SnapshotRow {
            seq: place.seq,
            time_micros: place.time_micros,
            name: declaration.name.clone(),
            metadata: declaration.metadata.clone(),
        };
        records.push((rows::SNAPSHOTS, id.clone(), Some(row.encode())));
        if let Some(name) = &declaration.name {
            records.push((rows::SNAPSHOT_NAMES, name.as_bytes().to_vec(), Some(id)));
        }
        let time = rows::time_key(place.time_micros, place.snapshot_id).to_vec();
        records.push((rows::SNAPSHOT_TIMES, time, Some(Vec::new())));
    }
    records
}

/// The snapshots' rows go, and one for each stretch of ids says what became of them. A name's row stays: it leads
/// to an id that is no more, until another snapshot is given the name.
fn deletion_records(rule: &str, snapshots: &[Doomed], place: Place, records: &mut Vec<SystemRecord>) {
    let Place { seq, time_micros, .. } = place;
    records.push((rows::DELETED, Vec::new(), Some(seq.to_le_bytes().to_vec())));
    for snapshot in snapshots {
        records.push((rows::SNAPSHOTS, snapshot.id.to_be_bytes().to_vec(), None));
        let time = rows::time_key(snapshot.time_micros, snapshot.id).to_vec();
        records.push((rows::SNAPSHOT_TIMES, time, None));
    }
    for stretch in snapshots.chunk_by(|one, next| one.id.checked_add(1) == Some(next.id)) {
        let (first, last) = (stretch[0].id, stretch[stretch.len() - 1].id);
        let row = DeletedRow { first, time_micros, rule: rule.to_owned() };
        records.push((rows::DELETED, last.to_be_bytes().to_vec(), Some(row.encode())));
    }
}

/// Whether a name may be given to a table or a snapshot.
pub(crate) fn check_name(what: &'static str, name: &str) -> crate::Result<()> {
    if name.is_empty() {
        return Err(crate::Error::InvalidArgument { reason: format!("{what} must not be empty") });
    }
    check_size(what, name.len(), NAME_BYTES_MAX)
}

pub(crate) fn check_size(what: &'static str, size: usize, limit: usize) -> crate::Result<()> {
    if size > limit {
        return Err(crate::Error::TooLarge { what, size: size as u64, limit: limit as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::write_set::WriteSet;
    use super::*;
    use crate::value::Value;

    /// As the log gets it.
    fn encoded(marks: &Marks, writes: &Writes, place: Place) -> Vec<u8> {
        let mut encoded = encode(marks, writes);
        encoded.set_place(place);
        let bytes = encoded.pieces(writes).collect::<Vec<_>>().concat();
        assert_eq!(encoded.bytes(), bytes.len());
        bytes
    }

    fn doomed(id: u64) -> Doomed {
        Doomed { id, seq: id * 10, time_micros: id * 1000 }
    }

    fn sample() -> (Marks, Writes) {
        let marks = Marks {
            declaration: Some(Declaration { name: Some("noon".into()), metadata: vec![7; 300] }),
            table_change: Some(TableChange::Create { id: 20, name: "t".into() }),
            snapshot_change: Some(SnapshotChange::Delete {
                rule: "too old".into(),
                snapshots: vec![doomed(3), doomed(4), doomed(9)],
            }),
            notes_time: true,
        };
        let mut writes = WriteSet::default();
        writes.put(16, b"a", Some(Value::from(&b"1"[..])));
        writes.put(16, b"", Some(Value::default()));
        writes.put(17, &[9; 1000], None);
        (marks, writes.into())
    }

    #[test]
    fn a_commit_comes_back() {
        let (marks, writes) = sample();
        let place = Place { seq: 5, time_micros: 6, snapshot_id: 7 };
        let bytes = encoded(&marks, &writes, place);
        let commit = decode(5, &bytes).unwrap();
        assert_eq!((commit.marks, commit.place), (marks, place));
        assert_eq!(
            commit.writes,
            [
                (Key { table: 16, bytes: b"" }, Some(&b""[..])),
                (Key { table: 16, bytes: b"a" }, Some(&b"1"[..])),
                (Key { table: 17, bytes: &[9; 1000] }, None),
            ]
        );
    }

    #[test]
    fn large_values_are_left_where_they_are_and_come_back_in_their_places() {
        let place = Place { seq: 5, time_micros: 6, snapshot_id: 0 };
        let lengths = [0, 1, LEFT_OUT_BYTES_MIN - 1, LEFT_OUT_BYTES_MIN, 5000, 7, 70_000];
        for skipped in 0..=lengths.len() {
            let mut set = WriteSet::default();
            for (number, length) in (0..).zip(&lengths[skipped..]) {
                set.put(16 + u32::from(number % 2 == 0), &[number], Some(Value::from(vec![number; *length])));
                set.put(17, &[number, number], None);
            }
            let writes = Writes::from(set);
            let marks = Marks::default();
            let plain = encode(&marks, &writes).plain.len();
            assert!(plain < LEFT_OUT_BYTES_MIN + 200, "{plain} bytes were copied");
            let bytes = encoded(&marks, &writes, place);
            let found: Vec<_> = decode(5, &bytes)
                .unwrap()
                .writes
                .into_iter()
                .map(|(key, value)| (key.table, key.bytes, value))
                .collect();
            assert_eq!(found, writes.iter().collect::<Vec<_>>());
        }
        let one = Writes::one(16, b"key", Some(&[7; 3000]));
        let bytes = encoded(&Marks::default(), &one, place);
        assert_eq!(decode(5, &bytes).unwrap().writes[0].1, Some(&[7; 3000][..]));
    }

    #[test]
    fn holds_come_back() {
        for change in [
            SnapshotChange::Hold { id: 7, holder: "backup".into() },
            SnapshotChange::LetGo { id: u64::MAX, holder: "backup".into() },
        ] {
            let marks = Marks { snapshot_change: Some(change), ..Marks::default() };
            let place = Place { seq: 5, time_micros: 6, snapshot_id: 0 };
            let bytes = encoded(&marks, &WriteSet::default().into(), place);
            assert_eq!(decode(5, &bytes).unwrap().marks, marks);
        }
    }

    #[test]
    fn a_deletion_leaves_one_row_for_each_stretch_of_ids() {
        let place = Place { seq: 99, time_micros: 6, snapshot_id: 0 };
        let records = system_records(&sample().0, place);
        let stretches: Vec<_> = records
            .iter()
            .filter(|(table, key, _)| *table == rows::DELETED && !key.is_empty())
            .map(|(_, key, row)| {
                let row = DeletedRow::decode(row.as_deref().unwrap()).unwrap();
                assert_eq!((row.time_micros, &row.rule[..]), (6, "too old"));
                (row.first, rows::decode_id(key).unwrap())
            })
            .collect();
        assert_eq!(stretches, [(3, 4), (9, 9)]);
        let gone = records.iter().filter(|(_, _, row)| row.is_none()).count();
        assert_eq!(gone, 6, "three snapshots, each by id and by time");
    }

    #[test]
    fn cut_commits_are_refused_or_shorter_but_never_panic() {
        let (marks, writes) = sample();
        let bytes = encoded(&marks, &writes, Place { seq: 5, time_micros: 6, snapshot_id: 7 });
        for length in 0..bytes.len() {
            if let Some(commit) = decode(5, &bytes[..length]) {
                assert!(commit.writes.len() < 3);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        let (marks, writes) = sample();
        let whole = encoded(&marks, &writes, Place { seq: 5, time_micros: 6, snapshot_id: 7 });
        for round in 0..20_000usize {
            let mut bytes =
                if round % 2 == 0 { whole.clone() } else { (0..round % 200).map(|_| random()).collect() };
            for _ in 0..3 {
                if let Some(byte) = bytes.get_mut(usize::from(random()) * (round % 7)) {
                    *byte = random();
                }
            }
            if let Some(commit) = decode(5, &bytes) {
                let kept: usize = commit
                    .writes
                    .iter()
                    .map(|(key, value)| key.bytes.len() + value.map_or(0, <[u8]>::len))
                    .sum();
                assert!(kept <= bytes.len(), "more than there was");
            }
        }
    }
}
