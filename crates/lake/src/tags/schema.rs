//! The fixed columns of the table `tags`, in their order: partition, sort keys, what every table has, what a sample has.
//! Columns for metadata follow as they are promoted.

use crate::delta::schema::{Column, ColumnType, TableSchema};

pub const TABLE: &str = "tags";
/// The source under which attribute columns are bound.
pub const ATTRIBUTE_SOURCE: &str = "attr";

pub const DATE: &str = "date";
pub const TAG_ID: &str = "tag_id";
pub const TIME_NANOS: &str = "time_unix_nano";
pub const TIME: &str = "time";
pub const ARRIVAL: &str = "arrival_unix_nano";
pub const TIME_SOURCE: &str = "time_source";
pub const TIME_ORIGINAL: &str = "time_original";
pub const OVERFLOW: &str = "overflow";
pub const SOURCE: &str = "source";
pub const TAG: &str = "tag";
pub const VALUE: &str = "value";
pub const VALUE_INT: &str = "value_int";
pub const VALUE_TEXT: &str = "value_text";
pub const VALUE_BYTES: &str = "value_bytes";
pub const VALUE_TYPE: &str = "value_type";
pub const QUALITY: &str = "quality";
pub const SOURCE_TIME: &str = "source_time_unix_nano";
pub const SERVER_TIME: &str = "server_time_unix_nano";
pub const UNIT: &str = "unit";

/// Properties of the table, as every engine reads them.
pub const CONFIGURATION: [(&str, &str); 4] = [
    ("delta.checkpointInterval", "100"),
    ("delta.logRetentionDuration", "interval 7 days"),
    ("delta.setTransactionRetentionDuration", "interval 7 days"),
    ("delta.dataSkippingNumIndexedCols", "32"),
];

pub fn schema() -> TableSchema {
    use ColumnType::{Binary, Date, Double, Long, String, TextMap, Timestamp};
    TableSchema {
        columns: vec![
            Column::required(DATE, Date),
            Column::new(TAG_ID, Long),
            Column::required(TIME_NANOS, Long),
            Column::required(TIME, Timestamp),
            Column::required(ARRIVAL, Long),
            Column::new(TIME_SOURCE, String),
            Column::new(TIME_ORIGINAL, String),
            Column::new(OVERFLOW, TextMap),
            Column::new(SOURCE, String),
            Column::new(TAG, String),
            Column::new(VALUE, Double),
            Column::new(VALUE_INT, Long),
            Column::new(VALUE_TEXT, String),
            Column::new(VALUE_BYTES, Binary),
            Column::new(VALUE_TYPE, String),
            Column::new(QUALITY, Long),
            Column::new(SOURCE_TIME, Long),
            Column::new(SERVER_TIME, Long),
            Column::new(UNIT, String),
        ],
    }
}
