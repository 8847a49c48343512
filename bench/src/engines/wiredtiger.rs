//! WiredTiger, the library that is installed. In suites `snapshots` and `past` only.
//!
//! A snapshot is a transaction of a session whose isolation is `snapshot`, begun without a configuration string, so
//! that none is parsed, and rolled back. A session has one transaction at a time, so a thread that holds many has
//! many sessions; they are kept for the next. Commits go to the log, which is not synced.
//!
//! The declarations are those of `wiredtiger.h` 3.2.1, as far as they are used; the library's version is checked at the
//! opening, since the tables of functions change from version to version.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail, ensure};

use super::snapshots::{Held, Opening, Snapshots, Taker};
use crate::data::{Key, Record};

/// What was declared below.
const VERSION: (c_int, c_int) = (3, 2);

/// More than the suite uses at any time.
const SESSIONS_MAX: usize = 50_000;

const TABLE: &CStr = c"table:bench";

/// Commits go to a log, which is not synced.
const WITH_LOG: &str = "log=(enabled),transaction_sync=(enabled=false),checkpoint=(wait=60,log_size=1GB)";

pub struct WiredTiger {
    pub(super) connection: *mut ffi::Connection,
    /// Idle; taken and given back many at a time. Closed with the connection.
    spares: Mutex<Vec<Session>>,
}

// SAFETY: a connection may be used by any thread at any time.
unsafe impl Send for WiredTiger {}
// SAFETY: as above.
unsafe impl Sync for WiredTiger {}

impl WiredTiger {
    pub fn open(dir: &Path, opening: Opening) -> Result<WiredTiger> {
        WiredTiger::open_with(dir, opening.cache_bytes, WITH_LOG)
    }

    pub(super) fn open_with(dir: &Path, cache_bytes: usize, more: &str) -> Result<WiredTiger> {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: three places for numbers.
        unsafe { ffi::wiredtiger_version(&mut major, &mut minor, &mut patch) };
        ensure!((major, minor) == VERSION, "WiredTiger {major}.{minor}.{patch} has other functions than 3.2");
        let home = CString::new(dir.as_os_str().as_bytes())?;
        let config =
            CString::new(format!("create,cache_size={cache_bytes},session_max={SESSIONS_MAX},{more}"))?;
        let mut connection = null_mut();
        // SAFETY: C strings, and no handler of events.
        check(unsafe { ffi::wiredtiger_open(home.as_ptr(), null_mut(), config.as_ptr(), &mut connection) })?;
        let engine = WiredTiger { connection, spares: Mutex::new(Vec::new()) };
        let session = engine.open_session()?;
        // SAFETY: the session is open; the strings are C strings.
        check(unsafe {
            ((*session).create)(session, TABLE.as_ptr(), c"key_format=u,value_format=u".as_ptr())
        })?;
        // SAFETY: nobody has it after this.
        check(unsafe { ((*session).close)(session, null()) })?;
        Ok(engine)
    }

    fn open_session(&self) -> Result<*mut ffi::Session> {
        let mut session = null_mut();
        // SAFETY: the connection is open.
        check(unsafe {
            let open = (*self.connection).open_session;
            open(self.connection, null_mut(), c"isolation=snapshot".as_ptr(), &mut session)
        })?;
        Ok(session)
    }

    /// These many idle sessions.
    fn sessions(&self, count: usize) -> Result<Vec<Session>> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let from = spares.len().saturating_sub(count);
        let mut sessions = spares.split_off(from);
        drop(spares);
        while sessions.len() < count {
            sessions.push(Session { session: self.open_session()?, cursor: null_mut() });
        }
        Ok(sessions)
    }

    pub(super) fn session(&self) -> Result<Session> {
        match self.sessions(1)?.pop() {
            Some(session) => Ok(session),
            None => bail!("one was asked for"),
        }
    }

    pub(super) fn give_back(&self, mut sessions: Vec<Session>) {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).append(&mut sessions);
    }
}

impl Drop for WiredTiger {
    fn drop(&mut self) {
        // SAFETY: nobody has it after this. It closes its sessions.
        unsafe { ((*self.connection).close)(self.connection, null()) };
    }
}

impl Snapshots for WiredTiger {
    fn put(&self, records: &[Record]) -> Result<()> {
        let mut session = self.session()?;
        let done = session.put(records);
        self.give_back(vec![session]);
        done
    }

    fn settle(&self) -> Result<()> {
        let session = self.session()?;
        // SAFETY: the session is open and idle.
        let code = unsafe { ((*session.session).checkpoint)(session.session, null()) };
        self.give_back(vec![session]);
        check(code)
    }

