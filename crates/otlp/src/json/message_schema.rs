//! The OTLP/JSON name and encoding of each message field.

use crate::fields::{
    any, buckets, data, event, exemplar, exponential_point, group, histogram_point, link, list, log, map, metric,
    number_point, pair, quantile, request, resource, scope, scoped, span, status, summary_point,
};
use thalweg_kit::wire::FieldKey;
use thalweg_lake::Signal;

use FieldEncoding::*;

/// A message. Its fields are in the order in which most senders write them, so that the lookup finds a name at its
/// first try.
pub struct MessageSchema {
    /// The bytes reserved for the encoded length.
    pub width: usize,
    /// Of a message that exists for its one list: the error if it has unknown members instead.
    pub without_list: Option<&'static str>,
    pub fields: &'static [FieldSchema],
}

pub struct FieldSchema {
    pub name: &'static str,
    pub key: FieldKey,
    pub shape: FieldEncoding,
    /// The field is a member of a oneof.
    pub is_choice: bool,
}

/// How a field is encoded in JSON and in protobuf.
pub enum FieldEncoding {
    Text,
    /// Hexadecimal in JSON, bytes in protobuf.
    Id,
    /// Base64 in JSON, bytes in protobuf.
    Bytes,
    Bool,
    Double,
    /// The names of the enum's numbers, from 0; unnamed numbers are empty.
    Enum(&'static [&'static str]),
    /// A signed varint.
    Int64,
    /// A zigzag varint.
    Sint32,
    Uint32,
    Fixed32,
    Fixed64,
    Sfixed64,
    One(&'static MessageSchema),
    /// A list of messages. In a list of values, `null` is an absent value.
    Many(&'static MessageSchema),
    /// Packed lists of numbers.
    Doubles,
    Fixed64s,
    Uint64s,
    /// A field of another signal's request.
    OfAnotherSignal,
    /// A field that OTLP had before version 1.
    BeforeVersion1,
}

const fn field(name: &'static str, key: FieldKey, shape: FieldEncoding) -> FieldSchema {
    FieldSchema {
        name,
        key,
        shape,
        is_choice: false,
    }
}

const fn choice(name: &'static str, key: FieldKey, shape: FieldEncoding) -> FieldSchema {
    FieldSchema {
        name,
        key,
        shape,
        is_choice: true,
    }
}

const fn too_old(name: &'static str) -> FieldSchema {
    field(name, 0, BeforeVersion1)
}

const fn message(width: usize, fields: &'static [FieldSchema]) -> MessageSchema {
    MessageSchema {
        width,
        without_list: None,
        fields,
    }
}

/// The error for an object without this list.
macro_rules! without {
    ($list:literal) => {
        Some(concat!(
            "an object has a member that OTLP does not define, and no ",
            $list,
            "; correct the name"
        ))
    };
}

/// A message that is useless without its one list.
const fn envelope(width: usize, without_list: Option<&'static str>, fields: &'static [FieldSchema]) -> MessageSchema {
    MessageSchema {
        width,
        without_list,
        fields,
    }
}

/// The export request of a signal.
pub fn request_of(signal: Signal) -> &'static MessageSchema {
    match signal {
        Signal::Logs => &LOGS,
        Signal::Metrics => &METRICS,
        Signal::Traces => &TRACES,
    }
}

static LOGS: MessageSchema = envelope(
    0,
    without!("resourceLogs"),
    &[
        field("resourceLogs", request::GROUPS, Many(&RESOURCE_LOGS)),
        field("resourceMetrics", 0, OfAnotherSignal),
        field("resourceSpans", 0, OfAnotherSignal),
    ],
);
static METRICS: MessageSchema = envelope(
    0,
    without!("resourceMetrics"),
    &[
        field("resourceMetrics", request::GROUPS, Many(&RESOURCE_METRICS)),
        field("resourceLogs", 0, OfAnotherSignal),
        field("resourceSpans", 0, OfAnotherSignal),
    ],
);
static TRACES: MessageSchema = envelope(
    0,
    without!("resourceSpans"),
    &[
        field("resourceSpans", request::GROUPS, Many(&RESOURCE_SPANS)),
        field("resourceLogs", 0, OfAnotherSignal),
        field("resourceMetrics", 0, OfAnotherSignal),
    ],
);

