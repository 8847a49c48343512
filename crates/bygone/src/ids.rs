//! The numbers that users see: of commits, of declared snapshots, and of the parts of a stream.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;

use crate::error::Error;

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

/// Up to where a stream has been received: the rest can be sent alone, see [`Db::send_rest`](crate::Db::send_rest).
/// Its text (`Display`, `FromStr`) may travel in any way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// So many chunks are there.
    pub(crate) chunks: u64,
    /// The checksum of the last one, which covers all.
    pub(crate) chain: u64,
}

impl fmt::Display for ResumePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.chunks, self.chain)
    }
}

impl FromStr for ResumePoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<ResumePoint, Error> {
        let parsed = text.split_once('-').and_then(|(chunks, chain)| {
            Some(ResumePoint { chunks: chunks.parse().ok()?, chain: u64::from_str_radix(chain, 16).ok()? })
        });
        parsed.ok_or_else(|| Error::InvalidArgument { reason: format!("{text:?} is no point in a stream") })
    }
}
