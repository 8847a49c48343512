//! What a superblock says beyond the base's own root.
//!
//! Owns: the manifest's bytes. Promises: one superblock write changes runs, log floor and counters together
//! with the root. May call: `codec`, run,
//! archive, snapshot, history.

use crate::archive::ArchiveState;
use crate::base::MANIFEST_BYTES_MAX;
use crate::codec::Reader;
use crate::history::plan::Chain;
use crate::limits::RUNS_MAX;
use crate::run::RunMeta;
use crate::snapshot::{WindowStart, WindowState};

const MANIFEST_VERSION: u16 = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Keys the hashes of this database; secret, so that nobody can choose keys that collide.
    pub hash_seed: u64,
    /// Everything up to this commit is in runs or in the base.
    pub flushed_seq: u64,
    /// The log segment that recovery begins with.
    pub wal_floor: u64,
    pub next_run_id: u64,
    pub next_table_id: u32,
    pub next_snapshot_id: u64,
    pub last_time_micros: u64,
    /// The history run that a merge is writing; 0 if none is. After a crash it is litter.
    pub unfinished_history_run: u64,
    /// How the history's intervals lead on from the last key frame.
    pub chain: Chain,
    /// What the last merge rewrote: the price of keeping a base.
    pub last_merge_bytes: u64,
    /// And the bytes of the runs that it merged.
    pub last_merged_run_bytes: u64,
    pub history_runs: u64,
    pub history_bytes: u64,
    pub retained_bases: u64,
    /// What snapshots kept that were deleted up to this commit was given back.
    pub pruned_seq: u64,
    /// The continuous window. Whoever drops versions goes by the start that stands here: so no superblock names an
    /// earlier one than what is there reaches.
    pub window: Option<WindowState>,
    /// The window was moved or given up, and what it kept was not given back yet.
    pub window_left: bool,
    /// Commits with smaller numbers were durable: if the log ends before, it is damaged.
    pub durable_end: u64,
    /// Where archived pages are, and history runs that lie elsewhere than in the database.
    pub archive: ArchiveState,
    /// Newest first.
    pub runs: Vec<RunMeta>,
}

impl Manifest {
    /// Given away in memory only: an id whose superblock was never written is used again after a crash, when
    /// the file that it left is gone.
    pub fn take_run_id(&mut self) -> u64 {
        let id = self.next_run_id;
        self.next_run_id += 1;
        id
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = MANIFEST_VERSION.to_le_bytes().to_vec();
        let none = WindowState { length_micros: 0, start: WindowStart::default() };
        let window = self.window.unwrap_or(none);
        for number in [
            self.hash_seed,
            self.flushed_seq,
            self.wal_floor,
            self.next_run_id,
            u64::from(self.next_table_id),
            self.next_snapshot_id,
            self.last_time_micros,
            self.unfinished_history_run,
            self.last_merge_bytes,
            self.last_merged_run_bytes,
            self.history_runs,
            self.history_bytes,
            self.retained_bases,
            self.pruned_seq,
            self.durable_end,
            window.length_micros,
            window.start.seq,
            window.start.time_micros,
            u64::from(self.window_left),
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        self.chain.encode(&mut out);
        self.archive.encode(&mut out);
        out.extend_from_slice(&(self.runs.len() as u16).to_le_bytes());
        for run in &self.runs {
            run.encode(&mut out);
        }
        assert!(out.len() <= MANIFEST_BYTES_MAX, "RUNS_MAX keeps a manifest within a superblock");
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Manifest> {
        let mut reader = Reader::new(bytes);
        if reader.u16()? != MANIFEST_VERSION {
            return None;
        }
        let mut manifest = Manifest {
            hash_seed: reader.u64()?,
            flushed_seq: reader.u64()?,
            wal_floor: reader.u64()?,
            next_run_id: reader.u64()?,
            next_table_id: u32::try_from(reader.u64()?).ok()?,
            next_snapshot_id: reader.u64()?,
            last_time_micros: reader.u64()?,
            unfinished_history_run: reader.u64()?,
            last_merge_bytes: reader.u64()?,
            last_merged_run_bytes: reader.u64()?,
            history_runs: reader.u64()?,
            history_bytes: reader.u64()?,
            retained_bases: reader.u64()?,
            pruned_seq: reader.u64()?,
            durable_end: reader.u64()?,
            window: decode_window(&mut reader)?,
            window_left: reader.u64()? != 0,
            chain: Chain::decode(&mut reader)?,
            archive: ArchiveState::decode(&mut reader)?,
            runs: Vec::new(),
        };
        let runs = usize::from(reader.u16()?);
        if runs > RUNS_MAX {
            return None;
        }
        for _ in 0..runs {
            manifest.runs.push(RunMeta::decode(&mut reader)?);
        }
        (reader.remaining() == 0).then_some(manifest)
    }
}

fn decode_window(reader: &mut Reader<'_>) -> Option<Option<WindowState>> {
    let (length_micros, seq, time_micros) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let start = WindowStart { seq, time_micros };
    Some((length_micros > 0).then_some(WindowState { length_micros, start }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_a_cut_one_is_refused() {
        let run = RunMeta { id: 3, min_seq: 1, max_seq: 9, records: 4, bytes: 5, footer_checksum: 6 };
        let chain = Chain { runs: 2, bytes: 77 };
        let manifest = Manifest {
            hash_seed: 1,
            wal_floor: 2,
            next_table_id: 16,
            chain,
            window: Some(WindowState { length_micros: 7, start: WindowStart { seq: 8, time_micros: 9 } }),
            window_left: true,
            runs: vec![run; 3],
            ..Default::default()
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Some(manifest));
        for length in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..length]), None);
        }
    }

    #[test]
    fn changed_bytes_never_panic() {
        let run = RunMeta { id: 3, min_seq: 1, max_seq: 9, records: 4, bytes: 5, footer_checksum: 6 };
        let bytes = Manifest { runs: vec![run; 3], ..Default::default() }.encode();
        for place in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] = value;
                if let Some(manifest) = Manifest::decode(&changed) {
                    assert!(manifest.runs.len() <= RUNS_MAX);
                }
            }
        }
    }

    #[test]
    fn a_full_manifest_fits_a_superblock() {
        let run = RunMeta { id: 3, min_seq: 1, max_seq: 9, records: 4, bytes: 5, footer_checksum: 6 };
        let archive = ArchiveState::largest();
        let manifest = Manifest { runs: vec![run; RUNS_MAX], archive, ..Default::default() };
        assert!(manifest.encode().len() <= MANIFEST_BYTES_MAX);
    }
}
