//! The numbers that users see: of commits and of declared snapshots.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

/// The sequence number of a commit. Commits are numbered 1, 2, 3, … in the order in which they take effect; 0
/// is the empty database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub(crate) u64);

/// The number of a declared snapshot. Snapshots are numbered 1, 2, 3, … in commit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub(crate) u64);

/// A number nobody can guess: the standard library keys its hash maps with such.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

macro_rules! number {
    ($name:ident) => {
        impl From<u64> for $name {
            fn from(number: u64) -> Self {
                $name(number)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> Self {
                number.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(Seq);
number!(SnapshotId);
