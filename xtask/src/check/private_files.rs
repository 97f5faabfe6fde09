//! Checks that files and folders are created through `thalweg_kit::files`, with private modes. Files that an operator names,
//! and files of tests, are created as usual.

use std::collections::BTreeSet;

/// Files for other readers by the operator's choice, and files of tests.
const ELSEWHERE: &[&str] = &[
    "crates/kit/src/files.rs",
    "crates/flow/src/outputs/files.rs",
    "crates/thalweg/src/events/files.rs",
    "crates/thalweg/src/reference.rs",
    "crates/delta/src/store/cut_disk.rs",
    "crates/delta/src/store/simulated.rs",
];

const MAKES: &[&str] = &[
    "fs::create_dir",
    "File::create",
    "fs::write(",
    ".create(true)",
    ".create_new(true)",
    "DirBuilder",
];

/// Checks one file by lines; lines of tests are skipped.
pub(super) fn are_made_in_one_place(short: &str, text: &str, test_lines: &BTreeSet<usize>, wrong: &mut Vec<String>) {
    let is_product = short.starts_with("crates/") && short.contains("/src/");
    let is_test = short.contains("tests") || short.contains("crash_") || short.contains("contract_suite");
    if !is_product || is_test || ELSEWHERE.contains(&short) {
        return;
    }
    let lines = (1..).zip(text.lines());
    let mut allowed_by = 0;
    for (number, line) in lines.filter(|(number, _)| !test_lines.contains(number)) {
        if line.contains("files::private()") || line.contains("files::as_above(") {
            // Options follow on the next lines.
            allowed_by = number + 8;
        }
        let code = line.trim_start();
        if number > allowed_by && !code.starts_with("//") && MAKES.iter().any(|makes| has_call(code, makes)) {
            wrong.push(format!(
                "{short}:{number} makes a file or folder by itself; thalweg_kit::files makes it its user's alone"
            ));
        }
    }
}

/// Whether it is not a part of a longer name, as `File::create` is of `AtomicFile::create`.
fn has_call(code: &str, call: &str) -> bool {
    code.match_indices(call)
        .any(|(at, _)| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_could_read_is_found_and_tests_are_left_alone() {
        let found = |short: &str, text: &str| {
            let mut wrong = Vec::new();
            are_made_in_one_place(short, text, &BTreeSet::new(), &mut wrong);
            wrong.len()
        };
        let made = "fn a() {\n    std::fs::create_dir_all(path)?;\n}\n";
        assert_eq!(found("crates/x/src/a.rs", made), 1);
        assert_eq!(found("crates/x/src/tests.rs", made), 0);
        assert_eq!(found("tests/e2e/a.rs", made), 0);
        let mut wrong = Vec::new();
        let of_tests = format!("#[cfg(test)]\n{made}{made}");
        are_made_in_one_place("crates/x/src/a.rs", &of_tests, &(1..=4).collect(), &mut wrong);
        assert_eq!(wrong.len(), 1, "only what is of tests is left alone: {wrong:?}");
        assert_eq!(found("crates/x/src/a.rs", "let file = AtomicFile::create(path)?;"), 0);
        assert_eq!(found("crates/x/src/a.rs", "let file = fs::File::create(path)?;"), 1);
        let private = "files::private()\n    .write(true)\n    .create(true)\n    .open(path)";
        assert_eq!(found("crates/x/src/a.rs", private), 0);
        assert_eq!(
            found("crates/x/src/a.rs", "OpenOptions::new().create(true).open(path)"),
            1
        );
    }
}
