//! What is left after the power was cut, or after only the program was killed.
//!
//! Owns: the choice of which unsynced changes survive. Promises: the same seed makes the same choice. May
//! call: nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::content::Content;
use super::{Change, FileRef, FileState, SimDisk, State, locked, parent};

/// A disk writes a sector wholly or not at all.
const SECTOR_BYTES: u64 = 512;

impl SimDisk {
    /// What a machine finds on the disk after a power cut at this moment: everything that was synced, and of
    /// the rest what `seed` says.
    ///
    /// Seeds divisible by 4 lose all of the rest, the seeds after them keep all of it, the others keep a
    /// random subset: of writes also single sectors. Changes of one directory are kept or lost each by
    /// itself; a renamed file is found under its old name or its new one. The new disk has no faults and
    /// no locks, and its count is 0.
    pub fn crash_image(&self, seed: u64) -> SimDisk {
        let state = self.state();
        let mut random = Random::new(seed);
        let mut names = state.durable_names.clone();
        for change in &state.pending_names {
            if random.keeps() {
                change.apply(&mut names);
            }
        }
        let mut directories = BTreeMap::new();
        // In the order of the paths, so a directory comes after the one that it is in.
        for (path, durable) in &state.directories {
            let has_parent =
                !state.directories.contains_key(parent(path)) || directories.contains_key(parent(path));
            if has_parent && (*durable || random.keeps()) {
                directories.insert(path.clone(), true);
            }
        }
        names.retain(|path, _| {
            !state.directories.contains_key(parent(path)) || directories.contains_key(parent(path))
        });
        let names: BTreeMap<_, _> = names
            .into_iter()
            .map(|(path, file)| {
                let content = locked(&file).after_crash(&mut random);
                (path, FileState { durable: content.clone(), content, pending: Vec::new() }.share())
            })
            .collect();
        SimDisk::with(State { durable_names: names.clone(), names, directories, ..State::default() })
    }

    /// What a new process finds after this one was killed, while the machine went on: everything that was
    /// written, of which some may still not be durable. The new disk has no faults and no locks, and its
    /// count is 0.
    pub fn killed_image(&self) -> SimDisk {
        let state = self.state();
        // Each file is copied once, however many tables of names know it.
        let mut copies: Vec<(FileRef, FileRef)> = Vec::new();
        let mut copy = |file: &FileRef| {
            if let Some((_, copy)) = copies.iter().find(|(original, _)| Arc::ptr_eq(original, file)) {
                return copy.clone();
            }
            let original = locked(file);
            let copied = FileState {
                content: original.content.clone(),
                durable: original.durable.clone(),
                pending: original.pending.clone(),
            }
            .share();
            copies.push((file.clone(), copied.clone()));
            copied
        };
        let pending_names = state.pending_names.iter().map(|change| change.with_file(&mut copy)).collect();
        SimDisk::with(State {
            names: state.names.iter().map(|(path, file)| (path.clone(), copy(file))).collect(),
            durable_names: state
                .durable_names
                .iter()
                .map(|(path, file)| (path.clone(), copy(file)))
                .collect(),
            pending_names,
            directories: state.directories.clone(),
            ..State::default()
        })
    }

    fn with(state: State) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }
}

impl FileState {
    fn share(self) -> FileRef {
        Arc::new(Mutex::new(self))
    }

    fn after_crash(&self, random: &mut Random) -> Content {
        let mut content = self.durable.clone();
        for change in &self.pending {
            match change {
                Change::SetLen(_) if random.keeps() => change.apply(&mut content),
                Change::SetLen(_) => {}
                Change::Write { offset, data } => match random.survival() {
                    Survival::Whole => content.write(data, *offset),
                    Survival::Lost => {}
                    Survival::Torn => {
                        let end = offset + data.len() as u64;
                        let mut at = *offset;
                        while at < end {
                            let next = (at - at % SECTOR_BYTES + SECTOR_BYTES).min(end);
                            if random.below(2) == 0 {
                                content.write_part(
                                    data,
                                    *offset,
                                    (at - offset) as usize,
                                    (next - offset) as usize,
                                );
                            }
                            at = next;
                        }
                    }
                },
            }
        }
        content
    }

    /// After a sync that failed: what reached the disk did so, and the rest never will, because the system
    /// takes it for written.
    pub(super) fn settle(&mut self, random: &mut Random) {
        self.durable = self.after_crash(random);
        self.pending.clear();
    }
}

enum Survival {
    Whole,
    Lost,
    Torn,
}

/// SplitMix64 (Steele, Lea, Flood, 2014), and how much of what was not synced survives.
pub(super) struct Random {
    state: u64,
    extreme: Option<bool>,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        let extreme = match seed % 4 {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        Random { state: seed, extreme }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn keeps(&mut self) -> bool {
        self.extreme.unwrap_or_else(|| self.below(2) == 0)
    }

    fn survival(&mut self) -> Survival {
        match self.extreme {
            Some(true) => Survival::Whole,
            Some(false) => Survival::Lost,
            None => match self.below(5) {
                0 | 1 => Survival::Whole,
                2 | 3 => Survival::Lost,
                _ => Survival::Torn,
            },
        }
    }
}
