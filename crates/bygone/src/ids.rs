//! The numbers that users see: of commits, of declared snapshots, of the parts of a stream, and of the window.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::error::Error;

/// The sequence number of a commit. Commits are numbered 1, 2, 3, … in the order in which they take effect; 0
/// is the empty database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub(crate) u64);

/// The number of a declared snapshot. Snapshots are numbered 1, 2, 3, … in commit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub(crate) u64);

/// The continuous window of a database: the commits that can be read although nobody declared a snapshot of them. See
/// [`Options::window`](crate::Options::window).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// For how long a commit is kept at least.
    pub length: Duration,
    /// The first commit that can be read; 0 is the empty database.
    pub first: Seq,
    /// When that commit was made. Times from here on can be asked for.
    pub since: SystemTime,
    /// The last one: the present.
    pub last: Seq,
}

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
