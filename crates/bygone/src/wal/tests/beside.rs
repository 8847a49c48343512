//! What goes on while somebody appends.

use super::*;

#[path = "../../../tests/support/hooked.rs"]
mod hooked;

use hooked::{Call, Hooked};

#[test]
fn what_is_appended_during_a_sync_is_not_taken_for_durable() {
    let disk = new_disk();
    let wal: Arc<std::sync::OnceLock<Wal>> = Arc::default();
    let hook_wal = wal.clone();
    let hook_done = std::sync::atomic::AtomicBool::new(false);
    let hooked = Hooked::new(&disk, move |call| {
        // Once: rolling makes a segment, and that syncs too.
        if let (Call::Synced, Some(wal)) = (call, hook_wal.get())
            && !hook_done.swap(true, Ordering::Relaxed)
        {
            append(wal, 2..3).unwrap();
            wal.roll().unwrap();
            append(wal, 3..4).unwrap();
        }
    });
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
