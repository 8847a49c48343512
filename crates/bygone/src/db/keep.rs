//! Which versions go from one layer to the next.
//!
//! Owns: the copying loop that flush, consolidation and pruning share, and the stream that ends when the database
//! is closed. Promises: of each key those versions go on that a needed state sees, and, where the present is
//! read through the outcome, the newest. May call: run, snapshot, history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::history::visibility::{Needed, Visibility};
use crate::layer::{Key, Versions};
use crate::run::{MergedVersions, Run, RunWriter};
use crate::snapshot::rows;

/// Whether a key's newest version is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newest {
    /// For the present and all that comes.
    Always,
    /// Only if a needed state sees it: the outcome is for the past alone.
    IfSeen,
}

/// Copies to `run` what the needed states see of `versions`.
pub(super) fn keep_needed(
    versions: &mut dyn Versions,
    needed: &Needed,
    newest_needed: Newest,
    run: &mut RunWriter,
) -> Result<()> {
    let mut visibility = Visibility::new(needed);
    // The key of the last version, to notice the next.
    let (mut table, mut key) = (None, Vec::new());
    while versions.advance()? {
        let (version, seq) = (versions.key(), versions.seq());
        if version.table == rows::COMMIT_TIMES && newest_needed == Newest::IfSeen {
            // Only the present is asked for times.
            continue;
        }
        let newest = table != Some(version.table) || key != version.bytes;
        if newest {
            table = Some(version.table);
            key.clear();
            key.extend_from_slice(version.bytes);
            visibility.next_key();
        }
        let seen = visibility.sees(seq);
        if seen || (newest && newest_needed == Newest::Always) {
            versions.load()?;
            run.add(versions.key(), seq, versions.loaded()?)?;
        }
    }
    Ok(())
}

/// The versions of several runs, until the database is closed: then an error, because whoever closes it waits
/// for this thread, and a merge may be long. What was written by then is litter.
pub(super) struct RunsUntilClosed {
    versions: MergedVersions,
    closing: Arc<AtomicBool>,
    passed: u32,
}

/// How many versions pass between two looks.
const LOOK_EVERY: u32 = 4096;

impl RunsUntilClosed {
    pub fn new(runs: &[Arc<Run>], closing: Arc<AtomicBool>) -> RunsUntilClosed {
        let inputs = runs.iter().map(|run| Box::new(run.versions()) as Box<dyn Versions>).collect();
        RunsUntilClosed { versions: MergedVersions::new(inputs), closing, passed: 0 }
    }
}

impl Versions for RunsUntilClosed {
    fn advance(&mut self) -> Result<bool> {
        self.passed = self.passed.wrapping_add(1);
        // Relaxed: it need not be seen at once, and orders nothing.
        if self.passed.is_multiple_of(LOOK_EVERY) && self.closing.load(Ordering::Relaxed) {
            return Err(Error::Poisoned { cause: "the database is being closed".to_owned() });
        }
        self.versions.advance()
    }

    fn key(&self) -> Key<'_> {
        self.versions.key()
    }

    fn seq(&self) -> u64 {
        self.versions.seq()
    }

    fn load(&mut self) -> Result<()> {
        self.versions.load()
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        self.versions.loaded()
    }
}
