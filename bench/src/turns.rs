//! The conductor: engines take turns, and their medians are compared.
//!
//! Owns: the players' processes and directories. Promises: A B A B, so that what slows the machine for a
//! while slows all engines; each run in a new
//! process over an empty directory, so that none inherits another's memory, threads or files.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::arguments::Arguments;
use crate::context::Measurement;
use crate::machine::Machine;
use crate::players;
use crate::report::{Figures, OURS, write_json, write_table};
use crate::suites::{self, Suite};

pub fn conduct(arguments: &Arguments) -> Result<()> {
    let suite = suites::find(&arguments.suite)?;
    let engines = chosen(&arguments.engines, suite)?;
    let parent = match &arguments.dir {
        Some(dir) => dir.clone(),
        None => std::env::current_dir()?,
    };
    // Made now: hours of measuring should not end at a file that can't be written.
    let json =
        arguments.json.as_ref().map(|path| File::create(path).with_context(|| path.display().to_string()));
    let json = json.transpose()?;
    let machine = Machine::probe(&parent)?;
    eprintln!("{machine:?}");
    let config = serde_json::json!({
        "scale": arguments.scale.name(),
        "sizes": (suite.sizes)(arguments.scale),
        "machine": machine,
    });
    // All before the first run, so that no run follows on a build.
    let programs =
        engines.iter().map(|engine| players::program_for(suite, engine)).collect::<Result<Vec<_>>>()?;
    let mut figures = Figures::default();
    for run in 1..=arguments.runs {
        for (engine, program) in engines.iter().zip(&programs) {
            eprintln!("run {run} of {}: {engine}", arguments.runs);
            let dir = tempfile::Builder::new().prefix("bygone-bench-").tempdir_in(&parent)?;
            play(arguments, engine, program, dir.path(), &mut figures)?;
            dir.close()?;
        }
    }
    let rows = figures.rows(suite.name, &engines, &config);
    if let Some(file) = json {
        let mut file = BufWriter::new(file);
        write_json(&mut file, &rows)?;
        file.into_inner()?.sync_all()?;
    }
    write_table(&mut std::io::stdout().lock(), &rows, &engines)
}

/// The engines to run: those asked for, all that the suite knows, or those that are built in, ours at least.
fn chosen(asked: &[String], suite: &Suite) -> Result<Vec<String>> {
    let known = suite.engines;
    let named = |engines: &[&str]| engines.iter().map(|engine| (*engine).to_owned()).collect();
    if asked == ["all"] {
        return Ok(named(known));
    }
    for engine in asked {
        ensure!(
            known.contains(&engine.as_str()),
            "this suite has no engine {engine}; there are: {}, and `all`",
            known.join(", ")
        );
    }
    if asked.is_empty() {
        let built: Vec<_> =
            known.iter().copied().filter(|engine| *engine == OURS || suite.has(engine)).collect();
        return Ok(named(&built));
    }
    Ok(asked.to_vec())
}

fn play(
    arguments: &Arguments,
    engine: &str,
    program: &Path,
    dir: &Path,
    figures: &mut Figures,
) -> Result<()> {
    let mut player =
        Command::new(program).args(arguments.for_player(engine, dir)).stdout(Stdio::piped()).spawn()?;
    let out = player.stdout.take().context("the player's output is a pipe")?;
    for line in BufReader::new(out).lines() {
        let measurement: Measurement = serde_json::from_str(&line?)?;
        let Measurement { case, threads, value, unit } = &measurement;
        eprintln!("    {case:<34} {threads:>3} {value:>16.2} {unit}");
        figures.add(engine, measurement);
    }
    let status = player.wait()?;
    if !status.success() {
        bail!("{engine} failed: {status}");
    }
    Ok(())
}
