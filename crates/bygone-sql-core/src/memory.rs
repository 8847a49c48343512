//! Files that live in memory: SQLite's temporary files, and journals.
//!
//! Owns: their contents. Promises: what a file is, and nothing is left of it when it is closed. May call: `failure`.

use crate::failure::{Failure, Result};
use crate::ffi::SQLITE_IOERR_READ;

/// Files grow by pieces of this size, so that growing copies nothing.
const PIECE_BYTES: usize = 64 << 10;

/// A file in memory.
#[derive(Default)]
pub struct MemoryFile {
    pieces: Vec<Box<[u8]>>,
    bytes: u64,
}

impl MemoryFile {
    /// Its length.
    pub fn bytes(&self) -> i64 {
        self.bytes as i64
    }

    /// Fills `out`, with zeros behind the end; whether all of it lies before the end.
    pub fn read(&self, out: &mut [u8], offset: i64) -> Result<bool> {
        let offset = offset_of(offset)?;
        let within = self.bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        let (inside, outside) = out.split_at_mut(within);
        outside.fill(0);
        let mut at = offset;
        for part in parts(inside.len(), offset) {
            let from = (at % PIECE_BYTES as u64) as usize;
            let piece = &self.pieces[(at / PIECE_BYTES as u64) as usize];
            inside[part.clone()].copy_from_slice(&piece[from..from + part.len()]);
            at += part.len() as u64;
        }
        Ok(within == out.len())
    }

    /// Writes `data`; what lies between the end and it becomes zeros.
    pub fn write(&mut self, data: &[u8], offset: i64) -> Result<()> {
        let offset = offset_of(offset)?;
        let end = offset + data.len() as u64;
        let pieces = usize::try_from(end.div_ceil(PIECE_BYTES as u64)).map_err(|_| bad_offset())?;
        while self.pieces.len() < pieces {
            self.pieces.push(vec![0; PIECE_BYTES].into());
        }
        let mut at = offset;
        for part in parts(data.len(), offset) {
            let from = (at % PIECE_BYTES as u64) as usize;
            let piece = &mut self.pieces[(at / PIECE_BYTES as u64) as usize];
            piece[from..from + part.len()].copy_from_slice(&data[part.clone()]);
            at += part.len() as u64;
        }
        self.bytes = self.bytes.max(end);
        Ok(())
    }

    /// Cuts it off, or fills it up with zeros.
    pub fn truncate(&mut self, bytes: i64) -> Result<()> {
        let bytes = offset_of(bytes)?;
        if bytes > self.bytes {
            return self.write(&[0], bytes as i64 - 1);
        }
        self.pieces.truncate(bytes.div_ceil(PIECE_BYTES as u64) as usize);
        // What is cut off must not come back when the file grows again.
        let tail = (bytes % PIECE_BYTES as u64) as usize;
        if let (true, Some(last)) = (tail > 0, self.pieces.last_mut()) {
            last[tail..].fill(0);
        }
        self.bytes = bytes;
        Ok(())
    }
}

fn bad_offset() -> Failure {
    Failure::code(SQLITE_IOERR_READ)
}

fn offset_of(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| bad_offset())
}

/// The parts of a buffer of `len` bytes that lie in one piece each.
fn parts(len: usize, offset: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let first = PIECE_BYTES - (offset % PIECE_BYTES as u64) as usize;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let room = if done == 0 { first } else { PIECE_BYTES };
        let part = done..(done + room).min(len);
        done = part.end;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_was_written_to_it() {
        let mut file = MemoryFile::default();
        let mut model: Vec<u8> = Vec::new();
        let mut random = 1u64;
        let mut next = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for round in 0..400 {
            let at = next(300_000) as usize;
            if round % 7 == 6 {
                file.truncate(at as i64).unwrap();
                model.resize(at, 0);
            } else {
                let data = vec![round as u8; next(150_000) as usize];
                file.write(&data, at as i64).unwrap();
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(&data);
            }
            assert_eq!(file.bytes(), model.len() as i64);
            let from = next(300_000) as usize;
            let mut out = vec![9; next(150_000) as usize];
            let whole = file.read(&mut out, from as i64).unwrap();
            assert_eq!(whole, from + out.len() <= model.len() || out.is_empty());
            let expected: Vec<u8> = (from..from + out.len()).map(|at| *model.get(at).unwrap_or(&0)).collect();
            assert!(out == expected, "round {round}");
        }
    }

    #[test]
    fn offsets_that_make_no_sense_are_refused() {
        let mut file = MemoryFile::default();
        assert!(file.read(&mut [0], -1).is_err());
        assert!(file.write(&[0], -1).is_err());
        assert!(file.truncate(-1).is_err());
    }
}
