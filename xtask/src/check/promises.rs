//! Compares documents of promises with the lists that name a test for each sentence and each table row.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use super::rust_files;
use crate::shell::root;

/// Each document, and the list of its tests.
const DOCUMENTS: [(&str, &str); 3] = [
    ("docs/explanation/durability.md", "docs/reference/durability-tests.md"),
    ("docs/reference/limits.md", "docs/reference/limits-tests.md"),
    ("docs/explanation/security.md", "docs/reference/security-tests.md"),
];

pub(super) fn are_tested(wrong: &mut Vec<String>) -> Result<()> {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).with_context(|| format!("cannot read {name}"));
    let mut tests = BTreeSet::new();
    for file in rust_files(&root())? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        tests.extend(tests_in(&text).map(str::to_owned));
    }
    for (document, list) in DOCUMENTS {
        let (promised, shown) = (read(document)?, read(list)?);
        wrong.extend(faults(document, &promised, list, &shown, &tests));
    }
    Ok(())
}

/// Finds promises without a test, tests that do not exist, and rows of the list without a promise.
fn faults(document: &str, promised: &str, list: &str, shown: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    let shown: Vec<(&str, Vec<&str>)> = rows(shown).collect();
    let mut taken = BTreeSet::new();
    for promise in promises(promised) {
        // One promise may be a prefix of another; the longest match wins.
        let beginnings = shown.iter().map(|(begins, _)| *begins);
        let begins = beginnings.filter(|begins| !begins.is_empty() && promise.starts_with(begins));
        match begins.max_by_key(|begins| begins.len()) {
            None => found.push(format!("{list} names no test of: {promise}")),
            Some(begins) if !taken.insert(begins) => {
                found.push(format!(
                    "{list} has one row for several promises, the last of them: {promise}"
                ));
            }
            Some(_) => {}
        }
    }
    for (begins, names) in shown {
        if !taken.contains(begins) {
            found.push(format!("{list} has tests of what {document} does not say: {begins}"));
        }
        if names.is_empty() {
            found.push(format!("{list} names no test beside: {begins}"));
        }
        let missing = names.iter().filter(|name| !tests.contains(**name));
        found.extend(missing.map(|name| format!("{list} names the test {name}, which does not exist")));
    }
    found
}

/// First cells of tables, and sentences; without headings, code samples and the section `Elsewhere`.
fn promises(text: &str) -> Vec<String> {
    let text = without_samples(text);
    let said = text.split_once("\n## ").map_or("", |(_, said)| said);
    let said = said.split("\n## Elsewhere").next().unwrap_or_default();
    let mut found = Vec::new();
    // The first section's heading has lost its mark.
    for block in said
        .split('\n')
        .skip(1)
        .collect::<Vec<_>>()
        .split(|line| line.is_empty())
    {
        match block.first() {
            Some(first) if first.starts_with('|') => {
                let rows = block.iter().skip(2).filter_map(|row| row.split('|').nth(1));
                found.extend(rows.map(|cell| cell.trim().to_owned()));
            }
            Some(first) if first.starts_with('#') => {}
            _ => {
                let text = block.join("\n").replace("\n- ", " ").replace("\n", " ");
                found.extend(sentences(text.trim_start_matches("- ")));
            }
        }
    }
    found
}

/// Removes code blocks. An empty line replaces each, so that it separates the text around it.
fn without_samples(text: &str) -> String {
    let pieces = text.split("\n```").enumerate();
    let said = pieces.filter(|(n, _)| n % 2 == 0).map(|(n, piece)| match n {
        0 => piece,
        // The rest of the line with the closing fence.
        _ => piece.split_once('\n').map_or("", |(_, said)| said),
    });
    said.collect::<Vec<_>>().join("\n\n")
}

/// A sentence ends with a full stop before a capital letter or a code name.
fn sentences(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut found: Vec<Vec<&str>> = vec![Vec::new()];
    for (n, word) in words.iter().enumerate() {
        if let Some(last) = found.last_mut() {
            last.push(word);
        }
        let begins = |next: &&str| next.starts_with(|first: char| first.is_uppercase() || first == '`');
        if word.ends_with('.') && words.get(n + 1).is_some_and(begins) {
            found.push(Vec::new());
        }
    }
    let whole = found.into_iter().filter(|sentence| !sentence.is_empty());
    whole.map(|sentence| sentence.join(" ")).collect()
}

