//! Tables of changes that have the columns of the table.
//!
//! Owns: [`Columns`]: which columns there are over several schemas, and how they are declared. Promises: a column of
//! the table keeps its name; one of ours takes another if the table has it. May call: `described`.

use super::compare::Shown;
use super::described::{Column, Described};
use crate::statement::quoted;

/// The columns of a table over some time, those that name a row first.
#[derive(Debug)]
pub(super) struct Columns {
    columns: Vec<Column>,
    /// How many name a row; none if that was not always by the same columns.
    pub keys: usize,
}

/// A column of ours: what it shows, and what it would be called.
pub(super) type Wanted = (Shown, String, String);

impl Columns {
    /// Those of all of these, the newest first: it decides about type and order.
    pub fn of(newest_first: &[Described]) -> Columns {
        let Some(newest) = newest_first.first() else { return Columns { columns: Vec::new(), keys: 0 } };
        let mut columns = Vec::new();
        if newest_first.iter().all(|other| other.has_key_of(newest)) {
            let rowid = |name: &str| Column {
                name: name.to_owned(),
                kind: "INTEGER".to_owned(),
                collation: "BINARY".to_owned(),
            };
            let of_name = |name: &str| match newest.position(name) {
                Some(index) => newest.columns[index].clone(),
                None => rowid(name),
            };
            columns.extend(newest.key_names().into_iter().map(of_name));
        }
        let keys = columns.len();
        for column in newest_first.iter().flat_map(|described| &described.columns) {
            if !columns.iter().any(|known| known.name.eq_ignore_ascii_case(&column.name)) {
                columns.push(column.clone());
            }
        }
        Columns { columns, keys }
    }

    pub fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// What a table of differences shows: `change`, the key, and each other column as it is and as it was.
    pub fn of_differences(&self) -> Vec<Wanted> {
        let mut wanted = vec![change()];
        for (index, column) in self.columns.iter().enumerate() {
            if index < self.keys {
                wanted.push((Shown::Key(index), column.name.clone(), declared(column)));
                continue;
            }
            wanted.push((Shown::New(index), column.name.clone(), declared(column)));
            wanted.push((Shown::Old(index), format!("old_{}", column.name), declared(column)));
        }
        wanted
    }

    /// What a table of histories shows behind the snapshot: `change`, the key, and all other columns.
    pub fn of_history(&self) -> Vec<Wanted> {
        let shown = |index| if index < self.keys { Shown::Key(index) } else { Shown::New(index) };
        let columns = self.columns.iter().enumerate();
        let columns = columns.map(|(index, column)| (shown(index), column.name.clone(), declared(column)));
        std::iter::once(change()).chain(columns).collect()
    }
}

fn change() -> Wanted {
    (Shown::Change, "change".to_owned(), "TEXT".to_owned())
}

/// Type and collation, as they stand behind a column's name.
fn declared(column: &Column) -> String {
    // Types may be anything; of a virtual table this word would hide the column.
    let is_plain = |kind: &str| {
        let known = |character: char| character.is_alphanumeric() || " _,.()+-".contains(character);
        kind.chars().all(known) && !kind.to_ascii_lowercase().contains("hidden")
    };
    let kind = if is_plain(&column.kind) { &column.kind[..] } else { "" };
    match &column.collation[..] {
        "" | "BINARY" => kind.to_owned(),
        collation => format!("{kind} COLLATE {}", quoted(collation)),
    }
}

/// The statement that declares a table of these columns; `ours` come first.
pub(super) fn declaration(ours: &[(&str, &str)], wanted: &[Wanted]) -> String {
    let is_of_table = |shown: &Shown| matches!(shown, Shown::Key(_) | Shown::New(_));
    let mut taken: Vec<String> =
        wanted.iter().filter(|(shown, ..)| is_of_table(shown)).map(|(_, name, _)| name.clone()).collect();
    let mut free = |name: &str| {
        let is_taken =
            |wanted: &String| taken.iter().any(|other: &String| other.eq_ignore_ascii_case(wanted));
        let numbered = (1..).map(|number| format!("{name}:{number}"));
        let found = std::iter::once(name.to_owned()).chain(numbered).find(|wanted| !is_taken(wanted));
        let found = found.unwrap_or_default();
        taken.push(found.clone());
        found
    };
    let mut columns: Vec<String> =
        ours.iter().map(|(name, declared)| format!("{} {declared}", quoted(&free(name)))).collect();
    for (shown, name, declared) in wanted {
        let name = if is_of_table(shown) { name.clone() } else { free(name) };
        columns.push(format!("{} {declared}", quoted(&name)));
    }
    format!("CREATE TABLE x({})", columns.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_table_keep_their_names() {
        let column = |shown, name: &str| (shown, name.to_owned(), String::new());
        let wanted = [
            column(Shown::Change, "change"),
            column(Shown::Key(0), "Change"),
            column(Shown::New(1), "a"),
            column(Shown::Old(1), "old_a"),
            column(Shown::New(2), "old_a"),
            column(Shown::Old(2), "old_old_a"),
        ];
        assert_eq!(
            declaration(&[("snapshot", "INTEGER")], &wanted),
            "CREATE TABLE x(\"snapshot\" INTEGER, \"change:1\" , \"Change\" , \"a\" , \"old_a:1\" , \"old_a\" , \
             \"old_old_a\" )"
        );
    }

    #[test]
    fn types_are_as_declared_unless_they_would_mean_something() {
        let declared_as = |kind: &str, collation: &str| {
            let (kind, collation) = (kind.to_owned(), collation.to_owned());
            declared(&Column { name: String::new(), kind, collation })
        };
        assert_eq!(declared_as("VARCHAR(10)", "BINARY"), "VARCHAR(10)");
        assert_eq!(declared_as("TEXT", "NOCASE"), "TEXT COLLATE \"NOCASE\"");
        assert_eq!(declared_as("int hidden", "BINARY"), "");
        assert_eq!(declared_as("x); DROP", ""), "");
    }
}
