//! Tests the forms of single values.

use super::*;
use crate::proto::*;

fn log(members: &str) -> JsonResult<Log> {
    let json = format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{{members}}}]}}]}}]}}"#);
    let bytes = proto_of(Signal::Logs, &json)?;
    let mut read = Logs::decode(&*bytes).unwrap();
    Ok(read.groups[0].scopes[0].records.remove(0))
}

fn value(json: &str) -> JsonResult<Option<Value>> {
    Ok(log(&format!(r#""body":{json}"#))?.body.and_then(|body| body.value))
}

fn point(members: &str) -> JsonResult<NumberPoint> {
    let json = format!(
        r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"gauge":{{"dataPoints":[{{{members}}}]}}}}]}}]}}]}}"#
    );
    let bytes = proto_of(Signal::Metrics, &json)?;
    let mut read = Metrics::decode(&*bytes).unwrap();
    match read.groups[0].scopes[0].records.remove(0).data {
        Some(Data::Gauge(mut gauge)) => Ok(gauge.points.remove(0)),
        other => panic!("{other:?}"),
    }
}

/// The error text of a refusal.
fn what(refused: JsonResult<impl fmt::Debug>) -> &'static str {
    refused.unwrap_err().what
}

#[test]
fn integers_are_exact_however_they_are_written() {
    let int = |text: &str| value(&format!(r#"{{"intValue":{text}}}"#));
    for (text, expected) in [
        ("0", 0),
        ("-0", 0),
        (r#""-0""#, 0),
        ("9007199254740993", 9_007_199_254_740_993),
        ("9223372036854775807", i64::MAX),
        (r#""-9223372036854775808""#, i64::MIN),
        ("1.0", 1),
        ("1.50e1", 15),
        ("-12e3", -12_000),
        ("1200e-2", 12),
        ("0.00012E+5", 12),
        ("0e99999999999999999999", 0),
        ("0.000", 0),
        ("9.223372036854775807e18", i64::MAX),
        (r#""\u0031\u0032""#, 12),
        (&format!("1{}e-40", "0".repeat(40)), 1),
        (&format!("1.{}", "0".repeat(400)), 1),
    ] {
        assert_eq!(int(text), Ok(Some(Value::Int(expected))), "{text}");
    }
    for text in [
        "9223372036854775808",
        "-9223372036854775809",
        "1e19",
        "1e999999999999999999999",
        "18446744073709551616",
    ] {
        assert!(what(int(text)).starts_with("the number is"), "{text}");
    }
    for text in [
        "0.5",
        "15e-1",
        "1e-999999999999999999999",
        "1.0000000000000000000000000000000001",
        "123456789012345678901.5",
    ] {
        assert!(what(int(text)).contains("fraction"), "{text}");
    }
    for text in [
        r#""""#, r#"" 1""#, r#""1 ""#, r#""+1""#, r#""01""#, r#""1.""#, r#"".5""#, r#""0x1""#, r#""NaN""#, r#""-""#,
        r#""1e""#,
    ] {
        assert_eq!(what(int(text)), "the text is not a number", "{text}");
    }
    for text in [
        "+1", "01", "1.", ".5", "-", "1e", "0x1", "NaN", "true", "[1]", "{}", "--1", "1a",
    ] {
        assert!(int(text).is_err(), "{text}");
    }
}

#[test]
fn each_field_takes_the_numbers_of_its_type() {
    let max = u64::MAX;
    assert_eq!(
        log(&format!(r#""timeUnixNano":{max},"observedTimeUnixNano":"{max}""#))
            .unwrap()
            .time,
        max
    );
    assert_eq!(
        log(r#""flags":4294967295,"droppedAttributesCount":"4294967295""#)
            .unwrap()
            .flags,
        u32::MAX
    );
    assert_eq!(
        log(r#""severityNumber":-2147483648"#).unwrap().severity_number,
        i32::MIN
    );
    assert_eq!(
        point(r#""asInt":-9223372036854775808"#).unwrap().value,
        Some(NumberValue::Int(i64::MIN))
    );
    for members in [
        r#""timeUnixNano":-1"#,
        r#""timeUnixNano":18446744073709551616"#,
        r#""flags":4294967296"#,
        r#""droppedAttributesCount":-1"#,
        r#""severityNumber":2147483648"#,
        r#""severityNumber":-2147483649"#,
    ] {
        assert!(log(members).is_err(), "{members}");
    }
}

#[test]
fn enums_are_numbers_or_names() {
    let severity = |text: &str| log(&format!(r#""severityNumber":{text}"#)).map(|log| log.severity_number);
    for (text, expected) in [
        ("9", 9),
        (r#""9""#, 9),
        ("99", 99),
        (r#""SEVERITY_NUMBER_INFO""#, 9),
        (r#""SEVERITY_NUMBER_FATAL4""#, 24),
        (r#""SEVERITY_NUMBER_ERROR""#, 17),
        ("null", 0),
    ] {
        assert_eq!(severity(text), Ok(expected), "{text}");
    }
    assert_eq!(what(severity(r#""INFO""#)), "the enum has no value of this name");
    assert_eq!(what(severity(r#""info""#)), "the text is not a number");
}

#[test]
fn doubles_are_numbers_or_names_of_what_is_no_number() {
    let double = |text: &str| point(&format!(r#""asDouble":{text}"#)).map(|point| point.value.unwrap());
    for (text, expected) in [
        ("0", 0.0),
        ("1e-400", 0.0),
        ("0.1", 0.1),
        (r#""1.5e3""#, 1500.0),
        ("1.7976931348623157e308", f64::MAX),
        ("5e-324", f64::from_bits(1)),
        (r#""Infinity""#, f64::INFINITY),
        (r#""-Infinity""#, f64::NEG_INFINITY),
    ] {
        assert_eq!(double(text), Ok(NumberValue::Double(expected)), "{text}");
    }
    let NumberValue::Double(zero) = double("-0.0").unwrap() else {
        panic!()
    };
    assert!(zero == 0.0 && zero.is_sign_negative());
    let NumberValue::Double(nan) = double(r#""NaN""#).unwrap() else {
        panic!()
    };
    assert!(nan.is_nan());
    assert_eq!(what(double("1e309")), "the number is too large for a double");
    for text in [
        r#""inf""#, r#""nan""#, r#""""#, r#"" 1""#, "NaN", "Infinity", "true", "1.e3", "[]",
    ] {
        assert!(double(text).is_err(), "{text}");
    }
}

#[test]
fn texts_lose_their_escapes_and_half_pairs_are_replaced() {
    let text = |text: &str| match value(&format!(r#"{{"stringValue":"{text}"}}"#)) {
        Ok(Some(Value::Text(text))) => text,
        other => panic!("{other:?}"),
    };
    for (given, expected) in [
        ("", ""),
        (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r"\u0000a\u00e9\u65E5", "\0aé日"),
        (r"\ud83e\udd80", "🦀"),
        (r"\ud83e", "\u{fffd}"),
        (r"\udd80\ud83e", "\u{fffd}\u{fffd}"),
        (r"\ud83e\u0041", "\u{fffd}A"),
        (r"\ud83e\ud83e\udd80", "\u{fffd}🦀"),
        (r"\ud83ex\n", "\u{fffd}x\n"),
        ("🦀 as it is \u{7f}", "🦀 as it is \u{7f}"),
    ] {
        assert_eq!(text(given), expected, "{given}");
    }
    // Near lengths at which the encoded length grows by a byte, with and without the escape.
    for len in 120..140 {
        let plain = "x".repeat(len);
        assert_eq!(text(&format!("{plain}\\n")), format!("{plain}\n"));
    }
    for wrong in ["a\nb", "\\x", "\\u12g4", "\\u12", "\t", "\0"] {
        assert!(value(&format!(r#"{{"stringValue":"{wrong}"}}"#)).is_err(), "{wrong}");
    }
}

#[test]
fn bytes_that_are_no_utf8_are_left_to_the_decoder() {
    let json = b"{\"resourceLogs\":[{\"schemaUrl\":\"a\xff\\n\xc3\"}]}";
    let mut out = Vec::new();
    to_proto(Signal::Logs, json, &JsonLimits::default(), &mut out).unwrap();
    assert!(out.ends_with(b"a\xff\n\xc3"), "{out:?}");
}

#[test]
fn ids_are_hexadecimal_of_any_length_and_empty_ones_are_absent() {
    let id = |text: &str| log(&format!(r#""traceId":"{text}""#)).map(|log| log.trace_id);
    assert_eq!(id("00fFAb"), Ok(vec![0, 255, 0xab]));
    assert_eq!(id(r"\u0030a"), Ok(vec![10]));
    assert_eq!(id(""), Ok(Vec::new()));
    for wrong in ["a", "0g", "abc", "0x", "5B8EFFF798038103D269B633813FC60=", "é"] {
        assert!(what(id(wrong)).starts_with("an id"), "{wrong}");
    }
    let empty = proto_of(
        Signal::Logs,
        r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"spanId":""}]}]}]}"#,
    );
    let none = proto_of(
        Signal::Logs,
        r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{}]}]}]}"#,
    );
    assert_eq!(empty, none);
}

#[test]
fn base64_is_of_either_alphabet_with_padding_or_without() {
    let bytes = |text: &str| value(&format!(r#"{{"bytesValue":"{text}"}}"#));
    for (text, expected) in [
        ("", &[][..]),
        ("QQ==", b"A"),
        ("QQ", b"A"),
        ("QUI=", b"AB"),
        ("QUJD", b"ABC"),
        ("-_-_", &[0xfb, 0xff, 0xbf]),
        ("+/+/", &[0xfb, 0xff, 0xbf]),
        (r"\/\/\/\/", &[0xff; 3]),
    ] {
        assert_eq!(bytes(text), Ok(Some(Value::Bytes(expected.to_vec()))), "{text}");
    }
    for wrong in ["Q", "QUJDR", "Q===", "QQ=Q", "Q Q=", "é", "QUJD\\n"] {
        assert_eq!(what(bytes(wrong)), "the bytes are not valid base64", "{wrong}");
    }
}

#[test]
fn names_may_be_in_snake_case_and_escaped() {
    let read =
        log(r#""observed_time_unix_nano":1,"severity_text":"a","\u0074raceId":"00","dropped_attributes_count":2"#);
    let read = read.unwrap();
    assert_eq!((read.observed_time, &*read.severity_text, read.dropped), (1, "a", 2));
    assert_eq!(read.trace_id, [0]);
    let unknown =
        r#""ObservedTimeUnixNano":1,"observed_TimeUnixNano":1,"severity__text":"a","_flags":3,"flags_":3,"":1"#;
    assert_eq!(log(unknown), Ok(Log::default()));
}

#[test]
fn of_members_given_twice_the_last_wins_lists_go_on_and_messages_are_refused() {
    let read =
        log(r#""timeUnixNano":1,"timeUnixNano":2,"severityText":"a","severityText":"","traceId":"00","traceId":"""#);
    let read = read.unwrap();
    assert_eq!((read.time, &*read.severity_text, read.trace_id.len()), (2, "", 0));
    let read = log(r#""attributes":[{"key":"a"}],"flags":1,"attributes":[{"key":"b"}]"#).unwrap();
    assert_eq!(read.attributes.len(), 2);
    assert_eq!(log(r#""flags":1,"flags":null"#).unwrap().flags, 1);
    let twice = "a field that may be given once is given twice";
    for json in [
        r#"{"stringValue":"a","intValue":1}"#,
        r#"{"stringValue":"a","stringValue":"a"}"#,
        r#"{"arrayValue":{},"kvlistValue":{}}"#,
    ] {
        assert_eq!(what(value(json)), twice, "{json}");
    }
    assert_eq!(what(log(r#""body":{},"body":{}"#)), twice);
    assert_eq!(
        log(r#""body":null,"body":{},"body":null"#).map(|log| log.body.is_some()),
        Ok(true)
    );
    assert_eq!(value(r#"{"stringValue":null,"intValue":1}"#), Ok(Some(Value::Int(1))));
    let gauge = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{},"sum":{}}]}]}]}"#;
    assert_eq!(what(proto_of(Signal::Metrics, gauge)), twice);
}

#[test]
fn null_is_absent_as_a_member_and_as_a_value_of_a_list_and_nothing_else() {
    let list = value(r#"{"arrayValue":{"values":[null,{"boolValue":false},null]}}"#);
    let Ok(Some(Value::List(list))) = list else {
        panic!("{list:?}")
    };
    assert_eq!(list.values[1].value, Some(Value::Bool(false)));
    assert_eq!(
        (list.values.len(), &list.values[0].value, &list.values[2].value),
        (3, &None, &None)
    );
    for members in [
        r#""attributes":[null]"#,
        r#""attributes":{}"#,
        r#""body":[]"#,
        r#""body":"a""#,
        r#""severityText":1"#,
    ] {
        assert!(log(members).is_err(), "{members}");
    }
    assert_eq!(what(value(r#"{"boolValue":"true"}"#)), "expected true or false");
}

/// A wrong name would otherwise be answered with "accepted", and nothing would be stored.
#[test]
fn an_unknown_member_in_place_of_the_records_is_refused() {
    for (signal, json, at, list) in [
        (Signal::Logs, r#"{"resourceLog":[{"scopeLogs":[]}]}"#, 1, "resourceLogs"),
        (Signal::Logs, r#"{"a":1,"logs":[]}"#, 1, "resourceLogs"),
        (Signal::Traces, r#"{"spans":[{}]}"#, 1, "resourceSpans"),
        (Signal::Metrics, r#"{ "Resource_Metrics":[]}"#, 2, "resourceMetrics"),
        (Signal::Logs, r#"{"resourceLogs":[{"scopelogs":[]}]}"#, 18, "scopeLogs"),
        (
            Signal::Traces,
            r#"{"resourceSpans":[{"scopeSpans":[]},{"scope_span":1}]}"#,
            37,
            "scopeSpans",
        ),
        (
            Signal::Metrics,
            r#"{"resourceMetrics":[{"scopeMetric":{}}]}"#,
            21,
            "scopeMetrics",
        ),
        (
            Signal::Logs,
            r#"{"resourceLogs":[{"scopeLogs":[{"records":[]}]}]}"#,
            32,
            "logRecords",
        ),
        (
            Signal::Traces,
            r#"{"resourceSpans":[{"scopeSpans":[{"span":[]}]}]}"#,
            34,
            "spans",
        ),
        (
            Signal::Metrics,
            r#"{"resourceMetrics":[{"scopeMetrics":[{"metric":[]}]}]}"#,
            38,
            "metrics",
        ),
    ] {
        let refused = proto_of(signal, json).unwrap_err();
        let expected =
            format!("byte {at}: an object has a member that OTLP does not define, and no {list}; correct the name");
        assert_eq!(refused.to_string(), expected, "{json}");
    }
    let metrics = |metrics: &str| {
        proto_of(
            Signal::Metrics,
            &format!(r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":{metrics}}}]}}]}}"#),
        )
    };
    assert!(what(metrics(r#"[{"name":"m","sum":{"points":[]}}]"#)).contains("no dataPoints"));
    assert!(what(metrics(r#"[{"name":"m","guage":{"dataPoints":[]}}]"#)).contains("no points of a known kind"));
    // A kind of a later version costs no metric of a known one, whichever comes first.
    for mixed in [
        r#"[{"name":"m","newKind":{}},{"name":"n","gauge":{}}]"#,
        r#"[{"name":"n","gauge":{}},{"name":"m","newKind":{}}]"#,
    ] {
        assert!(metrics(mixed).is_ok(), "{mixed}");
    }
}

/// Anything else may be there in later versions.
#[test]
fn other_unknown_members_are_skipped() {
    for json in [
        r#"{"x":1,"resourceLogs":[]}"#,
        r#"{"resourceLogs":[{"x":{},"scopeLogs":[{"logRecords":[{"x":[]}],"x":1,"scope":{"x":1}}],"resource":{"entityRefs":[]}}]}"#,
    ] {
        assert!(proto_of(Signal::Logs, json).is_ok(), "{json}");
    }
}

#[test]
fn names_before_version_1_are_refused_and_do_not_spoil_what_is_stored() {
    let log = |members: &str| format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{}}]{members}}}]}}]}}"#);
    let metric = |members: &str| {
        format!(r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"name":"m"{members}}}]}}]}}]}}"#)
    };
    let point = |kind: &str, members: &str| metric(&format!(r#","{kind}":{{"dataPoints":[{{{members}}}]}}"#));
    let old = [
        (
            Signal::Logs,
            r#"{"resourceLogs":[{"instrumentationLibraryLogs":[]}]}"#.to_owned(),
        ),
        (
            Signal::Logs,
            r#"{"resource_logs":[{"instrumentation_library_logs":[{}]}]}"#.to_owned(),
        ),
        (
            Signal::Metrics,
            r#"{"resourceMetrics":[{"instrumentationLibraryMetrics":[]}]}"#.to_owned(),
        ),
        (
            Signal::Traces,
            r#"{"resourceSpans":[{"instrumentationLibrarySpans":[]}]}"#.to_owned(),
        ),
        (Signal::Logs, log(r#","logs":[{}]"#)),
        (Signal::Logs, log(r#","instrumentationLibrary":{"name":"a"}"#)),
        (Signal::Metrics, metric(r#","intGauge":{"dataPoints":[]}"#)),
        (Signal::Metrics, metric(r#","gauge":{},"double_sum":{}"#)),
        (Signal::Metrics, point("sum", r#""labels":[]"#)),
        (Signal::Metrics, point("gauge", r#""value":1.5"#)),
        (Signal::Metrics, point("histogram", r#""labels":[]"#)),
        (Signal::Metrics, point("summary", r#""labels":[]"#)),
        (Signal::Metrics, point("sum", r#""exemplars":[{"filteredLabels":[]}]"#)),
    ];
    for (signal, json) in &old {
        let refused = what(proto_of(*signal, json));
        assert!(refused.contains("before version 1"), "{json}: {refused}");
        let mut stored = Vec::new();
        assert_eq!(
            to_proto(*signal, json.as_bytes(), &JsonLimits::stored(), &mut stored),
            Ok(()),
            "{json}"
        );
    }
    let typing = br#"{"resourceLog":[{}]}"#;
    assert_eq!(
        to_proto(Signal::Logs, typing, &JsonLimits::stored(), &mut Vec::new()),
        Ok(())
    );
    // An absent member is none.
    assert!(proto_of(Signal::Logs, &log(r#","logs":null"#)).is_ok());
}

#[test]
fn members_of_another_signal_are_not_lost_in_silence() {
    let refused = proto_of(Signal::Logs, r#"{"resourceSpans":[{}]}"#).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "byte 17: a request of one signal has a member of another"
    );
    assert!(proto_of(Signal::Traces, r#"{"resourceLogs":[]}"#).is_err());
    assert!(proto_of(Signal::Metrics, r#"{"resource_logs":[]}"#).is_err());
    assert_eq!(proto_of(Signal::Metrics, r#"{"resourceLogs":null}"#), Ok(Vec::new()));
}
