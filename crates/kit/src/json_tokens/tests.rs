use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[test]
fn a_text_is_json_as_the_standard_says() {
    for text in [
        "1",
        " -0.5e+10 ",
        "\"a\\\"\\u00e9\\n\"",
        "[]",
        "[ 1 , [ ] , {} ]",
        "{ \"a\" : 1 , \"b\":{\"c\":null}}",
        "\n{\"a\":true,\"a\":false}\t",
    ] {
        assert!(is_whole(text), "{text}");
        assert!(is_json(text), "{text}");
    }
    for text in [
        "",
        " ",
        "a",
        "'a'",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e",
        "1 2",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{a:1}",
        "{\"a\":1,}",
        "[1}",
        "{\"a\":1]",
        "[",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\u{1}\"",
        "tru",
        "nulls",
        "NaN",
        "[1] x",
        "{\"a\":1}}",
        "\u{feff}1",
        "\0",
    ] {
        assert!(!is_whole(text), "{text}");
        assert!(!is_json(text), "{text}");
    }
}

#[test]
fn nesting_takes_no_stack() {
    let deep = |levels: usize| format!("{}1{}", "[{\"a\":".repeat(levels), "}]".repeat(levels));
    for levels in [31, 32, 33, 64, 65, 500_000] {
        assert!(is_whole(&deep(levels)), "{levels}");
        let wrong = deep(levels).replace("1}]", "1]]");
        assert!(!is_whole(&wrong), "{levels}");
    }
    assert!(is_begun("[".repeat(500_000).as_bytes()));
    let mut limited = JsonTokenizer::new(b"[[[]]]", 2);
    let error = limited.skip().unwrap_err().to_string();
    assert_eq!(error, "byte 2: objects and lists are nested too deep");
}

#[test]
fn a_text_that_ends_within_a_value_is_begun() {
    for text in ["", "[", "[1", "[1,", "{\"a\"", "{\"a\":", "\"a", "\"a\\n"] {
        assert!(is_begun(text.as_bytes()), "{text}");
    }
    for text in ["1", "[]", "[}", "x", "{1", "[tru", "[1.", "\"\\"] {
        assert!(!is_begun(text.as_bytes()), "{text}");
    }
}

#[test]
fn kinds_are_told_by_the_first_letter() {
    for (text, kind) in [
        ("{}", JsonKind::Object),
        ("[]", JsonKind::Array),
        ("\"\"", JsonKind::String),
        ("-1", JsonKind::Number),
        ("7", JsonKind::Number),
        ("true", JsonKind::Boolean),
        ("false", JsonKind::Boolean),
        ("null", JsonKind::Null),
        ("", JsonKind::Null),
    ] {
        assert_eq!(JsonKind::of(text), kind, "{text}");
    }
}

/// Pieces that make valid and almost valid JSON.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"a\"", "\"\"", "\"", "\\", "\\n", "\\u00", "1", "-", "0", ".", "e", "E+",
        "true", "null", " ", "\t", "\n", "x", "ä", "\u{1}",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn texts_are_json_when_another_parser_takes_them(text in pieces()) {
        prop_assert_eq!(is_whole(&text), is_json(&text));
    }

    #[test]
    fn each_part_of_a_json_text_is_begun(text in pieces().prop_filter("JSON", |text| is_json(text)), cut in any::<prop::sample::Index>()) {
        let text = format!("[{text}]");
        let part = &text.as_bytes()[..cut.index(text.len())];
        // It is not within a number, a word or an escape.
        let is_between = part.last().is_none_or(|last| b"{}[],:\" \t\n".contains(last));
        prop_assert!(!is_between || is_begun(part), "{:?}", part);
    }
}
