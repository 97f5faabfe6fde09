//! Uncommitted rows for queries: they see rows that arrived a moment ago together with those of the tables.
//!
//! The committed offsets of a table version show which of them the version already has. A reader that takes the
//! uncommitted rows first and then loads the table therefore sees every row exactly once.

mod arrays;
mod overflow;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;
use thalweg_log::Offset;

use crate::entry::{BoxFuture, EntryPosition};
pub(crate) use overflow::{OverflowCounts, overflow, overflowing};
use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::{AttributeBindings, AttributePromotion};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::column_view::ColumnView;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::Snapshot;
use thalweg_delta::schema::{TableColumn, TableSchema};

/// The partition column of tables.
const DATE: &str = "date";
const OVERFLOW: &str = "overflow";

/// A source of uncommitted rows.
pub trait MemtableReader: Send + Sync {
    /// The tables that it feeds.
    fn tables(&self) -> Vec<&'static TableSpec>;

    /// The uncommitted rows of a table; `None` if it does not feed the table.
    fn rows(&self, table: &str) -> Option<MemtableView>;

    /// Returns when queries see the entry at a position.
    fn wait_for<'a>(
        &'a self,
        position: &'a EntryPosition,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), VisibilityWaitError>>;
}

/// Why waiting for a position ended.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VisibilityWaitError {
    /// The position was never assigned.
    #[error("{0}")]
    Unknown(String),
    #[error("{position} was not visible within {seconds} s{cause}")]
    Late {
        position: EntryPosition,
        seconds: f64,
        /// The cause of the delay, if it is known.
        cause: String,
    },
}

/// The uncommitted rows of one table.
#[derive(Clone, Default)]
pub struct MemtableView {
    pub parts: Vec<MemtableViewPart>,
}

/// The rows of one log partition that will be in one commit.
#[derive(Clone)]
pub struct MemtableViewPart {
    /// The application name of the partition.
    pub application: String,
    /// The offset of the first entry.
    pub first: Offset,
    pub chunks: Vec<Arc<MemtableChunk>>,
}

impl MemtableView {
    /// The rows that a version of the table does not have.
    pub fn beyond(self, table: Option<&Snapshot>) -> Vec<Arc<MemtableChunk>> {
        let taken = |part: &MemtableViewPart| {
            let known = table.and_then(|table| table.transactions.get(&part.application));
            known.and_then(|offset| Offset::try_from(*offset).ok()).unwrap_or(0)
        };
        let beyond = self.parts.into_iter().filter(|part| part.first >= taken(part));
        beyond.flat_map(|part| part.chunks).collect()
    }
}

/// A chunk as queries see it: the requested columns of the table, with texts as views. Attributes without a column are
/// in the overflow map.
pub fn project(chunk: &MemtableChunk, table: &TableSchema, columns: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let bindings = AttributeBindings::of(table, AttributePromotion::default());
    let of = |field: &Arc<Field>| match table.column(field.name()) {
        Some(column) => array(chunk, column, &bindings, field.data_type()),
        None => Ok(new_null_array(field.data_type(), chunk.rows())),
    };
    let arrays: Vec<ArrayRef> = columns.fields().iter().map(of).collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(chunk.rows()));
    RecordBatch::try_new_with_options(columns.clone(), arrays, &options)
}

/// One column of a table.
fn array(
    chunk: &MemtableChunk,
    column: &TableColumn,
    bindings: &AttributeBindings,
    as_type: &DataType,
) -> Result<ArrayRef, ArrowError> {
    let rows = chunk.rows();
    let null = || Ok(new_null_array(as_type, rows));
    match column.name.as_str() {
        DATE => {
            return Ok(chunk
                .times()
                .map_or_else(|| new_null_array(as_type, rows), |times| arrays::days(times, rows)));
        }
        OVERFLOW => return overflow(chunk, bindings)?.map_or_else(null, Ok),
        name => {
            if let Some(values) = chunk.fixed(name) {
                return arrays::array(&values, rows, as_type);
            }
        }
    }
    let bound = column
        .binding()
        .and_then(|(source, name)| Some((AttributeSource::of_name(source)?, name)));
    let texts = bound.and_then(|(source, name)| chunk.attribute(source, name));
    match (texts, AttributeType::of_column(column)) {
        (None, _) => null(),
        (Some(texts), Some(kind)) => Ok(arrays::typed(texts, rows, kind)),
        (Some(texts), None) => arrays::array(&ColumnView::Texts(texts), rows, as_type),
    }
}
