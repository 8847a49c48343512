//! Sending what differs between two declared snapshots to another database, and receiving it there.
//!
//! Owns: what goes into a stream, and when a database may take one. Promises: what is received is one commit and one
//! declared snapshot, or nothing; a stream that breaks off can be taken up again. May call: bulk commits, stream.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::Db;
use super::bulk::Bulk;
use super::engine::Engine;
use crate::base::Updates;
use crate::error::{Error, Result};
use crate::history::{SnapshotInfo, SnapshotRef};
use crate::ids::{ResumePoint, SnapshotId};
use crate::io::{remove, sync_dir};
use crate::snapshot::Snapshot;
use crate::snapshot::rows::{self, TableRow};
use crate::stream::{Changes, ChunkWriter, Head, Kind, Spool, SpoolReader};
use crate::txn::record::Declaration;

/// A stream that is not whole yet, or not taken over.
const SPOOL_FILE: &str = "receiving";

/// A stream of which a database has received a part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receiving {
    /// The snapshot that it leads from, by its id in the database that sends; `None` if everything is sent.
    pub from: Option<SnapshotId>,
    /// The snapshot that it leads to, by its id there.
    pub to: SnapshotId,
    /// Up to where it is there, for [`Db::send_rest`].
    pub at: ResumePoint,
}

impl Db {
    /// Writes what leads from one declared snapshot to another, or to a snapshot from nothing, as a stream for
    /// [`receive`](Db::receive) in another database. The cost is proportional to what differs. Every byte is under
    /// a checksum.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// let monday = db.snapshot_now("monday")?;
    /// db.put(&accounts, "alice", "90")?;
    /// db.snapshot_now("tuesday")?;
    ///
    /// let (mut all, mut changes) = (Vec::new(), Vec::new());
    /// db.send(None, monday, &mut all)?;
    /// db.send(Some(monday.into()), "tuesday", &mut changes)?;
    ///
    /// let copy = bygone::Db::open(directory.path().join("copy"))?;
    /// copy.receive(&all[..])?;
    /// copy.receive(&changes[..])?;
    /// assert_eq!(copy.get(&copy.open_table("accounts")?, "alice")?.unwrap(), b"90");
    /// assert_eq!(copy.as_of("monday")?.get(&copy.open_table("accounts")?, "alice")?.unwrap(), b"100");
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `SnapshotNotFound`; `Corruption` or `Io`, of the database or of `out`.
    pub fn send(&self, from: Option<SnapshotRef>, to: impl Into<SnapshotRef>, out: impl Write) -> Result<()> {
        self.send_rest(from, to, ResumePoint::default(), out)
    }

    /// As [`send`](Db::send), but leaves out what was received before the stream broke off: see
    /// [`receiving`](Db::receiving). It is read again here, and compared.
    ///
    /// # Errors
    /// As [`send`](Db::send); `InvalidArgument` if what was received is not of this stream.
    pub fn send_rest(
        &self,
        from: Option<SnapshotRef>,
        to: impl Into<SnapshotRef>,
        received: ResumePoint,
        out: impl Write,
    ) -> Result<()> {
        let to = self.snapshot_info(to)?;
        let from = from.map(|from| self.snapshot_info(from)).transpose()?;
        let after = self.as_of(to.id)?;
        let before = from.as_ref().map(|from| self.as_of(from.id)).transpose()?;
        let head = Head {
            database_id: self.engine().store.database_id(),
            from: from.map_or(0, |from| from.id.0),
            to: to.id.0,
            time_micros: rows::micros(to.time),
            name: to.name,
            metadata: to.metadata,
            start: received,
        };
        let mut stream = ChunkWriter::new(out, &head)?;
        write_changes(before.as_ref(), &after, &mut stream)?;
        stream.finish()
    }

