//! Opening the database that a command names.
//!
//! Owns: the difference between commands that may make a database and those that may not. Promises: reading
//! never creates anything. May call: `failure`.

use std::path::Path;

use bygone::{Db, Error, Options};

use crate::failure::{Failure, Result};

/// Opens a database that must exist.
pub fn existing(path: &Path) -> Result<Db> {
    let missing = || {
        Failure::usage(format!(
            "there is no database at {}; `bygone put` and `bygone import` make one",
            path.display()
        ))
    };
    if !path.is_dir() {
        return Err(missing());
    }
    match Options::new().create(false).open(path) {
        Err(Error::NotFound { .. }) => Err(missing()),
        opened => Ok(opened?),
    }
}

/// Opens a database, and makes it if there is none.
pub fn or_create(path: &Path) -> Result<Db> {
    Ok(Options::new().create(true).open(path)?)
}
