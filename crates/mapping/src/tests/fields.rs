//! Fields, literals, `if`, `match`, `this` in its scopes, and named values.

use super::{check, check_constant};

#[test]
fn paths_read_objects_and_arrays_and_give_null_where_nothing_is() {
    let document = r#"{"a":{"b":[10,{"c":"x"}],"foo-bar":1,"0":"zero","a.b":"dot"},"n":null}"#;
    check(&[
        ("this.a.b.0", document, "10"),
        ("this.a.b.1.c", document, "\"x\""),
        ("this.a.b.2", document, "null"),
        ("this.a.b.x", document, "null"),
        ("this.a.\"foo-bar\"", document, "1"),
        ("this.a.\"a.b\"", document, "\"dot\""),
        ("this.a.0", document, "\"zero\""),
        ("this.missing.deep.er", document, "null"),
        ("this.n.x", document, "null"),
        ("this.a.b.1.c.d", document, "null"),
        ("json(\"a.b.1.c\")", document, "\"x\""),
        ("json(\"a.a~1b\")", document, "\"dot\""),
        ("json(\"no\")", document, "null"),
        ("json()", "[1]", "[1]"),
        ("json(\"a.\" + \"0\")", document, "\"zero\""),
        ("this", "5", "5"),
        ("this.a", "5", "null"),
    ]);
}

#[test]
fn text_that_is_no_json_is_an_error_only_for_who_asks_for_structure() {
    check(&[
        (
            "this.a",
            "hello",
            "error: unable to reference message as structured (with `this`): invalid JSON at byte 0: expected a value",
        ),
        (
            "this",
            "",
            "error: unable to reference message as structured (with `this`): the payload is empty",
        ),
        ("content().string()", "hello", "\"hello\""),
        ("this.catch(deleted())", "hello", "(nothing)"),
        ("json(\"a\").catch(1)", "hello", "1"),
    ]);
}

#[test]
fn literals() {
    check_constant(&[
        ("true", "true"),
        ("null", "null"),
        ("\"a\\n\\t\\\"\\\\\\u00e9\\x41\"", "\"a\\n\\t\\\"\\\\éA\""),
        ("\"\\ud83d\\ude00\\U0001F600\"", "\"😀😀\""),
        (
            "\"\"\"a \"quoted\"\n\\n text\"\"\"",
            "\"a \\\"quoted\\\"\\n\\\\n text\"",
        ),
        ("\"\"", "\"\""),
        ("\"\"\"\"\"\"", "\"\""),
        ("[]", "[]"),
        ("{}", "{}"),
        ("[1, \"a\", [true], {\"k\": null}]", "[1,\"a\",[true],{\"k\":null}]"),
        ("{\"a\" + \"b\": 1, (\"c\"): 2}", "{\"ab\":1,\"c\":2}"),
        ("{\"a\": 1, \"a\": 2}", "{\"a\":2}"),
        ("[1, deleted(), nothing(), 2]", "[1,2]"),
        ("{\"a\": deleted(), \"b\": nothing(), \"c\": 1}", "{\"c\":1}"),
        ("{this.k: 1}.catch(\"failed\")", "\"failed\""),
        ("[1,2].1", "2"),
        ("{\"a\":{\"b\":3}}.a.b", "3"),
        ("\"text\".length()", "4"),
        ("5.string()", "\"5\""),
        ("0.5.ceil()", "1"),
    ]);
    check(&[
        ("{this.id: this.v}", r#"{"id":"x","v":1}"#, r#"{"x":1}"#),
        (
            "{this.id: 1}",
            r#"{"id":5}"#,
            "error: expected string value, got number from field `this.id` (5)",
        ),
    ]);
}

#[test]
fn if_expressions_take_the_first_branch_that_applies() {
    let source = "if this.n > 10 { \"big\" } else if this.n > 5 { \"middle\" } else { \"small\" }";
    check(&[
        (source, r#"{"n":11}"#, "\"big\""),
        (source, r#"{"n":6}"#, "\"middle\""),
        (source, r#"{"n":1}"#, "\"small\""),
        ("if false { 1 }", "", "(nothing)"),
        (
            "if this.a { 1 }",
            r#"{"a":"yes"}"#,
            "error: expected bool value, got string from field `this.a` (\"yes\")",
        ),
        ("[if true { 1 }, if false { 2 }]", "", "[1]"),
        ("(if true { {\"a\": 1} } else { null }).a", "", "1"),
    ]);
}

#[test]
fn match_compares_literals_and_evaluates_conditions_on_its_subject() {
    let source = "match this.kind {\n  \"a\" => \"first\"\n  this.has_prefix(\"b\") => \"second \" + this\n  5 => \"five\"\n  _ => \"other\"\n}";
    check(&[
        (source, r#"{"kind":"a"}"#, "\"first\""),
        (source, r#"{"kind":"bcd"}"#, "\"second bcd\""),
        (source, r#"{"kind":"x"}"#, "\"other\""),
        (
            source,
            r#"{"kind":5}"#,
            "error: expected string value, got number from field `this` (5)",
        ),
        (
            "match { this.a == 1 => \"one\", this.a == 2 => \"two\" }",
            r#"{"a":2}"#,
            "\"two\"",
        ),
        ("match { this.a == 1 => \"one\" }", r#"{"a":2}"#, "(nothing)"),
        ("match this.on { true => 1, false => 0 }", r#"{"on":false}"#, "0"),
        (
            "match this.n {\n  1 => \"a\"\n  -1 => \"b\"\n  _ => \"c\"\n}",
            r#"{"n":-1}"#,
            "\"b\"",
        ),
        ("match this.n {\n  1 => 10\n    - 3\n  _ => 0\n}", r#"{"n":1}"#, "7"),
        (
            "match this.doc { this.type == \"x\" => this.body, _ => this }",
            r#"{"doc":{"type":"x","body":[1]}}"#,
            "[1]",
        ),
        ("match this.a { null => \"null\" }", "{}", "\"null\""),
        (
            "match this.a { [1, 2] => true, {\"k\": 1} => false }",
            r#"{"a":{"k":1}}"#,
            "false",
        ),
        (
            "this.a.(match this { \"x\" => 1, _ => match { this == \"y\" => 2 } })",
            r#"{"a":"y"}"#,
            "2",
        ),
        ("match \"_\" { \"_\" => 1 }", "", "1"),
    ]);
}

#[test]
fn bracketed_queries_and_named_values_bind_what_is_before_them() {
    let document = r#"{"a":{"b":1,"c":{"d":[1,2]}},"k":10}"#;
    check(&[
        ("this.a.(this.x | this.b)", document, "1"),
        ("this.a.(v -> v.b + this.k)", document, "11"),
        (
            "this.a.(v -> v.c.d.map_each(e -> e + v.b + this.k))",
            document,
            "[12,13]",
        ),
        ("this.a.c.(this.d.map_each(this * 2))", document, "[2,4]"),
        ("this.a.(x -> this.a.(x -> x.c).d.length() + x.b)", document, "3"),
        ("this.a.(_ -> this.k)", document, "10"),
        ("this.missing.(this.b | \"none\")", document, "\"none\""),
        ("this.a.c.(json(\"k\"))", document, "10"),
    ]);
}
