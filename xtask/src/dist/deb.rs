//! `thalweg_VERSION_amd64.deb`, made by `dpkg-deb` from a tree and the scripts in `packaging/debian`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Compression;
use super::contents::{CONFIG, DEBIAN, GeneratedFiles, MANUAL, files_of, packaging};
use super::library_needs;
use super::programs::{english, output};
use super::release::Release;
use super::staging::{EXECUTE, READ, StagedTree};
use crate::shell::run;

const MAINTAINER: &str = "The Thalweg project <thalweg@localhost>";

/// Scripts that run when the package is installed and removed.
pub const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub fn make(out: &Path, release: &Release, generated: &GeneratedFiles, compression: Compression) -> Result<PathBuf> {
    let folder = tempfile::tempdir_in(out)?;
    let tree = StagedTree::new(folder.path().join("tree"), release.epoch);
    DEBIAN.fill(&tree, generated)?;
    documents(&tree, release)?;
    let control = control(release, &library_needs::of(&generated.binary)?, tree.kibibytes()?);
    // Computed from the installed files, before the package's own control files are added.
    let sums = output(english("md5sum").arg("--").args(tree.files()?).current_dir(tree.root()))?;
    tree.write("DEBIAN/control", &control, READ)?;
    tree.write("DEBIAN/md5sums", &sums, READ)?;
    tree.write("DEBIAN/conffiles", &format!("/{CONFIG}\n"), READ)?;
    for script in SCRIPTS {
        tree.copy(
            &packaging(&format!("debian/{script}")),
            &format!("DEBIAN/{script}"),
            EXECUTE,
        )?;
    }
    tree.seal()?;
    let file = out.join(format!("thalweg_{}_amd64.deb", release.debian_version()));
    // Every release of Debian and Ubuntu with these libraries supports xz; some refuse zstd.
    run(english("dpkg-deb")
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .args(["--root-owner-group", "-Zxz"])
        .arg(format!("-z{}", compression.level()))
        .arg("--build")
        .arg(tree.root())
        .arg(&file))?;
    Ok(file)
}

/// Files that Debian requires in addition: copyright, changelog, compressed manual pages.
fn documents(tree: &StagedTree, release: &Release) -> Result<()> {
    let folder = DEBIAN.documents;
    tree.copy(&packaging("debian/copyright"), &format!("{folder}copyright"), READ)?;
    tree.write(&format!("{folder}changelog"), &changelog(release)?, READ)?;
    let pages = files_of(&tree.root().join(DEBIAN.prefix).join(MANUAL), ".1")?;
    output(
        english("gzip")
            .args(["-9", "-n", "--"])
            .arg(tree.root().join(folder).join("changelog"))
            .args(pages),
    )?;
    Ok(())
}

fn changelog(release: &Release) -> Result<String> {
    Ok(format!(
        "thalweg ({}) unstable; urgency=medium\n\n  * Version {} of commit {}.\n\n -- {MAINTAINER}  {}\n",
        release.debian_version(),
        release.version,
        release.commit,
        release.date("-R")?
    ))
}

fn control(release: &Release, libraries: &[String], kibibytes: u64) -> String {
    format!(
        "\
Package: thalweg
Version: {}
Architecture: amd64
Maintainer: {MAINTAINER}
Installed-Size: {kibibytes}
Depends: adduser, {}
Recommends: ca-certificates
Section: net
Priority: optional
Description: carries telemetry from machines to a lake
 Thalweg is one program that collects values from OPC UA servers, processes
 them with JavaScript, receives OpenTelemetry data, keeps queues and events on
 disk, writes Delta tables and answers queries in SQL.
 .
 The service thalweg.service runs /etc/thalweg/thalweg.yaml, which listens on
 this machine only until somebody changes it.
",
        release.debian_version(),
        libraries.join(", ")
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_names_version_size_and_libraries() {
        let release = Release {
            version: "1.2.0-rc.1".to_owned(),
            epoch: 0,
            commit: "abc".to_owned(),
            metadata: serde_json::Value::Null,
        };
        let libraries = ["libc6 (>= 2.35)".to_owned(), "libgcc-s1 (>= 4.2)".to_owned()];
        let text = control(&release, &libraries, 12);
        for line in [
            "Version: 1.2.0~rc.1",
            "Installed-Size: 12",
            "Depends: adduser, libc6 (>= 2.35), libgcc-s1 (>= 4.2)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        // A blank line would end the paragraph.
        assert!(text.lines().all(|line| !line.trim().is_empty()));
        let changes = changelog(&release).unwrap();
        assert!(changes.contains("\n -- The Thalweg project <thalweg@localhost>  Thu, 01 Jan 1970 00:00:00 +0000\n"));
    }
}
