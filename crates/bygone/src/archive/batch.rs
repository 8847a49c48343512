//! Changing what is archived for good.
//!
//! Owns: the order of the steps. Promises: what a [`Change`] names is durable before anybody can publish it; a batch
//! that comes to nothing leaves the archive as it was. May call: segments and map.
//!
//! 1. Pages are appended to the pagelog.
//! 2. The segments are synced.
//! 3. A new run of the page map is written and synced, then the directory.
//! 4. [`Archive::publish`] lets readers look there: all of it is durable.
//! 5. The caller writes the superblock that names the change.
//! 6. [`Archive::settle`] removes the files that nobody names any more; if the superblock failed, [`Archive::undo`]
//!    puts things back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::MutexGuard;

use super::address::{Address, PageId};
use super::map::{self, Account, Rows};
use super::segment::{self, Page, SegmentWriter};
use super::state::ArchiveState;
use super::{Archive, Settings, View, Work, lock};
use crate::error::Result;
use crate::io::{remove, sync_dir};
use crate::mutation::{self, Mutation};
use crate::run::Run;

/// A segment is written anew when less than this part of it is live.
const LIVE_PART: u64 = 2;

/// Changes in the making. One at a time: who begins a second one waits.
pub(crate) struct Batch<'a> {
    archive: &'a Archive,
    work: MutexGuard<'a, Work>,
    rows: Rows,
    /// The accounts that differ from those in `work`.
    accounts: BTreeMap<u64, Account>,
    /// Segments that it began.
    created: Vec<u64>,
    appended_bytes: u64,
    finished: bool,
}

/// A change that is durable, but named by no superblock yet.
pub(crate) struct Change {
    /// What the next superblock is to say.
    pub state: ArchiveState,
    /// How much was written for it.
    pub written_bytes: u64,
    runs: Arc<Vec<Arc<Run>>>,
    accounts: BTreeMap<u64, Option<Account>>,
    created: Vec<u64>,
    pub(super) taken_out: Vec<PageId>,
    /// The map before.
    before: (ArchiveState, Arc<Vec<Arc<Run>>>),
}

impl Archive {
    /// Begins to change what is archived.
    pub fn begin(&self) -> Result<Batch<'_>> {
        self.prepare()?;
        let work = self.work();
        Ok(Batch {
            archive: self,
            work,
            rows: Rows::default(),
            accounts: BTreeMap::new(),
            created: Vec::new(),
            appended_bytes: 0,
            finished: false,
        })
    }

    /// Lets readers look where a change says. They have to find what they look for before and after.
    pub fn publish(&self, change: &Change) {
        let mut view = self.view_mut();
        (view.state, view.runs) = (change.state.clone(), change.runs.clone());
    }

    /// A superblock names the change: removes what it replaced.
    pub fn settle(&self, change: Change) {
        if mutation::is_on(Mutation::PublishBeforeData) {
            let _ = self.work().head.as_mut().map_or(Ok(()), SegmentWriter::sync);
        }
        let mut dropped = Vec::new();
        {
            let mut work = self.work();
            for (id, account) in change.accounts {
                if let Some(account) = account {
                    work.accounts.insert(id, account);
                    continue;
                }
                work.accounts.remove(&id);
                work.head.take_if(|head| head.id() == id);
                dropped.push(id);
            }
        }
        lock(&self.retired).append(&mut dropped);
        let is_named = |run: &Arc<Run>| change.state.runs.iter().any(|named| named.id == run.meta().id);
        for run in change.before.1.iter().filter(|run| !is_named(run)) {
            // One that stays is litter, which the next opening finds.
            let _ = remove(&*self.disk, &self.settings.directory.join(map::file_name(run.meta().id)));
        }
        self.sweep();
    }

    /// No superblock will name the change.
    pub fn undo(&self, change: Change) {
        {
            let mut view = self.view_mut();
            // What else became known meanwhile stays.
            let View { state, runs, .. } = &mut *view;
            (state.runs, *runs) = (change.before.0.runs.clone(), change.before.1.clone());
            (state.pages, state.complete_to) = (change.before.0.pages, change.before.0.complete_to);
            (state.live_bytes, state.segment_bytes) =
                (change.before.0.live_bytes, change.before.0.segment_bytes);
        }
        // The next batch goes on where the last superblock says.
        self.work().head = None;
        let was_named = |id| change.before.0.runs.iter().any(|named| named.id == id);
        for run in change.state.runs.iter().filter(|run| !was_named(run.id)) {
            let _ = remove(&*self.disk, &self.settings.directory.join(map::file_name(run.id)));
        }
        lock(&self.retired).extend(change.created);
        self.forget(change.taken_out);
        self.sweep();
    }
}

