//! Pragmas that mean something here.
//!
//! Owns: what `PRAGMA` does to an SQL database of ours before SQLite looks at it. Promises: a pragma takes effect when
//! it is prepared, as SQLite's own do, and doing it again changes nothing; one that SQLite would follow to our harm
//! answers what holds instead. May call: `file`, `functions`, `session`, `statement`, `vfs`.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use crate::api::text;
use crate::failure::{Failure, Result};
use crate::ffi::*;
use crate::file::MainFile;
use crate::functions;
use crate::pages::is_page_size;
use crate::session::Session;
use crate::statement::Statement;
use crate::vfs;

/// `SQLITE_FCNTL_PRAGMA`.
///
/// # Safety
/// `file` is in this call of SQLite's, and nobody else has it borrowed; `argument` is that of this control: the
/// result, the name, the value or null.
pub(crate) unsafe fn pragma(file: *mut MainFile, argument: *mut *mut c_char) -> c_int {
    // SAFETY: as promised.
    let (name, value) = unsafe { (text(*argument.add(1)), text(*argument.add(2))) };
    let name = name.unwrap_or_default().to_ascii_lowercase();
    let answer = match (&name[..], value) {
        // This one may lead SQLite to call other methods of the file.
        // SAFETY: as promised.
        ("snapshot", Some(name)) => unsafe { functions::declare_again(file, name) }.map(Some),
        // And this one.
        // SAFETY: as promised.
        ("page_size", None) => unsafe { notice_page_size(file) }.map(|()| None),
        (_, value) => {
            // SAFETY: as promised.
            let file = unsafe { &mut *file };
            answer(file, &name, value)
        }
    };
    let (code, answer) = match answer {
        Ok(None) => return SQLITE_NOTFOUND,
        Ok(Some(answer)) => (SQLITE_OK, answer),
        Err(failure) => (failure.code, failure.text),
    };
    // SAFETY: the first is where the answer belongs, or the words of the failure, in SQLite's memory.
    unsafe {
        if !answer.is_empty() {
            *argument = (*file).host.api.text(&answer);
        }
    }
    code
}

/// The answer; `None` leaves the pragma to SQLite.
fn answer(file: &mut MainFile, name: &str, value: Option<String>) -> Result<Option<String>> {
    match (name, value) {
        ("as_of", None) => Ok(Some(file.past().map_or("now", |past| &past.text).to_owned())),
        ("as_of", Some(value)) => set_as_of(file, &value).map(Some),
        // For one statement, by who runs it.
        ("bygone_enter", Some(value)) => enter(file, &value).map(Some),
        ("bygone_leave", None) => leave(file).map(Some),
        // A journal is only there to roll back, in memory.
        ("journal_mode", Some(_)) => Ok(Some("memory".to_owned())),
        // Who writes holds others off only while he writes, who reads nobody.
        ("locking_mode", Some(_)) => Ok(Some("normal".to_owned())),
        ("synchronous", Some(value)) => {
            // Within a transaction SQLite refuses.
            if is_autocommit(file) {
                file.sync_commits = is_full(&value);
            }
            Ok(None)
        }
        ("page_size", Some(value)) => {
            let bytes = value.trim().parse().unwrap_or(0);
            if is_page_size(bytes) {
                file.page_bytes_wanted = bytes;
            }
            file.page_bytes_asked = bytes;
            if let Some(session) = Session::of(file.connection()) {
                // Relaxed: nobody else uses the connection, which is in this call.
                session.page_bytes.store(bytes, Ordering::Relaxed);
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Lets SQLite see the page size that somebody else has left, or `VACUUM`: it learns of it only when it reads.
///
/// # Safety
/// As [`pragma`].
unsafe fn notice_page_size(file: *mut MainFile) -> Result<()> {
    // SAFETY: as promised; the borrow ends before SQLite is called.
    let (host, connection) = unsafe {
        let file = &mut *file;
        if file.level != SQLITE_LOCK_NONE || !file.has_other_page_size()? {
            return Ok(());
        }
        (file.host, file.connection())
    };
    let files = host.main_files(connection);
    for (schema, _) in files.filter(|(_, other)| *other == file) {
        let schema = schema.to_string_lossy().replace('"', "\"\"");
        // SAFETY: the connection is in this call.
        unsafe { Statement::prepare(host, connection, &format!("PRAGMA \"{schema}\".schema_version")) }?
            .step()?;
    }
    Ok(())
}

/// Whether the connection is outside of a transaction.
pub(crate) fn is_autocommit(file: &MainFile) -> bool {
    let connection = file.connection();
    // SAFETY: the connection that is in this call is open.
    connection.is_null() || unsafe { (file.host.api.get_autocommit)(connection) } != 0
}

/// Whether a value of `PRAGMA synchronous` asks for a sync a commit, read as SQLite reads it: what is neither a number
/// nor a name that it knows means `normal`.
fn is_full(value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    match (&value[..], value[..digits].parse::<u32>()) {
        ("full" | "extra", _) => true,
        // 0 and 1 are off and normal, 2 and 3 full and extra; of larger ones the lowest bits count.
        (_, Ok(number)) => (number + 1) & 7 >= 3,
        _ => false,
    }
}

/// # Errors
/// Where SQLite reads, what it reads must not change.
fn check_idle(file: &MainFile) -> Result<()> {
    if file.is_immutable {
        let text = "what is opened as immutable reads one state, and keeps to it";
        return Err(Failure::new(SQLITE_ERROR, text));
    }
    if file.level != SQLITE_LOCK_NONE || !is_autocommit(file) {
        let text = "what is read cannot change inside a transaction, nor while a statement reads";
        return Err(Failure::new(SQLITE_ERROR, text));
    }
    Ok(())
}

fn enter(file: &mut MainFile, value: &str) -> Result<String> {
    check_idle(file)?;
    let past = vfs::past(&file.directory, &file.database.table, value.to_owned())?;
    file.enter_past(past);
    Ok("entered".to_owned())
}

fn leave(file: &mut MainFile) -> Result<String> {
    check_idle(file)?;
    file.leave_past();
    Ok("left".to_owned())
}

fn set_as_of(file: &mut MainFile, value: &str) -> Result<String> {
    check_idle(file)?;
    if file.directory.read_only {
        // What another process has committed and declared since.
        file.directory.db.refresh()?;
    }
    let past = vfs::past(&file.directory, &file.database.table, value.trim().to_owned())?;
    let answer = past.as_ref().map_or("now", |past| &past.text).to_owned();
    file.set_past(past);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synchronous_is_read_as_sqlite_reads_it() {
        for value in ["full", "EXTRA", "2", "3", " 2 "] {
            assert!(is_full(value), "{value}");
        }
        for value in ["off", "0", "1", "NORMAL", "on", "7", "x", ""] {
            assert!(!is_full(value), "{value}");
        }
    }
}
