//! Opening views of the past.
//!
//! Owns: finding a declared snapshot's row, and the layers of its interval. Promises: a snapshot resolves as
//! soon as its commit is visible, and for ever after; opening costs a few look-ups, whatever the age and
//! number of snapshots. May call: snapshot, run, base.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::declared::Declared;
use super::{Interval, SnapshotInfo, SnapshotRef};
use crate::base::{BaseVersion, PageStore};
use crate::cache::Cache;
use crate::error::{Error, Result, SnapshotDeletion};
use crate::ids::{Seq, SnapshotId};
use crate::io::{Disk, exists};
use crate::layer::LayerCursor;
use crate::run::{Run, RunMeta, file_name};
use crate::snapshot::present::Present;
use crate::snapshot::rows::{self, DeletedRow, SnapshotRow};
use crate::snapshot::{Layers, Snapshot, WindowStart, WindowState};

/// How many intervals stay open for the next view of them.
const OPEN_MAX: usize = 16;

/// How often, and after how long, opening a view is tried again while the past is being put together anew. Each
/// time that is only until the new base is published.
const RETRIES: u32 = 1000;
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(1);

pub(crate) struct Past {
    pub disk: Arc<dyn Disk>,
    /// Where history runs go.
    pub directory: PathBuf,
    /// Where those are that could not go there; often the same.
    pub local: PathBuf,
    pub store: Arc<PageStore>,
    pub cache: Arc<Cache>,
    /// Most recently used last.
    open: Mutex<Vec<Opened>>,
}

/// Layers with their version, by their interval's end.
#[derive(Clone)]
struct Opened {
    end: u64,
    /// The numbers of the interval that are less can be read through them: runs that begin later are not open.
    whole_below: u64,
    version: u64,
    layers: Arc<Layers>,
}

impl Past {
    pub fn new(
        disk: Arc<dyn Disk>,
        (directory, local): (PathBuf, PathBuf),
        store: Arc<PageStore>,
        cache: Arc<Cache>,
    ) -> Arc<Past> {
        Arc::new(Past { disk, directory, local, store, cache, open: Mutex::default() })
    }

    /// A view as of a declared snapshot, or of a commit in the window.
    pub fn view(&self, present: &Present, wanted: &SnapshotRef) -> Result<Snapshot> {
        let mut retries = RETRIES;
        loop {
            let now = present.snapshot();
            let seq = self.seq_of(&now, wanted)?;
            let view = self.view_at(present, &now, seq);
            let is_merged = seq < now.layers()?.base.seq();
            if !is_merged || !self.is_ahead_of(&now) || retries == 0 {
                return view;
            }
            // While this thread looked, what is kept was put together anew. The snapshot may be deleted (the commit
            // have left the window), and its pages and files be gone, before or after they were opened: it has to be
            // looked for again.
            retries -= 1;
            std::thread::sleep(RETRY_AFTER);
        }
    }

    /// Whether another base than that of a view of now is published.
    pub(super) fn is_ahead_of(&self, now: &Snapshot) -> bool {
        now.layers().is_ok_and(|now| self.store.generation() != now.base.generation())
    }

    /// The commit that is meant, declared or in the window, as of a view of the present.
    pub fn seq_of(&self, now: &Snapshot, wanted: &SnapshotRef) -> Result<u64> {
        match self.in_window(now, wanted)? {
            Some(seq) => Ok(seq),
            None => Ok(self.find_to_read(now, wanted)?.1),
        }
    }

    fn view_at(&self, present: &Present, now: &Snapshot, seq: u64) -> Result<Snapshot> {
        let newest = now.layers()?;
        let (version, layers) = if seq >= newest.base.seq() {
            // Not merged yet: flushes keep what declared snapshots and the window see, so the present's own layers
            // answer.
            (now.version(), newest.clone())
        } else {
            self.layers(present, &newest, seq, seq)?
        };
        Ok(present.snapshot_of(seq, version, layers))
    }

