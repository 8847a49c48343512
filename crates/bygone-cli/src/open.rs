//! Opening the database that a command names.
//!
//! Owns: the difference between commands that may make a database, those that write, and those that only read.
//! Promises: reading never creates a database, and works beside a process that writes. May call: `failure`.

use std::path::Path;
use std::time::Duration;

use bygone::{Db, Error, Options};

use crate::failure::{Failure, Result};

/// Opens a database that must exist, to write.
pub fn existing(path: &Path) -> Result<Db> {
    open(path, Options::new().create(false))
}

/// Opens a database that must exist, to write, with a window of this length.
pub fn with_window(path: &Path, length: Duration) -> Result<Db> {
    open(path, Options::new().create(false).window(length))
}

/// Opens a database that must exist, to read it, whether another process has it open or not.
pub fn reading(path: &Path) -> Result<Db> {
    open(path, Options::new().read_only(true))
}

/// Opens a database that must exist, to check it: as its owner, who knows which pages are free, or, if there is one
/// already, or nobody may write, as one who reads.
pub fn checking(path: &Path) -> Result<Db> {
    if !path.is_dir() {
        return Err(missing(path));
    }
    match Options::new().create(false).open(path) {
        Err(error) if may_be_read(&error) => reading(path).map_err(|_| error.into()),
        Err(Error::NotFound { .. }) => Err(missing(path)),
        opened => Ok(opened?),
    }
}

fn open(path: &Path, options: Options) -> Result<Db> {
    if !path.is_dir() {
        return Err(missing(path));
    }
    match options.open(path) {
        Err(Error::NotFound { .. }) => Err(missing(path)),
        opened => Ok(opened?),
    }
}

fn missing(path: &Path) -> Failure {
    let path = path.display();
    Failure::usage(format!("there is no database at {path}; `bygone put` and `bygone import` make one"))
}

/// Opens a database, and makes it if there is none.
pub fn or_create(path: &Path) -> Result<Db> {
    Ok(Options::new().create(true).open(path)?)
}

/// As [`or_create`]; if another process has the database open, or nobody may write to it, it is opened to read, and the
/// text says why.
pub fn or_create_or_beside(path: &Path) -> Result<(Db, Option<String>)> {
    match Options::new().create(true).open(path) {
        Err(error) if may_be_read(&error) => match reading(path) {
            Ok(db) => Ok((db, Some(error.to_string()))),
            Err(_) => Err(error.into()),
        },
        opened => Ok((opened?, None)),
    }
}

/// Whether who may not write may read all the same.
fn may_be_read(error: &Error) -> bool {
    matches!(error, Error::Locked { .. }) || error.forbids_writing()
}
