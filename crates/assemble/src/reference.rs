//! The reference of the configuration, generated from the code that reads it. Each reader runs on empty documents and
//! on the examples of its text, and records the fields that it asks for.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use thalweg_config::{
    BUFFER_TEXTS, ComponentKind, FieldDoc, FieldText, LoadOptions, ReferenceText, SECTION_TEXTS, SourceText,
    common_fields, kind,
};

use crate::checked_config::CheckedConfig;
use crate::components::Components;

/// The kind of a reference entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferenceKind {
    Section,
    Input,
    Buffer,
    Processor,
    Output,
}

impl ReferenceKind {
    pub const ALL: [ReferenceKind; 5] = [
        ReferenceKind::Section,
        ReferenceKind::Input,
        ReferenceKind::Buffer,
        ReferenceKind::Processor,
        ReferenceKind::Output,
    ];

    /// One of them.
    pub fn name(self) -> &'static str {
        match self {
            ReferenceKind::Section => "section",
            ReferenceKind::Input => "input",
            ReferenceKind::Buffer => "buffer",
            ReferenceKind::Processor => "processor",
            ReferenceKind::Output => "output",
        }
    }

    /// The path from the document to a component of this kind.
    fn place(self) -> &'static [&'static str] {
        match self {
            ReferenceKind::Section => &[],
            ReferenceKind::Input => &["input"],
            ReferenceKind::Buffer => &["buffer"],
            ReferenceKind::Processor => &["pipeline", "processors", "[]"],
            ReferenceKind::Output => &["output"],
        }
    }
}

/// A component or a section, and its fields.
#[derive(Clone, Debug)]
pub struct ReferenceEntry {
    pub kind: ReferenceKind,
    pub name: &'static str,
    /// Its purpose.
    pub about: String,
    pub fields: Vec<ReferenceField>,
}

/// A field as the reference shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceField {
    /// Relative to the component, or to the document.
    pub path: String,
    /// The accepted values, such as `whole number`; empty for a field of old files.
    pub kind: String,
    /// As it would be written.
    pub default: Option<String>,
    pub is_required: bool,
    /// Empty if it is missing, which a test refuses.
    pub sentence: String,
    pub example: String,
}

/// Sections that other crates read: name and text.
const SECTIONS: &[(&str, &str)] = &[
    ("log", thalweg_queue::settings::LOG_TEXT),
    ("queues", thalweg_queue::settings::QUEUES_TEXT),
    ("events", include_str!("../reference/section-events.txt")),
    ("mqtt", include_str!("../reference/section-mqtt.txt")),
    ("ingest", include_str!("../reference/section-ingest.txt")),
    ("lake", include_str!("../reference/section-lake.txt")),
    ("query", include_str!("../reference/section-query.txt")),
];

/// The entry of the fields that all components have.
const COMMON: &str = "components";

/// All entries, by kind and name; sections in the order of a file.
pub fn reference() -> Vec<ReferenceEntry> {
    let texts = SECTION_TEXTS
        .iter()
        .map(|(name, text)| (ReferenceKind::Section, *name, *text));
    let others = SECTIONS
        .iter()
        .map(|(name, text)| (ReferenceKind::Section, *name, *text));
    let buffers = BUFFER_TEXTS
        .iter()
        .map(|(name, text)| (ReferenceKind::Buffer, *name, *text));
    let mut all: Vec<(ReferenceKind, &'static str, &'static str)> = texts.chain(others).chain(buffers).collect();
    for reference in Components::new().registry.references() {
        let kind = match reference.kind {
            ComponentKind::Input => ReferenceKind::Input,
            ComponentKind::Buffer => ReferenceKind::Buffer,
            ComponentKind::Processor => ReferenceKind::Processor,
            ComponentKind::Output => ReferenceKind::Output,
            ComponentKind::Cache | ComponentKind::RateLimit => continue,
        };
        all.push((kind, reference.name, reference.text));
    }
    all.sort_by_key(|(kind, ..)| *kind);
    let entries = all.into_iter().map(|(kind, name, text)| entry(kind, name, text));
    entries.collect()
}

