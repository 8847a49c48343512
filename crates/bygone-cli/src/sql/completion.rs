//! What Tab offers.
//!
//! Owns: which words may stand where the cursor is. Promises: names are those that the session sees, now or in the past
//! that it reads; what cannot be looked up is not offered, and nothing is said. May call: `commands`, `session`
//! (quoting), `show` (modes).

use clap::ValueEnum;
use rusqlite::Connection;

use super::commands::COMMANDS;
use super::session::quoted;
use super::show::Mode;

const KEYWORDS: &str = "\
ABORT ADD ALL ALTER ANALYZE AND AS ASC ATTACH AUTOINCREMENT BEFORE BEGIN BETWEEN BY CASCADE CASE CAST CHECK COLLATE \
COLUMN COMMIT CONFLICT CONSTRAINT CREATE CROSS CURRENT_TIMESTAMP DATABASE DEFAULT DELETE DESC DETACH DISTINCT DO DROP \
ELSE END ESCAPE EXCEPT EXISTS EXPLAIN FILTER FOREIGN FROM FULL GENERATED GLOB GROUP HAVING IF IGNORE IN INDEX INNER \
INSERT INTERSECT INTO IS JOIN KEY LEFT LIKE LIMIT MATCH MATERIALIZED NATURAL NOT NOTHING NULL OF OFFSET ON OR ORDER \
OUTER OVER PARTITION PLAN PRAGMA PRIMARY QUERY RECURSIVE REFERENCES REINDEX RELEASE RENAME REPLACE RETURNING RIGHT \
ROLLBACK ROWS SAVEPOINT SELECT SET SNAPSHOT STRICT TABLE TEMPORARY THEN TO TRANSACTION TRIGGER UNION UNIQUE UPDATE \
USING VACUUM VALUES VIEW VIRTUAL WHEN WHERE WINDOW WITH WITHOUT";

/// What is on Bygone beside what SQLite knows.
const OURS: [&str; 4] = ["as_of", "bygone_snapshots", "last_snapshot", "snapshot_now"];

/// What may stand there.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// Words that take the place of what begins here.
    Words(usize, Vec<String>),
    /// The name of a file.
    File,
}

/// What may stand where the cursor is.
pub fn offer(connection: &Connection, line: &str, cursor: usize) -> Offer {
    let typed = &line[..cursor];
    if let Some(command) = typed.strip_prefix('.') {
        return offer_for_command(connection, command, cursor);
    }
    let start = typed
        .rfind(|c: char| !c.is_alphanumeric() && c != '_')
        .map_or(0, |at| at + typed[at..].chars().next().map_or(1, char::len_utf8));
    let word = &typed[start..];
    // `AS OF`, `AS OF 'begun`, `as_of = 'begun`
    let is_quoted = typed[..start].ends_with('\'');
    let before = typed[..start].trim_end_matches('\'').trim_end().to_ascii_lowercase();
    if before.ends_with("as of") || before.trim_end_matches('=').trim_end().ends_with("as_of") {
        let from = if is_quoted { start - 1 } else { start };
        let names = snapshots(connection).into_iter().filter(|name| begins(name, word));
        return Offer::Words(from, names.map(|name| quoted(&name)).collect());
    }
    if word.is_empty() {
        return Offer::Words(start, Vec::new());
    }
    let lower = !word.contains(char::is_uppercase);
    let keywords = KEYWORDS.split_whitespace().filter(|keyword| begins(keyword, word));
    let keywords = keywords.map(|word| if lower { word.to_ascii_lowercase() } else { word.to_owned() });
    let names = names(connection).into_iter().chain(OURS.map(str::to_owned));
    let mut words: Vec<String> = keywords.chain(names.filter(|name| begins(name, word))).collect();
    words.sort();
    words.dedup();
    Offer::Words(start, words)
}

