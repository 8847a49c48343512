//! What can go wrong.
//!
//! Owns: [`Error`]. Promises: where the database beneath SQLite failed, its own words are there. May call: nothing.

use std::fmt;

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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Sqlite(error) => error.fmt(f),
            Error::Database { reason, .. } | Error::Statement { reason } => reason.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Sqlite(error) | Error::Database { source: error, .. } => Some(error),
            Error::Statement { .. } => None,
        }
    }
}
