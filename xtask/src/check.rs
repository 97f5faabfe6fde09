//! Checks formatting, lints, licences, and structural rules beyond lints.

mod codes;
mod names;
mod pages;
mod private_files;
mod promises;
mod rows;
mod source_facts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::{self, cargo, root};
use source_facts::SourceFacts;

/// Maximum lines of a source file without its tests.
const FILE_LINES_MAX: usize = 800;
/// Maximum lines of a function, from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Number of functions that may be longer. Lower it after shortening one.
const LONG_FUNCTIONS_MAX: usize = 25;

/// The layer of each crate; a crate may use only crates of lower layers, and none of its own layer. The exceptions are listed
/// beside the rule that needs them.
const LAYERS: &[(&str, u32)] = &[
    ("kit", 0),
    ("mqtt-wire", 0),
    ("record", 1),
    ("config", 1),
    ("log", 2),
    ("telemetry", 2),
    ("mapping", 2),
    ("script", 2),
    ("http", 2),
    ("sketch", 2),
    ("delta", 2),
    ("simulator", 3),
    ("flow", 3),
    ("events", 4),
    ("columns", 4),
    ("mqtt-store", 4),
    ("queue", 4),
    ("tags", 4),
    ("lake", 5),
    ("events-postgres", 5),
    ("events-flow", 5),
    ("mqtt-flow", 5),
    ("queue-flow", 5),
    ("query", 6),
    ("otlp", 6),
    ("lake-flow", 7),
    ("kafka", 8),
    ("mqtt", 8),
    ("opcua", 8),
    ("events-api", 8),
    ("queue-api", 8),
    ("lake-api", 8),
    ("console", 8),
    ("assemble", 9),
    ("thalweg", 10),
];

/// A parsed source file of the work tree.
struct SourceFile {
    /// Path from the root.
    short: String,
    text: String,
    facts: SourceFacts,
    is_test: bool,
}

impl SourceFile {
    /// Whether it is compiled into a crate of the product.
    fn is_product(&self) -> bool {
        self.short.starts_with("crates/") && self.short.contains("/src/") && !self.is_test
    }

    fn crate_name(&self) -> &str {
        self.short.split('/').nth(1).unwrap_or_default()
    }
}

fn source_files() -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for file in rust_files(&root())? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let facts = SourceFacts::of(&file, &text)?;
        let short = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        files.push((file, short, text, facts));
    }
    let test_modules: Vec<PathBuf> = files
        .iter()
        .flat_map(|(.., facts)| facts.test_modules.clone())
        .collect();
    let is_test = |file: &Path, short: &str| {
        let declared_so = test_modules.iter().any(|module| file.starts_with(module));
        declared_so
            || ["/tests/", "/benches/", "/examples/", "/contract_suite"]
                .iter()
                .any(|folder| short.contains(folder))
    };
    let with_kind = files.into_iter().map(|(file, short, text, facts)| SourceFile {
        is_test: is_test(&file, &short),
        short,
        text,
        facts,
    });
    Ok(with_kind.collect())
}

/// The line that turns the lints of `clippy.toml` on, at the root of each crate.
const NOTHING_AMBIENT: &str = "#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]";

fn nothing_ambient_is_read(files: &[SourceFile], wrong: &mut Vec<String>) {
    let roots = files.iter().filter(|file| {
        file.is_product()
            && ["src/lib.rs", "src/main.rs"]
                .iter()
                .any(|root| file.short.ends_with(root))
    });
    for root in roots.filter(|root| !root.text.contains(NOTHING_AMBIENT)) {
        wrong.push(format!("{}: the line {NOTHING_AMBIENT:?} is missing", root.short));
    }
}

