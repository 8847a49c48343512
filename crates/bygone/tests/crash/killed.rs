//! Child processes that are killed.