impl Batch<'_> {
    fn account(&mut self, segment: u64) -> &mut Account {
        let before = self.work.accounts.get(&segment).copied().unwrap_or_default();
        self.accounts.entry(segment).or_insert(before)
    }

    /// The segment that is appended to.
    fn head(&mut self) -> Result<&mut SegmentWriter> {
        let Settings { directory, database_id, segment_bytes, .. } = &self.archive.settings;
        if self.work.head.as_ref().is_some_and(|head| head.end() >= *segment_bytes) {
            self.close_head()?;
            self.work.head = None;
        }
        let disk = &*self.archive.disk;
        let head = match self.work.head.take() {
            Some(head) => head,
            None => {
                let last = self.work.accounts.iter().next_back().map(|(id, account)| (*id, account.bytes));
                let open =
                    last.filter(|(id, bytes)| bytes < segment_bytes && !self.accounts.contains_key(id));
                let resumed =
                    open.map(|(id, end)| SegmentWriter::resume(disk, directory, *database_id, id, end));
                match resumed {
                    Some(Ok(head)) => head,
                    // A damaged one stays as it is: a new one is begun.
                    _ => {
                        let id = self.archive.take_id();
                        self.created.push(id);
                        SegmentWriter::create(disk, directory, *database_id, id)?
                    }
                }
            }
        };
        Ok(self.work.head.insert(head))
    }

    /// Makes what was appended durable, and notes how far the segment goes.
    fn close_head(&mut self) -> Result<()> {
        let Some(head) = &mut self.work.head else { return Ok(()) };
        let Some(account) = self.accounts.get_mut(&head.id()) else { return Ok(()) };
        if mutation::is_on(Mutation::PublishBeforeData) {
            head.flush()?;
        } else {
            head.sync()?;
        }
        account.bytes = head.end();
        Ok(())
    }

    /// Archives a page whose CRC is `checksum`.
    pub fn add(&mut self, id: PageId, checksum: u32, page: &Page) -> Result<()> {
        let address = self.head()?.append(id, checksum, page)?;
        self.set(id, Some(address))
    }

    /// Takes a page out that is archived. Whoever may still read it finds it through the overlay.
    pub fn take_out(&mut self, id: PageId) -> Result<()> {
        self.set(id, None)
    }

    fn set(&mut self, id: PageId, address: Option<Address>) -> Result<()> {
        let before = match self.rows.addresses.get(&id) {
            Some(row) => *row,
            None => map::find(&self.archive.runs(), id, self.archive.settings.hash_seed)?,
        };
        if let Some(before) = before {
            let account = self.account(before.segment);
            account.live_pages = account.live_pages.saturating_sub(1);
            account.live_bytes = account.live_bytes.saturating_sub(u64::from(before.bytes));
            if address.is_none() && !mutation::is_on(Mutation::CollectTooEarly) {
                self.archive.view_mut().overlay.insert(id, before);
            }
        }
        if let Some(address) = address {
            let account = self.account(address.segment);
            account.live_pages += 1;
            account.live_bytes += u64::from(address.bytes);
            self.appended_bytes += u64::from(address.bytes);
        }
        self.rows.addresses.insert(id, address);
        Ok(())
    }

    /// Archives what is live of a segment anew, if there is one of which only a small part is; `false` if not.
    pub fn write_anew(&mut self) -> Result<bool> {
        let head = self.work.head.as_ref().map(SegmentWriter::id);
        let wasted = |(id, account): &(&u64, &Account)| {
            Some(**id) != head
                && account.live_bytes * LIVE_PART < account.bytes - segment::HEADER_BYTES as u64
        };
        let Some((id, account)) = self.work.accounts.iter().find(wasted) else { return Ok(false) };
        let (id, end) = (*id, account.bytes);
        let file = self.archive.segment(id)?;
        let (runs, hash_seed) = (self.archive.runs(), self.archive.settings.hash_seed);
        segment::for_each(&file, id, end, &mut |address, record| {
            if map::find(&runs, record.id, hash_seed)? == Some(address) {
                // Not into itself.
                self.account(id);
                let address = self.head()?.append_record(record.bytes)?;
                self.set(record.id, Some(address))?;
            }
            Ok(())
        })?;
        Ok(true)
    }

    fn taken_out(&self) -> Vec<PageId> {
        self.rows.addresses.iter().filter(|(_, row)| row.is_none()).map(|(id, _)| *id).collect()
    }

    /// Makes everything durable. Nothing names it yet.
    pub fn finish(mut self) -> Result<Change> {
        let archive = self.archive;
        self.close_head()?;
        let accounts: BTreeMap<u64, Option<Account>> = self
            .accounts
            .iter()
            .map(|(id, account)| (*id, (account.live_pages > 0).then_some(*account)))
            .collect();
        self.rows.accounts = accounts.clone();
        // Of segments that it began itself and that are empty again, nobody needs to be told.
        let known = |id: &u64| self.work.accounts.contains_key(id);
        self.rows.accounts.retain(|id, account| account.is_some() || known(id));
        let before = {
            let view = archive.view();
            (view.state.clone(), view.runs.clone())
        };
        let id = archive.take_id();
        let runs = map::extend(&archive.target(), &before.1, &self.rows, id).inspect_err(|_| {
            // It would take room where there may be none.
            let _ = remove(&*archive.disk, &archive.settings.directory.join(map::file_name(id)));
        })?;
        sync_dir(&*archive.disk, &archive.settings.directory)?;
        let mut state = archive.state();
        let unchanged = self.work.accounts.iter().filter(|(id, _)| !accounts.contains_key(id));
        let all = unchanged.map(|(_, account)| account).chain(accounts.values().flatten());
        (state.pages, state.live_bytes, state.segment_bytes) = (0, 0, 0);
        for account in all {
            state.pages += account.live_pages;
            state.live_bytes += account.live_bytes;
            state.segment_bytes += account.bytes;
        }
        state.runs = runs.iter().map(|run| *run.meta()).collect();
        self.finished = true;
        let (created, taken_out) = (std::mem::take(&mut self.created), self.taken_out());
        let map_bytes = state.runs.iter().filter(|run| run.id == id).map(|run| run.bytes).sum::<u64>();
        let written_bytes = self.appended_bytes + map_bytes;
        Ok(Change { state, written_bytes, runs: Arc::new(runs), accounts, created, taken_out, before })
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // What was appended is of no use: the next batch goes on where the last superblock says.
            self.work.head = None;
            lock(&self.archive.retired).append(&mut self.created);
            self.archive.forget(self.taken_out());
        }
    }
}
