//! The table `metrics_rollup`: one row for each series of `metrics` and window, and one more for each time that late
//! points changed the window. The row with the greatest revision counts.

use super::{TableSpec, list, schema};
use thalweg_delta::schema::TableSchema;

pub static METRICS_ROLLUP: TableSpec = TableSpec {
    name: "metrics_rollup",
    columns,
    series: Some(&super::metrics::SERIES_OF_METRICS),
    rollup: None,
    partitions: &["resolution_s", "date"],
    sort: &["metric_name", "series_id", "time_unix_nano", "revision"],
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
        ("metric_name", String),
        ("series_id", Long),
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
        ("metric_type", String),
        ("temporality", String),
        ("is_monotonic", Boolean),
        ("unit", String),
        ("scope_name", String),
        ("scope_version", String),
        ("sketch", Binary),
        ("overflow", TextMap),
        ("explicit_bounds", list(Double)),
        ("bucket_counts", list(Long)),
    ])
}
