//! `thalweg_VERSION_amd64.deb`, made by `dpkg-deb` from a tree and the scripts in `packaging/debian`, and
//! `thalweg-dbgsym_VERSION_amd64.deb` with the symbols of its program, as Debian names such packages.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Compression;
use super::binary::{StrippedBinary, symbols_path};
use super::contents::{CONFIG, DEBIAN, GeneratedFiles, MANUAL, files_of, packaging};
use super::library_needs;
use super::programs::{english, output};
use super::release::Release;
use super::staging::{EXECUTE, READ, StagedTree};
use crate::shell::run;

/// Debian's name for the symbols of a package.
const SYMBOLS_PACKAGE: &str = "thalweg-dbgsym";
const MAINTAINER: &str = "The Thalweg project <thalweg@localhost>";

/// Scripts that run when the package is installed and removed.
pub const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub fn make(out: &Path, release: &Release, generated: &GeneratedFiles, compression: Compression) -> Result<PathBuf> {
    let folder = tempfile::tempdir_in(out)?;
    let tree = StagedTree::new(folder.path().join("tree"), release.epoch);
    DEBIAN.fill(&tree, generated)?;
    documents(&tree, release)?;
    let control = control(release, &library_needs::of(&generated.binary)?, tree.kibibytes()?);
    add_control(&tree, &control)?;
    tree.write("DEBIAN/conffiles", &format!("/{CONFIG}\n"), READ)?;
    for script in SCRIPTS {
        tree.copy(
            &packaging(&format!("debian/{script}")),
            &format!("DEBIAN/{script}"),
            EXECUTE,
        )?;
    }
    packed(&tree, out, "thalweg", release, compression)
}

pub fn make_symbols(
    out: &Path,
    release: &Release,
    stripped: &StrippedBinary,
    compression: Compression,
) -> Result<PathBuf> {
    let folder = tempfile::tempdir_in(out)?;
    let tree = StagedTree::new(folder.path().join("tree"), release.epoch);
    tree.copy(&stripped.symbols, &symbols_path(&stripped.build_id), READ)?;
    let copyright = format!("usr/share/doc/{SYMBOLS_PACKAGE}/copyright");
    tree.copy(&packaging("debian/copyright"), &copyright, READ)?;
    add_control(&tree, &symbols_control(release, &stripped.build_id, tree.kibibytes()?))?;
    packed(&tree, out, SYMBOLS_PACKAGE, release, compression)
}

/// Adds the control file and the sums of all files, which must be there already.
fn add_control(tree: &StagedTree, control: &str) -> Result<()> {
    let sums = output(english("md5sum").arg("--").args(tree.files()?).current_dir(tree.root()))?;
    tree.write("DEBIAN/control", control, READ)?;
    tree.write("DEBIAN/md5sums", &sums, READ)
}

fn packed(
    tree: &StagedTree,
    out: &Path,
    package: &str,
    release: &Release,
    compression: Compression,
) -> Result<PathBuf> {
    tree.seal()?;
    let file = out.join(format!("{package}_{}_amd64.deb", release.debian_version()));
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

/// The symbols of one build are useless for another one.
fn symbols_control(release: &Release, build_id: &str, kibibytes: u64) -> String {
    let version = release.debian_version();
    format!(
        "\
Package: {SYMBOLS_PACKAGE}
Version: {version}
Architecture: amd64
Maintainer: {MAINTAINER}
Installed-Size: {kibibytes}
Depends: thalweg (= {version})
Section: debug
Priority: optional
Auto-Built-Package: debug-symbols
Build-Ids: {build_id}
Description: symbols of thalweg
 With these, CPU profiles, backtraces and debuggers have the names of functions.
"
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
        let symbols = symbols_control(&release, "ab12", 7);
        assert!(symbols.contains("\nDepends: thalweg (= 1.2.0~rc.1)\n"), "{symbols}");
        assert!(symbols.contains("\nBuild-Ids: ab12\n"), "{symbols}");
        assert!(symbols.lines().all(|line| !line.trim().is_empty()));
        let changes = changelog(&release).unwrap();
        assert!(changes.contains("\n -- The Thalweg project <thalweg@localhost>  Thu, 01 Jan 1970 00:00:00 +0000\n"));
    }
}
