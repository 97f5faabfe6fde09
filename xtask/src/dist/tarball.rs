//! `thalweg-VERSION-x86_64-linux.tar.gz`: one folder with `bin`, `lib`, `share` and `etc`, which can be copied to /usr/local.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Compression;
use super::contents::{GeneratedFiles, TARBALL};
use super::programs::english;
use super::release::Release;
use super::staging::StagedTree;
use crate::shell::run;

/// The name of the folder, and of the file without `.tar.gz`.
pub fn name(version: &str) -> String {
    format!("thalweg-{version}-x86_64-linux")
}

pub fn make(out: &Path, release: &Release, generated: &GeneratedFiles, compression: Compression) -> Result<PathBuf> {
    let (folder, name) = (tempfile::tempdir_in(out)?, name(&release.version));
    let tree = StagedTree::new(folder.path().join(&name), release.epoch);
    TARBALL.fill(&tree, generated)?;
    tree.seal()?;
    let file = out.join(format!("{name}.tar.gz"));
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
