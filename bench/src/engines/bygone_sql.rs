//! SQLite on Bygone, in suite `sql`.

use std::path::Path;

use anyhow::Result;
use bygone::{Db, Options, SnapshotId};
use bygone_sql::Sql as _;
use rusqlite::Connection;

use super::sql::{Opening, Sql, SqlPast, Synchronous, set_up};

/// The SQL database.
const NAME: &str = "main";

pub struct Bygone {
    db: Db,
    opening: Opening,
}

impl Bygone {
    pub fn open(dir: &Path, opening: Opening) -> Result<Bygone> {
        let db = Options::new().cache_bytes(opening.cache_bytes).open(dir.join("bygone"))?;
        Ok(Bygone { db, opening })
    }
}

impl Sql for Bygone {
    fn connect(&self, synchronous: Synchronous) -> Result<Connection> {
        let connection = self.db.sql(NAME)?;
        set_up(&connection, self.opening, synchronous)?;
        Ok(connection)
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.merge()?)
    }

    fn past(&self) -> Option<&dyn SqlPast> {
        Some(self)
    }
}

impl SqlPast for Bygone {
    fn declare(&self) -> Result<u64> {
        Ok(self.db.snapshot_now(None)?.into())
    }

    fn as_of(&self, snapshot: u64) -> Result<Connection> {
        let connection = self.db.sql_as_of(NAME, SnapshotId::from(snapshot))?;
        set_up(&connection, self.opening, Synchronous::Normal)?;
        Ok(connection)
    }
}
