//! A table of the lake at one version, as DataFusion scans it.
//!
//! The scan reads only files that may contain matching rows: the filters of the query are evaluated on the bounds in
//! the Delta log. The Parquet reader prunes row groups and pages further. What the log counts or bounds exactly (row
//! counts, integers) needs no file at all.
//!
//! Only Thalweg guarantees the order of rows. A scan is ordered if the footers of its files are. Files that other
//! writers added to the table are scanned separately, without an order, and their statistics exclude files but answer
//! no query.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, DataFusionError, Result, ScalarValue, Statistics, ToDFSchema};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{CachedParquetFileReaderFactory, ParquetFileReaderFactory};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema as ScanSchema;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::union::UnionExec;
use futures::future::try_join_all;
use object_store::ObjectMeta;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::tables::{self, TableSpec};
use thalweg_delta::FileEntry;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::ColumnBound;
use thalweg_lake::memtable_view::project;

use crate::foreign::ForeignReaders;
use crate::metrics::QueryMetrics;
use crate::pruning::{PruningResult, prune};
use crate::revisions::{newest, of_keys, spec_of, split};

/// Rows in memory are emitted in batches of this size, however large a chunk is.
const LIVE_BATCH_ROWS: usize = 65_536;

/// Enough for the footer and the page index of a flushed file, so that one read fetches them.
const FOOTER_BYTES: usize = 64 << 10;

/// A table at one version; see the module.
pub struct LakeTable {
    name: String,
    pub(crate) schema: Arc<TableSchema>,
    /// All columns in the order of the table.
    arrow: SchemaRef,
    partitions: Vec<String>,
    files: Arc<[Arc<FileEntry>]>,
    store: ObjectStoreUrl,
    metrics: QueryMetrics,
    /// Rows that are in no file yet.
    live: Vec<Arc<MemtableChunk>>,
    /// Whether some rows replace others.
    has_revisions: bool,
}

impl std::fmt::Debug for LakeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LakeTable({}, {} files)", self.name, self.files.len())
    }
}

impl LakeTable {
    pub fn new(
        name: &str,
        schema: Arc<TableSchema>,
        partitions: Vec<String>,
        files: Arc<[Arc<FileEntry>]>,
        store: ObjectStoreUrl,
        metrics: QueryMetrics,
    ) -> LakeTable {
        let arrow = Arc::new(with_views(&schema.arrow()));
        LakeTable {
            has_revisions: files.iter().any(|file| file.revises),
            name: name.to_owned(),
            schema,
            arrow,
            partitions,
            files,
            store,
            metrics,
            live: Vec::new(),
        }
    }

    pub fn with_live(self, live: Vec<Arc<MemtableChunk>>) -> LakeTable {
        LakeTable { live, ..self }
    }

    /// The columns in scan order: those stored in the files, then the partitions.
    fn scan_schema(&self) -> ScanSchema {
        let is_partition = |name: &String| self.partitions.contains(name);
        let (partitions, stored): (Vec<_>, Vec<_>) = self
            .arrow
            .fields()
            .iter()
            .cloned()
            .partition(|field| is_partition(field.name()));
        ScanSchema::builder(Arc::new(Schema::new(stored)))
            .with_table_partition_cols(partitions)
            .build()
    }

    fn kept_files(&self, state: &dyn Session, scan: &ScanSchema, filters: &[Expr]) -> Result<PruningResult> {
        let all = || PruningResult {
            files: self.files.to_vec(),
            ..PruningResult::default()
        };
        let Some(filter) = conjunction(filters.iter().cloned()) else {
            return Ok(all());
        };
        let schema = scan.table_schema();
        let filter = state.create_physical_expr(filter, &schema.clone().to_dfschema()?)?;
        // A filter that says nothing about bounds keeps every file.
        let predicate = PruningPredicateBuilder::new()
            .with_file_schema(schema.clone())
            .try_build(filter);
        match predicate {
            Ok(predicate) => prune(&self.files, &predicate, schema, &self.partitions),
            Err(_) => Ok(all()),
        }
    }

