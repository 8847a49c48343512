//! The continuous window: for some time every commit can be read, declared or not.
//!
//! Owns: where the window begins, from its opening to its end. Promises: what a view's layers say of the window can be
//! read through them; a crash at any point leaves a window that can be read in full. May call: everything below db.
//!
//! While there is a window, each commit notes its time, in a row of a system table that is part of it. Flushes, merges
//! and prunings keep every version that a commit of the window sees. The window begins with the latest commit that is
//! as old as the window is long, because that is the state which was current then. It is moved in three steps, of which
//! none may come before the other: 1. views get layers that say where it begins now; 2. so does the manifest, and with
//! it every superblock that comes; 3. whoever drops versions from then on goes by the manifest. So layers with an
//! earlier start were made by somebody who kept what that needs, and a superblock that names an earlier start was
//! written before anything of it was dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::Db;
use super::engine::{Engine, lock};
use super::manifest::Manifest;
use crate::base::{BaseVersion, Rebuild, Updates};
use crate::error::{Error, Result};
use crate::history::past::latest_commit;
use crate::history::visibility::Needed;
use crate::history::{SnapshotInfo, SnapshotRef};
use crate::ids::Window;
use crate::layer::LayerCursor;
use crate::snapshot::rows::{self, micros, time_key};
use crate::snapshot::{Snapshot, WindowStart, WindowState};

/// In the background, and when the database is closed, a window moves by this part of its length at least, and by a
/// second: each time what it left is given back.
const MOVES: u32 = 16;
const MOVE_MIN: Duration = Duration::from_secs(1);

impl Db {
    /// The commits that can be read although nobody declared a snapshot of them; `None` if the database has no
    /// [window](super::Options::window).
    pub fn window(&self) -> Option<Window> {
        let present = &self.engine().present;
        // In this order, so that the first is not behind the last.
        let window = present.layers().window;
        let last = present.snapshot().seq();
        window.map(|window| window.until(last))
    }
}

/// Brings what is remembered of a window together with what is asked for, given the last commit that there is. Answers
/// whether the superblock has to be written anew before anybody commits.
pub(super) fn settle(manifest: &mut Manifest, asked: Option<Duration>, last: WindowStart) -> bool {
    let remembered = manifest.window;
    limit(manifest, last);
    if let Some(length) = asked {
        let length_micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let start = manifest.window.map_or(last, |window| window.start);
        manifest.window = (length_micros > 0).then_some(WindowState { length_micros, start });
    }
    manifest.window_left |= remembered.is_some() && manifest.window.is_none();
    manifest.window != remembered
}

/// A power cut may have taken the commit with which the window was to begin: then it begins with the last one that is
/// left.
pub(super) fn limit(manifest: &mut Manifest, last: WindowStart) {
    if let Some(window) = &mut manifest.window
        && window.start.seq > last.seq
    {
        window.start = last;
    }
}

impl Engine {
    pub fn window_start(&self) -> Option<WindowStart> {
        lock(&self.manifest).window.map(|window| window.start)
    }

    /// The states in an interval that are needed. Asked for by who is about to drop versions.
    pub fn needed_between(&self, from: u64, to: u64) -> Result<Needed> {
        let window = self.window_start().map_or(0..0, |start| start.seq.max(from)..to);
        Ok(Needed::new(self.writer()?.committer.declared_between(from, to), window))
    }

