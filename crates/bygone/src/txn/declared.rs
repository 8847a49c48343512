//! Validation of what a commit does to declared snapshots.
//!
//! Owns: the rules. Promises: living snapshots' names are unique; what is deleted or held is there; what is held is
//! not deleted. May call: snapshot, history, and the committer's waiting.

use super::commit::{Committer, Leader, Request};
use super::record::{Declaration, Marks, SnapshotChange};
use crate::error::{Error, Result};
use crate::history::SnapshotRef;
use crate::history::past;
use crate::ids::SnapshotId;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::{self, SnapshotRow};

impl Committer {
    pub(super) fn validate_snapshots<'r>(
        &self,
        leader: &Leader,
        marks: &Marks,
        earlier: impl Iterator<Item = &'r Request> + Clone,
    ) -> Result<()> {
        if let Some(Declaration { name: Some(name), .. }) = &marks.declaration {
            self.validate_name(leader, name, earlier)?;
        }
        // Such a commit is the only one of its group.
        match &marks.snapshot_change {
            None => Ok(()),
            Some(SnapshotChange::Delete { snapshots, .. }) => {
                let now = self.newest_view(leader)?;
                snapshots.iter().try_for_each(|doomed| {
                    check_is_there(&now, doomed.id)?;
                    let holders = past::holders(&now, doomed.id)?;
                    if holders.is_empty() {
                        return Ok(());
                    }
                    Err(Error::SnapshotHeld { snapshot: SnapshotId(doomed.id), holders })
                })
            }
            Some(SnapshotChange::Hold { id, .. } | SnapshotChange::LetGo { id, .. }) => {
                check_is_there(&self.newest_view(leader)?, *id)
            }
        }
    }

    /// A snapshot's name must be new among the living.
    fn validate_name<'r>(
        &self,
        leader: &Leader,
        name: &str,
        earlier: impl Iterator<Item = &'r Request>,
    ) -> Result<()> {
        let taken = |id| Error::NameTaken { name: name.to_owned(), snapshot: SnapshotId(id) };
        let mut declared = earlier.filter_map(|request| request.marks.declaration.as_ref());
        if let Some(index) = declared.position(|other| other.name.as_deref() == Some(name)) {
            return Err(taken(leader.numbers.next_snapshot_id + index as u64));
        }
        let now = self.newest_view(leader)?;
        match now.system_row(rows::SNAPSHOT_NAMES, name.as_bytes(), rows::decode_id)? {
            Some(id) if is_there(&now, id)? => Err(taken(id)),
            _ => Ok(()),
        }
    }

    /// A view of everything that has its place.
    fn newest_view(&self, leader: &Leader) -> Result<Snapshot> {
        self.wait_visible(leader.numbers.next_seq - 1)?;
        Ok(self.present.snapshot())
    }
}

fn is_there(now: &Snapshot, id: u64) -> Result<bool> {
    Ok(now.system_row(rows::SNAPSHOTS, &id.to_be_bytes(), SnapshotRow::decode)?.is_some())
}

fn check_is_there(now: &Snapshot, id: u64) -> Result<()> {
    if is_there(now, id)? {
        return Ok(());
    }
    let deleted = past::deletion(now, id)?;
    Err(Error::SnapshotNotFound { snapshot: SnapshotRef::Id(SnapshotId(id)).to_string(), deleted })
}
