//! OTLP messages for the reference decoder.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Logs {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<ResourceLogs>,
}
#[derive(Clone, PartialEq, Message)]
pub struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scopes: Vec<ScopeLogs>,
    #[prost(string, tag = "3")]
    pub schema_url: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub records: Vec<Log>,
    #[prost(string, tag = "3")]
    pub schema_url: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct Metrics {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<ResourceMetrics>,
}
#[derive(Clone, PartialEq, Message)]
pub struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scopes: Vec<ScopeMetrics>,
    #[prost(string, tag = "3")]
    pub schema_url: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub records: Vec<Metric>,
    #[prost(string, tag = "3")]
    pub schema_url: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct Traces {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<ResourceSpans>,
}
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scopes: Vec<ScopeSpans>,
    #[prost(string, tag = "3")]
    pub schema_url: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub records: Vec<Span>,
    #[prost(string, tag = "3")]
    pub schema_url: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<Pair>,
    #[prost(uint32, tag = "2")]
    pub dropped: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<Pair>,
    #[prost(uint32, tag = "4")]
    pub dropped: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Any>,
}
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub value: Option<Value>,
}
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    List(List),
    #[prost(message, tag = "6")]
    Map(Map),
    #[prost(bytes = "vec", tag = "7")]
    Bytes(Vec<u8>),
}
#[derive(Clone, PartialEq, Message)]
pub struct List {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Any>,
}
#[derive(Clone, PartialEq, Message)]
pub struct Map {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Pair>,
}
#[derive(Clone, PartialEq, Message)]
pub struct Log {
    #[prost(fixed64, tag = "1")]
    pub time: u64,
    #[prost(int32, tag = "2")]
    pub severity_number: i32,
    #[prost(string, tag = "3")]
    pub severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub body: Option<Any>,
    #[prost(message, repeated, tag = "6")]
    pub attributes: Vec<Pair>,
    #[prost(uint32, tag = "7")]
    pub dropped: u32,
    #[prost(fixed32, tag = "8")]
    pub flags: u32,
    #[prost(bytes = "vec", tag = "9")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    pub span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    pub observed_time: u64,
    #[prost(string, tag = "12")]
    pub event_name: String,
}
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start: u64,
    #[prost(fixed64, tag = "8")]
    pub end: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<Pair>,
    #[prost(uint32, tag = "10")]
    pub dropped_attributes: u32,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
    #[prost(uint32, tag = "12")]
    pub dropped_events: u32,
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<Link>,
    #[prost(uint32, tag = "14")]
    pub dropped_links: u32,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    #[prost(fixed64, tag = "1")]
    pub time: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<Pair>,
    #[prost(uint32, tag = "4")]
    pub dropped: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Link {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(message, repeated, tag = "4")]
    pub attributes: Vec<Pair>,
    #[prost(uint32, tag = "5")]
    pub dropped: u32,
    #[prost(fixed32, tag = "6")]
    pub flags: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub description: String,
    #[prost(string, tag = "3")]
    pub unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9, 10, 11")]
    pub data: Option<Data>,
    #[prost(message, repeated, tag = "12")]
    pub metadata: Vec<Pair>,
}
#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
    #[prost(message, tag = "10")]
    Exponential(Exponential),
    #[prost(message, tag = "11")]
    Summary(Summary),
}
#[derive(Clone, PartialEq, Message)]
pub struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<NumberPoint>,
}
#[derive(Clone, PartialEq, Message)]
pub struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub temporality: i32,
    #[prost(bool, tag = "3")]
    pub is_monotonic: bool,
}
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub temporality: i32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Exponential {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<ExponentialPoint>,
    #[prost(int32, tag = "2")]
    pub temporality: i32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<SummaryPoint>,
}
#[derive(Clone, Copy, PartialEq, Oneof)]
pub enum NumberValue {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}
#[derive(Clone, PartialEq, Message)]
pub struct NumberPoint {
    #[prost(message, repeated, tag = "7")]
    pub attributes: Vec<Pair>,
    #[prost(fixed64, tag = "2")]
    pub start: u64,
    #[prost(fixed64, tag = "3")]
    pub time: u64,
    #[prost(oneof = "NumberValue", tags = "4, 6")]
    pub value: Option<NumberValue>,
    #[prost(message, repeated, tag = "5")]
    pub exemplars: Vec<Exemplar>,
    #[prost(uint32, tag = "8")]
    pub flags: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct HistogramPoint {
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<Pair>,
    #[prost(fixed64, tag = "2")]
    pub start: u64,
    #[prost(fixed64, tag = "3")]
    pub time: u64,
    #[prost(fixed64, tag = "4")]
    pub count: u64,
    #[prost(double, optional, tag = "5")]
    pub sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub buckets: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub bounds: Vec<f64>,
    #[prost(message, repeated, tag = "8")]
    pub exemplars: Vec<Exemplar>,
    #[prost(uint32, tag = "10")]
    pub flags: u32,
    #[prost(double, optional, tag = "11")]
    pub min: Option<f64>,
    #[prost(double, optional, tag = "12")]
    pub max: Option<f64>,
}
#[derive(Clone, PartialEq, Message)]
pub struct ExponentialPoint {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<Pair>,
    #[prost(fixed64, tag = "2")]
    pub start: u64,
    #[prost(fixed64, tag = "3")]
    pub time: u64,
    #[prost(fixed64, tag = "4")]
    pub count: u64,
    #[prost(double, optional, tag = "5")]
    pub sum: Option<f64>,
    #[prost(sint32, tag = "6")]
    pub scale: i32,
    #[prost(fixed64, tag = "7")]
    pub zero_count: u64,
    #[prost(message, optional, tag = "8")]
    pub positive: Option<Buckets>,
    #[prost(message, optional, tag = "9")]
    pub negative: Option<Buckets>,
    #[prost(uint32, tag = "10")]
    pub flags: u32,
    #[prost(message, repeated, tag = "11")]
    pub exemplars: Vec<Exemplar>,
    #[prost(double, optional, tag = "12")]
    pub min: Option<f64>,
    #[prost(double, optional, tag = "13")]
    pub max: Option<f64>,
    #[prost(double, tag = "14")]
    pub zero_threshold: f64,
}
#[derive(Clone, PartialEq, Message)]
pub struct Buckets {
    #[prost(sint32, tag = "1")]
    pub offset: i32,
    #[prost(uint64, repeated, tag = "2")]
    pub counts: Vec<u64>,
}
#[derive(Clone, PartialEq, Message)]
pub struct SummaryPoint {
    #[prost(message, repeated, tag = "7")]
    pub attributes: Vec<Pair>,
    #[prost(fixed64, tag = "2")]
    pub start: u64,
    #[prost(fixed64, tag = "3")]
    pub time: u64,
    #[prost(fixed64, tag = "4")]
    pub count: u64,
    #[prost(double, tag = "5")]
    pub sum: f64,
    #[prost(message, repeated, tag = "6")]
    pub quantiles: Vec<Quantile>,
    #[prost(uint32, tag = "8")]
    pub flags: u32,
}
#[derive(Clone, PartialEq, Message)]
pub struct Quantile {
    #[prost(double, tag = "1")]
    pub quantile: f64,
    #[prost(double, tag = "2")]
    pub value: f64,
}
#[derive(Clone, Copy, PartialEq, Oneof)]
pub enum ExemplarValue {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}
#[derive(Clone, PartialEq, Message)]
pub struct Exemplar {
    #[prost(message, repeated, tag = "7")]
    pub attributes: Vec<Pair>,
    #[prost(fixed64, tag = "2")]
    pub time: u64,
    #[prost(oneof = "ExemplarValue", tags = "3, 6")]
    pub value: Option<ExemplarValue>,
    #[prost(bytes = "vec", tag = "4")]
    pub span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub trace_id: Vec<u8>,
}
