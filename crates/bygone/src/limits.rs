//! Every limit of the engine, in one place, each with its unit. Files are checked against these limits
//! before anything read from them is used.

/// The longest key an application may store, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// The largest value an application may store, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// The largest commit, in bytes of its encoded log record.
pub const COMMIT_BYTES_MAX: usize = 3 << 30;

/// The longest name of a table or a snapshot, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The largest metadata of a snapshot, in bytes.
pub const METADATA_BYTES_MAX: usize = 64 << 10;

/// How many tables a database may have at one time.
pub const TABLES_MAX: usize = 65_536;

/// The size of a page of the base, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// How many runs may wait for a merge: what a superblock has room for.
pub const RUNS_MAX: usize = 48;

/// How many declared snapshots one process may read at one time beside the owner of the database: what a lease
/// has room for.
pub const LEASED_SNAPSHOTS_MAX: usize = 65_536;
