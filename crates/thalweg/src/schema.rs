//! `thalweg schema`: prints a JSON Schema of the configuration file, for completion and validation in editors.

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use thalweg_assemble::{ReferenceEntry, ReferenceField, ReferenceKind, reference};
use thalweg_config::kind;

use crate::out;

/// Fields of a flow. With a single flow, they may also be at the top of the document.
const FLOW: [&str; 4] = ["input", "buffer", "pipeline", "output"];

pub fn main() -> anyhow::Result<ExitCode> {
    out::text_as_is(format!("{:#}\n", schema(&reference())))?;
    Ok(ExitCode::SUCCESS)
}

fn schema(all: &[ReferenceEntry]) -> Value {
    let mut root = Map::new();
    for entry in all.iter().filter(|entry| entry.kind == ReferenceKind::Section) {
        let is_whole = entry.fields.iter().any(|field| is_below(&field.path, entry.name));
        if entry.name == "components" {
            continue;
        }
        let is_document = entry.name == "document";
        for field in &entry.fields {
            let path = match is_whole || is_document {
                true => field.path.clone(),
                false => format!("{}.{}", entry.name, field.path),
            };
            put(&mut root, &path, field);
        }
        if let Some(Value::Object(section)) = root.get_mut(entry.name) {
            section
                .entry("description")
                .or_insert_with(|| entry.about.clone().into());
        }
    }
    let mut flow = Map::new();
    for name in FLOW {
        flow.insert(name.to_owned(), reference_of(name));
        root.insert(name.to_owned(), reference_of(name));
    }
    flow.insert("name".to_owned(), json!({"type": "string"}));
    root.insert(
        "flows".to_owned(),
        json!({"type": "array", "items": {"type": "object", "properties": flow, "additionalProperties": false}}),
    );
    root.insert("dead_letter".to_owned(), reference_of("output"));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Thalweg",
        "type": "object",
        "properties": root,
        "additionalProperties": false,
        "$defs": definitions(all),
    })
}

