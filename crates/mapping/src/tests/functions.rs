//! Functions of the message, the batch and the host, and counters.

use std::sync::Arc;

use thalweg_record::{Failure, Message};

use super::{check, check_constant, compiler, eval, interpolation, mapping, outcome};
use crate::{Mapping, system};

#[test]
fn the_host_answers_for_clock_environment_and_name() {
    check_constant(&[
        ("now()", "\"2031-05-06T07:08:09.123456789Z\""),
        ("timestamp_unix()", "1935817689"),
        ("timestamp_unix_milli()", "1935817689123"),
        ("timestamp_unix_nano()", "1935817689123456789"),
        ("env(\"PLANT\")", "\"north\""),
        ("env(\"NO_SUCH\")", "null"),
        ("env(name: \"PL\" + \"ANT\")", "\"north\""),
        ("env(\"PLANT\", no_cache: true)", "\"north\""),
        ("hostname()", "\"edge-7\""),
        ("uuid_v4()", "\"00000000-0000-4000-9000-000000000000\""),
        ("uuid_v4().length()", "36"),
    ]);
}

#[test]
fn range_counts_up_and_down_within_its_limit() {
    check_constant(&[
        ("range(0, 5)", "[0,1,2,3,4]"),
        ("range(0, 5, 2)", "[0,2,4]"),
        ("range(start: 3, stop: 0, step: -1)", "[3,2,1]"),
        ("range(3, 3)", "[]"),
        (
            "range(3, 0)",
            "error: range(3, 0, 1): `step` is positive, so `stop` must not lie below `start`",
        ),
        (
            "range(0, 3, -1)",
            "error: range(0, 3, -1): `step` is negative, so `stop` must not lie above `start`",
        ),
        ("range(0, 3, 0)", "error: range(0, 3, 0): `step` must not be 0"),
        ("range(0, 1000000).length()", "1000000"),
        (
            "range(0, 1000001)",
            "error: the value would have more than the limit of 1000000 elements",
        ),
        (
            "range(-9223372036854775808, 9223372036854775807, 9223372036854775807)",
            "[-9223372036854775808,-1,9223372036854775806]",
        ),
    ]);
    check(&[(
        "range(0, this.n)",
        r#"{"n":"5"}"#,
        "error: expected integer value, got string from field `this.n` (\"5\")",
    )]);
}

#[test]
fn throw_deleted_and_nothing() {
    check_constant(&[
        ("throw(\"no \" + \"way\")", "error: no way"),
        ("deleted()", "(nothing)"),
        ("nothing()", "(nothing)"),
        ("deleted().type()", "\"delete\""),
        ("nothing().type()", "\"nothing\""),
        (
            "deleted().uppercase()",
            "error: expected any value, got delete from function `deleted`",
        ),
    ]);
}

