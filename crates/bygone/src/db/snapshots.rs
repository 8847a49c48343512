//! Declared snapshots: declaring, listing, holding and deleting them.
//!
//! Owns: that part of [`Db`]. Promises: a deletion is durable when it returns, and all or nothing; what it frees is
//! given back behind its back. May call: the engine.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::Db;
use super::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::history::prune::{Kept, chains};
use crate::history::retention::Retention;
use crate::history::{SnapshotInfo, SnapshotRef};
use crate::ids::{Seq, SnapshotId};
use crate::lease::Leases;
use crate::limits::PAGE_BYTES;
use crate::snapshot::rows::micros;
use crate::txn::commit::Durability;
use crate::txn::record::{Doomed, Marks, SnapshotChange, check_name};
use crate::txn::write_set::Writes;

/// A policy deletes no more than this many snapshots by one commit.
const DELETED_AT_ONCE: usize = 10_000;

/// How often a policy is planned anew when somebody else deleted or held a snapshot meanwhile.
const PLANS: usize = 10;

impl Db {
    /// Declares a snapshot of the latest commit.
    ///
    /// # Errors
    /// `NameTaken`, `TooLarge`, `InvalidArgument`, `ReadOnly`, `Io`, `Poisoned`.
    pub fn snapshot_now<'n>(&self, name: impl Into<Option<&'n str>>) -> Result<SnapshotId> {
        self.begin()?.commit_with_snapshot(name)
    }

    /// All declared snapshots, by id.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.engine().list_snapshots()
    }

    /// What is known of one declared snapshot.
    ///
    /// # Errors
    /// `SnapshotNotFound`, which says when and by which rule it was deleted; `Corruption` or `Io`.
    pub fn snapshot_info(&self, snapshot: impl Into<SnapshotRef>) -> Result<SnapshotInfo> {
        let mut info = self.engine().past.find(&self.snapshot(), &snapshot.into())?;
        self.engine().add_leases(std::slice::from_mut(&mut info))?;
        Ok(info)
    }

    /// The commit that [`as_of`](Db::as_of) would read as of: a look-up, without opening the view.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// db.snapshot_now("before-fees")?;
    /// assert_eq!(db.seq_of("before-fees")?, db.as_of("before-fees")?.seq());
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `SnapshotNotFound` or `OutsideWindow`, as `as_of`; `Corruption` or `Io`.
    pub fn seq_of(&self, snapshot: impl Into<SnapshotRef>) -> Result<Seq> {
        let now = self.snapshot();
        Ok(Seq(self.engine().past.seq_of(&now, &snapshot.into())?))
    }

    /// Deletes a declared snapshot. Its name may be given again. Views of it that are open in this process read on; one
    /// of which another process holds a view is not deleted.
    ///
    /// The deletion is durable when this returns. What only this snapshot kept is given back in the background
    /// (by this call, where there is none): whole key frames and runs at once, records among those that other
    /// snapshots need once half of a run's snapshots are gone.
    ///
    /// # Errors
    /// `SnapshotNotFound`, `SnapshotHeld`, `ReadOnly`, `Io`, `Poisoned`.
    pub fn delete_snapshot(&self, snapshot: impl Into<SnapshotRef>) -> Result<()> {
        self.delete_snapshots([snapshot])
    }

    /// Deletes these snapshots, all or none.
    ///
    /// # Errors
    /// As [`delete_snapshot`](Db::delete_snapshot).
    pub fn delete_snapshots<S: Into<SnapshotRef>>(
        &self,
        snapshots: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        let now = self.snapshot();
        let past = &self.engine().past;
        let infos = snapshots.into_iter().map(|snapshot| past.find(&now, &snapshot.into()));
        let infos = infos.collect::<Result<Vec<_>>>()?;
        drop(now);
        self.engine().forget(&infos, String::new())
    }

    /// Makes sure that a snapshot is not deleted before `holder` lets it go. Any number of holders may hold one
    /// snapshot; each holds it once, however often he asks.
    ///
    /// # Errors
    /// `SnapshotNotFound`; `InvalidArgument` or `TooLarge` for an empty holder or one over 255 bytes; `ReadOnly`,
    /// `Io`, `Poisoned`.
    pub fn hold_snapshot(&self, snapshot: impl Into<SnapshotRef>, holder: &str) -> Result<()> {
        check_name("a holder's name", holder)?;
        let id = self.snapshot_info(snapshot)?.id.0;
        self.engine().change_snapshots(SnapshotChange::Hold { id, holder: holder.to_owned() })
    }

    /// Undoes [`hold_snapshot`](Db::hold_snapshot).
    ///
    /// # Errors
    /// `SnapshotNotFound`; `InvalidArgument` if `holder` does not hold it; `ReadOnly`, `Io`, `Poisoned`.
    pub fn release_snapshot(&self, snapshot: impl Into<SnapshotRef>, holder: &str) -> Result<()> {
        let info = self.engine().past.find(&self.snapshot(), &snapshot.into())?;
        if !info.holders.iter().any(|other| other == holder) {
            let reason = format!("snapshot {} is not held by {holder:?}", info.id);
            return Err(Error::InvalidArgument { reason });
        }
        self.engine().change_snapshots(SnapshotChange::LetGo { id: info.id.0, holder: holder.to_owned() })
    }

    /// The snapshots that [`apply_retention`](Db::apply_retention) would delete now, by id.
    ///
    /// # Errors
    /// `InvalidArgument` for a policy without a rule; `Corruption` or `Io`.
    pub fn plan_retention(&self, policy: &Retention) -> Result<Vec<SnapshotInfo>> {
        self.engine().plan_retention(policy)
    }

    /// Deletes the snapshots that a policy does not keep; answers them, by id. A long list is deleted by several
    /// commits.
    ///
    /// # Errors
    /// As [`plan_retention`](Db::plan_retention); `ReadOnly`, `Io`, `Poisoned`.
    pub fn apply_retention(&self, policy: &Retention) -> Result<Vec<SnapshotInfo>> {
        self.engine().apply_retention(policy)
    }

    /// Gives back what deleted snapshots kept, and what has left the [window](super::Options::window), and returns when
    /// that is done. The background does it as well,
    /// soon after a deletion.
    ///
    /// # Errors
    /// What stood in the way: `Corruption` or `Io`; `ReadOnly`, `Poisoned`. The present is unharmed, and the next
    /// deletion tries again.
    pub fn prune(&self) -> Result<()> {
        let engine = self.engine();
        engine.writer()?;
        engine.move_window(SystemTime::now(), Duration::ZERO)?;
        engine.guarded(Engine::prune_if_wanted)?;
        engine.give_back();
        lock(&engine.prune_failure).clone().map_or(Ok(()), Err)
    }
}

