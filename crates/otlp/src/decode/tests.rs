//! Compares rows with a slow model, built from what the reference decoder reads.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::json::tests::random;
use crate::json::tests::style::Dice;
use crate::proto::{self, Any, Data, NumberValue, Pair, Value};
use crate::validate::walk;
use thalweg_columns::rows::column_view::ColumnView;
use thalweg_columns::rows::double_text::write_double;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::tables::TableSpec;

/// Texts by column; attributes are named `attr.name` and so on.
type Row = BTreeMap<String, String>;

const NOW: i64 = 1_700_000_000_000_000_000;

fn arrival(signal: Signal) -> DecodeContext<'static> {
    DecodeContext {
        signal,
        time: NOW,
        window: ArrivalWindow::default(),
        rejected: RejectedRecords::NONE,
        cut_values_at: None,
    }
}

fn spec(signal: Signal) -> &'static TableSpec {
    match signal {
        Signal::Logs => &tables::LOGS,
        Signal::Metrics => &tables::METRICS,
        Signal::Traces => &tables::TRACES,
    }
}

/// All rows of a chunk, without nested columns.
fn rows(chunk: &MemtableChunk) -> Vec<Row> {
    let columns = (chunk.spec().columns)().columns;
    let mut rows = vec![Row::new(); chunk.rows()];
    for (number, row) in rows.iter_mut().enumerate() {
        for column in &columns {
            let text = match chunk.fixed(&column.name) {
                Some(ColumnView::Longs(values)) => values.get(number).map(|value| value.to_string()),
                Some(ColumnView::Integers(values)) => values.get(number).map(|value| value.to_string()),
                Some(ColumnView::Doubles(values)) => values.get(number).map(|value| format!("{value:?}")),
                Some(ColumnView::Booleans(values)) => values.get(number).map(|value| value.to_string()),
                Some(ColumnView::Texts(values)) => values
                    .text_of(number)
                    .map(|text| String::from_utf8(text.to_vec()).unwrap()),
                Some(ColumnView::Nanos(_) | ColumnView::Nested(_)) | None => None,
            };
            row.extend(text.map(|text| (column.name.clone(), text)));
        }
        for slot in chunk.slots().all() {
            let text = slot
                .column
                .text_of(number)
                .map(|text| String::from_utf8(text.to_vec()).unwrap());
            row.extend(text.map(|text| (format!("{}.{}", slot.source.as_str(), slot.name), text)));
        }
    }
    for extra in chunk.extras() {
        let key = format!("{}.{}", extra.source.as_str(), extra.name);
        rows[extra.row as usize].insert(key, extra.text.to_string());
    }
    rows
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Double(value) => double(*value),
        Value::Bytes(bytes) => base64::Engine::encode(&base64::prelude::BASE64_STANDARD, bytes),
        Value::List(_) | Value::Map(_) => json(Some(value)),
    }
}

fn double(value: f64) -> String {
    let mut text = String::new();
    write_double(value, &mut text);
    assert!(
        value.is_nan() || text.replace("Infinity", "inf").parse::<f64>().unwrap() == value,
        "{text}"
    );
    text
}

fn json(value: Option<&Value>) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    match value {
        None => "null".to_owned(),
        Some(Value::Text(text)) => quoted(text),
        Some(Value::Bytes(bytes)) => quoted(&text_of(&Value::Bytes(bytes.clone()))),
        Some(Value::Double(value)) if !value.is_finite() => quoted(&double(*value)),
        Some(Value::List(list)) => {
            let items: Vec<String> = list.values.iter().map(|item| json(item.value.as_ref())).collect();
            format!("[{}]", items.join(","))
        }
        Some(Value::Map(map)) => {
            let pair = |pair: &Pair| {
                let value = pair.value.as_ref().and_then(|any| any.value.as_ref());
                format!("{}:{}", quoted(&pair.key), json(value))
            };
            let pairs: Vec<String> = map.values.iter().map(pair).collect();
            format!("{{{}}}", pairs.join(","))
        }
        Some(plain) => text_of(plain),
    }
}

fn put_pairs(row: &mut Row, source: &str, pairs: &[Pair]) {
    for pair in pairs {
        if let Some(value) = pair.value.as_ref().and_then(|any| any.value.as_ref()) {
            row.insert(format!("{source}.{}", pair.key), text_of(value));
        }
    }
}

