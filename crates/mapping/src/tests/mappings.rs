//! Whole mappings: assignments, metadata, variables, deletion, mutation, typed payloads, failures.

use std::sync::Arc;

use thalweg_record::{Guid, Message, Metadata, Object, Payload, Ticks, Value};

use super::{compiler, mapping, outcome, typed};
use crate::{Mapping, MappingOutcome};

fn run(source: &str, document: &str) -> String {
    outcome(&mapping(source), Message::raw(document.to_owned()))
}

fn mutate(source: &str, document: &str) -> String {
    let mutation = compiler()
        .mutation(source)
        .unwrap_or_else(|error| panic!("{source}\n{error}"));
    outcome(&mutation, Message::raw(document.to_owned()))
}

#[test]
fn a_mapping_builds_a_new_document_from_an_unchanged_input() {
    for (source, document, expected) in [
        ("root = this", r#"{"a": 1.50, "b": [ ]}"#, r#"{"a":1.50,"b":[]}"#),
        ("root.b = this.a", r#"{"a":1}"#, r#"{"b":1}"#),
        ("root.a.b.c = 1", "", r#"{"a":{"b":{"c":1}}}"#),
        (
            "root = this\nroot.a = this.b\nroot.b = this.a",
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":1}"#,
        ),
        ("root = this\nroot.a = deleted()", r#"{"a":1,"b":2}"#, r#"{"b":2}"#),
        ("root = this\nroot.x.y = deleted()", r#"{"a":1}"#, r#"{"a":1}"#),
        ("root = this\nroot.a.0 = deleted()", r#"{"a":[1,2]}"#, r#"{"a":[2]}"#),
        ("root = this\nroot.a.1 = 9", r#"{"a":[1,2]}"#, r#"{"a":[1,9]}"#),
        ("root = this\nroot.a.b = 1", r#"{"a":null}"#, r#"{"a":{"b":1}}"#),
        ("root = null\nroot.a = 1", "", r#"{"a":1}"#),
        ("root.a = 1\nroot.b = root.a + 1", "", r#"{"a":1,"b":2}"#),
        ("root.\"a b\".\"c.d\" = 1", "", r#"{"a b":{"c.d":1}}"#),
        ("root.a = nothing()", r#"{"x":1}"#, r#"{"x":1}"#),
        ("root.a = if false { 1 }\nroot.b = 2", "", r#"{"b":2}"#),
        ("root = \"hello\"", "", "hello"),
        ("root = 5", "", "5"),
        ("root = null", "", "null"),
        ("root = [true]", "", "[true]"),
        ("root = content()", "raw", "raw"),
        ("root = deleted()", "x", "(deleted)"),
        (
            "root = this\nroot = if this.a == 1 { deleted() }\nroot.b = 2",
            r#"{"a":1}"#,
            "(deleted)",
        ),
        (
            "root = this\nroot = if this.a == 1 { deleted() }\nroot.b = 2",
            r#"{"a":2}"#,
            r#"{"a":2,"b":2}"#,
        ),
        ("root = deleted()\nroot = 1", "", "1"),
        ("this.a", r#"{"a":"alone"}"#, "alone"),
        ("if this.a == 1 { \"one\" } else { \"other\" }", r#"{"a":1}"#, "one"),
        ("match this.a {\n  1 => \"one\"\n}", r#"{"a":1}"#, "one"),
        ("meta(\"x\") | \"no\"", "", "no"),
        ("# a comment\n\nroot = 1 # one\n# end", "", "1"),
        ("root = 1\r\nroot = 2\r\n", "", "2"),
    ] {
        assert_eq!(run(source, document), expected, "{source} on {document}");
    }
}

#[test]
fn assignments_that_cannot_be_made_name_the_target_and_the_line() {
    for (source, document, expected) in [
        (
            "root = \"x\"\nroot.a = 1",
            "",
            "error: failed assignment (line 2): cannot set `root.a`: `root` is not an object but has type string",
        ),
        (
            "root = this\n\nroot.a.b.c = 1",
            r#"{"a":{"b":5}}"#,
            "error: failed assignment (line 3): cannot set `root.a.b.c`: `root.a.b` is not an object but has type number",
        ),
        (
            "root = this\nroot.a.7 = 1",
            r#"{"a":[]}"#,
            "error: failed assignment (line 2): cannot set `root.a.7`: `7` is not an index of an array of 0 elements",
        ),
        (
            "root.a = 1\nroot.b = this.x.uppercase()",
            "{}",
            "error: failed assignment (line 2): expected string value, got null from field `this.x`",
        ),
        (
            "if this.a {\n  root = 1\n}",
            "{}",
            "error: failed assignment (line 1): failed to check if condition: expected bool value, got null from field `this.a`",
        ),
        (
            "meta = 5",
            "",
            "error: failed assignment (line 1): cannot replace all metadata: expected object value, got number from number \
             literal (5)",
        ),
    ] {
        assert_eq!(run(source, document), expected, "{source}");
    }
}

#[test]
fn variables_hold_values_between_statements() {
    for (source, document, expected) in [
        ("let x = this.a\nroot = $x + 1", r#"{"a":1}"#, "2"),
        ("let x = 1\nlet x = $x + 1\nroot = $x", "", "2"),
        ("let o = {\"a\":{\"b\":5}}\nroot = $o.a.b", "", "5"),
        ("let \"quoted\" = 5\nroot = $quoted", "", "5"),
        (
            "let list = [1,2]\nroot = $list.map_each(x -> x + $list.length())",
            "",
            "[3,4]",
        ),
        ("if this.a == 1 { let x = 5 }\nroot = $x", r#"{"a":1}"#, "5"),
        (
            "if this.a == 1 { let x = 5 }\nroot = $x",
            r#"{"a":2}"#,
            "error: failed assignment (line 2): variable `x` is not set",
        ),
        ("let x = 1\nlet x = deleted()\nroot = $x | \"gone\"", "", "gone"),
        ("let x = 1\nlet x = nothing()\nroot = $x", "", "1"),
        (
            "let x = {\"a\": 5}\nroot = $x.a.uppercase()",
            "",
            "error: failed assignment (line 2): expected string value, got number from field `$x.a` (5)",
        ),
    ] {
        assert_eq!(run(source, document), expected, "{source}");
    }
}

#[test]
fn if_statements_run_the_first_block_that_applies() {
    let source = "root = this\nif this.n > 10 {\n  root.size = \"big\"\n  meta size = \"big\"\n} else if this.n > 5 {\n  root.size = \"middle\"\n}\nelse {\n  if this.n < 0 { root = deleted() } else { root.size = \"small\" }\n}";
    for (document, expected) in [
        (r#"{"n":11}"#, r#"{"n":11,"size":"big"}"#),
        (r#"{"n":6}"#, r#"{"n":6,"size":"middle"}"#),
        (r#"{"n":1}"#, r#"{"n":1,"size":"small"}"#),
        (r#"{"n":-1}"#, "(deleted)"),
    ] {
        assert_eq!(run(source, document), expected, "{document}");
    }
}

#[test]
fn metadata_is_written_as_text() {
    let source = "meta a = \"text\"\nmeta b = 5\nmeta \"c d\" = [1, \"x\"]\nmeta e = deleted()\nmeta f = nothing()\nmeta g = \"\"\nmeta h = true\nroot.seen = [meta(\"a\"), meta(\"e\")]";
    let mut message = Message::raw("{}");
    for key in ["e", "f", "g"] {
        message.meta.set(key, "old");
    }
    let mut batch = [message];
    assert_eq!(mapping(source).apply(&mut batch, 0), Ok(MappingOutcome::Kept));
    let meta: Vec<(String, String)> = batch[0]
        .meta
        .iter()
        .map(|(k, v)| (k.to_owned(), v.into_owned()))
        .collect();
    let expected = [
        ("a", "text"),
        ("b", "5"),
        ("c d", "[1,\"x\"]"),
        ("f", "old"),
        ("h", "true"),
    ];
    assert_eq!(meta, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    assert_eq!(&*batch[0].bytes(), br#"{"seen":[null,"old"]}"#);
}

#[test]
fn all_metadata_is_replaced_or_removed_at_once() {
    let mut message = Message::raw("body");
    message.meta.set("a", "1");
    let mut batch = [message];
    mapping("meta = {\"x\": 1, \"y\": @a}\nmeta z = 3")
        .apply(&mut batch, 0)
        .unwrap();
    let keys: Vec<String> = batch[0].meta.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(keys, ["x=1", "y=1", "z=3"]);
    assert_eq!(
        &*batch[0].bytes(),
        b"body",
        "the payload stays without an assignment to root"
    );
    mapping("meta = deleted()").apply(&mut batch, 0).unwrap();
    assert_eq!(batch[0].meta.iter().count(), 0);
}

#[test]
fn after_a_failure_the_message_is_as_it_was() {
    let mut message = Message::raw(r#"{"a":1}"#);
    message.meta.set("k", "v");
    let mut batch = [message.clone()];
    let error = mapping("meta k = \"changed\"\nroot.b = 1\nroot.c = throw(\"stop\")")
        .apply(&mut batch, 0)
        .unwrap_err();
    assert_eq!((error.line, error.message.as_str()), (Some(3), "stop"));
    assert_eq!(batch[0].payload, message.payload);
    assert_eq!(batch[0].meta, message.meta);
    let mutation = Mapping::compile_mutation("root.a = 2\nroot.c = throw(\"stop\")").unwrap();
    let mut typed = [typed(Value::from(Object::from_iter([("a".into(), Value::I64(1))])))];
    mutation.apply(&mut typed, 0).unwrap_err();
    assert_eq!(&*typed[0].bytes(), br#"{"a":1}"#);
}

#[test]
fn a_mutation_changes_the_document_and_sees_its_changes() {
    for (source, document, expected) in [
        ("root.b = this.a + 1", r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
        ("root.a = 5\nroot.b = this.a", r#"{"a":1}"#, r#"{"a":5,"b":5}"#),
        (
            "root.a = deleted()\nroot.had = this.exists(\"a\")",
            r#"{"a":1}"#,
            r#"{"had":false}"#,
        ),
        (
            "root.b = json(\"a\")\nroot.a = 7\nroot.c = json(\"a\")",
            r#"{"a":1}"#,
            r#"{"a":7,"b":1,"c":1}"#,
        ),
        ("root = deleted()", "{}", "(deleted)"),
        ("root = \"new\"", "{}", "new"),
        ("root.x = 1", "not json", r#"{"x":1}"#),
        (
            "root.list.0.v = 9",
            r#"{"list":[{"v":1},{"v":2}]}"#,
            r#"{"list":[{"v":9},{"v":2}]}"#,
        ),
        ("root.copy = this", r#"{"a":1}"#, r#"{"a":1,"copy":{"a":1}}"#),
        (
            "meta x = 1",
            r#"{ "kept":  "as written" }"#,
            r#"{ "kept":  "as written" }"#,
        ),
    ] {
        assert_eq!(mutate(source, document), expected, "{source} on {document}");
    }
    let failed = mutate("root.b = this.a", "not json");
    assert!(failed.contains("unable to reference message as structured"), "{failed}");
}

#[test]
fn a_sample_is_seen_as_the_object_it_prints_as_and_stays_a_sample() {
    let sample = || {
        let payload = Payload::Sample {
            value: Value::F32(0.1),
            time_ms: 1_700_000_000_000,
        };
        Message::new(payload, Metadata::default())
    };
    for (source, expected) in [
        ("root = this.value", "0.1"),
        ("root = this.value * 10", "1"),
        ("root = this.timestamp_ms + 1", "1700000000001"),
        ("root = this.other", "null"),
        ("root = this.value.x", "null"),
        ("root = json(\"value\")", "0.1"),
        ("root = this", r#"{"value":0.1,"timestamp_ms":1700000000000}"#),
        ("root = this.keys()", r#"["timestamp_ms","value"]"#),
        (
            "root = content().string()",
            r#"{"value":0.1,"timestamp_ms":1700000000000}"#,
        ),
    ] {
        assert_eq!(outcome(&mapping(source), sample()), expected, "{source}");
    }
    let mut batch = [sample()];
    mapping("root = this\nroot.value = this.value + 1")
        .apply(&mut batch, 0)
        .unwrap();
    let payload = Payload::Sample {
        value: Value::F64(1.1),
        time_ms: 1_700_000_000_000,
    };
    assert_eq!(batch[0].payload, payload);
    mapping("root = this\nroot.unit = \"C\"").apply(&mut batch, 0).unwrap();
    assert!(matches!(batch[0].payload, Payload::Value(Value::Object(_))));
}

#[test]
fn typed_values_pass_unchanged_and_look_like_their_json() {
    let guid = Value::Guid(Guid {
        data1: 7,
        data2: 2,
        data3: 3,
        data4: [0; 8],
    });
    let document = Object::from_iter([
        ("guid".into(), guid.clone()),
        ("status".into(), Value::Status(5)),
        ("node".into(), Value::NodeId("ns=1;s=a".into())),
        ("bytes".into(), Value::Bytes(Arc::from(&b"hi"[..]))),
        ("time".into(), Value::Time(Ticks(0))),
        ("small".into(), Value::U8(200)),
    ]);
    let message = typed(document.into());
    for (source, expected) in [
        ("root = this.guid.Data1 + this.small", "207"),
        ("root = this.guid.type()", "object"),
        ("root = this.guid.keys().length()", "4"),
        ("root = this.status == 5", "true"),
        ("root = this.node.split(\";\")", r#"["ns=1","s=a"]"#),
        ("root = this.bytes.string()", "hi"),
        ("root = this.time", "1970-01-01T00:00:00Z"),
        ("root = this\nroot.guid.Data1 = 8\nroot = root.guid.Data1", "8"),
        (
            "root = this\nroot.guid.Data1 = deleted()\nroot = root.guid.length()",
            "3",
        ),
    ] {
        assert_eq!(outcome(&mapping(source), message.clone()), expected, "{source}");
    }
    let mut batch = [message];
    mapping("root.id = this.guid").apply(&mut batch, 0).unwrap();
    assert_eq!(
        batch[0].payload,
        Payload::Value(Object::from_iter([("id".into(), guid)]).into())
    );
}

#[test]
fn a_tag_becomes_a_document_named_after_it() {
    let source = "let name = meta(\"opcua_tag_name\").replace_all(\".\", \"_\")\n\
                  meta topic = \"%s/%s\".format(@site | \"nowhere\", $name)\n\
                  root = {\n  $name: this,\n  \"timestamp_ms\": (timestamp_unix_nano() / 1000000).floor(),\n}\n";
    let mut message = Message::raw("21.5");
    message.meta.set("opcua_tag_name", "boiler.temperature");
    let mut batch = [message];
    mapping(source).apply(&mut batch, 0).unwrap();
    assert_eq!(
        &*batch[0].bytes(),
        br#"{"boiler_temperature":21.5,"timestamp_ms":1935817689123}"#
    );
    assert_eq!(batch[0].meta.get("topic").unwrap(), "nowhere/boiler_temperature");
}

#[test]
fn conditions_and_values_can_be_asked_for_without_a_change() {
    let batch = [Message::raw(r#"{"n":5}"#)];
    assert_eq!(mapping("this.n > 3").check(&batch, 0), Ok(true));
    assert_eq!(mapping("root = this.n > 9").check(&batch, 0), Ok(false));
    let error = mapping("this.n").check(&batch, 0).unwrap_err();
    assert_eq!(error.to_string(), "the condition must yield true or false, got number");
    assert_eq!(
        mapping("root.a = this.n")
            .evaluate(&batch, 0)
            .unwrap()
            .map(|v| thalweg_record::json::to_string(&v)),
        Some(r#"{"a":5}"#.to_owned())
    );
    assert_eq!(mapping("meta a = 1").evaluate(&batch, 0), Ok(None));
}

#[test]
fn mappings_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let counting = mapping("root = counter()");
    shared(&counting);
    shared(&super::interpolation("${! this.a }"));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let counting = counting.clone();
            std::thread::spawn(move || (0..500).for_each(|_| drop(outcome(&counting, Message::raw("")))))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(outcome(&counting, Message::raw("")), "2001");
}

/// The number of keys of a message decides how many keys its metadata gets.
#[test]
fn metadata_from_a_large_object_is_a_step_for_each_key() {
    let mapping = mapping("meta = this");
    let make = |n: usize| {
        let member = |i: usize| (format!("k{:06}", n - i).into(), Value::from(i as i64));
        let object: Object = (0..n).map(member).collect();
        let message = Message::new(Payload::Value(object.into()), Metadata::default());
        vec![message]
    };
    let exponent = thalweg_record::growth::exponent(500, make, |mut batch| {
        mapping.apply(&mut batch, 0).unwrap();
        batch
    });
    assert!(exponent < thalweg_record::growth::LINEAR, "{exponent}");
}
