//! What a transaction of SQLite's has written, before its commit.
//!
//! Owns: [`Write`]. Promises: nothing; `file` fills it, and `commit` empties it. May call: `frames`, `pages`.

use crate::frames::Frames;
use crate::pages::Shape;

/// What a transaction has written.
pub(crate) struct Write {
    /// The shape that it began with.
    pub begun: Shape,
    /// The shape that it will leave.
    pub shape: Shape,
    /// Pages up to this one are those of the view where they were not written.
    pub kept_pages: u32,
    /// As they are stored: without the zeros at the end.
    pub pages: Frames,
    /// Whether SQLite has written the database anew, as `VACUUM` does.
    pub is_made_anew: bool,
    /// Whether SQLite has asked for a sync.
    pub synced: bool,
    /// Whether SQLite's first phase of the commit is done.
    pub ready: bool,
    /// The snapshot that the commit declares.
    pub declaration: Option<Option<String>>,
}

impl Write {
    /// Of a transaction that begins with this shape. Its pages go where those of an earlier one were.
    pub fn begin(shape: Shape, mut pages: Frames) -> Write {
        pages.begin(shape.page_bytes);
        Write {
            begun: shape,
            shape,
            kept_pages: shape.pages,
            pages,
            is_made_anew: false,
            synced: false,
            ready: false,
            declaration: None,
        }
    }

    /// Whether there is something to commit.
    pub fn is_dirty(&self) -> bool {
        !self.pages.is_empty() || self.shape != self.begun || self.kept_pages != self.begun.pages
    }
}
