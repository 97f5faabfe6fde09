//! Operators: precedence, integers and floats, comparison, equality, coalescing.

use super::{check, check_constant};

#[test]
fn integers_stay_exact_and_division_gives_floats() {
    check_constant(&[
        ("1 + 2", "3"),
        ("7 - 10", "-3"),
        ("6 * 7", "42"),
        ("7 / 2", "3.5"),
        ("4 / 2", "2"),
        ("7 % 3", "1"),
        ("-7 % 3", "-1"),
        ("7.9 % 3", "1"),
        ("1 + 0.5", "1.5"),
        ("2 * 0.5", "1"),
        ("9007199254740993 + 0", "9007199254740993"),
        ("9007199254740992 + 1", "9007199254740993"),
        ("9223372036854775807 + 1", "9223372036854775808"),
        ("18446744073709551615 + 1", "18446744073709551616"),
        ("18446744073709551616 - 1", "18446744073709551615"),
        ("-9223372036854775808 - 1", "-9223372036854775809"),
        ("4294967296 * 4294967296", "18446744073709551616"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("1e3", "1000"),
        ("1.5e-3", "0.0015"),
        ("1.50", "1.5"),
        ("-5", "-5"),
        ("- 5", "-5"),
        ("-5.abs()", "5"),
        ("-(5).abs()", "-5"),
        ("3 - -2", "5"),
        ("3-2", "1"),
        ("3 -2", "1"),
        (
            "1e308 * 10",
            "error: cannot multiply 1e308 and 1e1: the result is out of range",
        ),
        (
            "100000000000000000000000000000000000000 * 10",
            "error: cannot multiply 100000000000000000000000000000000000000 and 10: more than 38 digits",
        ),
        ("1 / 0", "error: attempted to divide by zero"),
        ("1 % 0", "error: attempted to divide by zero"),
        ("1.5 / 0.0", "error: attempted to divide by zero"),
    ]);
}

#[test]
fn numbers_of_documents_count_as_they_are_written() {
    check(&[
        ("this.a + 1", r#"{"a":9007199254740993}"#, "9007199254740994"),
        ("this.a", r#"{"a":1.50}"#, "1.50"),
        ("this.a + 0", r#"{"a":1.50}"#, "1.5"),
        ("this.a == 1.5", r#"{"a":1.50}"#, "true"),
        ("this.a == 1", r#"{"a":1.0}"#, "true"),
        (
            "this.a + 1",
            r#"{"a":123456789012345678901234567890}"#,
            "123456789012345678901234567891",
        ),
        (
            "this.a > this.b",
            r#"{"a":9007199254740993,"b":9007199254740992}"#,
            "true",
        ),
    ]);
}

#[test]
fn operators_bind_as_documented() {
    check_constant(&[
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("10 - 2 - 3", "5"),
        ("100 / 10 / 2", "5"),
        ("2 * 3 % 4", "2"),
        ("1 + 1 == 2", "true"),
        ("1 < 2 && 2 < 3", "true"),
        ("true || false && false", "true"),
        ("(true || false) && false", "false"),
        ("!false && true", "true"),
        ("!(false && true)", "true"),
        ("!!true", "true"),
        ("1 == 1 == true", "true"),
        ("null | 1 + 2", "3"),
        ("2 * null | 5", "5"),
        ("\"a\" + \"b\" + \"c\"", "\"abc\""),
        ("-2 * 3", "-6"),
        ("- 2 + 3", "1"),
    ]);
}

#[test]
fn an_expression_goes_on_while_operators_or_dots_follow() {
    check(&[
        ("1 +\n  2", "", "3"),
        ("1\n  + 2", "", "3"),
        (
            "this.a # the value\n  .uppercase() # in capitals\n  + \"!\"",
            r#"{"a":"x"}"#,
            "\"X!\"",
        ),
        ("this.a\n  | \"none\"", "{}", "\"none\""),
        ("[\n 1,\n 2, # two\n]", "", "[1,2]"),
        ("{\n \"a\": 1,\n}", "", r#"{"a":1}"#),
    ]);
}

#[test]
fn comparison_needs_values_of_one_type() {
    check(&[
        ("1 < 1.5", "", "true"),
        ("2 >= 2.0", "", "true"),
        ("\"a\" < \"b\"", "", "true"),
        ("\"b\" <= \"a\"", "", "false"),
        (
            "this.foo > 5",
            "{}",
            "error: cannot compare types null (from field `this.foo`) and number (from number literal)",
        ),
        (
            "this.foo > 5",
            r#"{"foo":"6"}"#,
            "error: cannot compare types string (from field `this.foo`) and number (from number literal)",
        ),
        (
            "true < false",
            "",
            "error: cannot compare types bool (from bool literal) and bool (from bool literal)",
        ),
        (
            "[1] < [2]",
            "",
            "error: cannot compare types array (from array literal) and array (from array literal)",
        ),
    ]);
}

#[test]
fn equality_is_deep_and_never_fails() {
    check(&[
        ("1 == 1.0", "", "true"),
        ("1 == \"1\"", "", "false"),
        ("1 != \"1\"", "", "true"),
        ("null == null", "", "true"),
        ("this.a == null", "{}", "true"),
        ("this.a != null", r#"{"a":0}"#, "true"),
        ("[1, {\"a\": 2}] == [1.0, {\"a\": 2}]", "", "true"),
        ("this.a == this.b", r#"{"a":{"x":1,"y":2},"b":{"y":2,"x":1}}"#, "true"),
        ("this.a == this.b", r#"{"a":{"x":1},"b":{"x":1,"y":null}}"#, "false"),
        ("content() == \"abc\"", "abc", "true"),
        ("true == 1", "", "false"),
    ]);
}

#[test]
fn adding_and_logic_name_the_types_that_do_not_fit() {
    check(&[
        (
            "this.a + 1",
            r#"{"a":"x"}"#,
            "error: cannot add types string (from field `this.a`) and number (from number literal)",
        ),
        (
            "this.a - this.b",
            r#"{"a":1}"#,
            "error: cannot subtract types number (from field `this.a`) and null (from field `this.b`)",
        ),
        (
            "1 + 2 + true",
            "",
            "error: cannot add types number (from expression) and bool (from bool literal)",
        ),
        (
            "@k * 2",
            "",
            "error: cannot multiply types null (from metadata `k`) and number (from number literal)",
        ),
        (
            "!this.a",
            r#"{"a":5}"#,
            "error: expected bool value, got number from field `this.a` (5)",
        ),
        (
            "-this.a",
            r#"{"a":"x"}"#,
            "error: expected number value, got string from field `this.a` (\"x\")",
        ),
        (
            "true && this.a",
            r#"{"a":null}"#,
            "error: expected bool value, got null from field `this.a`",
        ),
        ("false && this.a", r#"{"a":null}"#, "false"),
        ("true || throw(\"never\")", "", "true"),
        (
            "deleted() + 1",
            "",
            "error: cannot add types delete (from function `deleted`) and number (from number literal)",
        ),
    ]);
}

#[test]
fn coalescing_skips_null_errors_and_absence() {
    check(&[
        ("this.a | this.b | \"none\"", r#"{"b":2}"#, "2"),
        ("this.a | this.b | \"none\"", "{}", "\"none\""),
        ("this.a | \"none\"", r#"{"a":false}"#, "false"),
        ("this.a.uppercase() | \"none\"", "{}", "\"none\""),
        ("this.a / 0 | \"none\"", r#"{"a":1}"#, "\"none\""),
        ("this | \"not json\"", "not json", "\"not json\""),
        ("deleted() | 1", "", "1"),
        ("(if false { 1 }) | 2", "", "2"),
        ("throw(\"a\") | throw(\"b\")", "", "error: b"),
    ]);
}
