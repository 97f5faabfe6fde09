//! Writes requests as JSON according to the OTLP definition, independently of the tested tables.

use super::style::{Member, Style};
use crate::proto::*;

/// Defaults may be left out, as in protobuf.
fn unless<T: PartialEq + Default>(value: &T, text: String) -> Option<String> {
    (*value != T::default()).then_some(text)
}

fn all<T>(s: &mut Style, items: &[T], write: impl Fn(&mut Style, &T) -> String) -> Option<String> {
    let items = items.iter().map(|item| write(s, item)).collect();
    s.list(items)
}

fn one<T>(s: &mut Style, item: &Option<T>, write: impl Fn(&mut Style, &T) -> String) -> Option<String> {
    item.as_ref().map(|item| write(s, item))
}

fn text(s: &mut Style, value: &String) -> Option<String> {
    unless(value, s.text(value))
}

fn time(s: &mut Style, value: u64) -> Option<String> {
    unless(&value, s.long(value))
}

fn count(s: &mut Style, value: u32) -> Option<String> {
    unless(&value, s.integer(value))
}

fn id(s: &mut Style, value: &Vec<u8>) -> Option<String> {
    unless(value, s.id(value))
}

fn some(s: &mut Style, value: Option<f64>) -> Option<String> {
    value.map(|value| s.double(value))
}

