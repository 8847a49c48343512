//! Reading the log while another process may append to it.
//!
//! Owns: what of it can be trusted then. Promises: changes nothing; finds every commit that was appended before the
//! call, as long as no segment from the floor on was released meanwhile: that is for the caller to find out. May call:
//! `io`, [`super::recover`].
//!
//! A record that is being written looks like a torn one, and what is behind it may say, a moment later, that it was
//! durable. So where the log seems damaged it is read again from there. Whoever wrote the evidence had written the
//! record before, so it is whole now, or it is damaged indeed.
//!
//! What a segment holds that was made into a later one in the meantime does not verify: its records depend on the
//! segment's number. So nothing wrong is read, but the log seems to end there.

use std::path::Path;

use super::recover::{Apply, Expectation, Recovered, Replay, Source, list};
use super::segment::segment_path;
use crate::error::{Error, Result};
use crate::io::{Disk, OpenMode};

/// Reads the log from the floor on and gives every commit that the database does not have yet to `apply`, in
/// order: its number, its segment, its payload. An error of `apply` ends it.
///
/// # Errors
/// `Corruption`: what was durable is not there or not whole, or a segment was released meanwhile.
pub(crate) fn read(
    disk: &dyn Disk,
    dir: &Path,
    expectation: Expectation,
    apply: &mut Apply<'_>,
) -> Result<Recovered> {
    let mut sources = Vec::new();
    let missing = |id, reason: &str| Err(Error::corruption(&segment_path(dir, id), 0, reason));
    if !open_more(disk, dir, &expectation, &mut sources)? {
        return missing(expectation.floor_segment, "this segment of the log is missing");
    }
    let mut replay = Replay::new(expectation);
    loop {
        replay.run(&mut sources, apply)?;
        let end = replay.end;
        // Judged by what is in the file now, not by what was a moment ago.
        forget_windows(&mut sources[end.index..]);
        let doubt = match replay.judge(&mut sources) {
            Err(doubt) => doubt,
            Ok(recovered) => {
                // A later one that is there although the next is not: one was lost, or several were made since.
                let next = expectation.floor_segment + sources.len() as u64;
                if list(disk, dir, next)?.needed.first().is_none_or(|id| *id == next) {
                    return Ok(Recovered { read_only: true, ..recovered });
                }
                if !open_more(disk, dir, &expectation, &mut sources)? {
                    return missing(next, "this segment of the log is missing, but a later one is there");
                }
                continue;
            }
        };
        forget_windows(&mut sources[end.index..]);
        let more = open_more(disk, dir, &expectation, &mut sources)?;
        replay.run(&mut sources, apply)?;
        if replay.end == end && !more {
            return Err(doubt);
        }
    }
}

fn forget_windows(sources: &mut [Source]) {
    sources.iter_mut().for_each(|source| source.window = Vec::new());
}

/// The lengths of all files of a log, in bytes, as far as they stay where they are meanwhile.
pub(crate) fn bytes(disk: &dyn Disk, dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for id in list(disk, dir, 0)?.needed {
        match disk.open(&segment_path(dir, id), OpenMode::Read).and_then(|file| file.len()) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            len => bytes += len.map_err(|e| Error::io(&segment_path(dir, id), "get the length of", e))?,
        }
    }
    Ok(bytes)
}

/// Opens the segments that follow those that are open, one by one: a list of a directory that changes meanwhile may
/// lack one in the middle. Answers whether there were any.
fn open_more(
    disk: &dyn Disk,
    dir: &Path,
    expectation: &Expectation,
    sources: &mut Vec<Source>,
) -> Result<bool> {
    let before = sources.len();
    loop {
        let id = expectation.floor_segment + sources.len() as u64;
        match Source::open(disk, dir, id, OpenMode::Read, expectation.database_id) {
            Ok(source) => sources.push(source),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(sources.len() > before);
            }
            Err(error) => return Err(error),
        }
    }
}
