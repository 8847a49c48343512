//! Whether the database can go on.
//!
//! Owns: the first failure that makes writing unsafe. Promises: once poisoned, always poisoned, with the
//! cause of the first failure; reopening recovers what was promised. May call: nothing of the engine but
//! `error`.

use std::sync::OnceLock;

use crate::error::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct Health {
    cause: OnceLock<String>,
}

impl Health {
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.cause.get() {
            None => Ok(()),
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
        }
    }

    pub fn poison(&self, cause: impl Into<String>) {
        // A later failure is a consequence of the first: the first is what a person needs.
        let _ = self.cause.set(cause.into());
    }

    pub fn is_poisoned(&self) -> bool {
        self.cause.get().is_some()
    }
}
