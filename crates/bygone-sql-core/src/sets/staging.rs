//! What the runs of a set query gave, until all are done.
//!
//! Owns: [`Staging`], a temporary database of its own, and the questions that are put to it in the end. Promises: the
//! rows of one run are there once, however many snapshots they hold for; what is larger than a cache is on the disk.
//! May call: `statement`.
//!
//! Three tables: `rows`, numbered in the order in which they came, each with its run; `runs`, a row a snapshot, with
//! its run and the rows of that; `spans`, a row a run, with the snapshots that it holds for. Runs are numbered in the
//! order of snapshots, and each holds for neighbours.

use super::reader::Sink;
use crate::failure::{Failure, Result};
use crate::ffi::{SQLITE_ERROR, sqlite3_value};
use crate::host::Host;
use crate::statement::{Connection, Row, Statement, quoted};

/// One aggregate over a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aggregate {
    pub column: String,
    pub function: String,
}

/// Aggregates that are SQLite's own.
const FUNCTIONS: [&str; 7] = ["min", "max", "sum", "total", "avg", "count", "group_concat"];

/// Where all rows are, each as often as there are snapshots that have it.
const ALL: &str = "runs CROSS JOIN rows ON rows.number BETWEEN runs.first AND runs.last";

/// And their order.
const ORDER: &str = "ORDER BY snapshot, rows.number";

/// The temporary database.
pub(crate) struct Staging {
    // Statements go before the connection that they are of.
    /// The columns of the query, and puts a row of it in; `None` before the first run.
    columns: Option<(Vec<String>, Statement)>,
    insert_run: Statement,
    connection: Connection,
    rows: i64,
    runs: i64,
    /// The first row of the last run.
    first: i64,
}

/// A question, and the names of its answer's columns.
pub(crate) type Answer = (Vec<String>, Statement);

impl Staging {
    pub fn new(host: &'static Host) -> Result<Staging> {
        // Without a name it is temporary.
        let connection = Connection::open(host, "")?;
        connection.run("PRAGMA journal_mode = OFF")?;
        connection.run("BEGIN")?;
        connection.run(
            "CREATE TABLE runs(snapshot INTEGER PRIMARY KEY, run INTEGER, first INTEGER, last INTEGER)",
        )?;
        let insert_run = connection.prepare("INSERT INTO runs VALUES (?1, ?2, ?3, ?4)")?;
        Ok(Staging { connection, columns: None, insert_run, rows: 0, runs: 0, first: 1 })
    }

