//! What is fixed of a table.

use crate::delta::schema::TableSchema;
use crate::rows::attribute_columns::AttributeSource;

/// A table of the lake before it has columns for attributes.
pub struct TableSpec {
    pub name: &'static str,
    /// Its fixed columns, in their order: partition, sort keys, numbers and short texts, and what is nested last, so that the
    /// columns that have statistics in the log are the useful ones.
    pub columns: fn() -> TableSchema,
    /// What its series are, if it or its rollup has any.
    pub series: Option<&'static SeriesSpec>,
    /// The table of its windows.
    pub rollup: Option<&'static TableSpec>,
    /// By which columns files are told apart: each has one value of them.
    pub partitions: &'static [&'static str],
    /// By which columns the rows of a file are ordered. Equal ones keep the order of the log.
    pub sort: &'static [&'static str],
    /// Attributes that have a column from the beginning.
    pub bound: &'static [(AttributeSource, &'static str)],
    /// Columns of text that say something new in most rows: written without a dictionary.
    pub plain: &'static [&'static str],
    /// Columns of numbers of which each is near the one before: times and positions.
    pub near: &'static [&'static str],
}

/// How rows of a table and of its rollup are series.
pub struct SeriesSpec {
    /// The column of numbers of which each series has one.
    pub id: &'static str,
    /// Columns that say what it is; attributes do, too.
    pub identity: &'static [&'static str],
    /// Columns of the table that no window is made of.
    pub left_out: &'static [&'static str],
    /// Whether rows may be compared with the one before.
    pub has_differences: bool,
}

impl TableSpec {
    /// Whether of rows that differ in the last part of their key only the last one counts.
    pub fn has_revisions(&self) -> bool {
        self.sort.last() == Some(&"revision")
    }
}
