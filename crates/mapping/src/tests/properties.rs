//! Properties of arbitrary source texts and documents.

use proptest::prelude::*;
use thalweg_record::{Message, json};

use super::{compiler, eval, outcome};

/// Fragments of the language and of nonsense, so that arbitrary sequences often get far into the parser.
const PIECES: &[&str] = &[
    "root",
    "this",
    "meta",
    "let",
    "if",
    "else",
    "match",
    "x",
    "_",
    ".",
    ".a",
    ".0",
    ".\"q\"",
    ".map_each(",
    ".catch(",
    ".or(",
    ".format(",
    ".split(",
    ".index(",
    ".sort(",
    ".fold(",
    ".filter(",
    ".ts_parse(",
    ".re_replace_all(",
    ".replace_all(old:",
    "json(",
    "meta(",
    "range(",
    "counter(",
    "deleted()",
    "nothing()",
    "now()",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "==",
    "=>",
    "->",
    "+",
    "-",
    "*",
    "/",
    "%",
    "|",
    "&&",
    "||",
    "!",
    "<",
    ">=",
    "1",
    "0.5",
    "9e9",
    "99999999999999999999",
    "\"a\"",
    "\"%d\"",
    "\"\"\"r\"\"\"",
    "\"",
    "\\",
    "true",
    "null",
    "$x",
    "$",
    "@",
    "@k",
    "#c\n",
    "\n",
    " ",
    "é",
    "${!",
    "}}",
];

fn soup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(PIECES).prop_map(str::to_owned);
    let noise = prop_oneof![8 => piece, 1 => "\\PC{0,3}"];
    prop::collection::vec((noise, prop::bool::weighted(0.5)), 0..40).prop_map(|pieces| {
        pieces
            .into_iter()
            .map(|(piece, space)| if space { piece + " " } else { piece })
            .collect()
    })
}

/// Integer arithmetic and its value; `None` for a division by zero.
#[derive(Clone, Debug)]
enum Sum {
    Number(i32),
    Op(Box<Sum>, char, Box<Sum>),
    Negative(Box<Sum>),
}

fn sum() -> impl Strategy<Value = Sum> {
    let leaf = (-1000i32..1000).prop_map(Sum::Number);
    leaf.prop_recursive(6, 64, 2, |inner| {
        prop_oneof![
            (
                inner.clone(),
                prop::sample::select(vec!['+', '-', '*', '%']),
                inner.clone()
            )
                .prop_map(|(left, op, right)| Sum::Op(Box::new(left), op, Box::new(right))),
            inner.prop_map(|inner| Sum::Negative(Box::new(inner))),
        ]
    })
}

fn level(op: char) -> u8 {
    if matches!(op, '*' | '%') { 2 } else { 1 }
}

impl Sum {
    fn value(&self) -> Option<i128> {
        Some(match self {
            Sum::Number(n) => i128::from(*n),
            Sum::Negative(inner) => inner.value()?.checked_neg()?,
            Sum::Op(left, op, right) => {
                let (left, right) = (left.value()?, right.value()?);
                match op {
                    '+' => left.checked_add(right)?,
                    '-' => left.checked_sub(right)?,
                    '*' => left.checked_mul(right)?,
                    _ => left.checked_rem(right)?,
                }
            }
        })
    }

    /// Prints with only the parentheses that precedence requires.
    fn print(&self) -> String {
        let wrap = |sum: &Sum, least: u8| match sum {
            Sum::Op(_, op, _) if level(*op) < least => format!("({})", sum.print()),
            _ => sum.print(),
        };
        match self {
            Sum::Number(n) => n.to_string(),
            Sum::Negative(inner) => format!("-({})", inner.print()),
            Sum::Op(left, op, right) => {
                format!("{} {op} {}", wrap(left, level(*op)), wrap(right, level(*op) + 1))
            }
        }
    }
}

