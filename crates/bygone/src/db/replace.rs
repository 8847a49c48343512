//! All records of a table, exchanged for others in one commit of any size.
//!
//! Owns: what such a commit consists of. Promises: the memory that it takes does not grow with the table; the table is
//! the same one, so its handles stay good, and what is the same in both is shared with the past. May call: bulk
//! commits.

use super::Db;
use super::bulk::Bulk;
use crate::base::Updates;
use crate::error::{Error, Result};
use crate::ids::Seq;
use crate::snapshot::{Range, Table};
use crate::txn::check_write;
use crate::value::Value;

impl Db {
    /// Exchanges all records of a table for others, which come in the order of their keys, in one commit. It is
    /// durable when this returns, and as large as it may be: the records are not held in memory. Snapshots and the
    /// window keep what was; records that are the same as before are shared with it.
    ///
    /// It costs as much as reading the old records and writing those that differ, besides flushing and merging what
    /// was committed before. Others may read meanwhile; who commits, or asks for a table, waits, so `records` must do
    /// neither. Transactions that began before and commit later get `Conflict`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let rates = db.table("rates")?;
    /// db.put(&rates, "dollar", "1.1")?;
    /// let fetched = [("franc", "0.9"), ("pound", "0.8")];
    /// db.replace(&rates, fetched.map(Ok))?;
    /// assert_eq!(db.get(&rates, "dollar")?, None);
    /// assert_eq!(db.get(&rates, "pound")?.unwrap(), b"0.8");
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Whatever `records` gives as one; `InvalidArgument` if their keys do not ascend; `TooLarge`; `TableNotFound`;
    /// `ReadOnly`, `Poisoned`; `Corruption` or `Io`: then nothing has happened.
    pub fn replace<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: &Table,
        records: impl IntoIterator<Item = Result<(K, V)>>,
    ) -> Result<Seq> {
        let engine = self.engine();
        let apply = |bulk: &mut Bulk<'_>| {
            table.check_exists(engine.present.context().tables.database())?;
            let old = bulk.now.range(table, ..)?;
            let mut updates = Replacing {
                old,
                new: records.into_iter(),
                old_record: None,
                new_record: None,
                is_old: false,
            };
            updates.begin()?;
            bulk.apply(table.id(), &mut updates)
        };
        Ok(engine.bulk_commit(apply)?.0)
    }
}

/// What makes the old records the new ones.
struct Replacing<K, V, I: Iterator<Item = Result<(K, V)>>> {
    old: Range,
    new: I,
    /// The next of each that are not done with.
    old_record: Option<(Value, Value)>,
    new_record: Option<(K, V)>,
    /// Whether the next update deletes the old one.
    is_old: bool,
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = Result<(K, V)>>> Replacing<K, V, I> {
    fn begin(&mut self) -> Result<()> {
        self.take_old()?;
        self.take_new()?;
        self.settle()
    }

    fn take_old(&mut self) -> Result<()> {
        self.old_record = self.old.next().transpose()?;
        Ok(())
    }

    fn take_new(&mut self) -> Result<()> {
        let next = self.new.next().transpose()?;
        if let Some((key, value)) = &next {
            check_write(key.as_ref(), Some(value.as_ref()))?;
            if self.new_record.as_ref().is_some_and(|(before, _)| before.as_ref() >= key.as_ref()) {
                let reason = "the records that replace a table's must come in the order of their keys";
                return Err(Error::InvalidArgument { reason: reason.into() });
            }
        }
        self.new_record = next;
        Ok(())
    }

    /// Passes over what is in both, up to the next update.
    fn settle(&mut self) -> Result<()> {
        loop {
            let (old, new) = (&self.old_record, &self.new_record);
            self.is_old = false;
            match (old, new) {
                (Some((old_key, old_value)), Some((key, value))) => match old_key[..].cmp(key.as_ref()) {
                    std::cmp::Ordering::Less => self.is_old = true,
                    std::cmp::Ordering::Greater => {}
                    std::cmp::Ordering::Equal => {
                        let is_same = old_value[..] == *value.as_ref();
                        self.take_old()?;
                        if is_same {
                            self.take_new()?;
                            continue;
                        }
                    }
                },
                (old, _) => self.is_old = old.is_some(),
            }
            return Ok(());
        }
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = Result<(K, V)>>> Updates for Replacing<K, V, I> {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok(match self.is_old {
            true => self.old_record.as_ref().map(|(key, _)| &key[..]),
            false => self.new_record.as_ref().map(|(key, _)| key.as_ref()),
        })
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.new_record.as_ref().filter(|_| !self.is_old).map(|(_, value)| value.as_ref()))
    }

    fn advance(&mut self) -> Result<()> {
        match self.is_old {
            true => self.take_old()?,
            false => self.take_new()?,
        }
        self.settle()
    }
}