    /// The commit in the window that is meant, if one is. The layers of a view of now say where the window begins, and
    /// hold all that it needs, whoever moves it meanwhile.
    pub fn in_window(&self, now: &Snapshot, wanted: &SnapshotRef) -> Result<Option<u64>> {
        let Some(WindowState { start, .. }) = now.layers()?.window else { return Ok(None) };
        match wanted {
            SnapshotRef::Id(_) | SnapshotRef::Name(_) => Ok(None),
            SnapshotRef::Seq(seq) => Ok(Some(seq.0).filter(|seq| (start.seq..=now.seq().0).contains(seq))),
            SnapshotRef::Time(time) => {
                let time_micros = rows::micros(*time);
                if time_micros < start.time_micros {
                    return Ok(None);
                }
                let latest = latest_commit(now, time_micros)?.map_or(start.seq, |found| found.seq);
                // Before the first commit there was nothing to be asked for.
                Ok(Some(latest.max(start.seq)).filter(|seq| *seq > 0))
            }
        }
    }

    /// Id and commit of the declared snapshot that is to be read, if it is no commit in the window.
    pub fn find_to_read(&self, now: &Snapshot, wanted: &SnapshotRef) -> Result<(u64, u64)> {
        let window = now.layers()?.window;
        match (self.find_row(now, wanted).map(|(id, row)| (id, row.seq)), wanted) {
            (
                Err(Error::SnapshotNotFound { deleted: None, .. }),
                SnapshotRef::Seq(_) | SnapshotRef::Time(_),
            ) if window.is_some() || matches!(wanted, SnapshotRef::Seq(_)) => {
                let window = window.map(|window| window.until(now.seq()));
                Err(Error::OutsideWindow { wanted: wanted.to_string(), window })
            }
            (found, _) => found,
        }
    }

    /// What is known of a declared snapshot, as of a view of the present.
    pub fn find(&self, now: &Snapshot, wanted: &SnapshotRef) -> Result<SnapshotInfo> {
        let (id, row) = self.find_row(now, wanted)?;
        Ok(info(id, row, holders(now, id)?))
    }

    fn find_row(&self, now: &Snapshot, wanted: &SnapshotRef) -> Result<(u64, SnapshotRow)> {
        let id = match wanted {
            SnapshotRef::Id(id) => Some(id.0),
            SnapshotRef::Name(name) => {
                now.system_row(rows::SNAPSHOT_NAMES, name.as_bytes(), rows::decode_id)?
            }
            SnapshotRef::Time(time) => latest_declared(now, rows::micros(*time))?,
            SnapshotRef::Seq(seq) => declared_of(now, seq.0)?,
        };
        let row = match id {
            Some(id) => now.system_row(rows::SNAPSHOTS, &id.to_be_bytes(), SnapshotRow::decode)?,
            None => None,
        };
        let Some((id, row)) = id.zip(row) else {
            let deleted = id.map_or(Ok(None), |id| deletion(now, id))?;
            return Err(Error::SnapshotNotFound { snapshot: wanted.to_string(), deleted });
        };
        Ok((id, row))
    }

    /// All declared snapshots, by id.
    pub fn list(&self, now: &Snapshot) -> Result<Vec<SnapshotInfo>> {
        let mut holders = all_holders(now)?;
        let mut list = Vec::new();
        each_snapshot(now, &mut |id, row| {
            list.push(info(id, row, holders.remove(&id).unwrap_or_default()));
        })?;
        Ok(list)
    }

    /// The sequence numbers of all declared snapshots, ascending.
    pub fn living(&self, now: &Snapshot) -> Result<Vec<u64>> {
        let mut seqs = Vec::new();
        each_snapshot(now, &mut |_, row| seqs.push(row.seq))?;
        Ok(seqs)
    }

    /// The last commit that deleted a snapshot; 0 if none did.
    pub fn last_deletion(&self, now: &Snapshot) -> Result<u64> {
        let decode = |row: &[u8]| Some(u64::from_le_bytes(row.try_into().ok()?));
        Ok(now.system_row(rows::DELETED, b"", decode)?.unwrap_or(0))
    }

