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
use crate::report::{Figures, write_json, write_table};
use crate::suites;

pub fn conduct(arguments: &Arguments) -> Result<()> {
    let suite = suites::find(&arguments.suite)?;
    let engines = chosen(&arguments.engines, &(suite.engines)())?;
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
    let mut figures = Figures::default();
    for run in 1..=arguments.runs {
        for engine in &engines {
            eprintln!("run {run} of {}: {engine}", arguments.runs);
            let dir = tempfile::Builder::new().prefix("bygone-bench-").tempdir_in(&parent)?;
            play(arguments, engine, dir.path(), &mut figures)?;
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

/// The engines to run: those asked for, or all.
fn chosen(asked: &[String], built: &[&str]) -> Result<Vec<String>> {
    for engine in asked {
        ensure!(
            built.contains(&engine.as_str()),
            "no engine {engine} is built in; there are: {}. Peers are features: --features redb,fjall,lmdb",
            built.join(", ")
        );
    }
    if asked.is_empty() {
        return Ok(built.iter().map(|engine| (*engine).to_owned()).collect());
    }
    Ok(asked.to_vec())
}

fn play(arguments: &Arguments, engine: &str, dir: &Path, figures: &mut Figures) -> Result<()> {
    let mut player = Command::new(std::env::current_exe()?)
        .args(arguments.for_player(engine, dir))
        .stdout(Stdio::piped())
        .spawn()?;
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
