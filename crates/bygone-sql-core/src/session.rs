//! What belongs to a connection, beside its files.
//!
//! Owns: [`Session`], and the list by which those outside of a call find it. Promises: it lives as long as the
//! functions of its connection. May call: `statement`, for its values.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::directory::locked;
use crate::ffi::sqlite3;
use crate::statement::Kept;

static SESSIONS: Mutex<Option<HashMap<usize, Weak<Session>>>> = Mutex::new(None);

/// What a connection's set query reports before it turns to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetProgress {
    /// The snapshot's id.
    pub snapshot: u64,
    /// How many are done.
    pub done: u64,
    /// How many there are in all.
    pub total: u64,
    /// How many of those done took over the result of the one before.
    pub skipped: u64,
}

/// What a set query did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetStats {
    /// The snapshots that were asked.
    pub snapshots: u64,
    /// How often the query was run.
    pub runs: u64,
    /// For how many snapshots it was not run, since nothing that it reads had changed.
    pub skipped: u64,
    /// Rows that all runs gave.
    pub rows: u64,
    /// How often a page was read in the database, to answer or to compare; not those that were kept from before.
    pub page_reads: u64,
}

/// Called before each snapshot; `false` ends the set query.
pub type OnProgress = Box<dyn FnMut(&SetProgress) -> bool + Send>;

/// One connection.
#[derive(Default)]
pub(crate) struct Session {
    /// While it answers a set query: as of which snapshot.
    pub asked: Mutex<Asked>,
    /// Of its last set query.
    pub stats: Mutex<Option<SetStats>>,
    pub on_progress: Mutex<Option<OnProgress>>,
    /// What the last `PRAGMA page_size` asked for, whichever database it named, as SQLite keeps it for `VACUUM`.
    pub page_bytes: AtomicU32,
    /// How many cursors of virtual tables of ours are open.
    pub cursors: AtomicUsize,
    pub sharing: Mutex<Sharing>,
    /// What is to be read as `bygone_values`, once: values, and how often each is there.
    pub values: Mutex<Vec<(Kept, u64)>>,
}

/// When a set query is shared with other threads.
pub(crate) struct Sharing {
    /// From how long on that it would still take; `None` for never.
    pub left: Option<Duration>,
}

impl Default for Sharing {
    fn default() -> Sharing {
        // Some times what it takes to begin threads with connections of their own.
        Sharing { left: Some(Duration::from_millis(5)) }
    }
}

/// What a query is told of the snapshot that it runs as of.
#[derive(Default)]
pub(crate) struct Asked {
    pub snapshot: Option<u64>,
    /// Whether it wanted to know: then its result depends on it.
    pub told: bool,
}

impl Session {
    /// One for a connection that is new.
    pub fn begin(connection: *mut sqlite3) -> Arc<Session> {
        let session = Arc::new(Session::default());
        let mut sessions = locked(&SESSIONS);
        let sessions = sessions.get_or_insert_default();
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.insert(connection as usize, Arc::downgrade(&session));
        session
    }

    /// That of a connection that is open.
    pub fn of(connection: *mut sqlite3) -> Option<Arc<Session>> {
        locked(&SESSIONS).as_ref()?.get(&(connection as usize))?.upgrade()
    }

    /// A share for a function of the connection's, which [`release`] gives back.
    pub fn share(self: &Arc<Session>) -> *mut c_void {
        Arc::into_raw(self.clone()).cast_mut().cast()
    }
}

/// Gives back what [`Session::share`] has given.
///
/// # Safety
/// `share` is such a share, and nobody uses it any more.
pub(crate) unsafe extern "C" fn release(share: *mut c_void) {
    // SAFETY: as promised.
    drop(unsafe { Arc::from_raw(share.cast::<Session>()) });
}