    /// Takes over what another database [sent](Db::send): as one commit, which is durable when this returns, and
    /// declares there a snapshot with the name, time and metadata that it had. Its number is another one; answers
    /// it. A stream that was taken over already changes nothing.
    ///
    /// A stream that leads on from a snapshot needs a database that has received that snapshot, and whose present
    /// is still what it was then: [`restore`](Db::restore) it if it was changed. One that leads from nothing needs a
    /// database without tables.
    ///
    /// What comes is kept in the database's directory until it is whole. If `input` ends too early, the rest can be
    /// sent later; the next `receive` takes it up. Memory does not grow with the stream, beyond the largest value.
    ///
    /// # Errors
    /// `StreamIncomplete`; `Corruption` if a chunk is not what was sent; `InvalidArgument` or `NotEmpty` if the
    /// stream does not fit the database, `NameTaken`; `ReadOnly`, `Io`, `Poisoned`. The data is as it was, then.
    pub fn receive(&self, mut input: impl Read) -> Result<SnapshotId> {
        let engine = self.engine();
        engine.writer()?;
        let spool = Spool::take(&*engine.disk, &engine.spool_path(), &mut input)?;
        engine.take_over(&spool)
    }

    /// What there is of a stream that broke off.
    ///
    /// # Errors
    /// `Io`.
    pub fn receiving(&self) -> Result<Option<Receiving>> {
        let engine = self.engine();
        engine.writer()?;
        let spool = Spool::find(&*engine.disk, &engine.spool_path())?;
        Ok(spool.map(|spool| Receiving {
            from: (spool.head.from != 0).then_some(SnapshotId(spool.head.from)),
            to: SnapshotId(spool.head.to),
            at: spool.at,
        }))
    }
}

/// Sends the tables in the order of their names.
fn write_changes(
    before: Option<&Snapshot>,
    after: &Snapshot,
    stream: &mut ChunkWriter<impl Write>,
) -> Result<()> {
    let rows_before = before.map(Snapshot::table_rows).transpose()?.unwrap_or_default();
    let rows_after = after.table_rows()?;
    let find = |rows: &[(String, TableRow)], name: &str| {
        let index = rows.binary_search_by(|(other, _)| other.as_str().cmp(name)).ok()?;
        Some(rows[index].1.id)
    };
    let names: BTreeSet<&String> = rows_before.iter().chain(&rows_after).map(|(name, _)| name).collect();
    for name in names {
        let (old, new) = (find(&rows_before, name), find(&rows_after, name));
        if old.is_some() && old != new {
            stream.dropped(name)?;
        }
        let Some(new) = new else { continue };
        let kept = old.filter(|old| *old == new);
        let mut named = kept.is_none();
        if named {
            stream.table(name)?;
        }
        // Without a snapshot before, the other side of the comparison is a table that is not there.
        for change in before.unwrap_or(after).diff_tables(kept, after, Some(new))? {
            let change = change?;
            if !named {
                stream.table(name)?;
                named = true;
            }
            stream.change(&change.key, change.after.as_deref())?;
        }
    }
    Ok(())
}

impl Engine {
    fn spool_path(&self) -> PathBuf {
        self.path.join(SPOOL_FILE)
    }

    /// Makes the commit that a whole stream stands for.
    fn take_over(&self, spool: &Spool) -> Result<SnapshotId> {
        let head = &spool.head;
        let known = self.received(&self.present.snapshot(), head.database_id, head.to)?;
        let id = match known {
            Some(info) => info.id,
            None => {
                let (_, id) = self.bulk_commit(|bulk| {
                    self.check_fits(bulk, head)?;
                    apply(bulk, &mut spool.read()?)?;
                    let declaration =
                        Declaration { name: head.name.clone(), metadata: head.metadata.clone() };
                    let seq = bulk.place.seq;
                    let id = bulk.declare(declaration, seq, head.time_micros)?;
                    let key = rows::received_key(head.database_id, head.to);
                    bulk.set_row(rows::RECEIVED, &key, &id.0.to_be_bytes())?;
                    Ok(id)
                })?;
                id
            }
        };
        remove(&*self.disk, &spool.path())?;
        sync_dir(&*self.disk, &self.path)?;
        Ok(id)
    }

