//! The table `traces`: one row for each span.

use super::{TableSpec, fixed, structs};

pub static TRACES: TableSpec = TableSpec {
    name: "traces",
    columns,
    series: None,
    rollup: None,
    partitions: &["date"],
    sort: &["trace_id", "time_unix_nano"],
    bound: &[],
    plain: &["trace_id", "span_id", "parent_span_id"],
    near: &["time_unix_nano", "time", "arrival_unix_nano", "end_time_unix_nano"],
};

fixed! {
    DATE "date": Date,
    TRACE_ID "trace_id": String,
    TIME_NANOS "time_unix_nano": Long,
    TIME "time": Timestamp,
    ARRIVAL "arrival_unix_nano": Long,
    TIME_SOURCE "time_source": String,
    TIME_ORIGINAL "time_original": String,
    SPAN_ID "span_id": String,
    PARENT "parent_span_id": String,
    TRACE_STATE "trace_state": String,
    FLAGS "flags": Long,
    NAME "name": String,
    KIND "kind": String,
    END "end_time_unix_nano": Long,
    DURATION "duration_ns": Long,
    STATUS "status_code": String,
    STATUS_MESSAGE "status_message": String,
    DROPPED_ATTRIBUTES "dropped_attributes_count": Long,
    DROPPED_EVENTS "dropped_events_count": Long,
    DROPPED_LINKS "dropped_links_count": Long,
    FINGERPRINT "fingerprint": Long,
    SCOPE_NAME "scope_name": String,
    SCOPE_VERSION "scope_version": String,
    RESOURCE_SCHEMA "resource_schema_url": String,
    SCOPE_SCHEMA "scope_schema_url": String,
    OVERFLOW "overflow": TextMap,
    EVENTS "events": structs([
        ("time_unix_nano", Long),
        ("name", String),
        ("dropped_attributes_count", Long),
        ("attributes", TextMap),
    ]),
    LINKS "links": structs([
        ("trace_id", String),
        ("span_id", String),
        ("trace_state", String),
        ("flags", Long),
        ("dropped_attributes_count", Long),
        ("attributes", TextMap),
    ]),
}
