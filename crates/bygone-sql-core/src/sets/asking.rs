//! Asking all snapshots of a set query, in their order.
//!
//! Owns: where the query runs: on the connection that was idle, which is kept for the next set query; and on those of
//! threads, once what is left turns out to be long. Promises: what is gathered, reported and failed is so in the order
//! of the snapshots, whoever ran the query. May call: `reader`, `workers`, `session`.

use std::any::Any;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bygone::SnapshotId;

use super::Set;
use super::reader::{Asker, Idle, Sink};
use super::workers::{self, Work};
use crate::directory::{Handle, locked};
use crate::failure::{Failure, Result};
use crate::ffi::SQLITE_INTERRUPT;
use crate::functions::wanted_file;
use crate::session::{SetProgress, SetStats};
use crate::statement::Connection;

/// To share fewer snapshots does not pay.
const SHARED_MIN: usize = 8;

/// So many neighbours have taken long before the others are shared.
const LONG_RUNS: u32 = 2;

/// The SQL database that a set query is of.
pub(super) struct Place {
    /// As it was named, if it was.
    schema: Option<String>,
    pub directory: Handle,
    pub table: String,
}

impl Set<'_> {
    /// The database that is asked.
    pub(super) fn place(&self, schema: Option<String>) -> Result<Place> {
        let file = wanted_file(self.host, self.connection, schema.clone())?;
        // SAFETY: the files of a connection that is in a call are borrowed by nobody else; this borrow ends here.
        let file = unsafe { &*file };
        Ok(Place { schema, directory: file.directory.clone(), table: file.database.table.clone() })
    }

    /// What is kept in the file of the database; there may be none any more, if it was detached meanwhile.
    fn kept<T>(&self, place: &Place, body: impl FnOnce(&mut Option<Box<dyn Any>>) -> T) -> Option<T> {
        let file = wanted_file(self.host, self.connection, place.schema.clone()).ok()?;
        // SAFETY: as in `place`.
        let file = unsafe { &mut *file };
        let is_same = file.directory.number == place.directory.number && file.database.table == place.table;
        is_same.then(|| body(&mut file.kept))
    }

    /// Keeps the connection for the next set query, if that is possible.
    pub(super) fn keep(&self, place: &Place, asker: Asker<'_>) {
        let Ok(Some(idle)) = asker.into_idle() else { return };
        let before = self.kept(place, |kept| kept.replace(Box::new(idle)));
        drop(before);
    }

    /// Asks the query of all snapshots.
    ///
    /// # Safety
    /// As [`answer`](Set::answer), for as long as the asker lives.
    pub(super) unsafe fn ask_all<'q>(
        &self,
        place: &Place,
        snapshots: &BTreeSet<u64>,
        query: &'q str,
        sink: &mut dyn Sink,
    ) -> Result<Asker<'q>> {
        let db = &place.directory.db;
        let ids: Vec<u64> = snapshots.iter().copied().collect();
        let text = Box::new(|_: &Connection| Ok(query.to_owned()));
        let of = (place.directory.clone(), place.table.clone());
        // SAFETY: as promised.
        let asker = unsafe { Asker::new(self.host, self.connection, of, text, ids.clone()) }?;
        let idle = self.kept(place, Option::take).flatten();
        let idle = idle.and_then(|idle| idle.downcast::<Idle>().ok());
        let mut asker = asker.with_idle(idle.map(|idle| *idle));
        let mut stats = SetStats::default();
        let mut long = Long { than: locked(&self.session.sharing).left, runs: 0 };
        for (&snapshot, place_in_set) in ids.iter().zip(1..) {
            self.report(snapshot, ids.len(), &stats)?;
            let begun = Instant::now();
            let asked = asker.turn(snapshot).and_then(|to_be_run| {
                if to_be_run {
                    asker.run(snapshot, sink)?;
                }
                sink.holds_for(snapshot)?;
                Ok(to_be_run)
            });
            let was_run = asked.map_err(|failure| as_of(db, snapshot, failure))?;
            stats.count(was_run);
            let left = &ids[place_in_set..];
            if long.note(was_run, begun, left.len()) && workers::are_possible(self.host) {
                asker.rest();
                let work = Work { host: self.host, place, query, snapshots: left };
                let shared = work.share(&asker, sink, &mut |snapshot, was_run| match was_run {
                    None => self.report(snapshot, ids.len(), &stats),
                    Some(was_run) => {
                        stats.count(was_run);
                        Ok(())
                    }
                })?;
                if let Some(page_reads) = shared {
                    stats.page_reads += page_reads;
                    break;
                }
                long.than = None;
            }
        }
        stats.rows = sink.rows();
        stats.page_reads += asker.page_reads();
        *locked(&self.session.stats) = Some(stats);
        Ok(asker)
    }

    /// Reports before a snapshot, and fails if all is to end.
    fn report(&self, snapshot: u64, total: usize, stats: &SetStats) -> Result<()> {
        // It may set another one.
        let Some(mut report) = locked(&self.session.on_progress).take() else { return Ok(()) };
        let SetStats { snapshots: done, skipped, .. } = *stats;
        let go_on = report(&SetProgress { snapshot, done, total: total as u64, skipped });
        locked(&self.session.on_progress).get_or_insert(report);
        if go_on { Ok(()) } else { Err(Failure::new(SQLITE_INTERRUPT, "interrupted")) }
    }
}

impl SetStats {
    /// A snapshot is done.
    fn count(&mut self, was_run: bool) {
        self.snapshots += 1;
        self.runs += u64::from(was_run);
        self.skipped += u64::from(!was_run);
    }
}

/// Whether what is left takes long.
struct Long {
    /// How long; `None` if that is not asked.
    than: Option<Duration>,
    /// How many neighbours were run that say so, the last among them.
    runs: u32,
}

impl Long {
    /// Another snapshot is done, with so many left. Where few are run, a second reader would run others.
    fn note(&mut self, was_run: bool, begun: Instant, left: usize) -> bool {
        let Some(than) = self.than.filter(|_| was_run && left >= SHARED_MIN) else {
            self.runs = 0;
            return false;
        };
        let is_long = begun.elapsed().saturating_mul(u32::try_from(left).unwrap_or(u32::MAX)) >= than;
        self.runs = if is_long { self.runs + 1 } else { 0 };
        self.runs >= LONG_RUNS
    }
}

/// A failure, with the snapshot at which it was met.
pub(crate) fn as_of(db: &bygone::Db, snapshot: u64, failure: Failure) -> Failure {
    if failure.code & 0xff == SQLITE_INTERRUPT {
        return failure;
    }
    let name = db.snapshot_info(SnapshotId::from(snapshot)).ok().and_then(|info| info.name);
    let name = name.map(|name| format!(" ({name:?})")).unwrap_or_default();
    Failure { text: format!("as of snapshot {snapshot}{name}: {}", failure.text), ..failure }
}
