//! Tests of [`Seen`].
//!
//! Owns: a database of pages, of which there is a snapshot whenever it is asked for. Promises: nothing. May call: the
//! room.

use bygone::{Db, Options};

use super::*;

const PAGE_BYTES: usize = 512;

/// A database of pages, of which there is a snapshot whenever it is asked for.
struct Scene {
    db: Db,
    table: Table,
    commits: u8,
    moment: Moment,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let db = Options::new().background(false).open(directory.path().join("db")).unwrap();
        let moment = (db.snapshot(), None);
        let table = db.table("sql/x").unwrap();
        Scene { db, table, commits: 0, moment, _directory: directory }
    }

    fn put(&self, page: u32, bytes: &[u8]) {
        self.db.put(&self.table, key(page), bytes).unwrap();
    }

    /// Commits, with this counter of the schema; answers the snapshot of it.
    fn declare(&mut self, cookie: u8) -> Moment {
        self.commits += 1;
        let mut shape = Shape { page_bytes: 512, state: self.commits.into(), ..Shape::default() };
        shape.header.fill(1);
        (shape.header[24], shape.header[95], shape.header[40]) = (self.commits, self.commits, cookie);
        self.put(0, &shape.encode());
        let id = self.db.snapshot_now(None).unwrap();
        (self.db.as_of(id).unwrap(), Some(self.table.clone()))
    }

    /// Declares a snapshot, and turns to it.
    fn step(&mut self, seen: &mut Seen, cookie: u8) -> Difference {
        let now = self.declare(cookie);
        self.turn(seen, now)
    }

    fn turn(&mut self, seen: &mut Seen, now: Moment) -> Difference {
        let difference = seen.compare(&self.moment, &now).unwrap();
        self.moment = now;
        difference
    }

    fn note(&self, seen: &mut Seen, page: u32) {
        seen.note(page, &self.moment.0, &self.table).unwrap();
    }

    /// The page as SQLite would see it where it is; `None` if there is no room.
    fn image(&self, seen: &mut Seen, page: u32) -> Option<Vec<u8>> {
        let image = seen.image(page, PAGE_BYTES, &self.moment.0, &self.table).unwrap().cast::<u8>();
        // SAFETY: it has as many bytes, and some behind.
        let bytes = unsafe {
            std::slice::from_raw_parts((!image.is_null()).then_some(image)?, PAGE_BYTES + BEHIND_IMAGE_BYTES)
        };
        assert_eq!(bytes[PAGE_BYTES..], [0; BEHIND_IMAGE_BYTES]);
        Some(trimmed(&bytes[..PAGE_BYTES]).to_vec())
    }
}

#[test]
fn only_what_was_read_matters() {
    for images in [false, true] {
        let mut scene = Scene::new();
        let mut seen = Seen::default();
        let see = |scene: &Scene, seen: &mut Seen, page: u32| match images {
            true => drop(scene.image(seen, page)),
            false => scene.note(seen, page),
        };
        let nothing = scene.moment.clone();
        assert_eq!(scene.turn(&mut seen, nothing), Difference::Nothing);
        scene.put(1, b"schema");
        assert_eq!(scene.step(&mut seen, 1), Difference::Schema);
        scene.note(&mut seen, 1);
        seen.note_schema(&scene.moment).unwrap();
        [2, 3].into_iter().for_each(|page| see(&scene, &mut seen, page));
        scene.put(2, b"two");
        scene.put(3, b"three");
        assert_eq!(scene.step(&mut seen, 1), Difference::Pages);
        seen.forget();
        [2, 3].into_iter().for_each(|page| see(&scene, &mut seen, page));
        scene.put(4, b"other");
        assert_eq!(scene.step(&mut seen, 1), Difference::Nothing);
        scene.put(3, b"other");
        assert_eq!(scene.step(&mut seen, 1), Difference::Pages);
        assert_eq!(seen.suspect, Some(3));
        seen.forget();
        [2, 3].into_iter().for_each(|page| see(&scene, &mut seen, page));
        scene.db.delete(&scene.table, key(2)).unwrap();
        assert_eq!(scene.step(&mut seen, 1), Difference::Pages);
        seen.forget();
        scene.put(2, b"again");
        assert_eq!(scene.step(&mut seen, 1), Difference::Nothing);
        scene.put(1, b"another schema");
        assert_eq!(scene.step(&mut seen, 1), Difference::Schema);
        assert_eq!(scene.step(&mut seen, 2), Difference::Schema);
        let nothing: Moment = (scene.moment.0.clone(), None);
        assert_eq!(seen.compare(&scene.moment, &nothing).unwrap(), Difference::Schema);
        assert_eq!(seen.compare(&scene.moment, &scene.moment).unwrap(), Difference::Nothing);
    }
}

