//! The table `tags_rollup`: one row for each tag and window that has samples of good quality, and one more for each
//! time that late samples changed the window. The row with the greatest revision counts.

use super::{TableSpec, list, schema};
use thalweg_delta::schema::TableSchema;

pub static TAGS_ROLLUP: TableSpec = TableSpec {
    name: "tags_rollup",
    columns,
    series: Some(&super::tags::SERIES_OF_TAGS),
    rollup: None,
    partitions: &["resolution_s", "date"],
    // The order of the samples, so that one pass makes windows in order.
    sort: &["tag_id", "time_unix_nano", "revision"],
    bound: &[],
    // Sketches of few distinct values are few.
    plain: &[],
    near: &[
        "time_unix_nano",
        "time",
        "revision",
        "first_time_unix_nano",
        "last_time_unix_nano",
    ],
};

fn columns() -> TableSchema {
    use thalweg_delta::schema::ColumnType::*;
    schema([
        ("resolution_s", Integer),
        ("date", Date),
        ("tag_id", Long),
        // The beginning of the window.
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