    /// The living snapshot here that a snapshot of another database was received as.
    pub(super) fn received(&self, now: &Snapshot, database_id: u64, id: u64) -> Result<Option<SnapshotInfo>> {
        let key = rows::received_key(database_id, id);
        let Some(id) = now.system_row(rows::RECEIVED, &key, rows::decode_id)? else { return Ok(None) };
        match self.past.find(now, &SnapshotRef::Id(SnapshotId(id))) {
            Ok(info) => Ok(Some(info)),
            Err(Error::SnapshotNotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the changes are to what is there.
    fn check_fits(&self, bulk: &Bulk<'_>, head: &Head) -> Result<()> {
        let now = &bulk.now;
        if let Some(name) = &head.name
            && let Ok(taken) = self.past.find(now, &SnapshotRef::Name(name.clone()))
        {
            return Err(Error::NameTaken { name: name.clone(), snapshot: taken.id });
        }
        if head.from == 0 {
            let empty = now.table_rows()?.is_empty();
            return if empty { Ok(()) } else { Err(Error::NotEmpty { path: self.path.clone() }) };
        }
        let Some(from) = self.received(now, head.database_id, head.from)? else {
            let reason =
                format!("the stream leads on from snapshot {}, which was not received here", head.from);
            return Err(Error::InvalidArgument { reason });
        };
        if is_same_state(&self.past.view(&self.present, &SnapshotRef::Id(from.id))?, now)? {
            return Ok(());
        }
        let reason =
            format!("the database was changed since snapshot {}, from which the stream leads on", from.id);
        Err(Error::InvalidArgument { reason })
    }
}

fn is_same_state(one: &Snapshot, other: &Snapshot) -> Result<bool> {
    let (one_rows, other_rows) = (one.table_rows()?, other.table_rows()?);
    let ids = |rows: &[(String, TableRow)]| -> Vec<_> {
        rows.iter().map(|(name, row)| (name.clone(), row.id)).collect()
    };
    if ids(&one_rows) != ids(&other_rows) {
        return Ok(false);
    }
    for (_, row) in &one_rows {
        if one.diff_tables(Some(row.id), other, Some(row.id))?.next().transpose()?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Does what the stream's chunks say.
fn apply(bulk: &mut Bulk<'_>, reader: &mut SpoolReader) -> Result<()> {
    let mut table = None;
    let mut pending = Some(reader.next()?);
    while let Some((kind, content)) = pending.take() {
        match kind {
            Kind::Table => table = Some(bulk.table_named(&reader.name(&content)?)?),
            Kind::Drop => bulk.drop_table(&reader.name(&content)?)?,
            Kind::Changes => {
                let table = table.ok_or_else(|| reader.damaged("changes of no table"))?;
                let mut updates = Received { reader, changes: Vec::new(), next: 0, after: None };
                updates.fill(content)?;
                bulk.apply(table, &mut updates)?;
                pending = updates.after;
                continue;
            }
            Kind::End => return Ok(()),
            Kind::Head => return Err(reader.damaged("a second head")),
        }
        pending = Some(reader.next()?);
    }
    Err(reader.damaged("the stream has no end"))
}

/// The chunks with a table's changes, one after another, as updates.
struct Received<'r> {
    reader: &'r mut SpoolReader,
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    next: usize,
    /// The first chunk behind them.
    after: Option<(Kind, Arc<Vec<u8>>)>,
}

impl Received<'_> {
    fn fill(&mut self, content: Arc<Vec<u8>>) -> Result<()> {
        let last = self.changes.pop().map(|(key, _)| key);
        self.changes.clear();
        self.next = 0;
        for change in Changes::new(&content) {
            let (key, value) = change.ok_or_else(|| self.reader.damaged("changes that cannot be read"))?;
            let before = self.changes.last().map(|(key, _)| key).or(last.as_ref());
            if before.is_some_and(|before| before[..] >= *key) {
                return Err(self.reader.damaged("changes that are not in the order of keys"));
            }
            self.changes.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        }
        Ok(())
    }
}

impl Updates for Received<'_> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.changes.get(self.next).map(|(key, _)| &key[..]))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.changes.get(self.next).and_then(|(_, value)| value.as_deref()))
    }

    fn advance(&mut self) -> Result<()> {
        self.next += 1;
        while self.next == self.changes.len() && self.after.is_none() {
            match self.reader.next()? {
                (Kind::Changes, content) => self.fill(content)?,
                other => self.after = Some(other),
            }
        }
        Ok(())
    }
}
