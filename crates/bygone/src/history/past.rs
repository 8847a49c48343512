//! Opening views of the past.
//!
//! Owns: finding a declared snapshot's row, and the layers of its interval. Promises: a snapshot resolves as
//! soon as its commit is visible, and for ever after; opening costs a few look-ups, whatever the age and
//! number of snapshots. May call: snapshot, run, base.

use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Interval, SnapshotInfo, SnapshotRef};
use crate::base::{BaseVersion, PageStore};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::ids::{Seq, SnapshotId};
use crate::io::Disk;
use crate::layer::LayerCursor;
use crate::run::{Run, RunMeta, file_name};
use crate::snapshot::present::Present;
use crate::snapshot::rows::{self, SnapshotRow};
use crate::snapshot::{Layers, Snapshot};

/// How many intervals stay open for the next view of them.
const OPEN_MAX: usize = 16;

pub(crate) struct Past {
    pub disk: Arc<dyn Disk>,
    pub directory: PathBuf,
    pub store: Arc<PageStore>,
    pub cache: Arc<Cache>,
    /// Most recently used last.
    open: Mutex<Vec<Opened>>,
}

/// Layers with their version, by their interval's end.
#[derive(Clone)]
struct Opened {
    end: u64,
    version: u64,
    layers: Arc<Layers>,
}

impl Past {
    pub fn new(disk: Arc<dyn Disk>, directory: PathBuf, store: Arc<PageStore>, cache: Arc<Cache>) -> Past {
        Past { disk, directory, store, cache, open: Mutex::default() }
    }

    /// A view as of a declared snapshot.
    pub fn view(&self, present: &Present, wanted: &SnapshotRef) -> Result<Snapshot> {
        let now = present.snapshot();
        let info = self.find(&now, wanted)?;
        let seq = info.seq.0;
        let newest = now.layers()?;
        let (version, layers) = if seq >= newest.base.seq() {
            // Not merged yet: flushes keep what declared snapshots see, so the present's own layers answer.
            (now.version(), newest.clone())
        } else {
            self.layers(present, &newest, seq)?
        };
        Ok(present.snapshot_of(seq, version, layers))
    }

    /// What is known of a declared snapshot, as of a view of the present.
    pub fn find(&self, now: &Snapshot, wanted: &SnapshotRef) -> Result<SnapshotInfo> {
        let not_found = || Error::SnapshotNotFound { snapshot: wanted.to_string() };
        let id = match wanted {
            SnapshotRef::Id(id) => Some(id.0),
            SnapshotRef::Name(name) => {
                now.system_row(rows::SNAPSHOT_NAMES, name.as_bytes(), rows::decode_id)?
            }
            SnapshotRef::Time(time) => latest_before(now, rows::micros(*time))?,
        };
        let id = id.ok_or_else(not_found)?;
        let row = now.system_row(rows::SNAPSHOTS, &id.to_be_bytes(), SnapshotRow::decode)?;
        Ok(info(id, row.ok_or_else(not_found)?))
    }

