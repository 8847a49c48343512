//! Where the databases of the model test are: on the real disk or on the simulated one, and where their history is.
//!
//! Owns: [`Place`], and the options of the test. Promises: small budgets, so that everything happens often. May call:
//! the engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bygone::io::{Disk, SimDisk};
use bygone::{Db, Durability, Options};

/// Where the database lives.
pub enum Place {
    Real(tempfile::TempDir),
    Sim(SimDisk),
}

/// `history` is the number of the history directory, and `window` the length of the window, if they have to be named.
pub fn open(place: &Place, background: bool, history: Option<u64>, window: Option<Duration>) -> Db {
    let mut options = Options::new()
        .memtable_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .cache_bytes(1 << 20)
        .durability(Durability::Buffered)
        .archive_segment_bytes(64 << 10)
        .background(background);
    if let Some(length) = window {
        options = options.window(length);
    }
    if let Some(number) = history {
        options = options.history_dir(place.history(number));
    }
    match place {
        Place::Real(directory) => options.open(directory.path()),
        Place::Sim(disk) => options.open_on(Arc::new(disk.clone()), PathBuf::from("/db")),
    }
    .unwrap()
}

impl Place {
    pub fn history(&self, number: u64) -> PathBuf {
        match self {
            Place::Real(directory) => directory.path().join(format!("past-{number}")),
            Place::Sim(_) => PathBuf::from(format!("/past-{number}")),
        }
    }

    /// Whether something lies there: an empty directory cannot be moved on the simulated disk.
    pub fn has_history(&self, number: u64) -> bool {
        match self {
            Place::Real(_) => true,
            Place::Sim(disk) => {
                disk.snapshot_files().iter().any(|(path, _)| path.starts_with(self.history(number)))
            }
        }
    }

    /// Moves the history directory, with the one directory in it.
    pub fn move_history(&self, number: u64) {
        let (from, to) = (self.history(number), self.history(number + 1));
        match self {
            Place::Real(_) => std::fs::rename(from, to).unwrap(),
            Place::Sim(disk) => {
                for (path, _) in disk.snapshot_files() {
                    let Ok(inside) = path.strip_prefix(&from) else { continue };
                    let new = to.join(inside);
                    disk.create_dir_all(new.parent().unwrap()).unwrap();
                    disk.rename(&path, &new).unwrap();
                    disk.sync_dir(path.parent().unwrap()).unwrap();
                    disk.sync_dir(new.parent().unwrap()).unwrap();
                }
            }
        }
    }
}