/// The last attribute with a name wins, even if it has no value.
fn settled(pairs: &[Pair]) -> Vec<Pair> {
    let is_last = |(at, pair): &(usize, &Pair)| !pairs[at + 1..].iter().any(|later| later.key == pair.key);
    pairs
        .iter()
        .enumerate()
        .filter(is_last)
        .map(|(_, pair)| pair.clone())
        .collect()
}

fn put(row: &mut Row, column: &str, value: impl ToString) {
    row.insert(column.to_owned(), value.to_string());
}

fn put_text(row: &mut Row, column: &str, text: &str) {
    if !text.is_empty() {
        put(row, column, text);
    }
}

fn put_id(row: &mut Row, column: &str, id: &[u8], len: usize) {
    if id.len() == len {
        put(
            row,
            column,
            id.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        );
    }
}

fn put_time(row: &mut Row, own: u64, observed: u64) {
    put(row, "arrival_unix_nano", NOW);
    let sent = if own > 0 { own } else { observed };
    let window = ArrivalWindow::default();
    let is_within = i64::try_from(sent).is_ok_and(|sent| sent >= NOW - window.past && sent <= NOW + window.future);
    match (sent, is_within) {
        (0, _) => {
            put(row, "time_unix_nano", NOW);
            put(row, "time_source", "arrival");
        }
        (sent, false) => {
            put(row, "time_unix_nano", NOW);
            put(row, "time_source", "arrival");
            put(row, "time_original", sent);
        }
        (sent, true) => {
            put(row, "time_unix_nano", sent);
            if own == 0 {
                put(row, "time_source", "observed");
            }
        }
    }
}

fn put_positive(row: &mut Row, column: &str, time: u64) {
    if let Some(time) = i64::try_from(time).ok().filter(|time| *time > 0) {
        put(row, column, time);
    }
}

/// Columns that rows of one group and scope share.
fn shared(resource: Option<&proto::Resource>, url: &str, scope: Option<&proto::Scope>, scope_url: &str) -> Row {
    let mut row = Row::new();
    let none = Vec::new();
    put_pairs(
        &mut row,
        "resource",
        &settled(resource.map_or(&none, |resource| &resource.attributes)),
    );
    put_text(&mut row, "resource_schema_url", url);
    put_text(&mut row, "scope_schema_url", scope_url);
    if let Some(scope) = scope {
        put_pairs(&mut row, "scope", &settled(&scope.attributes));
        put_text(&mut row, "scope_name", &scope.name);
        put_text(&mut row, "scope_version", &scope.version);
    }
    row
}

fn of_logs(request: &proto::Logs) -> Vec<Row> {
    let mut rows = Vec::new();
    for group in &request.groups {
        for scope in &group.scopes {
            let shared = shared(
                group.resource.as_ref(),
                &group.schema_url,
                scope.scope.as_ref(),
                &scope.schema_url,
            );
            for log in &scope.records {
                let mut row = shared.clone();
                put_pairs(&mut row, "attr", &log.attributes);
                put_time(&mut row, log.time, log.observed_time);
                put_positive(&mut row, "observed_time_unix_nano", log.observed_time);
                if log.severity_number != 0 {
                    put(&mut row, "severity_number", log.severity_number);
                }
                put_text(&mut row, "severity_text", &log.severity_text);
                put_text(&mut row, "event_name", &log.event_name);
                for (column, count) in [("flags", log.flags), ("dropped_attributes_count", log.dropped)] {
                    if count != 0 {
                        put(&mut row, column, count);
                    }
                }
                put_id(&mut row, "trace_id", &log.trace_id, 16);
                put_id(&mut row, "span_id", &log.span_id, 8);
                if let Some(Any { value: Some(body) }) = &log.body {
                    put(&mut row, "body", text_of(body));
                    let kind = match body {
                        Value::Text(_) => "",
                        Value::Bool(_) => "bool",
                        Value::Int(_) => "int",
                        Value::Double(_) => "double",
                        Value::Bytes(_) => "bytes",
                        Value::List(_) => "array",
                        Value::Map(_) => "map",
                    };
                    put_text(&mut row, "body_kind", kind);
                }
                rows.push(row);
            }
        }
    }
    rows
}

