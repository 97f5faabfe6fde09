//! Checks files with the programs that read them: completions with their shells, manual pages with groff or man.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{PackageChecks, UnpackedPackage};
use crate::dist::contents::{MANUAL, files_of};
use crate::dist::programs::{english, output, outputs};
use crate::shell::exists;

/// Each shell, with the arguments that make it parse a file without running it.
const SHELLS: [(&str, &str); 3] = [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")];

pub fn completions(checks: &mut PackageChecks, name: &str, package: &UnpackedPackage) -> Result<()> {
    for (shell, only_read) in SHELLS {
        let what = format!("{name}: completions of {shell}");
        if checks.can(shell, shell, &what) {
            let file = package.root.join(package.layout.completions(shell));
            output(english(shell).arg(only_read).arg(file))?;
            checks.pass(what);
        }
    }
    Ok(())
}

/// Every page must render without warnings.
pub fn manual(checks: &mut PackageChecks, name: &str, package: &UnpackedPackage) -> Result<()> {
    let folder = package.below_prefix(MANUAL);
    let packed = files_of(&folder, ".gz")?;
    if !packed.is_empty() {
        output(english("gzip").arg("--decompress").args(packed))?;
    }
    let pages = files_of(&folder, ".1")?;
    ensure!(
        pages.iter().any(|page| page.ends_with("thalweg-run.1")),
        "{name} has no page of thalweg run; it has {pages:?}"
    );
    let what = format!("{name}: {} manual pages", pages.len());
    let has_groff = exists("groff");
    if !has_groff && !checks.can("man", "man-db", &what) {
        return Ok(());
    }
    for page in &pages {
        render(page, has_groff)?;
    }
    checks.pass(format_args!("{what}, by {}", if has_groff { "groff" } else { "man" }));
    Ok(())
}

fn render(page: &Path, has_groff: bool) -> Result<()> {
    let mut command = match has_groff {
        true => english("groff"),
        false => english("man"),
    };
    match has_groff {
        // Plain text: bold letters may be overstruck, which depends on the settings of the machine.
        true => command.args(["-man", "-Tutf8", "-P-cbou", "-ww"]).arg(page),
        false => command.args(["--warnings", "--local-file"]).arg(page),
    };
    let (text, complaints) = outputs(&mut command)?;
    ensure!(complaints.is_empty(), "{}: {complaints}", page.display());
    ensure!(text.contains("NAME"), "{} renders as empty", page.display());
    Ok(())
}
