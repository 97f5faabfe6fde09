//! Every flag that a text of the program names exists: in the command that the text names before it, or else in one of
//! the commands that the source file serves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use crate::cli::Cli;

/// Flags of other programs, and the word by which a text names the program.
const FOREIGN: [(&str, &str); 2] = [("--schema", "pg_dump"), ("-n", "ulimit")];

/// The commands that the files of a module of this crate serve; others serve any command.
const SERVED: [(&str, &str); 9] = [
    ("auth", "auth"),
    ("events", "events"),
    ("lake", "lake"),
    ("log", "log"),
    ("mqtt", "mqtt"),
    ("parquet", "parquet"),
    ("queue", "queue"),
    ("simulate", "simulate"),
    ("sql", "sql"),
];

/// The string literals of Rust source text, with `\` line ends joined and other escapes as they are.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = &comment[comment.find('\n').unwrap_or(comment.len())..];
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let end = raw.find("\"#").unwrap_or(raw.len());
            found.push(raw[..end].to_owned());
            rest = raw.get(end + 2..).unwrap_or_default();
        } else if let Some(quoted) = ["'\"'", "'\\\"'", "b'\"'"]
            .iter()
            .find_map(|quote| rest.strip_prefix(quote))
        {
            rest = quoted;
        } else if c == '"' {
            let body = &rest[1..];
            let mut end = 0;
            while let Some(at) = body[end..].find(['"', '\\']) {
                end += at;
                if body.as_bytes()[end] == b'"' {
                    break;
                }
                end += 1 + body[end + 1..].chars().next().map_or(0, char::len_utf8);
            }
            let lines = body[..end].split("\\\n").enumerate();
            let joined = lines.map(|(n, line)| if n == 0 { line } else { line.trim_start() });
            found.push(joined.collect());
            rest = body.get(end + 1..).unwrap_or_default();
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    found
}

/// The source files of all crates, without tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "tests" | "benches" | "contract_suite") {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The flags in a text, with what is before each.
fn flags(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('-') {
        let (before, from) = text.split_at(at);
        let starts = before
            .chars()
            .next_back()
            .is_none_or(|c| matches!(c, ' ' | '`' | '(' | '\'' | '[' | '"'));
        let name = from.trim_start_matches('-');
        let dashes = from.len() - name.len();
        let length = name
            .bytes()
            .take_while(|b| b.is_ascii_lowercase() || matches!(b, b'-' | b'.'))
            .count();
        let name = name[..length].trim_end_matches(['.', '-']);
        let is_long = dashes == 2 && name.len() > 1;
        let is_short = dashes == 1 && name.len() == 1 && !from[2..].starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts && (is_long || is_short) {
            found.push((before, &from[..dashes + name.len()]));
        }
    }
    found
}

/// All flags of a command and those below it.
fn collect(command: &clap::Command, all: &mut BTreeSet<String>) {
    for argument in command.get_arguments() {
        let long = argument.get_long().into_iter();
        let aliases = argument.get_all_aliases().unwrap_or_default();
        all.extend(long.chain(aliases).map(|name| format!("--{name}")));
        all.extend(argument.get_short().map(|short| format!("-{short}")));
    }
    all.extend(["--help", "-h", "--version", "-V"].map(str::to_owned));
    command.get_subcommands().for_each(|below| collect(below, all));
}

fn flags_of(command: &clap::Command) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    collect(command, &mut all);
    all
}

/// The command that a text names directly before a flag, as in `thalweg log repair --accept-loss`.
fn named<'c>(before: &str, root: &'c clap::Command) -> Option<&'c clap::Command> {
    let (_, words) = before.rsplit_once("thalweg ")?;
    if words.contains(['`', ';', '.', ',', ':', '(', '"']) {
        return None;
    }
    let mut command = root;
    for word in words.split_whitespace() {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    (!std::ptr::eq(command, root)).then_some(command)
}

/// The flags in the texts of a file that no command has.
fn wrong_flags(path: &Path, source: &str, root: &clap::Command) -> Vec<String> {
    let own = path.to_string_lossy();
    let (_, module) = own.rsplit_once("thalweg/src/").unwrap_or_default();
    let module = module.split(['/', '.']).next().unwrap_or_default();
    let served = SERVED.iter().find(|(served, _)| *served == module);
    let served = served
        .and_then(|(_, command)| root.find_subcommand(command))
        .unwrap_or(root);
    let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut wrong = Vec::new();
    for text in literals(product) {
        for (before, flag) in flags(&text) {
            let is_foreign = FOREIGN
                .iter()
                .any(|(known, program)| *known == flag && text.contains(program));
            let command = named(before, root).unwrap_or(served);
            if !is_foreign && !flags_of(command).contains(flag) {
                wrong.push(format!("{own}: {flag} is no flag of {}: {text}", command.get_name()));
            }
        }
    }
    wrong
}

#[test]
fn a_flag_that_does_not_exist_is_found() {
    let root = Cli::command();
    let found = |path: &str, source: &str| wrong_flags(Path::new(path), source, &root).len();
    let library = "crates/log/src/error.rs";
    assert_eq!(found(library, "bail!(\"run `thalweg log repair --accept-loss`\")"), 0);
    assert_eq!(found(library, "bail!(\"run `thalweg log check --accept-loss`\")"), 1);
    assert_eq!(found(library, "bail!(\"add --acept-loss\")"), 1);
    assert_eq!(found(library, "bail!(\"add \\\n    --accept-loss, or \\\n -k\")"), 1);
    assert_eq!(
        found(library, "// --nowhere\nlet c = '\"'; bail!(r#\"name it with \"-c\"\"#)"),
        0
    );
    let queue = "crates/thalweg/src/queue/args.rs";
    assert_eq!(found(queue, "bail!(\"add --lines\")"), 0);
    assert_eq!(found(queue, "bail!(\"add --accept-loss\")"), 1);
}

#[test]
fn every_flag_that_a_text_names_exists() {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let mut files = Vec::new();
    for crates in std::fs::read_dir(own.join("..")).unwrap() {
        let source = crates.unwrap().path().join("src");
        if source.is_dir() {
            sources(&source, &mut files);
        }
    }
    assert!(files.len() > 500, "{} files", files.len());
    let root = Cli::command();
    let (mut wrong, mut named) = (Vec::new(), 0);
    for path in files {
        let source = std::fs::read_to_string(&path).unwrap();
        named += literals(&source).iter().map(|text| flags(text).len()).sum::<usize>();
        wrong.extend(wrong_flags(&path, &source, &root));
    }
    assert!(named > 100, "only {named} flags are named");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
