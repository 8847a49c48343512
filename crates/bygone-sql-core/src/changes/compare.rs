//! The rows of a table that differ between two moments.
//!
//! Owns: [`Differences`], and how they are shown: [`Form`], [`Shown`]. Promises: a row is told if and only if what is
//! shown of it is not the same on both sides; each is told once. May call: `described`, `candidates`, `statement`.
//!
//! Each side has a connection of its own, in a transaction, so that it reads one state throughout. Rows that may differ
//! are told by `candidates`, if the table was made by the same statement; otherwise all rows are looked at. A row of
//! one side is looked for on the other by its key. The rows of the first side tell what was deleted or updated, those
//! of the second only what was inserted.

use super::candidates::{Candidates, Locator, Rooted, Which};
use super::described::{Described, ROWID_WORDS};
use super::of_key;
use crate::btree::{Moment, Pages};
use crate::directory::Handle;
use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_CORRUPT, SQLITE_ERROR, sqlite3_context};
use crate::host::Host;
use crate::sets::uri;
use crate::statement::{Connection, MAIN, Statement};

/// What is shown of a row.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// Its key, and both states as JSON: `Key(0)`, `Old(0)`, `New(0)`.
    Json,
    /// The columns of these names, the first of which are the key: `Key(n)` counts these, `Old(n)` and `New(n)` all.
    Columns(Vec<String>),
}

/// One value of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// `insert`, `update` or `delete`.
    Change,
    /// What names the row, on whichever side it is.
    Key(usize),
    /// As of the first moment; NULL if there was no such row or column.
    Old(usize),
    /// As of the second.
    New(usize),
}

/// A database as of a moment, on a connection of its own.
pub(super) struct Opened {
    pub connection: Connection,
    pages: Option<Pages>,
}

impl Opened {
    /// Opens an SQL database as of a moment.
    pub fn new(host: &'static Host, (directory, database): (&Handle, &str), moment: &str) -> Result<Opened> {
        let connection = Connection::open(host, &uri(directory, database, moment))?;
        // What is read stays what it is, also where it is the present.
        connection.run("BEGIN")?;
        connection.run("SELECT 1 FROM sqlite_schema LIMIT 1")?;
        let file = host.main_file(connection.raw(), MAIN);
        // SAFETY: nobody is in a call of this connection.
        let moment = file.and_then(|file| unsafe { &*file }.moment());
        let pages = moment.map(|(view, table, shape)| Pages { source: Moment { view, table }, shape });
        Ok(Opened { connection, pages })
    }

    fn parts(self) -> (Connection, Option<Pages>) {
        (self.connection, self.pages)
    }
}

/// The differences, one after another.
pub(super) struct Differences {
    before: Option<Side>,
    after: Option<Side>,
    source: Source,
    form: Form,
    /// Which of the statements have the row: of the first side, of the second.
    at: (Option<Row>, Option<Row>),
}

#[derive(Clone, Copy)]
enum Row {
    /// `rows` of the side.
    Own,
    /// `of_key` of the side.
    Found,
}

/// Where rows come from that may differ.
enum Source {
    /// All rows of one side, then of the other.
    All(Which),
    Some(Box<Candidates>),
    /// None.
    Nothing,
}

struct Side {
    // Statements go before the connection that they are of.
    /// All rows, or the one at a place.
    rows: Statement,
    /// The row that has a key; `None` if the other side has another key, or none.
    of_key: Option<Statement>,
    described: Described,
    /// How many values are shown, before those of the key and the rowid.
    shown: usize,
    /// Where the columns are that are shown.
    places: Vec<Option<usize>>,
    encoding: u8,
    _connection: Connection,
}

