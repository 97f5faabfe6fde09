//! Reads files of other programs without their footer statistics of doubles.
//!
//! Other writers leave NaN out of the minimum and maximum, but here NaN is the greatest value. A filter, or a sort that
//! knows its first rows, would wrongly skip a row group that contains NaN. Thalweg writes no bounds for such a group,
//! so only the footers of other writers are changed on their way to the scan; the cache keeps them as they are. A footer
//! that lacks the ordinals of some row groups is read here, and not cached.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::basic::Type;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use thalweg_columns::file::footer;

/// Opens files with another factory and removes these statistics.
#[derive(Debug)]
pub struct ForeignReaders<F>(pub F);

impl<F: ParquetFileReaderFactory> ParquetFileReaderFactory for ForeignReaders<F> {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let bytes = file.object_meta.size;
        let reader = self
            .0
            .create_reader(partition_index, file, metadata_size_hint, metrics)?;
        Ok(Box::new(ForeignReader { reader, bytes }))
    }
}

struct ForeignReader {
    reader: Box<dyn AsyncFileReader + Send>,
    /// The size of the file.
    bytes: u64,
}

impl ForeignReader {
    /// Reads a footer that the library refuses; `None` if that is not because of its ordinals.
    async fn without_ordinals(&mut self) -> Option<ParquetResult<ParquetMetaData>> {
        let tail_at = self.bytes.checked_sub(footer::TAIL_BYTES as u64)?;
        let tail = self.reader.get_bytes(tail_at..self.bytes).await.ok()?;
        let begin = tail_at.checked_sub(footer::footer_bytes(&tail).ok()? as u64)?;
        let bytes = self.reader.get_bytes(begin..tail_at).await.ok()?;
        footer::decode_without_ordinals(&bytes)
    }
}

impl AsyncFileReader for ForeignReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        self.reader.get_byte_ranges(ranges)
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        async move {
            let refused = match self.reader.get_metadata(options).await {
                Ok(read) => return Ok(Arc::new(without_doubles(&read)?)),
                Err(error) => error,
            };
            match self.without_ordinals().await {
                Some(read) => Ok(Arc::new(without_doubles(&read?)?)),
                None => Err(refused),
            }
        }
        .boxed()
    }
}

/// A footer without statistics of doubles.
fn without_doubles(footer: &ParquetMetaData) -> ParquetResult<ParquetMetaData> {
    let group = |group: &RowGroupMetaData| {
        let columns = group.columns().iter().map(|chunk| match chunk.column_type() {
            Type::DOUBLE | Type::FLOAT => chunk.clone().into_builder().clear_statistics().build(),
            _ => Ok(chunk.clone()),
        });
        let columns = columns.collect::<ParquetResult<Vec<_>>>()?;
        group.clone().into_builder().set_column_metadata(columns).build()
    };
    let groups = footer
        .row_groups()
        .iter()
        .map(group)
        .collect::<ParquetResult<Vec<_>>>()?;
    Ok(footer.clone().into_builder().set_row_groups(groups).build())
}
