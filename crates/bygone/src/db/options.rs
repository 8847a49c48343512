//! How to open a database.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Db;
use crate::archive::SEGMENT_BYTES_MAX;
use crate::error::{Error, Result};
use crate::history::retention::Retention;
use crate::io::{Disk, RealDisk};
use crate::snapshot::{HeldSnapshot, Limits};
use crate::txn::Durability;
use crate::wal::SEGMENT_BYTES;

/// A builder for [`Db`]. Every size is in bytes.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) create: bool,
    pub(super) read_only: bool,
    pub(super) durability: Durability,
    pub(super) memtable_bytes: usize,
    pub(super) cache_bytes: usize,
    pub(super) log_segment_bytes: u64,
    pub(super) mapped_log: bool,
    pub(super) history_dir: Option<PathBuf>,
    pub(super) archive_segment_bytes: u64,
    pub(super) archive_bytes_per_second: u64,
    pub(super) background: bool,
    pub(super) limits: Limits,
    pub(super) retention: Option<Retention>,
    pub(super) window: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create: true,
            read_only: false,
            durability: Durability::Sync,
            memtable_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            log_segment_bytes: SEGMENT_BYTES,
            mapped_log: true,
            history_dir: None,
            archive_segment_bytes: 256 << 20,
            archive_bytes_per_second: 64 << 20,
            background: true,
            limits: Limits::default(),
            retention: None,
            window: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Whether to make the database if there is none. Default: true.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether to open for reading only, also beside another process that has the database open for writing. It sees
    /// what was committed and declared by now, and stays there until [`Db::refresh`]. Every write gives
    /// `Error::ReadOnly`.
    ///
    /// What it reads is kept for it by a lease, a file in the directory `leases` of the database: the only thing that
    /// is written. So the owner does not use the space again that the database took when it was opened or refreshed,
    /// and does not delete declared snapshots of which this process holds a view ([`Error::SnapshotHeld`]). The lease
    /// ends when the database is closed and its last view dropped, or with the process, however that ends.
    ///
    /// A process that may not write in the directory opens the database as well, if nobody has it open for writing,
    /// and nobody can open it so meanwhile. The same [`history_dir`](Options::history_dir) has to be given as to the
    /// owner. Processes on other machines, over a network file system, are not supported. Default: false.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// When commits are durable that do not say so themselves. Default: `Sync`.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The memory budget of one memtable, at least 64 KiB. Up to five exist when writers outrun the disk.
    /// Default: 64 MiB.
    pub fn memtable_bytes(mut self, bytes: usize) -> Self {
        self.memtable_bytes = bytes;
        self
    }

    /// The memory budget for pages of the base and blocks of runs. Default: 256 MiB.
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The size that the preallocated segments of the write-ahead log grow to, at least 64 KiB. Default: 16
    /// MiB.
    pub fn log_segment_bytes(mut self, bytes: u64) -> Self {
        self.log_segment_bytes = bytes;
        self
    }

    /// Whether commits that need not be durable at once may be written to the log by storing into its mapped file,
    /// where that is as good as a call to the system (on ext4; elsewhere it is not done). Without it such a commit
    /// takes longer by one call; but where a disk fails, or its file system is shut down, under a page that was
    /// dropped from memory, a store ends the process with a signal (`SIGBUS`), and a call gives `Error::Io`. Either
    /// way nothing is lost that was promised. Default: true.
    pub fn mapped_log(mut self, mapped: bool) -> Self {
        self.mapped_log = mapped;
        self
    }

    /// Splits the past from the present: history runs, and pages that only the past needs, go to a directory of the
    /// database's own in this one. It may be on another disk, and several databases may share it. Then the file of
    /// the present does not grow because snapshots are kept or held.
    ///
    /// The path is remembered (up to 400 bytes): later openings need not name it. Who moves the directory names the
    /// new place once. While it is missing, full or failing, reading what lies there gives
    /// [`Error::HistoryUnavailable`] or `Error::Io`; the present goes on, and keeps in the database directory what
    /// it cannot put there. Default: everything stays in the database directory.
    pub fn history_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.history_dir = Some(directory.as_ref().to_owned());
        self
    }

    /// The size that the files of archived pages in the history directory grow to, from 64 KiB to 1 GiB. Default:
    /// 256 MiB.
    pub fn archive_segment_bytes(mut self, bytes: u64) -> Self {
        self.archive_segment_bytes = bytes;
        self
    }

    /// How many bytes of pages the background moves to the history directory in a second at most; 0 for no limit.
    /// Neither [`Db::archive`] nor the moving of pages that are only kept for held snapshots is limited. Default: 64
    /// MiB.
    pub fn archive_bytes_per_second(mut self, bytes: u64) -> Self {
        self.archive_bytes_per_second = bytes;
        self
    }

    /// Whether to flush and merge on threads of the database's own. Without them commits do it when it cannot
    /// wait, and [`Db::flush`] and [`Db::merge`] at any time: then what happens depends on the calls
    /// alone, which tests want. Default: true.
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Applies this policy in the background, every ten seconds while there are commits and every hour while there
    /// are none; needs [`background`](Options::background). Default: every snapshot is kept.
    pub fn retention(mut self, policy: Retention) -> Self {
        self.retention = Some(policy);
        self
    }

    /// Keeps **every commit** readable for so long, without anybody having declared a snapshot of it: the continuous
    /// window. [`Db::as_of`] takes the number of a commit in it, or any time in it (the latest commit at or before
    /// counts), and so do [`Db::diff`], [`Db::export`] and [`Db::restore`]. So what nobody foresaw can be undone.
    /// [`Db::window`] tells which commits these are just now.
    ///
    /// The window is remembered: later openings need not name it, so a tool that writes to the database does not end
    /// it. `Duration::ZERO` gives it up. A new length counts from this opening on: a shorter window lets go what it
    /// does not reach, a longer one has all that was still there. It begins with what is there when it is first asked
    /// for. Only who has the database open for writing moves it: in the background (at the earliest one second after
    /// opening), at the end, and with [`Db::merge`] and [`Db::prune`]; time counts also while nobody has. What the
    /// clock says is taken for granted: one that is put forward empties the window.
    ///
    /// A window costs space: every version that was written in it, and the key frames that go with them, up to a
    /// sixteenth of its length more, and, until half of what a merge kept has left it, up to twice that. Each commit
    /// writes one more record, of 16 bytes, that tells its time. Merges need room for a second base. A view that is
    /// open reads on whatever leaves the window. A snapshot cannot be declared afterwards of a commit in the window,
    /// because snapshots are numbered in the order of their commits; `restore` it and declare that, or `export` it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// use std::time::Duration;
    ///
    /// let db = bygone::Options::new().window(Duration::from_secs(600)).open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// let good = db.snapshot().seq();
    /// db.delete(&accounts, "alice")?; // by accident, and nobody has declared anything
    ///
    /// assert_eq!(db.as_of(good)?.get(&accounts, "alice")?.unwrap(), b"100");
    /// db.restore(good)?;
    /// assert_eq!(db.get(&accounts, "alice")?.unwrap(), b"100");
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// Where the database is opened for reading only, this says nothing. Default: as the database remembers it; none
    /// for a new one.
    pub fn window(mut self, length: Duration) -> Self {
        self.window = Some(length);
        self
    }

    /// What to call, once each, with snapshots and transactions that have been held for so long: they keep
    /// memory and room on the disk. It is called on a thread of the database's own, which closing the database
    /// waits for: so it should not take long, and should not hold the database.
    pub fn on_long_snapshot(
        mut self,
        age: Duration,
        callback: impl Fn(&HeldSnapshot) + Send + Sync + 'static,
    ) -> Self {
        self.limits.long = Some((age, Arc::new(callback)));
        self
    }

    /// How long a snapshot, a transaction or a range may be held. Soon after (a quarter of this, at most one
    /// second) reads through it give `Error::SnapshotExpired`, and what only it kept is let go although its
    /// handle is still there; a range, when it is next asked. A read under way ends with what it has begun to
    /// read. Views of declared snapshots count like others. With a limit each read takes some ten
    /// nanoseconds more. Default: none.
    ///
    /// Without [`background`](Options::background) threads this is looked after by [`Db::stats`],
    /// [`Db::flush`] and [`Db::merge`] alone.
    pub fn max_snapshot_age(mut self, age: Duration) -> Self {
        self.limits.max_age = Some(age);
        self
    }

    /// Opens the database in a directory.
    ///
    /// # Errors
    /// `Locked` if it is open for writing already; `NotFound` if there is none and it may not be made; `Corruption` if
    /// the files are damaged; `Incompatible` if another version wrote them; `Io`.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Db> {
        let db = self.open_on(Arc::new(RealDisk), path)?;
        if !db.is_read_only() {
            db.note_open();
        }
        Ok(db)
    }

    /// Opens a database on a disk of the caller's choice, a simulated one for instance.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub fn open_on(self, disk: Arc<dyn Disk>, path: impl AsRef<Path>) -> Result<Db> {
        let least = [
            ("memtable_bytes", self.memtable_bytes as u64, 64 << 10),
            ("log_segment_bytes", self.log_segment_bytes, 64 << 10),
            ("archive_segment_bytes", self.archive_segment_bytes, 64 << 10),
        ];
        for (name, bytes, least) in least {
            if bytes < least {
                return Err(Error::InvalidArgument {
                    reason: format!("{name} must be at least {least}, not {bytes}"),
                });
            }
        }
        if self.archive_segment_bytes > SEGMENT_BYTES_MAX {
            let reason = format!("archive_segment_bytes must be at most {SEGMENT_BYTES_MAX}");
            return Err(Error::InvalidArgument { reason });
        }
        self.retention.as_ref().map_or(Ok(()), Retention::check)?;
        Db::open_with(disk, path.as_ref(), self)
    }
}