    fn taker(&self) -> Result<Box<dyn Taker<'_> + '_>> {
        let mut session = self.session()?;
        session.open_cursor()?;
        Ok(Box::new(OneSession { of: self, session: Some(session) }))
    }
}

struct OneSession<'e> {
    of: &'e WiredTiger,
    /// There until the end.
    session: Option<Session>,
}

impl OneSession<'_> {
    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("taken by `drop` only")
    }
}

impl Drop for OneSession<'_> {
    fn drop(&mut self) {
        self.of.give_back(self.session.take().into_iter().collect());
    }
}

impl<'e> Taker<'e> for OneSession<'e> {
    fn pairs(&mut self, count: usize) -> Result<()> {
        let session = self.session();
        for _ in 0..count {
            session.begin()?;
            session.roll_back()?;
        }
        Ok(())
    }

    fn get_each(&mut self, keys: &[Key]) -> Result<u64> {
        let session = self.session();
        let mut bytes = 0;
        for key in keys {
            session.begin()?;
            bytes += session.get(key, |value| value.len() as u64)?.unwrap_or(0);
            session.roll_back()?;
        }
        Ok(bytes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let session = self.session();
        session.begin()?;
        let value = session.get(key, <[u8]>::to_vec)?;
        session.roll_back()?;
        Ok(value)
    }

    fn take(&mut self, count: usize) -> Result<Box<dyn Held + 'e>> {
        let mut sessions = self.of.sessions(count)?;
        for session in &mut sessions {
            session.begin()?;
        }
        Ok(Box::new(Begun { of: self.of, sessions: Mutex::new(sessions) }))
    }
}

struct Begun<'e> {
    of: &'e WiredTiger,
    sessions: Mutex<Vec<Session>>,
}

impl Held for Begun<'_> {
    fn read(&self, index: usize, key: &Key) -> Result<Option<Vec<u8>>> {
        let session = &mut self.sessions.lock().unwrap_or_else(PoisonError::into_inner)[index];
        session.open_cursor()?;
        session.get(key, <[u8]>::to_vec)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut sessions = std::mem::take(&mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner));
        for session in &mut sessions {
            session.roll_back().expect("a transaction that only read can be rolled back");
        }
        self.of.give_back(sessions);
    }
}

/// A session and its cursor; whoever has it uses it alone.
pub(super) struct Session {
    pub session: *mut ffi::Session,
    /// Null until it is needed.
    pub cursor: *mut ffi::Cursor,
}

// SAFETY: a session may go from thread to thread as long as one at a time uses it.
unsafe impl Send for Session {}

impl Session {
    pub fn open_cursor(&mut self) -> Result<()> {
        if !self.cursor.is_null() {
            return Ok(());
        }
        // SAFETY: the session is open; the strings are C strings; `raw` makes keys and values plain items.
        check(unsafe {
            let open = (*self.session).open_cursor;
            open(self.session, TABLE.as_ptr(), null_mut(), c"raw".as_ptr(), &mut self.cursor)
        })
    }

    #[inline]
    pub fn begin(&mut self) -> Result<()> {
        // SAFETY: the session is open and has no transaction.
        check(unsafe { ((*self.session).begin_transaction)(self.session, null()) })
    }

    #[inline]
    pub fn roll_back(&mut self) -> Result<()> {
        // SAFETY: the session is open and has a transaction. This resets its cursor.
        check(unsafe { ((*self.session).rollback_transaction)(self.session, null()) })
    }

    #[inline]
    pub fn get<T>(&mut self, key: &Key, read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let key = ffi::Item::of(key);
        let mut value = ffi::Item::of(&[]);
        // SAFETY: the cursor is open and raw: it takes one item for a key, and gives one for a value, which stays
        // until the cursor is moved.
        unsafe {
            ((*self.cursor).set_key)(self.cursor, &key);
            match ((*self.cursor).search)(self.cursor) {
                ffi::NOT_FOUND => return Ok(None),
                code => check(code)?,
            }
            check(((*self.cursor).get_value)(self.cursor, &mut value))?;
            Ok(Some(read(std::slice::from_raw_parts(value.data.cast(), value.size))))
        }
    }

    /// The transaction has begun, and the cursor is open.
    pub fn insert(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        let (key, value) = (ffi::Item::of(key), ffi::Item::of(value));
        // SAFETY: as in `get`. What the items point at outlives the insertion, which overwrites by default.
        check(unsafe {
            ((*self.cursor).set_key)(self.cursor, &key);
            ((*self.cursor).set_value)(self.cursor, &value);
            ((*self.cursor).insert)(self.cursor)
        })
    }

