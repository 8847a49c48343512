//! The one error type. Each variant carries what a person needs to act.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::ids::{ResumePoint, Seq, SnapshotId, Window};
use crate::utc::utc;

/// What the engine answers.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong. `Clone`, because one failed sync fails every commit of its group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another transaction committed a change to this key (or to the range that was read) first.
    Conflict {
        /// The table's name.
        table: String,
        /// The key, or the one in the range that was read.
        key: Vec<u8>,
    },
    /// No declared snapshot answers to this.
    SnapshotNotFound {
        /// How it was asked for, in words.
        snapshot: String,
        /// What became of it, if there was one.
        deleted: Option<SnapshotDeletion>,
    },
    /// Nothing is kept as of this commit or time: no snapshot of it was declared, and it does not lie in the
    /// [window](crate::Options::window).
    OutsideWindow {
        /// How it was asked for, in words.
        wanted: String,
        /// The window, if the database has one.
        window: Option<Window>,
    },
    /// The snapshot or transaction was held for longer than `Options::max_snapshot_age`, and what it kept was
    /// let go. Begin a new one.
    SnapshotExpired {
        /// The last commit that it saw.
        seq: Seq,
        /// How long it had been held when it was ended.
        age: Duration,
        /// How long it may be held.
        limit: Duration,
    },
    /// The snapshot may not be deleted.
    SnapshotHeld {
        /// The snapshot's id.
        snapshot: SnapshotId,
        /// Who holds it.
        holders: Vec<String>,
    },
    /// Another declared snapshot has this name.
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        snapshot: SnapshotId,
    },
    /// The table does not exist, or was dropped.
    TableNotFound {
        /// The table's name.
        table: String,
    },
    /// A file does not hold what was written to it.
    Corruption {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes; 0 if the damage has no one place.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// Another process has the database open for writing, or reads it in a way that does not allow anybody to write
    /// (see `Options::read_only`); its process id, where the lock file names it.
    Locked {
        /// The lock file, or the lease of a process that reads.
        path: PathBuf,
        /// The process id.
        owner: Option<u32>,
    },
    /// What the past needs lies in a history directory that cannot be reached. The present goes on without it; what
    /// was asked works again once the directory is back, or is named where it is now.
    HistoryUnavailable {
        /// The directory in which it was looked for.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// There is no database here, and none was to be made.
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// The directory was to be made, but is there and holds something.
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The database was opened for reading only.
    ReadOnly {
        /// The directory or file.
        path: PathBuf,
    },
    /// Something exceeds a limit. Sizes in bytes, or a count where `what` says so.
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        size: u64,
        /// How large it may be.
        limit: u64,
    },
    /// An argument makes no sense.
    InvalidArgument {
        /// Why not.
        reason: String,
    },
    /// The files were written by a version of Bygone that this one does not understand.
    Incompatible {
        /// The file.
        path: PathBuf,
        /// Its format's version.
        found: u32,
        /// The newest version that this program understands.
        supported: u32,
    },
    /// A stream that was received ended before it was whole. What has come is kept.
    StreamIncomplete {
        /// Up to where it is there; `None` if nothing is.
        at: Option<ResumePoint>,
    },
    /// The operating system refused.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried, as a verb.
        operation: &'static str,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// An earlier failure makes it unsafe to go on writing; reading what is there may still work. Reopen to
    /// recover.
    Poisoned {
        /// The first failure.
        cause: String,
    },
}

/// When and why a snapshot was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDeletion {
    /// When.
    pub time: SystemTime,
    /// By which rule, in its words; empty if somebody asked for just this.
    pub rule: String,
}

impl Error {
    /// Whether this is the system's word that this process may not write here: who only reads may be let in.
    pub fn forbids_writing(&self) -> bool {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self, Error::Io { source, .. } if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
    }

    pub(crate) fn corruption(path: &Path, offset: u64, reason: impl Into<String>) -> Self {
        Error::Corruption { path: path.to_owned(), offset, reason: reason.into() }
    }

    pub(crate) fn io(path: &Path, operation: &'static str, source: std::io::Error) -> Self {
        Error::Io { path: path.to_owned(), operation, source: Arc::new(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Conflict { table, key } => {
                write!(
                    f,
                    "conflict: another transaction changed key {:?} of table {table:?} first",
                    key.escape_ascii().to_string()
                )
            }
            Error::SnapshotExpired { seq, age, limit } => write!(
                f,
                "the snapshot of commit {seq} was held for {:.3} s; the limit is {:.3} s",
                age.as_secs_f64(),
                limit.as_secs_f64()
            ),
            Error::SnapshotNotFound { snapshot, deleted: None } => {
                write!(f, "no declared snapshot {snapshot}")
            }
            Error::SnapshotNotFound { snapshot, deleted: Some(SnapshotDeletion { time, rule }) } => {
                write!(f, "no declared snapshot {snapshot}: it was deleted at {}", utc(*time))?;
                if rule.is_empty() { Ok(()) } else { write!(f, " by the rule {rule:?}") }
            }
            Error::OutsideWindow { wanted, window } => {
                write!(f, "nothing is kept {wanted}: no snapshot was declared of it, and ")?;
                match window {
                    None => write!(f, "the database has no window of commits that can be read without"),
                    Some(Window { first, since, last, .. }) => write!(
                        f,
                        "the window of commits that can be read without is from commit {first} of {} to commit {last}",
                        utc(*since)
                    ),
                }
            }
            Error::SnapshotHeld { snapshot, holders } => {
                write!(f, "snapshot {snapshot} is held by {holders:?} and may not be deleted")
            }
            Error::NameTaken { name, snapshot } => {
                write!(f, "the name {name:?} is taken by snapshot {snapshot}")
            }
            Error::TableNotFound { table } => write!(f, "no table {table:?} (never made, or dropped)"),
            Error::Corruption { path, offset, reason } => {
                write!(f, "{} is damaged at offset {offset}: {reason}", path.display())
            }
            Error::Locked { path, owner: Some(pid) } => {
                write!(f, "{} is open in process {pid}", path.display())
            }
            Error::Locked { path, owner: None } => write!(f, "{} is open in another process", path.display()),
            Error::HistoryUnavailable { path, cause } => {
                write!(f, "the past cannot be read: nothing of it is found in {}: {cause}", path.display())
            }
            Error::NotFound { path } => write!(f, "there is no database at {}", path.display()),
            Error::NotEmpty { path } => write!(f, "{} is there already and is not empty", path.display()),
            Error::ReadOnly { path } => write!(f, "{} is open for reading only", path.display()),
            Error::TooLarge { what, size, limit } => {
                write!(f, "{what} is too large: {size}, the limit is {limit}")
            }
            Error::InvalidArgument { reason } => write!(f, "invalid argument: {reason}"),
            Error::Incompatible { path, found, supported } => {
                write!(
                    f,
                    "{} has format version {found}; this program understands {supported}",
                    path.display()
                )
            }
            Error::StreamIncomplete { at: None } => write!(f, "the stream ended before it began"),
            Error::StreamIncomplete { at: Some(at) } => {
                write!(f, "the stream ended before it was whole; the rest can be sent from {at} on")
            }
            Error::Io { path, operation, source } => {
                write!(f, "cannot {operation} {}: {source}", path.display())
            }
            Error::Poisoned { cause } => write!(f, "the database stopped after a failure: {cause}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
