use proptest::prelude::*;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::column_view::ColumnView;
use thalweg_lake::entry::{decode, rows};
use thalweg_lake::ingest::EntryLimits;

use super::*;

const NOW: i64 = 1_700_000_000_000_000_000;
const OTLP: &str = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"a"}}]}]}]}"#;

fn batch_writer(limits: RecordLimits) -> SignalBatchWriter {
    let limits = SignalBatchLimits {
        walk: limits,
        window: ArrivalWindow::default(),
        decoded_bytes_max: 64 << 20,
    };
    SignalBatchWriter::new(Signal::Logs, limits)
}

fn pack(messages: &[&[u8]]) -> SignalBatch {
    let messages: Vec<Message> = messages.iter().map(|payload| Message::raw(payload.to_vec())).collect();
    batch_writer(RecordLimits::default()).pack("plant", &messages, NOW)
}

/// A request with one log, as protobuf.
fn proto() -> Vec<u8> {
    let mut out = Vec::new();
    to_proto(Signal::Logs, OTLP.as_bytes(), &JsonLimits::default(), &mut out).unwrap();
    out
}

#[test]
fn rows_share_an_entry_and_requests_have_their_own_in_the_order_of_messages() {
    let proto = proto();
    let (a, b, c) = (
        br#"{"message":"a"}"#,
        b" {\n\"message\":\n\"b\"}",
        br#"{"message":"c"}"#,
    );
    let packed = pack(&[a, b, OTLP.as_bytes(), b"no row", c, &proto]);
    let indexes: Vec<usize> = packed.refused.iter().map(|refused| refused.index).collect();
    assert_eq!(indexes, [3]);
    let untils: Vec<usize> = packed.entries.iter().map(|entry| entry.until).collect();
    assert_eq!(untils, [2, 3, 5, 6]);
    let heads: Vec<_> = packed
        .entries
        .iter()
        .map(|entry| decode(&entry.bytes).unwrap())
        .collect();
    let forms: Vec<EntryForm> = heads.iter().map(|(head, _)| head.form).collect();
    let (json, protobuf) = (
        EntryForm::Request(PayloadEncoding::Json),
        EntryForm::Request(PayloadEncoding::Proto),
    );
    assert_eq!(forms, [EntryForm::Rows, json, EntryForm::Rows, protobuf]);
    let texts: Vec<&[u8]> = rows(heads[0].1).map(Result::unwrap).collect();
    assert_eq!(texts, [&a[..], &b[..]]);
    assert_eq!(
        (heads[0].0.records, heads[0].0.peer, heads[0].0.arrival),
        (2, "plant", NOW)
    );
    for (entry, (head, request)) in packed.entries.iter().zip(&heads) {
        let request = if head.form == json { &proto } else { *request };
        let expected = Handoff::of(head, Bytes::copy_from_slice(request));
        assert_eq!(entry.handoff.request(), expected.request());
    }
}

#[test]
fn what_can_be_no_record_is_refused_with_the_reason() {
    let spans = r#"{"resourceSpans":[]}"#;
    let long = format!("{{\"message\":\"{}\"}}", "x".repeat(2 << 20));
    for (payload, reason, why) in [
        (
            &b"a line"[..],
            DropReason::InvalidPayload,
            "neither a row, which is a JSON object, nor an OTLP request with logs",
        ),
        (b"", DropReason::InvalidPayload, "neither a row"),
        (b"[1]", DropReason::InvalidPayload, "neither a row"),
        (
            b"{\"trace_id\":7,\"message\":1}}",
            DropReason::InvalidPayload,
            "the message is not a row of logs",
        ),
        (
            b"{\"message\":",
            DropReason::InvalidPayload,
            "the message is not a row of logs",
        ),
        (
            b"{\"time\":\"soon\"}",
            DropReason::InvalidPayload,
            "\"soon\" is not a time",
        ),
        (
            spans.as_bytes(),
            DropReason::InvalidPayload,
            "a request of traces, but the output is for the table logs",
        ),
        (b"{\"resourceLogs\":7}", DropReason::InvalidPayload, "not OTLP/JSON"),
        (long.as_bytes(), DropReason::TooLarge, "value_too_long"),
    ] {
        let packed = pack(&[payload]);
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(40)]);
        assert!(packed.entries.is_empty(), "{shown}");
        let refusal = &packed.refused[0].refusal;
        assert_eq!(refusal.reason, reason, "{shown}: {}", refusal.error);
        assert!(refusal.error.contains(why), "{shown}: {}", refusal.error);
    }
}