fn of_metrics(request: &proto::Metrics) -> Vec<Row> {
    let mut rows = Vec::new();
    for group in &request.groups {
        for scope in &group.scopes {
            let shared = shared(
                group.resource.as_ref(),
                &group.schema_url,
                scope.scope.as_ref(),
                &scope.schema_url,
            );
            for metric in &scope.records {
                let mut shared = shared.clone();
                put_text(&mut shared, "metric_name", &metric.name);
                put_text(&mut shared, "unit", &metric.unit);
                put_text(&mut shared, "description", &metric.description);
                if let Some(data) = &metric.data {
                    rows.extend(of_data(&shared, data));
                }
            }
        }
    }
    rows
}

fn of_data(shared: &Row, data: &Data) -> Vec<Row> {
    let temporality = |row: &mut Row, number: i32| match number {
        1 => put(row, "temporality", "delta"),
        2 => put(row, "temporality", "cumulative"),
        _ => {}
    };
    let start = |kind: &str, pairs: &[Pair], (time, start): (u64, u64), flags: u32| {
        let mut row = shared.clone();
        put(&mut row, "metric_type", kind);
        put_pairs(&mut row, "attr", pairs);
        put_time(&mut row, time, 0);
        put_positive(&mut row, "start_time_unix_nano", start);
        if flags != 0 {
            put(&mut row, "flags", flags);
        }
        (row, flags & 1 == 0)
    };
    let doubles = |row: &mut Row, all: [(&str, Option<f64>); 3]| {
        for (column, value) in all {
            value
                .into_iter()
                .for_each(|value| put(row, column, format!("{value:?}")));
        }
    };
    let numbers = |kind: &str, points: &[proto::NumberPoint]| -> Vec<Row> {
        let row = |point: &proto::NumberPoint| {
            let (mut row, has_value) = start(kind, &point.attributes, (point.time, point.start), point.flags);
            match &point.value {
                Some(NumberValue::Double(value)) if has_value => put(&mut row, "value", format!("{value:?}")),
                Some(NumberValue::Int(value)) if has_value => {
                    put(&mut row, "value", format!("{:?}", *value as f64));
                    put(&mut row, "value_int", value);
                }
                _ => {}
            }
            row
        };
        points.iter().map(row).collect()
    };
    match data {
        Data::Gauge(gauge) => numbers("gauge", &gauge.points),
        Data::Sum(sum) => {
            let mut rows = numbers("sum", &sum.points);
            for row in &mut rows {
                temporality(row, sum.temporality);
                put(row, "is_monotonic", sum.is_monotonic);
            }
            rows
        }
        Data::Histogram(histogram) => {
            let row = |point: &proto::HistogramPoint| {
                let (mut row, has_value) =
                    start("histogram", &point.attributes, (point.time, point.start), point.flags);
                temporality(&mut row, histogram.temporality);
                if has_value {
                    put(&mut row, "count", point.count as i64);
                }
                doubles(&mut row, [("sum", point.sum), ("min", point.min), ("max", point.max)]);
                row
            };
            histogram.points.iter().map(row).collect()
        }
        Data::Exponential(histogram) => {
            let row = |point: &proto::ExponentialPoint| {
                let times = (point.time, point.start);
                let (mut row, has_value) = start("exponential_histogram", &point.attributes, times, point.flags);
                temporality(&mut row, histogram.temporality);
                if has_value {
                    put(&mut row, "count", point.count as i64);
                    put(&mut row, "zero_count", point.zero_count as i64);
                    put(&mut row, "scale", point.scale);
                }
                doubles(&mut row, [("sum", point.sum), ("min", point.min), ("max", point.max)]);
                if point.zero_threshold.to_bits() != 0 {
                    put(&mut row, "zero_threshold", format!("{:?}", point.zero_threshold));
                }
                for (column, buckets) in [
                    ("positive_offset", &point.positive),
                    ("negative_offset", &point.negative),
                ] {
                    if let Some(buckets) = buckets {
                        put(&mut row, column, buckets.offset);
                    }
                }
                row
            };
            histogram.points.iter().map(row).collect()
        }
        Data::Summary(summary) => {
            let row = |point: &proto::SummaryPoint| {
                let (mut row, has_value) = start("summary", &point.attributes, (point.time, point.start), point.flags);
                if has_value {
                    put(&mut row, "count", point.count as i64);
                    put(&mut row, "sum", format!("{:?}", point.sum));
                }
                row
            };
            summary.points.iter().map(row).collect()
        }
    }
}