fn structure() -> Result<()> {
    let mut wrong = Vec::new();
    arrows_point_down(&mut wrong)?;
    promises::are_tested(&mut wrong)?;
    let files = source_files()?;
    documents_name_what_exists(&files, &mut wrong)?;
    pages::are_short_and_listed(&root(), &mut wrong)?;
    names::are_unique_and_say_something(&files, &mut wrong);
    codes::are_of_tables(&files, &mut wrong);
    functions_are_short(&files, &mut wrong);
    nothing_ambient_is_read(&files, &mut wrong);
    for SourceFile {
        short,
        text,
        facts,
        is_test,
    } in &files
    {
        private_files::are_made_in_one_place(short, text, &facts.test_lines, &mut wrong);
        if facts.lines > FILE_LINES_MAX && !is_test {
            wrong.push(format!(
                "{short} has {} lines without tests; split it (at most {FILE_LINES_MAX})",
                facts.lines
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

fn functions_are_short(files: &[SourceFile], wrong: &mut Vec<String>) {
    let product = files.iter().filter(|file| file.is_product());
    let functions = product.flat_map(|file| file.facts.functions.iter().map(move |function| (file, function)));
    let (mut count, mut long) = (0, Vec::new());
    for (file, (function, lines)) in functions {
        count += 1;
        if *lines > FUNCTION_LINES_MAX {
            long.push(format!(
                "{}:{} {} has {lines} lines",
                file.short, function.line, function.name
            ));
        }
    }
    println!(
        "{} of {count} functions have more than {FUNCTION_LINES_MAX} lines (at most {LONG_FUNCTIONS_MAX} may)",
        long.len()
    );
    if long.len() > LONG_FUNCTIONS_MAX {
        wrong.push(format!(
            "{} functions have more than {FUNCTION_LINES_MAX} lines, and {LONG_FUNCTIONS_MAX} may: {}",
            long.len(),
            long.join(", ")
        ));
    }
}

pub fn run() -> Result<()> {
    structure()?;
    shell::run(cargo().args(["fmt", "--all", "--check"]))?;
    // In the only profile, so that the output of build scripts is shared.
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

/// Checks that every dependency has a licence allowed by `deny.toml`. The same list serves `cargo deny`, which checks more but
/// must be installed.
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

/// An SPDX expression with at most one level of nesting: any of the alternatives, each with all of its parts.
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
        // A metric that other crates made would be missing from the reference.
        if name != "telemetry" && manifest.lines().any(|line| line.starts_with("prometheus")) {
            wrong.push(format!(
                "crates/{name} uses prometheus; declare its metrics with metric_group! of thalweg-telemetry"
            ));
        }
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

/// Checks that paths in documents exist, and that rows name declarations of their files.
fn documents_name_what_exists(files: &[SourceFile], wrong: &mut Vec<String>) -> Result<()> {
    let sources = files
        .iter()
        .map(|file| (file.short.as_str(), file.text.as_str()))
        .collect();
    for document in documents()? {
        let text = std::fs::read_to_string(&document).with_context(|| format!("cannot read {}", document.display()))?;
        let name = document.strip_prefix(root()).unwrap_or(&document);
        // Paths in a crate's README are relative to its own folder.
        let folder = match name.starts_with("crates") {
            true => document.parent().unwrap_or(Path::new("")),
            false => Path::new(""),
        };
        for path in paths_in(&text) {
            if !root().join(path).exists() && !folder.join(path).exists() {
                wrong.push(format!("{} names {path}, which does not exist", name.display()));
            }
        }
        rows::name_what_their_files_have(&name.display().to_string(), &text, &sources, wrong);
    }
    Ok(())
}

/// The documents at the root, all below `docs`, and each crate's README.
fn documents() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    for entry in std::fs::read_dir(root().join("crates"))? {
        found.push(entry?.path().join("README.md"));
    }
    found.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    found.retain(|path| path.is_file());
    Ok(found)
}

/// Finds paths of this work tree in a text.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    const FOLDERS: [&str; 9] = [
        "benches/",
        "crates/",
        "docs/",
        "examples/",
        "fuzz/",
        "src/",
        "tests/",
        "web/",
        "xtask/",
    ];
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
        let text = "See `crates/flow/src/lib.rs`, (docs/reference/mapping.md) and tests/. Not a/crates/b or data/lake.";
        let found: Vec<&str> = paths_in(text).collect();
        assert_eq!(found, ["crates/flow/src/lib.rs", "docs/reference/mapping.md"]);
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