    fn object(&self, file: &FileEntry) -> Result<ObjectMeta> {
        let location = object_store::path::Path::parse(format!("{}/{}", self.name, file.path))
            .map_err(|e| DataFusionError::External(Box::new(e)))?;
        Ok(ObjectMeta {
            location,
            last_modified: Default::default(),
            size: file.size,
            e_tag: None,
            version: None,
        })
    }

    fn partitioned_file(&self, file: &FileEntry, scan: &ScanSchema) -> Result<PartitionedFile> {
        let values = self.partition_values(file, scan)?;
        let statistics = file_statistics(file, scan.file_schema());
        Ok(PartitionedFile::from(self.object(file)?)
            .with_partition_values(values)
            .with_statistics(Arc::new(statistics)))
    }

    fn partition_values(&self, file: &FileEntry, scan: &ScanSchema) -> Result<Vec<ScalarValue>> {
        let partitions = scan.table_partition_cols().iter();
        partitions
            .map(|field| {
                let at = self.partitions.iter().position(|name| name == field.name());
                match at.and_then(|at| file.partition.get(at)) {
                    Some(Some(text)) => ScalarValue::try_from_string(text.to_string(), field.data_type()),
                    _ => ScalarValue::try_from(field.data_type()),
                }
            })
            .collect()
    }
}

#[async_trait]
impl TableProvider for LakeTable {
    fn schema(&self) -> SchemaRef {
        self.arrow.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = self.scan_schema();
        if let Some(spec) = self.has_revisions.then(|| spec_of(&self.name)).flatten() {
            return self.scan_newest(state, spec, projection, filters).await;
        }
        let kept = self.kept_files(state, &scan, filters)?;
        self.metrics.files(self.files.len(), kept.by_date, kept.by_statistics);
        let projection = self.scan_projection(projection, &scan)?;
        let (foreign, own): (Vec<_>, Vec<_>) = kept.files.into_iter().partition(|file| file.is_foreign);
        let mut parts = Vec::new();
        if !own.is_empty() {
            let trust = FileGuarantees {
                order: self.order(state, &own, &scan, &projection).await,
                in_footers: true,
            };
            parts.push(self.scan_files(state, &scan, &own, &projection, limit, trust)?);
        }
        if !foreign.is_empty() {
            let trust = FileGuarantees {
                order: None,
                in_footers: false,
            };
            parts.push(self.scan_files(state, &scan, &foreign, &projection, limit, trust)?);
        }
        if !self.live.is_empty() {
            parts.push(self.scan_live(&scan, &projection)?);
        }
        match parts.len() {
            0 => {
                let schema = scan.table_schema().project(&projection)?;
                Ok(Arc::new(EmptyExec::new(Arc::new(schema))))
            }
            1 => Ok(parts.remove(0)),
            _ => UnionExec::try_new(parts),
        }
    }
}

/// What the scan may assume about files.
struct FileGuarantees {
    /// The order of the rows in each file.
    order: Option<LexOrdering>,
    /// Whether the footer statistics hold for every value.
    in_footers: bool,
}

impl LakeTable {
    /// Scans the newest revision of each row.
    async fn scan_newest(
        &self,
        state: &dyn Session,
        spec: &TableSpec,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let kept = self.kept_files(state, &self.scan_schema(), &of_keys(spec, filters))?;
        let (compared, others) = split(kept.files);
        let part = |files: Vec<Arc<FileEntry>>| LakeTable {
            files: files.into(),
            has_revisions: false,
            live: Vec::new(),
            name: self.name.clone(),
            schema: self.schema.clone(),
            arrow: self.arrow.clone(),
            partitions: self.partitions.clone(),
            store: self.store.clone(),
            metrics: self.metrics.clone(),
        };
        let (is_compared, has_others) = (!compared.is_empty(), !others.is_empty());
        let others = part(others).scan(state, projection, filters, None).await?;
        if !is_compared {
            return Ok(others);
        }
        let all = (0..self.arrow.fields().len()).collect();
        let wanted = projection.unwrap_or(&all).iter();
        let wanted: Vec<String> = wanted.map(|index| self.arrow.field(*index).name().clone()).collect();
        let newest = newest(state, spec, part(compared), filters, &wanted).await?;
        match has_others {
            true => UnionExec::try_new(vec![others, newest]),
            false => Ok(newest),
        }
    }