fn of_traces(request: &proto::Traces) -> Vec<Row> {
    let mut rows = Vec::new();
    for group in &request.groups {
        for scope in &group.scopes {
            let shared = shared(
                group.resource.as_ref(),
                &group.schema_url,
                scope.scope.as_ref(),
                &scope.schema_url,
            );
            for span in &scope.records {
                let mut row = shared.clone();
                put_pairs(&mut row, "attr", &span.attributes);
                put_time(&mut row, span.start, 0);
                put_id(&mut row, "trace_id", &span.trace_id, 16);
                put_id(&mut row, "span_id", &span.span_id, 8);
                put_id(&mut row, "parent_span_id", &span.parent_span_id, 8);
                put_text(&mut row, "trace_state", &span.trace_state);
                put_text(&mut row, "name", &span.name);
                let kinds = ["unspecified", "internal", "server", "client", "producer", "consumer"];
                let kind = usize::try_from(span.kind).ok().and_then(|kind| kinds.get(kind));
                put(&mut row, "kind", kind.unwrap_or(&"unspecified"));
                let status = span.status.clone().unwrap_or_default();
                let code = ["unset", "ok", "error"]
                    .get(usize::try_from(status.code).unwrap_or(9))
                    .copied();
                put(&mut row, "status_code", code.unwrap_or("unset"));
                put_text(&mut row, "status_message", &status.message);
                put_positive(&mut row, "end_time_unix_nano", span.end);
                let positive = |time: u64| i64::try_from(time).ok().filter(|time| *time > 0);
                if let (Some(start), Some(end)) = (positive(span.start), positive(span.end)) {
                    put(&mut row, "duration_ns", end - start);
                }
                for (column, count) in [
                    ("flags", span.flags),
                    ("dropped_attributes_count", span.dropped_attributes),
                    ("dropped_events_count", span.dropped_events),
                    ("dropped_links_count", span.dropped_links),
                ] {
                    if count != 0 {
                        put(&mut row, column, count);
                    }
                }
                rows.push(row);
            }
        }
    }
    rows
}

/// A request of a signal and its expected rows.
fn request(signal: Signal, seed: u64) -> (Vec<u8>, Vec<Row>) {
    let mut dice = Dice::new(seed);
    match signal {
        Signal::Logs => {
            let request = random::logs(&mut dice);
            (request.encode_to_vec(), of_logs(&request))
        }
        Signal::Metrics => {
            let request = random::metrics(&mut dice);
            (request.encode_to_vec(), of_metrics(&request))
        }
        Signal::Traces => {
            let request = random::traces(&mut dice);
            (request.encode_to_vec(), of_traces(&request))
        }
    }
}

/// Removes the columns that hash the whole record; they have their own tests.
fn without_hashes(mut rows: Vec<Row>) -> Vec<Row> {
    for row in &mut rows {
        row.remove("series_id");
        row.remove("fingerprint");
    }
    rows
}

