//! What one layer got after some commit.
//!
//! Owns: the passing over of what is older. Promises: what every [`LayerCursor`] promises, of the records that
//! are newer. May call: the layers' own cursors.

use crate::error::Result;
use crate::layer::{LayerCursor, VersionCursor};

/// A cursor that passes over the records which a commit up to `after` wrote.
pub(super) struct Since<C> {
    cursor: C,
    after: u64,
}

impl<C: VersionCursor + 'static> Since<C> {
    pub fn boxed(cursor: C, after: u64) -> Box<dyn LayerCursor> {
        Box::new(Since { cursor, after })
    }

    fn is_older(&self) -> Result<bool> {
        Ok(self.cursor.key().is_some() && self.cursor.seq()? <= self.after)
    }

    fn land_forward(&mut self) -> Result<()> {
        while self.is_older()? {
            self.cursor.next()?;
        }
        Ok(())
    }

    fn land_backward(&mut self) -> Result<()> {
        while self.is_older()? {
            self.cursor.prev()?;
        }
        Ok(())
    }
}

impl<C: VersionCursor + 'static> LayerCursor for Since<C> {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.seek(key)?;
        self.land_forward()
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.cursor.seek_before(key)?;
        self.land_backward()
    }

    fn next(&mut self) -> Result<()> {
        self.cursor.next()?;
        self.land_forward()
    }

    fn prev(&mut self) -> Result<()> {
        self.cursor.prev()?;
        self.land_backward()
    }

    fn key(&self) -> Option<&[u8]> {
        self.cursor.key()
    }

    fn load(&mut self) -> Result<()> {
        self.cursor.load()
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        self.cursor.loaded()
    }

    fn is_deletion(&self) -> bool {
        self.cursor.is_deletion()
    }
}