impl Engine {
    fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let mut snapshots = self.past.list(&self.present.snapshot())?;
        self.add_leases(&mut snapshots)?;
        Ok(snapshots)
    }

    /// Adds the processes that read these snapshots to those who hold them. Only the owner asks.
    fn add_leases(&self, snapshots: &mut [SnapshotInfo]) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let terms = writer.leases.look()?.terms;
        for info in snapshots {
            info.holders.extend(Leases::holders(&terms, info.id.0));
        }
        Ok(())
    }

    /// Gives back what only processes kept that have ended since. What fails is tried again.
    pub fn give_back(&self) {
        let _ = self.remove_given_up();
        let _ = self.store.shrink();
    }

    fn plan_retention(&self, policy: &Retention) -> Result<Vec<SnapshotInfo>> {
        policy.check()?;
        let snapshots = self.list_snapshots()?;
        let mut doomed = policy.doomed(&snapshots, SystemTime::now());
        if let Some(budget) = policy.byte_budget() {
            doomed.extend(self.over_budget(&snapshots, &doomed, budget)?);
            doomed.sort_unstable_by_key(|snapshot| snapshot.id);
        }
        Ok(doomed)
    }

    pub fn apply_retention(&self, policy: &Retention) -> Result<Vec<SnapshotInfo>> {
        let mut deleted = Vec::new();
        let mut plans = 0;
        'plans: loop {
            plans += 1;
            for doomed in self.plan_retention(policy)?.chunks(DELETED_AT_ONCE) {
                match self.forget(doomed, policy.to_string()) {
                    Ok(()) => deleted.extend_from_slice(doomed),
                    // Somebody was faster; of this commit's snapshots none is deleted.
                    Err(Error::SnapshotNotFound { .. } | Error::SnapshotHeld { .. }) if plans < PLANS => {
                        continue 'plans;
                    }
                    Err(error) => return Err(error),
                }
            }
            deleted.sort_unstable_by_key(|snapshot| snapshot.id);
            return Ok(deleted);
        }
    }

    fn forget(&self, infos: &[SnapshotInfo], rule: String) -> Result<()> {
        let doomed =
            |info: &SnapshotInfo| Doomed { id: info.id.0, seq: info.seq.0, time_micros: micros(info.time) };
        let mut snapshots: Vec<_> = infos.iter().map(doomed).collect();
        snapshots.sort_unstable_by_key(|doomed| doomed.id);
        snapshots.dedup();
        if snapshots.is_empty() {
            return Ok(());
        }
        // Who begins to read one after this look reads on, too: what he needs is kept for the base that he leased.
        let terms = self.writer()?.leases.look()?.terms;
        for doomed in &snapshots {
            let holders = Leases::holders(&terms, doomed.id);
            if !holders.is_empty() {
                return Err(Error::SnapshotHeld { snapshot: SnapshotId(doomed.id), holders });
            }
        }
        let seqs: Vec<u64> = snapshots.iter().map(|doomed| doomed.seq).collect();
        self.change_snapshots(SnapshotChange::Delete { rule, snapshots })?;
        self.writer()?.committer.forget_declared(&seqs);
        self.prune_wanted.store(true, Ordering::Relaxed);
        if self.options.background {
            self.merge_signal.raise();
            return Ok(());
        }
        // The deletion stands, whatever fails now: who writes next is told, if the database is poisoned.
        let _ = self.guarded(Engine::prune_if_wanted);
        Ok(())
    }

    /// Durable when it returns, and when it is visible: see `prune`.
    fn change_snapshots(&self, change: SnapshotChange) -> Result<()> {
        let marks = Marks { snapshot_change: Some(change), ..Marks::default() };
        self.commit(Writes::default(), Vec::new(), marks, Durability::Sync)?;
        Ok(())
    }

    /// Of the oldest snapshots so many that the past comes down to a budget of bytes, beyond those that are doomed
    /// already.
    fn over_budget(
        &self,
        snapshots: &[SnapshotInfo],
        doomed: &[SnapshotInfo],
        budget_bytes: u64,
    ) -> Result<Vec<SnapshotInfo>> {
        // Frames and rows must be of one moment.
        let _merging = lock(&self.merging);
        let base = self.present.layers().base.clone();
        let used = self.store.space_stats().used_bytes;
        let run_bytes = lock(&self.manifest).history_bytes;
        let archive = self.store.archive().map(|archive| archive.stats()).unwrap_or_default();
        let mut past_bytes =
            used.saturating_sub(self.base_bytes()) + run_bytes + archive.live_bytes + archive.map_bytes;
        let archived_page_bytes = archive.live_bytes.checked_div(archive.pages).unwrap_or(0);
        let is_doomed = |info: &SnapshotInfo| doomed.binary_search_by_key(&info.id, |other| other.id).is_ok();
        let intervals = self.past.intervals(&base)?;
        let chains: Vec<_> = chains(&intervals).collect();
        let frame = |index: usize| chains.get(index).and_then(|chain| chain[0].1.key_frame);
        // What giving up the chain would give back, once all before it went but those up to this generation.
        let chain_bytes = |index: usize, kept_generation: u64| -> Result<u64> {
            let runs = chains[index].iter().flat_map(|(_, interval)| &interval.runs);
            let run_bytes: u64 = runs.map(|run| run.bytes).sum();
            let Some(own) = frame(index) else { return Ok(run_bytes) };
            let next = frame(index + 1).map_or(Ok(base.clone()), |next| self.store.open_base(&next))?;
            let pages = self.store.pages_only_in(&*self.store.open_base(&own)?, &next)?;
            let own = pages.into_iter().filter(|page| page.birth > kept_generation).collect();
            let (archived, in_file) = self.part_given_up(own)?;
            let in_file_bytes = in_file.len() as u64 * PAGE_BYTES as u64;
            Ok(run_bytes + in_file_bytes + archived.len() as u64 * archived_page_bytes)
        };
        let end_of = |chain: &[Kept]| chain[chain.len() - 1].0;
        // What the window reaches stays whatever is deleted, and does not count.
        let window_start = self.window_start().map_or(u64::MAX, |start| start.seq);
        let of_window = chains.partition_point(|chain| end_of(chain) <= window_start);
        for index in of_window..chains.len() {
            let before = index.checked_sub(1).and_then(frame).map_or(0, |frame| frame.generation);
            past_bytes = past_bytes.saturating_sub(chain_bytes(index, before)?);
        }
        let mut further = Vec::new();
        let mut kept_generation = 0;
        for (index, chain) in chains[..of_window].iter().enumerate() {
            if past_bytes <= budget_bytes {
                break;
            }
            let (from, end) = (chain[0].1.from, end_of(chain));
            let within = |info: &&SnapshotInfo| (from..end).contains(&info.seq.0);
            let here: Vec<_> = snapshots.iter().filter(within).collect();
            if here.iter().any(|info| !info.holders.is_empty()) {
                kept_generation = frame(index).map_or(kept_generation, |frame| frame.generation);
                continue;
            }
            past_bytes = past_bytes.saturating_sub(chain_bytes(index, kept_generation)?);
            further.extend(here.into_iter().filter(|info| !is_doomed(info)).cloned());
        }
        Ok(further)
    }
}
