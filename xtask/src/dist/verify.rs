//! `--check`: the packages as somebody gets them. They are unpacked into a scratch folder, so nothing of the machine changes; the
//! program that lies there is started with the configuration that lies there, and what other programs of the machine read is given
//! to them. What a machine lacks a program for is told by name at the end.

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

/// What was looked at, and what could not be.
#[derive(Default)]
struct PackageChecks {
    passed: u64,
    /// Each with the program that is missing.
    undone: Vec<String>,
}

/// A package that was unpacked.
struct UnpackedPackage {
    root: PathBuf,
    layout: &'static Layout,
}

impl PackageChecks {
    fn pass(&mut self, what: impl Display) {
        println!("  ok  {what}");
        self.passed += 1;
    }

    /// Whether a program is there, for a check that is named if it is not.
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
    /// A file that stands below the prefix.
    fn below_prefix(&self, path: &str) -> PathBuf {
        self.root.join(self.layout.prefix).join(path)
    }

    fn program(&self) -> PathBuf {
        self.below_prefix("bin/thalweg")
    }
}

pub(super) fn run(out: &Path, made: &Packages, release: &Release) -> Result<()> {
    println!("\nthe packages, unpacked and tried:");
    // They take a gigabyte together, which a /tmp in memory may not have.
    let scratch = tempfile::tempdir_in(out)?;
    let mut checks = PackageChecks::default();
    let deb = UnpackedPackage {
        root: scratch.path().join("deb"),
        layout: &DEBIAN,
    };
    packages::unpack_deb(&mut checks, &made.deb, &deb.root, scratch.path(), release)?;
    let tar = UnpackedPackage {
        root: scratch.path().join("tar").join(tarball::name(&release.version)),
        layout: &TARBALL,
    };
    packages::unpack_tarball(&mut checks, &made.tarball, &scratch.path().join("tar"), release)?;
    for (name, package) in [("the .deb", &deb), ("the .tar.gz", &tar)] {
        packages::is_complete(&mut checks, name, package)?;
        tells_its_version(&mut checks, name, package, release)?;
        unit_is_right(&mut checks, name, package, scratch.path())?;
        texts::completions(&mut checks, name, package)?;
        texts::manual(&mut checks, name, package)?;
    }
    service::runs(&mut checks, &deb, scratch.path(), release)?;
    for undone in &checks.undone {
        println!("  --  not checked here: {undone}");
    }
    println!(
        "\n{} checks of the packages passed, {} could not be made on this machine",
        checks.passed,
        checks.undone.len()
    );
    Ok(())
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

/// As systemd reads it, with the program where it lies at the moment.
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
    // An unknown key is a complaint and no failure. Other units of the machine may be wrong as they like.
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
