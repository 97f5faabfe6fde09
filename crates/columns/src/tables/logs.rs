//! The table `logs`: one row for each log record.

use super::{TableSpec, fixed};

pub static LOGS: TableSpec = TableSpec {
    name: "logs",
    columns,
    series: None,
    rollup: None,
    partitions: &["date"],
    sort: &["resource_service_name", "time_unix_nano"],
    bound: &[],
    plain: &["body", "trace_id", "span_id"],
    near: &["time_unix_nano", "time", "arrival_unix_nano", "observed_time_unix_nano"],
};

fixed! {
    DATE "date": Date,
    SERVICE "resource_service_name": String,
    TIME_NANOS "time_unix_nano": Long,
    TIME "time": Timestamp,
    ARRIVAL "arrival_unix_nano": Long,
    TIME_SOURCE "time_source": String,
    TIME_ORIGINAL "time_original": String,
    OBSERVED "observed_time_unix_nano": Long,
    SEVERITY_NUMBER "severity_number": Integer,
    SEVERITY_TEXT "severity_text": String,
    BODY "body": String,
    BODY_KIND "body_kind": String,
    TRACE_ID "trace_id": String,
    SPAN_ID "span_id": String,
    FLAGS "flags": Long,
    EVENT_NAME "event_name": String,
    DROPPED "dropped_attributes_count": Long,
    FINGERPRINT "fingerprint": Long,
    SCOPE_NAME "scope_name": String,
    SCOPE_VERSION "scope_version": String,
    RESOURCE_SCHEMA "resource_schema_url": String,
    SCOPE_SCHEMA "scope_schema_url": String,
    OVERFLOW "overflow": TextMap,
}
