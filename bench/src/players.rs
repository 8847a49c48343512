//! The programs that play an engine: this one, or one built with a peer in it.
//!
//! Owns: which program that is, and building it. Promises: each heavy peer is linked into a program of its own,
//! since the C++ libraries among them have symbols in common; all are built from the source at hand.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::suites::Suite;

/// The peers in C++.
const CXX_PEERS: &[&str] = &["rocksdb", "speedb", "speedb-snap"];

/// What the peers' own builds find out on Linux, and their crates' builds leave out, all or in part: checksums by
/// instructions instead of tables, and what the C library has.
const CXX_FLAGS: &str = "-msse4.2 -mpclmul -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION \
    -DROCKSDB_AUXV_GETAUXVAL_PRESENT -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_MALLOC_USABLE_SIZE \
    -DROCKSDB_PTHREAD_ADAPTIVE_MUTEX -DROCKSDB_RANGESYNC_PRESENT -DROCKSDB_SCHED_GETCPU_PRESENT";

/// The cargo feature that brings an engine in, which is also the name of its program's directory.
fn feature_of(engine: &str) -> &str {
    match engine {
        "lmdb-renew" => "lmdb",
        other => other,
    }
}

/// Flags for the C++ compiler, behind those of the environment.
fn cxx_flags(feature: &str, manifest_dir: &Path) -> String {
    let mut flags = format!("{} {CXX_FLAGS}", std::env::var("CXXFLAGS").unwrap_or_default());
    if feature == "speedb-snap" {
        // Its own build's switch, which its crate's build does not have, and what stands in for a library that it
        // needs.
        let include = manifest_dir.join("speedb-snap");
        flags.push_str(&format!(" -DSPEEDB_SNAP_OPTIMIZATION -I{}", include.display()));
    }
    flags.trim_start().to_owned()
}

/// The program that plays this engine in this suite. Builds it if need be, which for a library in C++ takes many
/// minutes the first time.
pub fn program_for(suite: &Suite, engine: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    if suite.has(engine) {
        return Ok(own);
    }
    // The program is in TARGET/release.
    let target = own.ancestors().nth(2).context("this program is not in a target directory")?;
    let feature = suite.feature.unwrap_or_else(|| feature_of(engine));
    let target = target.join("players").join(feature);
    eprintln!("building with {feature} in {}", target.display());
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if CXX_PEERS.contains(&feature) && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        cargo.env("CXXFLAGS", cxx_flags(feature, manifest_dir));
    }
    let status = cargo
        .args(["build", "--release", "--locked", "--quiet", "--features", feature])
        .arg("--manifest-path")
        .arg(manifest_dir.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        // Standard output is for figures.
        .stdout(Stdio::null())
        .status()
        .context("cargo")?;
    ensure!(status.success(), "{engine} cannot be built: see above, and what it needs in README.md");
    let name = own.file_name().context("this program has no name")?;
    Ok(target.join("release").join(name))
}