    /// Moves the window to where it is to begin now, if that is later by so much, and asks for a pruning.
    pub fn move_window(&self, now: SystemTime, by: Duration) -> Result<()> {
        let Some(window) = lock(&self.manifest).window else { return Ok(()) };
        let begins_micros = micros(now).saturating_sub(window.length_micros);
        if begins_micros.saturating_sub(window.start.time_micros) < by.as_micros() as u64 {
            return Ok(());
        }
        let Some(start) = latest_commit(&self.present.snapshot(), begins_micros)? else { return Ok(()) };
        if start.seq <= window.start.seq {
            return Ok(());
        }
        self.present.publish(|layers| layers.with_window_from(start));
        let mut manifest = lock(&self.manifest);
        manifest.window = manifest.window.map(|window| window.beginning_at(start));
        manifest.window_left = true;
        // Relaxed: the new start is found under the manifest's lock.
        self.prune_wanted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Moves the window by the clock. What cannot be read of the times of commits is no harm to the present: that is
    /// noted like what stands in the way of pruning, and the window stays where it is.
    pub fn move_window_now(&self, by: Duration) {
        if let Err(error) = self.move_window(SystemTime::now(), by) {
            *lock(&self.prune_failure) = Some(error);
        }
    }

    /// By how much the window moves at a time, if nobody asks for it.
    pub fn window_step(&self) -> Duration {
        let length = lock(&self.manifest).window.map_or(0, |window| window.length_micros);
        (Duration::from_micros(length) / MOVES).max(MOVE_MIN)
    }

    /// Whether a base has times of commits that the window has left.
    pub fn has_old_times(&self, base: &Arc<BaseVersion>) -> Result<bool> {
        match self.window_start() {
            None => Ok(base.table(rows::COMMIT_TIMES).is_some()),
            Some(start) => Ok(OldTimes::new(base, start)?.peek()?.is_some()),
        }
    }

    /// Takes the times of commits that the window has left out of the next base.
    pub fn drop_old_times(&self, base: &Arc<BaseVersion>, rebuild: &mut Rebuild) -> Result<()> {
        match self.window_start() {
            None => rebuild.drop_table(rows::COMMIT_TIMES),
            Some(start) => {
                rebuild.apply(rows::COMMIT_TIMES, &mut OldTimes::new(base, start)?, usize::MAX)?;
                Ok(())
            }
        }
    }

    /// A view as of what is asked for, and the declared snapshot that it is of, if it is of one.
    pub fn as_of_with_info(&self, wanted: &SnapshotRef) -> Result<(Snapshot, Option<SnapshotInfo>)> {
        if matches!(wanted, SnapshotRef::Id(_) | SnapshotRef::Name(_)) {
            let info = self.past.find(&self.present.snapshot(), wanted)?;
            return Ok((self.as_of(&SnapshotRef::Id(info.id))?, Some(info)));
        }
        let view = self.as_of(wanted)?;
        match self.past.find(&self.present.snapshot(), &SnapshotRef::Seq(view.seq())) {
            Err(Error::SnapshotNotFound { .. }) => Ok((view, None)),
            found => Ok((view, Some(found?))),
        }
    }
}

/// The times of commits before the window, as deletions from a base.
struct OldTimes<C> {
    times: C,
    end: [u8; 16],
}

impl OldTimes<()> {
    fn new(base: &Arc<BaseVersion>, start: WindowStart) -> Result<OldTimes<impl LayerCursor>> {
        let mut times = base.cursor(rows::COMMIT_TIMES);
        times.seek(b"")?;
        Ok(OldTimes { times, end: time_key(start.time_micros, start.seq) })
    }
}

impl<C: LayerCursor> Updates for OldTimes<C> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.times.key().filter(|key| *key < &self.end[..]))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(None)
    }

    fn advance(&mut self) -> Result<()> {
        self.times.next()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ops::{Bound, ControlFlow};

    use super::*;
    use crate::io::SimDisk;
    use crate::{Options, Seq, Table};

    const HOUR: Duration = Duration::from_secs(3600);

    fn open(disk: &SimDisk, options: Options) -> Db {
        options.memtable_bytes(64 << 10).background(false).open_on(Arc::new(disk.clone()), "db").unwrap()
    }

    fn windowed() -> Options {
        Options::new().window(HOUR)
    }

    /// So many commits, merged every few; answers the time and the number of each.
    fn commit(db: &Db, table: &Table, count: u64) -> Vec<(SystemTime, u64)> {
        let mut commits = Vec::new();
        for n in 0..count {
            db.put(table, (n % 7).to_be_bytes(), [n as u8; 900]).unwrap();
            commits.push((SystemTime::now(), u64::from(db.snapshot().seq())));
            std::thread::sleep(Duration::from_micros(2));
            if n % 10 == 9 {
                db.merge().unwrap();
            }
        }
        commits
    }

    /// The numbers in the rows of the table of times, of the base and of all layers.
    fn noted(db: &Db) -> (Vec<u64>, Vec<u64>) {
        let now = db.snapshot();
        let layers = now.layers().unwrap();
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let (mut in_base, mut all) = (Vec::new(), Vec::new());
        let note = |numbers: &mut Vec<u64>, key: &[u8]| {
            numbers.push(rows::decode_time_key(key).unwrap().1);
            ControlFlow::Continue(())
        };
        let (lower, upper) = everything;
        let base = &layers.base;
        base.for_each(rows::COMMIT_TIMES, lower, upper, &mut |key, _| note(&mut in_base, key)).unwrap();
        let seq = now.seq().0;
        layers.for_each(rows::COMMIT_TIMES, seq, everything, &mut |key, _| note(&mut all, key)).unwrap();
        (in_base, all)
    }

    fn first(db: &Db) -> u64 {
        db.window().unwrap().first.into()
    }

    #[test]
    fn a_window_begins_with_the_latest_commit_that_is_as_old_as_it_is_long() {
        let db = open(&SimDisk::new(), windowed());
        let table = db.table("t").unwrap();
        let commits = commit(&db, &table, 35);
        let engine = db.engine();
        for (time, seq) in &commits {
            engine.move_window(*time + HOUR, Duration::ZERO).unwrap();
            assert_eq!(first(&db), *seq);
            assert!(db.as_of(*time).is_ok() && db.as_of(Seq(seq - 1)).is_err());
        }
        engine.move_window(commits[3].0, Duration::ZERO).unwrap();
        assert_eq!(first(&db), commits[34].1, "it never goes back, whatever the clock says");
    }

    #[test]
    fn a_window_moves_by_steps() {
        let db = open(&SimDisk::new(), windowed());
        let table = db.table("t").unwrap();
        let commits = commit(&db, &table, 20);
        let engine = db.engine();
        engine.move_window(commits[2].0 + HOUR, Duration::ZERO).unwrap();
        engine.move_window(commits[9].0 + HOUR, HOUR).unwrap();
        assert_eq!(first(&db), commits[2].1, "not yet");
        engine.move_window(commits[2].0 + 2 * HOUR, HOUR).unwrap();
        assert_eq!(first(&db), commits[19].1);
        assert_eq!(engine.window_step(), HOUR / 16);
    }

    #[test]
    fn times_are_noted_while_there_is_a_window_and_go_with_it() {
        let disk = SimDisk::new();
        let db = open(&disk, Options::new());
        let table = db.table("t").unwrap();
        commit(&db, &table, 12);
        assert_eq!(noted(&db), (vec![], vec![]), "nobody pays who has no window");
        drop((db, table));

        let db = open(&disk, windowed());
        let table = db.open_table("t").unwrap();
        let commits = commit(&db, &table, 35);
        let numbers: Vec<u64> = commits.iter().map(|(_, seq)| *seq).collect();
        assert_eq!(noted(&db), (numbers[..30].to_vec(), numbers.clone()));
        let engine = db.engine();
        engine.move_window(commits[14].0 + HOUR, Duration::ZERO).unwrap();
        engine.prune_if_wanted().unwrap();
        assert_eq!(
            noted(&db),
            (numbers[14..30].to_vec(), numbers[14..].to_vec()),
            "a pruning takes them out"
        );
        engine.move_window(commits[31].0 + HOUR, Duration::ZERO).unwrap();
        db.flush().unwrap();
        engine.merge_all().unwrap();
        assert_eq!(noted(&db).0, numbers[30..], "a merge does so with those that are in the base");
        engine.prune_if_wanted().unwrap();
        assert_eq!(noted(&db).0, numbers[31..]);
        let next = commit(&db, &table, 4);
        drop((db, table));

        let db = open(&disk, Options::new().window(Duration::ZERO));
        assert_eq!(noted(&db).1.len(), 4 + next.len());
        db.prune().unwrap();
        assert_eq!(noted(&db).1.len(), next.len(), "what the log had is not in the base yet");
        db.merge().unwrap();
        assert_eq!(noted(&db), (vec![], vec![]));
        assert!(db.snapshot().layers().unwrap().base.table(rows::COMMIT_TIMES).is_none());
    }

    #[test]
    fn runs_that_are_written_for_the_past_hold_no_times() {
        let db = open(&SimDisk::new(), windowed());
        let table = db.table("t").unwrap();
        commit(&db, &table, 40);
        let base = db.snapshot().layers().unwrap().base.clone();
        let intervals = db.engine().past.intervals(&base).unwrap();
        let mut records = 0;
        for run in intervals.iter().flat_map(|(_, interval)| &interval.runs) {
            let run = db.engine().past.open_run(run, db.engine().present.context().hash_seed).unwrap();
            let mut versions = run.versions();
            while crate::layer::Versions::advance(&mut versions).unwrap() {
                assert_ne!(crate::layer::Versions::key(&versions).table, rows::COMMIT_TIMES);
                records += 1;
            }
        }
        assert!(records >= 40);
    }

    #[test]
    fn what_is_remembered_and_what_is_asked_for_come_together() {
        let start = |seq: u64| WindowStart { seq, time_micros: seq * 10 };
        let state = |length_micros: u64, seq: u64| WindowState { length_micros, start: start(seq) };
        let settled = |before: Option<WindowState>, asked: Option<u64>, last: u64| {
            let mut manifest = Manifest { window: before, ..Manifest::default() };
            let is_new = settle(&mut manifest, asked.map(Duration::from_micros), start(last));
            assert_eq!(is_new, manifest.window != before);
            (manifest.window, manifest.window_left)
        };
        assert_eq!(settled(None, None, 9), (None, false));
        assert_eq!(settled(None, Some(0), 9), (None, false));
        assert_eq!(settled(None, Some(5), 9), (Some(state(5, 9)), false), "it begins with what there is");
        assert_eq!(settled(Some(state(5, 3)), None, 9), (Some(state(5, 3)), false));
        assert_eq!(settled(Some(state(5, 3)), Some(7), 9), (Some(state(7, 3)), false));
        assert_eq!(settled(Some(state(5, 3)), Some(0), 9), (None, true));
        assert_eq!(
            settled(Some(state(5, 12)), None, 9),
            (Some(state(5, 9)), false),
            "a power cut took 10 to 12"
        );
        assert_eq!(settled(Some(state(5, 12)), Some(0), 9), (None, true));
        let for_ever = Some(u64::MAX);
        assert_eq!(settled(None, for_ever, 1), (Some(state(u64::MAX, 1)), false));
    }
}
