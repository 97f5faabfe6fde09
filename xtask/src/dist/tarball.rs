//! `thalweg-VERSION-x86_64-linux.tar.gz`: one folder with `bin`, `lib`, `share` and `etc`, which can be copied to /usr/local.
//! `…-symbols.tar.gz`: the same folder with the symbols of its program, for unpacking in the same place.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Compression;
use super::binary::{SYMBOLS, StrippedBinary};
use super::contents::{GeneratedFiles, TARBALL};
use super::programs::english;
use super::release::Release;
use super::staging::{READ, StagedTree};
use crate::shell::run;

/// The name of the folder, and of the file without `.tar.gz`.
pub fn name(version: &str) -> String {
    format!("thalweg-{version}-x86_64-linux")
}

pub fn make(out: &Path, release: &Release, generated: &GeneratedFiles, compression: Compression) -> Result<PathBuf> {
    let file = out.join(format!("{}.tar.gz", name(&release.version)));
    packed(file, release, compression, |tree| TARBALL.fill(tree, generated))
}

pub fn make_symbols(
    out: &Path,
    release: &Release,
    stripped: &StrippedBinary,
    compression: Compression,
) -> Result<PathBuf> {
    let file = out.join(format!("{}-symbols.tar.gz", name(&release.version)));
    packed(file, release, compression, |tree| {
        tree.copy(&stripped.symbols, &format!("bin/.debug/{SYMBOLS}"), READ)
    })
}

/// Packs what `fill` puts into the folder.
fn packed(
    file: PathBuf,
    release: &Release,
    compression: Compression,
    fill: impl FnOnce(&StagedTree) -> Result<()>,
) -> Result<PathBuf> {
    let beside = file.parent().context("a file without a folder")?;
    let (folder, name) = (tempfile::tempdir_in(beside)?, name(&release.version));
    let tree = StagedTree::new(folder.path().join(&name), release.epoch);
    fill(&tree)?;
    tree.seal()?;
    // Names in order, no owner, no compression time: nothing depends on the machine.
    run(english("tar")
        .args([
            "--create",
            "--format=ustar",
            "--sort=name",
            "--owner=root:0",
            "--group=root:0",
        ])
        .arg("--numeric-owner")
        .arg(format!("--use-compress-program=gzip -{} -n", compression.level()))
        .arg("--file")
        .arg(&file)
        .arg("--directory")
        .arg(folder.path())
        .arg(&name))?;
    Ok(file)
}
