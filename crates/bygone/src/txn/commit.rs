//! Committing: the queue, the leader, and the order in which commits become visible.
//!
//! Owns: sequence numbers, the active memtable, and the publication of `visible_seq`. Promises: commits take
//! effect in the order of their numbers, each whole; one log write and at most one sync serve a whole group;
//! a commit that returned is visible to every view taken afterwards. May call: wal, memtable, snapshot.
//!
//! **Lock order**: the directory of tables; `leader`; `publisher`, `declared`, the layers of the present or a
//! ticket's state. The lock of `queue` is held with no other. Who leads never locks the directory: whoever has
//! it may be waiting for the leader.
//!
//! **The life of a commit.** A thread encodes its commit and joins the queue (`queue`). If nobody leads, it
//! leads: it takes all that wait, and under the `leader` lock validates each in order, gives each the next number,
//! writes the group's log record and syncs it if a member asks for it. Then it queues the
//! group for publication and hands leadership on. Each member inserts its own records into the memtable, side
//! by side with the others and with the next leader's work; but the leader inserts those of small commits, since
//! waking their threads takes longer, and the group and all behind it would wait for that. The last to finish
//! publishes the group's number, once all groups before it are published.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::backlog::{Backlog, Frozen};
use super::queue::{CommitQueue, Joined, Pending, Ticket, Word, look, sleep};
use super::record::{self, Encoded, Marks, Place, TableChange};
use super::validate::{ConflictTable, ReadSet, RecentCommit, RecentCommits, Running};
use super::write_set::Writes;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::ids::{Seq, SnapshotId};
use crate::limits::COMMIT_BYTES_MAX;
use crate::memtable::Memtable;
use crate::signal::Signal;
use crate::snapshot::present::Present;
use crate::snapshot::rows;
use crate::snapshot::{Snapshot, Table};
use crate::wal::{Payload, Wal};

/// For how many writes of a commit memory is asked for ahead: it answers many requests at a time.
const PREFETCH_WRITES: usize = 8;

/// A member's commit of at most this many bytes is put into the memtable by the leader.
const CARRIED_BYTES_MAX: usize = 4 << 10;

/// When a commit is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When `commit` returns. Commits that wait at the same time share one sync.
    #[default]
    Sync,
    /// Handed to the operating system when `commit` returns: it survives the end of the process, but a power
    /// cut may lose the last commits (never one without those behind it).
    Buffered,
}

/// Everything the leader needs to know of a commit.
pub(crate) struct Request {
    pub writes: Writes,
    /// Of each write, in the order of [`Writes::iter`].
    pub hashes: Vec<u64>,
    pub marks: Marks,
    /// The tables written to, each once.
    pub tables: Vec<Table>,
    /// The view to validate against; `None` for a blind write, which conflicts with nothing.
    pub read: Option<Snapshot>,
    /// What a serializable transaction has read.
    pub reads: Option<ReadSet>,
    pub durability: Durability,
}

/// What became of a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    pub seq: Seq,
    pub snapshot: Option<SnapshotId>,
}

pub(crate) struct Committer {
    pub health: Arc<Health>,
    pub present: Arc<Present>,
    pub backlog: Arc<Backlog>,
    pub wal: Arc<Wal>,
    /// There is a window: each commit notes its time.
    notes_times: bool,
    /// Raised when a log segment was used up, and when the active memtable is half full.
    standby_wanted: Arc<Signal>,
    pub running: Running,
    queue: CommitQueue,
    pub(super) leader: Mutex<Leader>,
    publisher: Mutex<Publisher>,
    published: Condvar,
    /// The sequence numbers of the declared snapshots that are not merged yet, ascending.
    declared: Mutex<Vec<u64>>,
    /// Keys and values committed, and bytes of log records written for them, since the database was opened.
    /// Relaxed: figures for people.
    pub application_bytes: AtomicU64,
    pub logged_bytes: AtomicU64,
}

/// Groups in the order of the log that are not all visible yet.
#[derive(Default)]
struct Publisher {
    groups: VecDeque<Arc<Group>>,
    /// How many threads wait for a group to become visible: nobody is woken, by a call to the system, where
    /// nobody waits.
    waiting: usize,
}

