use super::*;
use proptest::prelude::*;

fn names(expression: &str) -> Vec<String> {
    let reach = reach(expression).unwrap_or_else(|| panic!("{expression} is an expression"));
    reach.names.into_iter().map(|free| free.name).collect()
}

#[test]
fn names_are_found_wherever_they_are_used() {
    for (expression, expected) in [
        ("left", vec!["left"]),
        ("left + right * left", vec!["left", "right"]),
        ("`${left} of ${`${right}`}`", vec!["left", "right"]),
        (
            "{l: left, right, [key]: 1, ...rest}",
            vec!["left", "right", "key", "rest"],
        ),
        ("[left, ...right][at]", vec!["left", "right", "at"]),
        ("left?.a?.[right] ?? other", vec!["left", "right", "other"]),
        ("left ? right : (other, last)", vec!["left", "right", "other", "last"]),
        ("typeof left", vec!["left"]),
        ("tag`a${left}`", vec!["tag", "left"]),
        ("new Date(left)", vec!["Date", "left"]),
        ("[1, 2].map(x => x * left)", vec!["left"]),
        ("((a, b = left) => a + b)(right)", vec!["left", "right"]),
        ("(({a: {b = left}}, [c]) => b + c)(right)", vec!["left", "right"]),
        (
            "(function () { var a = left; return a + arguments.length })()",
            vec!["left", "arguments"],
        ),
        (
            "(() => { let a = right; { const left = 1; a += left } return left })()",
            vec!["right", "left"],
        ),
        ("(class { m() { return left } })", vec!["left"]),
        ("left = right", vec!["left", "right"]),
    ] {
        assert_eq!(names(expression), expected, "{expression}");
    }
}

#[test]
fn names_that_mean_something_else_are_not() {
    for expression in [
        "'left' + \"right\" + /left/.source",
        "`left`",
        "({left: 1, 'right': 2}).left",
        "(left => left)(1)",
        "((left, {right}) => left + right)(1, {right: 2})",
        "(() => { for (const left of [1]) { return left } })()",
        "(() => { return left; var left = 1 })()",
        "(() => { try { throw 1 } catch (left) { return left } })()",
        "(function left() { return left })",
        "(() => { left: for (;;) { break left } })()",
        "1 /* left */ // right",
    ] {
        assert_eq!(names(expression), [""; 0], "{expression}");
    }
}

#[test]
fn a_name_has_the_place_where_it_comes_first() {
    let found = reach("1 +\n  'é' + left + Math.abs(left)").unwrap().names;
    let free = |name: &str, is_built_in, column| FreeVariable {
        name: name.to_owned(),
        is_built_in,
        line: 2,
        column,
    };
    assert_eq!(found, [free("left", false, 9), free("Math", true, 16)]);
}

#[test]
fn clock_and_chance_are_noticed() {
    for expression in ["1 + 1", "Math.max(1, 2)", "[3, 1].sort()[0]", "`${1}`", "({l: left})"] {
        assert!(reach(expression).unwrap().is_repeatable, "{expression}");
    }
    for expression in [
        "Date.now()",
        "new Date().toISOString()",
        "`${Date.now()}`",
        "{at: Date.now()}",
        "(() => Date)().now()",
        "Math.random()",
        "Math['random']()",
        "(({random}) => random())(Math)",
        "performance.now()",
        "[].constructor.constructor('return Math')()",
    ] {
        assert!(!reach(expression).unwrap().is_repeatable, "{expression}");
    }
}

#[test]
fn what_is_no_expression_has_no_names() {
    for text in [
        "",
        "left +",
        "a) + (b",
        "let a = 1",
        "return left",
        &"1+".repeat(40_000),
    ] {
        let is_closed = text == "a) + (b";
        assert_eq!(reach(text).is_some(), is_closed, "{text:.20}");
    }
}

/// Expressions, with the names that they use and do not declare.
fn expressions() -> impl Strategy<Value = (String, Vec<String>)> {
    let name = prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let leaf = prop_oneof![
        name.clone().prop_map(|name| (name.clone(), vec![name])),
        Just(("'a'".to_owned(), Vec::new())),
        Just(("({a: 1}).a".to_owned(), Vec::new())),
    ];
    leaf.prop_recursive(4, 24, 2, move |inner| {
        let both = |(a, mut used): (String, Vec<String>), (b, more): (String, Vec<String>), text: &str| {
            used.extend(more);
            (text.replace('A', &a).replace('B', &b), used)
        };
        let pair = (inner.clone(), inner.clone());
        let shape = prop::sample::select(vec![
            "(A + B)",
            "`${A}-${B}`",
            "({l: A, [B]: 1})",
            "[A, ...[B]]",
            "(A, B)",
        ]);
        prop_oneof![
            (pair, shape).prop_map(move |((a, b), shape)| both(a, b, shape)),
            // The parameter hides its name within the function, but not in the argument.
            (name.clone(), inner.clone(), inner).prop_map(|(name, (body, used), (argument, mut outer))| {
                outer.extend(used.into_iter().filter(|used| *used != name));
                (format!("(({name}) => {body})({argument})"), outer)
            }),
        ]
    })
}

proptest! {
    #[test]
    fn exactly_the_free_names_are_found((expression, mut expected) in expressions()) {
        expected.sort();
        expected.dedup();
        let mut found = names(&expression);
        found.sort();
        prop_assert_eq!(found, expected, "{}", expression);
    }

    #[test]
    fn any_text_is_looked_through_to_its_end(text in "[a-c(){}\\[\\]`$'/=>.,: \\n\\PC]{0,24}") {
        let _reach = reach(&text);
    }
}
