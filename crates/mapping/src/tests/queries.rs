//! Methods that run a query for each element or member.

use super::check;

#[test]
fn map_each_replaces_keeps_or_removes() {
    check(&[
        ("this.map_each(this + 1)", "[1,2]", "[2,3]"),
        ("this.map_each(x -> x * 10)", "[1,2]", "[10,20]"),
        (
            "this.map_each(n -> if n < 10 { deleted() } else { n - 10 })",
            "[5,11,12]",
            "[1,2]",
        ),
        ("this.map_each(n -> if n > 10 { \"big\" })", "[5,11]", "[5,\"big\"]"),
        (
            "this.map_each(item -> item.value + 1)",
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":3}"#,
        ),
        ("this.map_each(item -> item.key)", r#"{"a":1}"#, r#"{"a":"a"}"#),
        (
            "this.map_each(item -> if item.key == \"a\" { deleted() } else { nothing() })",
            r#"{"a":1,"b":2}"#,
            r#"{"b":2}"#,
        ),
        ("this.a.map_each(x -> x + this.k)", r#"{"a":[1,2],"k":10}"#, "[11,12]"),
        (
            "this.map_each(a -> a.map_each(b -> [a.length(), b]))",
            "[[1,2],[3]]",
            "[[[2,1],[2,2]],[[1,3]]]",
        ),
        (
            "this.map_each(x -> x.uppercase())",
            r#"["a",5]"#,
            "error: element 1: expected string value, got number from `x` (5)",
        ),
        (
            "this.map_each(x -> x.value.uppercase())",
            r#"{"k":5}"#,
            "error: member `k`: expected string value, got number from field `x.value` (5)",
        ),
        (
            "this.map_each(this)",
            "5",
            "error: expected array or object value, got number from field `this` (5)",
        ),
    ]);
}

#[test]
fn filter_keeps_what_passes() {
    check(&[
        ("this.filter(this > 1)", "[1,2,3]", "[2,3]"),
        (
            "this.filter(x -> x.on)",
            r#"[{"on":true,"n":1},{"n":2},{"on":false}]"#,
            r#"[{"on":true,"n":1}]"#,
        ),
        ("this.filter(item -> item.value > 1)", r#"{"a":1,"b":2}"#, r#"{"b":2}"#),
        (
            "this.filter(item -> item.key.has_prefix(\"a\"))",
            r#"{"ab":1,"b":2}"#,
            r#"{"ab":1}"#,
        ),
        (
            "this.filter(\"yes\")",
            "[1]",
            "error: element 0: expected bool value, got string from the test (\"yes\")",
        ),
        (
            "this.filter(true)",
            "\"x\"",
            "error: expected array or object value, got string from field `this` (\"x\")",
        ),
    ]);
}

#[test]
fn fold_carries_a_tally() {
    check(&[
        ("this.fold(0, item -> item.tally + item.value)", "[1,2,3]", "6"),
        (
            "this.fold(\"\", item -> \"%v%v\".format(item.tally, item.value))",
            "[1,2]",
            "\"12\"",
        ),
        (
            "this.fold({}, item -> item.tally.merge({item.value: true}))",
            r#"["a","b"]"#,
            r#"{"a":true,"b":true}"#,
        ),
        ("this.fold(7, this.tally)", "[]", "7"),
        (
            "this.fold(0, this.tally + this.value)",
            "[1,\"x\"]",
            "error: element 1: cannot add types number (from field `this.tally`) and string (from field `this.value`)",
        ),
    ]);
}

#[test]
fn sort_orders_numbers_or_strings_or_by_a_query() {
    check(&[
        ("this.sort()", "[3,1.5,2,-1]", "[-1,1.5,2,3]"),
        ("this.sort()", r#"["b","a","C"]"#, r#"["C","a","b"]"#),
        ("this.sort()", "[]", "[]"),
        (
            "this.sort(item -> item.left.v > item.right.v)",
            r#"[{"v":1},{"v":3},{"v":2}]"#,
            r#"[{"v":3},{"v":2},{"v":1}]"#,
        ),
        (
            "this.sort(compare: this.left.v < this.right.v)",
            r#"[{"v":2,"n":1},{"v":1,"n":2},{"v":2,"n":3}]"#,
            r#"[{"v":1,"n":2},{"v":2,"n":1},{"v":2,"n":3}]"#,
        ),
        (
            "this.sort(true).length()",
            "[5,4,3,2,1,9,8,7,6,5,4,3,2,1,5,5,5,5,5,5,5,5,5]",
            "23",
        ),
        (
            "this.sort()",
            r#"[1,"a"]"#,
            "error: sort: cannot compare types string and number; give a query that compares",
        ),
        (
            "this.sort()",
            "5",
            "error: expected array value, got number from field `this` (5)",
        ),
    ]);
}