static RESOURCE_LOGS: MessageSchema = envelope(
    3,
    without!("scopeLogs"),
    &[
        field("resource", group::RESOURCE, One(&RESOURCE)),
        field("scopeLogs", group::SCOPES, Many(&SCOPE_LOGS)),
        field("schemaUrl", group::SCHEMA_URL, Text),
        too_old("instrumentationLibraryLogs"),
    ],
);
static RESOURCE_METRICS: MessageSchema = envelope(
    3,
    without!("scopeMetrics"),
    &[
        field("resource", group::RESOURCE, One(&RESOURCE)),
        field("scopeMetrics", group::SCOPES, Many(&SCOPE_METRICS)),
        field("schemaUrl", group::SCHEMA_URL, Text),
        too_old("instrumentationLibraryMetrics"),
    ],
);
static RESOURCE_SPANS: MessageSchema = envelope(
    3,
    without!("scopeSpans"),
    &[
        field("resource", group::RESOURCE, One(&RESOURCE)),
        field("scopeSpans", group::SCOPES, Many(&SCOPE_SPANS)),
        field("schemaUrl", group::SCHEMA_URL, Text),
        too_old("instrumentationLibrarySpans"),
    ],
);
static RESOURCE: MessageSchema = message(
    2,
    &[
        field("attributes", resource::ATTRIBUTES, Many(&PAIR)),
        field("droppedAttributesCount", resource::DROPPED, Uint32),
    ],
);
static SCOPE_LOGS: MessageSchema = envelope(
    3,
    without!("logRecords"),
    &[
        field("scope", scoped::SCOPE, One(&SCOPE)),
        field("logRecords", scoped::RECORDS, Many(&LOG)),
        field("schemaUrl", scoped::SCHEMA_URL, Text),
        too_old("instrumentationLibrary"),
        too_old("logs"),
    ],
);
static SCOPE_METRICS: MessageSchema = envelope(
    3,
    without!("metrics"),
    &[
        field("scope", scoped::SCOPE, One(&SCOPE)),
        field("metrics", scoped::RECORDS, Many(&METRIC)),
        field("schemaUrl", scoped::SCHEMA_URL, Text),
        too_old("instrumentationLibrary"),
    ],
);
static SCOPE_SPANS: MessageSchema = envelope(
    3,
    without!("spans"),
    &[
        field("scope", scoped::SCOPE, One(&SCOPE)),
        field("spans", scoped::RECORDS, Many(&SPAN)),
        field("schemaUrl", scoped::SCHEMA_URL, Text),
        too_old("instrumentationLibrary"),
    ],
);
static SCOPE: MessageSchema = message(
    1,
    &[
        field("name", scope::NAME, Text),
        field("version", scope::VERSION, Text),
        field("attributes", scope::ATTRIBUTES, Many(&PAIR)),
        field("droppedAttributesCount", scope::DROPPED, Uint32),
    ],
);

pub static PAIR: MessageSchema = message(
    1,
    &[field("key", pair::NAME, Text), field("value", pair::VALUE, One(&ANY))],
);
pub static ANY: MessageSchema = message(
    1,
    &[
        choice("stringValue", any::TEXT, Text),
        choice("intValue", any::INT, Int64),
        choice("boolValue", any::BOOL, Bool),
        choice("doubleValue", any::DOUBLE, Double),
        choice("arrayValue", any::LIST, One(&LIST)),
        choice("kvlistValue", any::MAP, One(&MAP)),
        choice("bytesValue", any::BYTES, Bytes),
    ],
);
static LIST: MessageSchema = message(1, &[field("values", list::VALUES, Many(&ANY))]);
static MAP: MessageSchema = message(1, &[field("values", map::PAIRS, Many(&PAIR))]);

static LOG: MessageSchema = message(
    2,
    &[
        field("timeUnixNano", log::TIME, Fixed64),
        field("observedTimeUnixNano", log::OBSERVED_TIME, Fixed64),
        field("severityNumber", log::SEVERITY_NUMBER, Enum(&SEVERITIES)),
        field("severityText", log::SEVERITY_TEXT, Text),
        field("eventName", log::EVENT_NAME, Text),
        field("body", log::BODY, One(&ANY)),
        field("attributes", log::ATTRIBUTES, Many(&PAIR)),
        field("droppedAttributesCount", log::DROPPED, Uint32),
        field("flags", log::FLAGS, Fixed32),
        field("traceId", log::TRACE_ID, Id),
        field("spanId", log::SPAN_ID, Id),
    ],
);