/// Its first two bytes are a line feed and a bracket.
#[test]
fn a_request_that_begins_like_an_object_is_a_request() {
    let text = "x".repeat(123);
    let of = |len: usize| {
        let json = OTLP.replace("\"a\"", &format!("\"{}\"", &text[..len]));
        let mut out = Vec::new();
        to_proto(Signal::Logs, json.as_bytes(), &JsonLimits::default(), &mut out).unwrap();
        out
    };
    let request = (0..text.len())
        .map(of)
        .find(|request| request.starts_with(b"\n{"))
        .unwrap();
    let packed = pack(&[&request, b"\n{\"message\":\"a row\"}"]);
    assert_eq!(packed.refused, []);
    let forms: Vec<EntryForm> = packed
        .entries
        .iter()
        .map(|entry| entry.handoff.request().unwrap().is_rows)
        .map(|is_rows| match is_rows {
            true => EntryForm::Rows,
            false => EntryForm::Request(PayloadEncoding::Proto),
        })
        .collect();
    assert_eq!(forms, [EntryForm::Request(PayloadEncoding::Proto), EntryForm::Rows]);
    assert_eq!(packed.entries[0].handoff.request().unwrap().request, request);
}

#[test]
fn an_empty_request_is_taken_and_leaves_nothing() {
    // Protobuf without records may be anything, so it is refused.
    let mut proto = Vec::new();
    let group = br#"{"resourceLogs":[{"resource":{"attributes":[{"key":"a","value":{"boolValue":true}}]}}]}"#;
    to_proto(Signal::Logs, group, &JsonLimits::default(), &mut proto).unwrap();
    let packed = pack(&[br#"{"resourceLogs":[]}"#, &proto]);
    let refused: Vec<usize> = packed.refused.iter().map(|refused| refused.index).collect();
    assert_eq!((packed.entries.len(), refused), (0, vec![1]));
}

#[test]
fn records_that_are_rejected_leave_the_others_of_their_request() {
    let of = |bodies: &[&str]| {
        let records = bodies
            .iter()
            .map(|body| format!(r#"{{"body":{{"stringValue":"{body}"}}}}"#));
        let records = records.collect::<Vec<String>>().join(",");
        format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{records}]}}]}}]}}"#)
    };
    let limits = RecordLimits {
        value_bytes: 10,
        ..RecordLimits::default()
    };
    let pack = |text: String| batch_writer(limits).pack("", &[Message::raw(text)], NOW);
    let some = pack(of(&["short", "longer than it may be"]));
    assert_eq!(some.rejected, [("value_too_long", 1)]);
    assert_eq!(some.entries[0].handoff.request().unwrap().rejected, [1]);
    let none = pack(of(&["longer than it may be"]));
    assert!(none.entries.is_empty());
    assert!(
        none.refused[0].refusal.error.contains("value_too_long"),
        "{:?}",
        none.refused
    );
}

#[test]
fn entries_do_not_grow_without_end() {
    let row = format!("{{\"message\":\"{}\"}}", "x".repeat(1 << 20));
    let packed = pack(&[row.as_bytes(); 10]);
    let lens: Vec<usize> = packed.entries.iter().map(|entry| entry.bytes.len()).collect();
    assert_eq!(lens.len(), 4, "{lens:?}");
    assert!(lens.iter().all(|len| *len < ENTRY_BYTES + (1 << 10)), "{lens:?}");
    assert_eq!(packed.entries.last().map(|entry| entry.until), Some(10));
}

