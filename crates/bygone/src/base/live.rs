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

use super::pointer::PagePointer;

/// A page that the current base no longer has.
pub(crate) type DeadPage = PagePointer;

/// Dead pages, by where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dead {
    /// In their slots.
    pub in_file: Vec<DeadPage>,
    /// In the archive; their slots are free already.
    pub archived: Vec<DeadPage>,
}

#[derive(Debug, Default)]
struct Generation {
    versions: usize,
    dead: Dead,
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

    /// Takes on pages that died before this generation; each is put on `free` or on a list.
    pub fn bury(&mut self, death: u64, dead: Dead, free: &mut Dead) {
        Self::settle(&mut self.generations, death, dead, free);
    }

    /// Puts on `free` what only ended generations kept.
    pub fn collect(&mut self, free: &mut Dead) {
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
    fn settle(generations: &mut BTreeMap<u64, Generation>, before: u64, dead: Dead, free: &mut Dead) {
        let Dead { in_file, archived } = dead;
        let older = generations.range_mut(..before).next_back();
        let (sees, kept) = match older {
            Some((generation, entry)) => (*generation, Some(&mut entry.dead)),
            None => (0, None),
        };
        let Some(kept) = kept else {
            free.in_file.extend(in_file);
            free.archived.extend(archived);
            return;
        };
        for page in in_file {
            if page.birth <= sees { kept.in_file.push(page) } else { free.in_file.push(page) }
        }
        for page in archived {
            if page.birth <= sees { kept.archived.push(page) } else { free.archived.push(page) }
        }
    }

    /// Takes up to `limit` pages off the lists that are kept in their slots, the longest kept first, each with the
    /// generation on whose list it was. Nobody makes them free until they are buried again.
    pub fn take_kept(&mut self, limit: usize) -> Vec<(u64, DeadPage)> {
        let mut taken = Vec::new();
        for (generation, entry) in &mut self.generations {
            let count = entry.dead.in_file.len().min(limit - taken.len());
            taken.extend(entry.dead.in_file.drain(..count).map(|page| (*generation, page)));
        }
        taken
    }

    /// How many dead pages only this generation keeps.
    pub fn kept_alone(&self, generation: u64) -> u64 {
        let Some(entry) = self.generations.get(&generation) else { return 0 };
        // Pages on lists of ended generations below move on to an older one when they are next collected.
        let older = self.generations.range(..generation).rev().find(|(_, entry)| entry.versions > 0);
        let older = older.map(|(older, _)| *older);
        entry.dead.in_file.iter().filter(|page| older.is_none_or(|older| page.birth > older)).count() as u64
    }

    /// How many dead pages are kept in their slots for readers.
    pub fn kept(&self) -> u64 {
        self.generations.values().map(|entry| entry.dead.in_file.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(slot: u64, birth: u64) -> DeadPage {
        DeadPage { slot, birth, checksum: 0 }
    }

    fn freed(live: &mut LiveGenerations) -> Vec<u64> {
        let mut free = Dead::default();
        live.collect(&mut free);
        slots(&free)
    }

    fn slots(free: &Dead) -> Vec<u64> {
        free.in_file.iter().map(|page| page.slot).collect()
    }

    fn in_file(pages: Vec<DeadPage>) -> Dead {
        Dead { in_file: pages, ..Dead::default() }
    }

    #[test]
    fn without_readers_a_dead_page_is_free_at_once() {
        let mut free = Dead::default();
        LiveGenerations::default().bury(5, in_file(vec![page(9, 2)]), &mut free);
        assert_eq!(slots(&free), [9]);
    }

    #[test]
    fn a_reader_keeps_only_the_pages_it_can_see() {
        let mut live = LiveGenerations::default();
        live.enter(4);
        let mut free = Dead::default();
        let dead = vec![page(10, 4), page(11, 5), page(12, 1)];
        live.bury(7, in_file(dead), &mut free);
        assert_eq!(slots(&free), [11]);
        assert!(freed(&mut live).is_empty());
        live.leave(4);
        assert_eq!(freed(&mut live), [10, 12]);
    }

    #[test]
    fn a_reader_newer_than_the_death_keeps_nothing() {
        let mut live = LiveGenerations::default();
        live.enter(7);
        let mut free = Dead::default();
        live.bury(7, in_file(vec![page(10, 4)]), &mut free);
        assert_eq!(slots(&free), [10]);
    }

    #[test]
    fn two_readers_of_one_generation_are_two() {
        let mut live = LiveGenerations::default();
        live.enter(4);
        live.enter(4);
        live.bury(7, in_file(vec![page(10, 4)]), &mut Dead::default());
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
        live.bury(8, in_file(vec![page(1, 2), page(2, 5)]), &mut Dead::default());
        assert_eq!((live.kept_alone(3), live.kept_alone(6), live.kept_alone(9)), (0, 1, 0));
        live.leave(3);
        assert_eq!(live.kept_alone(6), 2);
    }

    #[test]
    fn a_page_moves_on_to_the_older_reader() {
        let mut live = LiveGenerations::default();
        live.enter(3);
        live.enter(6);
        let mut free = Dead::default();
        live.bury(8, in_file(vec![page(1, 2), page(2, 5)]), &mut free);
        assert_eq!(free, Dead::default());
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
        live.bury(8, in_file(vec![page(1, 2)]), &mut Dead::default());
        live.leave(3);
        live.leave(6);
        assert_eq!(freed(&mut live), [1]);
    }

    #[test]
    fn archived_pages_and_those_in_the_file_go_the_same_way() {
        let mut live = LiveGenerations::default();
        live.enter(3);
        live.enter(6);
        let dead = Dead { in_file: vec![page(1, 2), page(2, 5)], archived: vec![page(3, 2), page(4, 7)] };
        let mut free = Dead::default();
        live.bury(8, dead, &mut free);
        assert_eq!(free, Dead { in_file: vec![], archived: vec![page(4, 7)] });
        // Moved to the archive meanwhile.
        assert_eq!(live.take_kept(1), [(6, page(1, 2))]);
        live.bury(7, Dead { in_file: vec![], archived: vec![page(1, 2)] }, &mut Dead::default());
        assert_eq!(live.kept(), 1);
        live.leave(6);
        let mut free = Dead::default();
        live.collect(&mut free);
        assert_eq!(free, in_file(vec![page(2, 5)]));
        live.leave(3);
        live.collect(&mut free);
        assert_eq!(free.archived, [page(3, 2), page(1, 2)]);
    }
}