    /// A connection for questions that have nothing to do with the runs.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn columns(&self) -> &[String] {
        self.columns.as_ref().map_or(&[], |(columns, _)| columns)
    }

    /// All rows, behind the snapshot of each; without it if the query has such a column itself.
    pub fn collated(&self) -> Result<Answer> {
        let mut names = self.columns().to_vec();
        let mut select = columns_of(0..names.len());
        if !names.iter().any(|name| name.eq_ignore_ascii_case("snapshot")) {
            names.insert(0, "snapshot".to_owned());
            select.insert_str(0, "snapshot, ");
        }
        Ok((names, self.connection.prepare(&format!("SELECT {select} FROM {ALL} {ORDER}"))?))
    }

    /// At which snapshots a query's one row, if it has one, was another than at the one before: snapshot, what
    /// happened, the row. Of one that is gone there are only its first columns, `keys` of them.
    pub fn changes(&self, keys: usize) -> Result<Statement> {
        let Some((columns, _)) = &self.columns else {
            return self.connection.prepare("SELECT NULL WHERE 0");
        };
        let list =
            |column: &dyn Fn(usize) -> String| (0..columns.len()).map(column).collect::<Vec<_>>().join(", ");
        let shown = |index| match index < keys {
            true => format!("coalesce(new.c{index}, old.c{index})"),
            false => format!("new.c{index}"),
        };
        self.connection.prepare(&format!(
            "SELECT snapshot, CASE WHEN before IS NULL THEN 'insert' WHEN now IS NULL THEN 'delete' ELSE 'update' END,
                    {}
             FROM (SELECT snapshot, now, lag(now) OVER (ORDER BY snapshot) AS before
                   FROM (SELECT snapshot, (SELECT number FROM rows WHERE number BETWEEN runs.first AND runs.last) AS now
                         FROM runs))
             LEFT JOIN rows AS new ON new.number = now LEFT JOIN rows AS old ON old.number = before
             WHERE now IS NOT before
               AND (now IS NULL OR before IS NULL OR ({}) IS NOT ({}) OR ({}) IS NOT ({}))
             ORDER BY snapshot",
            list(&shown),
            list(&|index| format!("new.c{index}")),
            list(&|index| format!("old.c{index}")),
            list(&|index| format!("typeof(new.c{index})")),
            list(&|index| format!("typeof(old.c{index})")),
        ))
    }

    /// One value over all rows of the query's one column.
    pub fn in_variable(&self, function: &str) -> Result<Statement> {
        self.connection.prepare(&format!("SELECT {}", over_all(&checked(function)?, 0)))
    }

    /// One row for each combination of values in those columns that are not aggregated.
    pub fn in_table(&self, aggregates: &[Aggregate]) -> Result<Answer> {
        let columns = self.columns();
        for aggregate in aggregates {
            if !columns.iter().any(|column| column.eq_ignore_ascii_case(&aggregate.column)) {
                let text = format!(
                    "the query has no column {:?} to aggregate: it gives ({})",
                    aggregate.column,
                    columns.join(", ")
                );
                return Err(Failure::new(SQLITE_ERROR, text));
            }
        }
        let (mut names, mut select, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        let of_column = |column: &str| {
            let wanted: Vec<String> = aggregates
                .iter()
                .filter(|aggregate| aggregate.column.eq_ignore_ascii_case(column))
                .map(|aggregate| aggregate.function.to_ascii_lowercase())
                .collect();
            wanted
        };
        for (index, column) in columns.iter().enumerate() {
            let functions = of_column(column);
            if functions.is_empty() {
                groups.push(format!("c{index}"));
                names.push(column.clone());
                select.push((None, index));
            }
            for function in &functions {
                let name = format!("{column}_{function}");
                names.push(if functions.len() == 1 { column.clone() } else { name });
                select.push((Some(checked(function)?), index));
            }
        }
        let groups = groups.join(", ");
        let is_placed = |function: &str| matches!(function, "first" | "last");
        let sql = if groups.is_empty() {
            let values = select.iter().map(|(function, index)| match function {
                Some(function) => over_all(function, *index),
                None => format!("c{index}"),
            });
            format!("SELECT {}", values.collect::<Vec<_>>().join(", "))
        } else if select.iter().any(|(function, _)| function.as_deref().is_some_and(is_placed)) {
            // Which row is the first or the last of a group, only a window knows.
            let values = select.iter().map(|(function, index)| match function.as_deref() {
                Some("first") => format!("first_value(c{index}) OVER w"),
                Some("last") => format!("last_value(c{index}) OVER w"),
                Some(function) => format!("{function}(c{index}) OVER w"),
                None => format!("c{index}"),
            });
            format!(
                "SELECT DISTINCT {} FROM {ALL} WINDOW w AS (PARTITION BY {groups} {ORDER}
                 ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) ORDER BY {groups}",
                values.collect::<Vec<_>>().join(", ")
            )
        } else {
            let values = select.iter().map(|(function, index)| match function {
                Some(function) => format!("{function}(c{index})"),
                None => format!("c{index}"),
            });
            format!(
                "SELECT {} FROM {ALL} GROUP BY {groups} ORDER BY {groups}",
                values.collect::<Vec<_>>().join(", ")
            )
        };
        Ok((names, self.connection.prepare(&sql)?))
    }

    /// Each different row with the first and the last snapshot of each stretch of neighbours that have it.
    pub fn intervals(&self) -> Result<Answer> {
        let mut names = self.columns().to_vec();
        let columns = columns_of(0..names.len());
        names.extend(["start_snapshot".to_owned(), "end_snapshot".to_owned()]);
        self.connection.run("CREATE TABLE spans(run INTEGER PRIMARY KEY, since INTEGER, until INTEGER)")?;
        self.connection
            .run("INSERT INTO spans SELECT run, min(snapshot), max(snapshot) FROM runs GROUP BY run")?;
        // In a stretch the runs go up by one with the rows; each gap makes another difference.
        let sql = format!(
            "SELECT {columns}, begun.since, ended.until
             FROM (SELECT {columns}, min(run) AS first_run, max(run) AS last_run
                   FROM (SELECT run, {columns}, run - row_number() OVER (PARTITION BY {columns} ORDER BY run) AS stretch
                         FROM (SELECT DISTINCT run, {columns} FROM rows))
                   GROUP BY {columns}, stretch)
             JOIN spans AS begun ON begun.run = first_run JOIN spans AS ended ON ended.run = last_run
             ORDER BY begun.since, {columns}"
        );
        Ok((names, self.connection.prepare(&sql)?))
    }
}

