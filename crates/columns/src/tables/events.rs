//! The table `events`: one row for each message of the event store.

use super::{TableSpec, fixed};

pub static EVENTS: TableSpec = TableSpec {
    name: "events",
    columns,
    series: None,
    rollup: None,
    partitions: &["date"],
    sort: &["namespace", "category", "stream", "stream_position"],
    bound: &[],
    plain: &["event_id", "data", "metadata"],
    near: &[
        "stream_position",
        "time_unix_nano",
        "time",
        "arrival_unix_nano",
        "global_position",
    ],
};

fixed! {
    DATE "date": Date,
    NAMESPACE "namespace": String,
    CATEGORY "category": String,
    STREAM "stream": String,
    POSITION "stream_position": Long,
    TIME_NANOS "time_unix_nano": Long,
    TIME "time": Timestamp,
    ARRIVAL "arrival_unix_nano": Long,
    TIME_SOURCE "time_source": String,
    TIME_ORIGINAL "time_original": String,
    GLOBAL "global_position": Long,
    ID "event_id": String,
    KIND "event_type": String,
    DATA "data": String,
    METADATA "metadata": String,
    OVERFLOW "overflow": TextMap,
}
