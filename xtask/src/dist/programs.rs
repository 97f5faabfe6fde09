//! Programs of the machine whose output is read. What they print for people is in English, whatever the machine's language is.

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

/// The standard output. An exit code other than 0 is an error with what the program complained of.
pub fn output(command: &mut Command) -> Result<String> {
    Ok(outputs(command)?.0)
}

/// The standard output and what the program complained of, which may be nothing.
pub fn outputs(command: &mut Command) -> Result<(String, String)> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start: {line}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("this failed ({}): {line}\n{}", output.status, complaint.trim_end());
    }
    let text = String::from_utf8(output.stdout).with_context(|| format!("{line} printed no text"))?;
    Ok((text, complaint))
}

/// The standard output goes to a file.
pub fn output_to(command: &mut Command, file: &Path) -> Result<()> {
    let line = describe(command);
    let target = std::fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    let status = command
        .stdout(target)
        .status()
        .with_context(|| format!("cannot start: {line}"))?;
    if !status.success() {
        bail!("this failed ({status}): {line}");
    }
    Ok(())
}
