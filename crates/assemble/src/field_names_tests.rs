//! Checks that no error leaves out a valid field name. For each mapping of the configuration, its sections and every
//! component, an unknown field yields the valid names. Then every name in the sources is tried, and each accepted one
//! must be among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use thalweg_config::{LoadOptions, Severity, SourceText};

use crate::checked_config::CheckedConfig;
use crate::components::Components;

/// A field of no mapping, unlike any real name.
const NOBODYS: &str = "qqqqqqqqqqqqqqqqqqqqqqqq";

/// Names per attempt: the number of diagnostics is limited, and one name may cause several.
const AT_ONCE: usize = 150;

/// A field may be accepted only with a value of its kind. Names from sources that read no fields are tried with the first ones;
/// `THALWEG_FIELD_NAMES=all` tries them with each.
const VALUES: [&str; 6] = ["1", "\"x\"", "true", "[]", "{}", "\"\""];
const VALUES_OF_OTHERS: usize = 2;

const FLOW_PARTS: [&str; 4] = ["input", "buffer", "pipeline", "output"];

/// Keys down to a mapping; `[]` is the only entry of a list.
type Way = Vec<String>;

/// The diagnostics of a file with this mapping, as (is it a warning, text).
fn told(way: &[String], mapping: &str) -> Vec<(bool, String)> {
    let mut text = mapping.to_owned();
    for step in way.iter().rev() {
        text = match step.as_str() {
            "[]" => format!("[{text}]"),
            key => format!("{{\"{key}\": {text}}}"),
        };
    }
    // The components of a flow are parsed only if it has both ends.
    if way.first().is_some_and(|first| FLOW_PARTS.contains(&first.as_str())) {
        let ends = [("input", "{stdin: {}}"), ("output", "{drop: {}}")];
        for (end, component) in ends
            .iter()
            .filter(|(end, _)| way.first().is_none_or(|first| first != end))
        {
            text.insert_str(1, &format!("\"{end}\": {component}, "));
        }
    }
    let checked = CheckedConfig::text(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    let found = checked.diagnostics.sorted().into_iter();
    found
        .map(|found| (found.severity == Severity::Warning, found.message))
        .collect()
}

/// The path as messages show it.
fn path(way: &[String]) -> String {
    let mut path = String::new();
    for step in way {
        match step.as_str() {
            "[]" => path.push_str("[0]"),
            key if path.is_empty() => path.push_str(key),
            key => path.extend([".", key]),
        }
    }
    path
}

/// The valid names of the mapping; `None` if no mapping is read there.
fn names(way: &[String]) -> Option<BTreeSet<String>> {
    let place = match way.is_empty() {
        true => String::new(),
        false => format!(" in {}", path(way)),
    };
    let begins = format!("unknown field \"{NOBODYS}\"{place}; ");
    let told = told(way, &format!("{{{NOBODYS}: 1}}"));
    let hint = told.iter().find_map(|(_, text)| text.strip_prefix(&begins))?;
    let names = hint.strip_prefix("valid names: ").unwrap_or_default();
    Some(
        names
            .split(", ")
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

/// Components are found by their kind and name, all other mappings by the reported names.
fn all_mappings() -> BTreeMap<Way, BTreeSet<String>> {
    let components = Components::new();
    let registry = &components.registry;
    let of =
        |parts: &[&str], name: &str| -> Way { parts.iter().chain(&[name]).map(|part| (*part).to_owned()).collect() };
    let mut open = vec![Way::new()];
    open.extend(registry.input_names().map(|name| of(&["input"], name)));
    open.extend(registry.output_names().map(|name| of(&["output"], name)));
    open.extend(
        registry
            .processor_names()
            .map(|name| of(&["pipeline", "processors", "[]"], name)),
    );
    open.extend(["none", "memory", "queue"].map(|name| of(&["buffer"], name)));
    let mut mappings = BTreeMap::new();
    while let Some(way) = open.pop() {
        let Some(names) = names(&way) else { continue };
        for name in &names {
            let below: Way = way.iter().chain([name]).cloned().collect();
            let entries: Way = below.iter().cloned().chain(["[]".to_owned()]).collect();
            open.extend([below, entries]);
        }
        mappings.insert(way, names);
    }
    mappings
}

/// Every text in the sources that looks like a field name.
#[derive(Default)]
struct SourceNames {
    /// In files that read fields.
    of_readers: BTreeSet<String>,
    /// In others with constants, which readers may use.
    of_others: BTreeSet<String>,
}

impl SourceNames {
    fn all() -> SourceNames {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let mut names = SourceNames::default();
        for entry in std::fs::read_dir(crates).unwrap() {
            names.visit(&entry.unwrap().path().join("src"));
        }
        let SourceNames { of_readers, of_others } = &mut names;
        of_others.retain(|name| !of_readers.contains(name));
        names
    }

    fn visit(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "tests" {
                    self.visit(&path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") && !name.ends_with("tests") {
                self.read(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn read(&mut self, text: &str) {
        let is_name = |text: &&str| {
            (1..=40).contains(&text.len())
                && text.starts_with(|first: char| first.is_ascii_lowercase())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        // This also finds the code between two texts, which does no harm.
        let names = text.split('"').filter(is_name).map(str::to_owned);
        if text.contains("Fields") {
            self.of_readers.extend(names);
        } else if text.contains("const") {
            self.of_others.extend(names);
        }
    }
}

/// The names that the mapping accepts, except those kept for old files, which are not suggested.
fn taken(way: &[String], names: &[&String], value: &str) -> BTreeSet<String> {
    let fields: Vec<String> = names.iter().map(|name| format!("\"{name}\": {value}")).collect();
    let told = told(way, &format!("{{{}}}", fields.join(", ")));
    let place = path(way);
    let is_taken = |name: &&&String| {
        let unknown = format!("unknown field \"{name}\"");
        let old = match place.is_empty() {
            true => format!("{name} "),
            false => format!("{place}.{name} "),
        };
        !told
            .iter()
            .any(|(is_warning, text)| text.starts_with(&unknown) || (*is_warning && text.starts_with(&old)))
    };
    names.iter().filter(is_taken).map(|name| (*name).clone()).collect()
}

#[test]
fn every_field_that_is_taken_is_among_the_valid_names_of_its_mapping() {
    let (mappings, all) = (all_mappings(), SourceNames::all());
    for expected in [
        "",
        "http",
        "http.cors",
        "auth.tokens[0]",
        "queues.list[0].retry",
        "ingest.otlp.grpc",
        "input.opcua",
        "output.kafka.batching",
        "buffer.memory",
        "pipeline.processors[0].downsampler.default",
    ] {
        assert!(
            mappings.keys().any(|way| path(way) == expected),
            "{expected:?} is not among {:?}",
            mappings.keys().map(|way| path(way)).collect::<Vec<_>>()
        );
    }
    let valid = mappings.values().flatten();
    let other: Vec<&String> = valid
        .filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase()))
        .collect();
    assert!(other.is_empty(), "no such names are tried: {other:?}");
    let values_of_others = match std::env::var_os("THALWEG_FIELD_NAMES") {
        Some(_) => VALUES.len(),
        None => VALUES_OF_OTHERS,
    };
    let mut left_out = BTreeSet::new();
    for (tried, values) in [(&all.of_readers, VALUES.len()), (&all.of_others, values_of_others)] {
        let tried: Vec<&String> = tried.iter().collect();
        for (way, names) in &mappings {
            for (chunk, value) in tried
                .chunks(AT_ONCE)
                .flat_map(|chunk| VALUES[..values].iter().map(move |value| (chunk, value)))
            {
                let more = taken(way, chunk, value)
                    .into_iter()
                    .filter(|name| !names.contains(name));
                left_out.extend(more.map(|name| format!("{}: {name}", path(way))));
            }
        }
    }
    assert!(left_out.is_empty(), "taken, and no valid name: {left_out:#?}");
}
