//! The page map: from a page's id to its address in the pagelog.
//!
//! Owns: the rows of the map, and when its runs become fewer. Promises: a look-up asks at most one run for each power
//! of [`FACTOR`] that the map's size has, each through its filter; every row is written at most as often. May call:
//! run, `layer`, `io`.
//!
//! The map is made of runs in the format of `docs/format/run.md`, newest first: a newer run's row stands in the place
//! of an older one's. Table 0 holds the addresses, table 1 the accounts of the segments. A row that is a deletion hides
//! those in older runs; the oldest run has none.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::address::{Address, PageId};
use crate::cache::Cache;
use crate::codec::Reader;
use crate::error::{Error, Result};
use crate::io::{Disk, sync_dir};
use crate::layer::{HashedKey, Key, LayerCursor, Lookup, Versions};
use crate::run::{MergedVersions, Run, RunMeta, RunWriter};

/// Table ids within the runs of the map.
const ADDRESSES: u32 = 0;
const ACCOUNTS: u32 = 1;

/// A run is merged into the one before it unless that has more than so many times as many rows.
const FACTOR: u64 = 4;

/// More runs than this the superblock does not name: with [`FACTOR`] between any two that is out of reach.
pub(super) const RUNS_MAX: usize = 24;

/// The name of a map run's file in its directory.
pub(super) fn file_name(id: u64) -> String {
    format!("{id:016x}.map")
}

/// The map run whose file has this name.
pub(super) fn file_id(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(".map")?, 16).ok()
}

/// What is known of a segment of the pagelog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// How many bytes of the file count.
    pub bytes: u64,
    /// Of them, those of records that the map leads to.
    pub live_bytes: u64,
    /// How many records those are.
    pub live_pages: u64,
}

impl Account {
    fn encode(&self) -> Vec<u8> {
        [self.bytes, self.live_bytes, self.live_pages]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    fn decode(bytes: &[u8]) -> Option<Account> {
        let mut reader = Reader::new(bytes);
        let account = Account { bytes: reader.u64()?, live_bytes: reader.u64()?, live_pages: reader.u64()? };
        (reader.remaining() == 0 && account.live_bytes <= account.bytes).then_some(account)
    }
}

/// Looks a page up in the runs, newest first.
pub(super) fn find(runs: &[Arc<Run>], id: PageId, hash_seed: u64) -> Result<Option<Address>> {
    let key = id.encode();
    let key = HashedKey::new(ADDRESSES, &key, hash_seed);
    for run in runs {
        let mut address = None;
        match run.get(&key, u64::MAX, &mut |value| address = Address::decode(value))? {
            Lookup::Absent => {}
            Lookup::Deleted => return Ok(None),
            Lookup::Found if address.is_some() => return Ok(address),
            Lookup::Found => return Err(senseless(run)),
        }
    }
    Ok(None)
}

/// The accounts of all segments, by id.
pub(super) fn accounts(runs: &[Arc<Run>]) -> Result<BTreeMap<u64, Account>> {
    let mut accounts = BTreeMap::new();
    for run in runs.iter().rev() {
        let mut cursor = run.cursor(ACCOUNTS, u64::MAX);
        cursor.seek(&[])?;
        while let Some(key) = cursor.key() {
            let segment = key.try_into().map(u64::from_be_bytes).map_err(|_| senseless(run))?;
            cursor.load()?;
            match cursor.loaded()? {
                None => {
                    accounts.remove(&segment);
                }
                Some(value) => {
                    let account = Account::decode(value).ok_or_else(|| senseless(run))?;
                    accounts.insert(segment, account);
                }
            }
            cursor.next()?;
        }
    }
    Ok(accounts)
}

/// Hands every address that the map leads to to `visit`.
pub(super) fn for_each_address(runs: &[Arc<Run>], visit: &mut dyn FnMut(Address)) -> Result<()> {
    let streams = runs.iter().map(|run| Box::new(run.versions()) as Box<dyn Versions>).collect();
    let mut versions = MergedVersions::new(streams);
    let mut last: Option<(u32, Vec<u8>)> = None;
    while next_key(&mut versions, &mut last)? {
        let key = versions.key();
        if key.table != ADDRESSES {
            continue;
        }
        if let Some(value) = versions.value()? {
            match (Address::decode(value), runs.first()) {
                (Some(address), _) => visit(address),
                (None, Some(run)) => return Err(senseless(run)),
                (None, None) => {}
            }
        }
    }
    Ok(())
}

/// Moves to the newest version of the next key; `last` is the key at hand.
fn next_key(versions: &mut MergedVersions, last: &mut Option<(u32, Vec<u8>)>) -> Result<bool> {
    while versions.advance()? {
        let key = versions.key();
        if last.as_ref().is_none_or(|(table, bytes)| *table != key.table || bytes != key.bytes) {
            *last = Some((key.table, key.bytes.to_vec()));
            return Ok(true);
        }
    }
    Ok(false)
}

fn senseless(run: &Run) -> Error {
    Error::corruption(run.path(), 0, "a row of the page map makes no sense")
}

/// Rows that are to come into the map.
#[derive(Default)]
pub(super) struct Rows {
    /// `None` takes the row out.
    pub addresses: BTreeMap<PageId, Option<Address>>,
    pub accounts: BTreeMap<u64, Option<Account>>,
}

/// Where and how a run is written.
pub(super) struct Target<'a> {
    pub disk: &'a dyn Disk,
    pub directory: &'a Path,
    pub cache: &'a Arc<Cache>,
    pub hash_seed: u64,
}

