//! `cargo xtask dist [--out FOLDER] [--check]`: the stripped binary, and packages of it as a .tar.gz and a .deb.
//!
//! Both packages contain the licences of everything in the binary, a systemd unit, a working configuration, completions and
//! manual pages. The symbols of the binary, for profiles with names, are in two packages of their own. All are reproducible: one commit and one binary give the same bytes on every machine, at any time.

mod binary;
mod contents;
mod deb;
mod library_needs;
mod licence_files;
mod licences;
mod programs;
mod release;
mod staging;
mod tarball;
mod verify;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::shell::target_dir;
use binary::StrippedBinary;
use contents::GeneratedFiles;
use release::Release;

/// The programs that build the packages, and the Debian packages that contain them.
const PROGRAMS: &[(&str, &str)] = &[
    ("strip", "binutils"),
    ("objcopy", "binutils"),
    ("readelf", "binutils"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("gzip", "gzip"),
    ("md5sum", "coreutils"),
    ("git", "git"),
];

struct DistOptions {
    out: PathBuf,
    is_checked: bool,
}

/// How well the packages are compressed.
#[derive(Clone, Copy, Debug)]
enum Compression {
    /// For a release: it takes minutes.
    Small,
    /// For a test.
    Quick,
}

/// The created files.
struct Packages {
    binary: PathBuf,
    deb: PathBuf,
    tarball: PathBuf,
    symbols_deb: PathBuf,
    symbols_tarball: PathBuf,
}

pub fn run(arguments: &[&str]) -> Result<()> {
    let options = DistOptions::read(arguments)?;
    let release = prepared()?;
    let out = &options.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let built = match std::env::var_os("THALWEG_BIN") {
        Some(path) => PathBuf::from(path),
        None => binary::build()?,
    };
    let packages = make(out, &release, &built, Compression::Small)?;
    if options.is_checked {
        verify::run(out, &packages, &release)?;
    }
    println!();
    for made in [
        &packages.binary,
        &packages.tarball,
        &packages.deb,
        &packages.symbols_tarball,
        &packages.symbols_deb,
    ] {
        let bytes = std::fs::metadata(made)?.len();
        println!("{:>7.1} MB  {}", bytes as f64 / 1e6, made.display());
    }
    // Last, so that one run also reports all other mistakes.
    binary::is_small(&packages.binary)
}

/// Makes packages of a binary in a folder that is removed at the end, and verifies them. Returns the number of checks that
/// passed. The size of the binary is not checked: it is that of the build for tests.
pub fn test(built: &Path) -> Result<u64> {
    let release = prepared()?;
    let folder = tempfile::tempdir_in(target_dir())?;
    let packages = make(folder.path(), &release, built, Compression::Quick)?;
    verify::run(folder.path(), &packages, &release)
}

fn prepared() -> Result<Release> {
    for (program, package) in PROGRAMS {
        programs::require(program, package)?;
    }
    Release::read()
}

fn make(out: &Path, release: &Release, built: &Path, compression: Compression) -> Result<Packages> {
    let stripped = StrippedBinary::make(out, built)?;
    let licences = licences::text(release)?;
    let folder = tempfile::tempdir_in(out)?;
    let generated = GeneratedFiles::make(&stripped.program, licences, folder.path())?;
    Ok(Packages {
        tarball: tarball::make(out, release, &generated, compression)?,
        deb: deb::make(out, release, &generated, compression)?,
        symbols_tarball: tarball::make_symbols(out, release, &stripped, compression)?,
        symbols_deb: deb::make_symbols(out, release, &stripped, compression)?,
        binary: stripped.program,
    })
}

impl Compression {
    /// The level for gzip and xz.
    fn level(self) -> u32 {
        match self {
            Compression::Small => 9,
            Compression::Quick => 1,
        }
    }
}

impl DistOptions {
    fn read(arguments: &[&str]) -> Result<DistOptions> {
        let mut options = DistOptions {
            out: target_dir().join("dist"),
            is_checked: false,
        };
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "--check" => options.is_checked = true,
                "--out" => options.out = PathBuf::from(words.next().context("--out takes a folder")?),
                _ => bail!("unknown option {word}; valid: --out FOLDER, --check"),
            }
        }
        // Programs that run in another folder get absolute paths.
        options.out = std::path::absolute(&options.out)?;
        Ok(options)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_name_the_folder_and_whether_the_packages_are_tried() {
        let options = DistOptions::read(&["--out", "/tmp/packages", "--check"]).unwrap();
        assert_eq!(options.out, Path::new("/tmp/packages"));
        assert!(options.is_checked);
        assert!(!DistOptions::read(&[]).unwrap().is_checked);
        for wrong in [&["--out"][..], &["--quick"]] {
            assert!(DistOptions::read(wrong).is_err(), "{wrong:?}");
        }
    }
}
