//! A schema that is kept, without the moment that it was read as of.
//!
//! Owns: [`Schema`], the bytes of its pages. Promises: what is told to be the same is, to the byte, but for what no
//! query looks at. May call: `pages`.

use bygone::Result;

use super::{Moment, Seen, seen_header};
use crate::pages::{HEADER_BYTES, Shape, key};

/// The pages of a schema that is kept, at most.
const SCHEMA_PAGES_MAX: usize = 16;

/// The schema as of some moment, to tell whether it is that of another one.
pub(crate) struct Schema {
    header: [u8; HEADER_BYTES],
    /// Without the zeros at their ends.
    pages: Vec<(u32, Vec<u8>)>,
}

impl Seen {
    /// The schema, which is as of this moment what it was when it was loaded; `None` if it takes more pages than are
    /// worth being kept, or cannot be told from another one.
    pub fn schema(&self, (view, table): &Moment) -> Result<Option<Schema>> {
        let Some(table) = table.as_ref().filter(|_| self.tells_header) else { return Ok(None) };
        if self.schema.len() > SCHEMA_PAGES_MAX {
            return Ok(None);
        }
        let mut pages = Vec::with_capacity(self.schema.len());
        for page in &self.schema {
            let stored = view.get_with(table, key(*page), <[u8]>::to_vec)?;
            pages.push((*page, stored.unwrap_or_default()));
        }
        Ok(Some(Schema { header: seen_header(&Shape::load(view, table)?), pages }))
    }

    /// SQLite knows this schema, and has nothing else in its cache. Answers whether the schema is that of the moment
    /// that is to be read; then it is as if SQLite had just loaded it.
    pub fn resume(&mut self, schema: &Schema, moment: &Moment) -> Result<bool> {
        let (view, Some(table)) = moment else { return Ok(false) };
        if seen_header(&Shape::load(view, table)?) != schema.header {
            return Ok(false);
        }
        for (page, known) in &schema.pages {
            self.reads += 1;
            let same = view.get_with(table, key(*page), |stored| stored == known)?;
            if !same.unwrap_or(known.is_empty()) {
                return Ok(false);
            }
            self.pages.get(*page).until = self.stays(*page, view, table)?;
            self.see(*page);
        }
        self.note_schema(moment)?;
        Ok(self.tells_header)
    }
}