    /// Lets go what is open of intervals that have changed or are no more. Called when the base that says so is
    /// published.
    pub fn forget_opened(&self, ends: &[u64]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|opened| !ends.contains(&opened.end));
    }

    /// Lets go all that is open.
    pub fn forget_all(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
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

    /// Opens a history run, wherever it is.
    pub fn open_run(&self, meta: &RunMeta, hash_seed: u64) -> Result<Arc<Run>> {
        let open = |directory: &Path| {
            Run::open(&*self.disk, &directory.join(file_name(meta.id)), meta, hash_seed, &self.cache)
        };
        if self.directory != self.local && exists(&*self.disk, &self.local.join(file_name(meta.id)))? {
            // It may be moved just now; then it is in the other place already.
            if let Ok(run) = open(&self.local) {
                return Ok(run);
            }
        }
        open(&self.directory).map_err(|error| {
            let absence = self.store.archive().and_then(|archive| archive.explain_absence());
            absence.unwrap_or(error)
        })
    }

    /// The layers through which a merged sequence number is read, and all of its interval up to `last`, with their
    /// version.
    fn layers(&self, present: &Present, now: &Layers, seq: u64, last: u64) -> Result<(u64, Arc<Layers>)> {
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
        let later = interval.runs.iter().map(|run| run.min_seq).filter(|first| *first > last);
        let whole_below = later.min().unwrap_or(u64::MAX);
        if let Some(opened) = self.opened(end, whole_below) {
            return Ok((opened.version, opened.layers));
        }
        let mut runs = Vec::new();
        let base = loop {
            for meta in interval.runs.iter().filter(|run| run.min_seq < whole_below) {
                // With what the cache has of it.
                let open = self.open_already(meta);
                runs.push(open.map_or_else(|| self.open_run(meta, now.context.hash_seed), Ok)?);
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
        let layers =
            Arc::new(Layers { context, memtables: Vec::new(), runs, base, exact_from: 0, window: None });
        let version = present.version_of_past(&layers);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: once another base is published, what this one says may be out of date, and nobody
        // would call for it to be forgotten again.
        if self.store.generation() == now.base.generation() {
            open.retain(|opened| opened.end != end || opened.whole_below > whole_below);
            if open.len() == OPEN_MAX {
                open.remove(0);
            }
            open.push(Opened { end, whole_below, version, layers: layers.clone() });
        }
        Ok((version, layers))
    }

    /// The layers through which the declared snapshot of commit `seq` is read, and the numbers of the commits whose
    /// declared snapshots can be read through the same.
    pub(super) fn stretch(
        &self,
        present: &Present,
        now: &Arc<Layers>,
        seq: u64,
    ) -> Result<(Arc<Layers>, Range<u64>)> {
        if seq >= now.base.seq() {
            return Ok((now.clone(), now.base.seq()..u64::MAX));
        }
        let (_, layers) = self.layers(present, now, seq, u64::MAX)?;
        let mut cursor = now.base.cursor(rows::HISTORY);
        cursor.seek(&(seq + 1).to_be_bytes())?;
        let end = cursor.key().and_then(rows::decode_id).unwrap_or(seq + 1);
        // From the key frame on: of a chain's later runs, earlier snapshots see nothing.
        let start = layers.base.seq();
        Ok((layers, start..end))
    }

    fn opened(&self, end: u64, whole_below: u64) -> Option<Opened> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let index = open.iter().position(|opened| opened.end == end && opened.whole_below >= whole_below)?;
        let opened = open.remove(index);
        open.push(opened.clone());
        Some(opened)
    }

    fn open_already(&self, meta: &RunMeta) -> Option<Arc<Run>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().rev().flat_map(|opened| &opened.layers.runs).find(|run| run.meta() == meta).cloned()
    }

    fn interval(&self, cursor: &mut impl LayerCursor) -> Result<(u64, Interval)> {
        cursor.load()?;
        let key = cursor.key().unwrap_or_default();
        let decoded = rows::decode_id(key).zip(cursor.loaded()?.and_then(Interval::decode));
        decoded.ok_or_else(|| {
            let reason = format!("the history row {:?} cannot be read", key.escape_ascii().to_string());
            Error::corruption(self.store.path(), 0, reason)
        })
    }
}

/// The id of the last snapshot that was declared at or before a time.
fn latest_declared(now: &Snapshot, time_micros: u64) -> Result<Option<u64>> {
    Ok(latest_before(now, rows::SNAPSHOT_TIMES, time_micros)?.map(|(_, id)| id))
}

/// The last commit at or before a time whose time was noted.
pub(crate) fn latest_commit(now: &Snapshot, time_micros: u64) -> Result<Option<WindowStart>> {
    let latest = latest_before(now, rows::COMMIT_TIMES, time_micros)?;
    Ok(latest.map(|(time_micros, seq)| WindowStart { seq, time_micros }))
}

