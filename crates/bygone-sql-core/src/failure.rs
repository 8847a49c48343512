//! What SQLite is told when something fails.
//!
//! Owns: [`Failure`], and the words of the last one on each thread. Promises: every error of the engine has a fitting
//! code, and its words are in the host's error log; a panic ends at [`shielded`], not in C code. May call: `api`.

use std::cell::RefCell;
use std::ffi::c_int;
use std::fmt;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bygone::Error;

use crate::api::Api;
use crate::ffi::*;

/// A code of SQLite's, and what happened in words.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The result code, possibly an extended one.
    pub code: c_int,
    /// For people; empty where the code says it all, and happens every day.
    pub text: String,
}

/// What our own parts answer.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure in words.
    pub fn new(code: c_int, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    /// One that is part of normal life.
    pub fn code(code: c_int) -> Failure {
        Failure::new(code, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            // Told of where a page is read: what reads it must not take it for a page that is damaged for SQLite.
            Error::Corruption { .. } => SQLITE_IOERR_DATA,
            Error::Locked { .. } => SQLITE_BUSY,
            Error::ReadOnly { .. } => SQLITE_READONLY,
            Error::NotFound { .. } => SQLITE_CANTOPEN,
            Error::Incompatible { .. } => SQLITE_NOTADB,
            Error::TooLarge { .. } => SQLITE_TOOBIG,
            Error::Io { source, .. } => match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => SQLITE_FULL,
                ErrorKind::OutOfMemory => SQLITE_NOMEM,
                ErrorKind::PermissionDenied => SQLITE_PERM,
                ErrorKind::ReadOnlyFilesystem => SQLITE_READONLY,
                _ => SQLITE_IOERR,
            },
            // Somebody changed the pages past SQLite, or restored another state, while a transaction was open.
            Error::Conflict { .. } => SQLITE_IOERR_COMMIT_ATOMIC,
            // Tells whoever asks more closely that the statement makes sense.
            Error::SnapshotNotFound { .. }
            | Error::OutsideWindow { .. }
            | Error::SnapshotHeld { .. }
            | Error::NameTaken { .. } => SQLITE_ERROR_SNAPSHOT,
            Error::InvalidArgument { .. } => SQLITE_ERROR,
            _ => SQLITE_IOERR,
        };
        Failure::new(code, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The words of the last failure that this thread was told of, once.
pub fn take_last() -> Option<String> {
    let text = LAST.with(|last| std::mem::take(&mut *last.borrow_mut()));
    (!text.is_empty()).then_some(text)
}

/// The words of the last failure that this thread was told of.
pub fn last() -> String {
    LAST.with(|last| last.borrow().clone())
}

/// Notes a failure where people find it, and gives its code.
pub fn told(api: &Api, failure: &Failure) -> c_int {
    if !failure.text.is_empty() {
        api.log_line(failure.code, &format!("bygone: {}", failure.text));
        // While a thread ends, and closes its last connections, nobody will ask.
        let _ = LAST.try_with(|last| last.borrow_mut().clone_from(&failure.text));
    }
    failure.code
}

/// Runs the body of a callback: a failure becomes its code, and so does a panic, which must not reach C code.
#[inline]
pub fn shielded(api: &Api, body: impl FnOnce() -> Result<c_int>) -> c_int {
    // Whoever meets what a panic left behind meets it behind locks that are taken whether poisoned or not, and in
    // files whose transaction ends with this error.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => told(api, &failure),
        Err(_) => {
            told(api, &Failure::new(SQLITE_IOERR, "a panic in Bygone; its message is on standard error"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: Error) -> c_int {
        Failure::from(error).code
    }

    #[test]
    fn errors_have_fitting_codes() {
        let io = |kind: ErrorKind| Error::Io {
            path: "x".into(),
            operation: "write",
            source: std::sync::Arc::new(kind.into()),
        };
        assert_eq!(code(io(ErrorKind::StorageFull)), SQLITE_FULL);
        assert_eq!(code(io(ErrorKind::PermissionDenied)), SQLITE_PERM);
        assert_eq!(code(io(ErrorKind::Other)), SQLITE_IOERR);
        assert_eq!(code(Error::Poisoned { cause: "x".into() }), SQLITE_IOERR);
        assert_eq!(
            code(Error::NameTaken { name: "x".into(), snapshot: 1_u64.into() }),
            SQLITE_ERROR_SNAPSHOT
        );
        assert_eq!(code(Error::Locked { path: "x".into(), owner: None }), SQLITE_BUSY);
        let damage = Error::Corruption { path: "x".into(), offset: 0, reason: "x".into() };
        assert_eq!(code(damage), SQLITE_IOERR_DATA);
    }
}
