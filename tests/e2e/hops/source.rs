//! Finds the lines of a function in its source file, and the addresses of lines in the binary.
//!
//! A line has an address in every copy of its function: the compiler inlines functions and makes one instance per type.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use thalweg_tests::beside;
use thalweg_tests::thalweg::binary;

use super::table::{Hop, HopTable};

/// The lines of all files that hops name, read once for all tests.
static LINES: LazyLock<LineAddresses> = LazyLock::new(|| {
    let hops = HopTable::all().into_iter().flat_map(|table| table.hops);
    LineAddresses::read(hops.map(|hop| hop.file).collect())
});

/// The addresses at which the function of a hop begins, in all of its copies.
pub(super) fn entries(hop: &Hop) -> Vec<u64> {
    let source = std::fs::read_to_string(beside("..").join(&hop.file));
    let source = source.unwrap_or_else(|error| panic!("{}: {error}", hop.file));
    let lines = FunctionLines::find(&source, &hop.function);
    let lines = lines.unwrap_or_else(|why| panic!("{} in {}: {why}", hop.function, hop.file));
    let of = |line: usize| LINES.lines.get(&(hop.file.clone(), line));
    let first = lines.body.clone().find_map(of);
    let all = lines.entry.and_then(of).into_iter().chain(first).flatten();
    let all: BTreeSet<u64> = all.copied().collect();
    assert!(
        !all.is_empty(),
        "{} has no code of its own in {}: name the function that it is a part of, or build the binary from these sources, \
         with line tables",
        hop.function,
        binary().display()
    );
    all.into_iter().collect()
}

/// Where a function is in its file; the first line is 1.
#[derive(Debug, PartialEq, Eq)]
struct FunctionLines {
    /// The line of the name, which a call enters. The name of an async function belongs to the call that only creates its
    /// future.
    entry: Option<usize>,
    body: Range<usize>,
}

impl FunctionLines {
    /// Relies on rustfmt: the closing brace of an item is in the column of the item.
    fn find(source: &str, path: &str) -> Result<FunctionLines, String> {
        let mut parts = path.rsplit("::");
        let name = parts.next().unwrap_or_default();
        let owner = parts.next().filter(|owner| owner.starts_with(char::is_uppercase));
        let indent = if owner.is_some() { "    " } else { "" };
        let lines: Vec<&str> = source.lines().collect();
        let end_of_signature = |from: usize| (from..lines.len()).find(|at| lines[*at].ends_with('{'));
        let mut found = Vec::new();
        let mut is_inside = owner.is_none();
        for (at, line) in lines.iter().enumerate() {
            if let Some(owner) = owner {
                if line.starts_with("impl") && !line.ends_with("{}") {
                    let end = end_of_signature(at).unwrap_or(at);
                    is_inside = implemented(&lines[at..=end].join(" ")) == Some(owner);
                } else if line.starts_with('}') {
                    is_inside = false;
                }
            }
            let declared = line.strip_prefix(indent).filter(|_| is_inside).and_then(declaration);
            if let Some((is_async, _)) = declared.filter(|(_, declared)| *declared == name) {
                let start = end_of_signature(at).ok_or("it has no body")?;
                let brace = format!("{indent}}}");
                let end = (start..lines.len()).find(|at| lines[*at] == brace);
                found.push(FunctionLines {
                    entry: (!is_async).then_some(at + 1),
                    body: start + 2..end.ok_or("it has no end")? + 1,
                });
            }
        }
        match (found.pop(), found.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err("it is not declared there".to_owned()),
            (_, more) => Err(format!("it is declared {} times there", more + 1)),
        }
    }
}

/// The type of a header `impl<G> Trait for Type<G> where … {`, without its path.
fn implemented(header: &str) -> Option<&str> {
    let mut rest = header.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.find(|c: char| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        });
        rest = rest.get(end? + 1..)?;
    }
    let named = rest.split_once(" for ").map_or(rest, |(_, named)| named).trim_start();
    let end = named.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    named.get(..end.unwrap_or(named.len()))?.rsplit("::").next()
}

/// Whether a function that a line declares is async, and its name.
fn declaration(line: &str) -> Option<(bool, &str)> {
    let (before, after) = line.split_once("fn ")?;
    let mut words = before.split_whitespace();
    let is_declaration =
        |word: &str| ["async", "const", "unsafe"].contains(&word) || word.starts_with("pub") || word.ends_with(')');
    if before.starts_with(' ') || !words.clone().all(is_declaration) {
        return None;
    }
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some((words.any(|word| word == "async"), after.get(..end)?))
}