    /// All declared snapshots, by id.
    pub fn list(&self, now: &Snapshot) -> Result<Vec<SnapshotInfo>> {
        let mut list = Vec::new();
        let mut damaged = None;
        let everything = (Bound::Unbounded, Bound::Unbounded);
        now.layers()?.for_each(rows::SNAPSHOTS, now.seq().0, everything, &mut |key, row| match (
            rows::decode_id(key),
            SnapshotRow::decode(row),
        ) {
            (Some(id), Some(row)) => {
                list.push(info(id, row));
                ControlFlow::Continue(())
            }
            _ => {
                damaged = Some(key.escape_ascii().to_string());
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(list), |key| Err(now.bad_row("snapshot", &key)))
    }

    /// How many declared snapshots there are.
    pub fn count(&self, now: &Snapshot) -> Result<u64> {
        // None can be deleted yet, so ids have no gaps: the last one tells.
        let mut cursor = now.layers()?.cursor_under(None, rows::SNAPSHOTS, now.seq().0);
        cursor.seek_before(None)?;
        Ok(cursor.key().and_then(rows::decode_id).unwrap_or(0))
    }

    /// The rows of the history table of a base, oldest first, with the intervals' ends.
    pub fn intervals(&self, base: &Arc<BaseVersion>) -> Result<Vec<(u64, Interval)>> {
        let mut intervals = Vec::new();
        let mut cursor = base.cursor(rows::HISTORY);
        cursor.seek(b"")?;
        while cursor.key().is_some() {
            intervals.push(self.interval(&mut cursor)?);
            cursor.next()?;
        }
        Ok(intervals)
    }

    /// Opens a history run.
    pub fn open_run(&self, meta: &RunMeta, hash_seed: u64) -> Result<Arc<Run>> {
        Run::open(&*self.disk, &self.directory.join(file_name(meta.id)), meta, hash_seed, &self.cache)
    }

    /// The layers through which a merged sequence number is read, with their version.
    fn layers(&self, present: &Present, now: &Layers, seq: u64) -> Result<(u64, Arc<Layers>)> {
        let lost = || {
            let reason = format!("nothing is kept for the snapshot of commit {seq}");
            Error::corruption(self.store.path(), 0, reason)
        };
        let mut cursor = now.base.cursor(rows::HISTORY);
        cursor.seek(&(seq + 1).to_be_bytes())?;
        if cursor.key().is_none() {
            return Err(lost());
        }
        let (end, mut interval) = self.interval(&mut cursor)?;
        if interval.from > seq {
            return Err(lost());
        }
        if let Some(opened) = self.opened(end) {
            return Ok((opened.version, opened.layers));
        }
        let mut runs = Vec::new();
        let base = loop {
            if let Some(meta) = &interval.run {
                runs.push(self.open_run(meta, now.context.hash_seed)?);
            }
            if let Some(root) = &interval.key_frame {
                break self.store.open_base(root)?;
            }
            // No key frame: the interval before leads on to this one.
            cursor.prev()?;
            if cursor.key().is_none() {
                return Err(lost());
            }
            let (end, before) = self.interval(&mut cursor)?;
            if end != interval.from {
                return Err(lost());
            }
            interval = before;
        };
        let context = now.context.clone();
        let layers = Arc::new(Layers { context, memtables: Vec::new(), runs, base, exact_from: 0 });
        let version = present.version_of_past(&layers);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() == OPEN_MAX {
            open.remove(0);
        }
        open.push(Opened { end, version, layers: layers.clone() });
        Ok((version, layers))
    }

    fn opened(&self, end: u64) -> Option<Opened> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let index = open.iter().position(|opened| opened.end == end)?;
        let opened = open.remove(index);
        open.push(opened.clone());
        Some(opened)
    }

    fn interval(&self, cursor: &mut impl LayerCursor) -> Result<(u64, Interval)> {
        cursor.load()?;
        let key = cursor.key().unwrap_or_default();
        let decoded = rows::decode_id(key).zip(cursor.loaded()?.and_then(Interval::decode));
        let key = key.escape_ascii().to_string();
        decoded.ok_or_else(|| {
            Error::corruption(self.store.path(), 0, format!("the history row {key:?} cannot be read"))
        })
    }
}

/// The id of the last snapshot that was declared at or before a time.
fn latest_before(now: &Snapshot, time_micros: u64) -> Result<Option<u64>> {
    let mut cursor = now.layers()?.cursor_under(None, rows::SNAPSHOT_TIMES, now.seq().0);
    match time_micros.checked_add(1) {
        Some(end) => cursor.seek_before(Some(&rows::time_key(end, 0)))?,
        None => cursor.seek_before(None)?,
    }
    cursor.skip_deleted()?;
    let Some(key) = cursor.key() else { return Ok(None) };
    let id = key.get(8..).and_then(rows::decode_id);
    id.map(Some).ok_or_else(|| now.bad_row("snapshot time", &key.escape_ascii().to_string()))
}

fn info(id: u64, row: SnapshotRow) -> SnapshotInfo {
    SnapshotInfo {
        id: SnapshotId(id),
        name: row.name,
        seq: Seq(row.seq),
        time: rows::time(row.time_micros),
        metadata: row.metadata,
    }
}
