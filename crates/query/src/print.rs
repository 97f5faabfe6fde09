//! Prints answers on a terminal or into a pipe.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::engine::QueryStream;
use crate::error::QueryError;
use crate::format::{RowFormat, RowWriter};

/// Rows that a terminal table buffers to compute its column widths.
const TABLE_ROWS: usize = 1_000;

/// Why printing ended early.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    #[error(transparent)]
    Query(#[from] QueryError),
    /// `BrokenPipe` may only mean that the reader has read enough.
    #[error("the answer cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Rows from this or another process while they arrive. Dropping them ends the query.
pub struct RowStream {
    pub schema: SchemaRef,
    pub batches: BoxStream<'static, Result<RecordBatch, QueryError>>,
}

impl From<QueryStream> for RowStream {
    fn from(answer: QueryStream) -> RowStream {
        RowStream {
            schema: answer.schema.clone(),
            batches: answer.boxed(),
        }
    }
}

/// Prints aligned columns between rules. Returns the number of rows.
pub async fn table(answer: impl Into<RowStream>, mut out: impl Write) -> Result<usize, PrintError> {
    let mut answer: RowStream = answer.into();
    let (mut rows, mut waiting, mut printed) = (0, Vec::<RecordBatch>::new(), false);
    let mut held = 0;
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        held += batch.num_rows();
        waiting.push(batch);
        if held >= TABLE_ROWS {
            write_table(&waiting, &mut out)?;
            (printed, held) = (true, 0);
            waiting.clear();
        }
    }
    if !printed && waiting.is_empty() {
        waiting.push(RecordBatch::new_empty(answer.schema.clone()));
    }
    if !waiting.is_empty() {
        write_table(&waiting, &mut out)?;
    }
    out.flush()?;
    Ok(rows)
}

fn write_table(batches: &[RecordBatch], out: &mut impl Write) -> Result<(), PrintError> {
    let options = FormatOptions::default().with_display_error(true);
    let table = pretty_format_batches_with_options(batches, &options)
        .map_err(|e| QueryError::execute(format!("the answer cannot be shown as a table: {e}")))?;
    writeln!(out, "{table}")?;
    Ok(())
}

pub async fn json(answer: impl Into<RowStream>, out: impl Write) -> Result<usize, PrintError> {
    rows(RowFormat::Json, answer, out).await
}

pub async fn ndjson(answer: impl Into<RowStream>, out: impl Write) -> Result<usize, PrintError> {
    rows(RowFormat::NdJson, answer, out).await
}

pub async fn csv(answer: impl Into<RowStream>, out: impl Write) -> Result<usize, PrintError> {
    rows(RowFormat::Csv, answer, out).await
}

pub async fn arrow(answer: impl Into<RowStream>, out: impl Write) -> Result<usize, PrintError> {
    rows(RowFormat::Arrow, answer, out).await
}

/// Writes an answer in a format. Returns the number of rows.
pub async fn rows(format: RowFormat, answer: impl Into<RowStream>, mut out: impl Write) -> Result<usize, PrintError> {
    let mut answer: RowStream = answer.into();
    let mut writer = RowWriter::new(format, &answer.schema)?;
    let mut rows = 0;
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        out.write_all(&writer.write(&batch)?)?;
    }
    out.write_all(&writer.finish()?)?;
    out.flush()?;
    Ok(rows)
}
