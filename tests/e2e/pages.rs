//! The documents as a whole: every link leads to a file, and the index has every page of its four parts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use thalweg_tests::beside;

const PARTS: [&str; 4] = ["tutorials", "how-to", "reference", "explanation"];

/// The documents in a folder.
fn documents_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// The relative links of a document, without their anchors.
fn links_in(document: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(document).unwrap();
    // Every second piece is a code sample.
    let prose: Vec<&str> = text.split("\n```").step_by(2).collect();
    let prose = prose.join("\n");
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files
        .map(|target| target.split('#').next().unwrap_or_default().to_owned())
        .collect()
}

/// The files to which a document links.
fn linked_from(document: &Path) -> BTreeSet<PathBuf> {
    let folder = document.parent().unwrap();
    let links = links_in(document).into_iter();
    links
        .map(|link| {
            let target = folder.join(&link).canonicalize();
            target.unwrap_or_else(|error| panic!("{} links to {link}: {error}", document.display()))
        })
        .collect()
}

#[test]
fn every_link_of_a_document_leads_to_a_file() {
    let root = beside("..");
    let mut documents = documents_in(&root);
    documents.extend(documents_in(&root.join("docs")));
    for folder in PARTS.iter().chain(&["decisions"]) {
        documents.extend(documents_in(&root.join("docs").join(folder)));
    }
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        documents.extend(documents_in(&entry.unwrap().path()));
    }
    assert!(documents.len() > 100, "{documents:?}");
    let links: usize = documents.iter().map(|document| linked_from(document).len()).sum();
    assert!(links > 200, "{links}");
}

#[test]
fn the_index_has_every_page() {
    let docs = beside("../docs");
    let listed = linked_from(&docs.join("README.md"));
    for part in PARTS {
        for page in documents_in(&docs.join(part)) {
            let page = page.canonicalize().unwrap();
            assert!(
                listed.contains(&page),
                "docs/README.md does not list {}",
                page.display()
            );
        }
    }
}
