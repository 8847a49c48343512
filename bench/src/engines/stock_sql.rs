//! SQLite on its own files, with a write-ahead log, in suite `sql`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rusqlite::Connection;

use super::sql::{Opening, Sql, Synchronous, set_up};

pub struct Stock {
    path: PathBuf,
    opening: Opening,
}

impl Stock {
    pub fn open(dir: &Path, opening: Opening) -> Result<Stock> {
        let stock = Stock { path: dir.join("sqlite"), opening };
        let mode: String =
            stock.connect(Synchronous::Normal)?.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
        ensure!(mode == "wal", "the write-ahead log can't be had here: {mode}");
        Ok(stock)
    }
}

impl Sql for Stock {
    fn connect(&self, synchronous: Synchronous) -> Result<Connection> {
        let connection = Connection::open(&self.path)?;
        set_up(&connection, self.opening, synchronous)?;
        Ok(connection)
    }

    fn settle(&self) -> Result<()> {
        let connection = self.connect(Synchronous::Normal)?;
        let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        ensure!(busy == 0, "somebody reads: not all can be checkpointed");
        Ok(())
    }
}