/// What only the leader touches, or who takes its place for a moment.
pub(crate) struct Leader {
    pub(super) numbers: Numbers,
    pub(super) active: Arc<Memtable>,
    pub(super) conflicts: ConflictTable,
    pub(super) recent: RecentCommits,
    /// Transactions whose view is older lose: what was written before is not kept.
    pub(super) oldest_read: u64,
    /// The log segment that the last group went to.
    segment: u64,
    /// Whether the active memtable was seen to be half full: then the next one is asked for.
    half_full: bool,
    pub(super) to_wake: ToWake,
}

/// Threads that have got work. Woken only when the lock of [`Leader`] is given back: the system may give the
/// processor to who is woken, at once, and every writer would wait for that.
#[derive(Default)]
pub(super) struct ToWake {
    standby: bool,
    flush: bool,
}

/// What the next commit gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub next_seq: u64,
    pub next_snapshot_id: u64,
    pub last_time_micros: u64,
}

/// Where the numbers go on after recovery.
pub(crate) struct Start {
    pub next_seq: u64,
    pub next_snapshot_id: u64,
    pub last_time_micros: u64,
    pub active: Arc<Memtable>,
    /// The numbers of the declared snapshots that are not merged yet, ascending.
    pub declared: Vec<u64>,
    /// Whether each commit notes its time.
    pub notes_times: bool,
}

/// One log record's commits.
struct Group {
    last_seq: u64,
    /// Members that have not inserted their records yet.
    remaining: AtomicUsize,
}

/// A commit with its place, before its records are in the memtable.
pub(super) struct Accepted {
    request: Request,
    place: Place,
    memtable: Arc<Memtable>,
    group: Arc<Group>,
}

/// A commit of another thread that has its place.
struct Member {
    ticket: Arc<Ticket>,
    pending: Pending,
    place: Place,
}

/// What a leader does when it leads no more.
#[derive(Default)]
struct Afterwards {
    to_wake: ToWake,
    /// Small commits of others, to be put into the memtable.
    carried: Vec<(Arc<Ticket>, Accepted)>,
}

impl Committer {
    pub fn new(
        health: Arc<Health>,
        present: Arc<Present>,
        backlog: Arc<Backlog>,
        wal: Arc<Wal>,
        standby_wanted: Arc<Signal>,
        start: Start,
    ) -> Committer {
        Committer {
            health,
            present,
            backlog,
            wal,
            notes_times: start.notes_times,
            standby_wanted,
            running: Running::default(),
            queue: CommitQueue::default(),
            leader: Mutex::new(Leader {
                numbers: Numbers {
                    next_seq: start.next_seq,
                    next_snapshot_id: start.next_snapshot_id,
                    last_time_micros: start.last_time_micros,
                },
                active: start.active,
                conflicts: ConflictTable::new(),
                recent: RecentCommits::default(),
                oldest_read: 0,
                segment: 0,
                half_full: false,
                to_wake: ToWake::default(),
            }),
            publisher: Mutex::default(),
            published: Condvar::new(),
            declared: Mutex::new(start.declared),
            application_bytes: AtomicU64::new(0),
            logged_bytes: AtomicU64::new(0),
        }
    }

    /// Commits; returns when the commit is visible, and durable if it asked for that, and when the backlog
    /// lets the writer go on. It waits behind its commit and not before it, because until then it holds a
    /// view, and a merge can't use the pages again that a view may read.
    pub fn commit(&self, mut request: Request) -> Result<Committed> {
        self.health.check()?;
        request.marks.notes_time = self.notes_times;
        let encoded = record::encode(&request.marks, &request.writes);
        let bytes = encoded.bytes();
        record::check_size("a commit", bytes, COMMIT_BYTES_MAX)?;
        let place = match self.queue.join(Pending { request, encoded }) {
            Joined::Leads(own) => self.lead(own),
            Joined::Waits(ticket) => match self.queue.wait(&ticket, || self.health.is_poisoned()) {
                Some(Word::Lead(own)) => self.lead(*own),
                Some(Word::Accepted(accepted)) => Ok(self.complete(*accepted)),
                Some(Word::Inserted(place)) => Ok(place),
                Some(Word::Refused(error)) => Err(error),
                Some(Word::Try) => unreachable!("that is for the queue"),
                None => {
                    self.health.check()?;
                    unreachable!("once poisoned, always poisoned")
                }
            },
        }?;
        self.wait_visible(place.seq)?;
        let Place { seq, snapshot_id, .. } = place;
        // This commit stands, whatever fails now: the next one is told, because the database is poisoned.
        let _ = self.backlog.slow_down(bytes);
        Ok(Committed { seq: Seq(seq), snapshot: (snapshot_id != 0).then_some(SnapshotId(snapshot_id)) })
    }

