//! The shell on a terminal.
//!
//! Owns: the line editor, its history, Ctrl-C. Promises: an error is told, and the session goes on; Ctrl-C ends the
//! statement that runs, or drops the line that is typed, never the session; statements are read until they are
//! complete. May call: `session`, `completion`, `failure`.

use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

use rusqlite::Connection;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::completion::{Offer, offer};
use super::session::{Flow, Session};
use crate::failure::{Failure, Result};

/// Names the file of the history; an empty one keeps none.
const HISTORY_VARIABLE: &str = "BYGONE_SQL_HISTORY";
/// In the user's own directory, unless the variable says another.
const HISTORY_FILE: &str = ".bygone_sql_history";
const HISTORY_LINES: usize = 10_000;

/// Reads and runs until the end of input. `beside` says who has the database open, if it is read only for that.
pub fn run(session: &mut Session<'_>, beside: Option<&str>) -> Result<()> {
    session.chatty = true;
    let interrupt = session.connection.get_interrupt_handle();
    ctrlc::set_handler(move || interrupt.interrupt())
        .map_err(|error| Failure::System(format!("Ctrl-C cannot be taken care of: {error}")))?;
    session.line(format_args!(
        "Bygone {} with SQLite {}. Statements end with a semicolon; .help lists the commands.",
        env!("CARGO_PKG_VERSION"),
        rusqlite::version()
    ))?;
    if let Some(locked) = beside {
        session.line(format_args!("Read only: {locked}"))?;
    }
    let failed = |error: ReadlineError| Failure::System(format!("the terminal cannot be read: {error}"));
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .history_ignore_space(true)
        .max_history_size(HISTORY_LINES)
        .map_err(failed)?
        .build();
    let mut editor: Editor<Assistant, FileHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Assistant::new(session.connection.clone())));
    let history = history_file();
    if let Some(history) = &history {
        // There is none before the first session's end.
        let _ = editor.load_history(history);
    }
    let ended = converse(session, &mut editor);
    if let Some(history) = &history {
        // A history that cannot be kept is not worth an error at every session's end.
        let _ = editor.append_history(history);
    }
    ended.and_then(|()| session.finish())
}

fn converse(session: &mut Session<'_>, editor: &mut Editor<Assistant, FileHistory>) -> Result<()> {
    loop {
        session.flush()?;
        let input = match editor.readline(&prompt(session)) {
            Ok(input) => input,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(Failure::System(format!("the terminal cannot be read: {error}"))),
        };
        if input.trim().is_empty() {
            continue;
        }
        // It only fails where there is no history.
        let _ = editor.add_history_entry(input.trim_end());
        match session.run(&input) {
            Ok(Flow::More) => {}
            Ok(Flow::End) => return Ok(()),
            Err(Failure::Closed) => return Err(Failure::Closed),
            Err(failure) => {
                session.flush()?;
                let word = console::style("error:").for_stderr().red().bold();
                let message = failure.message().unwrap_or_default();
                // With standard error closed there is nobody left to tell.
                let _ = writeln!(std::io::stderr(), "{word} {message}");
            }
        }
    }
}

fn prompt(session: &Session<'_>) -> String {
    let past = match session.as_of() {
        Ok(moment) if moment != "now" => format!(" as of {moment}"),
        _ => String::new(),
    };
    let open = if session.connection.is_autocommit() { "" } else { "*" };
    format!("bygone{past}{open}> ")
}

fn history_file() -> Option<PathBuf> {
    match std::env::var_os(HISTORY_VARIABLE) {
        Some(path) => Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty()),
        None => Some(std::env::home_dir()?.join(HISTORY_FILE)),
    }
}

/// What helps while a line is typed.
struct Assistant {
    connection: Rc<Connection>,
    files: FilenameCompleter,
}

impl Assistant {
    fn new(connection: Rc<Connection>) -> Assistant {
        Assistant { connection, files: FilenameCompleter::new() }
    }
}

impl Helper for Assistant {}

impl Highlighter for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, cursor: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        match offer(&self.connection, line, cursor) {
            Offer::File => self.files.complete_path(line, cursor),
            Offer::Words(start, words) => {
                let pair = |word: String| Pair { display: word.clone(), replacement: word };
                Ok((start, words.into_iter().map(pair).collect()))
            }
        }
    }
}

impl Validator for Assistant {
    fn validate(&self, input: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let input = input.input();
        let ended = input.trim_start().starts_with('.') || bygone_sql::is_complete(input);
        Ok(if ended { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}