#[test]
fn up_to_the_horizon_it_is_known_how_long_pages_stay() {
    let mut scene = Scene::new();
    let mut schema = [b's'; 200];
    schema[SCHEMA_CELLS].fill(1);
    scene.put(1, &schema);
    let mut moments = Vec::new();
    for round in 0..8 {
        match round {
            0 => (2..6).for_each(|page| scene.put(page, b"first")),
            // The same again; another page; there and back.
            2 => scene.put(2, b"first"),
            3 => scene.put(5, b"unseen"),
            4 => scene.put(3, b"for a moment"),
            5 => scene.put(3, b"first"),
            6 => scene.put(4, b"changed"),
            _ => {}
        }
        moments.push(scene.declare(1));
    }
    let seqs: Vec<u64> = moments.iter().map(|moment| moment.0.seq().into()).collect();
    let mut seen = Seen::default();
    seen.set_horizon(Some(moments[7].0.clone()));
    scene.moment = moments[0].clone();
    scene.note(&mut seen, 1);
    assert_eq!(seen.lasts(), None, "nothing is known of the header yet");
    seen.note_schema(&moments[0]).unwrap();
    assert_eq!(seen.lasts(), Some(seqs[7]));
    for page in [2, 3, 4] {
        assert_eq!(scene.image(&mut seen, page).unwrap(), b"first");
    }
    let is_known = |seen: &Seen, round: usize| seen.lasts().unwrap() >= seqs[round];
    assert!(is_known(&seen, 1) && !is_known(&seen, 2));
    // Written with the bytes that it had.
    assert_eq!(scene.turn(&mut seen, moments[2].clone()), Difference::Nothing);
    assert!(is_known(&seen, 3) && !is_known(&seen, 4));
    let reads = seen.reads;
    assert_eq!(scene.turn(&mut seen, moments[4].clone()), Difference::Pages);
    seen.forget();
    let contents = [2, 3, 4].map(|page| scene.image(&mut seen, page).unwrap());
    assert_eq!(contents, [&b"first"[..], b"for a moment", b"first"]);
    assert_eq!(seen.reads, reads + 2, "one page was compared, and read anew");
    assert!(!is_known(&seen, 5));
    // Without a look at what lies between, the page that came back is the same again.
    let mut other = Seen::default();
    other.set_horizon(Some(moments[7].0.clone()));
    scene.moment = moments[3].clone();
    assert_eq!(scene.image(&mut other, 3).unwrap(), b"first");
    assert_eq!(scene.turn(&mut other, moments[5].clone()), Difference::Nothing);
    assert_eq!(scene.turn(&mut other, moments[7].clone()), Difference::Nothing);
    // Back again: nothing is known, but that what was seen is still the same.
    assert_eq!(scene.turn(&mut other, moments[4].clone()), Difference::Pages);
    other.forget();
    assert_eq!(scene.image(&mut other, 3).unwrap(), b"for a moment");
}

#[test]
fn a_schema_that_is_kept_is_told_from_another_one() {
    let mut scene = Scene::new();
    let mut page = [b's'; 200];
    page[SCHEMA_CELLS].fill(1);
    scene.put(1, &page);
    scene.put(2, b"more of the schema");
    scene.put(3, b"a row");
    let first = scene.declare(1);
    scene.moment = first.clone();
    let mut seen = Seen::default();
    [1, 2].into_iter().for_each(|page| scene.note(&mut seen, page));
    assert!(seen.schema(&first).unwrap().is_none(), "it is not known what belongs to it");
    seen.note_schema(&first).unwrap();
    scene.image(&mut seen, 3).unwrap();
    let schema = seen.schema(&first).unwrap().expect("two pages are not many");
    scene.put(3, b"another row");
    let other_row = scene.declare(1);
    let other_counter = scene.declare(2);
    scene.put(2, b"less");
    let other_page = scene.declare(1);
    let nothing: Moment = (scene.moment.0.clone(), None);
    for (moment, same) in
        [(&other_counter, false), (&other_page, false), (&nothing, false), (&other_row, true)]
    {
        let mut next = Seen::default();
        next.set_horizon(Some(other_page.0.clone()));
        assert_eq!(next.resume(&schema, moment).unwrap(), same);
        // Its pages are seen, and nothing else: the next change is that of the schema.
        let until = u64::from(other_counter.0.seq());
        assert_eq!(next.lasts(), same.then_some(until));
    }
    // Images take no memory any more, and what was seen can be compared still.
    seen.drop_images();
    assert_eq!((seen.image_bytes, seen.lasts()), (0, Some(0)));
    assert_eq!(scene.turn(&mut seen, other_row), Difference::Pages);
}

#[test]
fn images_take_no_more_memory_than_they_may() {
    let mut scene = Scene::new();
    (2..12).for_each(|page| scene.put(page, &[page as u8; 300]));
    let moment = scene.declare(1);
    scene.moment = moment;
    let mut seen = Seen { image_bytes_max: 4 * (PAGE_BYTES + BEHIND_IMAGE_BYTES), ..Seen::default() };
    for round in 0..3 {
        for page in 2..12 {
            let image = scene.image(&mut seen, page);
            assert_eq!(image.is_some(), page < 6, "the first four stay");
            assert!(image.is_none_or(|image| image == [page as u8; 300]));
        }
        assert_eq!(seen.image_bytes, seen.image_bytes_max);
        assert_eq!(seen.reads, 4, "round {round}");
        seen.forget();
    }
    // Those that are not looked at any more make room.
    for page in [5, 9, 10, 11] {
        assert_eq!(scene.image(&mut seen, page).unwrap(), [page as u8; 300]);
    }
    assert_eq!(scene.image(&mut seen, 2), None);
    assert_eq!(scene.image(&mut seen, 11).unwrap(), [11; 300]);
    // What was read into SQLite's cache at another moment has no image any more.
    scene.put(11, b"changed");
    let now = scene.declare(1);
    assert_eq!(scene.turn(&mut seen, now), Difference::Pages);
    seen.forget();
    scene.note(&mut seen, 11);
    assert_eq!(seen.image_bytes, 3 * (PAGE_BYTES + BEHIND_IMAGE_BYTES));
    assert_eq!(scene.image(&mut seen, 11).unwrap(), b"changed");
    // A page that was never written, and one of which nothing is left.
    scene.db.delete(&scene.table, key(11)).unwrap();
    let now = scene.declare(1);
    scene.turn(&mut seen, now);
    seen.forget();
    assert_eq!(scene.image(&mut seen, 11).unwrap(), b"");
    assert_eq!(scene.image(&mut seen, 99).unwrap(), b"");
}
