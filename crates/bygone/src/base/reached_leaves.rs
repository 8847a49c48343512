//! How many leaves updates would rewrite.
//!
//! Owns: the estimate. Promises: takes little time however many the updates are; reads inner pages only. May call: the
//! page store.

use crate::error::Result;

use super::path::{Path, Towards};
use super::version::BaseVersion;

/// How many pairs of neighbouring keys are looked at.
const PAIRS: usize = 256;

impl BaseVersion {
    /// About how many leaves of a table `count` keys lie in, which ascend: those that are there, or would be. Exact for
    /// few keys.
    pub fn reached_leaves<'k>(
        &self,
        table: u32,
        keys: impl Iterator<Item = &'k [u8]>,
        count: usize,
    ) -> Result<u64> {
        let Some(root) = self.table(table) else { return Ok(0) };
        let stride = count.div_ceil(PAIRS).max(1);
        let mut path = Path::default();
        let (mut pairs, mut apart) = (0, 0);
        let mut before = None;
        for (i, key) in keys.enumerate() {
            let begins_pair = i % stride == 0;
            if !begins_pair && before.is_none() {
                continue;
            }
            let leaf = path.descend(self.store(), root, Towards::Key(key))?;
            if let Some(before) = before {
                pairs += 1;
                apart += u64::from(before != leaf);
            }
            before = begins_pair.then_some(leaf);
        }
        // As many of all neighbours lie apart as of those.
        let neighbours = (count as u64).saturating_sub(1);
        Ok(u64::from(count > 0) + (apart * neighbours).checked_div(pairs).unwrap_or(0))
    }
}
