//! The fastest way through a range of one tree.
//!
//! Owns: nothing. Promises: one copy per leaf, none per record; no guard is held while the visitor runs, so
//! it may take its time. May call: the page store.

use std::ops::{Bound, ControlFlow};

use crate::error::Result;
use crate::limits::{KEY_BYTES_MAX, PAGE_BYTES};

use super::leaf::{Leaf, Stored};
use super::path::{Path, Towards};
use super::pointer::TableRoot;
use super::store::PageStore;
use super::version::copy_leaf;

/// Takes a key and its value, and says whether to go on.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

pub(super) fn for_each(
    store: &PageStore,
    root: &TableRoot,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
    visit: &mut Visit<'_>,
) -> Result<()> {
    let mut path = Path::default();
    let towards = match lower {
        Bound::Included(key) | Bound::Excluded(key) => Towards::Key(key),
        Bound::Unbounded => Towards::First,
    };
    let mut next = Some(path.descend(store, root, towards)?);
    let mut page = [0; PAGE_BYTES];
    let mut key_bytes = [0; KEY_BYTES_MAX];
    let mut large_value = Vec::new();
    let mut first = true;
    while let Some(pointer) = next {
        copy_leaf(store, &pointer, &mut page)?;
        let leaf = Leaf::new(&page);
        let start = match lower {
            _ if !first => 0,
            Bound::Unbounded => 0,
            Bound::Included(key) => leaf.search(key).unwrap_or_else(|i| i),
            Bound::Excluded(key) => leaf.search(key).map_or_else(|i| i, |i| i + 1),
        };
        let end = match upper {
            Bound::Unbounded => leaf.len(),
            Bound::Included(key) => leaf.search(key).map_or_else(|i| i, |i| i + 1),
            Bound::Excluded(key) => leaf.search(key).unwrap_or_else(|i| i),
        };
        first = false;
        let prefix_len = leaf.prefix().len();
        key_bytes[..prefix_len].copy_from_slice(leaf.prefix());
        for i in start..end {
            let (suffix, value) = leaf.record(i);
            let key_len = prefix_len + suffix.len();
            key_bytes[prefix_len..key_len].copy_from_slice(suffix);
            let value = match value {
                Stored::Inline(value) => value,
                Stored::Large(large) => {
                    large.read(store, &mut large_value)?;
                    &large_value
                }
            };
            if visit(&key_bytes[..key_len], value).is_break() {
                return Ok(());
            }
        }
        if end < leaf.len() {
            return Ok(());
        }
        next = path.next_leaf(store)?;
    }
    Ok(())
}