    /// Leads one group, whose first is the thread's own commit, then hands leadership on.
    fn lead(&self, own: Pending) -> Result<Place> {
        let leadership = self.queue.lead();
        let others = self.queue.take_group(&own);
        // A panic must not leave the group unfinished for ever: others wait for it.
        let unfinished = PoisonOnUnwind(&self.health);
        let mut afterwards = Afterwards::default();
        let accepted = self.commit_group(own, others, &mut afterwards);
        drop(leadership);
        self.wake(afterwards.to_wake);
        let place = accepted.map(|accepted| self.complete(accepted));
        let inserted: Vec<_> = afterwards
            .carried
            .into_iter()
            .map(|(ticket, accepted)| (ticket, self.complete(accepted)))
            .collect();
        std::mem::forget(unfinished);
        // Only now, when nobody has to wait while threads are woken.
        inserted.into_iter().for_each(|(ticket, place)| ticket.tell(Word::Inserted(place)));
        place
    }

    /// Puts a commit into the memtable, and publishes its group if it is the last of it.
    fn complete(&self, accepted: Accepted) -> Place {
        let unfinished = PoisonOnUnwind(&self.health);
        self.insert(&accepted);
        self.finish(&accepted.group);
        std::mem::forget(unfinished);
        accepted.place
    }

    pub(super) fn wake(&self, to_wake: ToWake) {
        if to_wake.standby {
            self.standby_wanted.raise();
        }
        if to_wake.flush {
            self.backlog.wake();
        }
    }

    /// Gives each its place, and tells the others. Answers what became of the thread's own commit.
    fn commit_group(
        &self,
        own: Pending,
        others: Vec<Arc<Ticket>>,
        afterwards: &mut Afterwards,
    ) -> Result<Accepted> {
        let mut leader = lock(&self.leader);
        leader.prefetch(&own.request);
        // Given for good only when the log has the group.
        let mut numbers = leader.numbers;
        let mut own = own;
        let own_place = self
            .validate(&leader, &own.request, std::iter::empty())
            .map(|()| numbers.give_place(&own.request, &mut own.encoded));
        let mut members: Vec<Member> = Vec::with_capacity(others.len());
        for ticket in others {
            let Some(pending) = ticket.take() else {
                unreachable!("a ticket in the queue waits");
            };
            let mut pending = *pending;
            let own = own_place.as_ref().ok().map(|_| &own.request);
            let earlier = own.into_iter().chain(members.iter().map(|member| &member.pending.request));
            match self.validate(&leader, &pending.request, earlier) {
                Ok(()) => {
                    let place = numbers.give_place(&pending.request, &mut pending.encoded);
                    members.push(Member { ticket, pending, place });
                }
                Err(error) => ticket.tell(Word::Refused(error)),
            }
        }
        let several: Vec<&Pending>;
        let payloads = match &own_place {
            Ok(_) if members.is_empty() => &[&own][..],
            placed => {
                let own = placed.as_ref().ok().map(|_| &own);
                several = own.into_iter().chain(members.iter().map(|member| &member.pending)).collect();
                &several
            }
        };
        if payloads.is_empty() {
            return own_place.map(|_| unreachable!("it would be logged"));
        }
        let sync = own_place.is_ok() && own.request.durability == Durability::Sync
            || members.iter().any(|member| member.pending.request.durability == Durability::Sync);
        let logged = self.log(&mut leader, payloads, sync);
        afterwards.to_wake = std::mem::take(&mut leader.to_wake);
        if let Err(error) = logged {
            for member in members {
                member.ticket.tell(Word::Refused(error.clone()));
            }
            return own_place.and(Err(error));
        }
        let logged: usize = payloads.iter().map(Payload::bytes).sum();
        self.logged_bytes.fetch_add(logged as u64, Ordering::Relaxed);
        leader.numbers = numbers;
        let group =
            Arc::new(Group { last_seq: numbers.next_seq - 1, remaining: AtomicUsize::new(payloads.len()) });
        lock(&self.publisher).groups.push_back(group.clone());
        let keep_recent = self.keeps_recent(&mut leader);
        let own =
            own_place.map(|place| self.accept(&mut leader, own.request, place, group.clone(), keep_recent));
        for Member { ticket, pending, place } in members {
            let is_small = pending.encoded.bytes() <= CARRIED_BYTES_MAX;
            let accepted = self.accept(&mut leader, pending.request, place, group.clone(), keep_recent);
            match is_small {
                true => afterwards.carried.push((ticket, accepted)),
                false => ticket.tell(Word::Accepted(Box::new(accepted))),
            }
        }
        own
    }

