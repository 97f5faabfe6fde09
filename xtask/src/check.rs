//! Formatting, lints, licences, and the rules of structure that no lint knows.

mod private_files;
mod promises;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::{self, cargo, root};

/// Lines of a source file without its tests.
const FILE_LINES_MAX: usize = 800;

/// Which layer a crate belongs to; a crate may use only crates of lower layers, and of its own layer none.
/// The exceptions are listed beside the rule that needs them.
const LAYERS: &[(&str, u32)] = &[
    ("record", 0),
    ("config", 0),
    ("kit", 0),
    ("log", 1),
    ("telemetry", 1),
    ("mapping", 1),
    ("script", 1),
    ("simulator", 2),
    ("flow", 2),
    ("events", 3),
    ("lake", 3),
    ("queue", 3),
    ("tags", 3),
    ("events-postgres", 4),
    ("query", 4),
    ("events-flow", 4),
    ("kafka", 5),
    ("opcua", 5),
    ("events-api", 5),
    ("otlp", 5),
    ("queue-api", 5),
    ("console", 5),
    ("assemble", 6),
    ("thalweg", 7),
];

fn structure() -> Result<()> {
    let mut wrong = Vec::new();
    arrows_point_down(&mut wrong)?;
    documents_name_what_exists(&mut wrong)?;
    promises::are_tested(&mut wrong)?;
    for file in rust_files(&root())? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let short = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        private_files::are_made_in_one_place(&short, &text, &mut wrong);
        let lines = text
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(test)]"))
            .count();
        if lines > FILE_LINES_MAX && !short.contains("tests") {
            wrong.push(format!(
                "{short} has {lines} lines without tests; split it (at most {FILE_LINES_MAX})"
            ));
        }
        if !text.is_empty() && !text.starts_with("//!") && !short.contains("/tests") && !short.ends_with("/tests.rs") {
            wrong.push(format!("{short} does not open with a module comment (//!)"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("the structure rules are broken:\n  {}", wrong.join("\n  "))
}

pub fn run() -> Result<()> {
    structure()?;
    shell::run(cargo().args(["fmt", "--all", "--check"]))?;
    // In the one profile, so that what build scripts make is not made twice.
    shell::run(cargo().args([
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))?;
    licences()
}

/// Every dependency has a licence that `deny.toml` allows. The same list serves `cargo deny`, which checks more but must
/// be installed.
fn licences() -> Result<()> {
    let policy = std::fs::read_to_string(root().join("deny.toml")).context("deny.toml is missing")?;
    let allowed: BTreeSet<&str> = policy
        .lines()
        .skip_while(|line| !line.starts_with("allow = ["))
        .take_while(|line| !line.starts_with(']'))
        .filter_map(|line| line.trim().strip_prefix('"')?.split('"').next())
        .collect();
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    let mut refused = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("");
        if !licence_allowed(licence, &allowed) {
            refused.push(format!("{} {}: {licence:?}", package["name"], package["version"]));
        }
    }
    println!("\nlicences of {} packages checked against deny.toml", packages.len());
    if refused.is_empty() {
        return Ok(());
    }
    bail!("licences that deny.toml does not allow:\n  {}", refused.join("\n  "))
}

/// An SPDX expression without nesting beyond one level: any of the alternatives, each with all of its parts.
fn licence_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain
        .split(" OR ")
        .any(|choice| !choice.trim().is_empty() && choice.split(" AND ").all(|part| allowed.contains(part.trim())))
}

fn arrows_point_down(wrong: &mut Vec<String>) -> Result<()> {
    let layers: BTreeMap<&str, u32> = LAYERS.iter().copied().collect();
    for entry in std::fs::read_dir(root().join("crates"))? {
        let folder = entry?.path();
        let name = folder
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        let Some(own) = layers.get(name.as_str()) else {
            wrong.push(format!(
                "crates/{name} has no layer; add it to LAYERS in xtask/src/check.rs"
            ));
            continue;
        };
        let production = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for line in production.lines() {
            let Some(used) = line
                .strip_prefix("thalweg-")
                .and_then(|rest| rest.split(['.', ' ', '=']).next())
            else {
                continue;
            };
            if layers.get(used).is_none_or(|layer| layer >= own) {
                wrong.push(format!(
                    "crates/{name} uses thalweg-{used}, which is not below it (LAYERS in xtask/src/check.rs)"
                ));
            }
        }
    }
    Ok(())
}

/// A path in a document leads somewhere.
fn documents_name_what_exists(wrong: &mut Vec<String>) -> Result<()> {
    let mut documents: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .iter()
        .map(|name| root().join(name))
        .collect();
    for entry in std::fs::read_dir(root().join("docs"))? {
        documents.push(entry?.path());
    }
    for document in documents.iter().filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
        for path in paths_in(&text) {
            if !root().join(path).exists() {
                let name = document.file_name().unwrap_or_default().to_string_lossy();
                wrong.push(format!("{name} names {path}, which does not exist"));
            }
        }
    }
    Ok(())
}

/// What looks like a path of this work tree.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    const FOLDERS: [&str; 7] = ["crates/", "docs/", "examples/", "fuzz/", "tests/", "web/", "xtask/"];
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)))
        .map(|word| word.trim_end_matches(['.', '/']))
        .filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))
}

fn rust_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["crates", "xtask", "tests"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_among_words() {
        let text = "See `crates/flow/src/lib.rs`, (docs/mapping.md) and tests/. Not a/crates/b or data/lake.";
        let found: Vec<&str> = paths_in(text).collect();
        assert_eq!(found, ["crates/flow/src/lib.rs", "docs/mapping.md"]);
    }

    #[test]
    fn an_expression_is_allowed_when_one_alternative_is() {
        let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Unicode-3.0"]);
        for yes in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(licence_allowed(yes, &allowed), "{yes}");
        }
        for no in ["", "GPL-3.0", "MIT AND GPL-3.0"] {
            assert!(!licence_allowed(no, &allowed), "{no}");
        }
    }
}
