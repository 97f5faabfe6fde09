//! Input that no well-behaved sender sends.

use super::*;

fn read(json: &[u8], limits: JsonLimits) -> JsonResult<Vec<u8>> {
    let mut out = b"before".to_vec();
    let done = to_proto(Signal::Logs, json, &limits, &mut out);
    assert!(out.starts_with(b"before") && (done.is_ok() || out.len() == 6));
    done.map(|()| out.split_off(6))
}

/// A body with values nested to this depth.
fn nested(open: &str, close: &str, depth: usize) -> String {
    let begin = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":"#;
    [begin, &open.repeat(depth), "{}", &close.repeat(depth), "}]}]}]}"].concat()
}

const LIST: (&str, &str) = (r#"{"arrayValue":{"values":["#, "]}}");
const MAP: (&str, &str) = (r#"{"kvlistValue":{"values":[{"value":"#, "}]}}");

#[test]
fn a_record_that_is_nested_a_little_too_deep_is_rejected_alone() {
    for (open, close) in [LIST, MAP] {
        for (depth, rejected) in [(0, 0), (20, 0), (63, 0), (64, 1)] {
            let out = read(nested(open, close, depth).as_bytes(), JsonLimits::default()).unwrap();
            let walked = walk(Signal::Logs, &out, &RecordLimits::default()).unwrap();
            assert_eq!((walked.records, walked.rejected.len()), (1, rejected), "{depth}");
            assert!(proto::Logs::decode(&*out).is_ok() || depth > 30);
        }
    }
}

#[test]
fn nesting_ends_at_its_limit_wherever_it_is() {
    let deep = "objects and lists are nested too deep";
    for (open, close) in [LIST, MAP, ("[", "]"), (r#"{"a":"#, "}")] {
        for depth in [300, 100_000] {
            let known = nested(open, close, depth);
            let unknown = format!(r#"{{"unknown":{}1{}}}"#, open.repeat(depth), close.repeat(depth));
            for json in [known, unknown] {
                let error = read(json.as_bytes(), JsonLimits::default()).unwrap_err();
                let is_list = error.what == "expected an object" && open == "[";
                assert!(error.what == deep || is_list, "{error}");
            }
        }
    }
    // The deepest nesting that can be configured fits the stack of a thread.
    let limits = JsonLimits::new(usize::MAX, 64 << 20);
    for (open, close) in [LIST, MAP, (r#"{"a":"#, "}")] {
        let error = read(nested(open, close, 5000).as_bytes(), limits).unwrap_err();
        assert_eq!(error.what, deep);
    }
    let (open, close) = MAP;
    assert!(read(nested(open, close, 1000).as_bytes(), limits).is_ok());
}

#[test]
fn a_long_value_deep_within_others_is_moved_a_few_times_only() {
    let (open, close) = LIST;
    let text = "x".repeat(1 << 20);
    let deep = nested(open, close, 60).replace("{}", &format!(r#"{{"stringValue":"{text}"}}"#));
    let out = read(deep.as_bytes(), JsonLimits::default()).unwrap();
    assert!(walk(Signal::Logs, &out, &RecordLimits::default()).is_ok());
    // At most five bytes for each length.
    assert!(out.len() < (1 << 20) + 60 * 14 + 100, "{}", out.len());
}

#[test]
fn a_text_cut_anywhere_is_refused_at_one_of_its_bytes() {
    let mut cut = 0;
    for seed in 0..150 {
        let (mut dice, mut style) = (Dice::new(seed), Style::random(seed));
        let texts = [
            (Signal::Logs, written::logs(&mut style, &random::logs(&mut dice))),
            (
                Signal::Metrics,
                written::metrics(&mut style, &random::metrics(&mut dice)),
            ),
            (Signal::Traces, written::traces(&mut style, &random::traces(&mut dice))),
        ];
        for (signal, json) in texts.iter().filter(|(_, json)| json.len() < 3000) {
            cut += 1;
            for end in 0..json.len() {
                let (mut out, json) = (Vec::new(), &json.as_bytes()[..end]);
                let error = to_proto(*signal, json, &JsonLimits::default(), &mut out).unwrap_err();
                assert!(error.offset <= end && out.is_empty(), "{error} of {end}");
            }
        }
    }
    assert!(cut > 50, "{cut}");
    let error = read(br#"{"resourceLogs":[{"schemaUrl":"a"#, JsonLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "byte 32: it ends within a value");
}

#[test]
fn bytes_changed_anywhere_do_no_harm() {
    let mut dice = Dice::new(3);
    for seed in 0..60 {
        let mut style = Style::random(seed);
        let texts = [
            written::logs(&mut style, &random::logs(&mut Dice::new(seed))),
            written::metrics(&mut style, &random::metrics(&mut Dice::new(seed))),
            written::traces(&mut style, &random::traces(&mut Dice::new(seed))),
        ];
        for text in texts {
            for _ in 0..40 {
                let mut bytes = text.clone().into_bytes();
                for _ in 0..=dice.below(3) {
                    let at = dice.below(bytes.len());
                    let other = dice.below(bytes.len());
                    bytes[at] = if dice.is(2) { bytes[other] } else { dice.any() as u8 };
                }
                otlp_json(&bytes);
            }
        }
    }
}

#[test]
fn what_is_no_json_is_refused() {
    for json in [
        "",
        " ",
        "null",
        "[]",
        "1",
        "\"a\"",
        "{",
        "}",
        "{]",
        "{}}",
        "{} {}",
        "{},",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":1 \"b\":2}",
        "{\"a\" 1}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":[1,]}",
        "{\"a\":[,1]}",
        "{\"a\":[1 2]}",
        "{\"a\":01}",
        "{\"a\":nul}",
        "{\"a\":nulll}",
        "{\"a\":tru}",
        "{\"a\":\"\\q\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":1}x",
        "\u{feff}\u{feff}{}",
        "\u{a0}{}",
        "{\"resourceLogs\":[{},]}",
        "{\"resourceLogs\":[,]}",
        "{\"resourceLogs\":[{}}",
        "{\"resourceLogs\":nulll}",
        "// a\n{}",
        "{\"a\":+1}",
        "{\"a\":\"",
        "{\"a\":\"\\",
        "{\"a\":\"\\u00",
    ] {
        let error = read(json.as_bytes(), JsonLimits::default()).unwrap_err();
        assert!(error.offset <= json.len(), "{json}: {error}");
    }
    let error = read(br#"{} {}"#, JsonLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "byte 3: unexpected data after the request");
}

#[test]
fn what_is_small_as_json_and_large_as_protobuf_ends_at_the_limit() {
    let zeros = "0,".repeat(100_000);
    let json = format!(
        r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"histogram":{{"dataPoints":[{{"explicitBounds":[{zeros}0]}}]}}}}]}}]}}]}}"#
    );
    for (limit, is_right) in [(64 << 20, true), (800_100, true), (800_000, false), (1000, false)] {
        let mut out = Vec::new();
        let done = to_proto(Signal::Metrics, json.as_bytes(), &JsonLimits::new(64, limit), &mut out);
        match is_right {
            true => assert_eq!(done, Ok(())),
            false => assert!(is_too_large(&done.unwrap_err()) && out.capacity() < 2 * limit + 1000),
        }
    }
    let empty = format!(r#"{{"resourceLogs":[{}{{}}]}}"#, "{},".repeat(1000));
    assert!(is_too_large(
        &read(empty.as_bytes(), JsonLimits::new(64, 1000)).unwrap_err()
    ));
}

#[test]
fn a_request_with_something_after_it_is_read_alone() {
    let json = b"\xef\xbb\xbf {\"resourceLogs\":[{}]} \n{\"resourceLogs\":[{},{}]}";
    let limits = JsonLimits::default();
    let (mut at, mut lens) = (0, Vec::new());
    while at < json.len() {
        let mut out = Vec::new();
        at += first_to_proto(Signal::Logs, &json[at..], &limits, &mut out).unwrap();
        lens.push((at, out.len()));
    }
    assert_eq!(lens, [(25, 2), (json.len(), 4)]);
}
