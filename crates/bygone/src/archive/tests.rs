//! Tests of the archive against a plain model, on the simulated disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::io::SimDisk;
use crate::random::Random;

const DIRECTORY: &str = "past/db";

/// The seed of each page's content, by id.
type Model = BTreeMap<PageId, u64>;

/// A page of which more or less can be compressed.
fn page(seed: u64) -> Page {
    let mut random = Random(seed);
    let noise = random.below(PAGE_BYTES as u64 + 1) as usize;
    let mut page = [seed as u8; PAGE_BYTES];
    page[..noise].iter_mut().for_each(|byte| *byte = random.next() as u8);
    page
}

fn open(disk: &SimDisk, state: ArchiveState) -> Arc<Archive> {
    let settings = Settings {
        directory: DIRECTORY.into(),
        database_id: 7,
        hash_seed: 8,
        segment_bytes: 64 << 10,
        read_only: false,
    };
    Archive::open(Arc::new(disk.clone()), settings, &Cache::new(1 << 20), state)
}

fn check(archive: &Archive, model: &Model, context: &str) {
    let mut found = [0; PAGE_BYTES];
    for (id, seed) in model {
        let is_there = archive.read(*id, &mut found).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(is_there && found == page(*seed), "{context}: {id:?}");
        assert!(!archive.read(PageId { birth: id.birth, slot: id.slot + 1_000_000 }, &mut found).unwrap());
    }
    assert_eq!(archive.verify().unwrap(), model.len() as u64, "{context}");
}

/// One random change of archive and model, up to where a superblock would be written.
fn change(archive: &Archive, model: &mut Model, random: &mut Random) -> Result<Change> {
    let mut batch = archive.begin()?;
    match random.below(4) {
        0 => {
            let part = 1 + random.below(3);
            let ids: Vec<PageId> = model.keys().copied().collect();
            for id in ids.into_iter().filter(|_| random.below(4) < part) {
                batch.take_out(id)?;
                model.remove(&id);
            }
        }
        1 => drop(batch.write_anew()?),
        _ => {
            let birth = random.below(1000) + 1;
            for _ in 0..random.below(60) {
                let (id, seed) = (PageId { birth, slot: random.below(500) + 4 }, random.next());
                // An id has one content for ever.
                if let Entry::Vacant(entry) = model.entry(id) {
                    batch.add(id, crc32c::crc32c(&page(seed)), &page(seed))?;
                    entry.insert(seed);
                }
            }
        }
    }
    batch.finish()
}

fn commit(archive: &Archive, change: Change) -> ArchiveState {
    archive.publish(&change);
    let state = change.state.clone();
    let taken_out = change.taken_out.clone();
    archive.settle(change);
    archive.forget(taken_out);
    archive.sweep();
    state
}

#[test]
fn what_is_put_in_is_read_until_it_is_taken_out() {
    let disk = SimDisk::new();
    let mut archive = open(&disk, ArchiveState::default());
    let (mut model, mut random) = (Model::new(), Random(1));
    for round in 0..150 {
        let made = change(&archive, &mut model, &mut random).unwrap();
        let state = commit(&archive, made);
        check(&archive, &model, &format!("round {round}"));
        assert!(state.runs.len() <= 6, "{} runs for {} pages", state.runs.len(), state.pages);
        // An account for each file, and a file for each.
        let ending = |ending: &str| {
            disk.snapshot_files().iter().filter(|(path, _)| path.to_string_lossy().ends_with(ending)).count()
        };
        assert_eq!(ending(".map"), state.runs.len());
        assert_eq!(ending(".pages"), map::accounts(&archive.runs()).unwrap().len());
        if random.below(5) == 0 {
            drop(archive);
            archive = open(&disk, state);
            check(&archive, &model, &format!("opened after round {round}"));
        }
    }
}

#[test]
fn segments_that_are_mostly_dead_are_written_anew() {
    let disk = SimDisk::new();
    let archive = open(&disk, ArchiveState::default());
    let mut model = Model::new();
    let mut batch = archive.begin().unwrap();
    for slot in 4..404 {
        let id = PageId { birth: 3, slot };
        batch.add(id, 0, &page(slot)).unwrap();
        model.insert(id, slot);
    }
    let before = commit(&archive, batch.finish().unwrap());
    let mut batch = archive.begin().unwrap();
    for slot in (4..404).filter(|slot| slot % 5 > 0) {
        let id = PageId { birth: 3, slot };
        batch.take_out(id).unwrap();
        model.remove(&id);
    }
    commit(&archive, batch.finish().unwrap());
    let mut passes = 0;
    let after = loop {
        let mut batch = archive.begin().unwrap();
        let found = batch.write_anew().unwrap();
        let state = commit(&archive, batch.finish().unwrap());
        check(&archive, &model, "written anew");
        passes += 1;
        if !found {
            break state;
        }
    };
    assert!(passes > 5 && after.segment_bytes < before.segment_bytes / 3, "{before:?}, {after:?}");
    check(&open(&disk, after), &model, "opened again");
}