impl Differences {
    /// What differs in a table; `None` if neither has it. Before nothing there is no table.
    pub fn new(
        before: Option<Opened>,
        after: Opened,
        table: &str,
        form: Form,
    ) -> Result<Option<Differences>> {
        let a =
            before.as_ref().map(|before| Described::find(&before.connection, table)).transpose()?.flatten();
        let b = Described::find(&after.connection, table)?;
        if a.is_none() && b.is_none() {
            return Ok(None);
        }
        let mut source = Source::All(Which::Before);
        let (before, old) = before.map(Opened::parts).unzip();
        let (after, new) = after.parts();
        if let (Some(Some(old)), Some(new)) = (&old, &new)
            && old.shape == new.shape
        {
            source = Source::Nothing;
        } else if let (Some(a), Some(b)) = (&a, &b)
            && a.sql == b.sql
            && a.has_key_of(b)
            && let (Some(Some(old)), Some(new)) = (old, new)
            && old.shape.header[44..48] == new.shape.header[44..48]
            && old.encoding() == new.encoding()
        {
            let key_columns = if a.rowid.is_none() { Some(a.key.len()) } else { None };
            let (old, new) = (Rooted { pages: old, root: a.root }, Rooted { pages: new, root: b.root });
            source = Source::Some(Box::new(Candidates::new(old, new, key_columns)?));
        }
        let is_all = !matches!(source, Source::Some(_));
        let by_key = |this: &Described, other: &Option<Described>| {
            other.as_ref().filter(|other| this.has_key_of(other)).map(|other| this.of_key(other))
        };
        let key_of_a = a.as_ref().and_then(|a| by_key(a, &b));
        let key_of_b = b.as_ref().and_then(|b| by_key(b, &a));
        let side = |connection, described: Described, key| {
            let collation = described.key_collation();
            let side = Side::new(connection, described, key, is_all, &form);
            side.map_err(|failure| of_key(table, collation, failure))
        };
        let before = a.zip(before).map(|(a, before)| side(before, a, key_of_a)).transpose()?;
        let after = b.map(|b| side(after, b, key_of_b)).transpose()?;
        Ok(Some(Differences { before, after, source, form, at: (None, None) }))
    }

    /// Goes to the next one; whether there is one.
    pub fn step(&mut self) -> Result<bool> {
        while let Some(which) = self.advance()? {
            let (own, other) = match which {
                Which::Before => (self.before.as_mut(), self.after.as_mut()),
                Which::After => (self.after.as_mut(), self.before.as_mut()),
            };
            let Some(own) = own else { continue };
            let is_found = match other {
                Some(Side { of_key: Some(of_key), .. }) => own.look_up(of_key)?,
                _ => false,
            };
            self.at = match (which, is_found) {
                (Which::Before, true) => (Some(Row::Own), Some(Row::Found)),
                (Which::Before, false) => (Some(Row::Own), None),
                (Which::After, false) => (None, Some(Row::Own)),
                // The other side has told it, if it is to be told.
                (Which::After, true) => continue,
            };
            if !is_found || self.differs() {
                return Ok(true);
            }
        }
        self.at = (None, None);
        self.source = Source::Nothing;
        Ok(false)
    }

    /// Turns to the next row that may differ.
    fn advance(&mut self) -> Result<Option<Which>> {
        match &mut self.source {
            Source::Nothing => Ok(None),
            Source::All(which) => loop {
                let side = match which {
                    Which::Before => &mut self.before,
                    Which::After => &mut self.after,
                };
                if let Some(side) = side
                    && side.rows.step()?
                {
                    return Ok(Some(*which));
                }
                if *which == Which::After {
                    return Ok(None);
                }
                *which = Which::After;
            },
            Source::Some(candidates) => {
                let Some((which, locator)) = candidates.next()? else { return Ok(None) };
                let side = match which {
                    Which::Before => &mut self.before,
                    Which::After => &mut self.after,
                };
                if let Some(side) = side {
                    side.go_to(&locator)?;
                }
                Ok(Some(which))
            }
        }
    }

    fn row(&self, which: Which) -> Option<(&Side, &Statement)> {
        let (side, row) = match which {
            Which::Before => (self.before.as_ref()?, self.at.0?),
            Which::After => (self.after.as_ref()?, self.at.1?),
        };
        let statement = match row {
            Row::Own => &side.rows,
            Row::Found => side.of_key.as_ref()?,
        };
        Some((side, statement))
    }

    /// Whether the row that both have is shown differently.
    fn differs(&self) -> bool {
        let (Some((a, old)), Some((b, new))) = (self.row(Which::Before), self.row(Which::After)) else {
            return true;
        };
        match &self.form {
            Form::Json => !old.has_same(1, new, 1),
            Form::Columns(names) => {
                (0..names.len()).any(|column| match (a.places[column], b.places[column]) {
                    (Some(a), Some(b)) => !old.has_same(a, new, b),
                    (Some(a), None) => !old.is_null(a),
                    (None, Some(b)) => !new.is_null(b),
                    (None, None) => false,
                })
            }
        }
    }

