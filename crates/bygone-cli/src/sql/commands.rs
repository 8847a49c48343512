//! The commands that begin with a dot.
//!
//! Owns: [`COMMANDS`], their help, and how a line becomes words. Promises: a command that is not known, or not
//! understood, is an error that says what would be. May call: `session`, and the modules of single commands.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::session::{Flow, Session};
use super::show::Mode;
use super::{changes, dump, load, plot, schema};
use crate::failure::{Failure, Result};

/// One command.
pub struct Command {
    /// Without the dot.
    pub name: &'static str,
    arguments: &'static str,
    help: &'static str,
    run: Run,
}

enum Run {
    /// With its words.
    Words(fn(&mut Session<'_>, &[Cow<'_, str>]) -> Result<()>),
    /// With all of the line behind its name.
    Rest(fn(&mut Session<'_>, &str) -> Result<()>),
    /// It ends the session.
    Quit,
}

use Run::{Quit, Rest, Words};

pub const COMMANDS: [Command; 20] = [
    command(
        "asof",
        "[S|now]",
        "Read as of a snapshot (name, id, time), or now; print what is read",
        Words(as_of),
    ),
    command(
        "databases",
        "",
        "List the SQL databases here, and those that are attached",
        Words(schema::databases),
    ),
    command(
        "diff",
        "TABLE A [B]",
        "Show the rows of a table that differ between two moments; B is now if not given",
        Words(changes::diff),
    ),
    command(
        "dump",
        "[TABLE]",
        "Write the statements that make the database, or one table",
        Words(dump::dump),
    ),
    command("exit", "", "As .quit", Quit),
    command("headers", "on|off", "Show the names of the columns, or not", Words(headers)),
    command("help", "", "Print this", Words(help)),
    command(
        "history",
        "TABLE [KEY...]",
        "Show what declared snapshots made of a table's rows, or of the one with this key",
        Words(changes::history),
    ),
    command(
        "import",
        "FILE TABLE",
        "Load CSV, whose first line names the columns, into a table",
        Words(load::import),
    ),
    command("indexes", "[TABLE]", "List the indexes", Words(schema::indexes)),
    command(
        "mode",
        "[MODE]",
        "Show rows as table, markdown, csv, tabs, list, line, json or jsonl",
        Words(mode),
    ),
    command("nullvalue", "TEXT", "Show TEXT where a value is NULL", Words(null_value)),
    command("output", "[FILE]", "Write what comes to a file, or to the terminal again", Words(output)),
    command("plot", "SELECT ...", "Draw a query of two columns, the second over the first", Rest(plot::plot)),
    command("quit", "", "End the session; what is not committed is forgotten", Quit),
    command("read", "FILE", "Run the statements and commands of a file", Words(read)),
    command(
        "schema",
        "[NAME]",
        "Print the statements that made the tables, indexes, views",
        Words(schema::schema),
    ),
    command(
        "snapshots",
        "[sizes]",
        "List the declared snapshots, with what they take if asked",
        Words(schema::snapshots),
    ),
    command("tables", "[PATTERN]", "List the tables and views, those LIKE a pattern", Words(schema::tables)),
    command("timer", "on|off", "Print how long each input took, or not", Words(timer)),
];

const fn command(name: &'static str, arguments: &'static str, help: &'static str, run: Run) -> Command {
    Command { name, arguments, help, run }
}

/// Runs what stands behind the dot.
pub fn run(session: &mut Session<'_>, line: &str) -> Result<Flow> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let Some(command) = COMMANDS.iter().find(|command| command.name.eq_ignore_ascii_case(name)) else {
        return Err(Failure::usage(format!("there is no command .{name}; .help lists those that there are")));
    };
    match command.run {
        Quit => return Ok(Flow::End),
        Rest(run) => run(session, rest.trim())?,
        Words(run) => {
            let words = words(rest)?;
            let fewest = command.arguments.split_whitespace().filter(|word| !word.starts_with('[')).count();
            let most = match command.arguments.ends_with("...]") {
                true => usize::MAX,
                false => command.arguments.split_whitespace().count(),
            };
            if !(fewest..=most).contains(&words.len()) {
                let usage = format!(".{} {}", command.name, command.arguments);
                return Err(Failure::usage(format!("write {}", usage.trim_end())));
            }
            run(session, &words)?;
        }
    }
    Ok(Flow::More)
}

/// The words of a line, where quotes, single or double, hold one together.
fn words(line: &str) -> Result<Vec<Cow<'_, str>>> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        let (word, behind) = match first {
            '\'' | '"' => rest[1..]
                .split_once(first)
                .ok_or_else(|| Failure::usage(format!("the quote {first} is opened and never closed")))?,
            _ => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        words.push(word.into());
        rest = behind.trim_start();
    }
    Ok(words)
}

fn as_of(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    if let Some(moment) = words.first() {
        return session.read_as_of(moment);
    }
    let moment = session.as_of()?;
    session.line(moment)
}

fn headers(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    session.settings.header = on_or_off(words)?;
    Ok(())
}

fn timer(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    session.timer = on_or_off(words)?;
    Ok(())
}

fn on_or_off(words: &[Cow<'_, str>]) -> Result<bool> {
    match words.first().map(|word| &word[..]) {
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(Failure::usage("write on or off")),
    }
}

fn mode(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    let name = |mode: &Mode| mode.to_possible_value().map(|value: PossibleValue| value.get_name().to_owned());
    let Some(word) = words.first() else {
        let mode = name(&session.settings.mode).unwrap_or_default();
        return session.line(mode);
    };
    session.settings.mode = Mode::from_str(word, true).map_err(|_| {
        let names: Vec<_> = Mode::value_variants().iter().filter_map(name).collect();
        Failure::usage(format!("there is no mode {word:?}; there are {}", names.join(", ")))
    })?;
    Ok(())
}

fn null_value(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    session.settings.null = words.first().map(|word| word.to_string());
    Ok(())
}

fn output(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    session.send_to(words.first().map(|word| Path::new(&**word)))
}

fn read(session: &mut Session<'_>, words: &[Cow<'_, str>]) -> Result<()> {
    const DEPTH_MAX: usize = 16;
    let Some(name) = words.first() else { return Ok(()) };
    if session.depth == DEPTH_MAX {
        return Err(Failure::usage(format!("{DEPTH_MAX} files read each other: no more")));
    }
    let path = Path::new(&**name);
    let file = File::open(path).map_err(|error| Failure::file(path, "read", error))?;
    session.depth += 1;
    let ran = session.run_lines(BufReader::new(file), name);
    session.depth -= 1;
    ran.map(drop)
}

fn help(session: &mut Session<'_>, _words: &[Cow<'_, str>]) -> Result<()> {
    for Command { name, arguments, help, .. } in &COMMANDS {
        session.line(format_args!("{:<24} {help}", format!(".{name} {arguments}")))?;
    }
    session.line(
        "Statements end with a semicolon. COMMIT WITH SNAPSHOT ['name'] and SELECT AS OF snapshot ... are known, too.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_held_together_by_quotes() {
        assert_eq!(words(" a  'b c' \"d\" ").unwrap(), ["a", "b c", "d"]);
        assert!(words("").unwrap().is_empty());
        assert!(words("'a").is_err());
    }

    #[test]
    fn commands_are_listed_in_order() {
        assert!(COMMANDS.is_sorted_by_key(|command| command.name));
        assert!(COMMANDS.iter().all(|command| command.name.len() + command.arguments.len() <= 22));
    }
}
