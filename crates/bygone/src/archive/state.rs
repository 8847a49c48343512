//! What a superblock says of the archive.
//!
//! Owns: those bytes, a part of the manifest. Promises: they fit beside everything else that a manifest holds. May
//! call: `codec`, run.

use super::map::RUNS_MAX;
use crate::codec::Reader;
use crate::run::RunMeta;

/// The longest path of a history directory that is remembered, in bytes.
pub(crate) const PLACE_BYTES_MAX: usize = 400;

/// The archive as of one superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArchiveState {
    /// The directory that the application named, if that was elsewhere than in the database; empty if not, or if its
    /// path is too long to be remembered.
    pub place: String,
    /// Whether anything may lie there: then the directory is not made anew when it is missing.
    pub used: bool,
    /// The id that the next segment or map run gets.
    pub next_id: u64,
    /// Every page that a key frame reaches and that the base of this generation does not have is archived.
    pub complete_to: u64,
    /// How many pages the page map leads to.
    pub pages: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    /// Bytes of the segments that hold them.
    pub segment_bytes: u64,
    /// The runs of the page map, newest first.
    pub runs: Vec<RunMeta>,
}

impl ArchiveState {
    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.next_id, self.complete_to, self.pages, self.live_bytes, self.segment_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.push(u8::from(self.used));
        out.extend_from_slice(&(self.place.len() as u16).to_le_bytes());
        out.extend_from_slice(self.place.as_bytes());
        out.extend_from_slice(&(self.runs.len() as u16).to_le_bytes());
        self.runs.iter().for_each(|run| run.encode(out));
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<ArchiveState> {
        let mut state = ArchiveState {
            next_id: reader.u64()?,
            complete_to: reader.u64()?,
            pages: reader.u64()?,
            live_bytes: reader.u64()?,
            segment_bytes: reader.u64()?,
            used: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
            place: {
                let len = usize::from(reader.u16()?);
                if len > PLACE_BYTES_MAX {
                    return None;
                }
                String::from_utf8(reader.bytes(len)?.to_vec()).ok()?
            },
            runs: Vec::new(),
        };
        let runs = usize::from(reader.u16()?);
        if runs > RUNS_MAX {
            return None;
        }
        for _ in 0..runs {
            state.runs.push(RunMeta::decode(reader)?);
        }
        Some(state)
    }

    /// The largest that can be.
    #[cfg(test)]
    pub fn largest() -> ArchiveState {
        let run = RunMeta { id: 3, min_seq: 1, max_seq: 9, records: 4, bytes: 5, footer_checksum: 6 };
        ArchiveState { place: "x".repeat(PLACE_BYTES_MAX), runs: vec![run; RUNS_MAX], ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_and_a_cut_one_is_refused() {
        let state = ArchiveState { used: true, next_id: 7, pages: 3, ..ArchiveState::largest() };
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        assert_eq!(ArchiveState::decode(&mut Reader::new(&bytes)), Some(state));
        for length in 0..bytes.len() {
            assert_eq!(ArchiveState::decode(&mut Reader::new(&bytes[..length])), None);
        }
    }
}