fn is_below(path: &str, section: &str) -> bool {
    path.strip_prefix(section)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn reference_of(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// Inputs, buffers, processors, outputs, and the pipeline.
fn definitions(all: &[ReferenceEntry]) -> Value {
    let mut definitions = Map::new();
    for kind in ReferenceKind::ALL
        .into_iter()
        .filter(|kind| *kind != ReferenceKind::Section)
    {
        let mut names = Map::new();
        for entry in all.iter().filter(|entry| entry.kind == kind) {
            names.insert(entry.name.to_owned(), component(entry));
        }
        names.insert("label".to_owned(), json!({"type": "string"}));
        if matches!(kind, ReferenceKind::Input | ReferenceKind::Output) {
            names.insert(
                "processors".to_owned(),
                json!({"type": "array", "items": reference_of("processor")}),
            );
        }
        let component = json!({"type": "object", "properties": names, "additionalProperties": false});
        definitions.insert(kind.name().to_owned(), component);
    }
    let threads = json!({"type": ["integer", "string"]});
    let processors = json!({"type": "array", "items": reference_of("processor")});
    definitions.insert(
        "pipeline".to_owned(),
        json!({"type": "object", "properties": {"threads": threads, "processors": processors}, "additionalProperties": false}),
    );
    Value::Object(definitions)
}

/// The schema of a component's value: a mapping, or a list of mappings as of `switch`. A component without fields
/// accepts a text, a list of components or nothing.
fn component(entry: &ReferenceEntry) -> Value {
    let (mut fields, mut fields_of_entries) = (Map::new(), Map::new());
    for field in &entry.fields {
        match field.path.strip_prefix("[].") {
            Some(path) => put(&mut fields_of_entries, path, field),
            None => put(&mut fields, &field.path, field),
        }
    }
    if !fields_of_entries.is_empty() {
        let entries = json!({"type": "object", "properties": fields_of_entries, "additionalProperties": false});
        return json!({"description": entry.about, "type": "array", "items": entries});
    }
    match fields.is_empty() {
        true => json!({"description": entry.about}),
        false => json!({
            "description": entry.about,
            "type": ["object", "null"],
            "properties": fields,
            "additionalProperties": false,
        }),
    }
}

/// Adds a field at its path below `properties`.
fn put(properties: &mut Map<String, Value>, path: &str, field: &ReferenceField) {
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    let name = step.trim_end_matches("[]");
    let is_list = name.len() < step.len();
    let own = properties
        .entry(name.to_owned())
        .or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(own) = own else { return };
    if rest.is_empty() {
        own.extend(described(field));
        return;
    }
    let object = match is_list {
        true => {
            let items = own.entry("items").or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(items) = items else { return };
            items
        }
        false => own,
    };
    let below = object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(below) = below {
        put(below, rest, field);
    }
}

fn described(field: &ReferenceField) -> Map<String, Value> {
    let mut own = Map::new();
    own.insert("description".to_owned(), field.sentence.clone().into());
    if let Some(Value::Object(shape)) = shape(&field.kind) {
        own.extend(shape);
    }
    if let Some(default) = &field.default {
        own.insert("default".to_owned(), default.clone().into());
    }
    if !field.example.is_empty() {
        own.insert("examples".to_owned(), json!([field.example]));
    }
    own
}

/// The schema of the values that a type of the reference stands for; `None` for a type of no field. A value may come
/// from the environment, as text; a secret may also come from a file.
fn shape(kind: &str) -> Option<Value> {
    let scalar = || json!({"type": ["string", "number", "boolean"]});
    let scalar_or_null = || json!({"type": ["string", "number", "boolean", "null"]});
    let components = |name: &str| json!({"type": ["array", "null"], "items": reference_of(name)});
    Some(match kind {
        kind::TEXT | kind::PROGRAM | kind::INTERPOLATED => scalar_or_null(),
        kind::DURATION | kind::INTERVAL | kind::INTERPOLATED_DURATION => scalar_or_null(),
        kind::TRUE_OR_FALSE => json!({"type": ["boolean", "string", "null"]}),
        kind::NUMBER => json!({"type": ["number", "string", "null"]}),
        kind::SIZE => json!({"type": ["string", "integer", "null"]}),
        kind::LIST => json!({"type": ["array", "null"]}),
        kind::MAPPING => json!({"type": ["object", "null"]}),
        kind::MAPPING_OR_LIST => json!({"type": ["object", "array", "null"], "maxItems": 1}),
        kind::TEXT_LIST => json!({"type": ["array", "null"], "items": scalar()}),
        kind::TEXT_OR_LIST => json!({"type": ["array", "string", "null"], "items": scalar()}),
        kind::TEXT_MAPPING => json!({"type": ["object", "null"], "additionalProperties": scalar_or_null()}),
        kind::INTERPOLATED_MAPPING => json!({"type": ["object", "null"], "additionalProperties": scalar()}),
        kind::INTERPOLATED_OR_MAPPING => {
            json!({"type": ["object", "string", "number", "boolean", "null"], "additionalProperties": scalar()})
        }
        kind::INPUT | kind::BUFFER | kind::OUTPUT => reference_of(kind),
        kind::INPUT_LIST => components(kind::INPUT),
        kind::PROCESSOR_LIST => components("processor"),
        kind::OUTPUT_LIST => components(kind::OUTPUT),
        kind::NOT_THERE => json!({"type": "null"}),
        kind::EMPTY => json!({"type": ["string", "array", "null"], "pattern": "^\\s*$", "maxItems": 0}),
        kind::EMPTY_LIST => json!({"type": ["array", "null"], "maxItems": 0}),
        _ => return whole_number(kind).or_else(|| words(kind)),
    })
}

/// A whole number, with its limits.
fn whole_number(kind: &str) -> Option<Value> {
    let limits = kind.strip_prefix(kind::WHOLE_NUMBER)?.trim_start();
    let (least, most) = match (limits.strip_prefix("of at least "), limits.strip_prefix("from ")) {
        _ if limits.is_empty() => (None, None),
        (Some(least), _) => (Some(least), None),
        (None, Some(range)) => {
            let (least, most) = range.split_once(" to ")?;
            (Some(least), Some(most))
        }
        (None, None) => return None,
    };
    let mut shape = Map::new();
    shape.insert("type".to_owned(), json!(["integer", "string", "null"]));
    for (name, limit) in [("minimum", least), ("maximum", most)] {
        if let Some(limit) = limit {
            shape.insert(name.to_owned(), limit.parse::<i64>().ok()?.into());
        }
    }
    Some(Value::Object(shape))
}

/// One word of several, or a list of such words.
fn words(kind: &str) -> Option<Value> {
    if let Some(words) = kind.strip_prefix("one of ") {
        let words: Vec<&str> = words.split(", ").collect();
        return Some(json!({"anyOf": [{"enum": words}, {"type": ["string", "null"]}]}));
    }
    let words: Vec<&str> = kind.strip_prefix("list of ")?.split(", ").collect();
    Some(json!({"type": ["array", "null"], "items": {"enum": words}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_below_their_sections_and_components() {
        let schema = schema(&reference());
        let at = |path: &str| schema.pointer(path).unwrap_or_else(|| panic!("{path}"));
        assert!(at("/properties/http/properties/address/description").is_string());
        let opcua = "/$defs/input/properties/opcua/properties";
        assert_eq!(at(&format!("{opcua}/pollRate/type/0")), "integer");
        assert!(at(&format!("{opcua}/deadbandRules/items/properties/pattern")).is_object());
        assert!(at("/properties/lake/properties/flush/properties/interval/default").is_string());
        assert_eq!(at("/properties/flows/items/properties/input/$ref"), "#/$defs/input");
        assert_eq!(at(&format!("{opcua}/nodeIDs/type/0")), "array");
        assert_eq!(at(&format!("{opcua}/queueSize/maximum")), 100_000);
        let case = "/$defs/processor/properties/switch/items/properties";
        assert_eq!(at(&format!("{case}/processors/items/$ref")), "#/$defs/processor");
        let token = "/properties/auth/properties/tokens/items/properties";
        assert_eq!(at(&format!("{token}/roles/items/enum/0")), "read");
    }

    /// An unknown type would accept everything. A field of old files has none.
    #[test]
    fn every_type_of_the_reference_has_a_shape() {
        for entry in reference() {
            for field in entry.fields.iter().filter(|field| !field.kind.is_empty()) {
                let (name, path, kind) = (entry.name, &field.path, &field.kind);
                assert!(shape(kind).is_some(), "{name} {path}: {kind}");
            }
        }
        assert_eq!(shape("whole number of at least 1").unwrap()["minimum"], 1);
        assert_eq!(shape("anything"), None);
    }
}