    fn put(&mut self, records: &[Record]) -> Result<()> {
        self.open_cursor()?;
        self.begin()?;
        for record in records {
            self.insert(&record.key, &record.value)?;
        }
        // SAFETY: the session is open and has a transaction.
        check(unsafe { ((*self.session).commit_transaction)(self.session, null()) })
    }
}

#[inline]
pub(super) fn check(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { fail(code) }
}

#[cold]
fn fail(code: c_int) -> Result<()> {
    // SAFETY: the library has a text for any code, which stays until this thread's next.
    let text = unsafe { CStr::from_ptr(ffi::wiredtiger_strerror(code)) };
    bail!("WiredTiger: {}", text.to_string_lossy())
}

/// From `wiredtiger.h`. Functions that are not used stand as [`Unused`](ffi::Unused), to keep the places of the others.
pub(super) mod ffi {
    use super::{c_char, c_int, c_void};

    pub const NOT_FOUND: c_int = -31_803;

    pub type Unused = *const c_void;

    #[repr(C)]
    pub struct Item {
        pub data: *const c_void,
        pub size: usize,
        mem: *mut c_void,
        mem_size: usize,
        flags: u32,
    }

    impl Item {
        pub fn of(bytes: &[u8]) -> Item {
            let mem = std::ptr::null_mut();
            Item { data: bytes.as_ptr().cast(), size: bytes.len(), mem, mem_size: 0, flags: 0 }
        }
    }

    type OnCursor = unsafe extern "C" fn(*mut Cursor) -> c_int;

    type OnSession = unsafe extern "C" fn(*mut Session, *const c_char) -> c_int;

    #[repr(C)]
    pub struct Cursor {
        session: *mut Session,
        uri: *const c_char,
        key_format: *const c_char,
        value_format: *const c_char,
        get_key: Unused,
        pub get_value: unsafe extern "C" fn(*mut Cursor, ...) -> c_int,
        pub set_key: unsafe extern "C" fn(*mut Cursor, ...),
        pub set_value: unsafe extern "C" fn(*mut Cursor, ...),
        compare: Unused,
        equals: Unused,
        pub next: OnCursor,
        prev: Unused,
        pub reset: OnCursor,
        pub search: OnCursor,
        search_near: Unused,
        pub insert: OnCursor,
        // More follows: only the library makes these.
    }

    #[repr(C)]
    pub struct Session {
        connection: *mut Connection,
        app_private: *mut c_void,
        pub close: OnSession,
        reconfigure: Unused,
        strerror: Unused,
        pub open_cursor: unsafe extern "C" fn(
            *mut Session,
            *const c_char,
            *mut Cursor,
            *const c_char,
            *mut *mut Cursor,
        ) -> c_int,
        alter: Unused,
        pub create: unsafe extern "C" fn(*mut Session, *const c_char, *const c_char) -> c_int,
        import: Unused,
        compact: Unused,
        drop: Unused,
        join: Unused,
        log_flush: Unused,
        log_printf: Unused,
        rebalance: Unused,
        rename: Unused,
        reset: Unused,
        salvage: Unused,
        truncate: Unused,
        upgrade: Unused,
        verify: Unused,
        pub begin_transaction: OnSession,
        pub commit_transaction: OnSession,
        prepare_transaction: Unused,
        pub rollback_transaction: OnSession,
        timestamp_transaction: Unused,
        query_timestamp: Unused,
        pub checkpoint: OnSession,
        // More follows.
    }

    #[repr(C)]
    pub struct Connection {
        async_flush: Unused,
        async_new_op: Unused,
        pub close: unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int,
        debug_info: Unused,
        reconfigure: Unused,
        get_home: Unused,
        configure_method: Unused,
        is_new: Unused,
        pub open_session:
            unsafe extern "C" fn(*mut Connection, *mut c_void, *const c_char, *mut *mut Session) -> c_int,
        query_timestamp: Unused,
        pub set_timestamp: unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int,
        // More follows.
    }

    #[link(name = "wiredtiger")]
    unsafe extern "C" {
        pub fn wiredtiger_open(
            home: *const c_char,
            handler: *mut c_void,
            config: *const c_char,
            connection: *mut *mut Connection,
        ) -> c_int;
        pub fn wiredtiger_strerror(error: c_int) -> *const c_char;
        pub fn wiredtiger_version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) -> *const c_char;
    }
}
