//! Builds the shipped binary, takes its symbols out into a file of their own, and checks its size.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::programs::{english, output};
use crate::shell::{cargo, run, target_dir};

/// The profile of `Cargo.toml` that makes the binary small. It compiles all dependencies again, in a folder of its own.
const PROFILE: &str = "shipped";

/// Maximum size, for downloads and container images.
const BYTES_MAX: u64 = 90_000_000;

/// The name that the program has for the file of its symbols. Debuggers, and CPU profiles of the program itself, look for it
/// beside the program and in a folder `.debug` there.
pub const SYMBOLS: &str = "thalweg.debug";

/// A binary and the symbols that were taken out of it. With them, CPU profiles and backtraces have names instead of
/// addresses.
pub struct StrippedBinary {
    pub program: PathBuf,
    pub symbols: PathBuf,
    /// Hexadecimal digits that only this build has, in both files.
    pub build_id: String,
}

impl StrippedBinary {
    /// Writes both files into a folder.
    pub fn make(out: &Path, built: &Path) -> Result<StrippedBinary> {
        let stripped = StrippedBinary {
            program: out.join("thalweg"),
            symbols: out.join(SYMBOLS),
            build_id: build_id(built)?,
        };
        // Line tables would be many times as large as the names of functions.
        let folder = tempfile::tempdir_in(out)?;
        let named = folder.path().join("thalweg");
        run(Command::new("strip")
            .args(["--strip-debug", "-o"])
            .arg(&named)
            .arg(built))?;
        run(Command::new("objcopy")
            .arg("--only-keep-debug")
            .arg(&named)
            .arg(&stripped.symbols))?;
        run(Command::new("strip")
            .args(["--strip-all", "-o"])
            .arg(&stripped.program)
            .arg(&named))?;
        // It reads the file for its sum.
        run(Command::new("objcopy")
            .arg(format!("--add-gnu-debuglink={}", stripped.symbols.display()))
            .arg(&stripped.program))?;
        Ok(stripped)
    }
}

/// Where debuggers look for the symbols of an installed program, below the root.
pub fn symbols_path(build_id: &str) -> String {
    let (folder, name) = build_id.split_at(2);
    format!("usr/lib/debug/.build-id/{folder}/{name}.debug")
}

/// The id of a program, or of its symbols.
pub fn build_id(built: &Path) -> Result<String> {
    let notes = output(english("readelf").arg("--notes").arg(built))?;
    let found = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    let id = found.with_context(|| format!("{} has no build id, which its linker adds", built.display()))?;
    ensure!(id.len() > 2 && id.is_ascii(), "a build id of {id:?}");
    Ok(id.to_owned())
}

/// Builds the binary that is shipped.
pub fn build() -> Result<PathBuf> {
    run(cargo().args(["build", "--locked", "--profile", PROFILE, "--package", "thalweg"]))?;
    Ok(target_dir().join(PROFILE).join("thalweg"))
}

/// An error if the binary is too large.
pub fn is_small(binary: &Path) -> Result<()> {
    let bytes = std::fs::metadata(binary)?.len();
    if bytes > BYTES_MAX {
        bail!(
            "{} has {:.1} MB, and {} MB are allowed; `size -A {}` shows which sections are large, `nm --size-sort` which functions",
            binary.display(),
            bytes as f64 / 1e6,
            BYTES_MAX / 1_000_000,
            binary.display()
        );
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_that_is_too_large_is_refused_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thalweg");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(BYTES_MAX).unwrap();
        is_small(&path).unwrap();
        file.set_len(BYTES_MAX + 100_000).unwrap();
        let error = is_small(&path).unwrap_err().to_string();
        assert!(error.contains("has 90.1 MB, and 90 MB are allowed"), "{error}");
    }
}
