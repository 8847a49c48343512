//! The values that one key has had.
//!
//! Owns: [`History`]. Promises: every declared snapshot at which the value differs from that at the one before,
//! once, whichever end it is taken from; after an error the iterator ends. May call: snapshot, and the past
//! beside it.
//!
//! The declared snapshots fall into stretches that are read through the same layers. Within one, the number of
//! the version that a snapshot sees tells since when nothing has changed, and so which is the first snapshot
//! that sees it. So a stretch is opened once, and costs as many look-ups as the key has versions in it, however
//! many snapshots it holds. Only where a stretch ends are values compared.
//!
//! While it goes on, others merge, declare and delete. Each stretch is opened under a list of snapshots that was
//! not older than what was opened: what the list names can be read.

use std::ops::Range;
use std::sync::Arc;

use super::declared::{Declared, Place};
use super::past::{Past, RETRY_AFTER};
use crate::error::{Error, Result};
use crate::ids::SnapshotId;
use crate::layer::HashedKey;
use crate::snapshot::present::Present;
use crate::snapshot::rows::{self, TableRow};
use crate::snapshot::{Layers, Table};
use crate::value::Value;

/// The declared snapshots at which a key's value differs from that at the declared snapshot before, oldest first,
/// with the value; `None` where the key was deleted: `Result<(SnapshotId, Option<Value>)>`. Made by
/// [`Db::history`](crate::Db::history).
///
/// Lazy and double-ended. It stands for the snapshots that were declared when it was made; one that is deleted
/// meanwhile may be left out. It holds all that it reads from, so it may outlive the [`Db`](crate::Db).
pub struct History {
    source: Source,
    front: Front,
    back: Back,
    /// The ids of the snapshots that are left, from both ends.
    first: u64,
    last: u64,
}