proptest! {
    #[test]
    fn rows_are_what_the_reference_reads(seed: u64) {
        for signal in Signal::ALL {
            let mut decoder = OtlpDecoder::default();
            let mut chunk = MemtableChunk::new(spec(signal));
            let mut expected = Vec::new();
            // One decoder and one chunk process several requests in a row, then are reused.
            for _ in 0..2 {
                for part in 0..3 {
                    let (bytes, rows) = request(signal, seed.wrapping_add(part));
                    decoder.decode(&bytes, &arrival(signal), &mut chunk).unwrap();
                    expected.extend(rows);
                }
                let found = without_hashes(rows(&chunk));
                prop_assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    prop_assert_eq!(found, expected, "{:?}", signal);
                }
                chunk.clear();
                expected.clear();
            }
        }
    }

    #[test]
    fn rejected_records_are_left_out(seed: u64, picks in proptest::collection::vec(any::<bool>(), 40)) {
        for signal in Signal::ALL {
            let (bytes, all) = request(signal, seed);
            let rejected: Vec<u32> = (0..all.len() as u32).filter(|at| picks[*at as usize % picks.len()]).collect();
            let arrival = DecodeContext { rejected: RejectedRecords::Listed(&rejected), ..arrival(signal) };
            let mut chunk = MemtableChunk::new(spec(signal));
            OtlpDecoder::default().decode(&bytes, &arrival, &mut chunk).unwrap();
            let left = all.into_iter().enumerate().filter(|(at, _)| !rejected.contains(&(*at as u32)));
            let left: Vec<Row> = left.map(|(_, row)| row).collect();
            prop_assert_eq!(without_hashes(rows(&chunk)), left);
        }
    }

    #[test]
    fn what_the_look_takes_can_be_decoded(seed: u64, damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4)) {
        for signal in Signal::ALL {
            let (mut bytes, _) = request(signal, seed);
            for (at, value) in &damage {
                let len = bytes.len();
                if len > 0 {
                    bytes[usize::from(*at) % len] = *value;
                }
            }
            let walked = walk(signal, &bytes, &RecordLimits::default());
            let mut chunk = MemtableChunk::new(spec(signal));
            if let Ok(walked) = walked {
                let arrival = DecodeContext { rejected: RejectedRecords::Listed(&walked.rejected), ..arrival(signal) };
                OtlpDecoder::default().decode(&bytes, &arrival, &mut chunk).unwrap();
                prop_assert_eq!(chunk.rows(), walked.records as usize - walked.rejected.len());
            } else {
                // The result does not matter; the decoder must not panic.
                let _ = OtlpDecoder::default().decode(&bytes, &arrival(signal), &mut chunk);
            }
        }
    }
}

#[test]
fn names_beyond_those_that_have_columns_cost_no_column() {
    let pair = |n: u32| Pair {
        key: format!("k{n}"),
        value: Some(Any {
            value: Some(Value::Int(n.into())),
        }),
    };
    let logs = (0..30).map(|log| proto::Log {
        attributes: (log * 100..log * 100 + 100).map(pair).collect(),
        ..Default::default()
    });
    let request = proto::Logs {
        groups: vec![proto::ResourceLogs {
            scopes: vec![proto::ScopeLogs {
                records: logs.collect(),
                ..Default::default()
            }],
            ..Default::default()
        }],
    };
    let mut chunk = MemtableChunk::new(&tables::LOGS);
    OtlpDecoder::default()
        .decode(&request.encode_to_vec(), &arrival(Signal::Logs), &mut chunk)
        .unwrap();
    assert_eq!((chunk.slots().all().len(), chunk.extras().len()), (1024, 3000 - 1024));
    assert_eq!(rows(&chunk), of_logs(&request));
}

