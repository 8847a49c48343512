//! How many leaves updates would rewrite.
//!
//! Owns: the count. Promises: takes time in proportion to the leaves that are counted, hardly to the updates; reads
//! inner pages only. May call: the page store.

use crate::cache;
use crate::error::Result;

use super::pointer::PagePointer;
use super::version::BaseVersion;

impl BaseVersion {
    /// How many leaves of a table these keys lie in, which ascend: those that are there, or would be. Counts no further
    /// than to one more than `limit`.
    pub fn reached_leaves(&self, table: u32, keys: &[&[u8]], limit: u64) -> Result<u64> {
        let Some(root) = self.table(table) else { return Ok(0) };
        let mut leaf_of = |key: &[u8]| {
            let above = self.above_leaf(root, key, &cache::pin())?.map(|(inner, child)| inner.child(child));
            Ok(above.unwrap_or(root.root))
        };
        let (mut leaves, mut rest) = (0, keys);
        while let [first, behind @ ..] = rest
            && leaves <= limit
        {
            leaves += 1;
            rest = behind_leaf(behind, leaf_of(first)?, &mut leaf_of)?;
        }
        Ok(leaves)
    }
}

/// The keys behind those that lie in `leaf`, which are the first of `keys`.
fn behind_leaf<'s, 'k>(
    keys: &'s [&'k [u8]],
    leaf: PagePointer,
    leaf_of: &mut impl FnMut(&[u8]) -> Result<PagePointer>,
) -> Result<&'s [&'k [u8]]> {
    // All before `inside` lie in it; the one at `outside` does not, or there is none.
    let (mut inside, mut outside, mut step) = (0, keys.len(), 1);
    while inside < outside {
        // By longer and longer steps, then by halves.
        let at =
            if outside == keys.len() { (inside + step - 1).min(outside - 1) } else { (inside + outside) / 2 };
        match leaf_of(keys[at])? == leaf {
            true => inside = at + 1,
            false => outside = at,
        }
        step *= 2;
    }
    Ok(&keys[inside..])
}
