//! The base: a copy-on-write B+tree per table, all in one page file.
//!
//! Owns: the page file `base.pages`, its format (described in `docs/format/base.md`), and which of its slots
//! are free. Promises: a published base never changes while anything can reach it; a crash at any moment
//! leaves the previous base or the next one, whole; no pointer ever leads silently to other content than it
//! was made for; whatever the bytes in the file are, reading them gives the data or an error. May call: archive,
//! `io`, `cache`, `lease`, `layer`, `codec`, `limits`, `error`, `mutation`.
//!
//! Pages have fixed slots of 4,096 bytes. A [`Rebuild`] applies sorted updates: it writes changed leaves and
//! their ancestors to free slots, then publishes the new root in one of two alternating superblocks. A
//! [`BaseVersion`] is one published state; while it is held, the pages it can see are not used again.

mod archived;
mod builder;
mod cursor;
mod diff;
mod inner;
mod keyed;
mod leaf;
mod leased;
mod live;
mod merge;
mod overflow;
mod page;
mod path;
mod pointer;
mod reach;
mod reached_leaves;
mod read_ahead;
mod rebuild;
mod scan;
mod space;
mod space_pages;
mod store;
mod stretch;
mod superblock;
mod verify;
mod version;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use diff::BaseDiff;
pub(crate) use leased::Leased;
pub(crate) use live::DeadPage;
pub(crate) use pointer::BaseRoot;
pub(crate) use rebuild::{Progress, Rebuild, Updates};
pub(crate) use store::PageStore;
pub(crate) use superblock::{MANIFEST_BYTES_MAX, Superblock};
pub(crate) use version::BaseVersion;