impl Sink for Staging {
    fn begin_run(&mut self, columns: Vec<String>) -> Result<()> {
        match &self.columns {
            None => {
                let names: String = (0..columns.len()).map(|index| format!(", c{index}")).collect();
                let values: String = (0..columns.len()).map(|index| format!(", ?{}", index + 2)).collect();
                self.connection
                    .run(&format!("CREATE TABLE rows(number INTEGER PRIMARY KEY, run INTEGER{names})"))?;
                let insert = format!("INSERT INTO rows VALUES (NULL, ?1{values})");
                self.columns = Some((columns, self.connection.prepare(&insert)?));
            }
            Some((before, _)) if *before != columns => {
                return Err(other_columns(&columns, before));
            }
            Some(_) => {}
        }
        self.runs += 1;
        self.first = self.rows + 1;
        Ok(())
    }

    fn push(&mut self, row: &Row<'_>) -> Result<()> {
        let Some((_, insert)) = &mut self.columns else { return Ok(()) };
        insert.bind_number(1, self.runs)?;
        insert.bind_row(2, row)?;
        insert.run()?;
        self.rows += 1;
        Ok(())
    }

    fn end_run(&mut self) -> Result<()> {
        Ok(())
    }

    fn rows(&self) -> u64 {
        self.rows as u64
    }

    fn holds_for(&mut self, snapshot: u64) -> Result<()> {
        for (value, parameter) in [snapshot as i64, self.runs, self.first, self.rows].into_iter().zip(1..) {
            self.insert_run.bind_number(parameter, value)?;
        }
        self.insert_run.run()
    }
}

/// The failure of a query that does not give the same columns as of each snapshot.
pub(super) fn other_columns(here: &[String], before: &[String]) -> Failure {
    let text = format!("the query gives ({}) here, and ({}) before", here.join(", "), before.join(", "));
    Failure::new(SQLITE_ERROR, text)
}

fn columns_of(indices: std::ops::Range<usize>) -> String {
    indices.map(|index| format!("c{index}")).collect::<Vec<_>>().join(", ")
}

/// The name of an aggregate that there is.
pub(super) fn checked(function: &str) -> Result<String> {
    let name = function.trim().to_ascii_lowercase();
    if FUNCTIONS.contains(&&name[..]) || matches!(&name[..], "first" | "last") {
        return Ok(name);
    }
    let text = format!("{function:?} is none of the aggregates: first, last, {}", FUNCTIONS.join(", "));
    Err(Failure::new(SQLITE_ERROR, text))
}

/// An aggregate over a column of all rows.
fn over_all(function: &str, index: usize) -> String {
    match function {
        "first" => format!("(SELECT c{index} FROM {ALL} {ORDER} LIMIT 1)"),
        "last" => format!("(SELECT c{index} FROM {ALL} ORDER BY snapshot DESC, rows.number DESC LIMIT 1)"),
        function => format!("(SELECT {function}(c{index}) FROM {ALL})"),
    }
}

