//! Which names files have.
//!
//! Owns: one change of a name, and what it does to a table of names. Promises: what was asked of a directory is done
//! whole, or not at all. May call: nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FileRef, parent};

#[derive(Clone)]
pub(super) enum NameChange {
    /// Of a new file, or a second name of one that there is.
    Create {
        path: PathBuf,
        file: FileRef,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        file: FileRef,
    },
    Remove {
        path: PathBuf,
        file: FileRef,
    },
}

impl NameChange {
    /// A file that is renamed has one name, and then another, also when the change that gave it its present name in
    /// `names` was not applied.
    pub fn apply(&self, names: &mut BTreeMap<PathBuf, FileRef>) {
        match self {
            NameChange::Create { path, file } => {
                names.insert(path.clone(), file.clone());
            }
            NameChange::Rename { to, file, .. } => {
                names.retain(|_, other| !Arc::ptr_eq(other, file));
                names.insert(to.clone(), file.clone());
            }
            NameChange::Remove { path, file } => {
                if names.get(path).is_some_and(|other| Arc::ptr_eq(other, file)) {
                    names.remove(path);
                }
            }
        }
    }

    pub fn is_in(&self, dir: &Path) -> bool {
        match self {
            NameChange::Create { path, .. } | NameChange::Remove { path, .. } => parent(path) == dir,
            NameChange::Rename { from, to, .. } => parent(from) == dir || parent(to) == dir,
        }
    }

    /// The same change of copied files.
    pub fn with_file(&self, copy: &mut impl FnMut(&FileRef) -> FileRef) -> NameChange {
        match self {
            NameChange::Create { path, file } => NameChange::Create { path: path.clone(), file: copy(file) },
            NameChange::Rename { from, to, file } => {
                NameChange::Rename { from: from.clone(), to: to.clone(), file: copy(file) }
            }
            NameChange::Remove { path, file } => NameChange::Remove { path: path.clone(), file: copy(file) },
        }
    }
}