fn entry(kind: ReferenceKind, name: &'static str, text: &str) -> ReferenceEntry {
    let text = ReferenceText::parse(text).unwrap_or_default();
    let found = found_fields(kind, name, &text);
    let mut fields: Vec<ReferenceField> = text
        .fields
        .iter()
        .map(|field| {
            let doc = found.get(&field.path);
            ReferenceField {
                path: field.path.clone(),
                kind: doc.map(|doc| doc.kind.clone()).unwrap_or_default(),
                default: default_of(kind, name, field, doc),
                is_required: doc.is_some_and(|doc| doc.required),
                sentence: field.sentence.clone(),
                example: field.example.clone(),
            }
        })
        .collect();
    let unknown = found
        .iter()
        .filter(|(path, doc)| !is_part(doc) && text.field(path).is_none());
    fields.extend(unknown.map(|(path, doc)| ReferenceField {
        path: path.clone(),
        kind: doc.kind.clone(),
        default: doc.default.clone(),
        is_required: doc.required,
        sentence: String::new(),
        example: String::new(),
    }));
    ReferenceEntry {
        kind,
        name,
        about: text.about,
        fields,
    }
}

/// Defaults that depend on the machine, in words: kind, name, field and default.
const OF_MACHINE: [(ReferenceKind, &str, &str, &str); 1] =
    [(ReferenceKind::Section, "query", "concurrency", "twice the cores")];

fn default_of(kind: ReferenceKind, name: &str, field: &FieldText, doc: Option<&FieldDoc>) -> Option<String> {
    let own = (kind, name, field.path.as_str());
    let in_words = OF_MACHINE
        .iter()
        .find(|(kind, name, path, _)| (*kind, *name, *path) == own);
    match in_words {
        Some((.., words)) => Some((*words).to_owned()),
        None => doc.and_then(|doc| doc.default.clone()),
    }
}

/// Whether a field is a mapping or a list of mappings, whose fields are described instead.
fn is_part(doc: &FieldDoc) -> bool {
    matches!(doc.kind.as_str(), kind::MAPPING | kind::LIST)
}

/// The fields that the reader asks for, by their paths from the component or, for a section, as in its text.
fn found_fields(kind: ReferenceKind, name: &str, text: &ReferenceText) -> BTreeMap<String, FieldDoc> {
    if kind == ReferenceKind::Section && name == COMMON {
        // They are beside the name of every component, and so at no place of the document.
        return common_fields().map(|doc| (doc.name.clone(), doc)).into();
    }
    let mut way: Vec<&str> = kind.place().to_vec();
    way.push(name);
    let is_whole = kind == ReferenceKind::Section && SECTION_TEXTS.iter().any(|(own, _)| *own == name);
    let prefix = match is_whole {
        // Its paths begin at the document.
        true => String::new(),
        false => joined(&way),
    };
    let components = Components::new().registry.references();
    let buffers = BUFFER_TEXTS.iter().map(|(name, _)| *name);
    let components: Vec<&str> = components
        .iter()
        .map(|component| component.name)
        .chain(buffers)
        .collect();
    let steps: &[&str] = if is_whole { &[] } else { &way };
    let mut found = BTreeMap::new();
    let mut add = |document: &str| {
        for doc in docs_of(document) {
            let path = without_indexes(&doc.name);
            let Some(path) = path.strip_prefix(&prefix) else {
                continue;
            };
            let is_of_another = !prefix.is_empty() && !path.starts_with(['.', '[']);
            let path = path.strip_prefix('.').unwrap_or(path);
            let is_own = !path.is_empty() && !is_of_another && !has_component(path, &components);
            if is_own && (!is_whole || is_within(path, name, text)) {
                found.entry(path.to_owned()).or_insert(doc);
            }
        }
    };
    add(&document(steps, "", "{}"));
    for field in text.fields.iter().filter(|field| !field.example.is_empty()) {
        add(&document(steps, &field.path, &field.example));
    }
    found
}

