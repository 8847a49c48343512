//! What ends a command early, and the exit code that says so.
//!
//! Owns: [`Failure`] and the meaning of the exit codes. Promises: every way to fail is one line on standard
//! error. May call: nothing but the engine's error type.

use std::fmt::Display;
use std::io;
use std::path::Path;

use bygone::Error;

pub type Result<T> = std::result::Result<T, Failure>;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The answer is no: no such key, table or snapshot; the name is taken; another commit came first.
    No(String),
    /// The command line or the input makes no sense. The text says what would be right.
    Usage(String),
    /// The database is damaged.
    Damaged(Error),
    /// The system or another process stood in the way: a full disk, a lock, an older format.
    System(String),
    /// Whoever read standard output has gone (`bygone scan ... | head`). Nothing is wrong.
    Closed,
}

impl Failure {
    pub fn usage(text: impl Display) -> Self {
        Failure::Usage(text.to_string())
    }

    /// A file that is not the database's: an import, an export.
    pub fn file(path: &Path, operation: &str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Failure::Usage(format!("{} does not exist", path.display())),
            _ => Failure::System(format!("cannot {operation} {}: {error}", path.display())),
        }
    }

    /// What standard output answered.
    pub fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::System(format!("cannot write to standard output: {error}")),
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::No(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Damaged(_) => 3,
            Failure::System(_) => 4,
        }
    }

    /// The line for standard error; `None` if there is nothing to say.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Closed => None,
            Failure::No(text) | Failure::Usage(text) | Failure::System(text) => Some(text.clone()),
            Failure::Damaged(error) => Some(error.to_string()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Corruption { .. } => Failure::Damaged(error),
            Error::Conflict { .. }
            | Error::SnapshotNotFound { .. }
            | Error::OutsideWindow { .. }
            | Error::SnapshotHeld { .. }
            | Error::NameTaken { .. }
            | Error::TableNotFound { .. } => Failure::No(error.to_string()),
            Error::Locked { .. } => {
                Failure::System(format!("{error}; beside it a database can be read, but not written"))
            }
            Error::NotFound { .. }
            | Error::NotEmpty { .. }
            | Error::TooLarge { .. }
            | Error::InvalidArgument { .. } => Failure::Usage(error.to_string()),
            _ => Failure::System(error.to_string()),
        }
    }
}
