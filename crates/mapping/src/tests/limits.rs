//! Limits: hostile sources and documents cause an error, not a crash, a hang or memory exhaustion.

use thalweg_record::Message;

use super::{check_constant, compile_error, compiler, eval, mapping, outcome};

#[test]
fn nesting_of_a_source_is_bounded_in_every_form() {
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{\"a\":", "}"),
        ("!", ""),
        ("- ", ""),
        ("if true { ", " }"),
        ("match { _ => ", " }"),
        ("this.map_each(x -> ", ")"),
        ("this.(", ")"),
        ("json(", ")"),
    ] {
        let source = |levels: usize| format!("root = {}1{}", open.repeat(levels), close.repeat(levels));
        let error = compile_error(&source(100_000));
        assert_eq!(error.message, "nested deeper than the limit of 128 levels", "{open}");
        if open != "json(" {
            let deep = mapping(&source(60));
            outcome(&deep, Message::raw("[]"));
        }
    }
    let blocks = |levels: usize| format!("{}root = 1{}", "if true {\n".repeat(levels), "\n}".repeat(levels));
    assert_eq!(
        compile_error(&blocks(10_000)).message,
        "nested deeper than the limit of 128 levels"
    );
    assert_eq!(outcome(&mapping(&blocks(100)), Message::raw("")), "1");
}

#[test]
fn long_chains_are_not_deep() {
    let sum = format!("root = 1{}", " + 1".repeat(20_000));
    assert_eq!(outcome(&mapping(&sum), Message::raw("")), "20001");
    let and = format!("root = true{}", " && true".repeat(20_000));
    assert_eq!(outcome(&mapping(&and), Message::raw("")), "true");
    let methods = format!("root = 1{}", ".string().number()".repeat(5_000));
    assert_eq!(outcome(&mapping(&methods), Message::raw("")), "1");
    let path = format!("root = this{}", ".a".repeat(200));
    assert_eq!(
        compile_error(&path).message,
        "a path is longer than the limit of 128 fields"
    );
    let target = format!("root{} = 1", ".a".repeat(200));
    assert_eq!(
        compile_error(&target).message,
        "a path is longer than the limit of 128 fields"
    );
}

#[test]
fn values_that_nest_too_deeply_are_refused_where_they_are_built() {
    let lines = format!("let x = 1\n{}root = $x", "let x = [$x]\n".repeat(5_000));
    let error = outcome(&mapping(&lines), Message::raw(""));
    assert_eq!(
        error,
        "error: failed assignment (line 258): the value is nested deeper than the limit of 256"
    );
    let chain = format!("root = 1{}", ".(v -> [v])".repeat(5_000));
    let message = "the value is nested up to 512 levels deeper than its parts; split it with `let`";
    assert_eq!(compile_error(&chain).message, message);
    for nests in [
        ".enumerated()",
        ".key_values()",
        ".string().parse_csv()",
        ".append([])",
        ".assign({})",
    ] {
        let chain = format!("root = [1]{}", nests.repeat(5_000));
        assert_eq!(compile_error(&chain).message, message, "{nests}");
    }
    check_constant(&[
        (
            "range(0, 100000).fold({}, item -> {\"a\": item.tally})",
            "error: the value is nested deeper than the limit of 256",
        ),
        (
            "range(0, 100000).fold(1, item -> [item.tally, item.tally])",
            "error: the value would have more than the limit of 1000000 elements",
        ),
    ]);
    let roots = format!("root.a = 1\n{}", "root.a = root\n".repeat(1_000));
    let error = outcome(&mapping(&roots), Message::raw(""));
    assert!(
        error.ends_with("the value is nested deeper than the limit of 256"),
        "{error}"
    );
    let doubled = format!("root.a = 1\n{}", "root.a = root\nroot.b = root\n".repeat(100));
    let error = outcome(&mapping(&doubled), Message::raw(""));
    assert!(error.ends_with("elements"), "{error}");
}

#[test]
fn growth_of_texts_and_arrays_is_bounded() {
    check_constant(&[
        (
            "range(0, 100).fold(\"ab\", item -> item.tally + item.tally)",
            "error: element 25: the value would be larger than the limit of 64 MiB",
        ),
        (
            "range(0, 1000000).join(\"\")",
            "error: element 0: expected string value, got number (0)",
        ),
        (
            "range(0, 1000000).map_each(\"a\").join(range(0, 1000).map_each(\"b\").join())",
            "error: the value would be larger than the limit of 64 MiB",
        ),
        (
            "range(0, 1000000).map_each(\"a\").join().replace_all(\"a\", range(0, 1000).map_each(\"b\").join())",
            "error: the value would be larger than the limit of 64 MiB",
        ),
        (
            "range(0, 1000000).map_each(\"a\").join().re_replace_all(\"a\", range(0, 1000).map_each(\"b\").join())",
            "error: the value would be larger than the limit of 64 MiB",
        ),
        (
            "range(0, 600000).(a -> a.merge(a))",
            "error: the value would have more than the limit of 1000000 elements",
        ),
        (
            "range(0, 100000).map_each([1]).format_json(indent: range(0, 1000).map_each(\" \").join())",
            "error: the value would be larger than the limit of 64 MiB",
        ),
    ]);
    let large = eval("range(0, 300).map_each(range(0, 300000))", "");
    assert!(
        large.ends_with("the mapping builds more than the limit of 1600 MiB for one message"),
        "{large}"
    );
    let endless = "range(0, 1000000).map_each(range(0, 1000000).map_each(1).catch(0))";
    assert!(eval(endless, "").ends_with("for one message"));
}

#[test]
fn shared_parts_cannot_make_comparing_or_printing_endless() {
    let twice = ".(v -> [v, v])".repeat(60);
    let limit = "error: the value would have more than the limit of 1000000 elements";
    check_constant(&[
        (&format!("1{twice} == 1{twice}"), limit),
        (&format!("1{twice}.string()"), limit),
        (&format!("1{twice}.format_json()"), limit),
        (&format!("\"%v\".format(1{twice})"), limit),
        (&format!("[1].contains(1{twice})"), limit),
        (&format!("1{twice}"), limit),
    ]);
    let text = format!("${{! 1{twice} }}");
    let error = compiler()
        .interpolation(&text)
        .unwrap()
        .render(&[Message::raw("")], 0)
        .unwrap_err();
    assert_eq!(format!("error: {error}"), limit);
}

#[test]
fn documents_that_nest_too_deeply_are_no_json() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let error = eval("this", &deep);
    assert!(error.ends_with("nested too deeply"), "{error}");
    let quoted = format!("\"{}\"", "[".repeat(100_000));
    assert!(eval("this.parse_json()", &quoted).ends_with("nested too deeply"));
}
