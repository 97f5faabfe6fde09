//! Methods on strings, numbers, arrays and objects, and conversions.

use super::{check, check_constant, compile_error};

#[test]
fn strings() {
    check_constant(&[
        ("\"aBc\".uppercase()", "\"ABC\""),
        ("\"aBc\".lowercase()", "\"abc\""),
        ("\"  a b \\n\".trim()", "\"a b\""),
        ("\"xxaxbxx\".trim(\"x\")", "\"axb\""),
        ("\"[a]\".trim(cutset: \"[]\")", "\"a\""),
        ("\"foobar\".has_prefix(\"foo\")", "true"),
        ("\"foobar\".has_suffix(\"foo\")", "false"),
        ("\"foobar\".contains(\"oba\")", "true"),
        ("\"a,b,,c\".split(\",\")", "[\"a\",\"b\",\"\",\"c\"]"),
        ("\"aé\".split(\"\")", "[\"a\",\"é\"]"),
        ("\"abc\".split(\"x\")", "[\"abc\"]"),
        ("[\"a\",\"b\"].join(\"-\")", "\"a-b\""),
        ("[\"a\",\"b\"].join()", "\"ab\""),
        ("[].join(\",\")", "\"\""),
        (
            "[\"a\",1].join(\",\")",
            "error: element 1: expected string value, got number (1)",
        ),
        ("\"a.b.c\".replace_all(\".\", \"/\")", "\"a/b/c\""),
        ("\"aXbX\".replace_all(old:\"X\", new:\"\")", "\"ab\""),
        ("\"aXbX\".replace_all(new:\"-\", old:\"X\")", "\"a-b-\""),
        ("\"ab\".replace_all(\"\", \"-\")", "\"-a-b-\""),
        ("\"héllo\".length()", "6"),
        ("\"abc\".index(0)", "97"),
        ("\"abc\".index(-1)", "99"),
    ]);
    check(&[
        (
            "this.a.uppercase()",
            r#"{"a":5}"#,
            "error: expected string value, got number from field `this.a` (5)",
        ),
        (
            "this.a.uppercase()",
            "{}",
            "error: expected string value, got null from field `this.a`",
        ),
        (
            "this.a.trim().split(1 + 1)",
            r#"{"a":"x"}"#,
            "error: expected string value, got number from argument `delimiter` (2)",
        ),
        (
            "this.a.trim().floor()",
            r#"{"a":" a long text with more than forty characters in it "}"#,
            "error: expected number value, got string from method `trim` (\"a long text with more than forty charact\"...)",
        ),
        (
            "this.a.contains(this.b)",
            r#"{"a":"x","b":1}"#,
            "error: expected string value, got number from argument `value` (1)",
        ),
    ]);
}

