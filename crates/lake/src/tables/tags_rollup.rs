//! The table `tags_rollup`: of each tag one row for each window that has samples of good quality, and one more for each time that
//! late samples changed it. Of those with the same window the one with the greatest revision counts.

use super::{TableSpec, list, schema};
use crate::delta::schema::TableSchema;

pub static TAGS_ROLLUP: TableSpec = TableSpec {
    name: "tags_rollup",
    columns,
    series: Some(&super::tags::SERIES_OF_TAGS),
    rollup: None,
    partitions: &["resolution_s", "date"],
    // As samples are, so that one pass makes windows in their order.
    sort: &["tag_id", "time_unix_nano", "revision"],
    bound: &[],
    plain: &["sketch"],
    near: &[
        "time_unix_nano",
        "time",
        "revision",
        "first_time_unix_nano",
        "last_time_unix_nano",
    ],
};

fn columns() -> TableSchema {
    use crate::delta::schema::ColumnType::*;
    schema([
        ("resolution_s", Integer),
        ("date", Date),
        ("tag_id", Long),
        // When the window begins.
        ("time_unix_nano", Long),
        ("revision", Long),
        ("time", Timestamp),
        ("count", Long),
        ("sum", Double),
        ("min", Double),
        ("max", Double),
        ("first", Double),
        ("last", Double),
        ("increase", Double),
        ("first_time_unix_nano", Long),
        ("last_time_unix_nano", Long),
        ("resets", Long),
        ("source", String),
        ("tag", String),
        ("unit", String),
        ("sketch", Binary),
        ("overflow", TextMap),
        ("explicit_bounds", list(Double)),
        ("bucket_counts", list(Long)),
    ])
}
