//! Requests as documentation shows them and senders send them.

use super::*;
use crate::proto::*;

fn text(key: &str, text: &str) -> Pair {
    pair(key, Value::Text(text.to_owned()))
}

fn pair(key: &str, value: Value) -> Pair {
    Pair {
        key: key.to_owned(),
        value: Some(Any { value: Some(value) }),
    }
}

fn resource() -> Option<Resource> {
    Some(Resource {
        attributes: vec![text("service.name", "my.service")],
        dropped: 0,
    })
}

fn scope() -> Option<Scope> {
    Some(Scope {
        name: "my.library".to_owned(),
        version: "1.0.0".to_owned(),
        attributes: vec![text("my.scope.attribute", "some scope attribute")],
        dropped: 0,
    })
}

const HEAD: &str =
    r#""resource": { "attributes": [ { "key": "service.name", "value": { "stringValue": "my.service" } } ] }"#;
const SCOPE: &str = r#""scope": {
    "name": "my.library",
    "version": "1.0.0",
    "attributes": [ { "key": "my.scope.attribute", "value": { "stringValue": "some scope attribute" } } ]
}"#;

#[test]
fn a_log_of_the_documents_is_read() {
    let json = format!(
        r#"{{ "resourceLogs": [ {{ {HEAD}, "scopeLogs": [ {{ {SCOPE}, "logRecords": [ {{
            "timeUnixNano": "1544712660300000000",
            "observedTimeUnixNano": "1544712660300000000",
            "severityNumber": 10,
            "severityText": "Information",
            "traceId": "5B8EFFF798038103D269B633813FC60C",
            "spanId": "EEE19B7EC3C1B174",
            "body": {{ "stringValue": "Example log record" }},
            "attributes": [
                {{ "key": "boolean.attribute", "value": {{ "boolValue": true }} }},
                {{ "key": "int.attribute", "value": {{ "intValue": "10" }} }},
                {{ "key": "double.attribute", "value": {{ "doubleValue": 637.704 }} }},
                {{ "key": "array.attribute", "value": {{ "arrayValue": {{ "values": [
                    {{ "stringValue": "many" }}, {{ "stringValue": "values" }}, null ] }} }} }},
                {{ "key": "map.attribute", "value": {{ "kvlistValue": {{ "values": [
                    {{ "key": "some.map.key", "value": {{ "stringValue": "some value" }} }} ] }} }} }},
                {{ "key": "bytes.attribute", "value": {{ "bytesValue": "AQL/" }} }},
                {{ "key": "absent.attribute" }}
            ]
        }} ] }} ] }} ] }}"#
    );
    let list = vec![
        Any {
            value: Some(Value::Text("many".to_owned())),
        },
        Any {
            value: Some(Value::Text("values".to_owned())),
        },
        Any { value: None },
    ];
    let log = Log {
        time: 1_544_712_660_300_000_000,
        observed_time: 1_544_712_660_300_000_000,
        severity_number: 10,
        severity_text: "Information".to_owned(),
        trace_id: 0x5b8e_fff7_9803_8103_d269_b633_813f_c60c_u128.to_be_bytes().to_vec(),
        span_id: 0xeee1_9b7e_c3c1_b174_u64.to_be_bytes().to_vec(),
        body: Some(Any {
            value: Some(Value::Text("Example log record".to_owned())),
        }),
        attributes: vec![
            pair("boolean.attribute", Value::Bool(true)),
            pair("int.attribute", Value::Int(10)),
            pair("double.attribute", Value::Double(637.704)),
            pair("array.attribute", Value::List(List { values: list })),
            pair(
                "map.attribute",
                Value::Map(Map {
                    values: vec![text("some.map.key", "some value")],
                }),
            ),
            pair("bytes.attribute", Value::Bytes(vec![1, 2, 255])),
            Pair {
                key: "absent.attribute".to_owned(),
                value: None,
            },
        ],
        ..Log::default()
    };
    let expected = Logs {
        groups: vec![ResourceLogs {
            resource: resource(),
            scopes: vec![ScopeLogs {
                scope: scope(),
                records: vec![log],
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    };
    assert_eq!(agrees(Signal::Logs, &expected, &json), Ok(()));
}

#[test]
fn a_span_of_the_documents_is_read() {
    let json = format!(
        r#"{{ "resourceSpans": [ {{ {HEAD}, "scopeSpans": [ {{ {SCOPE}, "spans": [ {{
            "traceId": "5b8efff798038103d269b633813fc60c",
            "spanId": "eee19b7ec3c1b174",
            "parentSpanId": "",
            "name": "I'm a server span",
            "startTimeUnixNano": 1544712660000000000,
            "endTimeUnixNano": "1544712661000000000",
            "kind": "SPAN_KIND_SERVER",
            "flags": 257,
            "events": [ {{ "timeUnixNano": "1544712660500000000", "name": "retry", "droppedAttributesCount": 2 }} ],
            "links": [ {{ "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B173", "flags": 1 }} ],
            "status": {{ "code": 2, "message": "it is down" }}
        }} ] }} ] }} ] }}"#
    );
    let trace_id = 0x5b8e_fff7_9803_8103_d269_b633_813f_c60c_u128.to_be_bytes().to_vec();
    let span = Span {
        trace_id: trace_id.clone(),
        span_id: 0xeee1_9b7e_c3c1_b174_u64.to_be_bytes().to_vec(),
        name: "I'm a server span".to_owned(),
        start: 1_544_712_660_000_000_000,
        end: 1_544_712_661_000_000_000,
        kind: 2,
        flags: 257,
        events: vec![Event {
            time: 1_544_712_660_500_000_000,
            name: "retry".to_owned(),
            dropped: 2,
            ..Event::default()
        }],
        links: vec![Link {
            trace_id,
            span_id: 0xeee1_9b7e_c3c1_b173_u64.to_be_bytes().to_vec(),
            flags: 1,
            ..Link::default()
        }],
        status: Some(Status {
            code: 2,
            message: "it is down".to_owned(),
        }),
        ..Span::default()
    };
    let expected = Traces {
        groups: vec![ResourceSpans {
            resource: resource(),
            scopes: vec![ScopeSpans {
                scope: scope(),
                records: vec![span],
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    assert_eq!(agrees(Signal::Traces, &expected, &json), Ok(()));
}

#[test]
fn metrics_of_the_documents_are_read() {
    let json = format!(
        r#"{{ "resourceMetrics": [ {{ {HEAD}, "scopeMetrics": [ {{ {SCOPE}, "metrics": [
            {{ "name": "my.counter", "unit": "1", "description": "I am a Counter", "sum": {{
                "aggregationTemporality": 1, "isMonotonic": true,
                "dataPoints": [ {{ "asDouble": 5, "timeUnixNano": "1544712660300000000" }} ] }} }},
            {{ "name": "my.gauge", "gauge": {{ "dataPoints": [ {{ "asInt": "-10" }}, {{ "flags": 1 }} ] }} }},
            {{ "name": "my.histogram", "histogram": {{
                "aggregationTemporality": "AGGREGATION_TEMPORALITY_CUMULATIVE",
                "dataPoints": [ {{ "count": 2, "sum": 2, "bucketCounts": [ 1, "1" ], "explicitBounds": [ 1 ],
                    "min": 0, "max": 2 }} ] }} }},
            {{ "name": "my.exponential.histogram", "exponentialHistogram": {{
                "aggregationTemporality": 2,
                "dataPoints": [ {{ "count": 3, "sum": 10, "scale": -1, "zeroCount": 1,
                    "positive": {{ "offset": 1, "bucketCounts": [ 0, 2 ] }}, "zeroThreshold": 1e-3 }} ] }} }},
            {{ "name": "my.summary", "summary": {{ "dataPoints": [ {{ "count": "2", "sum": "NaN",
                "quantileValues": [ {{ "quantile": 0.5, "value": 1 }} ] }} ] }} }}
        ] }} ] }} ] }}"#
    );
    let read = Metrics::decode(&*proto_of(Signal::Metrics, &json).unwrap()).unwrap();
    let scope = &read.groups[0].scopes[0];
    let data: Vec<&Data> = scope
        .records
        .iter()
        .map(|metric| metric.data.as_ref().unwrap())
        .collect();
    assert_eq!((&read.groups[0].resource, &scope.scope), (&resource(), &self::scope()));
    let Data::Sum(sum) = data[0] else { panic!("{data:?}") };
    assert_eq!((sum.temporality, sum.is_monotonic), (1, true));
    assert_eq!(sum.points[0].value, Some(NumberValue::Double(5.0)));
    assert_eq!(sum.points[0].time, 1_544_712_660_300_000_000);
    let Data::Gauge(gauge) = data[1] else {
        panic!("{data:?}")
    };
    assert_eq!(gauge.points[0].value, Some(NumberValue::Int(-10)));
    assert_eq!((gauge.points[1].value, gauge.points[1].flags), (None, 1));
    let Data::Histogram(histogram) = data[2] else {
        panic!("{data:?}")
    };
    let point = &histogram.points[0];
    assert_eq!(
        (point.count, point.sum, &point.buckets[..], &point.bounds[..]),
        (2, Some(2.0), &[1, 1][..], &[1.0][..])
    );
    assert_eq!((point.min, point.max, histogram.temporality), (Some(0.0), Some(2.0), 2));
    let Data::Exponential(exponential) = data[3] else {
        panic!("{data:?}")
    };
    let point = &exponential.points[0];
    assert_eq!(
        (point.scale, point.zero_count, point.zero_threshold, point.sum),
        (-1, 1, 1e-3, Some(10.0))
    );
    let positive = point.positive.as_ref().unwrap();
    assert_eq!(
        (positive.offset, &positive.counts[..], &point.negative),
        (1, &[0, 2][..], &None)
    );
    let Data::Summary(summary) = data[4] else {
        panic!("{data:?}")
    };
    assert!(summary.points[0].sum.is_nan());
    assert_eq!(
        (
            summary.points[0].quantiles[0].quantile,
            summary.points[0].quantiles[0].value
        ),
        (0.5, 1.0)
    );
}

#[test]
fn nothing_in_a_request_is_a_request_with_nothing() {
    for json in [
        "{}",
        "\u{feff}{}",
        " {\r\n\t} ",
        r#"{"resourceLogs":[]}"#,
        r#"{"resource_logs": null, "x": 1}"#,
    ] {
        assert_eq!(proto_of(Signal::Logs, json), Ok(Vec::new()), "{json}");
    }
    assert_eq!(proto_of(Signal::Logs, r#"{"resourceLogs":[{}]}"#).unwrap().len(), 2);
}