static SPAN: MessageSchema = message(
    2,
    &[
        field("traceId", span::TRACE_ID, Id),
        field("spanId", span::SPAN_ID, Id),
        field("traceState", span::TRACE_STATE, Text),
        field("parentSpanId", span::PARENT_SPAN_ID, Id),
        field("flags", span::FLAGS, Fixed32),
        field("name", span::NAME, Text),
        field("kind", span::KIND, Enum(&SPAN_KINDS)),
        field("startTimeUnixNano", span::START, Fixed64),
        field("endTimeUnixNano", span::END, Fixed64),
        field("attributes", span::ATTRIBUTES, Many(&PAIR)),
        field("droppedAttributesCount", span::DROPPED_ATTRIBUTES, Uint32),
        field("events", span::EVENTS, Many(&EVENT)),
        field("droppedEventsCount", span::DROPPED_EVENTS, Uint32),
        field("links", span::LINKS, Many(&LINK)),
        field("droppedLinksCount", span::DROPPED_LINKS, Uint32),
        field("status", span::STATUS, One(&STATUS)),
    ],
);
static EVENT: MessageSchema = message(
    2,
    &[
        field("timeUnixNano", event::TIME, Fixed64),
        field("name", event::NAME, Text),
        field("attributes", event::ATTRIBUTES, Many(&PAIR)),
        field("droppedAttributesCount", event::DROPPED, Uint32),
    ],
);
static LINK: MessageSchema = message(
    1,
    &[
        field("traceId", link::TRACE_ID, Id),
        field("spanId", link::SPAN_ID, Id),
        field("traceState", link::TRACE_STATE, Text),
        field("attributes", link::ATTRIBUTES, Many(&PAIR)),
        field("droppedAttributesCount", link::DROPPED, Uint32),
        field("flags", link::FLAGS, Fixed32),
    ],
);
static STATUS: MessageSchema = message(
    1,
    &[
        field("message", status::MESSAGE, Text),
        field("code", status::CODE, Enum(&STATUS_CODES)),
    ],
);

pub static METRIC: MessageSchema = message(
    2,
    &[
        field("name", metric::NAME, Text),
        field("description", metric::DESCRIPTION, Text),
        field("unit", metric::UNIT, Text),
        choice("sum", metric::SUM, One(&SUM)),
        choice("gauge", metric::GAUGE, One(&GAUGE)),
        choice("histogram", metric::HISTOGRAM, One(&HISTOGRAM)),
        choice(
            "exponentialHistogram",
            metric::EXPONENTIAL_HISTOGRAM,
            One(&EXPONENTIAL_HISTOGRAM),
        ),
        choice("summary", metric::SUMMARY, One(&SUMMARY)),
        field("metadata", metric::METADATA, Many(&PAIR)),
        too_old("intGauge"),
        too_old("doubleGauge"),
        too_old("intSum"),
        too_old("doubleSum"),
        too_old("intHistogram"),
        too_old("doubleHistogram"),
        too_old("doubleSummary"),
    ],
);
static SUM: MessageSchema = envelope(
    2,
    without!("dataPoints"),
    &[
        field("dataPoints", data::POINTS, Many(&NUMBER_POINT)),
        field("aggregationTemporality", data::TEMPORALITY, Enum(&TEMPORALITIES)),
        field("isMonotonic", data::IS_MONOTONIC, Bool),
    ],
);
static GAUGE: MessageSchema = envelope(
    2,
    without!("dataPoints"),
    &[field("dataPoints", data::POINTS, Many(&NUMBER_POINT))],
);
static HISTOGRAM: MessageSchema = envelope(
    2,
    without!("dataPoints"),
    &[
        field("dataPoints", data::POINTS, Many(&HISTOGRAM_POINT)),
        field("aggregationTemporality", data::TEMPORALITY, Enum(&TEMPORALITIES)),
    ],
);
static EXPONENTIAL_HISTOGRAM: MessageSchema = envelope(
    2,
    without!("dataPoints"),
    &[
        field("dataPoints", data::POINTS, Many(&EXPONENTIAL_POINT)),
        field("aggregationTemporality", data::TEMPORALITY, Enum(&TEMPORALITIES)),
    ],
);
static SUMMARY: MessageSchema = envelope(
    2,
    without!("dataPoints"),
    &[field("dataPoints", data::POINTS, Many(&SUMMARY_POINT))],
);