/// Reads `column:function, ...`; a column's name may have colons.
pub(crate) fn aggregates(text: &str) -> Result<Vec<Aggregate>> {
    let parts = text.split(',').map(|part| {
        let (column, function) = part.rsplit_once(':')?;
        let (column, function) = (column.trim().to_owned(), function.trim().to_owned());
        (!column.is_empty()).then_some(Aggregate { column, function })
    });
    let parts: Option<Vec<Aggregate>> = parts.collect();
    let parts = parts.ok_or_else(|| {
        let text = format!("{text:?} is not of the form 'column:function, column:function'");
        Failure::new(SQLITE_ERROR, text)
    })?;
    parts.iter().try_for_each(|part| checked(&part.function).map(|_| ()))?;
    Ok(parts)
}

/// Puts all rows of an answer into a table that this makes. Answers how many. It is made whole, or not at all.
///
/// # Safety
/// The connection is in a call of this thread's.
pub(crate) unsafe fn make_table(
    host: &'static Host,
    connection: *mut crate::ffi::sqlite3,
    (schema, table): (&str, &str),
    (names, mut answer): Answer,
) -> Result<i64> {
    // SAFETY: as promised.
    let prepare = |sql: &str| unsafe { Statement::prepare(host, connection, sql) };
    let target = format!("{}.{}", quoted(schema), quoted(table));
    let columns: Vec<String> = unique(names).iter().map(|name| quoted(name)).collect();
    let parameters: Vec<String> = (1..=columns.len()).map(|index| format!("?{index}")).collect();
    prepare("SAVEPOINT bygone_set")?.run()?;
    let filled: Result<i64> = (|| {
        prepare(&format!("CREATE TABLE {target}({})", columns.join(", ")))?.run()?;
        let mut insert = prepare(&format!("INSERT INTO {target} VALUES ({})", parameters.join(", ")))?;
        let mut count = 0;
        while answer.step()? {
            insert.bind_row(1, &Row::Found(&answer))?;
            insert.run()?;
            count += 1;
        }
        Ok(count)
    })();
    if filled.is_err() {
        prepare("ROLLBACK TO bygone_set").and_then(|mut back| back.run()).ok();
    }
    let released = prepare("RELEASE bygone_set").and_then(|mut release| release.run());
    if released.is_err() {
        // Interrupted just here: what writes is rolled back by SQLite when it meets that, what ends a savepoint is not.
        prepare(&format!("DELETE FROM {target}")).and_then(|mut delete| delete.run()).ok();
    }
    let count = filled?;
    released.map(|()| count)
}

/// Names of which no two are the same to SQL.
fn unique(names: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for name in names {
        let is_taken = |wanted: &str| out.iter().any(|other| other.eq_ignore_ascii_case(wanted));
        let numbered = (1..).map(|number| format!("{name}:{number}"));
        let found = std::iter::once(name.clone()).chain(numbered).find(|wanted| !is_taken(wanted));
        out.extend(found);
    }
    out
}

/// The value that an answer of one row has.
pub(crate) fn value_of(answer: &mut Statement) -> Result<*mut sqlite3_value> {
    answer.step()?;
    Ok(answer.value(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_columns_and_functions_are_read() {
        let pair = |column: &str, function: &str| Aggregate {
            column: column.to_owned(),
            function: function.to_owned(),
        };
        assert_eq!(aggregates("a:sum").unwrap(), [pair("a", "sum")]);
        assert_eq!(aggregates(" a : MIN,b:c:last ").unwrap(), [pair("a", "MIN"), pair("b:c", "last")]);
        for wrong in ["", "a", "a:", ":sum", "a:sum,", "a:median"] {
            assert!(aggregates(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_become_different() {
        let names = ["a", "b", "A", "a:1", "a"].map(str::to_owned).to_vec();
        assert_eq!(unique(names), ["a", "b", "A:1", "a:1:1", "a:2"]);
    }
}