/// What has no place in a row, and changes nothing else in it.
#[test]
fn what_has_no_column_is_counted() {
    const BEYOND: u64 = 1 << 63;
    let resource = |dropped| {
        Some(proto::Resource {
            dropped,
            ..Default::default()
        })
    };
    let scope = |dropped| {
        Some(proto::Scope {
            dropped,
            ..Default::default()
        })
    };
    let decoded = |signal, request: Vec<u8>| {
        let mut chunk = MemtableChunk::new(spec(signal));
        let changed = OtlpDecoder::default().decode(&request, &arrival(signal), &mut chunk);
        (changed.unwrap(), rows(&chunk))
    };
    let logs = |observed_time, of_resource, of_scope| {
        let log = proto::Log {
            time: NOW as u64,
            observed_time,
            severity_number: 99,
            ..Default::default()
        };
        let scopes = vec![proto::ScopeLogs {
            scope: scope(of_scope),
            records: vec![log],
            ..Default::default()
        }];
        let groups = vec![proto::ResourceLogs {
            resource: resource(of_resource),
            scopes,
            ..Default::default()
        }];
        decoded(Signal::Logs, proto::Logs { groups }.encode_to_vec())
    };
    let (changed, rows) = logs(BEYOND, 7, 2);
    let expected = RowChangeCounts {
        stamps_out_of_range: 1,
        dropped_counts_left_out: 2,
        ..RowChangeCounts::default()
    };
    assert_eq!(changed, expected);
    assert_eq!(rows[0]["severity_number"], "99", "a number needs no name");
    assert_eq!(rows[0].get("observed_time_unix_nano"), None);
    assert_eq!(logs(1, 0, 0).0, RowChangeCounts::default());

    let span = proto::Span {
        start: NOW as u64,
        end: BEYOND,
        kind: 6,
        status: Some(proto::Status {
            code: -1,
            ..Default::default()
        }),
        events: vec![proto::Event {
            time: u64::MAX,
            ..Default::default()
        }],
        ..Default::default()
    };
    let scopes = vec![proto::ScopeSpans {
        records: vec![span],
        ..Default::default()
    }];
    let groups = vec![proto::ResourceSpans {
        scopes,
        ..Default::default()
    }];
    let (changed, rows) = decoded(Signal::Traces, proto::Traces { groups }.encode_to_vec());
    let expected = RowChangeCounts {
        stamps_out_of_range: 2,
        enums_unknown: 2,
        ..RowChangeCounts::default()
    };
    assert_eq!(changed, expected);
    assert_eq!(
        (rows[0]["kind"].as_str(), rows[0]["status_code"].as_str()),
        ("unspecified", "unset")
    );

    let point = proto::NumberPoint {
        start: BEYOND,
        time: NOW as u64,
        exemplars: vec![proto::Exemplar {
            time: BEYOND,
            ..Default::default()
        }],
        ..Default::default()
    };
    let sum = proto::Sum {
        points: vec![point],
        temporality: 3,
        is_monotonic: true,
    };
    let pair = Pair {
        key: "a".to_owned(),
        value: None,
    };
    let metric = proto::Metric {
        data: Some(Data::Sum(sum)),
        metadata: vec![pair.clone(), pair],
        ..Default::default()
    };
    let scopes = vec![proto::ScopeMetrics {
        records: vec![metric],
        ..Default::default()
    }];
    let groups = vec![proto::ResourceMetrics {
        scopes,
        ..Default::default()
    }];
    let (changed, rows) = decoded(Signal::Metrics, proto::Metrics { groups }.encode_to_vec());
    let expected = RowChangeCounts {
        stamps_out_of_range: 2,
        enums_unknown: 1,
        metadata_left_out: 2,
        ..RowChangeCounts::default()
    };
    assert_eq!(changed, expected);
    assert_eq!((rows.len(), rows[0].get("temporality")), (1, None));
}

#[test]
fn what_is_not_as_it_was_sent_is_counted() {
    let log = proto::Log {
        time: 5,
        trace_id: vec![1; 3],
        body: Some(Any {
            value: Some(Value::Text("é".repeat(10))),
        }),
        attributes: ["a", "b", "a"]
            .map(|key| Pair {
                key: key.to_owned(),
                value: Some(Any {
                    value: Some(Value::Bool(true)),
                }),
            })
            .to_vec(),
        ..Default::default()
    };
    let request = proto::Logs {
        groups: vec![proto::ResourceLogs {
            scopes: vec![proto::ScopeLogs {
                records: vec![log],
                ..Default::default()
            }],
            ..Default::default()
        }],
    };
    let mut bytes = request.encode_to_vec();
    // The first character of the body becomes invalid UTF-8.
    let at = bytes.windows(2).position(|two| two == "é".as_bytes()).unwrap();
    bytes[at] = b'x';
    let arrival = DecodeContext {
        cut_values_at: Some(10),
        ..arrival(Signal::Logs)
    };
    let mut chunk = MemtableChunk::new(&tables::LOGS);
    let changed = OtlpDecoder::default().decode(&bytes, &arrival, &mut chunk).unwrap();
    let expected = RowChangeCounts {
        utf8_replaced: 1,
        ids_wrong: 1,
        keys_repeated: 1,
        times_replaced: 1,
        values_cut: 1,
        ..RowChangeCounts::default()
    };
    assert_eq!(changed, expected);
    let row = rows(&chunk).remove(0);
    assert_eq!(
        (row["body"].as_str(), row["time_original"].as_str()),
        ("x\u{fffd}ééé", "5")
    );
}
