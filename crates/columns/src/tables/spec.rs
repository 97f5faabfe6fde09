//! The fixed properties of a table.

use crate::rows::attribute_columns::AttributeSource;
use thalweg_delta::schema::TableSchema;

/// A table of the lake without its attribute columns.
pub struct TableSpec {
    pub name: &'static str,
    /// The fixed columns in order: partition, sort keys, numbers and short texts, nested columns last. The Delta log
    /// has statistics of the first columns only, so the useful ones come first.
    pub columns: fn() -> TableSchema,
    /// The series of the table, if it or its rollup has any.
    pub series: Option<&'static SeriesSpec>,
    /// The rollup table.
    pub rollup: Option<&'static TableSpec>,
    /// The partition columns. A file has one value of each.
    pub partitions: &'static [&'static str],
    /// The sort columns of a file. Rows with equal keys keep the log order.
    pub sort: &'static [&'static str],
    /// Attributes that have a column from the beginning.
    pub bound: &'static [(AttributeSource, &'static str)],
    /// Text columns with mostly distinct values, which are written without a dictionary.
    pub plain: &'static [&'static str],
    /// Number columns whose values are close to the previous one: times and positions.
    pub near: &'static [&'static str],
}

/// How the rows of a table and of its rollup form series.
pub struct SeriesSpec {
    /// The column with the id of the series.
    pub id: &'static str,
    /// The columns that identify a series, beside the attributes.
    pub identity: &'static [&'static str],
    /// Columns of the table that rollup windows do not use.
    pub left_out: &'static [&'static str],
    /// Whether rows may be compared with the previous one.
    pub has_differences: bool,
}

impl TableSpec {
    /// Whether only the last of the rows counts that differ only in the last part of their key.
    pub fn has_revisions(&self) -> bool {
        self.sort.last() == Some(&"revision")
    }
}
