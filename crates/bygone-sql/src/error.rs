//! What can go wrong.
//!
//! Owns: [`Error`]. Promises: where the database beneath SQLite failed, its own words are there. May call: nothing.

use std::path::PathBuf;
use std::{fmt, io};

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong here. What goes wrong later, in a connection, is a [`rusqlite::Error`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// SQLite refused.
    Sqlite(rusqlite::Error),
    /// SQLite refused because the database beneath it did.
    Database {
        /// Why, in the words of the database.
        reason: String,
        /// What SQLite made of it.
        source: rusqlite::Error,
    },
    /// A statement cannot be run as it is.
    Statement {
        /// Why not.
        reason: String,
    },
    /// The Bygone database refused.
    Engine(bygone::Error),
    /// A file of SQLite's could not be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// `read`, `write`: what could not be done.
        operation: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A file is not what SQLite writes, or it is encrypted.
    NotSqlite {
        /// Which.
        path: PathBuf,
    },
    /// There is something already where an import or an export would write.
    Exists {
        /// What there is, in words.
        what: String,
    },
}

impl Error {
    /// SQLite's error, with the words of what it comes from, if this thread was told of something.
    pub(crate) fn of(source: rusqlite::Error) -> Error {
        match bygone_sql_core::failure::take_last() {
            Some(reason) => Error::Database { reason, source },
            None => Error::Sqlite(source),
        }
    }

    pub(crate) fn statement(reason: impl Into<String>) -> Error {
        Error::Statement { reason: reason.into() }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        Error::Sqlite(error)
    }
}

impl From<bygone::Error> for Error {
    fn from(error: bygone::Error) -> Error {
        Error::Engine(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Sqlite(error) => error.fmt(f),
            Error::Database { reason, .. } | Error::Statement { reason } => reason.fmt(f),
            Error::Engine(error) => error.fmt(f),
            Error::File { path, operation, source } => {
                write!(f, "cannot {operation} {}: {source}", path.display())
            }
            Error::NotSqlite { path } => {
                write!(f, "{} is no SQLite database, or it is encrypted", path.display())
            }
            Error::Exists { what } => write!(f, "{what} exists already"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Sqlite(error) | Error::Database { source: error, .. } => Some(error),
            Error::Engine(error) => Some(error),
            Error::File { source, .. } => Some(source),
            Error::Statement { .. } | Error::NotSqlite { .. } | Error::Exists { .. } => None,
        }
    }
}
