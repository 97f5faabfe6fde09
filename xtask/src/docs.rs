//! `cargo xtask docs`: the generated part of docs/reference, made from the code by the binary itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{build_binary, root, run};

const FOLDER: &str = "docs/reference";
/// Pages written by hand are in the same folder, and lack this.
const MADE: &str = "<!-- Made by `cargo xtask docs`";
const SCHEMA: &str = "thalweg.schema.json";

pub fn write() -> Result<()> {
    let folder = root().join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for name in pages(&folder)?.keys() {
        std::fs::remove_file(folder.join(name))?;
    }
    generate(&build_binary()?, &folder)
}

/// Fails when the pages differ from the output of the binary.
pub fn check(binary: &Path) -> Result<()> {
    let made = tempfile::tempdir()?;
    generate(binary, made.path())?;
    let (there, fresh) = (pages(&root().join(FOLDER))?, pages(made.path())?);
    let names = there.keys().chain(fresh.keys());
    let stale: Vec<&str> = names
        .filter(|name| there.get(*name) != fresh.get(*name))
        .map(String::as_str)
        .collect();
    if !stale.is_empty() {
        bail!("{FOLDER} is out of date ({}): run cargo xtask docs", stale.join(", "));
    }
    Ok(())
}

fn generate(binary: &Path, folder: &Path) -> Result<()> {
    run(Command::new(binary).arg("reference").arg(folder))?;
    let schema = Command::new(binary).arg("schema").output()?;
    if !schema.status.success() {
        bail!("thalweg schema failed: {}", String::from_utf8_lossy(&schema.stderr));
    }
    std::fs::write(folder.join(SCHEMA), schema.stdout)?;
    Ok(())
}

/// Names and contents of the generated files.
fn pages(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut pages = BTreeMap::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let content = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if name == SCHEMA || String::from_utf8_lossy(&content).contains(MADE) {
            pages.insert(name, content);
        }
    }
    Ok(pages)
}
