//! The threads that work behind the writers' backs.
//!
//! Owns: the threads `bygone-flush`, `bygone-merge`, `bygone-standby` (the next memtable and the next log
//! segment), `bygone-archive` and `bygone-relief` (in split mode), and `bygone-watch` (who holds views for how
//! long). Promises: an error or a panic in one of them poisons the database with its cause; nobody waits for ever. May
//! call: the engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::engine::{Engine, lock};
use super::relief::relief_loop;
use crate::error::{Error, Result};
use crate::signal::Woken;

/// How often an idle thread looks round.
const TICK: Duration = Duration::from_secs(1);

/// After this long without a commit the disk counts as idle, and runs are merged although they are few:
/// readers then read at the speed of the plain tree.
const IDLE_MERGE: Duration = Duration::from_secs(3);

/// How often a retention policy is applied, while there are commits and while there are none.
const RETENTION_BUSY: Duration = Duration::from_secs(10);
const RETENTION_IDLE: Duration = Duration::from_secs(3600);

pub(super) struct Background {
    engine: Arc<Engine>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts the threads; a database that is only read has but the one that watches.
    pub fn start(engine: &Arc<Engine>) -> Result<Background> {
        let mut background = Background { engine: engine.clone(), threads: Vec::new() };
        if engine.writer.is_some() {
            background.spawn("bygone-flush", flush_loop)?;
            background.spawn("bygone-merge", merge_loop)?;
            background.spawn("bygone-standby", standby_loop)?;
            if engine.store.archive().is_some() {
                background.spawn("bygone-archive", archive_loop)?;
                background.spawn("bygone-relief", relief_loop)?;
            }
        }
        background.spawn("bygone-watch", watch_loop)?;
        Ok(background)
    }

    fn spawn(&mut self, name: &'static str, work: fn(&Engine) -> Result<()>) -> Result<()> {
        let engine = self.engine.clone();
        let guarded = move || {
            do_not_preempt_others();
            let cause = match catch_unwind(AssertUnwindSafe(|| work(&engine))) {
                Ok(Ok(())) => return,
                // Relaxed: set by the thread that joins this one.
                Ok(Err(_)) if engine.closing.load(Ordering::Relaxed) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic_message(&*panic),
            };
            engine.health.poison(format!("{name}: {cause}"));
            // Writers that wait for it must look up.
            engine.backlog.wake();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(guarded);
        self.threads.push(thread.map_err(|e| Error::io(&self.engine.path, "start a thread for", e))?);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.engine.closing.store(true, Ordering::Relaxed);
        self.engine.backlog.close();
        self.engine.merge_signal.close();
        self.engine.standby_signal.close();
        self.engine.archive_signal.close();
        self.engine.relief.close();
        self.engine.watch_signal.close();
        for thread in self.threads.drain(..) {
            // A panic in it was caught and is the database's poison already.
            let _ = thread.join();
        }
    }
}

/// Asks the system not to give this thread the processor of another at the moment that it is woken, as it does
/// with threads that were idle: a writer that has just woken the flush would lose whole time slices to it. The
/// share of the processors does not change. Where the system does not know it, nothing happens.
fn do_not_preempt_others() {
    #[cfg(target_os = "linux")]
    // SAFETY: a structure of numbers, for which zeros are valid; the call reads it and changes how the calling
    // thread (0) is scheduled, nothing else.
    unsafe {
        let parameters = std::mem::zeroed::<libc::sched_param>();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters);
    }
}

fn flush_loop(engine: &Engine) -> Result<()> {
    loop {
        let (frozen, closing) = engine.backlog.wait_for_work(TICK);
        if closing || engine.health.is_poisoned() {
            return Ok(());
        }
        if frozen.is_some() {
            engine.flush_one()?;
        }
    }
}

/// A thread of its own: a flush takes longer than a log segment lasts.
fn standby_loop(engine: &Engine) -> Result<()> {
    let writer = engine.writer()?;
    loop {
        // A full disk is for the commit to tell that needs the segment; later there may be room again.
        let _ = writer.wal.prepare_standby();
        // Not before the active one is half full: a database that is little written to takes little memory.
        if engine.present.layers().memtables.first().is_some_and(|active| active.is_half_full()) {
            engine.backlog.prepare_standby();
        }
        if engine.standby_signal.wait(TICK) == Woken::Closing || engine.health.is_poisoned() {
            return Ok(());
        }
    }
}

/// Goes on when the database is poisoned: it can still be read.
fn watch_loop(engine: &Engine) -> Result<()> {
    let every = engine.options.limits.look_every(TICK);
    while engine.watch_signal.wait(every) != Woken::Closing {
        engine.look();
    }
    Ok(())
}

/// A thread of its own: the history directory may be on a slow disk.
fn archive_loop(engine: &Engine) -> Result<()> {
    let mut more = false;
    loop {
        let wait = if more { Duration::ZERO } else { TICK };
        if engine.archive_signal.wait(wait) == Woken::Closing || engine.health.is_poisoned() {
            return Ok(());
        }
        more = engine.archive_some()?;
        engine.prune_if_wanted()?;
    }
}

fn merge_loop(engine: &Engine) -> Result<()> {
    let mut last_seq = engine.present.visible_seq();
    let mut last_change = Instant::now();
    let mut last_retention = (0, Instant::now());
    let opened = Instant::now();
    loop {
        let woken = engine.merge_signal.wait(TICK);
        if woken == Woken::Closing || engine.health.is_poisoned() {
            return Ok(());
        }
        if woken == Woken::TimedOut {
            // What a view kept that has ended since the last merge, in this process or another.
            engine.give_back();
        }
        let seq = engine.present.visible_seq();
        if seq != last_seq {
            (last_seq, last_change) = (seq, Instant::now());
        }
        // Not at once: who opens a database to go back to something in its window should still find it.
        if opened.elapsed() >= TICK {
            engine.move_window_now(engine.window_step());
        }
        let idle = last_change.elapsed() >= IDLE_MERGE;
        if engine.merge_is_due(idle) {
            engine.merge_all()?;
        } else {
            engine.consolidate()?;
        }
        if let Some(policy) = &engine.options.retention {
            let (at_seq, at) = last_retention;
            let due = if seq == at_seq { RETENTION_IDLE } else { RETENTION_BUSY };
            if at_seq == 0 || at.elapsed() >= due {
                // What cannot be read of the past is no harm to the present.
                if let Err(error) = engine.apply_retention(policy) {
                    *lock(&engine.prune_failure) = Some(error);
                    engine.health.check()?;
                }
                // Its own commits are no reason to apply it again.
                last_retention = (engine.present.visible_seq(), Instant::now());
            }
        }
        // Where the past is elsewhere, merges do not wait for it.
        if engine.store.archive().is_none() {
            engine.prune_if_wanted()?;
        } else if engine.prune_is_wanted() {
            engine.archive_signal.raise();
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "without a message".to_owned()))
}
