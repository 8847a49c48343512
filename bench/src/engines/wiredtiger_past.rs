//! WiredTiger's past: timestamps.
//!
//! Each commit gets the next timestamp. What is not older than the oldest timestamp can be read: where the past is
//! kept, that one stays where it was, else it follows the present. The manual asks tables with timestamps to be kept
//! out of the log: so commits are in memory until the next checkpoint, and cost less than with a log.

use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::past::{Keeper, MISSING, Opening, Row, View, head_of};
use super::wiredtiger::{Session, WiredTiger, check, ffi};
use crate::data::Key;

/// Commits from one change to the next of the oldest timestamp, where the past is not kept.
const DROP_EVERY: u64 = 100;

/// A timestamp of 0 is none.
const OLDEST: u64 = 1;

pub struct Timestamped {
    engine: WiredTiger,
    keeps: bool,
    /// The timestamp of the last commit.
    last: AtomicU64,
}

impl Timestamped {
    pub fn open(dir: &Path, opening: Opening) -> Result<Timestamped> {
        let engine = WiredTiger::open_with(dir, opening.cache_bytes, "checkpoint=(wait=60)")?;
        let engine = Timestamped { engine, keeps: opening.keeps, last: AtomicU64::new(OLDEST) };
        engine.keep_from(OLDEST)?;
        Ok(engine)
    }

    fn keep_from(&self, timestamp: u64) -> Result<()> {
        let config = CString::new(format!("oldest_timestamp={timestamp:x}"))?;
        let connection = self.engine.connection;
        // SAFETY: the connection is open, and the string a C string.
        check(unsafe { ((*connection).set_timestamp)(connection, config.as_ptr()) })
    }

    fn put(session: &mut Session, rows: &[Row], timestamp: u64) -> Result<()> {
        session.open_cursor()?;
        session.begin()?;
        for Row { key, value } in rows {
            session.insert(key, value)?;
        }
        let config = CString::new(format!("commit_timestamp={timestamp:x}"))?;
        // SAFETY: the session is open and has a transaction; the string is a C string.
        check(unsafe { ((*session.session).commit_transaction)(session.session, config.as_ptr()) })
    }
}

impl Keeper for Timestamped {
    fn commit(&self, rows: &[Row]) -> Result<()> {
        self.commit_and_keep(rows).map(|_| ())
    }

    fn commit_and_keep(&self, rows: &[Row]) -> Result<u64> {
        // Relaxed: one thread writes.
        let timestamp = self.last.load(Ordering::Relaxed) + 1;
        let mut session = self.engine.session()?;
        let done = Self::put(&mut session, rows, timestamp);
        self.engine.give_back(vec![session]);
        done?;
        self.last.store(timestamp, Ordering::Relaxed);
        if !self.keeps && timestamp.is_multiple_of(DROP_EVERY) {
            self.keep_from(timestamp)?;
        }
        Ok(timestamp)
    }

    fn view(&self, state: Option<u64>) -> Result<Box<dyn View + '_>> {
        let mut session = self.engine.session()?;
        session.open_cursor()?;
        match state {
            Some(timestamp) => {
                let config = CString::new(format!("read_timestamp={timestamp:x}"))?;
                // SAFETY: the session is open and has no transaction; the string is a C string.
                check(unsafe { ((*session.session).begin_transaction)(session.session, config.as_ptr()) })?;
            }
            None => session.begin()?,
        }
        Ok(Box::new(Begun { of: &self.engine, session: Some(session) }))
    }

    fn settle(&self) -> Result<()> {
        if !self.keeps {
            self.keep_from(self.last.load(Ordering::Relaxed))?;
        }
        let session = self.engine.session()?;
        // SAFETY: the session is open and idle.
        let code = unsafe { ((*session.session).checkpoint)(session.session, std::ptr::null()) };
        self.engine.give_back(vec![session]);
        check(code)
    }
}

struct Begun<'e> {
    of: &'e WiredTiger,
    /// There until the end.
    session: Option<Session>,
}

impl Begun<'_> {
    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("taken by `drop` only")
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut sessions: Vec<_> = self.session.take().into_iter().collect();
        for session in &mut sessions {
            session.roll_back().expect("a transaction that only read can be rolled back");
        }
        self.of.give_back(sessions);
    }
}

impl View for Begun<'_> {
    fn heads(&mut self, keys: &[Key], heads: &mut Vec<u64>) -> Result<()> {
        let session = self.session();
        for key in keys {
            heads.push(session.get(key, head_of)?.unwrap_or(MISSING));
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(u64, u64)> {
        let (mut rows, mut sum) = (0, 0u64);
        let cursor = self.session().cursor;
        let mut value = ffi::Item::of(&[]);
        // SAFETY: the cursor is open and raw: it gives one item for a value, which stays until it is moved. Reset, it
        // begins before the first.
        unsafe {
            check(((*cursor).reset)(cursor))?;
            loop {
                match ((*cursor).next)(cursor) {
                    ffi::NOT_FOUND => return Ok((rows, sum)),
                    code => check(code)?,
                }
                check(((*cursor).get_value)(cursor, &mut value))?;
                rows += 1;
                let value = std::slice::from_raw_parts(value.data.cast(), value.size);
                sum = sum.wrapping_add(head_of(value));
            }
        }
    }
}
