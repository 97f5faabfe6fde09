//! Texts with `${! expression }` in them.

use thalweg_record::Message;

use super::{compiler, interpolation};
use crate::{Interpolation, RenderedValue};

fn render(text: &str, document: &str) -> String {
    let mut message = Message::raw(document.to_owned());
    message.meta.set("topic", "umh.v1.plant");
    message.meta.set("long", "a value of more than twenty-three bytes");
    match interpolation(text).render(&[message], 0) {
        Ok(text) => text.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn expressions_are_put_into_the_text() {
    let document = r#"{"a":{"b":"x"},"n":1.50,"o":{"k":[1,null]}}"#;
    for (text, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("${! meta(\"topic\") }", "umh.v1.plant"),
        ("${!@topic}", "umh.v1.plant"),
        ("${! @long }", "a value of more than twenty-three bytes"),
        ("x/${! @topic }/y", "x/umh.v1.plant/y"),
        ("${! json(\"a.b\") }", "x"),
        ("${!json(\"a.b\")}-${!json(\"n\")}", "x-1.50"),
        ("${! this.a.b.uppercase() }", "X"),
        ("${! this.o }", r#"{"k":[1,null]}"#),
        ("${! {\"a\": \"}\"}.a }", "}"),
        ("${! \"${! no }\" }", "${! no }"),
        ("${! @none }", "null"),
        ("${! @none } and ${! this.a.nope }", "null and null"),
        ("${! @none | \"default\" }", "default"),
        ("${! deleted() }", ""),
        ("${! content() }", document),
        ("${! batch_index() }/${! batch_size() }", "0/1"),
        ("${! timestamp_unix() }", "1935817689"),
        ("${! if this.n > 1 { \"big\" } else { \"small\" } }", "big"),
        ("$ {! x } $x ${x} ${", "$ {! x } $x ${x} ${"),
        ("é${! 1 }é", "é1é"),
        ("${{! foo }}", "${! foo }"),
        ("a${{!foo}}b${! 1 }", "a${!foo}b1"),
        ("${{! no end", "${{! no end"),
        ("${!\n  1 +\n  2\n}", "3"),
    ] {
        assert_eq!(render(text, document), expected, "{text}");
    }
}

#[test]
fn a_failing_expression_fails_the_message() {
    assert_eq!(
        render("x${! this.a.uppercase() }", "{}"),
        "error: expected string value, got null from field `this.a`"
    );
    assert!(render("${! this.a }", "not json").starts_with("error: unable to reference message as structured"));
    assert_eq!(render("${! throw(\"no\") }", ""), "error: no");
    let error = interpolation("${! @a }-").render(&[], 0).unwrap_err();
    assert_eq!(error.to_string(), "there is no message 0 in a batch of 0");
}

/// `null` is a text in a text, and nothing where nothing has a meaning.
#[test]
fn what_gives_null_is_absent_if_it_is_all_there_is() {
    let mut message = Message::raw(r#"{"a": "x", "n": null, "e": ""}"#);
    message.meta.set("m", "1");
    let messages = [message];
    for (text, expected) in [
        ("${! @m }", Some("1")),
        ("${! @none }", None),
        ("${! meta(\"none\") }", None),
        ("${! json(\"n\") }", None),
        ("${! this.none }", None),
        ("${! nothing() }", None),
        ("${! deleted() }", None),
        ("${! if false { 1 } }", None),
        ("${! json(\"a\") }", Some("x")),
        ("${! json(\"e\") }", Some("")),
        ("${! \"null\" }", Some("null")),
        ("-${! @none }", Some("-null")),
        ("", Some("")),
        ("plain", Some("plain")),
    ] {
        let rendered = interpolation(text).render_optional(&messages, 0).unwrap();
        let expected = expected.map(|text| RenderedValue::Text(text.into()));
        assert_eq!(rendered, expected, "{text}");
    }
    let bytes = interpolation("${! \"/4A=\".decode(\"base64\") }")
        .render_optional(&messages, 0)
        .unwrap();
    assert_eq!(bytes.unwrap().as_bytes(), b"\xff\x80");
    assert!(
        interpolation("${! throw(\"no\") }")
            .render_optional(&messages, 0)
            .is_err()
    );
    assert!(interpolation("${! @m }").render_optional(&[], 0).is_err());
}

#[test]
fn static_texts_are_known_before_any_message() {
    assert_eq!(interpolation("").is_static(), Some(""));
    assert_eq!(interpolation("umh.v1").is_static(), Some("umh.v1"));
    assert_eq!(interpolation("${{!a}}").is_static(), Some("${!a}"));
    assert_eq!(interpolation("${! 1 }").is_static(), None);
    assert_eq!(interpolation("plain").render(&[], 0).unwrap(), "plain");
    assert_eq!(Interpolation::compile("x").unwrap().is_static(), Some("x"));
}

#[test]
fn errors_have_their_place_in_the_text() {
    for (text, line, column, message) in [
        (
            "a\n${! metta(\"x\") }",
            2,
            5,
            "unknown function `metta`, did you mean `meta`?",
        ),
        (
            "${! this.a",
            1,
            11,
            "expected `}` after the expression of the interpolation, found the end of the text",
        ),
        (
            "é${! this.a b }",
            1,
            13,
            "expected `}` after the expression of the interpolation, found `b`",
        ),
        ("${!}", 1, 4, "expected an expression, found `}`"),
        (
            "${! $x }",
            1,
            5,
            "unknown variable `x`; there are none; a variable is set with `let x = ...` before it is used",
        ),
    ] {
        let error = compiler().interpolation(text).unwrap_err();
        assert_eq!(
            (error.line, error.column, error.message.as_str()),
            (line, column, message),
            "{text}"
        );
    }
}