/// The addresses of lines in the file of the binary.
struct LineAddresses {
    files: BTreeSet<String>,
    lines: BTreeMap<(String, usize), Vec<u64>>,
    /// The first file of the table of lines that is being read, and the current one, if they are among the files.
    first: Option<String>,
    current: Option<String>,
}

impl LineAddresses {
    /// By readelf, which prints all lines in seconds: gdb takes half a minute and 1.4 GB to look these up.
    fn read(files: BTreeSet<String>) -> LineAddresses {
        let mut all = LineAddresses {
            files,
            lines: BTreeMap::new(),
            first: None,
            current: None,
        };
        let mut readelf = Command::new("readelf")
            .args(["--wide", "--debug-dump=decodedline"])
            .arg(binary())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test needs readelf and gdb; install them with: cargo xtask tools");
        let mut output = BufReader::new(readelf.stdout.take().unwrap());
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).unwrap() > 0 {
            all.add(std::str::from_utf8(&line).unwrap_or_default().trim_end());
            line.clear();
        }
        let status = readelf.wait().unwrap();
        assert!(status.success(), "readelf {}: {status}", binary().display());
        all
    }

    /// Adds a line of readelf: the name of a file, or `name line address [view] [x]`, where `x` begins a statement.
    fn add(&mut self, line: &str) {
        if let Some(name) = line.strip_suffix(':') {
            let is_first = name.starts_with("CU: ");
            let name = name.trim_start_matches("CU: ");
            self.current = self.files.contains(name).then(|| name.to_owned());
            if is_first {
                self.first = self.current.clone();
            }
            return;
        }
        if self.first.is_none() && self.current.is_none() {
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // The end of a sequence; the next one is in the first file until another one is named.
            [_, "-", ..] => self.current = self.first.clone(),
            [_, line, address, .., "x"] => {
                let address = address
                    .strip_prefix("0x")
                    .and_then(|hex| u64::from_str_radix(hex, 16).ok());
                if let (Some(file), Ok(line), Some(address)) = (&self.current, line.parse(), address) {
                    self.lines.entry((file.clone(), line)).or_default().push(address);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn functions_are_found_in_their_impl_and_lines_at_their_addresses() {
    let source = "\
fn store() {
    first();
}

impl<T: Into<u8>> Output<T> for super::Lake<T>
where
    T: Copy,
{
    async fn store(
        &self,
    ) -> Result<()> {
        match self {
            _ => second(),
        }
    }
}

impl Lake {
    pub(crate) fn open() {
        third();
    }
}
";
    let of = |path: &str| FunctionLines::find(source, path);
    for (path, entry, body) in [
        ("thalweg_a::store", Some(1), 2..3),
        ("thalweg_a::Lake::store", None, 12..15),
        ("thalweg_a::Lake::open", Some(19), 20..21),
    ] {
        assert_eq!(of(path), Ok(FunctionLines { entry, body }), "{path}");
    }
    assert!(of("thalweg_a::Lake::close").is_err() && of("thalweg_a::Output::store").is_err());

    let mut read = LineAddresses {
        files: BTreeSet::from(["crates/a/src/ack.rs".to_owned()]),
        lines: BTreeMap::new(),
        first: None,
        current: None,
    };
    for line in [
        "CU: crates/a/src/ack.rs:",
        "File name            Line number    Starting address    View    Stmt",
        "ack.rs                        16              0x1000               x",
        "",
        "crates/b/src/ack.rs:",
        "ack.rs                        17              0x1004       1       x",
        "ack.rs                         -              0x1008",
        "",
        "ack.rs                        18              0x2000       1       x",
        "ack.rs                        18              0x2002",
        "crates/b/src/ack.rs:",
        "crates/a/src/ack.rs:",
        "ack.rs                        18              0x2004               x",
        "CU: crates/b/src/lib.rs:",
        "lib.rs                        16              0x3000               x",
    ] {
        read.add(line);
    }
    let found: Vec<(usize, Vec<u64>)> = read.lines.into_iter().map(|((_, line), at)| (line, at)).collect();
    assert_eq!(found, [(16, vec![0x1000]), (18, vec![0x2000, 0x2004])]);
}
