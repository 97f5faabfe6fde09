//! Checks that a code at the beginning of a text comes from a table of codes, so that the page of error codes has it.

use std::collections::BTreeSet;

use proc_macro2::{Literal, TokenStream, TokenTree};

use super::SourceFile;

/// Settings, and functions of scripts, that look like a code at the beginning of a text.
const NO_CODES: &[&str] = &[
    "auth.tokens",
    "cache.get",
    "cache.set",
    "compaction.enabled",
    "dlq.webhook",
    "events.namespace",
    "http.basic_auth",
    "http.root_path",
    "lake.url",
    "mqtt.anonymous",
    "mqtt.insecure",
    "queue.group",
    "queue.mode",
    "queue.name",
];

/// Applies to files of the product.
pub(super) fn are_of_tables(files: &[SourceFile], wrong: &mut Vec<String>) {
    for file in files.iter().filter(|file| file.is_product()) {
        for (line, code) in codes_in(&file.text, &file.facts.test_lines) {
            wrong.push(format!(
                "{}:{line} begins a text with {code}; a code is a row of meaning_table! or error_kinds! and comes from \
                 there, anything else is named in NO_CODES of xtask/src/check/codes.rs",
                file.short
            ));
        }
    }
}

/// The codes that begin string literals outside of tests, with their lines.
fn codes_in(text: &str, test_lines: &BTreeSet<usize>) -> Vec<(usize, String)> {
    let mut literals = Vec::new();
    // What is no Rust was refused when its facts were read.
    collect_literals(text.parse().unwrap_or_default(), &mut literals);
    let mut found = Vec::new();
    for literal in literals {
        if let Some(code) = code_of(&literal.to_string()) {
            found.push((literal.span().start().line, code.to_owned()));
        }
    }
    found.retain(|(line, _)| !test_lines.contains(line));
    found
}

/// Also those in the arguments of macros and attributes.
fn collect_literals(tokens: TokenStream, found: &mut Vec<Literal>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_literals(group.stream(), found),
            TokenTree::Literal(literal) => found.push(literal),
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// The two words, joined by a dot, that stand before the first colon of a string literal.
fn code_of(literal: &str) -> Option<&str> {
    let text = literal.trim_start_matches(['r', '#']).strip_prefix('"')?;
    let (code, _) = text.split_once(": ")?;
    let (family, name) = code.split_once('.')?;
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (is_word(family) && is_word(name) && !NO_CODES.contains(&code)).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        codes_in(text, &BTreeSet::new())
    }

    #[test]
    fn a_code_that_begins_a_text_is_found_in_attributes_macros_and_plain_code() {
        for text in [
            "#[error(\"lake.lost: {why}\")]\nstruct Lost;\n",
            "fn a() {\n    tracing::error!(table, \"lake.lost: {why}\");\n}\n",
            "const BEGIN: &str = \"lake.lost: \";\n",
            "const BEGIN: &str = r#\"lake.lost: \"\"#;\n",
        ] {
            let codes: Vec<String> = found(text).into_iter().map(|(_, code)| code).collect();
            assert_eq!(codes, ["lake.lost"], "{text}");
        }
        let second = "fn a() {}\nfn b() -> &'static str {\n    \"ingest.no_header: none\"\n}\n";
        assert_eq!(found(second), [(3, "ingest.no_header".to_owned())]);
    }

    #[test]
    fn rows_of_tables_settings_comments_and_tests_are_left_alone() {
        for text in [
            "meaning_table! { pub enum Code { Lost = \"lake.lost\", \"It is lost: look for it.\"; } }\n",
            "fn a() { anyhow!(\"lake.url: {why}\") }\n",
            "/// lake.lost: it is lost.\n// lake.lost: \"lost\"\nfn a() {}\n",
            "fn a() { format!(\"{code}: lake.lost: {}\", \"t.yaml:3:4: wrong\") }\n",
        ] {
            assert!(found(text).is_empty(), "{text}");
        }
        let of_tests = "#[test]\nfn a() { assert_eq!(text, \"lake.lost: it is\"); }\n";
        assert!(codes_in(of_tests, &(1..=2).collect()).is_empty());
    }
}
