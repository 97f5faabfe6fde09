//! Builds the shipped binary without debug information and checks its size.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{cargo, run, target_dir};

/// The profile of `Cargo.toml` that makes the binary small. It compiles all dependencies again, in a folder of its own.
const PROFILE: &str = "shipped";

/// Maximum size, for downloads and container images.
const BYTES_MAX: u64 = 90_000_000;

/// Strips a binary into a folder.
pub fn stripped(out: &Path, built: &Path) -> Result<PathBuf> {
    let stripped = out.join("thalweg");
    // The symbol table stays: without it, CPU profiles have addresses instead of names.
    run(Command::new("strip")
        .args(["--strip-debug", "-o"])
        .arg(&stripped)
        .arg(built))?;
    Ok(stripped)
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
