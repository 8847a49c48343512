//! A standstill: nobody commits while somebody puts one commit together in another way than through the log.
//!
//! Owns: the leader's place for as long as it lasts. Promises: what was committed before is visible, in the order
//! of its numbers; who waits to commit goes on behind the standstill; if it is dropped early, nothing happened.
//! May call: the committer, wal, snapshot.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use super::commit::{Committer, Leader, Request, lock};
use super::record::Place;
use crate::base::BaseVersion;
use crate::error::Result;
use crate::snapshot::rows;

pub(crate) struct Standstill<'c> {
    committer: &'c Committer,
    /// Taken by [`drop`], which wakes others only when the lock is given back.
    leader: Option<MutexGuard<'c, Leader>>,
}

impl Committer {
    /// Waits until all that was committed so far is visible, and lets nobody commit until the standstill ends.
    pub fn stand_still(&self) -> Result<Standstill<'_>> {
        self.health.check()?;
        let leader = lock(&self.leader);
        self.wait_visible(leader.numbers.next_seq - 1)?;
        Ok(Standstill { committer: self, leader: Some(leader) })
    }

    /// Freezes the active memtable if there is anything in it, and waits until all that was committed so far
    /// is visible. Answers the last of these commits.
    pub fn freeze(&self) -> Result<u64> {
        let mut standstill = self.stand_still()?;
        standstill.freeze()?;
        Ok(standstill.last_seq())
    }
}

impl Standstill<'_> {
    fn leader(&mut self) -> &mut Leader {
        self.leader.as_mut().expect("only taken when it is dropped")
    }

    /// The last commit there is.
    pub fn last_seq(&self) -> u64 {
        self.leader.as_ref().map_or(0, |leader| leader.numbers.next_seq - 1)
    }

    /// Whether a transaction may commit now: as for a commit through the log.
    pub fn validate(&self, request: &Request) -> Result<()> {
        let leader = self.leader.as_ref().expect("only taken when it is dropped");
        self.committer.validate(leader, request, std::iter::empty())
    }

    /// Freezes the active memtable if there is anything in it.
    pub fn freeze(&mut self) -> Result<()> {
        let committer = self.committer;
        let leader = self.leader();
        if leader.active.is_empty() { Ok(()) } else { committer.rotate(leader) }
    }

    /// The place of a commit that comes next.
    pub fn next_place(&mut self) -> Place {
        let numbers = self.leader().numbers;
        Place {
            seq: numbers.next_seq,
            time_micros: rows::micros(SystemTime::now()).max(numbers.last_time_micros),
            snapshot_id: numbers.next_snapshot_id,
        }
    }

    /// The log segment that everything from here on goes to.
    pub fn roll_log(&self) -> Result<u64> {
        self.committer.wal.roll().map_err(|error| self.committer.log_failed(error))
    }

    /// The next commit has been made, durably: `base` holds it and everything before it, and the log goes on
    /// behind it. Makes it visible. `next_snapshot_id` is given next.
    ///
    /// What a transaction wrote, later ones are validated against. Of any other bulk commit nobody keeps what it
    /// wrote, so transactions that began before it lose: what they have read may be different now.
    pub fn committed(
        mut self,
        place: Place,
        next_snapshot_id: u64,
        base: Arc<BaseVersion>,
        transaction: Option<&Request>,
    ) {
        let committer = self.committer;
        let leader = self.leader();
        assert_eq!(place.seq, leader.numbers.next_seq, "nobody committed meanwhile");
        assert!(leader.active.is_empty(), "everything before it is in the base");
        committer.wal.skip_to(place.seq + 1);
        leader.numbers.next_seq = place.seq + 1;
        leader.numbers.next_snapshot_id = next_snapshot_id;
        leader.numbers.last_time_micros = place.time_micros;
        match transaction {
            Some(request) => {
                let keep_recent = committer.keeps_recent(leader);
                committer.note(leader, request, place.seq, keep_recent);
                // Relaxed: a figure for people.
                let bytes = request.writes.bytes() as u64;
                committer.application_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            None => leader.oldest_read = place.seq,
        }
        committer.present.publish_at(place.seq, |layers| layers.with_merged(base, &[], place.seq));
    }
}

impl Drop for Standstill<'_> {
    fn drop(&mut self) {
        let Some(mut leader) = self.leader.take() else { return };
        let to_wake = std::mem::take(&mut leader.to_wake);
        drop(leader);
        self.committer.wake(to_wake);
    }
}