    /// Scans the rows that are in no file yet.
    fn scan_live(&self, scan: &ScanSchema, projection: &[usize]) -> Result<Arc<dyn ExecutionPlan>> {
        let schema: SchemaRef = Arc::new(scan.table_schema().project(projection)?);
        self.metrics.buffered(self.live.iter().map(|chunk| chunk.rows()).sum());
        let mut batches = Vec::new();
        for chunk in &self.live {
            let rows = project(chunk, &self.schema, &schema)?;
            let parts = (0..rows.num_rows()).step_by(LIVE_BATCH_ROWS);
            batches.extend(parts.map(|at| rows.slice(at, LIVE_BATCH_ROWS.min(rows.num_rows() - at))));
        }
        Ok(MemorySourceConfig::try_new_exec(&[batches], schema, None)?)
    }

    fn scan_files(
        &self,
        state: &dyn Session,
        scan: &ScanSchema,
        files: &[Arc<FileEntry>],
        projection: &[usize],
        limit: Option<usize>,
        trust: FileGuarantees,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let statistics = table_statistics(files, scan);
        let threads = state.config().target_partitions().max(1);
        let files: Vec<_> = files
            .iter()
            .map(|file| self.partitioned_file(file, scan))
            .collect::<Result<_>>()?;
        let groups = FileGroup::new(files).split_files(threads);

        let store = state.runtime_env().object_store(&self.store)?;
        let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
        let mut options = state.default_table_options().parquet;
        // The page index of other writers has the same problem with doubles as their footers.
        options.global.enable_page_index &= trust.in_footers;
        let readers = CachedParquetFileReaderFactory::new(store, cache);
        let readers: Arc<dyn ParquetFileReaderFactory> = match trust.in_footers {
            true => Arc::new(readers),
            false => Arc::new(ForeignReaders(readers)),
        };
        // The optimizer passes the filters to the source, for row groups, pages and late materialisation.
        let source = ParquetSource::new(scan.clone())
            .with_table_parquet_options(options)
            .with_parquet_file_reader_factory(readers)
            .with_metadata_size_hint(FOOTER_BYTES);
        let config = FileScanConfigBuilder::new(self.store.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(Some(projection.to_vec()))?
            .with_limit(limit)
            .with_output_ordering(trust.order.into_iter().collect())
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }

    /// The order of the rows in each of these files, if it is certain and useful.
    async fn order(
        &self,
        state: &dyn Session,
        files: &[Arc<FileEntry>],
        scan: &ScanSchema,
        projection: &[usize],
    ) -> Option<LexOrdering> {
        // Files that are read in parallel keep their order; files read one after another do not.
        if files.len() > state.config().target_partitions().max(1) {
            return None;
        }
        let sort = tables::spec_of(&self.name)?.sort;
        let first = scan.table_schema().index_of(sort.first()?).ok()?;
        let is_sorted = projection.contains(&first) && self.are_sorted(state, files, sort).await;
        is_sorted.then(|| self.ordering(sort, files, scan)).flatten()
    }

    /// Whether the footers of all files state this order. The scan needs the footers anyway and finds them in the
    /// cache.
    async fn are_sorted(&self, state: &dyn Session, files: &[Arc<FileEntry>], sort: &[&str]) -> bool {
        let Ok(store) = state.runtime_env().object_store(&self.store) else {
            return false;
        };
        let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
        let is_sorted = async |file: &Arc<FileEntry>| {
            let object = self.object(file)?;
            let footer = DFParquetMetadata::new(&*store, &object)
                .with_metadata_size_hint(Some(FOOTER_BYTES))
                .with_file_metadata_cache(Some(cache.clone()));
            Ok::<_, DataFusionError>(thalweg_columns::file::is_sorted(&*footer.fetch_metadata().await?, sort))
        };
        // The scan reports errors of a file.
        let all = try_join_all(files.iter().map(is_sorted)).await;
        all.is_ok_and(|all| all.into_iter().all(|is_sorted| is_sorted))
    }

    fn ordering(&self, sort: &[&str], files: &[Arc<FileEntry>], scan: &ScanSchema) -> Option<LexOrdering> {
        let has_nulls = |name: &str| {
            let nulls = |file: &Arc<FileEntry>| file.stats.column(name).and_then(|stats| stats.nulls);
            !files.iter().all(|file| nulls(file) == Some(0))
        };
        let by = sort.iter().map(|name| {
            let column = Column::new_with_schema(name, scan.table_schema()).ok()?;
            // Nulls come first. Without nulls, they may as well come last, which SQL expects.
            let options = SortOptions {
                descending: false,
                nulls_first: has_nulls(name),
            };
            Some(PhysicalSortExpr::new(Arc::new(column), options))
        });
        LexOrdering::new(by.collect::<Option<Vec<_>>>()?)
    }

    /// Converts column indexes of the table to those of the scan.
    fn scan_projection(&self, projection: Option<&Vec<usize>>, scan: &ScanSchema) -> Result<Vec<usize>> {
        let all: Vec<usize> = (0..self.arrow.fields().len()).collect();
        let wanted = projection.unwrap_or(&all);
        wanted
            .iter()
            .map(|index| Ok(scan.table_schema().index_of(self.arrow.field(*index).name())?))
            .collect()
    }
}

/// Texts and bytes as views, which the reader fills without copying.
fn with_views(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| {
        let data_type = match field.data_type() {
            DataType::Utf8 => DataType::Utf8View,
            DataType::Binary => DataType::BinaryView,
            other => other.clone(),
        };
        Arc::new(Field::clone(field).with_data_type(data_type))
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// The statistics of a file for its stored columns.
fn file_statistics(file: &FileEntry, schema: &Schema) -> Statistics {
    let columns = schema.fields().iter().map(|field| column_statistics(file, field));
    Statistics {
        num_rows: rows(file),
        total_byte_size: Precision::Absent,
        column_statistics: columns.collect(),
    }
}

fn rows(file: &FileEntry) -> Precision<usize> {
    let rows = file.stats.rows.and_then(|rows| usize::try_from(rows).ok());
    rows.map_or(Precision::Absent, Precision::Exact)
}

/// Thalweg states integers exactly. All other bounds may be wider than the data: cut texts, rounded times.
fn column_statistics(file: &FileEntry, field: &Field) -> ColumnStatistics {
    let mut statistics = ColumnStatistics::new_unknown();
    let Some(stats) = file.stats.column(field.name()) else {
        return statistics;
    };
    if file.is_foreign {
        return statistics;
    }
    if let Some(nulls) = stats.nulls.and_then(|nulls| usize::try_from(nulls).ok()) {
        statistics.null_count = Precision::Exact(nulls);
    }
    if *field.data_type() == DataType::Int64 {
        let exact = |bound: &Option<ColumnBound>| match bound {
            Some(ColumnBound::Int(value)) => Precision::Exact(ScalarValue::Int64(Some(*value))),
            _ => Precision::Absent,
        };
        (statistics.min_value, statistics.max_value) = (exact(&stats.min), exact(&stats.max));
    }
    statistics
}

/// The combined statistics of all files for the columns of the scan.
fn table_statistics(files: &[Arc<FileEntry>], scan: &ScanSchema) -> Statistics {
    let mut merged: Option<Statistics> = None;
    for file in files {
        let of_file = file_statistics(file, scan.file_schema());
        merged = Some(match merged {
            None => of_file,
            Some(all) => merge(all, &of_file),
        });
    }
    let mut statistics = merged.unwrap_or_else(|| Statistics::new_unknown(scan.file_schema()));
    let unknown = scan
        .table_partition_cols()
        .iter()
        .map(|_| ColumnStatistics::new_unknown());
    statistics.column_statistics.extend(unknown);
    statistics
}

fn merge(mut all: Statistics, more: &Statistics) -> Statistics {
    all.num_rows = all.num_rows.add(&more.num_rows);
    for (column, more) in all.column_statistics.iter_mut().zip(&more.column_statistics) {
        column.null_count = column.null_count.add(&more.null_count);
        column.min_value = column.min_value.min(&more.min_value);
        column.max_value = column.max_value.max(&more.max_value);
    }
    all
}