#[test]
fn points_and_spans_are_rows_too() {
    for (signal, good, bad) in [
        (
            Signal::Metrics,
            r#"{"metric_name":"load","value":0.5}"#,
            r#"{"metric_name":"load","value":"much"}"#,
        ),
        (
            Signal::Traces,
            r#"{"trace_id":"5b8efff798038103d269b633813fc60c","span_id":"eee19b7ec3c1b174","name":"get"}"#,
            r#"{"name":"get"}"#,
        ),
    ] {
        let limits = SignalBatchLimits {
            walk: RecordLimits::default(),
            window: ArrivalWindow::default(),
            decoded_bytes_max: 1 << 20,
        };
        let messages = [good, bad].map(|text| Message::raw(text.to_owned()));
        let packed = SignalBatchWriter::new(signal, limits).pack("", &messages, NOW);
        assert_eq!(packed.entries.len(), 1, "{:?}", packed.refused);
        assert_eq!(packed.refused[0].index, 1);
        assert_eq!(packed.refused[0].refusal.reason, DropReason::InvalidPayload);
    }
}

fn texts(chunk: &MemtableChunk, name: &str) -> Vec<Option<String>> {
    let column = match (name.strip_prefix("attr_"), chunk.fixed(name)) {
        (Some(name), _) => chunk.attribute(AttributeSource::Attr, name),
        (None, Some(ColumnView::Texts(column))) => Some(column),
        (None, _) => None,
    };
    let text = |row| column.and_then(|column| column.text_of(row));
    let text = |row| text(row).map(|text| String::from_utf8(text.to_vec()).unwrap());
    (0..chunk.rows()).map(text).collect()
}

fn durations(chunk: &MemtableChunk) -> Vec<Option<i64>> {
    let Some(ColumnView::Longs(column)) = chunk.fixed("duration_ns") else {
        panic!("spans have durations");
    };
    (0..chunk.rows()).map(|row| column.get(row)).collect()
}

