//! Runs programs of the machine and returns their output, always in English, whatever the machine's language is.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell::{describe, exists};

/// An error with the cure if a program is missing.
pub fn require(program: &str, package: &str) -> Result<()> {
    if exists(program) {
        return Ok(());
    }
    bail!("{program} is not installed; on Debian: apt-get install {package}")
}

pub fn english(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C.UTF-8");
    command
}

/// Returns the standard output. An exit code other than 0 is an error with the program's stderr.
pub fn output(command: &mut Command) -> Result<String> {
    Ok(outputs(command)?.0)
}

/// Returns the standard output and the stderr, which may be empty.
pub fn outputs(command: &mut Command) -> Result<(String, String)> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start: {line}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("command failed ({}): {line}\n{}", output.status, complaint.trim_end());
    }
    let text = String::from_utf8(output.stdout).with_context(|| format!("{line} printed invalid UTF-8"))?;
    Ok((text, complaint))
}

/// Writes the standard output to a file.
pub fn output_to(command: &mut Command, file: &Path) -> Result<()> {
    let line = describe(command);
    let target = std::fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    let status = command
        .stdout(target)
        .status()
        .with_context(|| format!("cannot start: {line}"))?;
    if !status.success() {
        bail!("command failed ({status}): {line}");
    }
    Ok(())
}
