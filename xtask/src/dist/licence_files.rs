//! The licence files of one crate: its own, and those of bundled foreign sources, such as the C library that it wraps.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// One file of a crate.
#[derive(Debug, PartialEq, Eq)]
pub struct LicenceFile {
    /// Path relative to the crate's folder.
    pub path: String,
    pub text: String,
}

impl LicenceFile {
    /// The file is at the top of the crate, so it applies to the crate itself.
    pub fn is_of_crate(&self) -> bool {
        !self.path.contains('/')
    }
}

/// Folders whose content is not in a binary; perl builds OpenSSL.
const PASSED_OVER: &[&str] = &[
    ".git", ".github", "benches", "examples", "perl", "target", "test", "tests",
];

/// Files with these extensions are code with the word in its name.
const CODE: &[&str] = &[
    "c", "cc", "cmake", "cpp", "go", "h", "hpp", "in", "js", "json", "pl", "pm", "py", "rs", "sh", "toml", "yml",
];

/// Texts of an alternative that is not used: each may be used under another licence beside it, or under the GPL.
const NOT_TAKEN: &[(&str, &str)] = &[("self_cell", "LICENSE-GPLv2"), ("zstd-sys", "zstd/COPYING")];

/// All licence files of a crate, sorted. `named` is the `license-file` of its manifest.
pub fn of(name: &str, folder: &Path, named: Option<&str>) -> Result<Vec<LicenceFile>> {
    let mut paths = Vec::new();
    gather(folder, &mut paths)?;
    if let Some(named) = named {
        paths.push(folder.join(named));
    }
    paths.sort();
    paths.dedup();
    let mut found = Vec::new();
    for path in paths {
        let short = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
        if NOT_TAKEN.contains(&(name, short.as_str())) {
            continue;
        }
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
        found.push(LicenceFile { path: short, text });
    }
    Ok(found)
}

fn gather(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !PASSED_OVER.contains(&name) {
                gather(&path, paths)?;
            }
        } else if is_licence(name) {
            paths.push(path);
        }
    }
    Ok(())
}

/// By its name: `LICENSE-MIT`, `COPYING`, `LICENSE.lz4`, `NOTICE.md`.
fn is_licence(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let says_so = ["LICENSE", "LICENCE"].iter().any(|word| upper.contains(word))
        || ["COPYING", "COPYRIGHT", "NOTICE"]
            .iter()
            .any(|word| upper.starts_with(word));
    says_so && !CODE.contains(&ending.to_ascii_lowercase().as_str())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_known_by_their_names_and_code_is_none() {
        for yes in [
            "LICENSE",
            "LICENSE-APACHE",
            "license.txt",
            "UNLICENSE",
            "COPYING",
            "LICENSE.lz4",
            "NOTICE.md",
        ] {
            assert!(is_licence(yes), "{yes}");
        }
        for no in ["license.rs", "copyright.pm", "README.md", "notes.txt"] {
            assert!(!is_licence(no), "{no}");
        }
    }

    #[test]
    fn files_of_foreign_sources_within_a_crate_are_found_beside_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "a\r\nb\n").unwrap();
        };
        ["LICENSE", "zstd/LICENSE", "zstd/COPYING", "tests/LICENSE", "legal.txt"]
            .into_iter()
            .for_each(put);
        let found = of("zstd-sys", folder.path(), Some("legal.txt")).unwrap();
        let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["LICENSE", "legal.txt", "zstd/LICENSE"]);
        assert_eq!(found[0].text, "a\nb\n");
        let own: Vec<bool> = found.iter().map(LicenceFile::is_of_crate).collect();
        assert_eq!(own, [true, true, false]);
    }
}