/// The beginning of each promise, and the names of its tests.
fn rows(list: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let rows = list.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.filter_map(|row| {
        let mut cells = row.split('|').skip(1);
        let (begins, tests) = (cells.next()?.trim(), cells.next()?);
        Some((begins, tests.split('`').skip(1).step_by(2).collect()))
    })
}

/// Names of functions that are marked as tests.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let marked = text
        .split("test]")
        .flat_map(|part| part.split("#[tokio::test("))
        .skip(1);
    marked.filter_map(|part| {
        // Other attributes and a comment may stand between.
        let (before, name) = part.split_once("fn ")?;
        let between = before.lines().skip(1).map(str::trim);
        let is_marked = between
            .filter(|line| !line.is_empty())
            .all(|line| line.starts_with(['#', '/']) || ["async", "pub"].contains(&line) || line.ends_with(")]"));
        is_marked.then(|| name.split('(').next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_sentences_are_promises_and_headings_are_none() {
        let text = "# D\n\nIntro. Not this.\n\n## A\n\nOne thing.\nIt goes\non. `log` says so.\n\n| a | b |\n|---|---|\n| x | y |\n\n\
                    ## B\n\n- First point,\n  in two lines.\n- Second.\n\n## Elsewhere\n\n- No.\n";
        let expected = [
            "One thing.",
            "It goes on.",
            "`log` says so.",
            "x",
            "First point, in two lines.",
            "Second.",
        ];
        assert_eq!(promises(text), expected);
    }

    #[test]
    fn a_sample_is_no_promise_and_parts_what_is_around_it() {
        let text = "# D\n\n## A\n\nBefore.\n\n```yaml\na: b    # Not. This.\n```\n\n```sh\nNor this.\n```\nAfter.\n";
        assert_eq!(promises(text), ["Before.", "After."]);
    }

    #[test]
    fn what_has_no_test_what_does_not_exist_and_what_is_not_promised_is_told() {
        let promised = "# D\n\n## A\n\nFirst thing. Second thing.\n\n| a | b |\n|---|---|\n| `x` | 1 |\n| `x` | 2 |\n";
        let shown = "| promise | shown by |\n|---|---|\n| First | `one` |\n| `x` | `two` |\n| Third | `one` |\n";
        let tests = BTreeSet::from(["one".to_owned()]);
        let expected = [
            "t names no test of: Second thing.",
            "t has one row for several promises, the last of them: `x`",
            "t names the test two, which does not exist",
            "t has tests of what d does not say: Third",
        ];
        assert_eq!(faults("d", promised, "t", shown, &tests), expected);
        let once = promised.replace("| `x` | 2 |\n", "");
        let whole = shown.replace("| Third", "| Second").replace("`two`", "`one`");
        assert_eq!(faults("d", &once, "t", &whole, &tests), [""; 0]);
        let none = whole.replace("| Second | `one` |", "| Second | a test |");
        assert_eq!(
            faults("d", &once, "t", &none, &tests),
            ["t names no test beside: Second"]
        );
        // A promise with another one as its prefix needs its own row.
        let both = once.replace("Second thing.", "Second thing. Second to none.");
        let told = ["t has one row for several promises, the last of them: Second to none."];
        assert_eq!(faults("d", &both, "t", &whole, &tests), told);
        let own = whole.clone() + "| Second to | `one` |\n";
        assert_eq!(faults("d", &both, "t", &own, &tests), [""; 0]);
    }

    #[test]
    fn only_what_is_marked_is_a_test() {
        let text = "#[test]\nfn one() {}\nfn helper() {}\n#[tokio::test(flavor = \"x\")]\nasync fn two() {}\n#[test]\n#[ignore]\n\
                    /// Why.\nfn three() {}\n#[tokio::test]\nasync fn four() {}";
        assert_eq!(tests_in(text).collect::<Vec<_>>(), ["one", "two", "three", "four"]);
    }
}
