//! Finds the crates in the binary with `cargo metadata`: all dependencies of the binary's own crate, except those that only
//! tests use.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// A third-party crate.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkedCrate {
    pub name: String,
    pub version: String,
    /// An SPDX expression, or empty.
    pub licence: String,
    /// Separated by commas.
    pub authors: String,
    /// The folder of its sources on this machine.
    pub folder: PathBuf,
    /// Relative to that folder, if its manifest names one.
    pub licence_file: Option<String>,
}

impl LinkedCrate {
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// The public location of its sources.
    pub fn source(&self) -> String {
        format!("https://crates.io/crates/{}/{}", self.name, self.version)
    }

    fn read(package: &Value) -> Result<LinkedCrate> {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        let manifest = package["manifest_path"].as_str();
        let folder = manifest.and_then(|path| Path::new(path).parent());
        let authors = package["authors"].as_array().into_iter().flatten();
        let authors: Vec<&str> = authors.filter_map(Value::as_str).collect();
        Ok(LinkedCrate {
            version: text("version"),
            licence: text("license"),
            authors: match authors.is_empty() {
                true => format!("the authors of {name}"),
                false => authors.join(", "),
            },
            folder: folder
                .with_context(|| format!("the crate {name} has no folder"))?
                .to_owned(),
            licence_file: package["license_file"].as_str().map(str::to_owned),
            name,
        })
    }
}

/// Sorted by name and version.
pub fn of_binary(metadata: &Value) -> Result<Vec<LinkedCrate>> {
    let packages = by_id(&metadata["packages"]).context("cargo metadata lists no packages")?;
    let nodes = by_id(&metadata["resolve"]["nodes"]).context("cargo metadata has no dependency graph")?;
    let is_start = |package: &&&Value| package["name"] == "thalweg" && is_own(package);
    let start = packages
        .values()
        .find(is_start)
        .and_then(|package| package["id"].as_str());
    let mut open = vec![start.context("cargo metadata has no crate thalweg")?];
    let mut seen: BTreeSet<&str> = open.iter().copied().collect();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        let package = packages
            .get(id)
            .with_context(|| format!("cargo metadata has no package {id}"))?;
        if !is_own(package) {
            found.push(LinkedCrate::read(package)?);
        }
        let used = nodes.get(id).and_then(|node| node["deps"].as_array());
        for dependency in used.into_iter().flatten().filter(|used| is_beyond_tests(used)) {
            let id = dependency["pkg"].as_str().context("a dependency has no id")?;
            if seen.insert(id) {
                open.push(id);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn by_id(list: &Value) -> Option<HashMap<&str, &Value>> {
    let entries = list.as_array()?.iter();
    entries.map(|entry| Some((entry["id"].as_str()?, entry))).collect()
}

/// Whether it belongs to this workspace.
fn is_own(package: &Value) -> bool {
    package["source"].is_null()
}

fn is_beyond_tests(dependency: &Value) -> bool {
    let kinds = dependency["dep_kinds"].as_array();
    kinds.into_iter().flatten().any(|kind| kind["kind"] != "dev")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_binary_leads_to_counts_and_what_only_tests_use_does_not() {
        let package = |name: &str, source: Value| {
            let manifest = format!("/sources/{name}-1.0.0/Cargo.toml");
            json!({"id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT", "authors": [],
                "manifest_path": manifest, "license_file": null})
        };
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind, "target": null}]});
        let other = || json!("registry+https://github.com/rust-lang/crates.io-index");
        let metadata = json!({
            "packages": [
                package("thalweg", Value::Null), package("thalweg-log", Value::Null), package("xtask", Value::Null),
                package("tokio", other()), package("cc", other()), package("proptest", other()), package("syn", other()),
            ],
            "resolve": {"nodes": [
                {"id": "thalweg", "deps": [uses("thalweg-log", Value::Null), uses("proptest", json!("dev"))]},
                {"id": "thalweg-log", "deps": [uses("tokio", Value::Null), uses("cc", json!("build"))]},
                {"id": "tokio", "deps": [uses("thalweg-log", Value::Null)]},
                {"id": "xtask", "deps": [uses("syn", Value::Null)]},
                {"id": "cc", "deps": []}, {"id": "proptest", "deps": []}, {"id": "syn", "deps": []},
            ]},
        });
        let found = of_binary(&metadata).unwrap();
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["cc", "tokio"]);
        assert_eq!(found[0].folder, Path::new("/sources/cc-1.0.0"));
        assert_eq!(found[0].authors, "the authors of cc");
        assert_eq!(found[1].source(), "https://crates.io/crates/tokio/1.0.0");
    }
}