fn offer_for_command(connection: &Connection, typed: &str, cursor: usize) -> Offer {
    let start_of = |word: &str| cursor - word.len();
    let Some((command, rest)) = typed.split_once(char::is_whitespace) else {
        let names = COMMANDS.iter().filter(|command| begins(command.name, typed));
        return Offer::Words(start_of(typed), names.map(|command| command.name.to_owned()).collect());
    };
    let word = rest.rsplit(char::is_whitespace).next().unwrap_or_default();
    let words: Vec<String> = match command {
        "read" | "import" | "output" => return Offer::File,
        // Behind the table of a diff there are moments.
        "diff" if !rest.contains(char::is_whitespace) => strings(connection, TABLES),
        "asof" | "diff" => std::iter::once("now".to_owned()).chain(snapshots(connection)).collect(),
        "mode" => Mode::value_variants()
            .iter()
            .filter_map(|mode| Some(mode.to_possible_value()?.get_name().to_owned()))
            .collect(),
        "headers" | "timer" => vec!["on".to_owned(), "off".to_owned()],
        "snapshots" => vec!["sizes".to_owned()],
        "plot" => {
            let from = cursor - rest.len();
            return match offer(connection, rest, rest.len()) {
                Offer::Words(start, words) => Offer::Words(from + start, words),
                file => file,
            };
        }
        _ => strings(connection, TABLES),
    };
    Offer::Words(start_of(word), words.into_iter().filter(|name| begins(name, word)).collect())
}

/// Those, and all else that has a name.
const TABLES: &str = "SELECT name FROM sqlite_schema ORDER BY name";

fn begins(word: &str, with: &str) -> bool {
    word.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with))
}

/// Tables, indexes, views and columns.
fn names(connection: &Connection) -> Vec<String> {
    strings(
        connection,
        "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
         UNION SELECT c.name FROM sqlite_schema AS s, pragma_table_info(s.name) AS c WHERE s.type IN ('table', 'view')",
    )
}

fn snapshots(connection: &Connection) -> Vec<String> {
    strings(connection, "SELECT name FROM bygone_snapshots WHERE name NOT NULL ORDER BY id DESC")
}

fn strings(connection: &Connection, sql: &str) -> Vec<String> {
    let Ok(mut statement) = connection.prepare(sql) else { return Vec::new() };
    let Ok(rows) = statement.query_map([], |row| row.get(0)) else { return Vec::new() };
    rows.map_while(rusqlite::Result::ok).collect()
}

#[cfg(test)]
mod tests {
    use bygone::Db;
    use bygone_sql::Sql;

    use super::*;

    #[test]
    fn what_is_offered_fits_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path().join("db")).unwrap();
        let connection = db.sql("main").unwrap();
        connection.execute_batch("CREATE TABLE accounts(owner, balance)").unwrap();
        db.snapshot_now("it's first").unwrap();
        let words = |line: &str| match offer(&connection, line, line.len()) {
            Offer::Words(start, words) => (line[..start].to_owned(), words.join(" ")),
            Offer::File => panic!("{line}: a file"),
        };
        let expect = |start: &str, words: &str| (start.to_owned(), words.to_owned());
        assert_eq!(words("SEL"), expect("", "SELECT"));
        assert_eq!(words("select * from acc"), expect("select * from ", "accounts"));
        assert_eq!(words("select sum(bal"), expect("select sum(", "balance"));
        assert_eq!(words("select as of "), expect("select as of ", "'it''s first'"));
        assert_eq!(words("SELECT AS OF 'it"), expect("SELECT AS OF ", "'it''s first'"));
        assert_eq!(words("pragma as_of = "), expect("pragma as_of = ", "'it''s first'"));
        assert_eq!(words(".asof "), expect(".asof ", "now it's first"));
        assert_eq!(words(".sn"), expect(".", "snapshots"));
        assert_eq!(words(".mode js"), expect(".mode ", "json jsonl"));
        assert_eq!(words(".schema a"), expect(".schema ", "accounts"));
        assert_eq!(words(".plot select ow"), expect(".plot select ", "owner"));
        assert_eq!(words("select 'ö"), expect("select '", ""));
        assert_eq!(offer(&connection, ".read x", 7), Offer::File);
    }
}
