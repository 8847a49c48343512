//! Which generations are being read, and which dead pages they keep.
//!
//! Owns: the count of live base versions per generation, and the dead lists. Promises: a page that died is
//! given back exactly when no live generation lies between its birth and its death. May call: nothing.
//!
//! A dead page is on the list of the newest live generation that sees it. When that generation ends, the page
//! moves to the next older one if that sees it too, else it is free (the dead lists of ZFS snapshots). So a
//! page is looked at once per live generation that it outlives, never while a long reader just goes on, and
//! one long reader keeps only pages that it can see.

use std::collections::BTreeMap;

/// A page that the current base no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeadPage {
    pub slot: u64,
    pub birth: u64,
}

#[derive(Debug, Default)]
struct Generation {
    versions: usize,
    dead: Vec<DeadPage>,
}

#[derive(Debug, Default)]
pub(super) struct LiveGenerations {
    generations: BTreeMap<u64, Generation>,
}

impl LiveGenerations {
    pub fn enter(&mut self, generation: u64) {
        self.generations.entry(generation).or_default().versions += 1;
    }

    /// Only counts: whoever ends a base version is a reader, and must not pay for the lists. Answers whether
    /// that was the generation's last.
    pub fn leave(&mut self, generation: u64) -> bool {
        let Some(entry) = self.generations.get_mut(&generation) else { return false };
        entry.versions -= 1;
        entry.versions == 0
    }

    pub fn is_live(&self, generation: u64) -> bool {
        self.generations.get(&generation).is_some_and(|entry| entry.versions > 0)
    }

    /// Takes on pages that died with the newest generation; each is put on `free` or on a list.
    pub fn bury(&mut self, death: u64, dead: Vec<DeadPage>, free: &mut Vec<u64>) {
        Self::settle(&mut self.generations, death, dead, free);
    }

    /// Puts on `free` what only ended generations kept.
    pub fn collect(&mut self, free: &mut Vec<u64>) {
        let ended: Vec<u64> =
            self.generations.iter().filter(|(_, entry)| entry.versions == 0).map(|(g, _)| *g).collect();
        // The newest first, so that its pages are looked at again when an older one has ended too.
        for generation in ended.into_iter().rev() {
            if let Some(entry) = self.generations.remove(&generation) {
                Self::settle(&mut self.generations, generation, entry.dead, free);
            }
        }
    }

    /// Gives pages that no generation from `before` on sees to the newest older one that does.
    fn settle(
        generations: &mut BTreeMap<u64, Generation>,
        before: u64,
        dead: Vec<DeadPage>,
        free: &mut Vec<u64>,
    ) {
        let Some((generation, entry)) = generations.range_mut(..before).next_back() else {
            free.extend(dead.iter().map(|page| page.slot));
            return;
        };
        for page in dead {
            if page.birth <= *generation {
                entry.dead.push(page);
            } else {
                free.push(page.slot);
            }
        }
    }

    /// How many dead pages only this generation keeps.
    pub fn kept_alone(&self, generation: u64) -> u64 {
        let Some(entry) = self.generations.get(&generation) else { return 0 };
        // Pages on lists of ended generations below move on to an older one when they are next collected.
        let older = self.generations.range(..generation).rev().find(|(_, entry)| entry.versions > 0);
        let older = older.map(|(older, _)| *older);
        entry.dead.iter().filter(|page| older.is_none_or(|older| page.birth > older)).count() as u64
    }

    /// How many dead pages are kept for readers.
    pub fn kept(&self) -> u64 {
        self.generations.values().map(|entry| entry.dead.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(live: &mut LiveGenerations) -> Vec<u64> {
        let mut free = Vec::new();
        live.collect(&mut free);
        free
    }

    #[test]
    fn without_readers_a_dead_page_is_free_at_once() {
        let mut free = Vec::new();
        LiveGenerations::default().bury(5, vec![DeadPage { slot: 9, birth: 2 }], &mut free);
        assert_eq!(free, [9]);
    }

    #[test]
    fn a_reader_keeps_only_the_pages_it_can_see() {
        let mut live = LiveGenerations::default();
        live.enter(4);
        let mut free = Vec::new();
        let dead = vec![
            DeadPage { slot: 10, birth: 4 },
            DeadPage { slot: 11, birth: 5 },
            DeadPage { slot: 12, birth: 1 },
        ];
        live.bury(7, dead, &mut free);
        assert_eq!(free, [11]);
        assert!(freed(&mut live).is_empty());
        live.leave(4);
        assert_eq!(freed(&mut live), [10, 12]);
    }

    #[test]
    fn a_reader_newer_than_the_death_keeps_nothing() {
        let mut live = LiveGenerations::default();
        live.enter(7);
        let mut free = Vec::new();
        live.bury(7, vec![DeadPage { slot: 10, birth: 4 }], &mut free);
        assert_eq!(free, [10]);
    }

    #[test]
    fn two_readers_of_one_generation_are_two() {
        let mut live = LiveGenerations::default();
        live.enter(4);
        live.enter(4);
        live.bury(7, vec![DeadPage { slot: 10, birth: 4 }], &mut Vec::new());
        assert!(!live.leave(4));
        assert!(freed(&mut live).is_empty(), "the other reader's page went");
        assert!(live.leave(4));
        assert_eq!(freed(&mut live), [10]);
    }

    #[test]
    fn what_two_generations_see_neither_keeps_alone() {
        let mut live = LiveGenerations::default();
        live.enter(3);
        live.enter(6);
        live.bury(8, vec![DeadPage { slot: 1, birth: 2 }, DeadPage { slot: 2, birth: 5 }], &mut Vec::new());
        assert_eq!((live.kept_alone(3), live.kept_alone(6), live.kept_alone(9)), (0, 1, 0));
        live.leave(3);
        assert_eq!(live.kept_alone(6), 2);
    }

    #[test]
    fn a_page_moves_on_to_the_older_reader() {
        let mut live = LiveGenerations::default();
        live.enter(3);
        live.enter(6);
        let mut free = Vec::new();
        live.bury(8, vec![DeadPage { slot: 1, birth: 2 }, DeadPage { slot: 2, birth: 5 }], &mut free);
        assert!(free.is_empty());
        live.leave(6);
        assert_eq!(freed(&mut live), [2]);
        live.leave(3);
        assert_eq!(freed(&mut live), [1]);
        assert_eq!(live.kept(), 0);
    }

    #[test]
    fn generations_that_end_together_free_together() {
        let mut live = LiveGenerations::default();
        live.enter(3);
        live.enter(6);
        live.bury(8, vec![DeadPage { slot: 1, birth: 2 }], &mut Vec::new());
        live.leave(3);
        live.leave(6);
        assert_eq!(freed(&mut live), [1]);
    }
}
