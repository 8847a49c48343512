//! What enters the cache; and how fast it all is.

use super::*;
use std::sync::atomic::Ordering;

#[test]
fn what_was_cached_before_a_rebuild_is_cached_after() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..20_000).map(|i| (key(i), Some(value(i, 100)))), 0);
    contents(&fixture.base, 1).unwrap();
    fixture.update(1, (0..20_000).map(|i| (key(i), Some(value(i + 1, 100)))), 0);
    let file = fixture.disk.file(PATH);
    let reads = file.reads.load(Ordering::Relaxed);
    contents(&fixture.base, 1).unwrap();
    assert_eq!(file.reads.load(Ordering::Relaxed), reads);
}

#[test]
fn a_rebuild_does_not_fill_the_cache_with_leaves_that_nobody_reads() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..20_000).map(|i| (key(i), Some(value(i, 100)))), 0);
    fixture = fixture.reopen();
    fixture.update(1, (0..20_000).map(|i| (key(i), Some(value(i + 1, 100)))), 0);
    let pointer = fixture.base.tables()[0].1.root;
    assert!(fixture.store.is_cached(&pointer), "inner pages are");
    let read_bytes = || fixture.disk.file(PATH).read_bytes.load(Ordering::Relaxed);
    let before = read_bytes();
    contents(&fixture.base, 1).unwrap();
    assert!(read_bytes() > before + 500 * 4096, "leaves are not");
}

#[test]
fn opening_a_file_reads_no_tree() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..20_000).map(|i| (key(i), Some(value(i, 100)))), 0);
    let fixture = fixture.reopen();
    let file = fixture.disk.file(PATH);
    file.reads.store(0, Ordering::Relaxed);
    let fixture = fixture.reopen();
    // Four superblocks, index and directory of the space map, the catalogue's one leaf.
    assert!(file.reads.load(Ordering::Relaxed) <= 7);
    assert_eq!(fixture.get(1, &key(9)), Some(value(9, 100)));
}

#[test]
fn readers_and_a_rebuild_run_at_once() {
    let mut fixture = Fixture::new();
    let rounds = 60;
    fixture.update(1, (0..2000).map(|i| (key(i), Some(0u64.to_le_bytes().to_vec()))), 0);
    let current = std::sync::Mutex::new(fixture.base.clone());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (current, done) = (&current, &done);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !done.load(Ordering::Relaxed) {
                    let base = current.lock().unwrap().clone();
                    // All records of a version are of the same round.
                    let round = get(&base, 1, &key(0)).unwrap();
                    for _ in 0..50 {
                        assert_eq!(get(&base, 1, &key(random.below(2000))).unwrap(), round);
                    }
                    assert!(contents(&base, 1).unwrap().values().all(|value| *value == round));
                }
            });
        }
        for round in 1..rounds {
            fixture.update(1, (0..2000).map(|i| (key(i), Some(u64::to_le_bytes(round).to_vec()))), 0);
            *current.lock().unwrap() = fixture.base.clone();
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(current);
    fixture.verify_without_leaks();
}

/// Updates made as they are asked for.
struct Generated {
    next: u64,
    end: u64,
    step: u64,
    key: [u8; 16],
    value: [u8; 100],
}

impl Generated {
    fn new(end: u64, step: u64) -> Generated {
        let mut updates = Generated { next: 0, end, step, key: [b'0'; 16], value: [7; 100] };
        updates.make_key();
        updates
    }

    fn make_key(&mut self) {
        self.key = wide_key(self.next);
    }
}

/// Sixteen bytes, spread over their whole range.
fn wide_key(i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(i << 40).to_be_bytes());
    key[8..].copy_from_slice(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

impl Updates for Generated {
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        Ok((self.next < self.end).then_some(self.key.as_slice()))
    }

    fn value(&mut self) -> Result<Option<&[u8]>> {
        self.value[..8].copy_from_slice(&self.next.to_le_bytes());
        Ok(Some(&self.value))
    }

    fn advance(&mut self) -> Result<()> {
        self.next += self.step;
        self.make_key();
        Ok(())
    }
}

#[test]
#[ignore = "measures"]
fn speed() {
    use std::time::Instant;
    let disk = Arc::new(MemoryDisk::default());
    let dyn_disk: Arc<dyn Disk> = disk.clone();
    let cache = Cache::new(3 << 30);
    let (store, base) = PageStore::create(&dyn_disk, Path::new(PATH), &cache, 7, b"").unwrap();
    let records = 5_000_000u64;
    let file = disk.file(PATH);
    file.logging.store(false, Ordering::Relaxed);
    file.bytes.lock().unwrap().reserve(2 << 30);
    let timed = |what: &str, count: u64, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        let seconds = start.elapsed().as_secs_f64();
        println!("{what}: {seconds:.3} s, {:.2} M/s", count as f64 / seconds / 1e6);
    };
    let mut base = Some(base);
    let mut rebuild = |what: &str, step: u64| {
        timed(what, records / step, &mut || {
            let mut rebuild = store.rebuild(base.as_ref().unwrap()).unwrap();
            rebuild.apply(1, &mut Generated::new(records, step), usize::MAX).unwrap();
            base = Some(rebuild.finish(1, 0, || (b"").to_vec()).unwrap());
        });
        base.clone().unwrap()
    };
    let base = rebuild("load", 1);
    let table = base.tables()[0].1;
    println!("{table:?}, {} MB", store.file_bytes() >> 20);
    let scan = |base: &Arc<BaseVersion>| {
        let mut sum = 0;
        let mut visit = |key: &[u8], value: &[u8]| {
            sum += key.len() + value.len();
            ControlFlow::Continue(())
        };
        base.for_each(1, Bound::Unbounded, Bound::Unbounded, &mut visit).unwrap();
        std::hint::black_box(sum);
    };
    timed("scan, filling the cache", records, &mut || scan(&base));
    let gets = |base: &Arc<BaseVersion>| {
        let mut random = Random(1);
        for _ in 0..3_000_000 {
            let found = base.get(1, &wide_key(random.below(records)), &mut |value| {
                std::hint::black_box(value.len());
            });
            assert_eq!(found.unwrap(), Lookup::Found);
        }
    };
    for _ in 0..2 {
        timed("scan", records, &mut || scan(&base));
        timed("get", 3_000_000, &mut || gets(&base));
    }
    timed("cursor", records, &mut || {
        let mut cursor = base.cursor(1);
        cursor.seek(b"").unwrap();
        let mut sum = 0;
        while let Some(key) = cursor.key() {
            sum += key.len() + cursor.value().unwrap().unwrap().len();
            cursor.next().unwrap();
        }
        std::hint::black_box(sum);
    });
    drop(base);
    let base = rebuild("every second record, cached", 2);
    drop(base);
    rebuild("every record in fifty, cached", 50);
    store.verify(&rebuild("all again", 1).root()).unwrap();
}
