//! Who holds views, for how long, and what that keeps.
//!
//! Owns: the ages of held views, and the limits on them. Promises: beginning a view reads no clock and counts
//! nothing for this: who watches stamps what it sees for the first time, so that an age is exact to one look.
//! May call: `layers`, registry, and the layers' figures.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::layers::Layers;
use crate::ids::Seq;
use crate::limits::PAGE_BYTES;
use crate::registry::{Expired, Registry, Slot};

/// A view that is being held: a snapshot, a transaction, or a range that is not read to its end. Its clones
/// count as one with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldSnapshot {
    /// The last commit that it sees.
    pub seq: Seq,
    /// For how long it has been held, since it was first noticed: up to one look less than it really is. The
    /// database looks once a second, more often where a limit of [`Options`](crate::Options) asks for it.
    pub age: Duration,
    /// The name of the thread that began it, if it has one.
    pub thread: Option<String>,
    /// What nobody else needs: the memory of memtables, the files of merged runs, and pages of the base that
    /// would be let go with it. What is kept for declared snapshots, and what several views keep together, is
    /// nobody's; but those of one moment count as one, each with the whole.
    pub kept_bytes: u64,
    /// How many views stand on the very same layers, this one included.
    pub sharing: u64,
}

/// Called with a view that has been held for long.
pub(crate) type Callback = Arc<dyn Fn(&HeldSnapshot) + Send + Sync>;

/// What is to happen to views that are held for long.
#[derive(Clone, Default)]
pub(crate) struct Limits {
    pub long: Option<(Duration, Callback)>,
    pub max_age: Option<Duration>,
}

impl Limits {
    /// How often somebody has to look.
    pub fn look_every(&self, at_most: Duration) -> Duration {
        let limits = self.long.iter().map(|(long, _)| *long).chain(self.max_age);
        let shortest = limits.min().unwrap_or(at_most);
        (shortest / 4).clamp(Duration::from_millis(5).min(at_most), at_most)
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let long = self.long.as_ref().map(|(long, _)| long);
        f.debug_struct("Limits").field("long", &long).field("max_age", &self.max_age).finish()
    }
}

/// Set in the versions of layers that never were the newest.
const PAST: u64 = 1 << 63;

pub(super) struct Watch {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the slot's address.
    seen: HashMap<usize, Seen>,
    /// Layers that somebody may hold, by version.
    layers: HashMap<u64, Weak<Layers>>,
    past_versions: u64,
}

/// A view that was held when somebody looked last.
#[derive(Clone, Copy)]
struct Seen {
    holding: u64,
    since: Instant,
    told: bool,
}

/// A view that is held, and where.
struct Found {
    slot: &'static Slot<Layers>,
    holding: u64,
    tell: bool,
    layers: Option<Arc<Layers>>,
    is_past: bool,
    held: HeldSnapshot,
}

impl Watch {
    pub fn new(limits: Limits) -> Watch {
        Watch { limits, state: Mutex::default() }
    }

    /// Remembers which layers a version is.
    pub fn note(&self, version: u64, layers: &Arc<Layers>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.layers.retain(|_, layers| layers.strong_count() > 0);
        state.layers.insert(version, Arc::downgrade(layers));
    }

