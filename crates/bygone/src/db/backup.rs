//! Backups: another database with everything that this one has declared.
//!
//! Owns: the order in which snapshots are carried over, and what is held for the next time. Promises: others read
//! and write meanwhile; a backup that breaks off is continued by the next. May call: sending and receiving.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{Db, Options};
use crate::error::{Error, Result};
use crate::history::SnapshotInfo;
use crate::ids::SnapshotId;
use crate::limits::NAME_BYTES_MAX;

/// Parts of a stream that are on their way between two threads.
const PARTS_MAX: usize = 64;

impl Db {
    /// Brings a backup in another directory up to date; makes one if there is none. It is a database that opens as
    /// every other, with all declared snapshots (their names, times and metadata, under numbers of its own), and
    /// whose present is that of this moment. For that a snapshot of the latest commit is declared here, with the
    /// metadata `backup`, unless there is one; it is answered, and held until the next backup to that directory,
    /// which carries over only what came since. Snapshots that were deleted here in between stay there.
    ///
    /// Others read and write meanwhile: each snapshot is read as any other reader would. What has been carried over
    /// is kept when it breaks off.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = bygone::Db::open(directory.path().join("bank"))?;
    /// let accounts = db.table("accounts")?;
    /// db.put(&accounts, "alice", "100")?;
    /// db.snapshot_now("monday")?;
    /// db.backup(directory.path().join("backup"))?;
    /// db.put(&accounts, "alice", "90")?;
    /// db.backup(directory.path().join("backup"))?;
    ///
    /// let backup = bygone::Db::open(directory.path().join("backup"))?;
    /// assert_eq!(backup.get(&backup.open_table("accounts")?, "alice")?.unwrap(), b"90");
    /// assert!(backup.as_of("monday").is_ok());
    /// # bygone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` or `NotEmpty` if the directory holds something else than a backup of this database, or one
    /// that was changed; `Locked`, `ReadOnly`, `Io`, `Corruption`, `Poisoned`.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<SnapshotId> {
        let path = path.as_ref();
        let engine = self.engine();
        engine.writer()?;
        let options = Options::new().background(false).cache_bytes(engine.options.cache_bytes);
        let target = Db::open_with(engine.disk.clone(), path, options)?;
        let latest = self.declare_latest()?;
        let holder = holder(path);
        self.hold_snapshot(latest, &holder)?;
        let snapshots = self.snapshots()?;
        let id_there = |info: &SnapshotInfo| {
            let database_id = engine.store.database_id();
            target.engine().received(&target.snapshot(), database_id, info.id.0)
        };
        let mut carried = 0;
        for (index, info) in snapshots.iter().enumerate().rev() {
            if id_there(info)?.is_some() {
                carried = index + 1;
                break;
            }
        }
        for index in carried..snapshots.len() {
            let from = index.checked_sub(1).map(|before| &snapshots[before]);
            match self.carry(from, &snapshots[index], &target) {
                // Deleted meanwhile, it or the one before: the list has changed.
                Err(Error::SnapshotNotFound { .. }) => return self.backup_again(target, path),
                carried => carried?,
            }
        }
        for info in snapshots.iter().filter(|info| info.id != latest && info.holders.contains(&holder)) {
            self.release_snapshot(info.id, &holder)?;
        }
        Ok(latest)
    }

    fn backup_again(&self, target: Db, path: &Path) -> Result<SnapshotId> {
        drop(target);
        self.backup(path)
    }

    /// The declared snapshot of the latest commit; declares one if there is none.
    fn declare_latest(&self) -> Result<SnapshotId> {
        let seq = self.snapshot().seq();
        if let Some(last) = self.snapshots()?.pop()
            && last.seq == seq
        {
            return Ok(last.id);
        }
        let mut tx = self.begin()?;
        tx.set_snapshot_metadata(*b"backup");
        tx.commit_with_snapshot(None)
    }

    fn carry(&self, from: Option<&SnapshotInfo>, to: &SnapshotInfo, target: &Db) -> Result<()> {
        let (sender, receiver) = sync_channel(PARTS_MAX);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| self.send(from.map(Into::into), to, Parts(sender)));
            let received = target.receive(PartsReader { receiver, part: Vec::new(), at: 0 });
            let sent = sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (received, sent) {
                (Ok(_), _) => Ok(()),
                // The stream is not whole because of what befell the sender.
                (Err(Error::StreamIncomplete { .. }), Err(error)) => Err(error),
                (Err(error), _) => Err(error),
            }
        })
    }
}

/// Who holds the snapshot that the next backup begins with.
fn holder(path: &Path) -> String {
    let mut holder = format!("backup to {}", path.display());
    while holder.len() > NAME_BYTES_MAX {
        holder.pop();
    }
    holder
}

/// The sending end of a stream between threads.
struct Parts(SyncSender<Vec<u8>>);

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map(|()| bytes.len()).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The receiving end.
struct PartsReader {
    receiver: Receiver<Vec<u8>>,
    part: Vec<u8>,
    at: usize,
}

impl Read for PartsReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.part.len() {
            match self.receiver.recv() {
                Ok(part) => (self.part, self.at) = (part, 0),
                Err(_) => return Ok(0),
            }
        }
        let count = buffer.len().min(self.part.len() - self.at);
        buffer[..count].copy_from_slice(&self.part[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
