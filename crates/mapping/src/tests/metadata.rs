//! Which metadata each form reads after each form of writing it.

use thalweg_record::{Message, json};

use super::compiler;
use crate::Mapping;

const READ_NEW: [&str; 5] = [
    "@a",
    "@\"a\"",
    "@.a",
    "@.get(\"a\")",
    "@.map_each(entry -> entry.value).a",
];
const READ_INPUT: [&str; 7] = [
    "meta(\"a\")",
    "metadata(\"a\")",
    "meta(\"\" + \"a\")",
    "meta().a",
    "metadata().a",
    "metadata().get(\"a\")",
    "meta().map_each(entry -> entry.value).a",
];
/// With the value of `a` after it, in JSON; it is `"old"` before.
const WRITES: [(&str, &str); 12] = [
    ("meta other = 1", "\"old\""),
    ("meta a = \"new\"", "\"new\""),
    ("meta \"a\" = \"new\"", "\"new\""),
    ("meta a = 5", "\"5\""),
    ("meta a = \"\"", "null"),
    ("meta a = deleted()", "null"),
    ("meta a = nothing()", "\"old\""),
    ("meta = {\"a\": \"new\"}", "\"new\""),
    ("meta = {\"b\": \"new\"}", "null"),
    ("meta = deleted()", "null"),
    ("if this.on { meta a = \"new\" }", "\"new\""),
    ("meta a = \"first\"\nmeta a = @a + \"+\" + @a", "\"first+first\""),
];

fn message() -> Message {
    let mut message = Message::raw(r#"{"on":true}"#);
    message.meta.set("a", "old");
    message
}

fn read(mapping: Mapping) -> String {
    let found = mapping.evaluate(&[message()], 0).unwrap();
    json::to_string(&found.unwrap())
}

#[test]
fn at_reads_what_was_written_and_the_functions_read_the_input_except_in_a_mutation() {
    for (write, new) in WRITES {
        for form in READ_NEW.iter().chain(&READ_INPUT) {
            let source = format!("{write}\nroot.seen = {form}");
            let expected = match READ_INPUT.contains(form) {
                true => r#"{"seen":"old"}"#.to_owned(),
                false => format!(r#"{{"seen":{new}}}"#),
            };
            assert_eq!(read(compiler().mapping(&source).unwrap()), expected, "{source}");
            let mutated = format!(r#"{{"on":true,"seen":{new}}}"#);
            assert_eq!(
                read(compiler().mutation(&source).unwrap()),
                mutated,
                "mutation: {source}"
            );
        }
    }
}

#[test]
fn a_value_in_metadata_is_in_the_metadata_after_it() {
    let mut batch = [message()];
    let source = "meta site = \"berlin\"\nmeta topic = \"plant/\" + @site\nmeta before = meta(\"site\") | \"none\"";
    compiler().mapping(source).unwrap().apply(&mut batch, 0).unwrap();
    let meta = |key: &str| batch[0].meta.get(key).map(|text| text.into_owned());
    assert_eq!(meta("topic").as_deref(), Some("plant/berlin"));
    assert_eq!(meta("before").as_deref(), Some("none"));
}
