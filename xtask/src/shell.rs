//! Runs other programs and prints their command lines.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The root of the workspace in which this program was called. Cargo passes it at each run; the value at build time may be
/// another clone, if several share a target directory.
pub fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The target directory of cargo.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The release binary, built if anything changed.
pub fn build_binary() -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", "thalweg"]))?;
    Ok(target_dir().join("release/thalweg"))
}

/// The binary that `THALWEG_BIN` names, or that of these sources. Benchmarks of two binaries compare them in one run.
pub fn binary_under_test() -> Result<PathBuf> {
    std::env::var_os("THALWEG_BIN").map_or_else(build_binary, |path| Ok(path.into()))
}

pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // Set for this program by the cargo that runs it; the inner cargo must find its own.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs to the end; an exit code other than 0 is an error that names the command.
pub fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    println!("\n$ {line}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("cannot start: {line}"))?;
    println!("  ({:.0} s)", start.elapsed().as_secs_f64());
    if !status.success() {
        bail!("command failed ({status}): {line}");
    }
    Ok(())
}

/// Like [`run`], and passes each line of the output to `see` as it is printed. Returns whether the command succeeded.
pub fn run_watching(command: &mut Command, mut see: impl FnMut(&str)) -> Result<bool> {
    let line = describe(command);
    println!("\n$ {line}");
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start: {line}"))?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            see(&line);
        }
    }
    let status = child.wait()?;
    println!("  ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(status.success())
}

/// Whether a program can be started at all.
pub fn exists(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

pub fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