#[test]
fn regular_expressions() {
    check_constant(&[
        ("\"foo123\".re_match(\"[0-9]+\")", "true"),
        ("\"foo\".re_match(\"^[0-9]+$\")", "false"),
        // Quoted text stands for itself.
        (r#""a.b".re_match("\\Qa.b\\E")"#, "true"),
        (r#""a_b".re_match("\\Qa.b\\E")"#, "false"),
        (r#""a.b(c".re_replace_all("\\Q.b(\\E", "-")"#, r#""a-c""#),
        (
            "\"John Smith\".re_replace_all(\"(\\\\w+) (\\\\w+)\", \"$2, $1\")",
            "\"Smith, John\"",
        ),
        ("\"a1b22\".re_replace(\"[0-9]+\", \"#\")", "\"a#b#\""),
        (
            "\"k=v\".re_replace_all(\"\"\"(?P<key>\\w)=\"\"\", \"${key}: \")",
            "\"k: v\"",
        ),
        ("\"abc\".re_replace_all(pattern: \"\", value: \"-\")", "\"-a-b-c-\""),
        ("\"abc\".re_replace_all(\"b\", \"$$\")", "\"a$c\""),
        ("\"abc\".re_replace_all(\"b\", \"$9\")", "\"ac\""),
    ]);
    check(&[
        ("\"abc\".re_match(this.p)", r#"{"p":"^a"}"#, "true"),
        ("\"a+c\".re_match(this.p)", r#"{"p":"^\\Qa+\\E"}"#, "true"),
        ("[\"a\",\"b\"].map_each(x -> \"b\".re_match(x))", "", "[false,true]"),
    ]);
    assert!(super::eval("\"x\".re_match(\"(\" + \"\")", "").starts_with("error: bad regular expression: "));
    let error = compile_error("root = this.a.re_match(\"(\")");
    assert_eq!((error.line, error.column), (1, 24));
    assert!(error.message.starts_with("bad regular expression"), "{}", error.message);
}

#[test]
fn format_prints_as_go_does() {
    check_constant(&[
        ("\"%s(%v): %v\".format(\"lance\", 37, 13)", "\"lance(37): 13\""),
        ("\"%d%%\".format(50)", "\"50%\""),
        (
            "\"%5d|%-5d|%05d|%+d|% d\".format(42, 42, -42, 42, 42)",
            "\"   42|42   |-0042|+42| 42\"",
        ),
        (
            "\"%.2f %8.3f %08.2f %f\".format(3.14159, 2.5, -1.5, 1)",
            "\"3.14    2.500 -0001.50 1.000000\"",
        ),
        (
            "\"%e %.1E %g %g %.3g\".format(1500000, 1500000, 1500000.0, 0.5, 1234.5)",
            "\"1.500000e+06 1.5E+06 1.5e+06 0.5 1.23e+03\"",
        ),
        ("\"%g %.10g\".format(100000.0, 100.25)", "\"100000 100.25\""),
        (
            "\"%x %X %#x %b %o %O %c %U\".format(255, 255, 255, 5, 8, 8, 65, 128512)",
            "\"ff FF 0xff 101 10 0o10 A U+1F600\"",
        ),
        ("\"%x %X\".format(\"hi\", \"hi\")", "\"6869 6869\""),
        ("\"%q %t\".format(\"a\\\"b\", true)", "\"\\\"a\\\\\\\"b\\\" true\""),
        (
            "\"%v %v %v %v\".format(null, true, [1, \"a\", 2.5], {\"b\": 1, \"a\": [2]})",
            "\"<nil> true [1 a 2.5] map[a:[2] b:1]\"",
        ),
        ("\"%v %v\".format(1.0, 1500000.0)", "\"1 1.5e+06\""),
        (
            "\"%10s|%-10s|%.2s\".format(\"abc\", \"abc\", \"abc\")",
            "\"       abc|abc       |ab\"",
        ),
        ("\"%*d|%-*d|%.*f\".format(5, 42, 5, 42, 1, 2.55)", "\"   42|42   |2.5\""),
        ("\"%[2]s %[1]s\".format(\"a\", \"b\")", "\"b a\""),
        ("\"%d\".format(5.0)", "\"5\""),
        ("\"no verbs\".format()", "\"no verbs\""),
        (
            "\"%d\".format(5.5)",
            "error: format: %d takes a whole number, not number; %v takes anything",
        ),
        ("\"%s\".format(7)", "\"7\""),
        (
            "\"%s %s %s %s\".format(1500000.0, 0.5, 12345678901234567890, -1)",
            "\"1500000 0.5 12345678901234567890 -1\"",
        ),
        (
            "\"%s %s %5s|%.2s\".format(true, null, 7, 1234)",
            "\"true null     7|12\"",
        ),
        (
            "\"%d\".format(\"x\")",
            "error: format: %d takes a whole number, not string; %v takes anything",
        ),
        ("\"%d %d\".format(1)", "error: format: argument 2 is missing, 1 given"),
        (
            "\"%d\".format(1, 2)",
            "error: format: 2 arguments are given, but the text uses 1",
        ),
        (
            "\"100%\".format()",
            "error: format: the text ends after %; a percent sign is written %%",
        ),
        (
            "\"%[0]d\".format(1)",
            "error: format: expected the number of an argument, from 1, as in %[1]v",
        ),
        (
            "\"%99999d\".format(1)",
            "error: format: a width or precision is above the limit of 10000",
        ),
        ("\"%.9999f\".format(1).length()", "10001"),
    ]);
}

#[test]
fn numbers() {
    check_constant(&[
        ("5.7.floor()", "5"),
        ("5.2.ceil()", "6"),
        ("5.5.round()", "6"),
        ("-5.5.round()", "-6"),
        ("5.4.round()", "5"),
        ("-5.7.abs()", "5.7"),
        ("-5.abs()", "5"),
        ("-9223372036854775808.abs()", "9223372036854775808"),
        ("1e300.floor() == 1e300", "true"),
        ("9007199254740993.floor()", "9007199254740993"),
        ("[3, 1, 2].max()", "3"),
        ("[3, 1.5, 2].min()", "1.5"),
        ("[1, 2, 3].sum()", "6"),
        ("[1, 2.5].sum()", "3.5"),
        ("[].sum()", "0"),
        ("[9007199254740993, 1].sum()", "9007199254740994"),
        ("[].max()", "error: the array is empty"),
        (
            "[1, \"x\"].min()",
            "error: element 1: expected number value, got string (\"x\")",
        ),
        (
            "5.sum()",
            "error: expected array value, got number from number literal (5)",
        ),
        (
            "\"5\".round()",
            "error: expected number value, got string from string literal (\"5\")",
        ),
    ]);
}

#[test]
fn conversions() {
    check_constant(&[
        ("5.string()", "\"5\""),
        ("0.5.string()", "\"0.5\""),
        ("true.string()", "\"true\""),
        ("null.string()", "\"null\""),
        ("\"a\".string()", "\"a\""),
        ("{\"a\": [1, \"b\"]}.string()", "\"{\\\"a\\\":[1,\\\"b\\\"]}\""),
        ("\"5\".number()", "5"),
        ("\"+5\".number()", "5"),
        ("\"007\".number()", "7"),
        ("\".5\".number()", "0.5"),
        ("\"1e3\".number() + 0", "1000"),
        ("\"9007199254740993\".number()", "9007199254740993"),
        (
            "\"123456789012345678901234567890\".number()",
            "123456789012345678901234567890",
        ),
        ("5.number()", "5"),
        (
            "\"x\".number()",
            "error: expected number value, got string from string literal (\"x\")",
        ),
        ("\"\".number(0)", "0"),
        ("\" 5\".number(\"no\")", "\"no\""),
        ("\"NaN\".number(default: -1)", "-1"),
        ("\"1e999\".number(\"no\")", "\"no\""),
        ("null.number(7)", "7"),
        (
            "true.number()",
            "error: expected number value, got bool from bool literal (true)",
        ),
        ("\"true\".bool()", "true"),
        ("\"F\".bool()", "false"),
        ("0.bool()", "false"),
        ("2.bool()", "true"),
        (
            "\"yes\".bool()",
            "error: expected bool value, got string from string literal (\"yes\")",
        ),
        ("\"yes\".bool(true)", "true"),
        ("null.type()", "\"null\""),
        ("true.type()", "\"bool\""),
        ("1.type()", "\"number\""),
        ("1.5.type()", "\"number\""),
        ("\"\".type()", "\"string\""),
        ("[].type()", "\"array\""),
        ("{}.type()", "\"object\""),
        ("\"YQ==\".decode(\"base64\").type()", "\"bytes\""),
        ("\"2020-01-02\".ts_parse(\"2006-01-02\").type()", "\"timestamp\""),
    ]);
}

#[test]
fn absence_and_errors_have_alternatives() {
    check(&[
        ("this.a.not_null()", r#"{"a":1}"#, "1"),
        ("this.a.not_null()", "{}", "error: value is null"),
        ("this.a.not_empty()", r#"{"a":""}"#, "error: string value is empty"),
        ("this.a.not_empty()", r#"{"a":[]}"#, "error: array value is empty"),
        ("this.a.not_empty()", r#"{"a":{}}"#, "error: object value is empty"),
        ("this.a.not_empty()", r#"{"a":"x"}"#, "\"x\""),
        (
            "this.a.not_empty()",
            r#"{"a":5}"#,
            "error: expected string, array or object value, got number from field `this.a` (5)",
        ),
        ("this.a.or(\"none\")", "{}", "\"none\""),
        ("this.a.or(\"none\")", r#"{"a":0}"#, "0"),
        ("this.a.uppercase().or(\"none\")", "{}", "\"none\""),
        ("deleted().or(1)", "", "1"),
        ("this.a.or(this.b)", r#"{"b":2}"#, "2"),
        ("this.a.number().catch(0)", r#"{"a":"x"}"#, "0"),
        ("this.a.catch(0)", "{}", "null"),
        (
            "this.a.number().catch(err -> {\"error\": err, \"input\": this.a})",
            r#"{"a":"x"}"#,
            r#"{"error":"expected number value, got string from field `this.a` (\"x\")","input":"x"}"#,
        ),
        (
            "this.a.number().catch(this)",
            r#"{"a":"x"}"#,
            r#""expected number value, got string from field `this.a` (\"x\")""#,
        ),
        ("this.a.number().abs().catch(1) + 1", r#"{"a":"x"}"#, "2"),
        (
            "throw(\"a\").catch(throw(\"b\")).catch(err -> err + \"!\")",
            "",
            "\"b!\"",
        ),
        ("(this.a.number() + 1).catch(-1)", r#"{"a":"x"}"#, "-1"),
    ]);
}

#[test]
fn arrays_and_objects() {
    check(&[
        ("this.keys()", r#"{"b":1,"a":2}"#, r#"["a","b"]"#),
        ("this.values()", r#"{"b":1,"a":2}"#, "[2,1]"),
        ("this.length()", r#"{"b":1,"a":2}"#, "2"),
        ("this.length()", "[1,2,3]", "3"),
        (
            "this.length()",
            "5",
            "error: expected string, bytes, array or object value, got number from field `this` (5)",
        ),
        ("this.index(1)", "[1,2,3]", "2"),
        ("this.index(-1)", "[1,2,3]", "3"),
        ("this.index(index: 1.0)", "[1,2,3]", "2"),
        (
            "this.index(3)",
            "[1,2,3]",
            "error: index '3' was out of bounds for size: 3",
        ),
        (
            "this.index(-4)",
            "[1,2,3]",
            "error: index '-4' was out of bounds for size: 3",
        ),
        (
            "this.index(0)",
            "{}",
            "error: expected array or bytes value, got object from field `this`",
        ),
        ("this.get(\"a.b\")", r#"{"a":{"b":1}}"#, "1"),
        ("this.get(\"a~1b\")", r#"{"a.b":1}"#, "1"),
        ("this.get(this.p)", r#"{"p":"q.0","q":[7]}"#, "7"),
        ("this.get(\"x.y\")", "{}", "null"),
        ("this.exists(\"a.b\")", r#"{"a":{"b":null}}"#, "true"),
        ("this.exists(\"a.c\")", r#"{"a":{"b":null}}"#, "false"),
        ("this.append(4, \"x\")", "[1]", "[1,4,\"x\"]"),
        ("this.append()", "[1]", "[1]"),
        ("this.append([2])", "[1]", "[1,[2]]"),
        ("this.contains(2)", "[1,2.0]", "true"),
        ("this.contains({\"a\":1})", r#"[{"a":1}]"#, "true"),
        ("this.contains(\"x\")", r#"{"a":"x"}"#, "true"),
        (
            "this.contains(1)",
            "null",
            "error: expected string, array or object value, got null from field `this`",
        ),
    ]);
}

#[test]
fn merge_keeps_both_sides_of_a_collision() {
    check(&[
        (
            "this.a.merge(this.b)",
            r#"{"a":{"x":1},"b":{"y":2}}"#,
            r#"{"x":1,"y":2}"#,
        ),
        ("this.a.merge(this.b)", r#"{"a":{"x":1},"b":{"x":2}}"#, r#"{"x":[1,2]}"#),
        (
            "this.a.merge(this.b)",
            r#"{"a":{"x":[1]},"b":{"x":[2,3]}}"#,
            r#"{"x":[1,2,3]}"#,
        ),
        (
            "this.a.merge(this.b)",
            r#"{"a":{"x":{"p":1}},"b":{"x":{"q":2}}}"#,
            r#"{"x":{"p":1,"q":2}}"#,
        ),
        (
            "this.a.merge(this.b)",
            r#"{"a":{"x":{"p":1}},"b":{"x":5}}"#,
            r#"{"x":[{"p":1},5]}"#,
        ),
        ("this.a.merge(this.b)", r#"{"a":[1],"b":[2]}"#, "[1,2]"),
        ("this.a.merge(this.b)", r#"{"a":[1],"b":2}"#, "[1,2]"),
        (
            "this.a.merge(this.b)",
            r#"{"a":{},"b":2}"#,
            "error: expected object value, got number from argument `with` (2)",
        ),
        (
            "this.a.merge(this.b)",
            r#"{"a":1,"b":{}}"#,
            "error: expected object or array value, got number from field `this.a` (1)",
        ),
    ]);
}

#[test]
fn json_base64_and_hex() {
    check_constant(&[
        ("\"{\\\"a\\\":[1,2]}\".parse_json().a.1", "2"),
        (
            "\"nope\".parse_json()",
            "error: failed to parse value as JSON: invalid JSON at byte 0: expected true, false or null",
        ),
        (
            "5.parse_json()",
            "error: expected string value, got number from number literal (5)",
        ),
        (
            "{\"a\":[1,{}],\"b\":[]}.format_json().string()",
            "\"{\\n    \\\"a\\\": [\\n        1,\\n        {}\\n    ],\\n    \\\"b\\\": []\\n}\"",
        ),
        ("[1].format_json(indent: \" \").string()", "\"[\\n 1\\n]\""),
        (
            "{\"a\":[1]}.format_json(no_indent: true).string()",
            "\"{\\\"a\\\":[1]}\"",
        ),
        ("\"hello\".encode(\"base64\")", "\"aGVsbG8=\""),
        ("\"a?>\".encode(\"base64url\")", "\"YT8-\""),
        ("\"a\".encode(\"base64url\")", "\"YQ==\""),
        ("\"a\".encode(\"base64rawurl\")", "\"YQ\""),
        ("\"hello\".encode(\"hex\")", "\"68656c6c6f\""),
        ("\"aGVsbG8=\".decode(\"base64\").string()", "\"hello\""),
        ("\"aGVs\\nbG8=\".decode(\"base64\").string()", "\"hello\""),
        ("\"68656C6c6f\".decode(\"hex\").string()", "\"hello\""),
        ("\"YQ\".decode(\"base64rawurl\").string()", "\"a\""),
        (
            "\"xyz\".decode(\"hex\")",
            "error: failed to decode hex: expected an even number of the digits 0-9 and a-f",
        ),
        (
            "\"x\".encode(\"rot13\")",
            "error: unrecognized encoding scheme `rot13`; there are: base64, base64url, base64rawurl, hex",
        ),
        (
            "5.encode(\"hex\")",
            "error: expected string or bytes value, got number from number literal (5)",
        ),
    ]);
    assert!(super::eval("\"!\".decode(\"base64\")", "").starts_with("error: failed to decode base64: "));
}
