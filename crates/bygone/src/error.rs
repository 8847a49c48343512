//! The one error type. Each variant carries what a person needs to act.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ids::SnapshotId;

pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong. `Clone`, because one failed sync fails every commit of its group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another transaction committed a change to this key (or to the range that was read) first.
    Conflict { table: String, key: Vec<u8> },
    /// No declared snapshot answers to this.
    SnapshotNotFound { snapshot: String },
    /// The snapshot may not be deleted.
    SnapshotHeld { snapshot: SnapshotId },
    /// Another declared snapshot has this name.
    NameTaken { name: String, snapshot: SnapshotId },
    /// The table does not exist, or was dropped.
    TableNotFound { table: String },
    /// A file does not hold what was written to it.
    Corruption { path: PathBuf, offset: u64, reason: String },
    /// Another process has the database open; its process id, where the lock file names it.
    Locked { path: PathBuf, owner: Option<u32> },
    /// There is no database here, and none was to be made.
    NotFound { path: PathBuf },
    /// The database was opened for reading only.
    ReadOnly { path: PathBuf },
    /// Something exceeds a limit. Sizes in bytes, or a count where `what` says so.
    TooLarge { what: &'static str, size: u64, limit: u64 },
    /// An argument makes no sense.
    InvalidArgument { reason: String },
    /// The files were written by a version of Bygone that this one does not understand.
    Incompatible { path: PathBuf, found: u32, supported: u32 },
    /// The operating system refused.
    Io { path: PathBuf, operation: &'static str, source: Arc<std::io::Error> },
    /// An earlier failure makes it unsafe to go on writing; reading what is there may still work. Reopen to recover.
    Poisoned { cause: String },
}

impl Error {
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
            Error::SnapshotNotFound { snapshot } => write!(f, "no declared snapshot {snapshot}"),
            Error::SnapshotHeld { snapshot } => {
                write!(f, "snapshot {snapshot} is held and may not be deleted")
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
            Error::NotFound { path } => write!(f, "there is no database at {}", path.display()),
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
