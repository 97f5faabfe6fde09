//! Checks the two packages as archives: owners and times of their files, completeness, and the scripts of the .deb.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{PackageChecks, UnpackedPackage};
use crate::dist::binary::{build_id, symbols_path};
use crate::dist::contents::{CONFIG, LICENCES, MANUAL, UNIT, read};
use crate::dist::deb::SCRIPTS;
use crate::dist::programs::{english, output, output_to};
use crate::dist::release::Release;

pub fn unpack_deb(
    checks: &mut PackageChecks,
    deb: &Path,
    root: &Path,
    scratch: &Path,
    release: &Release,
) -> Result<()> {
    let version = output(english("dpkg-deb").arg("--field").arg(deb).arg("Version"))?;
    let expected = release.debian_version();
    ensure!(
        version.trim() == expected,
        "the .deb has the version {version:?}, not {expected:?}"
    );
    unpack_files(checks, "the .deb", deb, root, scratch, release)?;
    let control = scratch.join("control");
    output(english("dpkg-deb").arg("--control").arg(deb).arg(&control))?;
    for script in SCRIPTS {
        output(english("sh").arg("-n").arg(control.join(script)))?;
        checks.pass(format_args!("the .deb: sh -n {script}"));
    }
    output(
        english("md5sum")
            .args(["--check", "--quiet"])
            .arg(control.join("md5sums"))
            .current_dir(root),
    )?;
    checks.pass("the .deb: sums of all files");
    for line in read(&control.join("conffiles"))?.lines() {
        let file = root.join(line.trim_start_matches('/'));
        ensure!(
            file.is_file(),
            "the .deb calls {line} a conffile, which it does not have"
        );
    }
    Ok(())
}

/// Unpacks the symbols beside their program, which must find them.
pub fn unpack_symbols_deb(
    checks: &mut PackageChecks,
    deb: &Path,
    package: &UnpackedPackage,
    scratch: &Path,
    release: &Release,
) -> Result<()> {
    let name = "the .deb of symbols";
    unpack_files(checks, name, deb, &package.root, scratch, release)?;
    let id = build_id(&package.program())?;
    let symbols = package.root.join(symbols_path(&id));
    ensure!(
        symbols.is_file() && build_id(&symbols)? == id,
        "{name}: the program has the build id {id}, and there is no {}",
        symbols.display()
    );
    checks.pass(format_args!("{name}: where the program looks for them"));
    Ok(())
}

fn unpack_files(
    checks: &mut PackageChecks,
    name: &str,
    deb: &Path,
    root: &Path,
    scratch: &Path,
    release: &Release,
) -> Result<()> {
    let archive = scratch.join("deb.tar");
    output_to(english("dpkg-deb").arg("--fsys-tarfile").arg(deb), &archive)?;
    is_reproducible(checks, name, &archive, release)?;
    output(english("dpkg-deb").arg("--extract").arg(deb).arg(root))?;
    Ok(())
}

pub fn unpack_tarball(
    checks: &mut PackageChecks,
    name: &str,
    tarball: &Path,
    folder: &Path,
    release: &Release,
) -> Result<()> {
    is_reproducible(checks, name, tarball, release)?;
    std::fs::create_dir_all(folder)?;
    output(
        english("tar")
            .arg("--extract")
            .arg("--file")
            .arg(tarball)
            .arg("--directory")
            .arg(folder),
    )?;
    Ok(())
}

/// Every entry must belong to root and have the time of the release.
fn is_reproducible(checks: &mut PackageChecks, name: &str, archive: &Path, release: &Release) -> Result<()> {
    let list = output(
        english("tar")
            .args([
                "--list",
                "--verbose",
                "--utc",
                "--full-time",
                "--numeric-owner",
                "--file",
            ])
            .arg(archive),
    )?;
    let expected = release.date("+%F %T")?;
    let mut entries = 0;
    for line in list.lines() {
        ensure!(
            is_as_released(line, &expected),
            "{name}: not of root, or not of {expected}: {line}"
        );
        entries += 1;
    }
    ensure!(entries > 0, "{name} is empty");
    checks.pass(format_args!("{name}: {entries} entries, all of root and of {expected}"));
    Ok(())
}

/// `-rw-r--r-- 0/0            1234 2026-11-29 10:04:57 ./usr/share/doc/thalweg/README.md`
fn is_as_released(line: &str, time: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_mode, owner, _size, date, clock, ..] = words.as_slice() else {
        return false;
    };
    *owner == "0/0" && format!("{date} {clock}") == time
}

pub fn is_complete(checks: &mut PackageChecks, name: &str, package: &UnpackedPackage) -> Result<()> {
    let documents = package.root.join(package.layout.documents);
    let mut files = vec![package.program(), package.below_prefix(UNIT), package.root.join(CONFIG)];
    files.extend([LICENCES, "LICENSE", "README.md", "docs/how-to/install.md"].map(|name| documents.join(name)));
    files.extend(["bash", "zsh", "fish"].map(|shell| package.root.join(package.layout.completions(shell))));
    for file in &files {
        let bytes = std::fs::metadata(file).map_or(0, |about| about.len());
        ensure!(bytes > 0, "{name} lacks {}", file.display());
    }
    ensure!(package.below_prefix(MANUAL).is_dir(), "{name} lacks the manual");
    checks.pass(format_args!(
        "{name}: program, licences, unit, configuration, completions, manual"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_another_owner_or_another_time_is_seen() {
        let time = "2026-11-29 10:04:57";
        for (line, expected) in [
            ("-rw-r--r-- 0/0            1234 2026-11-29 10:04:57 ./README.md", true),
            ("drwxr-xr-x 0/0               0 2026-11-29 10:04:57 ./a folder/", true),
            ("-rw-r--r-- 1000/1000      1234 2026-11-29 10:04:57 ./README.md", false),
            ("-rw-r--r-- 0/0            1234 2026-11-29 10:04:58 ./README.md", false),
            ("", false),
        ] {
            assert_eq!(is_as_released(line, time), expected, "{line}");
        }
    }
}
