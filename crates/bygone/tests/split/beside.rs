//! Readers of other processes beside an owner that archives.
//!
//! Owns: nothing. Promises: whatever is archived, deleted and used again meanwhile, a reader reads what its snapshots
//! were; when the readers have ended, what they kept is given back. May call: the engine's public face.

use std::sync::Arc;

use bygone::io::SimDisk;
use bygone::{Db, Error, Options, Snapshot, SnapshotId};

use crate::support::{PATH, Random, State, split_options, state_of};
use crate::{files, open_split};

fn open_reader(disk: &SimDisk) -> Db {
    // The history directory is remembered.
    let options = Options::new().read_only(true).cache_bytes(64 << 10).background(false);
    options.open_on(Arc::new(disk.clone()), PATH).unwrap()
}

fn round(db: &Db, random: &mut Random) -> SnapshotId {
    let table = db.table("t").unwrap();
    let mut tx = db.begin().unwrap();
    for _ in 0..300 {
        let mut value = vec![0; 150];
        value[..8].copy_from_slice(&random.next().to_le_bytes());
        tx.put(&table, (random.below(1500) as u32).to_be_bytes(), value).unwrap();
    }
    tx.commit_with_snapshot(None).unwrap()
}

/// One of another process, with the snapshots that it knows, and the views that it holds.
struct Reader {
    db: Db,
    known: Vec<usize>,
    views: Vec<(Snapshot, State)>,
}

#[test]
fn readers_go_on_while_their_pages_are_archived_and_slots_used_again() {
    let disk = SimDisk::new();
    let mut owner = open_split(&disk);
    let mut random = Random(17);
    let mut declared: Vec<(SnapshotId, State)> = Vec::new();
    let mut readers: Vec<Reader> = Vec::new();
    for step in 0..120 {
        match random.below(10) {
            0..3 => {
                let id = round(&owner, &mut random);
                declared.push((id, state_of(&owner.as_of(id).unwrap())));
            }
            3 => owner.merge().unwrap(),
            4 | 5 => {
                owner.merge().unwrap();
                owner.archive().unwrap();
            }
            6 if readers.len() < 3 => {
                let reader = open_reader(&disk);
                let known = reader.snapshots().unwrap();
                let knows = |id: &SnapshotId| known.iter().any(|info| info.id == *id);
                let known = (0..declared.len()).filter(|index| knows(&declared[*index].0)).collect();
                readers.push(Reader { db: reader, known, views: Vec::new() });
            }
            6 | 7 if !readers.is_empty() => {
                let index = random.below(readers.len() as u64) as usize;
                let Reader { db, known, views } = &mut readers[index];
                if !known.is_empty() {
                    let (id, expected) = &declared[known[random.below(known.len() as u64) as usize]];
                    views.push((db.as_of(*id).unwrap(), expected.clone()));
                }
            }
            8 if !declared.is_empty() => {
                let (id, _) = declared[random.below(declared.len() as u64) as usize];
                match owner.delete_snapshot(id) {
                    Ok(()) | Err(Error::SnapshotHeld { .. } | Error::SnapshotNotFound { .. }) => {}
                    Err(error) => panic!("step {step}: {error}"),
                }
            }
            9 if random.below(3) == 0 && !readers.is_empty() => {
                let index = random.below(readers.len() as u64) as usize;
                drop(readers.swap_remove(index));
            }
            9 if random.below(3) == 0 => {
                drop(owner);
                owner = open_split(&disk);
            }
            _ => {}
        }
        for Reader { db, known, views } in &readers {
            for (view, expected) in views {
                assert!(state_of(view) == *expected, "step {step}: a view that is held");
            }
            if let Some(index) = known.first() {
                let (id, expected) = &declared[*index];
                assert!(state_of(&db.as_of(*id).unwrap()) == *expected, "step {step}: snapshot {id}");
            }
        }
    }
    assert!(owner.stats().unwrap().archived_pages > 0);
    readers.clear();
    owner.merge().unwrap();
    for info in owner.snapshots().unwrap() {
        let (_, expected) = declared.iter().find(|(id, _)| *id == info.id).unwrap();
        assert!(state_of(&owner.as_of(&info).unwrap()) == *expected);
    }
    owner.verify().unwrap();
    let all: Vec<_> = owner.snapshots().unwrap().iter().map(|info| info.id).collect();
    owner.delete_snapshots(all).unwrap();
    owner.prune().unwrap();
    owner.archive().unwrap();
    drop(owner);
    // What an earlier owner left because of readers goes with the next opening.
    let stats = open_split(&disk).stats().unwrap();
    assert_eq!((stats.archived_pages, files(&disk, ".pages")), (0, 0), "{stats:?}");
}

#[test]
fn a_held_view_of_another_process_keeps_its_slots_until_it_ends() {
    let disk = SimDisk::new();
    let options = split_options().memtable_bytes(1 << 20).log_segment_bytes(1 << 20);
    let owner = options.open_on(Arc::new(disk.clone()), PATH).unwrap();
    let mut random = Random(8);
    for _ in 0..5 {
        round(&owner, &mut random);
        owner.merge().unwrap();
    }
    let reader = open_reader(&disk);
    let view = reader.as_of(SnapshotId::from(3)).unwrap();
    let expected = state_of(&view);
    for _ in 0..30 {
        round(&owner, &mut random);
        owner.merge().unwrap();
        owner.archive().unwrap();
        assert!(state_of(&view) == expected);
    }
    assert!(reader.refresh().unwrap());
    assert!(state_of(&view) == expected && state_of(&reader.as_of(SnapshotId::from(3)).unwrap()) == expected);
    let beside = owner.stats().unwrap().base_free_bytes;
    drop((view, reader));
    round(&owner, &mut random);
    owner.merge().unwrap();
    owner.archive().unwrap();
    let alone = owner.stats().unwrap().base_free_bytes;
    assert!(alone > beside, "{alone} bytes are free, {beside} were beside the reader");
    owner.verify().unwrap();
}
