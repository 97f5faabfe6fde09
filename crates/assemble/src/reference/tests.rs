use super::*;

#[test]
fn every_text_can_be_read_and_says_what_its_entry_is_for() {
    let mut all: Vec<(&str, &str)> = SECTION_TEXTS
        .iter()
        .chain(SECTIONS)
        .chain(BUFFER_TEXTS)
        .copied()
        .collect();
    let references = Components::new().registry.references();
    all.extend(references.iter().map(|reference| (reference.name, reference.text)));
    for (name, text) in all {
        let parsed = ReferenceText::parse(text);
        assert!(parsed.is_ok(), "{name}: {parsed:?}");
    }
}

#[test]
fn every_field_that_a_reader_asks_for_has_a_sentence() {
    let mut missing = Vec::new();
    for entry in reference() {
        let fields = entry.fields.iter().filter(|field| field.sentence.is_empty());
        missing.extend(fields.map(|field| format!("{} {}: {}", entry.kind.name(), entry.name, field.path)));
    }
    assert!(missing.is_empty(), "no sentence:\n{}", missing.join("\n"));
}

/// A sentence about a removed field would mislead users. Fields of old files are read without a type.
#[test]
fn every_sentence_is_about_a_field_that_a_reader_knows() {
    let mut unknown = Vec::new();
    for entry in reference() {
        let fields = entry.fields.iter().filter(|field| field.kind.is_empty());
        let fields = fields.filter(|field| !is_known(entry.kind, entry.name, &field.path));
        unknown.extend(fields.map(|field| format!("{} {}: {}", entry.kind.name(), entry.name, field.path)));
    }
    assert!(unknown.is_empty(), "nothing reads:\n{}", unknown.join("\n"));
}

#[test]
fn a_value_is_put_at_its_path() {
    assert_eq!(document(&["lake"], "", "{}"), "{\"lake\": {}}");
    assert_eq!(
        document(&[], "http.cors.enabled", "true"),
        "{\"http\": {\"cors\": {\"enabled\": true}}}"
    );
    assert_eq!(
        document(&["input", "opcua"], "deadbandRules[].type", "percent"),
        "{\"output\": {drop: {}}, \"input\": {\"opcua\": {\"deadbandRules\": [{\"type\": percent}]}}}"
    );
    assert_eq!(without_indexes("flows[12].input[0].a"), "flows[].input[].a");
}

#[test]
fn components_within_components_have_their_own_entries() {
    let names = ["file", "lake"];
    assert!(has_component("inputs[].file.paths", &names));
    assert!(!has_component("inputs", &names));
    assert!(has_component("dead_letter.file.path", &names));
    assert!(!has_component("tokens[].file", &names));
}