/// Fields whose values are components.
const COMPONENTS: [&str; 12] = [
    "input",
    "output",
    "buffer",
    "dead_letter",
    "inputs",
    "outputs",
    "processors",
    "input_resources",
    "processor_resources",
    "output_resources",
    "cache_resources",
    "rate_limit_resources",
];

/// Whether a path leads into a component within this one, such as `inputs[].file.paths` of a broker: it has its own entry.
fn has_component(path: &str, components: &[&str]) -> bool {
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        let holds = COMPONENTS.contains(&step.trim_end_matches("[]"));
        if holds && steps.peek().is_some_and(|next| components.contains(next)) {
            return true;
        }
    }
    false
}

/// Whether a path of the document belongs to a section whose text has full paths.
fn is_within(path: &str, section: &str, text: &ReferenceText) -> bool {
    let first = path.split(['.', '[']).next().unwrap_or_default();
    first == section || text.field(path).is_some()
}

/// A path as diagnostics write it.
fn joined(way: &[&str]) -> String {
    let mut path = String::new();
    for step in way {
        match *step {
            "[]" => path.push_str("[]"),
            key if path.is_empty() => path.push_str(key),
            key => path.extend([".", key]),
        }
    }
    path
}

/// `a[3].b` becomes `a[].b`.
fn without_indexes(path: &str) -> String {
    let mut plain = String::new();
    let mut is_index = false;
    for c in path.chars() {
        match c {
            '[' => is_index = true,
            ']' => is_index = false,
            c if is_index && c.is_ascii_digit() => continue,
            _ => {}
        }
        plain.push(c);
    }
    plain
}

/// A document with one value at a path below `way`, and with the parts that flows need to be read.
fn document(way: &[&str], path: &str, value: &str) -> String {
    let own: Vec<String> = path
        .split('.')
        .flat_map(|step| {
            let key = step.trim_end_matches("[]");
            let lists = (step.len() - key.len()) / 2;
            let key = (!key.is_empty()).then(|| key.to_owned());
            key.into_iter().chain(std::iter::repeat_n("[]".to_owned(), lists))
        })
        .collect();
    let all: Vec<&str> = way.iter().copied().chain(own.iter().map(String::as_str)).collect();
    let mut text = value.to_owned();
    for step in all.iter().rev() {
        text = match *step {
            "[]" => format!("[{text}]"),
            key => format!("{{\"{key}\": {text}}}"),
        };
    }
    let has = |end: &str| all.first() == Some(&end);
    if ["input", "buffer", "pipeline", "output"].into_iter().any(has) {
        for (end, component) in [("input", "{stdin: {}}"), ("output", "{drop: {}}")] {
            if !has(end) {
                text.insert_str(1, &format!("\"{end}\": {component}, "));
            }
        }
    }
    text
}

/// Whether a reader knows the field. Fields of old files are read without being asked for.
#[cfg(test)]
fn is_known(kind: ReferenceKind, name: &str, path: &str) -> bool {
    let mut way: Vec<&str> = kind.place().to_vec();
    way.push(name);
    let is_whole = kind == ReferenceKind::Section && SECTION_TEXTS.iter().any(|(own, _)| *own == name);
    let text = document(if is_whole { &[] } else { &way }, path, "x");
    let last = path.rsplit('.').next().unwrap_or(path).trim_end_matches("[]");
    let source = SourceText::new("reference.yaml", text);
    let checked = CheckedConfig::text(&source, &|_| None, &LoadOptions::default());
    let unknown = format!("unknown field \"{last}\"");
    !checked
        .diagnostics
        .sorted()
        .iter()
        .any(|found| found.message.starts_with(&unknown))
}

/// The fields that the readers of a document ask for, at their paths from the document.
fn docs_of(document: &str) -> Vec<FieldDoc> {
    let options = LoadOptions {
        describing: true,
        ..LoadOptions::default()
    };
    // No example may read a file or a variable of this machine.
    let source = SourceText::new("reference.yaml", document.replace("${", "$ {"));
    CheckedConfig::text(&source, &|_| None, &options)
        .diagnostics
        .take_docs()
}
