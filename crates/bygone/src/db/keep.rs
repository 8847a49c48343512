//! Which versions go from one layer to the next.
//!
//! Owns: the copying loop that flush and consolidation share. Promises: of each key the newest version goes on, for the present and all that comes, and those
//! versions that a declared snapshot sees. May call: run, history.

use crate::error::Result;
use crate::history::visibility::Visibility;
use crate::layer::Versions;
use crate::run::RunWriter;

/// Copies to `run` what is needed of `versions`; `declared` are the sequence numbers of the declared snapshots, ascending.
pub(super) fn keep_needed(versions: &mut dyn Versions, declared: &[u64], run: &mut RunWriter) -> Result<()> {
    let mut declared = Visibility::new(declared);
    // The key of the last version, to notice the next.
    let (mut table, mut key) = (None, Vec::new());
    while versions.advance()? {
        let (version, seq) = (versions.key(), versions.seq());
        let newest = table != Some(version.table) || key != version.bytes;
        if newest {
            table = Some(version.table);
            key.clear();
            key.extend_from_slice(version.bytes);
            declared.next_key();
        }
        if declared.sees(seq) || newest {
            versions.load()?;
            run.add(versions.key(), seq, versions.loaded()?)?;
        }
    }
    Ok(())
}
