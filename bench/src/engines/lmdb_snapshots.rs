//! LMDB's read transactions, in both ways: begun and aborted, or kept, reset and renewed.
//!
//! Through LMDB's own interface, since heed has no word for reset and renew, and adds to the cost of begin. Commits
//! are those of an environment with `MDB_NOSYNC`: written to the file, not synced.
//!
//! `lmdb` ties a reader's slot to its thread, which is LMDB's own default and the faster way, but where a thread
//! holds many transactions or hands them on: there `MDB_NOTLS` is needed, and each begin looks for a free slot, under
//! a mutex. `lmdb-renew` has `MDB_NOTLS` always, and its transactions keep their slots while they are reset.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use lmdb_master_sys as ffi;

use super::snapshots::{Held, Opening, Snapshots, Taker};
use crate::data::{Key, Record};

/// Address space, not memory.
const MAP_BYTES: usize = 64 << 30;

/// More than the suite holds at any time.
const READERS_MAX: u32 = 1 << 17;

pub fn open(name: &str, dir: &Path, opening: Opening) -> Result<Box<dyn Snapshots>> {
    let renewing = name == "lmdb-renew";
    let env = Env::open(dir, renewing || opening.many)?;
    Ok(match renewing {
        true => Box::new(Renewing { env, spares: Mutex::new(Vec::new()) }),
        false => Box::new(Beginning { env, many: opening.many }),
    })
}

struct Env {
    env: *mut ffi::MDB_env,
    table: ffi::MDB_dbi,
}

// SAFETY: LMDB's environments may be used by any thread at any time.
unsafe impl Send for Env {}
// SAFETY: as above.
unsafe impl Sync for Env {}

/// A transaction, begun or reset. Whoever has it uses it alone.
struct Txn(*mut ffi::MDB_txn);

// SAFETY: with `MDB_NOTLS` a read transaction is its owner's and not its thread's. Without, nobody sends one.
unsafe impl Send for Txn {}

impl Env {
    fn open(dir: &Path, many: bool) -> Result<Env> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let flags = ffi::MDB_NOSYNC | if many { ffi::MDB_NOTLS } else { 0 };
        let mut env = null_mut();
        // SAFETY: plain calls in the order that LMDB asks for. The directory is this process's own, and the
        // environment is opened once.
        unsafe {
            check(ffi::mdb_env_create(&mut env))?;
            check(ffi::mdb_env_set_mapsize(env, MAP_BYTES))?;
            check(ffi::mdb_env_set_maxreaders(env, READERS_MAX))?;
            check(ffi::mdb_env_open(env, path.as_ptr(), flags, 0o644))?;
            let mut tx = null_mut();
            check(ffi::mdb_txn_begin(env, null_mut(), 0, &mut tx))?;
            let mut table = 0;
            check(ffi::mdb_dbi_open(tx, std::ptr::null(), 0, &mut table))?;
            check(ffi::mdb_txn_commit(tx))?;
            Ok(Env { env, table })
        }
    }

    fn put(&self, records: &[Record]) -> Result<()> {
        let mut tx = null_mut();
        // SAFETY: the environment is open; the transaction is ended once; LMDB copies what is put.
        unsafe {
            check(ffi::mdb_txn_begin(self.env, null_mut(), 0, &mut tx))?;
            for record in records {
                let (mut key, mut value) = (view(&record.key), view(&record.value));
                let code = ffi::mdb_put(tx, self.table, &mut key, &mut value, 0);
                if code != 0 {
                    ffi::mdb_txn_abort(tx);
                    return check(code);
                }
            }
            check(ffi::mdb_txn_commit(tx))
        }
    }

    fn settle(&self) -> Result<()> {
        // SAFETY: the environment is open.
        check(unsafe { ffi::mdb_env_sync(self.env, 1) })
    }

    #[inline]
    fn begin(&self) -> Result<Txn> {
        let mut tx = null_mut();
        // SAFETY: the environment is open.
        check(unsafe { ffi::mdb_txn_begin(self.env, null_mut(), ffi::MDB_RDONLY, &mut tx) })?;
        Ok(Txn(tx))
    }

    /// The value's place and size in the map, as long as the transaction goes on.
    #[inline]
    fn get<'t>(&self, tx: &'t Txn, key: &Key) -> Result<Option<&'t [u8]>> {
        let mut key = view(key);
        let mut value = ffi::MDB_val { mv_size: 0, mv_data: null_mut() };
        // SAFETY: the transaction has begun, and LMDB reads the key only.
        match unsafe { ffi::mdb_get(tx.0, self.table, &mut key, &mut value) } {
            ffi::MDB_NOTFOUND => Ok(None),
            code => {
                check(code)?;
                // SAFETY: LMDB's promise for a found value, until the transaction ends.
                Ok(Some(unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }))
            }
        }
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        // SAFETY: transactions borrow what owns the environment, or were ended by it before.
        unsafe { ffi::mdb_env_close(self.env) }
    }
}

impl Txn {
    #[inline]
    fn abort(self) {
        // SAFETY: nobody has the transaction after this.
        unsafe { ffi::mdb_txn_abort(self.0) }
    }