/// Writes the map with these rows: a new run in the place of the newest ones. It is durable when this returns, but
/// nothing names it. Answers the runs of the new map.
pub(super) fn extend(target: &Target<'_>, runs: &[Arc<Run>], rows: &Rows, id: u64) -> Result<Vec<Arc<Run>>> {
    let mut records = (rows.addresses.len() + rows.accounts.len()) as u64;
    let mut merged = 0;
    for run in runs {
        if run.meta().records > records.saturating_mul(FACTOR) && runs.len() - merged < RUNS_MAX {
            break;
        }
        records += run.meta().records;
        merged += 1;
    }
    let is_oldest = merged == runs.len();
    let mut streams: Vec<Box<dyn Versions>> = vec![Box::new(RowVersions::new(rows, id))];
    for run in &runs[..merged] {
        streams.push(Box::new(run.versions()));
    }
    let path = target.directory.join(file_name(id));
    let mut writer = RunWriter::create(target.disk, &path, id, target.hash_seed)?;
    let mut versions = MergedVersions::new(streams);
    let mut last: Option<(u32, Vec<u8>)> = None;
    while next_key(&mut versions, &mut last)? {
        let seq = versions.seq();
        let value = versions.value()?.map(<[u8]>::to_vec);
        if let Some((table, bytes)) = &last
            && (value.is_some() || !is_oldest)
        {
            writer.add(Key { table: *table, bytes }, seq, value.as_deref())?;
        }
    }
    let meta: RunMeta = writer.finish(None)?;
    let kept = runs[merged..].iter().cloned();
    if meta.records == 0 {
        crate::io::remove(target.disk, &path)?;
        sync_dir(target.disk, target.directory)?;
        return Ok(kept.collect());
    }
    sync_dir(target.disk, target.directory)?;
    let new = open(target, &meta)?;
    Ok(std::iter::once(new).chain(kept).collect())
}

/// Opens a run of the map.
pub(super) fn open(target: &Target<'_>, meta: &RunMeta) -> Result<Arc<Run>> {
    let path = target.directory.join(file_name(meta.id));
    Run::open(target.disk, &path, meta, target.hash_seed, target.cache)
}

/// New rows as a stream of versions.
struct RowVersions {
    rows: std::vec::IntoIter<(u32, Vec<u8>, Option<Vec<u8>>)>,
    current: (u32, Vec<u8>, Option<Vec<u8>>),
    seq: u64,
}

impl RowVersions {
    fn new(rows: &Rows, seq: u64) -> RowVersions {
        let addresses = rows.addresses.iter().map(|(id, address)| {
            (ADDRESSES, id.encode().to_vec(), address.map(|address| address.encode().to_vec()))
        });
        let accounts = rows.accounts.iter().map(|(segment, account)| {
            (ACCOUNTS, segment.to_be_bytes().to_vec(), account.map(|account| account.encode()))
        });
        let rows: Vec<_> = addresses.chain(accounts).collect();
        RowVersions { rows: rows.into_iter(), current: (0, Vec::new(), None), seq }
    }
}

impl Versions for RowVersions {
    fn advance(&mut self) -> Result<bool> {
        match self.rows.next() {
            Some(row) => {
                self.current = row;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn key(&self) -> Key<'_> {
        Key { table: self.current.0, bytes: &self.current.1 }
    }

    fn seq(&self) -> u64 {
        self.seq
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        Ok(self.current.2.as_deref())
    }
}
