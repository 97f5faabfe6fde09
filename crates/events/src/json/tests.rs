use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn compacted(text: &str) -> String {
    let mut out = String::new();
    compact(text.as_bytes(), &mut out).unwrap();
    out
}

fn refused(text: &[u8]) -> String {
    compact(text, &mut String::new()).unwrap_err().to_string()
}

#[test]
fn white_space_goes_and_everything_else_stays() {
    for (text, expected) in [
        (
            " { \"b\" : 1.50e+3 , \"a\" : [ ] , \"b\" : { } } \n",
            r#"{"b":1.50e+3,"a":[],"b":{}}"#,
        ),
        ("\t[ 1 , -0 , \" a b \" , true , null ]", r#"[1,-0," a b ",true,null]"#),
        (r#""\ud800 \u00e9 \/""#, r#""\ud800 \u00e9 \/""#),
        ("12345678901234567890123.000", "12345678901234567890123.000"),
        ("false", "false"),
    ] {
        assert_eq!(compacted(text), expected);
    }
}

#[test]
fn what_is_no_json_is_told_with_its_place() {
    for (text, error) in [
        ("", "unexpected end at byte 0"),
        ("[1,]", "unexpected ']' at byte 3"),
        ("{\"a\":1,}", "unexpected '}' at byte 7"),
        ("{1:2}", "unexpected '1' at byte 1"),
        ("[1 2]", "unexpected '2' at byte 3"),
        ("01", "unexpected text after the value at byte 1"),
        ("[1] x", "unexpected text after the value at byte 4"),
        ("1.", "unexpected end at byte 2"),
        ("-", "unexpected end at byte 1"),
        ("+1", "unexpected '+' at byte 0"),
        ("nul", "unexpected end at byte 3"),
        ("\"a\nb\"", "unexpected byte 0x0a at byte 2"),
        ("\"\\x\"", "unexpected 'x' at byte 2"),
        ("\"\\u12g4\"", "unexpected 'g' at byte 5"),
        ("\"abc", "unexpected end at byte 4"),
        ("{\"a\"}", "unexpected '}' at byte 4"),
        ("[}", "unexpected '}' at byte 1"),
        ("NaN", "unexpected 'N' at byte 0"),
    ] {
        assert_eq!(refused(text.as_bytes()), error, "{text}");
    }
    assert_eq!(refused(b"\"a\xffb\""), "invalid UTF-8 at byte 2");
}

#[test]
fn nesting_ends_at_its_limit_and_not_before() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let most = nested(NESTING_MAX);
    assert_eq!(compacted(&most), most);
    assert_eq!(
        refused(nested(NESTING_MAX + 1).as_bytes()),
        "more than 10000 levels at byte 10000"
    );
    assert!(refused("[".repeat(1 << 20).as_bytes()).starts_with("more than 10000 levels"));
}

#[test]
fn numbers_are_integers_truncated_and_clamped() {
    for (text, expected) in [
        ("0", 0),
        ("-0", 0),
        ("5.9", 5),
        ("-5.9", -5),
        ("1e3", 1000),
        ("1.2345e2", 123),
        ("12345e-2", 123),
        ("0.001e3", 1),
        ("1e-400", 0),
        ("0e999999999999999999999", 0),
        ("1e999999999999999999999", i64::MAX),
        ("1e-999999999999999999999", 0),
        ("9007199254740993", 9_007_199_254_740_993),
        ("9223372036854775807", i64::MAX),
        ("9223372036854775808", i64::MAX),
        ("-9223372036854775808", i64::MIN),
        ("-1e30", i64::MIN),
    ] {
        assert_eq!(Json::new(text).integer(), Some(expected), "{text}");
    }
    assert_eq!(Json::new("\"1\"").integer(), None);
}

#[test]
fn strings_mean_what_their_escapes_say() {
    for (text, expected) in [
        (r#""a\"\\\/\b\f\n\r\tz""#, "a\"\\/\u{8}\u{c}\n\r\tz"),
        (r#""\u00e9\ud83d\ude00!""#, "é😀!"),
        (r#""\ud800""#, "\u{fffd}"),
        (r#""\ud800\u0041""#, "\u{fffd}A"),
        (r#""\udc00x""#, "\u{fffd}x"),
        (r#""""#, ""),
    ] {
        assert_eq!(Json::new(text).string().as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn members_are_found_by_what_their_names_mean_and_the_last_counts() {
    let text = r#"{"a":1,"\u0062":[{"x":"}]"},2],"a":{"c":null}}"#;
    let json = Json::new(text);
    assert_eq!(json.get("a").map(Json::text), Some(r#"{"c":null}"#));
    assert_eq!(json.get("b").map(Json::text), Some(r#"[{"x":"}]"},2]"#));
    assert_eq!(json.get("d"), None);
    let elements: Vec<&str> = json.get("b").unwrap().array().unwrap().map(Json::text).collect();
    assert_eq!(elements, [r#"{"x":"}]"}"#, "2"]);
    assert_eq!(Json::new("{}").object().unwrap().count(), 0);
    assert_eq!(Json::new("[]").array().unwrap().count(), 0);
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            proptest::collection::vec((".{0,6}", inner), 0..6).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// Rebuilds a value from its parts.
fn rebuilt(json: Json<'_>) -> Value {
    match json.kind() {
        JsonKind::Object => {
            let members = json.object().unwrap();
            members
                .map(|(name, value)| (unescape(name).into_owned(), rebuilt(value)))
                .collect()
        }
        JsonKind::Array => Value::Array(json.array().unwrap().map(rebuilt).collect()),
        JsonKind::String => json.string().unwrap().into_owned().into(),
        _ => serde_json::from_str(json.text()).unwrap(),
    }
}

proptest! {
    #[test]
    fn any_json_means_the_same_without_white_space_and_in_parts(value in json()) {
        let spaced = serde_json::to_string_pretty(&value).unwrap();
        let out = compacted(&spaced);
        prop_assert_eq!(&out, &value.to_string());
        prop_assert_eq!(rebuilt(Json::new(&out)), value);
    }

    /// The other parser refuses unpaired surrogates, which these texts do not contain.
    #[test]
    fn any_text_is_json_exactly_if_another_parser_says_so(text in r#"[\[\]{}:, "a01.eE+\-tfn\\u]{0,12}"#) {
        let mut out = String::new();
        let ours = compact(text.as_bytes(), &mut out);
        let theirs: Result<&serde_json::value::RawValue, _> = serde_json::from_str(&text);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?}", ours, theirs);
    }

    #[test]
    fn nothing_breaks_whoever_looks_into_a_text(text in r#"[\[\]{}:,"a0\\u]{0,12}"#) {
        let json = Json::new(&text);
        let _ = (json.get("a"), json.string(), json.integer(), json.array().map(Iterator::count));
    }
}