#[test]
fn metadata_is_read_in_every_spelling() {
    let mut message = Message::raw("{}");
    message.meta.set("foo", "Bar");
    message.meta.set("a b", "spaced");
    for (expression, expected) in [
        ("meta(\"foo\")", "Bar"),
        ("metadata(\"foo\")", "Bar"),
        ("meta(\"f\" + \"oo\")", "Bar"),
        ("@foo", "Bar"),
        ("@\"a b\"", "spaced"),
        ("@.\"a b\"", "spaced"),
        ("@.foo", "Bar"),
        ("@foo.uppercase()", "BAR"),
        ("@none", "null"),
        ("meta(\"none\") | \"x\"", "x"),
        ("@", r#"{"a b":"spaced","foo":"Bar"}"#),
        ("meta()", r#"{"a b":"spaced","foo":"Bar"}"#),
        ("metadata().keys().join(\",\")", "a b,foo"),
        ("@foo.x", "null"),
    ] {
        assert_eq!(
            outcome(&mapping(&format!("root = {expression}")), message.clone()),
            expected,
            "{expression}"
        );
    }
}

#[test]
fn a_failed_message_tells_its_error() {
    let source = "root = [errored(), error()]";
    assert_eq!(outcome(&mapping(source), Message::raw("")), "[false,null]");
    let mut failed = Message::raw("");
    failed.failure = Some(Arc::new(Failure {
        stage: "mapping".into(),
        error: "it broke".into(),
    }));
    assert_eq!(outcome(&mapping(source), failed), "[true,\"it broke\"]");
}

#[test]
fn batch_functions_know_the_place_in_the_batch() {
    let mapping = mapping("root = [batch_index(), batch_size(), this.n]");
    let mut batch: Vec<Message> = (0..3).map(|n| Message::raw(format!("{{\"n\":{n}}}"))).collect();
    mapping.apply(&mut batch, 2).unwrap();
    assert_eq!(&*batch[2].bytes(), b"[2,3,2]");
    assert_eq!(&*batch[0].bytes(), b"{\"n\":0}");
    let error = mapping.apply(&mut batch, 3).unwrap_err();
    assert_eq!(error.to_string(), "there is no message 3 in a batch of 3");
}

#[test]
fn content_is_bytes() {
    check(&[
        ("content().type()", "hello", "\"bytes\""),
        ("content()", "hello", "\"aGVsbG8=\""),
        ("content().uppercase()", "hello", "\"HELLO\""),
        ("content().length()", "hello", "5"),
    ]);
    assert_eq!(
        outcome(&mapping("root = content()"), Message::raw(&b"\xff\x00"[..])),
        "\u{fffd}\0"
    );
    let raw = Message::raw(&b"\xff"[..]);
    let text = "error: failed assignment (line 1): the bytes are not UTF-8 text (at byte 0): encode them, as with \
                encode(\"base64\")";
    assert_eq!(outcome(&mapping("root = content().string()"), raw), text);
}

#[test]
fn each_counter_counts_for_itself_and_named_counts_are_shared() {
    let two = mapping("root = [counter(), counter(min: 5, max: 6)]");
    let seen: Vec<String> = (0..4).map(|_| outcome(&two, Message::raw(""))).collect();
    assert_eq!(seen, ["[1,5]", "[2,6]", "[3,5]", "[4,6]"]);
    let shared = two.clone();
    assert_eq!(outcome(&shared, Message::raw("")), "[5,5]");

    let compiler = compiler();
    let a = compiler.mapping("root = count(\"x\")").unwrap();
    let b = compiler
        .interpolation("${! count(\"x\") }-${! count(\"y\") }-${! count(\"x\" + \"\") }")
        .unwrap();
    assert_eq!(outcome(&a, Message::raw("")), "1");
    assert_eq!(b.render(&[Message::raw("")], 0).unwrap(), "2-1-3");
    assert_eq!(outcome(&a, Message::raw("")), "4");
}

#[test]
fn a_counter_can_be_set_and_held() {
    let mapping = mapping("root = counter(set: this.to)");
    let run = |document: &str| outcome(&mapping, Message::raw(document.to_owned()));
    assert_eq!(run(r#"{"to":10}"#), "10");
    assert_eq!(run(r#"{"to":null}"#), "10");
    assert_eq!(run(r#"{"to":3}"#), "3");
    assert!(run(r#"{"to":-1}"#).contains("expected non-negative integer value, got number from argument `set`"));
}

#[test]
fn random_numbers_keep_their_bounds_and_repeat_with_a_seed() {
    let numbers = mapping("root = range(0, 1000).map_each(random_int(min: -3, max: 3))");
    let text = outcome(&numbers, Message::raw(""));
    let seen: Vec<i64> = text
        .trim_matches(['[', ']'])
        .split(',')
        .map(|n| n.parse().unwrap())
        .collect();
    assert!(seen.iter().all(|n| (-3..=3).contains(n)));
    assert!((-3..=3).all(|n| seen.contains(&n)), "all seven appear");

    let seeded = "range(0, 5).map_each(random_int(seed: 42, min: 0, max: 1000000))";
    assert_eq!(eval(seeded, ""), eval(seeded, ""));
    assert_ne!(eval(seeded, ""), eval(&seeded.replace("42", "43"), ""));
    assert_eq!(
        eval("random_int(min: 2, max: 1)", ""),
        "error: random_int: `min` 2 is above `max` 1"
    );
    assert_eq!(eval("random_int(seed: timestamp_unix_nano(), max: 0)", ""), "0");
}

#[test]
fn the_system_host_gives_what_the_machine_has() {
    let host = system();
    assert!(host.unix_nanos() > 1_700_000_000_000_000_000);
    assert_ne!(host.random(), host.random());
    assert_ne!(host.random_uuid(), host.random_uuid());
    assert_eq!(host.env("A=B"), None);
    let mapping = Mapping::compile("root = [uuid_v4(), random_int(), now(), hostname() | \"\"]").unwrap();
    assert!(outcome(&mapping, Message::raw("")).starts_with("[\""));
    assert!(interpolation("${! uuid_v4() }").is_static().is_none());
}
