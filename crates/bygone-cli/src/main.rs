//! The `bygone` command.
//!
//! Owns: the command line and the exit codes. Promises: whatever happens, standard error gets at most one
//! line, and the exit code tells what kind of thing happened. May call: every other module here; each command
//! group has one.

mod compare;
mod demo;
mod failure;
mod forget;
mod health;
mod numbers;
mod open;
mod output;
mod past;
mod progress;
mod records;
mod restore;
mod send;
mod snapshots;
mod sql;
mod text;
mod transfer;
mod window;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::output::Output;

/// A key-value store that keeps its past
#[derive(Parser)]
#[command(name = "bygone", version, about, max_term_width = 100, after_help = AFTER_HELP)]
struct Cli {
    /// Machine-readable output: one JSON value a line; bytes that are not UTF-8 in fields named ..._base64
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, whether `diff` found any difference or not;
1 the answer is no (no such key, table or snapshot; name taken);
2 the command line or the input makes no sense; 3 the database is damaged;
4 the system stood in the way (database open elsewhere, disk full, no permission).";

#[derive(Subcommand)]
enum Command {
    /// Load 55 years of country data, one snapshot a survey, and ask about the past
    Demo(demo::Demo),
    /// Store a value under a key
    Put(records::Put),
    /// Print the value of a key, now or as of a snapshot
    Get(records::Get),
    /// Remove a key; declared snapshots keep it
    Delete(records::Delete),
    /// Print records in key order, now or as of a snapshot
    Scan(records::Scan),
    /// Load CSV or JSON lines, declaring snapshots on the way if asked, or a whole SQLite file
    Import(transfer::Import),
    /// Write a table as CSV or JSON lines, all tables as a compact database, or an SQL database as a SQLite file,
    /// now or as of a snapshot
    Export(transfer::Export),
    /// Declare a snapshot of the latest commit and print its id
    Snapshot(snapshots::Declare),
    /// List the declared snapshots
    Snapshots(snapshots::List),
    /// Show or set for how long every commit can be read, declared or not
    Window(window::Window),
    /// Delete declared snapshots: those named, or all that a policy does not keep
    Forget(forget::Forget),
    /// Keep a snapshot from being deleted until its holder releases it
    Hold(forget::Hold),
    /// Let a snapshot go that is held
    Release(forget::Hold),
    /// Print what differs between two snapshots, or a snapshot and now
    Diff(compare::Diff),
    /// Print the values that a key has had, and since which snapshot
    History(compare::History),
    /// Make the state of a snapshot the present again, undoably
    Restore(restore::Restore),
    /// Write a snapshot, or what differs from another one, as a stream for `receive`
    Send(send::Send),
    /// Take over a stream from standard input, and print the id of the snapshot here
    Receive(send::Receive),
    /// Run SQL, now or as of a snapshot; a shell without any
    Sql(sql::Sql),
    /// Bring a backup in another directory up to date, with every snapshot
    Backup(send::Backup),
    /// Print sizes and counts
    Stats(health::Health),
    /// Read everything and check it
    Verify(health::Health),
    #[command(name = demo::LOADER, hide = true)]
    DemoLoader(demo::Loader),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Looked for by hand as well, because an error in the command line has to be told in the right form too.
    let json = arguments.iter().any(|argument| argument == "--json");
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return end_early(&error, json),
    };
    let mut out = Output::new(cli.json);
    let done = run(&cli.command, &mut out).and_then(|()| out.flush());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What came before the failure is still worth showing. A second failure here adds nothing to the
            // first.
            let _ = out.flush();
            report(&failure, json)
        }
    }
}

fn run(command: &Command, out: &mut Output) -> Result<()> {
    match command {
        Command::Demo(args) => demo::demo(args, out),
        Command::Put(args) => records::put(args, out),
        Command::Get(args) => records::get(args, out),
        Command::Delete(args) => records::delete(args, out),
        Command::Scan(args) => records::scan(args, out),
        Command::Import(args) => transfer::import(args, out),
        Command::Export(args) => transfer::export(args, out),
        Command::Snapshot(args) => snapshots::declare(args, out),
        Command::Snapshots(args) => snapshots::list(args, out),
        Command::Window(args) => window::window(args, out),
        Command::Forget(args) => forget::forget(args, out),
        Command::Hold(args) => forget::hold(args),
        Command::Release(args) => forget::release(args),
        Command::Diff(args) => compare::diff(args, out),
        Command::History(args) => compare::history(args, out),
        Command::Restore(args) => restore::restore(args, out),
        Command::Send(args) => send::send(args),
        Command::Receive(args) => send::receive(args, out),
        Command::Sql(args) => sql::sql(args, out),
        Command::Backup(args) => send::backup(args, out),
        Command::Stats(args) => health::stats(args, out),
        Command::Verify(args) => health::verify(args, out),
        Command::DemoLoader(args) => demo::load_and_wait(args, out),
    }
}

/// Help and version as clap prints them; an error in one line.
fn end_early(error: &clap::Error, json: bool) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print().map_err(Failure::output) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => report(&failure, json),
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            report(&Failure::usage("say what to do: `bygone --help` lists the commands"), json)
        }
        _ => report(&Failure::Usage(one_line(&error.render().to_string())), json),
    }
}

/// What clap says in a paragraph, on one line.
fn one_line(rendered: &str) -> String {
    let mut line = String::new();
    let wanted = rendered
        .lines()
        .map(str::trim)
        .filter(|part| !part.is_empty() && !part.starts_with("For more information"));
    for part in wanted {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        match line.as_bytes().last() {
            None => {}
            Some(b':') => line.push(' '),
            Some(_) => line.push_str("; "),
        }
        line.push_str(part);
    }
    line
}

fn report(failure: &Failure, json: bool) -> ExitCode {
    let code = failure.exit_code();
    if let Some(message) = failure.message() {
        // One line, whatever names or reasons it quotes.
        let message = message.replace(['\n', '\r'], " ");
        let line = match json {
            true => json!({ "error": message, "exit": code }).to_string(),
            false => format!("bygone: {message}"),
        };
        // With standard error closed there is nobody left to tell; the exit code still does.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn errors_of_the_command_line_fit_on_one_line() {
        for arguments in
            [&["bygone", "get", "db"][..], &["bygone", "scan", "db", "t", "--form", "x"], &["bygone", "gte"]]
        {
            let Err(error) = Cli::try_parse_from(arguments) else { panic!("{arguments:?} is accepted") };
            let line = one_line(&error.render().to_string());
            assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
            assert!(line.contains("Usage: bygone") || line.contains("similar"), "{line}");
        }
    }
}
