//! `thalweg schema`: prints a JSON Schema of the configuration file, for completion and validation in editors.

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use thalweg_assemble::{ReferenceEntry, ReferenceField, ReferenceKind, reference};

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

/// The schema of a component's value. For components that also accept a text, a list or other components, only the
/// names are known.
fn component(entry: &ReferenceEntry) -> Value {
    let mut fields = Map::new();
    for field in entry.fields.iter().filter(|field| !field.path.starts_with('[')) {
        put(&mut fields, &field.path, field);
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
    // A field that contains others may be empty.
    own.remove("type");
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
    // A value may come from the environment, as text; a secret may also come from a file.
    let kind = match field.kind.as_str() {
        "true or false" => Some(json!(["boolean", "string", "null"])),
        kind if kind.starts_with("whole number") => Some(json!(["integer", "string", "null"])),
        "number" => Some(json!(["number", "string", "null"])),
        "text" | "duration" => Some(json!(["string", "number", "boolean", "null"])),
        "size" => Some(json!(["string", "integer", "null"])),
        _ => None,
    };
    if let Some(kind) = kind {
        own.insert("type".to_owned(), kind);
    }
    if let Some(words) = field.kind.strip_prefix("one of ") {
        let words: Vec<&str> = words.split(", ").collect();
        own.insert(
            "anyOf".to_owned(),
            json!([{"enum": words}, {"type": ["string", "null"]}]),
        );
    }
    if let Some(default) = &field.default {
        own.insert("default".to_owned(), default.clone().into());
    }
    if !field.example.is_empty() {
        own.insert("examples".to_owned(), json!([field.example]));
    }
    own
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
    }
}