    /// `insert`, `update` or `delete`.
    fn change(&self) -> &'static str {
        match self.at {
            (None, _) => "insert",
            (_, None) => "delete",
            _ => "update",
        }
    }

    /// Gives a value of the difference.
    ///
    /// # Safety
    /// The context is that of a call.
    pub unsafe fn answer(&self, host: &Host, context: *mut sqlite3_context, shown: Shown) {
        let place = |side: &Side, column: usize| match self.form {
            Form::Json => Some(1),
            Form::Columns(_) => side.places.get(column).copied().flatten(),
        };
        let found = match shown {
            Shown::Change => {
                // SAFETY: as promised.
                return unsafe { host.api.answer_text(context, self.change()) };
            }
            Shown::Old(column) => self.row(Which::Before).map(|(side, row)| (row, place(side, column))),
            Shown::New(column) => self.row(Which::After).map(|(side, row)| (row, place(side, column))),
            Shown::Key(column) => {
                let row = self.row(Which::After).or_else(|| self.row(Which::Before));
                row.map(|(side, row)| match self.form {
                    Form::Json => (row, Some(0)),
                    Form::Columns(_) => (row, place(side, column)),
                })
            }
        };
        if let Some((row, Some(column))) = found {
            // SAFETY: as promised; the value is copied.
            unsafe { (host.api.result_value)(context, row.value(column)) };
        }
    }
}

impl Side {
    fn new(
        connection: Connection,
        described: Described,
        of_key: Option<String>,
        is_all: bool,
        form: &Form,
    ) -> Result<Side> {
        let (shown, count) = match form {
            Form::Json => (described.shown_as_json(), 2),
            Form::Columns(_) => (described.shown_as_columns(), described.columns.len()),
        };
        let places = match form {
            Form::Json => Vec::new(),
            Form::Columns(names) => names.iter().map(|name| described.place(name)).collect(),
        };
        let condition = if is_all { String::new() } else { described.at_place() };
        let rows = connection.prepare(&described.select(&shown, &condition))?;
        let of_key =
            of_key.map(|of_key| connection.prepare(&described.select(&shown, &of_key))).transpose()?;
        let mut encoding = connection.prepare("PRAGMA encoding")?;
        encoding.step()?;
        let encoding = match &encoding.text(0)[..] {
            "UTF-16le" => 2,
            "UTF-16be" => 3,
            _ => 1,
        };
        Ok(Side { rows, of_key, shown: count, places, encoding, described, _connection: connection })
    }

    /// Turns to the row at a place.
    fn go_to(&mut self, locator: &Locator) -> Result<()> {
        self.rows.reset();
        match locator {
            Locator::Rowid(rowid) => self.rows.bind_number(1, *rowid)?,
            Locator::Key(values) => {
                for (value, parameter) in values.iter().zip(1..) {
                    self.rows.bind(parameter, value, self.encoding)?;
                }
            }
        }
        match self.rows.step()? {
            true => Ok(()),
            false => {
                let text = "a row that a page has is not found: the SQL database is damaged";
                Err(Failure::new(SQLITE_CORRUPT, text))
            }
        }
    }

    /// Looks for the row in a statement of the other side's. Answers whether there is one.
    fn look_up(&self, of_key: &mut Statement) -> Result<bool> {
        of_key.reset();
        let values = self.described.key.len()
            + usize::from(self.described.rowid.is_some() && !self.described.has_plain_key);
        for index in 0..values {
            of_key.bind_value(index + 1, self.rows.value(self.shown + index))?;
        }
        of_key.step()
    }
}

impl Described {
    /// Where a column is among what [`select`](Described::select) gives by columns; also the rowid, if it is the key,
    /// by any word for it.
    fn place(&self, name: &str) -> Option<usize> {
        let is_rowid = self.has_plain_key && ROWID_WORDS.contains(&name);
        self.position(name).or_else(|| is_rowid.then_some(self.columns.len()))
    }
}

/// The failure where neither moment has a table.
pub(super) fn no_table(table: &str, before: &str, after: &str) -> Failure {
    Failure::new(SQLITE_ERROR, format!("there is no table {table:?} as of {before:?}, nor as of {after:?}"))
}
