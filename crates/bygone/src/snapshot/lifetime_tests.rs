//! What views keep alive, through a whole database.

use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use crate::io::SimDisk;
use crate::{Db, Options, Snapshot};

fn small_database() -> Db {
    let options = Options::new().background(false).memtable_bytes(64 << 10).log_segment_bytes(64 << 10);
    options.open_on(Arc::new(SimDisk::new()), "db").unwrap()
}

#[test]
fn no_layers_outlive_flushes_merges_past_views_and_the_database() {
    let db = small_database();
    let table = db.table("t").unwrap();
    let mut seen: Vec<Weak<super::Layers>> = Vec::new();
    let mut note = |snapshot: &Snapshot| seen.push(Arc::downgrade(&snapshot.layers().unwrap()));
    let mut held = Vec::new();
    for round in 0..12u32 {
        db.put(&table, "k", round.to_be_bytes()).unwrap();
        let id = db.snapshot_now(None).unwrap();
        if round % 3 == 1 {
            db.flush().unwrap();
        }
        if round % 5 == 4 {
            db.merge().unwrap();
        }
        let (now, past) = (db.snapshot(), db.as_of(id).unwrap());
        note(&now);
        note(&past);
        if round % 4 == 0 {
            held.push((round, now));
        }
    }
    note(&db.as_of(bygone_id(1)).unwrap());
    let past = db.as_of(bygone_id(1)).unwrap();
    drop(db);
    for (round, snapshot) in &held {
        assert_eq!(snapshot.get(&table, "k").unwrap().unwrap(), &round.to_be_bytes());
    }
    assert_eq!(past.get(&table, "k").unwrap().unwrap(), &0u32.to_be_bytes());
    drop((held, past));
    let left = seen.iter().filter(|layers| layers.upgrade().is_some()).count();
    assert_eq!(left, 0, "of {} stacks of layers", seen.len());
}

fn bygone_id(id: u64) -> crate::SnapshotId {
    id.into()
}

#[test]
fn an_idle_thread_keeps_no_old_layers() {
    let db = small_database();
    let table = db.table("t").unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let (answer, layers) = mpsc::channel();
    let reader = {
        let db = db.clone();
        std::thread::spawn(move || {
            let snapshot = db.snapshot();
            let layers = Arc::downgrade(&snapshot.layers().unwrap());
            drop(snapshot);
            answer.send(layers).unwrap();
            // Idle until the test is over.
            let _ = wait.recv();
        })
    };
    let layers: Weak<super::Layers> = layers.recv().unwrap();
    db.put(&table, "k", "v").unwrap();
    db.merge().unwrap();
    // A background thread may be looking at them for a moment.
    let deadline = Instant::now() + Duration::from_secs(10);
    while layers.upgrade().is_some() {
        assert!(Instant::now() < deadline, "the idle thread keeps them");
        std::thread::yield_now();
    }
    drop(go);
    reader.join().unwrap();
}