    #[inline]
    fn reset(&mut self) {
        // SAFETY: the transaction has begun or been renewed, and is this caller's alone.
        unsafe { ffi::mdb_txn_reset(self.0) }
    }

    #[inline]
    fn renew(&mut self) -> Result<()> {
        // SAFETY: the transaction was reset, and is this caller's alone.
        check(unsafe { ffi::mdb_txn_renew(self.0) })
    }
}

fn view(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

#[inline]
fn check(code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { fail(code) }
}

#[cold]
fn fail(code: i32) -> Result<()> {
    // SAFETY: LMDB answers a text that lives as long as the program, for any code.
    let text = unsafe { std::ffi::CStr::from_ptr(ffi::mdb_strerror(code)) };
    bail!("LMDB: {}", text.to_string_lossy())
}

/// Transactions are begun and aborted.
struct Beginning {
    env: Env,
    many: bool,
}

impl Snapshots for Beginning {
    fn put(&self, records: &[Record]) -> Result<()> {
        self.env.put(records)
    }

    fn settle(&self) -> Result<()> {
        self.env.settle()
    }

    fn data_files(&self) -> &'static [&'static str] {
        &["data.mdb"]
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        Ok(Box::new(BeginAbort(self)))
    }
}

struct BeginAbort<'e>(&'e Beginning);

impl<'e> Taker<'e> for BeginAbort<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.0.env.begin()?.abort();
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let env = &self.0.env;
        let mut bytes = 0;
        for key in keys {
            let tx = env.begin()?;
            bytes += env.get(&tx, key)?.map_or(0, <[u8]>::len) as u64;
            tx.abort();
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let tx = self.0.env.begin()?;
        let value = self.0.env.get(&tx, key)?.map(<[u8]>::to_vec);
        tx.abort();
        Ok(value)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        if !self.0.many {
            bail!("this environment was opened for one transaction a thread");
        }
        let mut held = Begun { env: &self.0.env, transactions: Vec::with_capacity(count) };
        for _ in 0..count {
            held.transactions.push(self.0.env.begin()?);
        }
        Ok(Box::new(held))
    }
}

struct Begun<'e> {
    env: &'e Env,
    transactions: Vec<Txn>,
}

impl Held for Begun<'_> {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.env.get(&self.transactions[index], key)?.map(<[u8]>::to_vec))
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.transactions.drain(..).for_each(Txn::abort);
    }
}

/// Transactions are kept, reset and renewed.
struct Renewing {
    env: Env,
    /// Reset. Taken and given back many at a time.
    spares: Mutex<Vec<Txn>>,
}

impl Renewing {
    /// These many transactions that are reset.
    fn prepare(&self, count: usize) -> Result<Vec<Txn>> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let from = spares.len().saturating_sub(count);
        let mut transactions = spares.split_off(from);
        drop(spares);
        while transactions.len() < count {
            let mut tx = self.env.begin()?;
            tx.reset();
            transactions.push(tx);
        }
        Ok(transactions)
    }

    fn give_back(&self, mut transactions: Vec<Txn>) {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).append(&mut transactions);
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.spares.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(Txn::abort);
    }
}

impl Snapshots for Renewing {
    fn put(&self, records: &[Record]) -> Result<()> {
        self.env.put(records)
    }

    fn settle(&self) -> Result<()> {
        self.env.settle()
    }

    fn data_files(&self) -> &'static [&'static str] {
        &["data.mdb"]
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        let Some(tx) = self.prepare(1)?.pop() else { bail!("one was asked for") };
        Ok(Box::new(ResetRenew { of: self, tx: Some(tx) }))
    }
}

struct ResetRenew<'e> {
    of: &'e Renewing,
    /// There until the end.
    tx: Option<Txn>,
}

impl ResetRenew<'_> {
    fn tx(&mut self) -> &mut Txn {
        self.tx.as_mut().expect("taken by `drop` only")
    }
}

impl Drop for ResetRenew<'_> {
    fn drop(&mut self) {
        self.of.give_back(self.tx.take().into_iter().collect());
    }
}

impl<'e> Taker<'e> for ResetRenew<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        let tx = self.tx();
        for _ in 0..count {
            tx.renew()?;
            tx.reset();
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let env = &self.of.env;
        let tx = self.tx();
        let mut bytes = 0;
        for key in keys {
            tx.renew()?;
            bytes += env.get(tx, key)?.map_or(0, <[u8]>::len) as u64;
            tx.reset();
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let env = &self.of.env;
        let tx = self.tx();
        tx.renew()?;
        let value = env.get(tx, key)?.map(<[u8]>::to_vec);
        tx.reset();
        Ok(value)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let mut transactions = self.of.prepare(count)?;
        for tx in &mut transactions {
            tx.renew()?;
        }
        Ok(Box::new(Renewed { of: self.of, transactions }))
    }
}

struct Renewed<'e> {
    of: &'e Renewing,
    transactions: Vec<Txn>,
}

impl Held for Renewed<'_> {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.of.env.get(&self.transactions[index], key)?.map(<[u8]>::to_vec))
    }
}

impl Drop for Renewed<'_> {
    fn drop(&mut self) {
        self.transactions.iter_mut().for_each(Txn::reset);
        self.of.give_back(std::mem::take(&mut self.transactions));
    }
}
