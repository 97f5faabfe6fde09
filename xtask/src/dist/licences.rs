//! `THIRD-PARTY-LICENSES`: the crates in the binary, the locations of their sources, and the texts of their licences, each
//! once.
//!
//! Build-only crates are included: some of them bring C sources that are linked, and the others do no harm in the list. Crates
//! that only tests use are excluded.

mod linked;
mod standard_library;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::contents::{files_of, packaging, read};
use super::licence_files::{self, LicenceFile};
use super::release::Release;
use crate::shell::root;
use linked::LinkedCrate;

/// Texts, each with its crates.
#[derive(Default)]
struct LicenceTexts {
    texts: Vec<(String, Vec<String>)>,
    /// Keyed by the words of a text, because lines may be broken differently.
    known: HashMap<String, usize>,
}

impl LicenceTexts {
    fn add(&mut self, text: &str, holder: String) {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let next = self.texts.len();
        let index = *self.known.entry(words).or_insert(next);
        match self.texts.get_mut(index) {
            Some((_, holders)) => holders.push(holder),
            None => self.texts.push((text.trim_matches('\n').to_owned(), vec![holder])),
        }
    }
}

pub fn text(release: &Release) -> Result<String> {
    let crates = linked::of_binary(&release.metadata)?;
    let mut texts = LicenceTexts::default();
    let mut without = Vec::new();
    for one in &crates {
        let files = licence_files::of(&one.name, &one.folder, one.licence_file.as_deref())?;
        if !files.iter().any(LicenceFile::is_of_crate) {
            without.push(one);
        }
        for file in files {
            texts.add(&file.text, format!("{}: {}", one.title(), file.path));
        }
    }
    let common = common_texts()?;
    for one in &without {
        for id in chosen(&one.licence, &common).with_context(|| {
            format!(
                "{} has no licence file, and packaging/licences has no text for {:?}; add ID.txt there",
                one.title(),
                one.licence
            )
        })? {
            let text = common.get(id).context("a known licence text is missing")?;
            texts.add(
                text,
                format!("{}, without a file of its own: {id}, by {}", one.title(), one.authors),
            );
        }
    }
    for (file, text) in standard_library::texts()? {
        texts.add(&text, format!("the standard library of Rust: {file}"));
    }
    println!(
        "licences: {} crates, {} of them without a file of their own, {} texts",
        crates.len(),
        without.len(),
        texts.texts.len()
    );
    document(release, &crates, &without, &texts)
}

fn document(
    release: &Release,
    crates: &[LinkedCrate],
    without: &[&LinkedCrate],
    texts: &LicenceTexts,
) -> Result<String> {
    let mut out = String::new();
    writeln!(
        out,
        "Thalweg {} is under the Apache License, Version 2.0 (file LICENSE). It has parts of the projects below, unchanged, each under\n\
         its own licence. The address behind each of them has its source code.\n\n\
         1. Projects\n",
        release.version
    )?;
    for one in crates {
        writeln!(out, "{}  {}  {}", one.title(), one.licence, one.source())?;
    }
    out.push_str("\n\n2. Of these without a licence file of their own\n\n");
    for one in without {
        writeln!(out, "{}  {}  by {}", one.title(), one.licence, one.authors)?;
    }
    out.push_str("\n\n3. Texts\n");
    for (text, holders) in &texts.texts {
        let line = "=".repeat(100);
        writeln!(out, "\n{line}\n{}\n{}\n\n{text}", holders.join("\n"), "-".repeat(100))?;
    }
    Ok(out)
}

/// The texts of licences by their SPDX ids, for crates that name one and have no file.
fn common_texts() -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::from([("Apache-2.0".to_owned(), read(&root().join("LICENSE"))?)]);
    for file in files_of(&packaging("licences"), ".txt")? {
        let id = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        texts.insert(id.to_owned(), read(&file)?);
    }
    Ok(texts)
}

/// The ids of the first alternative of an SPDX expression for which all texts exist.
fn chosen<'a>(expression: &'a str, texts: &BTreeMap<String, String>) -> Option<Vec<&'a str>> {
    let alternatives = expression.split(" OR ").flat_map(|part| part.split('/'));
    alternatives
        .map(|choice| {
            let parts = choice.split(" AND ");
            parts
                .map(|id| id.trim_matches(|c: char| "() ".contains(c)))
                .collect::<Vec<_>>()
        })
        .find(|ids| ids.iter().all(|id| texts.contains_key(*id)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_once_whoever_has_it_and_however_its_lines_are_broken() {
        let mut texts = LicenceTexts::default();
        texts.add("Permission is\nhereby granted\n", "a 1: LICENSE".to_owned());
        texts.add("Redistribution\n", "b 1: LICENSE".to_owned());
        texts.add("\nPermission is hereby\ngranted", "c 2: LICENSE-MIT".to_owned());
        assert_eq!(texts.texts.len(), 2);
        assert_eq!(texts.texts[0].0, "Permission is\nhereby granted");
        assert_eq!(texts.texts[0].1, ["a 1: LICENSE", "c 2: LICENSE-MIT"]);
    }

    #[test]
    fn of_several_licences_the_first_with_a_text_is_taken() {
        let texts = BTreeMap::from(["Apache-2.0", "MIT"].map(|id| (id.to_owned(), "…".to_owned())));
        for (expression, expected) in [
            ("MIT", Some(vec!["MIT"])),
            ("GPL-3.0 OR MIT", Some(vec!["MIT"])),
            ("MIT/Apache-2.0", Some(vec!["MIT"])),
            ("(MIT AND Apache-2.0) OR GPL-3.0", Some(vec!["MIT", "Apache-2.0"])),
            ("MIT AND GPL-3.0", None),
            ("", None),
        ] {
            assert_eq!(chosen(expression, &texts), expected, "{expression}");
        }
    }

    #[test]
    fn what_crates_without_a_file_have_as_licences_has_its_text() {
        let texts = common_texts().unwrap();
        for id in ["Apache-2.0", "BSD-3-Clause", "MIT", "MPL-2.0"] {
            assert!(texts.contains_key(id), "{id}");
        }
    }
}
