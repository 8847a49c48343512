//! The benchmark program: Bygone beside its peers, each engine in a process of its own.
//!
//! Owns: the dispatch between the two roles of the program. Started by a person it is the conductor
//! ([`turns`]): it starts itself again once for each
//! run of each engine, in turns. Started by itself it is a player: it runs one suite on one engine and writes
//! what it measured to
//! standard output.

mod arguments;
mod cold;
mod context;
mod data;
mod engines;
mod machine;
mod meter;
mod players;
mod report;
mod suites;
mod turns;

use clap::Parser;

use arguments::Arguments;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match &arguments.play {
        Some(engine) => suites::play(&arguments, engine),
        None => turns::conduct(&arguments),
    }
}