    /// Whether next commits' write sets may be asked for. Forgets those that nobody asks for any more.
    pub(super) fn keeps_recent(&self, leader: &mut Leader) -> bool {
        let oldest = self.running.oldest();
        leader.recent.forget_up_to(oldest.unwrap_or(u64::MAX));
        oldest.is_some()
    }

    /// Notes what later commits are validated against.
    pub(super) fn note(&self, leader: &mut Leader, request: &Request, seq: u64, keep_recent: bool) {
        for hash in &request.hashes {
            leader.conflicts.note(*hash, seq);
        }
        let drops_table = matches!(request.marks.table_change, Some(TableChange::Drop { .. }));
        if keep_recent {
            let dropped_table = drops_table.then(|| request.tables.first().map(Table::id)).flatten();
            leader.recent.push(RecentCommit { seq, writes: request.writes.clone(), dropped_table });
        }
        if drops_table {
            request.tables.iter().for_each(|table| table.set_dropped(seq));
        }
    }

    /// The log has this commit.
    fn accept(
        &self,
        leader: &mut Leader,
        request: Request,
        place: Place,
        group: Arc<Group>,
        keep_recent: bool,
    ) -> Accepted {
        self.note(leader, &request, place.seq, keep_recent);
        if place.snapshot_id != 0 {
            self.note_declared(place.seq);
        }
        Accepted { request, place, memtable: leader.active.clone(), group }
    }

    /// Writes the group to the log, into a new memtable's part of it if the active one is full.
    fn log(&self, leader: &mut Leader, payloads: &[&Pending], sync: bool) -> Result<()> {
        self.health.check()?;
        if leader.active.is_full() {
            self.rotate(leader)?;
        }
        let first_seq = leader.numbers.next_seq;
        let appended = match sync {
            true => self.wal.append_and_sync(first_seq, payloads),
            false => self.wal.append(first_seq, payloads),
        };
        let segment = appended.map_err(|error| self.log_failed(error))?;
        let half_full = !leader.half_full && leader.active.is_half_full();
        if half_full || segment != leader.segment {
            leader.half_full |= half_full;
            leader.segment = segment;
            leader.to_wake.standby = true;
        }
        Ok(())
    }

    /// What a failure of the log means. Where the log itself cannot go on, neither can the database: nobody
    /// knows what is on the disk. A log that could not get a new segment (the disk is full, say) is
    /// unharmed, and so is the database.
    pub(super) fn log_failed(&self, error: Error) -> Error {
        if self.wal.is_failed() {
            self.health.poison(format!("the write-ahead log failed: {error}"));
        }
        error
    }

    /// Freezes the active memtable and puts a new one in its place.
    pub(super) fn rotate(&self, leader: &mut Leader) -> Result<()> {
        let next_segment = self.wal.roll().map_err(|error| self.log_failed(error))?;
        let memtable = Arc::new(self.backlog.next_memtable());
        // Published before any commit in it becomes visible: see `present`.
        self.present.publish(|layers| layers.with_memtable(memtable.clone()));
        let memtable = std::mem::replace(&mut leader.active, memtable);
        leader.half_full = false;
        self.backlog.push(Frozen {
            memtable,
            last_seq: leader.numbers.next_seq - 1,
            next_segment,
            next_snapshot_id: leader.numbers.next_snapshot_id,
            last_time_micros: leader.numbers.last_time_micros,
        });
        leader.to_wake.flush = true;
        Ok(())
    }

    /// Registers a serializable transaction and takes its view. From here on the leader keeps the write sets
    /// that it may have to be validated against.
    pub fn begin_serializable(&self) -> Result<(Snapshot, u64)> {
        let assigned = {
            let leader = lock(&self.leader);
            let assigned = leader.numbers.next_seq - 1;
            self.running.add(assigned);
            assigned
        };
        // What was assigned before is not kept, so the view must include it.
        if let Err(error) = self.wait_visible(assigned) {
            self.running.remove(assigned);
            return Err(error);
        }
        Ok((self.present.snapshot(), assigned))
    }

