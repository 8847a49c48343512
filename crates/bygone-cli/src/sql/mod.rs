//! `bygone sql`: SQL from the command line, from standard input, or in a shell.
//!
//! Owns: which of the three it is, and how the SQL database is opened. Promises: what is not typed by a person stops at
//! the first error, with one line that says what is wrong and where; a shell goes on. May call: `open`, `past`,
//! `output`, `failure`, and its parts: `session` (what is open, and its settings), `commands` (those that begin with a
//! dot), `show` (how rows look), `changes`, `schema`, `dump`, `load`, `plot` (single commands), `terminal` (the shell's
//! line editor), `completion`.

mod changes;
mod commands;
mod completion;
mod dump;
mod load;
mod plot;
mod schema;
mod session;
mod show;
mod terminal;

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;

use clap::Args;

use self::session::Session;
use self::show::Mode;
use crate::failure::{Failure, Result};
use crate::open;
use crate::output::Output;
use crate::past::AsOf;

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Sql {
    /// Directory of the database; made if it does not exist, unless --as-of is given
    db: PathBuf,
    /// Statements, or a command such as ".tables"; if not given, a shell, or what a pipe brings
    #[arg(value_name = "SQL")]
    statements: Option<String>,
    /// The SQL database in it
    #[arg(long = "db", value_name = "NAME", default_value = "main")]
    name: String,
    #[command(flatten)]
    as_of: AsOf,
    /// How rows are shown; "table" if not given, "jsonl" with --json
    #[arg(long)]
    mode: Option<Mode>,
    /// Without the names of the columns
    #[arg(long)]
    no_header: bool,
}

const AFTER_HELP: &str = "\
Beside what SQLite knows there are COMMIT WITH SNAPSHOT ['name'] and SELECT AS OF snapshot ...; \".help\" lists the
commands. Beside a process that has the database open, and with --as-of, it is read only.";

pub fn sql(args: &Sql, out: &mut Output) -> Result<()> {
    let (db, beside) = match args.as_of.text() {
        Some(_) => (open::reading(&args.db)?, None),
        None => open::or_create_or_beside(&args.db)?,
    };
    let mode = args.mode.unwrap_or(if out.is_json() { Mode::Jsonl } else { Mode::Table });
    let mut session = Session::open(db, &args.name, out)?;
    session.settings.mode = mode;
    session.settings.header = !args.no_header;
    if let Some(moment) = args.as_of.text() {
        session.read_as_of(moment)?;
    }
    let ran = match &args.statements {
        Some(statements) => session.run(statements).map(drop),
        None if stdin().is_terminal() && stdout().is_terminal() => {
            return terminal::run(&mut session, beside.as_deref());
        }
        None => session.run_lines(stdin().lock(), "").map(drop),
    };
    ran.and_then(|()| session.finish()).map_err(|failure| match (failure, beside) {
        // Why it is read only is not what the statement did.
        (Failure::Usage(text), Some(locked)) if text.contains("readonly") => {
            Failure::System(format!("{text}: {locked}"))
        }
        (failure, _) => failure,
    })
}