    pub fn version_of_past(&self, layers: &Arc<Layers>) -> u64 {
        let version = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.past_versions += 1;
            PAST | state.past_versions
        };
        self.note(version, layers);
        version
    }

    /// Stamps what is seen for the first time, tells of what is held for long, ends what is held for too long.
    pub fn look(&self, registry: &Registry<Layers>, newest: &Arc<Layers>) -> Vec<HeldSnapshot> {
        let mut all = self.find(registry);
        figure_out(&mut all, newest);
        for found in &mut all {
            // Let go before the view is ended: else this would be who holds them last.
            found.layers = None;
            if found.tell
                && let Some((_, callback)) = &self.limits.long
            {
                // A panic in it is not the database's.
                let _ = catch_unwind(AssertUnwindSafe(|| callback(&found.held)));
            }
            if let Some(limit) = self.limits.max_age
                && found.held.age >= limit
            {
                found.slot.expire(found.holding, Expired { age: found.held.age, limit });
            }
        }
        let mut held: Vec<_> = all.into_iter().map(|found| found.held).collect();
        held.sort_by_key(|held| std::cmp::Reverse(held.age));
        held
    }

    fn find(&self, registry: &Registry<Layers>) -> Vec<Found> {
        let now = Instant::now();
        let mut all = Vec::new();
        let mut seen = HashMap::new();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        registry.for_each(|slot| {
            let Some(sighting) = slot.sight() else { return };
            let address = std::ptr::from_ref(slot) as usize;
            let before = state.seen.get(&address).filter(|seen| seen.holding == sighting.holding);
            let mut this =
                before.copied().unwrap_or(Seen { holding: sighting.holding, since: now, told: false });
            let age = now.saturating_duration_since(this.since);
            let tell = !this.told && self.limits.long.as_ref().is_some_and(|(long, _)| age >= *long);
            this.told |= tell;
            seen.insert(address, this);
            // A view that has expired has no layers; its handles are still held, but keep nothing.
            let layers = state.layers.get(&sighting.version).and_then(Weak::upgrade);
            all.push(Found {
                slot,
                holding: sighting.holding,
                tell,
                layers,
                is_past: sighting.version & PAST != 0,
                held: HeldSnapshot {
                    seq: Seq(sighting.seq),
                    age,
                    thread: sighting.thread.filter(|name| !name.is_empty()).map(|name| name.to_string()),
                    kept_bytes: 0,
                    sharing: 1,
                },
            });
        });
        state.seen = seen;
        all
    }
}

/// Works out what each view alone keeps.
fn figure_out(all: &mut [Found], newest: &Arc<Layers>) {
    // Each stack once, with how many views stand on it.
    let mut stacks: HashMap<*const Layers, (Arc<Layers>, bool, u64)> = HashMap::new();
    for found in all.iter() {
        if let Some(layers) = &found.layers {
            let stack =
                stacks.entry(Arc::as_ptr(layers)).or_insert_with(|| (layers.clone(), found.is_past, 0));
            stack.2 += 1;
        }
    }
    let holders = || stacks.values().map(|(layers, ..)| layers).filter(|l| !Arc::ptr_eq(l, newest));
    // How many stacks have each part.
    let mut parts: HashMap<usize, u64> = HashMap::new();
    for layers in holders().chain([newest]) {
        for part in addresses(layers) {
            *parts.entry(part).or_default() += 1;
        }
    }
    let is_alone = |address: usize| parts.get(&address) == Some(&1);
    let kept: HashMap<_, _> = stacks
        .iter()
        .map(|(address, (layers, is_past, _))| {
            let bytes = if Arc::ptr_eq(layers, newest) { 0 } else { alone(layers, *is_past, is_alone) };
            (*address, bytes)
        })
        .collect();
    for found in all {
        if let Some(layers) = &found.layers {
            found.held.kept_bytes = kept[&Arc::as_ptr(layers)];
            found.held.sharing = stacks[&Arc::as_ptr(layers)].2;
        }
    }
}

/// Where the parts of a stack are.
fn addresses(layers: &Layers) -> impl Iterator<Item = usize> {
    let memtables = layers.memtables.iter().map(|memtable| Arc::as_ptr(memtable) as usize);
    let runs = layers.runs.iter().map(|run| Arc::as_ptr(run) as usize);
    memtables.chain(runs).chain([Arc::as_ptr(&layers.base) as usize])
}

/// What only this stack keeps, in bytes. The runs of the past stay whoever reads them.
fn alone(layers: &Layers, is_past: bool, is_alone: impl Fn(usize) -> bool) -> u64 {
    let memtables = layers.memtables.iter().filter(|memtable| is_alone(Arc::as_ptr(memtable) as usize));
    let runs = layers.runs.iter().filter(|run| !is_past && is_alone(Arc::as_ptr(run) as usize));
    let pages = if is_alone(Arc::as_ptr(&layers.base) as usize) { layers.base.pages_kept() } else { 0 };
    memtables.map(|memtable| memtable.memory_bytes() as u64).sum::<u64>()
        + runs.map(|run| run.meta().bytes).sum::<u64>()
        + pages * PAGE_BYTES as u64
}
