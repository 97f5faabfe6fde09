//! Checks that pages stay as long as somebody reads, and that the index of decisions names each one under its crates.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// Lines of ARCHITECTURE.md.
const ARCHITECTURE_LINES_MAX: usize = 250;
/// Lines of a decision, which has fewer than 40.
const DECISION_LINES_MAX: usize = 39;
/// Lines of a crate's README.
const README_LINES: std::ops::RangeInclusive<usize> = 20..=60;

pub(super) fn are_short_and_listed(root: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let architecture = read(&root.join("ARCHITECTURE.md"))?.lines().count();
    if architecture > ARCHITECTURE_LINES_MAX {
        wrong.push(format!(
            "ARCHITECTURE.md has {architecture} lines (at most {ARCHITECTURE_LINES_MAX})"
        ));
    }
    for folder in names_in(&root.join("crates"))? {
        let readme = root.join("crates").join(&folder).join("README.md");
        let lines = read(&readme).map_or(0, |text| text.lines().count());
        if !README_LINES.contains(&lines) {
            wrong.push(format!(
                "crates/{folder}/README.md has {lines} lines ({} to {} are expected)",
                README_LINES.start(),
                README_LINES.end()
            ));
        }
    }
    decisions(&root.join("docs/decisions"), wrong)
}

fn decisions(folder: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let index = read(&folder.join("README.md"))?;
    let mut by_crate: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names_in(folder)?.into_iter().filter(|name| name != "README.md") {
        let text = read(&folder.join(&name))?;
        let lines = text.lines().count();
        if lines > DECISION_LINES_MAX {
            wrong.push(format!(
                "docs/decisions/{name} has {lines} lines (at most {DECISION_LINES_MAX})"
            ));
        }
        for crate_name in crates_of(&text) {
            by_crate.entry(crate_name).or_default().push(name.clone());
        }
        let title = text.lines().next().unwrap_or_default();
        let title = title.split_once(". ").map_or(title, |(_, title)| title);
        if !index.contains(&format!("[{title}]({name})")) {
            wrong.push(format!("docs/decisions/README.md does not list {name} by its title"));
        }
    }
    let listed = index.split_once("## By crate").map_or("", |(_, listed)| listed);
    for (crate_name, names) in by_crate {
        let entry = listed
            .split_once(&format!("- `{crate_name}`:"))
            .map_or("", |(_, rest)| rest);
        let entry = entry.split("\n- ").next().unwrap_or_default();
        let missing = names.iter().filter(|name| !entry.contains(&format!("({name})")));
        wrong.extend(missing.map(|name| format!("docs/decisions/README.md does not list {name} under {crate_name}")));
    }
    Ok(())
}

/// The crates in the line `Crates:` of a decision.
fn crates_of(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("Crates: "));
    let names = line.unwrap_or_default().split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn long_pages_and_decisions_that_are_not_listed_are_found() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        at("ARCHITECTURE.md", "line\n");
        at("crates/log/README.md", &"line\n".repeat(20));
        at("docs/decisions/001-a.md", "# 001. A thing\n\nCrates: `log`\n");
        at(
            "docs/decisions/README.md",
            "- 001 [A thing](001-a.md)\n\n## By crate\n\n- `log`: [001](001-a.md)\n",
        );
        let found = || {
            let mut wrong = Vec::new();
            are_short_and_listed(root.path(), &mut wrong).unwrap();
            wrong
        };
        assert_eq!(found(), Vec::<String>::new());
        at("ARCHITECTURE.md", &"line\n".repeat(251));
        at("crates/log/README.md", &"line\n".repeat(61));
        at(
            "docs/decisions/002-b.md",
            &format!("# 002. B\n\nCrates: `log`\n{}", "line\n".repeat(40)),
        );
        assert_eq!(found().len(), 5, "{:?}", found());
    }
}