impl History {
    pub(crate) fn new(past: Arc<Past>, present: Arc<Present>, table: &Table, key: &[u8]) -> Result<History> {
        let mut list = Declared::new(present.snapshot())?;
        let database = present.context().tables.database();
        match table.exists_at(database, list.now().seq().0) {
            // The past may have it.
            Ok(_) | Err(Error::TableNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let (first, last) = (list.at_or_after(0)?, list.at_or_before(u64::MAX)?);
        Ok(History {
            source: Source { past, present, table: table.clone(), key: key.into(), list },
            front: Front { next: first, ahead: Vec::new(), stretch: None, value: None },
            back: Back { next: last, stretch: None, held: None },
            first: first.map_or(1, |place| place.id),
            last: last.map_or(0, |place| place.id),
        })
    }

    fn finish(&mut self, change: Result<Option<Change>>) -> Option<Result<(SnapshotId, Option<Value>)>> {
        let change = change.transpose();
        if !matches!(change, Some(Ok(_))) {
            (self.first, self.last) = (1, 0);
        }
        Some(change?.map(|(id, value)| (SnapshotId(id), value)))
    }
}

type Change = (u64, Option<Value>);

impl Iterator for History {
    type Item = Result<(SnapshotId, Option<Value>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.first > self.last {
            return None;
        }
        let change = self.front.next(&mut self.source, self.last);
        if let Ok(Some((id, _))) = &change {
            self.first = id + 1;
        }
        self.finish(change)
    }
}

impl DoubleEndedIterator for History {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.first > self.last {
            return None;
        }
        let change = self.back.next(&mut self.source, self.first);
        if let Ok(Some((id, _))) = &change {
            self.last = id - 1;
        }
        self.finish(change)
    }
}

impl std::iter::FusedIterator for History {}

/// Snapshots that are read through the same layers.
struct Stretch {
    layers: Arc<Layers>,
    seqs: Range<u64>,
}

/// What both ends read from.
struct Source {
    past: Arc<Past>,
    present: Arc<Present>,
    table: Table,
    key: Box<[u8]>,
    list: Declared,
}

impl Source {
    /// Opens the stretch of a declared snapshot; `None` if it was deleted meanwhile.
    fn stretch(&mut self, place: Place) -> Result<Option<Stretch>> {
        // The other end may have taken a newer list, which no longer has what this end goes on to.
        while self.list.at_or_before(place.id)? == Some(place) {
            let newest = self.list.now().layers()?.clone();
            let opened = self.past.stretch(&self.present, &newest, place.seq);
            let now = self.present.snapshot();
            let changed = now.layers()?.base.generation() != newest.base.generation();
            if changed {
                // What was opened may be younger than the list, and what could not be opened may be gone for a
                // good reason.
                self.list = Declared::new(now)?;
            }
            let is_merged = place.seq < self.list.now().layers()?.base.seq();
            if !changed && is_merged && self.past.is_ahead_of(self.list.now()) {
                // Another base is on its way to being the present's, and what was opened may go with the old one.
                std::thread::sleep(RETRY_AFTER);
                continue;
            }
            match opened {
                Ok((layers, seqs)) if !changed => return Ok(Some(Stretch { layers, seqs })),
                Ok((layers, seqs)) => {
                    let lives = self.list.at_or_before(place.id)? == Some(place);
                    return Ok(lives.then_some(Stretch { layers, seqs }));
                }
                Err(_) if changed => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The table that a snapshot has, and since which commit, as far as these layers tell.
    fn table_at(&self, layers: &Layers, seq: u64) -> Result<(Option<u32>, u64)> {
        match self.table.exists_at(layers.context.tables.database(), seq) {
            Ok(true) => return Ok((Some(self.table.id()), self.table.created_seq())),
            Err(Error::TableNotFound { .. }) => return Ok((None, self.table.dropped_seq())),
            Ok(false) => {}
            Err(error) => return Err(error),
        }
        let name = self.table.name().as_bytes();
        let mut row = None;
        let found = layers.get(rows::TABLES, name, seq, &mut |bytes| row = TableRow::decode(bytes))?;
        if found && row.is_none() {
            return Err(self.list.now().bad_row("table", self.table.name()));
        }
        let hashed = HashedKey::new(rows::TABLES, name, layers.context.hash_seed);
        Ok((row.map(|row| row.id), layers.version_seq(&hashed, seq)?.unwrap_or(0)))
    }

    /// The table as of a snapshot of a stretch, and the first snapshot from commit `from` on since which the value
    /// was never written.
    fn first_alike(&mut self, stretch: &Stretch, place: Place, from: u64) -> Result<(Option<u32>, Place)> {
        let (table, mut since) = self.table_at(&stretch.layers, place.seq)?;
        if let Some(table) = table {
            let hashed = HashedKey::new(table, &self.key, stretch.layers.context.hash_seed);
            since = since.max(stretch.layers.version_seq(&hashed, place.seq)?.unwrap_or(0));
        }
        // What only the base knows has been there since the stretch began.
        let since = since.max(from).max(stretch.seqs.start);
        Ok((table, self.list.first_since(since, place)?))
    }

    fn value(&self, stretch: &Stretch, table: Option<u32>, place: Place) -> Result<Option<Value>> {
        let mut value = None;
        if let Some(table) = table {
            stretch.layers.get(table, &self.key, place.seq, &mut |bytes| value = Some(bytes.into()))?;
        }
        Ok(value)
    }
}

/// The end that goes from the oldest snapshot on.
struct Front {
    /// The first snapshot of the next stretch.
    next: Option<Place>,
    stretch: Option<Stretch>,
    /// The snapshots of the stretch that may see another value than the one before, with their tables; the next
    /// one last.
    ahead: Vec<(Place, Option<u32>)>,
    /// As of the snapshot before.
    value: Option<Value>,
}

impl Front {
    /// The next change, up to the snapshot `last`.
    fn next(&mut self, source: &mut Source, last: u64) -> Result<Option<Change>> {
        loop {
            if let (Some(stretch), Some((place, table))) = (&self.stretch, self.ahead.pop()) {
                if place.id > last {
                    return Ok(None);
                }
                let value = source.value(stretch, table, place)?;
                if value != self.value {
                    self.value.clone_from(&value);
                    return Ok(Some((place.id, value)));
                }
                continue;
            }
            let Some(place) = self.next.filter(|place| place.id <= last) else { return Ok(None) };
            match source.stretch(place)? {
                Some(stretch) => self.look_ahead(source, stretch, place, last)?,
                None => self.next = source.list.at_or_after(place.id)?,
            }
        }
    }

    /// Goes through a stretch from its last snapshot back to `first`, from version to version.
    fn look_ahead(&mut self, source: &mut Source, stretch: Stretch, first: Place, last: u64) -> Result<()> {
        let last = source.list.last_before(stretch.seqs.end, last, first)?;
        let mut place = last;
        loop {
            let (table, since) = source.first_alike(&stretch, place, first.seq)?;
            self.ahead.push((since, table));
            match source.list.at_or_before(since.id.saturating_sub(1))? {
                Some(older) if older.id >= first.id && older.id < since.id => place = older,
                _ => break,
            }
        }
        self.stretch = Some(stretch);
        self.next = source.list.at_or_after(last.id.saturating_add(1))?;
        Ok(())
    }
}

/// The end that goes from the newest snapshot back.
struct Back {
    /// The newest snapshot that was not looked at.
    next: Option<Place>,
    stretch: Option<Stretch>,
    held: Option<Entry>,
}

/// The first of some neighbouring snapshots that see the same, and what they see.
struct Entry {
    place: Place,
    value: Option<Value>,
}

impl Back {
    /// The next change, down to the snapshot `first`.
    fn next(&mut self, source: &mut Source, first: u64) -> Result<Option<Change>> {
        if self.held.is_none() {
            self.held = self.older(source)?;
        }
        loop {
            let Some(entry) = self.held.take().filter(|entry| entry.place.id >= first) else {
                return Ok(None);
            };
            let older = self.older(source)?;
            let before = older.as_ref().and_then(|older| older.value.as_ref());
            let differs = before != entry.value.as_ref();
            self.held = older;
            if differs {
                return Ok(Some((entry.place.id, entry.value)));
            }
        }
    }

    fn older(&mut self, source: &mut Source) -> Result<Option<Entry>> {
        loop {
            let Some(place) = self.next else { return Ok(None) };
            let stretch = match self.stretch.take().filter(|stretch| stretch.seqs.contains(&place.seq)) {
                Some(stretch) => stretch,
                None => match source.stretch(place)? {
                    Some(stretch) => stretch,
                    None => {
                        self.next = source.list.at_or_before(place.id)?;
                        continue;
                    }
                },
            };
            let (table, since) = source.first_alike(&stretch, place, 0)?;
            let value = source.value(&stretch, table, place)?;
            self.stretch = Some(stretch);
            self.next = match since.id.checked_sub(1) {
                Some(id) => source.list.at_or_before(id)?,
                None => None,
            };
            return Ok(Some(Entry { place: since, value }));
        }
    }
}