/// Of a table whose keys are times and numbers the last one at or before a time.
fn latest_before(now: &Snapshot, table: u32, time_micros: u64) -> Result<Option<(u64, u64)>> {
    let mut cursor = now.layers()?.cursor_under(None, table, now.seq().0);
    match time_micros.checked_add(1) {
        Some(end) => cursor.seek_before(Some(&rows::time_key(end, 0)))?,
        None => cursor.seek_before(None)?,
    }
    cursor.skip_deleted()?;
    let Some(key) = cursor.key() else { return Ok(None) };
    let decoded = rows::decode_time_key(key);
    decoded.map(Some).ok_or_else(|| now.bad_row("time", &key.escape_ascii().to_string()))
}

/// The id of the snapshot that was declared of a commit.
fn declared_of(now: &Snapshot, seq: u64) -> Result<Option<u64>> {
    let mut list = Declared::new(now.clone())?;
    let Some(last) = list.at_or_before(u64::MAX)?.filter(|last| last.seq >= seq) else { return Ok(None) };
    let first = list.first_since(seq, last)?;
    Ok((first.seq == seq).then_some(first.id))
}

fn info(id: u64, row: SnapshotRow, holders: Vec<String>) -> SnapshotInfo {
    SnapshotInfo {
        id: SnapshotId(id),
        name: row.name,
        seq: Seq(row.seq),
        time: rows::time(row.time_micros),
        metadata: row.metadata,
        holders,
    }
}

/// What became of a snapshot that is not there.
pub(crate) fn deletion(now: &Snapshot, id: u64) -> Result<Option<SnapshotDeletion>> {
    let mut cursor = now.layers()?.cursor_under(None, rows::DELETED, now.seq().0);
    cursor.seek(&id.to_be_bytes())?;
    cursor.skip_deleted()?;
    let Some((key, row)) = cursor.record()? else { return Ok(None) };
    let row = DeletedRow::decode(row)
        .ok_or_else(|| now.bad_row("deleted snapshots", &key.escape_ascii().to_string()))?;
    Ok((row.first <= id).then(|| SnapshotDeletion { time: rows::time(row.time_micros), rule: row.rule }))
}

fn each_snapshot(now: &Snapshot, f: &mut dyn FnMut(u64, SnapshotRow)) -> Result<()> {
    let mut damaged = None;
    let everything = (Bound::Unbounded, Bound::Unbounded);
    now.layers()?.for_each(rows::SNAPSHOTS, now.seq().0, everything, &mut |key, row| match (
        rows::decode_id(key),
        SnapshotRow::decode(row),
    ) {
        (Some(id), Some(row)) => {
            f(id, row);
            ControlFlow::Continue(())
        }
        _ => {
            damaged = Some(key.escape_ascii().to_string());
            ControlFlow::Break(())
        }
    })?;
    damaged.map_or(Ok(()), |key| Err(now.bad_row("snapshot", &key)))
}

/// Who holds a snapshot.
pub(crate) fn holders(now: &Snapshot, id: u64) -> Result<Vec<String>> {
    let (lower, upper) = (id.to_be_bytes(), id.checked_add(1).map(u64::to_be_bytes));
    let upper = upper.as_ref().map_or(Bound::Unbounded, |upper| Bound::Excluded(&upper[..]));
    let mut holders = Vec::new();
    each_hold(now, (Bound::Included(&lower[..]), upper), &mut |_, holder| holders.push(holder))?;
    Ok(holders)
}

fn all_holders(now: &Snapshot) -> Result<BTreeMap<u64, Vec<String>>> {
    let mut all = BTreeMap::<u64, Vec<String>>::new();
    each_hold(now, (Bound::Unbounded, Bound::Unbounded), &mut |id, holder| {
        all.entry(id).or_default().push(holder);
    })?;
    Ok(all)
}

fn each_hold(
    now: &Snapshot,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    f: &mut dyn FnMut(u64, String),
) -> Result<()> {
    let mut damaged = None;
    now.layers()?.for_each(rows::HOLDS, now.seq().0, bounds, &mut |key, _| {
        let parts = key.split_first_chunk::<8>();
        match parts.and_then(|(id, holder)| Some((id, std::str::from_utf8(holder).ok()?))) {
            Some((id, holder)) => {
                f(u64::from_be_bytes(*id), holder.to_owned());
                ControlFlow::Continue(())
            }
            None => {
                damaged = Some(key.escape_ascii().to_string());
                ControlFlow::Break(())
            }
        }
    })?;
    damaged.map_or(Ok(()), |key| Err(now.bad_row("hold", &key)))
}
