//! Verifies the packages as users get them, and leaves the machine as it is. It unpacks them into a scratch folder, starts the
//! packaged program with the packaged configuration, and passes other files to the programs that read them. It installs the
//! .deb on a copy of this machine. If the machine lacks a program for that, the report names it.

mod installation;
mod packages;
mod service;
mod texts;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::Packages;
use super::contents::{DEBIAN, Layout, TARBALL};
use super::programs::{english, output, outputs};
use super::release::Release;
use super::tarball;
use crate::shell::exists;

/// The results of the checks, and those that were skipped.
#[derive(Default)]
struct PackageChecks {
    passed: u64,
    /// Skipped checks, each with the missing program.
    undone: Vec<String>,
}

/// An unpacked package.
struct UnpackedPackage {
    root: PathBuf,
    layout: &'static Layout,
}

impl PackageChecks {
    fn pass(&mut self, what: impl Display) {
        println!("  ok  {what}");
        self.passed += 1;
    }

    /// Whether a program exists; the check that needs it is reported if not.
    fn can(&mut self, program: &str, package: &str, what: &str) -> bool {
        let is_there = exists(program);
        if !is_there {
            self.undone.push(format!(
                "{what}: {program} is not installed (apt-get install {package})"
            ));
        }
        is_there
    }
}

impl UnpackedPackage {
    /// A file below the prefix.
    fn below_prefix(&self, path: &str) -> PathBuf {
        self.root.join(self.layout.prefix).join(path)
    }

    fn program(&self) -> PathBuf {
        self.below_prefix("bin/thalweg")
    }
}

/// Returns the number of checks that passed.
pub(super) fn run(out: &Path, made: &Packages, release: &Release) -> Result<u64> {
    println!("\nchecks of the unpacked packages:");
    // They use a gigabyte together, which a /tmp in memory may not have.
    let scratch = tempfile::tempdir_in(out)?;
    let mut checks = PackageChecks::default();
    let deb = UnpackedPackage {
        root: scratch.path().join("deb"),
        layout: &DEBIAN,
    };
    packages::unpack_deb(&mut checks, &made.deb, &deb.root, scratch.path(), release)?;
    packages::unpack_symbols_deb(&mut checks, &made.symbols_deb, &deb, scratch.path(), release)?;
    let tar = UnpackedPackage {
        root: scratch.path().join("tar").join(tarball::name(&release.version)),
        layout: &TARBALL,
    };
    let folder = scratch.path().join("tar");
    packages::unpack_tarball(&mut checks, "the .tar.gz", &made.tarball, &folder, release)?;
    packages::unpack_tarball(
        &mut checks,
        "the .tar.gz of symbols",
        &made.symbols_tarball,
        &folder,
        release,
    )?;
    for (name, package) in [("the .deb", &deb), ("the .tar.gz", &tar)] {
        packages::is_complete(&mut checks, name, package)?;
        tells_its_version(&mut checks, name, package, release)?;
        unit_is_right(&mut checks, name, package, scratch.path())?;
        texts::completions(&mut checks, name, package)?;
        texts::manual(&mut checks, name, package)?;
        service::runs(&mut checks, name, package, scratch.path(), release)?;
    }
    installation::works(&mut checks, made, scratch.path(), release)?;
    for undone in &checks.undone {
        println!("  --  not checked here: {undone}");
    }
    println!(
        "\n{} checks of the packages passed, {} could not be made on this machine",
        checks.passed,
        checks.undone.len()
    );
    Ok(checks.passed)
}

fn tells_its_version(
    checks: &mut PackageChecks,
    name: &str,
    package: &UnpackedPackage,
    release: &Release,
) -> Result<()> {
    let said = output(english(package.program()).arg("--version"))?;
    let expected = format!("thalweg {}", release.version);
    ensure!(
        said.trim() == expected,
        "{name}: thalweg --version says {said:?}, not {expected:?}"
    );
    checks.pass(format_args!("{name}: thalweg --version"));
    Ok(())
}

/// Parses it like systemd, with the program at its present location.
fn unit_is_right(checks: &mut PackageChecks, name: &str, package: &UnpackedPackage, scratch: &Path) -> Result<()> {
    let what = format!("{name}: the unit");
    if !checks.can("systemd-analyze", "systemd", &what) {
        return Ok(());
    }
    let unit = super::contents::read(&package.below_prefix(super::contents::UNIT))?;
    let start = format!("ExecStart={}", package.layout.program);
    ensure!(unit.contains(&start), "{name}: the unit has no {start}");
    let here = format!("ExecStart={}", package.program().display());
    let file = scratch.join("thalweg.service");
    std::fs::write(&file, unit.replace(&start, &here))?;
    // An unknown key is only a warning. Errors in other units of the machine are ignored.
    let (_, complaints) = outputs(english("systemd-analyze").args(["verify", "--man=no"]).arg(&file))?;
    let own: Vec<&str> = complaints.lines().filter(|line| line.contains("thalweg")).collect();
    ensure!(
        own.is_empty(),
        "{name}: systemd-analyze verify complains:\n{}",
        own.join("\n")
    );
    checks.pass(format_args!("{what}, by systemd-analyze verify"));
    Ok(())
}
