//! Methods that take arrays, objects and strings apart and put them together.

use super::{check, check_constant};

#[test]
fn slices_of_arrays_strings_and_bytes() {
    check_constant(&[
        ("[0,1,2,3,4].slice(0, 2)", "[0,1]"),
        ("[0,1,2,3,4].slice(low: 2)", "[2,3,4]"),
        ("[0,1,2,3,4].slice(-2)", "[3,4]"),
        ("[0,1,2,3,4].slice(-4, -2)", "[1,2]"),
        ("[0,1,2,3,4].slice(1, -1)", "[1,2,3]"),
        ("[0,1,2,3,4].slice(7)", "[]"),
        ("[0,1,2,3,4].slice(3, 99)", "[3,4]"),
        ("[0,1].slice(-9, 1)", "[0]"),
        ("[0,1,2].slice(2, -2)", "[]"),
        ("\"foo bar\".slice(0, 3)", "\"foo\""),
        ("\"größer\".slice(2, 4)", "\"öß\""),
        ("\"größer\".slice(-3)", "\"ßer\""),
        ("\"größer\".bytes().slice(0, 2)", "\"Z3I=\""),
        (
            "[1].slice(2, 1)",
            "error: the lower bound 2 must be less than the upper bound 1",
        ),
        (
            "[1].slice(-1, -1)",
            "error: the lower bound -1 must be less than the upper bound -1",
        ),
        (
            "5.slice(1)",
            "error: expected string, bytes or array value, got number from number literal (5)",
        ),
    ]);
}

#[test]
fn arrays_are_flattened_numbered_and_cleaned_of_what_comes_twice() {
    check_constant(&[
        (
            "[\"foo\",[\"bar\",\"baz\"],[[1]],[],{}].flatten()",
            "[\"foo\",\"bar\",\"baz\",[1],{}]",
        ),
        (
            "[\"a\",null].enumerated()",
            "[{\"index\":0,\"value\":\"a\"},{\"index\":1,\"value\":null}]",
        ),
        ("[1,\"b\",1.0,\"b\",2,\"1\"].unique()", "[1,\"b\",2,\"1\"]"),
        ("[0.5,-0.0,0,0.5].unique()", "[0.5,-0]"),
        (
            "[{\"k\":\"x\",\"n\":1},{\"k\":\"y\"},{\"k\":\"x\",\"n\":2}].unique(this.k)",
            "[{\"k\":\"x\",\"n\":1},{\"k\":\"y\"}]",
        ),
        ("[\"Ab\",\"aB\"].unique(t -> t.lowercase())", "[\"Ab\"]"),
        (
            "[1,{}].unique()",
            "error: element 1: expected string or number value, got object",
        ),
    ]);
}

#[test]
fn arrays_are_tested_and_sorted_by_a_query() {
    check_constant(&[
        ("[1,5].any(n -> n > 3)", "true"),
        ("[1,2].any(n -> n > 3)", "false"),
        ("[].any(true)", "false"),
        ("[1,5].all(this > 3)", "false"),
        ("[4,5].all(this > 3)", "true"),
        ("[].all(true)", "false"),
        (
            "[\"x\"].all(this)",
            "error: element 0: expected bool value, got string from the test (\"x\")",
        ),
        (
            "{}.any(true)",
            "error: expected array value, got object from object literal",
        ),
        (
            "[{\"n\":3},{\"n\":1},{\"n\":2.5}].sort_by(e -> e.n)",
            "[{\"n\":1},{\"n\":2.5},{\"n\":3}]",
        ),
        (
            "[\"bb\",\"a\",\"cc\"].sort_by(t -> t.length())",
            "[\"a\",\"bb\",\"cc\"]",
        ),
        (
            "[{\"n\":1},{}].sort_by(this.n)",
            "error: sort: cannot compare types null and number; give a query that compares",
        ),
    ]);
}

#[test]
fn objects_lose_gain_and_show_their_members() {
    check_constant(&[
        (
            "{\"b\":1,\"a\":[2]}.key_values()",
            "[{\"key\":\"a\",\"value\":[2]},{\"key\":\"b\",\"value\":1}]",
        ),
        (
            "{\"a\":1,\"b\":{\"c\":2,\"d\":3}}.assign({\"b\":{\"c\":[4]},\"e\":5,\"a\":{}})",
            "{\"a\":{},\"b\":{\"c\":[4],\"d\":3},\"e\":5}",
        ),
        (
            "{\"a\":1}.assign(5)",
            "error: expected object value, got number from argument `with` (5)",
        ),
        (
            "{\"inner\":{\"a\":\"first\",\"b\":\"second\",\"d\":{\"e\":1}},\"d\":\"third\",\"ab\":4}\
             .without(\"inner.a\",\"inner.d.e\",\"d\",\"none.x\",\"ab.c\")",
            "{\"inner\":{\"b\":\"second\",\"d\":{}},\"ab\":4}",
        ),
        ("{\"a\":{\"b\":1},\"c\":2}.without(\"a.b\",\"a\")", "{\"c\":2}"),
        ("{\"a.b\":1,\"a\":{\"b\":2}}.without(\"a~1b\")", "{\"a\":{\"b\":2}}"),
        ("{\"a\":1}.without()", "{\"a\":1}"),
    ]);
    check(&[(
        "this.without(this.secret)",
        r#"{"secret":"key","key":1}"#,
        r#"{"secret":"key"}"#,
    )]);
}

#[test]
fn strings_are_capitalized_quoted_and_searched() {
    check_constant(&[
        (
            "\"the foo_bar it's 2nd ärger\".capitalize()",
            "\"The Foo_bar It'S 2nd Ärger\"",
        ),
        (
            r#""a\t\"b\"\\\u0000é\u00a0".quote()"#,
            r#""\"a\\t\\\"b\\\"\\\\\\x00é\\u00a0\"""#,
        ),
        ("\"paranormal\".re_find_all(\"a.\")", "[\"ar\",\"an\",\"al\"]"),
        ("\"x\".re_find_all(\"a\")", "[]"),
    ]);
}