/// The members of a group or scope of any signal.
fn group(s: &mut Style, names: [&'static str; 2], inner: (Option<String>, Option<String>, &String)) -> String {
    let (of, items, schema_url) = inner;
    let members: Vec<Member> = vec![(names[0], of), (names[1], items), ("schemaUrl", text(s, schema_url))];
    s.object(members)
}

pub fn logs(s: &mut Style, request: &Logs) -> String {
    let groups = all(s, &request.groups, |s, of| {
        let scopes = all(s, &of.scopes, |s, of| {
            let inner = (one(s, &of.scope, scope), all(s, &of.records, log), &of.schema_url);
            group(s, ["scope", "logRecords"], inner)
        });
        let inner = (one(s, &of.resource, resource), scopes, &of.schema_url);
        group(s, ["resource", "scopeLogs"], inner)
    });
    s.object(vec![("resourceLogs", groups)])
}

pub fn metrics(s: &mut Style, request: &Metrics) -> String {
    let groups = all(s, &request.groups, |s, of| {
        let scopes = all(s, &of.scopes, |s, of| {
            let inner = (one(s, &of.scope, scope), all(s, &of.records, metric), &of.schema_url);
            group(s, ["scope", "metrics"], inner)
        });
        let inner = (one(s, &of.resource, resource), scopes, &of.schema_url);
        group(s, ["resource", "scopeMetrics"], inner)
    });
    s.object(vec![("resourceMetrics", groups)])
}

pub fn traces(s: &mut Style, request: &Traces) -> String {
    let groups = all(s, &request.groups, |s, of| {
        let scopes = all(s, &of.scopes, |s, of| {
            let inner = (one(s, &of.scope, scope), all(s, &of.records, span), &of.schema_url);
            group(s, ["scope", "spans"], inner)
        });
        let inner = (one(s, &of.resource, resource), scopes, &of.schema_url);
        group(s, ["resource", "scopeSpans"], inner)
    });
    s.object(vec![("resourceSpans", groups)])
}

fn resource(s: &mut Style, of: &Resource) -> String {
    let members = vec![
        ("attributes", all(s, &of.attributes, pair)),
        ("droppedAttributesCount", count(s, of.dropped)),
    ];
    s.object(members)
}

fn scope(s: &mut Style, of: &Scope) -> String {
    let members = vec![
        ("name", text(s, &of.name)),
        ("version", text(s, &of.version)),
        ("attributes", all(s, &of.attributes, pair)),
        ("droppedAttributesCount", count(s, of.dropped)),
    ];
    s.object(members)
}

fn pair(s: &mut Style, of: &Pair) -> String {
    let members = vec![("key", text(s, &of.key)), ("value", one(s, &of.value, any))];
    s.object(members)
}

fn any(s: &mut Style, of: &Any) -> String {
    let Some(value) = &of.value else {
        return s.object(Vec::new());
    };
    let member = match value {
        Value::Text(text) => ("stringValue", Some(s.text(text))),
        Value::Bool(value) => ("boolValue", Some(value.to_string())),
        Value::Int(value) => ("intValue", Some(s.long(value))),
        Value::Double(value) => ("doubleValue", Some(s.double(*value))),
        Value::Bytes(bytes) => ("bytesValue", Some(s.bytes(bytes))),
        Value::List(list) => {
            let members = vec![("values", all(s, &list.values, any))];
            ("arrayValue", Some(s.object(members)))
        }
        Value::Map(map) => {
            let members = vec![("values", all(s, &map.values, pair))];
            ("kvlistValue", Some(s.object(members)))
        }
    };
    s.object(vec![member])
}

fn log(s: &mut Style, of: &Log) -> String {
    let names = [
        "SEVERITY_NUMBER_UNSPECIFIED",
        "SEVERITY_NUMBER_TRACE",
        "SEVERITY_NUMBER_TRACE2",
    ];
    let members = vec![
        ("timeUnixNano", time(s, of.time)),
        ("observedTimeUnixNano", time(s, of.observed_time)),
        (
            "severityNumber",
            unless(&of.severity_number, s.one_of(&names, of.severity_number)),
        ),
        ("severityText", text(s, &of.severity_text)),
        ("body", one(s, &of.body, any)),
        ("attributes", all(s, &of.attributes, pair)),
        ("droppedAttributesCount", count(s, of.dropped)),
        ("flags", count(s, of.flags)),
        ("traceId", id(s, &of.trace_id)),
        ("spanId", id(s, &of.span_id)),
        ("eventName", text(s, &of.event_name)),
    ];
    s.object(members)
}

fn span(s: &mut Style, of: &Span) -> String {
    let names = [
        "SPAN_KIND_UNSPECIFIED",
        "SPAN_KIND_INTERNAL",
        "SPAN_KIND_SERVER",
        "SPAN_KIND_CLIENT",
    ];
    let members = vec![
        ("traceId", id(s, &of.trace_id)),
        ("spanId", id(s, &of.span_id)),
        ("traceState", text(s, &of.trace_state)),
        ("parentSpanId", id(s, &of.parent_span_id)),
        ("flags", count(s, of.flags)),
        ("name", text(s, &of.name)),
        ("kind", unless(&of.kind, s.one_of(&names, of.kind))),
        ("startTimeUnixNano", time(s, of.start)),
        ("endTimeUnixNano", time(s, of.end)),
        ("attributes", all(s, &of.attributes, pair)),
        ("droppedAttributesCount", count(s, of.dropped_attributes)),
        ("events", all(s, &of.events, event)),
        ("droppedEventsCount", count(s, of.dropped_events)),
        ("links", all(s, &of.links, link)),
        ("droppedLinksCount", count(s, of.dropped_links)),
        ("status", one(s, &of.status, status)),
    ];
    s.object(members)
}

fn event(s: &mut Style, of: &Event) -> String {
    let members = vec![
        ("timeUnixNano", time(s, of.time)),
        ("name", text(s, &of.name)),
        ("attributes", all(s, &of.attributes, pair)),
        ("droppedAttributesCount", count(s, of.dropped)),
    ];
    s.object(members)
}

fn link(s: &mut Style, of: &Link) -> String {
    let members = vec![
        ("traceId", id(s, &of.trace_id)),
        ("spanId", id(s, &of.span_id)),
        ("traceState", text(s, &of.trace_state)),
        ("attributes", all(s, &of.attributes, pair)),
        ("droppedAttributesCount", count(s, of.dropped)),
        ("flags", count(s, of.flags)),
    ];
    s.object(members)
}

fn status(s: &mut Style, of: &Status) -> String {
    let names = ["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"];
    let members = vec![
        ("message", text(s, &of.message)),
        ("code", unless(&of.code, s.one_of(&names, of.code))),
    ];
    s.object(members)
}

fn metric(s: &mut Style, of: &Metric) -> String {
    let data = match &of.data {
        None => None,
        Some(Data::Gauge(of)) => Some(("gauge", vec![("dataPoints", all(s, &of.points, number_point))])),
        Some(Data::Sum(of)) => Some((
            "sum",
            vec![
                ("dataPoints", all(s, &of.points, number_point)),
                temporality(s, of.temporality),
                ("isMonotonic", unless(&of.is_monotonic, of.is_monotonic.to_string())),
            ],
        )),
        Some(Data::Histogram(of)) => {
            let points = all(s, &of.points, histogram_point);
            Some((
                "histogram",
                vec![("dataPoints", points), temporality(s, of.temporality)],
            ))
        }
        Some(Data::Exponential(of)) => {
            let points = all(s, &of.points, exponential_point);
            Some((
                "exponentialHistogram",
                vec![("dataPoints", points), temporality(s, of.temporality)],
            ))
        }
        Some(Data::Summary(of)) => Some(("summary", vec![("dataPoints", all(s, &of.points, summary_point))])),
    };
    let mut members = vec![
        ("name", text(s, &of.name)),
        ("description", text(s, &of.description)),
        ("unit", text(s, &of.unit)),
    ];
    members.push(("metadata", all(s, &of.metadata, pair)));
    let Some((name, data)) = data else {
        return s.known_object(members);
    };
    members.push((name, Some(s.object(data))));
    s.object(members)
}

fn temporality(s: &mut Style, number: i32) -> Member {
    let names = [
        "AGGREGATION_TEMPORALITY_UNSPECIFIED",
        "AGGREGATION_TEMPORALITY_DELTA",
        "AGGREGATION_TEMPORALITY_CUMULATIVE",
    ];
    ("aggregationTemporality", unless(&number, s.one_of(&names, number)))
}

fn number_point(s: &mut Style, of: &NumberPoint) -> String {
    let mut members = vec![
        ("attributes", all(s, &of.attributes, pair)),
        ("startTimeUnixNano", time(s, of.start)),
        ("timeUnixNano", time(s, of.time)),
        ("exemplars", all(s, &of.exemplars, exemplar)),
        ("flags", count(s, of.flags)),
    ];
    match of.value {
        Some(NumberValue::Double(value)) => members.push(("asDouble", Some(s.double(value)))),
        Some(NumberValue::Int(value)) => members.push(("asInt", Some(s.long(value)))),
        None => {}
    }
    s.object(members)
}

fn histogram_point(s: &mut Style, of: &HistogramPoint) -> String {
    let members = vec![
        ("attributes", all(s, &of.attributes, pair)),
        ("startTimeUnixNano", time(s, of.start)),
        ("timeUnixNano", time(s, of.time)),
        ("count", time(s, of.count)),
        ("sum", some(s, of.sum)),
        ("bucketCounts", all(s, &of.buckets, |s, number| s.long(number))),
        ("explicitBounds", all(s, &of.bounds, |s, number| s.double(*number))),
        ("exemplars", all(s, &of.exemplars, exemplar)),
        ("flags", count(s, of.flags)),
        ("min", some(s, of.min)),
        ("max", some(s, of.max)),
    ];
    s.object(members)
}

fn exponential_point(s: &mut Style, of: &ExponentialPoint) -> String {
    let members = vec![
        ("attributes", all(s, &of.attributes, pair)),
        ("startTimeUnixNano", time(s, of.start)),
        ("timeUnixNano", time(s, of.time)),
        ("count", time(s, of.count)),
        ("sum", some(s, of.sum)),
        ("scale", unless(&of.scale, s.integer(of.scale))),
        ("zeroCount", time(s, of.zero_count)),
        ("positive", one(s, &of.positive, buckets)),
        ("negative", one(s, &of.negative, buckets)),
        ("flags", count(s, of.flags)),
        ("exemplars", all(s, &of.exemplars, exemplar)),
        ("min", some(s, of.min)),
        ("max", some(s, of.max)),
        ("zeroThreshold", unless(&of.zero_threshold, s.double(of.zero_threshold))),
    ];
    s.object(members)
}

fn buckets(s: &mut Style, of: &Buckets) -> String {
    let members = vec![
        ("offset", unless(&of.offset, s.integer(of.offset))),
        ("bucketCounts", all(s, &of.counts, |s, number| s.long(number))),
    ];
    s.object(members)
}

fn summary_point(s: &mut Style, of: &SummaryPoint) -> String {
    let members = vec![
        ("attributes", all(s, &of.attributes, pair)),
        ("startTimeUnixNano", time(s, of.start)),
        ("timeUnixNano", time(s, of.time)),
        ("count", time(s, of.count)),
        ("sum", unless(&of.sum, s.double(of.sum))),
        (
            "quantileValues",
            all(s, &of.quantiles, |s, of| {
                let members = vec![
                    ("quantile", unless(&of.quantile, s.double(of.quantile))),
                    ("value", unless(&of.value, s.double(of.value))),
                ];
                s.object(members)
            }),
        ),
        ("flags", count(s, of.flags)),
    ];
    s.object(members)
}

fn exemplar(s: &mut Style, of: &Exemplar) -> String {
    let mut members = vec![
        ("filteredAttributes", all(s, &of.attributes, pair)),
        ("timeUnixNano", time(s, of.time)),
        ("spanId", id(s, &of.span_id)),
        ("traceId", id(s, &of.trace_id)),
    ];
    match of.value {
        Some(ExemplarValue::Double(value)) => members.push(("asDouble", Some(s.double(value)))),
        Some(ExemplarValue::Int(value)) => members.push(("asInt", Some(s.long(value)))),
        None => {}
    }
    s.object(members)
}
