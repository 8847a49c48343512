//! The readers' registry: who is reading, and what must be kept for them.
//!
//! Owns: the slots in which views are noted, the threads' lists of them, the asymmetric fence, and the eras
//! under which blocks are read without a count. Promises: beginning and ending a read touch only the thread's
//! own cache lines, with plain stores; nothing grows with threads, readers held or tables; no limit. Knows
//! nothing of what layers and blocks are: they are type parameters. May call: `sync`.

mod era;
#[cfg(all(test, loom))]
mod era_models;
mod fence;
#[cfg(all(test, loom))]
mod models;
mod owner;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;
mod threads;

pub(crate) use era::{Dead, Eras, Record};
pub(crate) use slot::{Expired, Held, Slot};
pub(crate) use threads::{Contents, Owned, Registry, Stack, pin_again, unpin};
