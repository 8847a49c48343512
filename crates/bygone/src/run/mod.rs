//! Runs: immutable sorted files of versions.
//!
//! Owns: the format of a run (`docs/format/run.md`), its writer, its readers, and the merge of sorted streams
//! of versions. Promises: versions come back in the order (table, key, sequence number descending) with the
//! bytes that were added, or the answer is `Error::Corruption` with file and offset, whatever is in the file;
//! a look-up takes one probe of the filter, one search in memory and at most two blocks, however many
//! versions a key has, and allocates only for a value that lies outside the blocks. May call: `io`, `cache`,
//! `codec`, `layer`, `limits`, `error`.

mod block;
mod cursor;
mod filter;
mod format;
mod index;
mod key_head;
mod merged;
mod reader;
mod verify;
mod versions;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    format::{RunMeta, file_id, file_name},
    merged::MergedVersions,
    reader::Run,
    writer::RunWriter,
};
