//! The past: declared snapshots, what is kept for them, and how a view of one is opened.
//!
//! Owns: the rows of the history table, the rule of what a merge must keep, and opening past views. Promises:
//! every declared snapshot reads exactly what the database held at its commit, for ever, and so does every commit
//! while it lies in the continuous window; a past view is an ordinary view. May call: snapshot, run, base.
//!
//! Bases are key frames, history runs are the deltas between them. A merge that takes the base from `from` to
//! `to` writes one row for the interval `[from, to)`, if any snapshot was declared in it: the key frame at
//! `from` (or none, if the interval before leads on to this one) and the runs with the versions that the
//! interval's snapshots see. A snapshot at `s` is then read through the runs of its interval, those of the
//! intervals before it back to the nearest key frame, and that key frame, all as of `s`. To all this, a commit in the
//! window is a declared snapshot.

mod declared;
pub(crate) mod of_key;
pub(crate) mod past;
pub(crate) mod plan;
pub(crate) mod prune;
pub(crate) mod retention;
pub(crate) mod visibility;

use std::time::SystemTime;

use crate::base::BaseRoot;
use crate::codec::Reader;
use crate::ids::{Seq, SnapshotId};
use crate::limits::RUNS_MAX;
use crate::run::RunMeta;
use crate::utc::utc;

/// How a declared snapshot is named by who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRef {
    /// By its number.
    Id(SnapshotId),
    /// By the name that it was given.
    Name(String),
    /// As of this time. Where a view is opened, and the time lies in the [window](crate::Options::window): the latest
    /// commit at or before it. Else the latest snapshot declared at or before it.
    Time(SystemTime),
    /// As of this commit: one that a snapshot was declared of or, where a view is opened, any in the window.
    Seq(Seq),
}

impl From<Seq> for SnapshotRef {
    fn from(seq: Seq) -> Self {
        SnapshotRef::Seq(seq)
    }
}

impl From<SnapshotId> for SnapshotRef {
    fn from(id: SnapshotId) -> Self {
        SnapshotRef::Id(id)
    }
}

impl From<&str> for SnapshotRef {
    fn from(name: &str) -> Self {
        SnapshotRef::Name(name.to_owned())
    }
}

impl From<String> for SnapshotRef {
    fn from(name: String) -> Self {
        SnapshotRef::Name(name)
    }
}

impl From<&String> for SnapshotRef {
    fn from(name: &String) -> Self {
        SnapshotRef::Name(name.clone())
    }
}

impl From<SystemTime> for SnapshotRef {
    fn from(time: SystemTime) -> Self {
        SnapshotRef::Time(time)
    }
}

impl From<&SnapshotInfo> for SnapshotRef {
    fn from(info: &SnapshotInfo) -> Self {
        SnapshotRef::Id(info.id)
    }
}

impl std::fmt::Display for SnapshotRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SnapshotRef::Id(id) => write!(f, "with id {id}"),
            SnapshotRef::Name(name) => write!(f, "named {name:?}"),
            SnapshotRef::Time(time) => {
                write!(f, "at or before {}", utc(*time))
            }
            SnapshotRef::Seq(seq) => write!(f, "of commit {seq}"),
        }
    }
}

/// A declared snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its number.
    pub id: SnapshotId,
    /// Unique among the living snapshots.
    pub name: Option<String>,
    /// The commit whose state it is.
    pub seq: Seq,
    /// When it was declared.
    pub time: SystemTime,
    /// Whatever the application gave along.
    pub metadata: Vec<u8>,
    /// Who holds it, so that it may not be deleted. Where the database is open for writing, other processes that read
    /// it just now are among them, as `process N`.
    pub holders: Vec<String>,
}

/// A row of the history table: what is kept of one merged interval. Its key is the interval's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The interval's start: the sequence number of the base that the merge began with.
    pub from: u64,
    /// That base, if it is kept.
    pub key_frame: Option<BaseRoot>,
    /// What changed in it, newest first: one run that was written for it, or those that were merged.
    pub runs: Vec<RunMeta>,
    /// For how many snapshots, and commits of the window, the runs were kept: when most of them are gone, they are
    /// worth making anew.
    pub snapshots: u64,
}

const ROW_VERSION: u8 = 3;
const HAS_KEY_FRAME: u8 = 1;

impl Interval {
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.runs.len() <= RUNS_MAX, "no merge takes more");
        let flags = if self.key_frame.is_some() { HAS_KEY_FRAME } else { 0 };
        let mut out = vec![ROW_VERSION, flags, self.runs.len() as u8];
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.snapshots.to_le_bytes());
        if let Some(root) = &self.key_frame {
            out.extend_from_slice(&root.encode());
        }
        self.runs.iter().for_each(|run| run.encode(&mut out));
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Interval> {
        let mut reader = Reader::new(bytes);
        let (version, flags, runs) = (reader.u8()?, reader.u8()?, usize::from(reader.u8()?));
        let (from, snapshots) = (reader.u64()?, reader.u64()?);
        if version != ROW_VERSION || flags & !HAS_KEY_FRAME != 0 || runs > RUNS_MAX {
            return None;
        }
        let key_frame = if flags & HAS_KEY_FRAME != 0 {
            Some(BaseRoot::decode(reader.bytes(BaseRoot::BYTES)?.try_into().ok()?)?)
        } else {
            None
        };
        let runs = (0..runs).map(|_| RunMeta::decode(&mut reader)).collect::<Option<_>>()?;
        (reader.remaining() == 0).then_some(Interval { from, key_frame, runs, snapshots })
    }
}
