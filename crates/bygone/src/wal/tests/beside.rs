//! What goes on while somebody appends.

use super::*;
use crate::io::{DiskFile, LockOutcome, OpenMode};

type Hook = Arc<dyn Fn() + Send + Sync>;

/// A disk that calls a hook when a sync of a file has done its work, but has not returned yet.
struct HookedDisk {
    disk: SimDisk,
    synced: Hook,
}

struct HookedFile {
    file: Arc<dyn DiskFile>,
    synced: Hook,
}

impl std::fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.disk.fmt(f)
    }
}

impl std::fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl Disk for HookedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(HookedFile { file: self.disk.open(path, mode)?, synced: self.synced.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> std::io::Result<()> {
        self.disk.create_dir_all(path)
    }
    fn list(&self, dir: &Path) -> std::io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn exists(&self, path: &Path) -> std::io::Result<bool> {
        self.disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path, exclusive: bool) -> std::io::Result<LockOutcome> {
        self.disk.lock(path, exclusive)
    }
}

impl DiskFile for HookedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.file.sync()?;
        (self.synced)();
        Ok(())
    }
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }
}

#[test]
fn what_is_appended_during_a_sync_is_not_taken_for_durable() {
    let disk = new_disk();
    let wal: Arc<std::sync::OnceLock<Wal>> = Arc::default();
    let hook_wal = wal.clone();
    let hook_done = std::sync::atomic::AtomicBool::new(false);
    let synced = Arc::new(move || {
        // Once: rolling makes a segment, and that syncs too.
        if let Some(wal) = hook_wal.get()
            && !hook_done.swap(true, Ordering::Relaxed)
        {
            append(wal, 2..3).unwrap();
            wal.roll().unwrap();
            append(wal, 3..4).unwrap();
        }
    });
    let hooked = HookedDisk { disk: disk.clone(), synced };
    let wal = wal.get_or_init(|| Wal::create(Arc::new(hooked), settings(), 1).unwrap());
    append(wal, 1..2).unwrap();
    wal.sync().unwrap();
    assert_eq!(read(&disk.crash_image(0), FRESH, true).unwrap().1, commits(1..2));
    wal.sync().unwrap();
    assert_eq!(
        read(&disk.crash_image(0), FRESH, true).unwrap().1,
        commits(1..4),
        "there was something to do"
    );
}

#[test]
fn background_work_goes_on_beside_appending() {
    let disk = new_disk();
    let wal = create(&disk);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (wal, done) = (&wal, &done);
        scope.spawn(move || {
            for seq in 1..3000 {
                append(wal, seq..seq + 1).unwrap();
                if seq % 50 == 0 {
                    wal.roll().unwrap();
                }
                done.store(seq, Ordering::Release);
            }
        });
        scope.spawn(move || {
            while done.load(Ordering::Acquire) < 2999 {
                wal.prepare_standby().unwrap();
                wal.sync().unwrap();
                wal.release_before(wal.active_segment().saturating_sub(3)).unwrap();
                wal.bytes();
            }
        });
    });
    wal.close().unwrap();
    assert_eq!(wal.bytes(), disk.bytes());
    let first = lock(&wal.files).segments[0].id;
    let expectation = Expectation { floor_segment: first, next_seq: 2900, ..FRESH };
    assert_eq!(read(&disk.crash_image(0), expectation, false).unwrap().1, commits(2900..3000));
}
