use serde_json::json;

use super::*;

/// A typical schema in a registry of the unified namespace.
const PUMP: &str = r#"{
    "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pump", "type": "object",
    "properties": {
        "virtual_path": {"type": "string", "enum": ["motor.speed", "motor.current"]},
        "fields": {
            "type": "object",
            "properties": {"value": {"type": "number"}, "timestamp_ms": {"type": "integer"}},
            "required": ["timestamp_ms", "value"], "additionalProperties": false
        }
    },
    "required": ["virtual_path", "fields"], "additionalProperties": false
}"#;

fn told(schema: &str, value: &Value) -> String {
    Schema::parse(schema).unwrap().check(value).err().unwrap_or_default()
}

#[test]
fn a_sample_is_checked_and_told_where_it_is_wrong() {
    let sample = |value: Value| json!({"virtual_path": "motor.speed", "fields": {"value": value, "timestamp_ms": 5}});
    assert_eq!(told(PUMP, &sample(json!(1.5))), "");
    assert_eq!(
        told(PUMP, &sample(json!("fast"))),
        "fields.value: expected number, got string"
    );
    let elsewhere = json!({"virtual_path": "x", "fields": {"value": 1, "timestamp_ms": 5}});
    assert_eq!(
        told(PUMP, &elsewhere),
        "virtual_path: \"x\" is not one of \"motor.speed\", \"motor.current\""
    );
    let more = json!({"virtual_path": "motor.speed", "fields": {"value": 1, "timestamp_ms": 5, "x": 0}});
    assert_eq!(told(PUMP, &more), "fields.x: the schema does not allow this member");
    assert_eq!(
        told(PUMP, &json!({"virtual_path": "motor.speed"})),
        "\"fields\" is missing"
    );
    assert_eq!(told(PUMP, &json!([])), "expected object, got array");
}

#[test]
fn each_keyword_holds_and_breaks() {
    for (schema, right, wrong) in [
        (
            r#"{"type": ["integer", "null"]}"#,
            json!([1, 1.0, null]),
            json!([1.5, "1", true]),
        ),
        (
            r#"{"const": {"a": [1]}}"#,
            json!([{"a": [1.0]}]),
            json!([{"a": [2]}, {}]),
        ),
        (
            r#"{"minimum": 1, "exclusiveMaximum": 3}"#,
            json!([1, 2.9, "text"]),
            json!([0.9, 3]),
        ),
        (
            r#"{"maximum": 1, "exclusiveMinimum": 0}"#,
            json!([1, 0.1]),
            json!([0, 1.1]),
        ),
        (r#"{"multipleOf": 0.1}"#, json!([0.3, 7, -0.7]), json!([0.35])),
        (
            r#"{"minLength": 2, "maxLength": 3}"#,
            json!(["äö", "abc", 1]),
            json!(["a", "abcd"]),
        ),
        (r#"{"pattern": "^a.c"}"#, json!(["abcd"]), json!(["xabc"])),
        (
            r#"{"minItems": 1, "maxItems": 2, "uniqueItems": true}"#,
            json!([[1], [1, 2]]),
            json!([[], [1, 1.0], [1, 2, 3]]),
        ),
        (r#"{"items": {"type": "number"}}"#, json!([[], [1]]), json!([[1, "a"]])),
        (
            r#"{"prefixItems": [true, {"type": "string"}], "items": false}"#,
            json!([[1], [1, "a"]]),
            json!([[1, 2], [1, "a", 3]]),
        ),
        (
            r#"{"items": [{"type": "string"}], "additionalItems": false}"#,
            json!([["a"]]),
            json!([[1], ["a", 1]]),
        ),
        (
            r#"{"minProperties": 1, "maxProperties": 1}"#,
            json!([{"a": 1}]),
            json!([{}, {"a": 1, "b": 1}]),
        ),
        (
            r#"{"patternProperties": {"^n": {"type": "number"}}, "additionalProperties": {"type": "string"}}"#,
            json!([{"n1": 1, "x": "a"}]),
            json!([{"n1": "a"}, {"x": 1}]),
        ),
        (
            r#"{"propertyNames": {"maxLength": 1}}"#,
            json!([{"a": 1}]),
            json!([{"ab": 1}]),
        ),
        (
            r#"{"anyOf": [{"type": "number"}, {"type": "string"}]}"#,
            json!([1, "a"]),
            json!([null]),
        ),
        (
            r#"{"oneOf": [{"minimum": 1}, {"minimum": 5}]}"#,
            json!([2]),
            json!([0, 6]),
        ),
        (
            r#"{"allOf": [{"minimum": 1}, {"maximum": 5}]}"#,
            json!([2]),
            json!([0, 6]),
        ),
        (r#"{"not": {"type": "number"}}"#, json!(["a"]), json!([1])),
        (
            r#"{"if": {"type": "number"}, "then": {"minimum": 1}, "else": {"type": "string"}}"#,
            json!([1, "a"]),
            json!([0, null]),
        ),
        (
            r##"{"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}"##,
            json!([[], [[], [[]]]]),
            json!([1, [[1]]]),
        ),
        ("true", json!([1]), json!([])),
        ("false", json!([]), json!([1])),
    ] {
        for value in right.as_array().unwrap() {
            assert_eq!(told(schema, value), "", "{schema} of {value}");
        }
        for value in wrong.as_array().unwrap() {
            assert_ne!(told(schema, value), "", "{schema} of {value}");
        }
    }
}

#[test]
fn what_is_not_understood_is_named_and_nothing_is_half_checked() {
    for (schema, problem) in [
        ("{", "it is no JSON: "),
        (
            r#"{"properties": {"a": {"contains": {}}}}"#,
            "#/properties/a/contains: the keyword is not understood",
        ),
        (
            r#"{"$ref": "http://x/y"}"#,
            "#/$ref: \"http://x/y\" is not a place in this schema",
        ),
        (
            r#"{"pattern": "(?=a)"}"#,
            "#/pattern: the pattern \"(?=a)\" is not understood",
        ),
        (r#"{"type": "float"}"#, "#/type: there is no type \"float\""),
        (r#"{"minimum": true}"#, "#/minimum: expected a number"),
        ("3", "#: a schema is an object, true or false"),
    ] {
        let error = Schema::parse(schema).err().unwrap();
        assert!(error.starts_with(problem), "{schema}: {error}");
    }
}

#[test]
fn a_reference_to_itself_ends() {
    assert!(told(r##"{"$ref": "#"}"##, &json!(1)).contains("at most 200 deep"));
}

#[test]
fn a_schema_has_so_many_parts_and_no_more() {
    let of_parts = |parts: usize| json!({"anyOf": vec![json!(true); parts - 1]}).to_string();
    Schema::parse(&of_parts(10_000)).map(drop).unwrap();
    let error = Schema::parse(&of_parts(10_001)).err().unwrap();
    assert!(error.contains("it has more than 10000 parts"), "{error}");
}

#[test]
fn a_chain_of_references_has_an_end() {
    let chain = |length: usize| {
        let link = |n: usize| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)}));
        let mut parts: serde_json::Map<String, Value> = (0..length).map(link).collect();
        parts.insert(format!("d{length}"), json!({"type": "number"}));
        json!({"$ref": "#/$defs/d0", "$defs": parts}).to_string()
    };
    assert_eq!(told(&chain(100), &json!(1)), "");
    assert_ne!(told(&chain(100), &json!("a")), "");
    let error = Schema::parse(&chain(9000)).err().unwrap();
    assert!(error.contains("parts are nested more than 200 deep"), "{error}");
}
