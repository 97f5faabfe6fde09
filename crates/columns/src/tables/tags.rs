//! The table `tags`: one row for each sample of a tag.

use super::{SeriesSpec, TableSpec, fixed};

pub static TAGS: TableSpec = TableSpec {
    name: "tags",
    columns,
    series: Some(&SERIES_OF_TAGS),
    rollup: Some(&super::TAGS_ROLLUP),
    partitions: &["date"],
    sort: &["tag_id", "time_unix_nano"],
    bound: &[],
    plain: &["value_bytes"],
    near: &[
        "time_unix_nano",
        "time",
        "arrival_unix_nano",
        "value_int",
        "source_time_unix_nano",
        "server_time_unix_nano",
    ],
};

pub(super) static SERIES_OF_TAGS: SeriesSpec = SeriesSpec {
    id: "tag_id",
    identity: &["tag_id", "source", "tag", "unit", "overflow"],
    left_out: &[
        "time",
        "arrival_unix_nano",
        "time_source",
        "time_original",
        "value_int",
        "value_text",
        "value_bytes",
        "value_type",
        "source_time_unix_nano",
        "server_time_unix_nano",
    ],
    has_differences: false,
};

fixed! {
    DATE "date": Date,
    TAG_ID "tag_id": Long,
    TIME_NANOS "time_unix_nano": Long,
    TIME "time": Timestamp,
    ARRIVAL "arrival_unix_nano": Long,
    TIME_SOURCE "time_source": String,
    TIME_ORIGINAL "time_original": String,
    SOURCE "source": String,
    TAG "tag": String,
    VALUE "value": Double,
    VALUE_INT "value_int": Long,
    VALUE_TEXT "value_text": String,
    VALUE_BYTES "value_bytes": Binary,
    VALUE_TYPE "value_type": String,
    QUALITY "quality": Long,
    SOURCE_TIME "source_time_unix_nano": Long,
    SERVER_TIME "server_time_unix_nano": Long,
    UNIT "unit": String,
    OVERFLOW "overflow": TextMap,
}
