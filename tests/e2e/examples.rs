//! The files of `examples`: each passes the check and says whom it is for; together they use every component and section; and
//! those that need no system beside Thalweg run, and what comes out of them is compared.

mod files;
mod machines;
mod servers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use thalweg_tests::thalweg::{binary, run};
use thalweg_tests::{Thalweg, beside};

/// These need a broker, a database or an object store, and are only checked here.
const NEED_ANOTHER_SYSTEM: [&str; 8] = [
    "edge-to-kafka",
    "events-postgres",
    "kafka-mirror",
    "kafka-to-lake",
    "mqtt-bridge",
    "otlp-to-s3",
    "uns",
    "uns-computed",
];

/// The text of an example. Its log is kept small, unless it sets its own.
pub(crate) fn example(name: &str) -> String {
    let path = beside(&format!("../examples/{name}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    if text.contains("\nlog:") {
        text
    } else {
        text + "\nlog: {min_free: 16MiB, commit: {spare: 1}}\n"
    }
}

/// The text with values for variables, as the environment would give them.
pub(crate) fn with(mut text: String, variables: &[(&str, &str)]) -> String {
    for (name, value) in variables {
        let from = format!("${{{name}");
        assert!(text.contains(&from), "there is no variable {name}");
        while let Some(start) = text.find(&from) {
            let end = start + text[start..].find('}').unwrap();
            text.replace_range(start..=end, value);
        }
    }
    text
}

/// The rows of a file of JSON lines. The last line of a file that is still written may be incomplete.
fn lines(thalweg: &Thalweg, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(thalweg.folder.path().join(file)).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The rows of a query over the lake of a process that has ended.
fn rows(thalweg: &Thalweg, query: &str) -> Value {
    let arguments = ["sql", "--data-dir", "data", "--format", "json", query];
    let answered = run(thalweg.folder.path(), &arguments).unwrap();
    assert!(answered.status.success(), "{query}: {}", answered.stderr);
    serde_json::from_str(&answered.stdout).unwrap()
}

fn all() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(beside("../examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    assert!(found.len() >= 29, "{found:?}");
    found
}

fn name(path: &Path) -> &str {
    path.file_stem().and_then(|name| name.to_str()).unwrap()
}

/// What an example with logins and encryption reads.
fn make_certificate(folder: &Path) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-keyout", "server.key", "-out", "server.crt"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for logins in ["tokens", "users"] {
        std::fs::write(folder.join(logins), "# nobody yet\n").unwrap();
    }
}

/// Runs a command on an example with the variables that have no default.
fn command(folder: &Path, command: &str, example: &Path) -> (bool, String) {
    let output = Command::new(binary())
        .arg(command)
        .arg(example)
        .current_dir(folder)
        .env("ENDPOINT", "opc.tcp://127.0.0.1:4840")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn every_example_passes_the_check_and_says_whom_it_is_for_and_how_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    make_certificate(folder.path());
    let index = std::fs::read_to_string(beside("../docs/README.md")).unwrap();
    for path in all() {
        let listed = format!("`examples/{}.yaml`", name(&path));
        assert!(index.contains(&listed), "docs/README.md does not list {listed}");
        let (passed, said) = command(folder.path(), "check", &path);
        assert!(passed && !said.contains("warning"), "{}: {said}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(text.starts_with("# For "), "{}: whom is it for?", path.display());
        let start = format!("thalweg run examples/{}.yaml", name(&path));
        assert!(
            head.iter()
                .any(|line| line.starts_with("#   ") && line.contains(&start)),
            "{}: the comment at its head does not say {start:?}",
            path.display()
        );
    }
}

#[test]
fn every_example_that_needs_no_other_system_runs_in_a_test() {
    let mut sources = String::new();
    for folder in ["e2e", "e2e/examples"] {
        for entry in std::fs::read_dir(beside(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    // `thalweg demo` contains its example.
    sources += "example(\"demo\")";
    for path in all() {
        let name = name(&path);
        let runs =
            sources.contains(&format!("example(\"{name}\")")) || sources.contains(&format!("examples/{name}.yaml\""));
        assert_eq!(runs, !NEED_ANOTHER_SYSTEM.contains(&name), "{name}");
    }
}

/// Component kinds as `thalweg list` prints them, with the keys below which they stand.
const KINDS: [(&str, &[&str]); 4] = [
    ("inputs", &["input", "inputs", "input_resources"]),
    ("processors", &["processors", "processor_resources", "try", "catch"]),
    ("outputs", &["output", "outputs", "output_resources", "dead_letter"]),
    ("buffers", &["buffer"]),
];

/// Pairs of a key and the key above it, of a file in block style. Text blocks give pairs that are none; they have other keys
/// above them than those of [`KINDS`].
fn pairs(yaml: &str) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    for line in yaml.lines() {
        let content = line.trim_start_matches([' ', '-']);
        let indent = line.len() - content.len();
        let Some((key, _)) = content.split_once(':') else {
            continue;
        };
        above.retain(|(other, _)| *other < indent);
        let parent = above.last().map(|(_, key)| key.clone()).unwrap_or_default();
        found.insert((parent, key.to_owned()));
        above.push((indent, key.to_owned()));
    }
    found
}

fn listed(kind: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let listed = run(folder.path(), &["list", kind]).unwrap();
    let names: Vec<String> = listed
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .map(str::to_owned)
        .collect();
    assert!(!names.is_empty(), "{kind}: {}", listed.stderr);
    names
}

#[test]
fn the_examples_use_every_component_and_every_section() {
    let folder = tempfile::tempdir().unwrap();
    make_certificate(folder.path());
    let mut used = BTreeSet::new();
    for path in all() {
        let (printed, yaml) = command(folder.path(), "echo", &path);
        assert!(printed, "{yaml}");
        used.append(&mut pairs(&yaml));
    }
    let is_used = |above: &str, key: &str| used.contains(&(above.to_owned(), key.to_owned()));
    for (kind, keys) in KINDS {
        for name in listed(kind) {
            // A flow without a buffer has this one.
            let default = (kind, name.as_str()) == ("buffers", "none");
            assert!(
                default || keys.iter().any(|key| is_used(key, &name)),
                "no example has {name} of {kind}"
            );
        }
    }
    for section in listed("sections") {
        let is_there = match section.as_str() {
            // These are said of files and components in general.
            "document" | "components" => true,
            "resources" => is_used("", "processor_resources"),
            "flows" => is_used("", "flows") && is_used("", "input"),
            name => is_used("", name),
        };
        assert!(is_there, "no example has the section {section}");
    }
}
