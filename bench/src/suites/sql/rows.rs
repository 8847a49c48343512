//! The rows that most cases of suite `sql` work on.
//!
//! Owns: one table, how it is filled, and the updates of it. Promises: all follows from numbers, so what a state holds
//! can be made up again.

use anyhow::{Result, ensure};
use rusqlite::Connection;

use crate::data::Random;

/// Bytes of a row's body.
const BODY_BYTES: usize = 100;

/// Some bytes that no compressor gets smaller; more than a page, so that no page has any of them twice.
const POOL_BYTES: usize = 1 << 18;

/// A prime that no number of rows is a multiple of.
const STRIDE: u64 = 7919;

const TABLE: &str = "CREATE TABLE rows(
    id INTEGER PRIMARY KEY, place INTEGER NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL)";
const INDEX: &str = "CREATE UNIQUE INDEX rows_place ON rows(place)";

pub const INSERT: &str = "INSERT INTO rows VALUES (?1, ?2, ?3, ?4)";
pub const UPDATE: &str = "UPDATE rows SET version = ?2, body = ?3 WHERE id = ?1";

/// A table of rows with the ids 1 to `count`. In the order of their places they are scattered.
pub struct Rows {
    pub count: u64,
    pool: Vec<u8>,
}

impl Rows {
    pub fn new(count: u64) -> Rows {
        assert!(!count.is_multiple_of(STRIDE));
        let mut random = Random::new(29);
        let pool = (0..(POOL_BYTES + BODY_BYTES) / 8 + 1).flat_map(|_| random.next_u64().to_le_bytes());
        Rows { count, pool: pool.collect() }
    }

    /// From 0 on, and no two rows have the same.
    pub fn place(&self, id: u64) -> u64 {
        id * STRIDE % self.count
    }

    pub fn body(&self, id: u64, version: u32) -> &[u8] {
        let at = Random::new(id << 32 | u64::from(version)).below(POOL_BYTES as u64) as usize;
        &self.pool[at..at + BODY_BYTES]
    }

    /// Makes the table, with an index of the places if there is to be one.
    pub fn create(connection: &Connection, indexed: bool) -> Result<()> {
        connection.execute_batch(TABLE)?;
        if indexed {
            connection.execute_batch(INDEX)?;
        }
        Ok(())
    }

    /// Inserts rows with version 0, in one transaction.
    pub fn insert(&self, connection: &Connection, ids: impl Iterator<Item = u64>) -> Result<()> {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut insert = connection.prepare_cached(INSERT)?;
        for id in ids {
            insert.execute((id as i64, self.place(id) as i64, 0, self.body(id, 0)))?;
        }
        Ok(connection.execute_batch("COMMIT")?)
    }

    /// Makes the table with its index and all rows.
    pub fn load(&self, connection: &Connection) -> Result<()> {
        Rows::create(connection, false)?;
        self.insert(connection, 1..=self.count)?;
        Ok(connection.execute_batch(INDEX)?)
    }

    /// Gives a row another version.
    pub fn update(&self, connection: &Connection, id: u64, version: u32) -> Result<()> {
        let changed =
            connection.prepare_cached(UPDATE)?.execute((id as i64, version, self.body(id, version)))?;
        ensure!(changed == 1, "row {id} is not there");
        Ok(())
    }

    /// Whether the table holds just these versions, row 1's first.
    pub fn check(&self, connection: &Connection, versions: &[u32]) -> Result<()> {
        let mut select = connection.prepare("SELECT id, place, version, body FROM rows ORDER BY id")?;
        let mut found = select.query([])?;
        let mut count = 0;
        while let Some(row) = found.next()? {
            count += 1;
            let (id, place, version) = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, u32>(2)?);
            let expected = versions.get(count as usize - 1).copied();
            ensure!(id as u64 == count && place as u64 == self.place(count), "row {count}: {id}, {place}");
            ensure!(Some(version) == expected, "row {id} has version {version}, not {expected:?}");
            ensure!(row.get_ref(3)?.as_blob()? == self.body(count, version), "the body of row {id}");
        }
        ensure!(count == versions.len() as u64, "{count} rows");
        Ok(())
    }
}

/// Random updates, so many a transaction, that all follow from the transaction's number, which is the rows' version.
pub struct Updates {
    pub rows: u64,
    pub per_transaction: u64,
}

impl Updates {
    pub fn ids(&self, transaction: u32) -> impl Iterator<Item = u64> {
        let mut random = Random::new(u64::from(transaction));
        let rows = self.rows;
        (0..self.per_transaction).map(move |_| 1 + random.below(rows))
    }

    /// What rows hold behind these transactions.
    pub fn note(&self, transactions: std::ops::Range<u32>, versions: &mut [u32]) {
        for transaction in transactions {
            self.ids(transaction).for_each(|id| versions[id as usize - 1] = transaction);
        }
    }
}

/// Fails if SQLite finds something wrong.
pub fn check_integrity(connection: &Connection) -> Result<()> {
    let found: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(found == "ok", "{found}");
    Ok(())
}
