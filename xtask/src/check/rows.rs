//! Checks table rows of documents that name a file and its declarations: each name must be declared in that file. The test
//! `tests/e2e/hops.rs` goes further for tables of hops: messages pass their functions.

use std::collections::BTreeMap;

/// `text` is the content of `document`; `files` are the sources by their paths from the root.
pub(super) fn name_what_their_files_have(
    document: &str,
    text: &str,
    files: &BTreeMap<&str, &str>,
    wrong: &mut Vec<String>,
) {
    for row in text.lines().filter(|line| line.starts_with('|')) {
        let names: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let mut within = None;
        for name in &names {
            if let Some(source) = files.get(name) {
                within = Some((name, source));
            } else if let Some((file, source)) = within
                && is_of_code(name)
                && !declares(source, name)
            {
                wrong.push(format!("{document} places {name} in {file}, which does not declare it"));
            }
        }
        // In a table of hops or of failures the function precedes its file.
        if let [.., function, file] = names.as_slice()
            && function.starts_with("thalweg_")
            && let Some(source) = files.get(file)
            && !declares(source, function)
        {
            wrong.push(format!(
                "{document} places {function} in {file}, which does not declare it"
            ));
        }
    }
}

/// A type, or a member of a type.
fn is_of_code(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.chars().all(|c| c.is_alphanumeric() || "_:".contains(c))
}

/// The last part of a path is a function, a constant or a variant, or the type itself.
fn declares(source: &str, path: &str) -> bool {
    let last = path.rsplit("::").next().unwrap_or(path);
    let is_declared = |line: &str| {
        let words: Vec<&str> = line
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .collect();
        let by_keyword = words.windows(2).any(|pair| {
            let [keyword, name] = pair else { return false };
            *name == last
                && [
                    "fn",
                    "struct",
                    "enum",
                    "trait",
                    "type",
                    "const",
                    "static",
                    "macro_rules",
                ]
                .contains(keyword)
        });
        // A variant, or a field.
        by_keyword || (path.contains("::") && words.first() == Some(&last))
    };
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .any(is_declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_its_file_is_told_and_what_is_there_is_not() {
        let source = "pub struct Queue;\nimpl Queue {\n    // fn gone() {}\n    pub async fn produce(&self) {}\n}\n\
                      enum Mode {\n    Fast,\n}\n";
        let files = BTreeMap::from([("crates/a/src/queue.rs", source)]);
        let told = |row: &str| {
            let mut wrong = Vec::new();
            name_what_their_files_have("d", row, &files, &mut wrong);
            wrong.len()
        };
        for right in [
            "| queue | of `code` | `crates/a/src/queue.rs` `Queue`, `Queue::produce`, `Mode::Fast` |",
            "| 1 | comes | `thalweg_a::queue::Queue::produce` | `crates/a/src/queue.rs` |",
            "| is full | (`full`) waits | `thalweg_a::queue::Queue::produce` | `crates/a/src/queue.rs` |",
            "| other | `Lane` | `crates/b/src/lane.rs` `Lane` |",
            "| text | is no name | `crates/a/src/queue.rs` `If-None-Match` |",
        ] {
            assert_eq!(told(right), 0, "{right}");
        }
        for wrong in [
            "| queue | is | `crates/a/src/queue.rs` `Lane` |",
            "| queue | is | `crates/a/src/queue.rs` `Queue::gone` |",
            "| 1 | comes | `thalweg_a::queue::Queue::gone` | `crates/a/src/queue.rs` |",
            "| | (`full`) waits | `thalweg_a::queue::gone` | `crates/a/src/queue.rs` |",
        ] {
            assert_eq!(told(wrong), 1, "{wrong}");
        }
    }
}
