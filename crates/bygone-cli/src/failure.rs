//! What ends a command early, and the exit code that says so.
//!
//! Owns: [`Failure`] and the meaning of the exit codes. Promises: every way to fail is one line on standard
//! error. May call: nothing but the error types of the engine and of SQL.

use std::fmt::Display;
use std::io;
use std::path::Path;

use bygone::Error;
use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_ERROR_SNAPSHOT, SQLITE_IOERR_DATA};

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
    /// What SQLite finds in an SQL database is damaged.
    DamagedSql(String),
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

    /// The same, of a line of a file; of standard input where it has no name.
    pub fn at_line(self, file: &str, number: u64) -> Self {
        let at = |text: String| match file {
            "" => format!("line {number}: {text}"),
            file => format!("{file}, line {number}: {text}"),
        };
        match self {
            Failure::No(text) => Failure::No(at(text)),
            Failure::Usage(text) => Failure::Usage(at(text)),
            Failure::DamagedSql(text) => Failure::DamagedSql(at(text)),
            Failure::System(text) => Failure::System(at(text)),
            Failure::Damaged(_) | Failure::Closed => self,
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::No(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Damaged(_) | Failure::DamagedSql(_) => 3,
            Failure::System(_) => 4,
        }
    }

    /// The line for standard error; `None` if there is nothing to say.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Closed => None,
            Failure::No(text) | Failure::Usage(text) | Failure::DamagedSql(text) | Failure::System(text) => {
                Some(text.clone())
            }
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

impl From<bygone_sql::Error> for Failure {
    fn from(error: bygone_sql::Error) -> Self {
        match error {
            bygone_sql::Error::Sqlite(error) => error.into(),
            bygone_sql::Error::Database { reason, source } => of_sqlite(&source, reason),
            bygone_sql::Error::Engine(error) => error.into(),
            bygone_sql::Error::File { path, operation, source } => Failure::file(&path, operation, source),
            bygone_sql::Error::Exists { .. } => Failure::No(error.to_string()),
            _ => Failure::Usage(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let text = match &error {
            // Without the whole statement, which the user has before him.
            rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
            other => other.to_string(),
        };
        of_sqlite(&error, text)
    }
}

fn of_sqlite(error: &rusqlite::Error, text: String) -> Failure {
    let error = match error {
        rusqlite::Error::SqliteFailure(error, _) | rusqlite::Error::SqlInputError { error, .. } => error,
        _ => return Failure::Usage(text),
    };
    match error.code {
        _ if error.extended_code == SQLITE_IOERR_DATA => Failure::DamagedSql(text),
        _ if error.extended_code == SQLITE_ERROR_SNAPSHOT => Failure::No(text),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Failure::DamagedSql(text),
        ErrorCode::ConstraintViolation | ErrorCode::CannotOpen => Failure::No(text),
        ErrorCode::PermissionDenied
        | ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::OutOfMemory
        | ErrorCode::OperationInterrupted
        | ErrorCode::SystemIoFailure
        | ErrorCode::DiskFull
        | ErrorCode::FileLockingProtocolFailed => Failure::System(text),
        _ => Failure::Usage(text),
    }
}