    /// The sequence numbers of declared snapshots in an interval, ascending.
    pub fn declared_between(&self, from: u64, to: u64) -> Vec<u64> {
        let declared = lock(&self.declared);
        let (start, end) =
            (declared.partition_point(|seq| *seq < from), declared.partition_point(|seq| *seq < to));
        declared[start..end].to_vec()
    }

    /// Everything before `seq` is merged: the declared snapshots there are found in the history.
    pub fn forget_declared_before(&self, seq: u64) {
        let mut declared = lock(&self.declared);
        let end = declared.partition_point(|declared| *declared < seq);
        declared.drain(..end);
    }

    /// A snapshot was declared of the newest commit.
    pub fn note_declared(&self, seq: u64) {
        lock(&self.declared).push(seq);
    }

    /// These snapshots are deleted, visibly and durably: nothing more needs to be kept for them.
    pub fn forget_declared(&self, seqs: &[u64]) {
        lock(&self.declared).retain(|declared| seqs.binary_search(declared).is_err());
    }

    pub(super) fn database(&self) -> u64 {
        self.present.context().tables.database()
    }

    /// Puts a commit's records into the memtable.
    fn insert(&self, accepted: &Accepted) {
        let Accepted { request, place, memtable, .. } = accepted;
        self.application_bytes.fetch_add(request.writes.bytes() as u64, Ordering::Relaxed);
        request.writes.insert_into(memtable, place.seq, &request.hashes);
        record::insert_system_records(memtable, &request.marks, *place, self.present.context().hash_seed);
    }

    /// One member of the group is done; the last one publishes whatever is whole.
    fn finish(&self, group: &Group) {
        // AcqRel: the member that brings it to zero has seen the insertions of all others, and publishes
        // them.
        if group.remaining.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut publisher = lock(&self.publisher);
        // Acquire: as above, for groups that others finished while an earlier one was not.
        while publisher.groups.front().is_some_and(|group| group.remaining.load(Ordering::Acquire) == 0) {
            if let Some(group) = publisher.groups.pop_front() {
                self.present.set_visible(group.last_seq);
            }
        }
        let waiting = publisher.waiting;
        drop(publisher);
        if waiting > 0 {
            self.published.notify_all();
        }
    }

    /// Waits until all commits up to `seq` are whole.
    pub fn wait_visible(&self, seq: u64) -> Result<()> {
        if look(|| (self.present.visible_seq() >= seq).then_some(())).is_some() {
            return Ok(());
        }
        let mut publisher = lock(&self.publisher);
        publisher.waiting += 1;
        let mut healthy = Ok(());
        while healthy.is_ok() && self.present.visible_seq() < seq {
            publisher = sleep(&self.published, publisher);
            healthy = self.health.check();
        }
        publisher.waiting -= 1;
        if self.present.visible_seq() >= seq { Ok(()) } else { healthy }
    }
}

impl Leader {
    /// Asks the processor to fetch what the commit will be looked up in and inserted into: it comes while the log
    /// is written.
    fn prefetch(&self, request: &Request) {
        for hash in request.hashes.iter().take(PREFETCH_WRITES) {
            self.conflicts.prefetch(*hash);
            self.active.prefetch(*hash);
        }
    }
}

impl Numbers {
    /// Gives a commit the next place, and writes that into its record.
    fn give_place(&mut self, request: &Request, encoded: &mut Encoded) -> Place {
        let place = self.place(request);
        encoded.set_place(place);
        *self = self.after(place);
        place
    }

    fn place(&self, request: &Request) -> Place {
        let declares = request.marks.declaration.is_some();
        Place {
            seq: self.next_seq,
            // Clocks may be set back; the times of commits are not, not even within a group.
            time_micros: rows::micros(SystemTime::now()).max(self.last_time_micros),
            snapshot_id: if declares { self.next_snapshot_id } else { 0 },
        }
    }

    fn after(self, place: Place) -> Numbers {
        Numbers {
            next_seq: place.seq + 1,
            next_snapshot_id: self.next_snapshot_id + u64::from(place.snapshot_id != 0),
            last_time_micros: place.time_micros,
        }
    }
}

/// A panic in the middle of a commit leaves others waiting for what will not come: they must learn of it.
struct PoisonOnUnwind<'a>(&'a Health);

impl Drop for PoisonOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.poison("a commit panicked");
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