static NUMBER_POINT: MessageSchema = message(
    2,
    &[
        field("attributes", number_point::ATTRIBUTES, Many(&PAIR)),
        field("startTimeUnixNano", number_point::START, Fixed64),
        field("timeUnixNano", number_point::TIME, Fixed64),
        field("asDouble", number_point::DOUBLE, Double),
        field("asInt", number_point::INT, Sfixed64),
        field("exemplars", number_point::EXEMPLARS, Many(&EXEMPLAR)),
        field("flags", number_point::FLAGS, Uint32),
        too_old("labels"),
        too_old("value"),
    ],
);
static HISTOGRAM_POINT: MessageSchema = message(
    2,
    &[
        field("attributes", histogram_point::ATTRIBUTES, Many(&PAIR)),
        field("startTimeUnixNano", histogram_point::START, Fixed64),
        field("timeUnixNano", histogram_point::TIME, Fixed64),
        field("count", histogram_point::COUNT, Fixed64),
        field("sum", histogram_point::SUM, Double),
        field("bucketCounts", histogram_point::BUCKETS, Fixed64s),
        field("explicitBounds", histogram_point::BOUNDS, Doubles),
        field("exemplars", histogram_point::EXEMPLARS, Many(&EXEMPLAR)),
        field("flags", histogram_point::FLAGS, Uint32),
        field("min", histogram_point::MIN, Double),
        field("max", histogram_point::MAX, Double),
        too_old("labels"),
    ],
);
static EXPONENTIAL_POINT: MessageSchema = message(
    2,
    &[
        field("attributes", exponential_point::ATTRIBUTES, Many(&PAIR)),
        field("startTimeUnixNano", exponential_point::START, Fixed64),
        field("timeUnixNano", exponential_point::TIME, Fixed64),
        field("count", exponential_point::COUNT, Fixed64),
        field("sum", exponential_point::SUM, Double),
        field("scale", exponential_point::SCALE, Sint32),
        field("zeroCount", exponential_point::ZERO_COUNT, Fixed64),
        field("positive", exponential_point::POSITIVE, One(&BUCKETS)),
        field("negative", exponential_point::NEGATIVE, One(&BUCKETS)),
        field("flags", exponential_point::FLAGS, Uint32),
        field("exemplars", exponential_point::EXEMPLARS, Many(&EXEMPLAR)),
        field("min", exponential_point::MIN, Double),
        field("max", exponential_point::MAX, Double),
        field("zeroThreshold", exponential_point::ZERO_THRESHOLD, Double),
    ],
);
static BUCKETS: MessageSchema = message(
    1,
    &[
        field("offset", buckets::OFFSET, Sint32),
        field("bucketCounts", buckets::COUNTS, Uint64s),
    ],
);
static SUMMARY_POINT: MessageSchema = message(
    2,
    &[
        field("attributes", summary_point::ATTRIBUTES, Many(&PAIR)),
        field("startTimeUnixNano", summary_point::START, Fixed64),
        field("timeUnixNano", summary_point::TIME, Fixed64),
        field("count", summary_point::COUNT, Fixed64),
        field("sum", summary_point::SUM, Double),
        field("quantileValues", summary_point::QUANTILES, Many(&QUANTILE)),
        field("flags", summary_point::FLAGS, Uint32),
        too_old("labels"),
    ],
);
static QUANTILE: MessageSchema = message(
    1,
    &[
        field("quantile", quantile::QUANTILE, Double),
        field("value", quantile::VALUE, Double),
    ],
);
static EXEMPLAR: MessageSchema = message(
    1,
    &[
        field("filteredAttributes", exemplar::ATTRIBUTES, Many(&PAIR)),
        field("timeUnixNano", exemplar::TIME, Fixed64),
        field("asDouble", exemplar::DOUBLE, Double),
        field("asInt", exemplar::INT, Sfixed64),
        field("spanId", exemplar::SPAN_ID, Id),
        field("traceId", exemplar::TRACE_ID, Id),
        too_old("filteredLabels"),
        too_old("value"),
    ],
);

static SEVERITIES: [&str; 25] = [
    "SEVERITY_NUMBER_UNSPECIFIED",
    "SEVERITY_NUMBER_TRACE",
    "SEVERITY_NUMBER_TRACE2",
    "SEVERITY_NUMBER_TRACE3",
    "SEVERITY_NUMBER_TRACE4",
    "SEVERITY_NUMBER_DEBUG",
    "SEVERITY_NUMBER_DEBUG2",
    "SEVERITY_NUMBER_DEBUG3",
    "SEVERITY_NUMBER_DEBUG4",
    "SEVERITY_NUMBER_INFO",
    "SEVERITY_NUMBER_INFO2",
    "SEVERITY_NUMBER_INFO3",
    "SEVERITY_NUMBER_INFO4",
    "SEVERITY_NUMBER_WARN",
    "SEVERITY_NUMBER_WARN2",
    "SEVERITY_NUMBER_WARN3",
    "SEVERITY_NUMBER_WARN4",
    "SEVERITY_NUMBER_ERROR",
    "SEVERITY_NUMBER_ERROR2",
    "SEVERITY_NUMBER_ERROR3",
    "SEVERITY_NUMBER_ERROR4",
    "SEVERITY_NUMBER_FATAL",
    "SEVERITY_NUMBER_FATAL2",
    "SEVERITY_NUMBER_FATAL3",
    "SEVERITY_NUMBER_FATAL4",
];
static SPAN_KINDS: [&str; 6] = [
    "SPAN_KIND_UNSPECIFIED",
    "SPAN_KIND_INTERNAL",
    "SPAN_KIND_SERVER",
    "SPAN_KIND_CLIENT",
    "SPAN_KIND_PRODUCER",
    "SPAN_KIND_CONSUMER",
];
static STATUS_CODES: [&str; 3] = ["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"];
static TEMPORALITIES: [&str; 3] = [
    "AGGREGATION_TEMPORALITY_UNSPECIFIED",
    "AGGREGATION_TEMPORALITY_DELTA",
    "AGGREGATION_TEMPORALITY_CUMULATIVE",
];