#[test]
fn a_cut_at_any_operation_leaves_the_state_that_the_superblock_names() {
    let run = |cut: Option<u64>| {
        let disk = SimDisk::new();
        let archive = open(&disk, ArchiveState::default());
        let (mut model, mut random) = (Model::new(), Random(2));
        let (mut durable, mut durable_model) = (ArchiveState::default(), model.clone());
        if let Some(n) = cut {
            disk.crash_at(n);
        }
        for _ in 0..25 {
            let Ok(made) = change(&archive, &mut model, &mut random) else { break };
            // The superblock is on another disk, so to speak, and durable now.
            durable = made.state.clone();
            durable_model = model.clone();
            commit(&archive, made);
        }
        (disk, durable, durable_model)
    };
    let operations = run(None).0.operations();
    assert!(operations > 100, "{operations}");
    for n in 1..=operations {
        let (disk, durable, model) = run(Some(n));
        for image in [0, 1, n] {
            let context = format!("cut at {n} image {image}");
            let disk = disk.crash_image(image);
            let archive = open(&disk, durable.clone());
            if durable.used {
                check(&archive, &model, &context);
            }
            // And it goes on from there.
            let (mut model, mut random) = (model.clone(), Random(n));
            for _ in 0..3 {
                let made = change(&archive, &mut model, &mut random).unwrap();
                commit(&archive, made);
            }
            check(&archive, &model, &context);
        }
    }
}

#[test]
fn a_change_that_is_undone_never_was() {
    let disk = SimDisk::new();
    let archive = open(&disk, ArchiveState::default());
    let (mut model, mut random) = (Model::new(), Random(3));
    for round in 0..60 {
        let before = model.clone();
        let made = change(&archive, &mut model, &mut random).unwrap();
        archive.publish(&made);
        if random.below(2) == 0 {
            archive.undo(made);
            model = before;
        } else {
            commit(&archive, made);
        }
        check(&archive, &model, &format!("round {round}"));
    }
}

#[test]
fn what_views_need_is_found_until_it_is_forgotten() {
    let disk = SimDisk::new();
    let archive = open(&disk, ArchiveState::default());
    let ids: Vec<PageId> = (4..200).map(|slot| PageId { birth: 9, slot }).collect();
    let pages: Vec<Page> = ids.iter().map(|id| page(id.slot)).collect();
    archive.put_for_views(ids.iter().zip(&pages).map(|(id, page)| (*id, 0, page))).unwrap();
    let mut found = [0; PAGE_BYTES];
    for (id, page) in ids.iter().zip(&pages) {
        assert!(archive.read(*id, &mut found).unwrap() && found == *page);
    }
    assert_eq!((archive.stats().view_pages, archive.stats().pages), (196, 0));
    let files = || disk.snapshot_files().len();
    assert!(files() > 1);
    // Nothing durable names them.
    assert!(!open(&disk.crash_image(1), archive.state()).contains(ids[0]).unwrap());
    archive.forget(ids[1..].iter().copied());
    archive.sweep();
    assert_eq!(files(), 1);
    assert!(archive.contains(ids[0]).unwrap() && !archive.contains(ids[1]).unwrap());
    drop(archive);
    assert_eq!(files(), 0, "they end with the process");
}

#[test]
fn pages_that_are_taken_out_are_found_while_a_view_needs_them() {
    let disk = SimDisk::new();
    let archive = open(&disk, ArchiveState::default());
    let id = PageId { birth: 5, slot: 6 };
    let mut batch = archive.begin().unwrap();
    batch.add(id, 0, &page(1)).unwrap();
    commit(&archive, batch.finish().unwrap());
    let mut batch = archive.begin().unwrap();
    batch.take_out(id).unwrap();
    let made = batch.finish().unwrap();
    archive.publish(&made);
    assert_eq!((made.state.pages, made.state.segment_bytes, made.state.runs.len()), (0, 0, 0));
    archive.settle(made);
    let mut found = [0; PAGE_BYTES];
    assert!(archive.read(id, &mut found).unwrap() && found == page(1));
    archive.forget([id]);
    archive.sweep();
    assert!(!archive.read(id, &mut found).unwrap());
    assert!(disk.snapshot_files().is_empty(), "{:?}", disk.snapshot_files());
}

#[test]
fn a_segment_of_another_database_or_of_a_newer_version_is_refused() {
    let disk = SimDisk::new();
    let path = Path::new("s");
    let write = |header: &[u8]| {
        let _ = Disk::remove(&disk, path);
        File::open(&disk, path, OpenMode::Create).unwrap().write_at(header, 0).unwrap();
        segment::open(&disk, path, OpenMode::Read, 7, 1).map(drop)
    };
    let mut header = segment::encode_header(7, 1);
    write(&header).unwrap();
    assert!(matches!(write(&segment::encode_header(8, 1)), Err(Error::Corruption { .. })));
    assert!(matches!(write(&segment::encode_header(7, 2)), Err(Error::Corruption { .. })));
    assert!(matches!(write(&header[..20]), Err(Error::Corruption { .. })));
    header[8] = 2;
    assert!(matches!(write(&header), Err(Error::Corruption { .. })));
    let checksum = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    assert!(matches!(write(&header), Err(Error::Incompatible { found: 2, .. })));
}
