//! The continuous window beside the model, which has every state anyway.
//!
//! Owns: which window the database has when. Promises: every commit that the engine says is in the window is compared
//! in full; a time that is not older than the window is long is in it. May call: the engine.

use std::time::{Duration, SystemTime};

use bygone::{Error, Seq, SnapshotRef};

use crate::compare::{WAYS, same};
use crate::driver::Driver;
use crate::model::State;
use crate::random::Random;

/// Nothing leaves it while a test runs.
const LONG: Duration = Duration::from_secs(100_000);

#[derive(Clone)]
pub enum Window {
    /// There is none, ever.
    Never,
    On {
        /// What the database was last told; zero is none.
        length: Duration,
        /// Whether that changes.
        changes: bool,
        /// Since when it has been so, or longer.
        since: SystemTime,
        /// Times with the commits that were the last ones then.
        noted: Vec<(SystemTime, u64)>,
    },
}

impl Window {
    /// One that begins with the empty database.
    pub fn always() -> Window {
        Window::On { length: LONG, changes: false, since: SystemTime::now(), noted: Vec::new() }
    }

    pub fn changing() -> Window {
        Window::On { length: LONG, changes: true, since: SystemTime::now(), noted: Vec::new() }
    }

    pub fn is_on(&self) -> bool {
        matches!(self, Window::On { length, .. } if !length.is_zero())
    }

    /// What the first opening is told.
    pub fn first_length(&self) -> Option<Duration> {
        match self {
            Window::Never => None,
            Window::On { length, .. } => Some(*length),
        }
    }

    /// What the next opening is told, if anything.
    pub fn next_length(&mut self, random: &mut Random) -> Option<Duration> {
        let Window::On { length, changes: true, since, .. } = self else { return None };
        if random.percent(40) {
            return None;
        }
        let next = *random.pick(&[
            LONG,
            Duration::from_millis(100),
            Duration::from_millis(10),
            Duration::from_micros(1),
            Duration::ZERO,
        ]);
        if next > *length {
            // It has no more than there was.
            *since = SystemTime::now();
        }
        *length = next;
        Some(next)
    }
}

impl Driver {
    /// A commit of the window, by its number or by a time, as what it is.
    pub fn read_the_window(&mut self) {
        self.note_the_time();
        if let Some((seq, state)) = self.undeclared() {
            let way = *self.random.pick(&WAYS);
            // It may leave the window meanwhile.
            match self.db.as_of(seq) {
                Err(Error::OutsideWindow { .. }) => assert!(self.db.window().unwrap().first > seq),
                past => {
                    same(&past.unwrap(), &state, way).unwrap_or_else(|error| panic!("commit {seq}: {error}"))
                }
            }
        }
        let Window::On { length, since, noted, .. } = &self.window else { return };
        if noted.is_empty() || length.is_zero() {
            return;
        }
        let (time, seq) = noted[self.random.below(noted.len())];
        match self.db.as_of(time) {
            Ok(past) if time >= self.db.window().unwrap().since => {
                assert_eq!(u64::from(past.seq()), seq, "as of {time:?}");
                same(&past, self.model.state(seq), *self.random.pick(&WAYS)).unwrap();
            }
            // A snapshot that was declared before the window.
            Ok(_) => {}
            Err(Error::OutsideWindow { .. }) => {
                let begins = SystemTime::now() - *length;
                assert!(time < begins.max(*since), "{time:?} is not older than {length:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// At this time, and until the next commit, the present is what it is now.
    fn note_the_time(&mut self) {
        let Window::On { noted, .. } = &mut self.window else { return };
        noted.push((SystemTime::now(), self.model.now.seq));
        // Times count by the microsecond.
        std::thread::sleep(Duration::from_micros(2));
    }

    /// Any commit of the window.
    pub fn undeclared(&mut self) -> Option<(Seq, State)> {
        let window = self.db.window();
        assert_eq!(window.is_some(), self.window.is_on());
        let (first, last) = window.map(|window| (u64::from(window.first), u64::from(window.last)))?;
        assert_eq!(last, self.model.now.seq);
        let seq = first + self.random.below((last - first + 1) as usize) as u64;
        Some((Seq::from(seq), self.model.state(seq).clone()))
    }

    /// Commits of the window in full, about so many that are spread over it, and the one before it.
    pub fn check_window(&mut self, count: usize) {
        let window = self.db.window();
        assert_eq!(window.is_some(), self.window.is_on());
        let Some(window) = window else { return };
        let (first, last) = (u64::from(window.first), u64::from(window.last));
        assert_eq!(last, self.model.now.seq);
        if let Window::On { changes: false, .. } = self.window {
            assert_eq!(first, 0, "nothing has left it");
        }
        let step = ((last - first) as usize / count).max(1);
        for seq in (first + self.random.below(step) as u64..=last).step_by(step) {
            let past = match self.db.as_of(Seq::from(seq)) {
                // It was moved since.
                Err(Error::OutsideWindow { .. }) if u64::from(self.db.window().unwrap().first) > seq => {
                    continue;
                }
                past => past.unwrap(),
            };
            let way = *self.random.pick(&WAYS);
            if let Err(difference) = same(&past, self.model.state(seq), way) {
                panic!("commit {seq} of the window {first} to {last}: {difference}");
            }
        }
        if let Some(before) = first.checked_sub(1)
            && !self.model.declared.iter().any(|declared| declared.state.seq == before)
        {
            let answer = self.db.as_of(SnapshotRef::from(Seq::from(before)));
            assert!(matches!(answer, Err(Error::OutsideWindow { .. })), "{:?}", answer.map(|_| ()));
        }
    }
}