/// The rows of the table for the packed entries, and the changes by reason.
fn made(signal: Signal, packed: &SignalBatch) -> (MemtableChunk, [(&'static str, u64); 3]) {
    let mut decoder = thalweg_otlp::entry_decoder(signal)(&EntryLimits::default());
    let mut chunk = MemtableChunk::new(signal.table());
    let mut changed = ["value_cut", "duration_negative", "time_replaced"].map(|reason| (reason, 0));
    for entry in &packed.entries {
        let decoded = decoder.decode(&entry.bytes, &mut chunk).unwrap();
        for (reason, count) in decoded.changed.reasons() {
            let known = changed.iter_mut().find(|(known, _)| *known == reason);
            known.into_iter().for_each(|(_, sum)| *sum += count);
        }
    }
    (chunk, changed)
}

fn nested(levels: usize) -> String {
    format!(
        "{{\"message\":\"a\",\"deep\":{}1{}}}",
        "[".repeat(levels),
        "]".repeat(levels)
    )
}

#[test]
fn narrow_limits_hold_for_rows_to_the_last_one_that_is_within() {
    let narrow = RecordLimits {
        nesting: 3,
        attributes: 2,
        name_bytes: 5,
        value_bytes: 8,
        cut_values: false,
    };
    for (within, beyond, reason) in [
        (nested(3), nested(4), "nesting_too_deep"),
        (
            r#"{"a":1,"b":2}"#.to_owned(),
            r#"{"a":1,"b":2,"c":3}"#.to_owned(),
            "too_many_attributes",
        ),
        (
            r#"{"abcde":1}"#.to_owned(),
            r#"{"abcdef":1}"#.to_owned(),
            "name_too_long",
        ),
        (
            r#"{"a":"12345678"}"#.to_owned(),
            r#"{"a":"123456789"}"#.to_owned(),
            "value_too_long",
        ),
        (
            r#"{"message":"12345678"}"#.to_owned(),
            r#"{"message":"123456789"}"#.to_owned(),
            "value_too_long",
        ),
    ] {
        let messages = [&within, &beyond].map(|text| Message::raw(text.clone()));
        let packed = batch_writer(narrow).pack("", &messages, NOW);
        let refused: Vec<usize> = packed.refused.iter().map(|refused| refused.index).collect();
        assert_eq!(refused, [1], "{within}, {beyond}: {:?}", packed.refused);
        let refusal = &packed.refused[0].refusal;
        assert!(refusal.error.contains(reason), "{beyond}: {}", refusal.error);
        assert_eq!(refusal.reason, DropReason::TooLarge, "{beyond}");
        assert_eq!(made(Signal::Logs, &packed).0.rows(), 1);
    }
}

#[test]
fn where_long_values_are_cut_the_table_has_them_cut_and_counted_whatever_its_own_limits_are() {
    let limits = RecordLimits {
        value_bytes: 5,
        cut_values: true,
        ..RecordLimits::default()
    };
    // The fifth byte is the first of two.
    let row = Message::raw(r#"{"message":"abcdé","a":"1234567","b":"1234"}"#.to_owned());
    let packed = batch_writer(limits).pack("", &[row], NOW);
    assert_eq!(packed.refused, []);
    let (chunk, changed) = made(Signal::Logs, &packed);
    assert_eq!(changed[0], ("value_cut", 2));
    assert_eq!(texts(&chunk, "body"), [Some("abcd".to_owned())]);
    assert_eq!(texts(&chunk, "attr_a"), [Some("12345".to_owned())]);
    assert_eq!(texts(&chunk, "attr_b"), [Some("1234".to_owned())]);
}

#[test]
fn how_long_a_span_took_follows_from_its_ends_unless_it_is_given() {
    let span = |rest: &str| {
        Message::raw(format!(
            r#"{{"trace_id":"5b8efff798038103d269b633813fc60c","span_id":"eee19b7ec3c1b174",{rest}}}"#
        ))
    };
    let end = NOW + 1_500;
    let messages = [
        span(&format!(r#""time_unix_nano":{NOW},"end_time_unix_nano":{end}"#)),
        span(&format!(r#""time_unix_nano":{end},"end_time_unix_nano":{NOW}"#)),
        span(&format!(
            r#""time_unix_nano":{NOW},"end_time_unix_nano":{end},"duration_ns":7"#
        )),
        span(&format!(r#""time_unix_nano":{NOW}"#)),
        span(&format!(r#""end_time_unix_nano":{end}"#)),
        // An old start time is replaced as the time of the row; the duration stays as sent.
        span(r#""time_unix_nano":1000,"end_time_unix_nano":1500"#),
    ];
    let limits = SignalBatchLimits {
        walk: RecordLimits::default(),
        window: ArrivalWindow::default(),
        decoded_bytes_max: 1 << 20,
    };
    let packed = SignalBatchWriter::new(Signal::Traces, limits).pack("", &messages, NOW);
    assert_eq!(packed.refused, []);
    let (chunk, changed) = made(Signal::Traces, &packed);
    assert_eq!(
        durations(&chunk),
        [Some(1500), Some(-1500), Some(7), None, None, Some(500)]
    );
    assert_eq!(changed[1..], [("duration_negative", 1), ("time_replaced", 1)]);
}

/// Known and unknown names with values of all kinds.
fn any_row() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("message".to_owned()),
        Just("time".to_owned()),
        Just("severity".to_owned()),
        Just("trace_id".to_owned()),
        "[a-zé.]{0,6}",
    ];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1e6..1e6).prop_map(|number: f64| number.into()),
        "\\PC{0,12}".prop_map(Into::into),
    ];
    let value = leaf.prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(serde_json::Value::Array),
            proptest::collection::hash_map("[a-z]{0,3}", inner, 0..3)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    });
    let members = proptest::collection::vec((name, value), 0..5);
    members.prop_map(|members| {
        let member =
            |(name, value): &(String, serde_json::Value)| format!("{}:{value}", serde_json::Value::from(name.as_str()));
        format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
    })
}

proptest! {
    /// Whatever the limits were when a row was accepted, the content of an entry becomes rows.
    #[test]
    fn what_was_taken_becomes_rows(
        texts in proptest::collection::vec(any_row(), 0..6),
        nesting in 1_usize..5,
        attributes in 0_usize..5,
        value_bytes in 1_usize..16,
        cut_values in any::<bool>(),
    ) {
        let limits = RecordLimits { nesting, attributes, name_bytes: 5, value_bytes, cut_values };
        let messages: Vec<Message> = texts.iter().map(|text| Message::raw(text.clone())).collect();
        let packed = batch_writer(limits).pack("plant", &messages, NOW);
        let (chunk, _) = made(Signal::Logs, &packed);
        prop_assert_eq!(chunk.rows() + packed.refused.len(), messages.len());
    }
}