fn document() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f32>()
            .prop_filter("finite", |n| n.is_finite())
            .prop_map(|n| n.to_string()),
        "[a-z\\u{e9}]{0,5}".prop_map(|text| format!("{text:?}")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|values| format!("[{}]", values.join(","))),
            prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|members| {
                let members: Vec<String> = members
                    .into_iter()
                    .map(|(name, value)| format!("{name:?}:{value}"))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any text compiles or has an error with a position inside it, and compiled mappings run without a panic.
    #[test]
    fn no_text_makes_the_compiler_or_a_run_panic(source in soup()) {
        let compiler = compiler();
        for compiled in [compiler.mapping(&source), compiler.mutation(&source), compiler.mapping(&format!("root = {source}"))] {
            match compiled {
                Ok(mapping) => drop(outcome(&mapping, Message::raw(r#"{"a":[1,"x",{"b":null}]}"#))),
                Err(error) => {
                    for mistake in error.all() {
                        // One of the sources has the prefix `root = `, which only shifts the column.
                        let line = source.split('\n').nth(mistake.line - 1);
                        let length = line.map(|line| line.chars().count() + "root = ".len());
                        prop_assert!(length.is_some_and(|length| mistake.column <= length + 1), "{}", mistake);
                    }
                }
            }
        }
        if let Ok(text) = compiler.interpolation(&source) {
            drop(text.render(&[Message::raw("[1]")], 0));
        }
    }

    #[test]
    fn arithmetic_agrees_with_integers_of_128_bits(sum in sum()) {
        let text = sum.print();
        match sum.value() {
            Some(value) => prop_assert_eq!(eval(&text, ""), value.to_string(), "{}", text),
            None => prop_assert!(eval(&text, "").starts_with("error: "), "{}", text),
        }
    }

    /// A document is unchanged when it is copied as a whole or member by member.
    #[test]
    fn documents_pass_unchanged(document in document()) {
        let parsed = json::parse(document.as_bytes()).unwrap();
        let expected = json::to_string(&parsed);
        prop_assert_eq!(eval("this", &document), expected.clone());
        prop_assert_eq!(eval("this.string().parse_json()", &document).len(), eval("this.string().parse_json()", &expected).len());
        prop_assert_eq!(eval("[this].map_each(x -> x).index(-1)", &document), expected);
        prop_assert_eq!(eval("this == this.format_json().parse_json() || this.type() == \"string\"", &document), "true");
    }

    /// Sorting agrees with the standard library.
    #[test]
    fn sort_orders_integers(numbers in prop::collection::vec(any::<i64>(), 0..40)) {
        let document = format!("{numbers:?}");
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        prop_assert_eq!(eval("this.sort()", &document), format!("{sorted:?}").replace(' ', ""));
        sorted.reverse();
        prop_assert_eq!(eval("this.sort(p -> p.left > p.right)", &document), format!("{sorted:?}").replace(' ', ""));
    }

    /// Times survive a round trip through text in every layout with all parts.
    #[test]
    fn times_read_back_as_printed(seconds in -60_000_000_000i64..200_000_000_000, millis in 0u16..1000, layout in prop::sample::select(vec![
        "2006-01-02T15:04:05.999Z07:00", "Mon Jan _2 15:04:05.000 2006 -0700", "January 2, 2006 03:04:05.000 PM MST",
        "2006 002 15:04:05.000", "2006/1/2 3:4:5.000pm -07:00:00",
    ])) {
        let expression = format!("this.ts_format(\"{layout}\").ts_parse(\"{layout}\").ts_unix_milli()");
        let expected = if seconds < 0 { seconds * 1000 - i64::from(millis) } else { seconds * 1000 + i64::from(millis) };
        prop_assert_eq!(eval(&expression, &format!("{seconds}.{millis:03}")), expected.to_string());
    }

    #[test]
    fn base64_and_hex_read_back(text in "\\PC{0,20}", scheme in prop::sample::select(vec!["base64", "base64url", "base64rawurl", "hex"])) {
        let document = json::to_string(&thalweg_record::Value::text(text.as_str()));
        let expression = format!("this.encode(\"{scheme}\").decode(\"{scheme}\").string()");
        prop_assert_eq!(eval(&expression, &document), document);
    }
}
