//! Merges the rows of sorted files, one run of a single file at a time.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::columns::columns;
use super::input::{MergeInput, MergeReadOptions, RowChecksum, times};
use super::keys::SortKeys;
use super::merge_iterator::{MergeIterator, RevisionFilter, RowRun, laid_out};
use crate::file::{FileRules, FileWriter, rows_of_group};
use crate::tables::TableSpec;
use thalweg_delta::schema::TableSchema;

/// The event time, in nanoseconds, that one file spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketWidth(pub i64);

impl BucketWidth {
    pub(super) fn of(self, time: i64) -> i64 {
        time.div_euclid(self.0.max(1))
    }
}

/// Where the finished bytes of a file go.
pub trait FileSink: Send {
    /// Appends bytes to the file. They may be written at once or later.
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError>;

    /// Returns when the file is durable and can be read.
    fn finish(&mut self) -> Result<(), MergeError>;

    /// The path from which it can be read.
    fn path(&self) -> &Path;
}

#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("{} cannot be read: {error}", path.display())]
    Input { path: PathBuf, error: String },
    #[error("a file lacks a sort column of its table")]
    NoKey,
    #[error("{} is from another writer, so the order of its rows is unknown until it is rewritten", path.display())]
    Unsorted { path: PathBuf },
    #[error(
        "{} from another writer cannot be sorted as its table is: {why}; it is left as it is, rewrite it with the \
         columns and types of the table", path.display()
    )]
    Foreign { path: PathBuf, why: String },
    #[error("the rows written differ from the rows read: {read:?} went in, {written:?} came out")]
    Mismatch { read: RowChecksum, written: RowChecksum },
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    #[error("cannot write: {0}")]
    Sink(String),
    #[error("stopped")]
    Stopped,
}

/// A merge of files of one table and day.
pub struct MergeJob<'a> {
    pub spec: &'static TableSpec,
    pub table: &'a TableSchema,
    /// In log order.
    pub inputs: &'a [PathBuf],
    pub bucket: BucketWidth,
    pub rules: FileRules,
    /// A file ends at this size.
    pub target_bytes: u64,
    /// Polled before each row group.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
}

/// A finished output file.
pub struct MergeOutput {
    pub sink: Box<dyn FileSink>,
    pub footer: ParquetMetaData,
    pub bytes: u64,
    pub rows: u64,
}

pub struct MergeResult {
    pub outputs: Vec<MergeOutput>,
    pub tally: RowChecksum,
}

impl MergeJob<'_> {
    /// Writes files with all rows, then reads them back and compares checksums.
    pub fn run(
        &self,
        new_file: &mut dyn FnMut() -> Result<Box<dyn FileSink>, MergeError>,
    ) -> Result<MergeResult, MergeError> {
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (number, path) in self.inputs.iter().enumerate() {
            inputs.push(MergeInput::open(
                path,
                number,
                self.spec,
                self.table,
                MergeReadOptions::default(),
            )?);
        }
        self.choose_sources(&mut inputs);
        let bytes_per_row = inputs.iter().map(|input| input.bytes_per_row).max().unwrap_or_default();
        let mut outputs = BucketWriter {
            merge: self,
            schema: self.schema(&inputs),
            group_rows: rows_of_group(&self.rules, bytes_per_row),
            new_file,
            open_buckets: BTreeMap::new(),
            done: Vec::new(),
            held: 0,
        };
        let mut sorted = MergeIterator::new(inputs, SortKeys::new(self.spec));
        let mut newest = RevisionFilter::default();
        while let Some(run) = sorted.next()? {
            match self.spec.has_revisions() {
                true => newest.push(&run, |run| outputs.take(run))?,
                false => outputs.take(&run)?,
            }
        }
        if let Some(run) = newest.finish() {
            outputs.take(&run)?;
        }
        let read = sorted.tally;
        let done = outputs.finish()?;
        let mut written = RowChecksum::default();
        for output in &done {
            written = written.and(RowChecksum::of_file(
                output.sink.path(),
                self.spec,
                self.table,
                &sorted.keys,
            )?);
        }
        match written.and(newest.tally) == read {
            true => Ok(MergeResult {
                outputs: done,
                tally: written,
            }),
            false => Err(MergeError::Mismatch { read, written }),
        }
    }

    /// Reads the columns page by page that all files have in this program's encoding.
    fn choose_sources(&self, inputs: &mut [MergeInput<'_>]) {
        inputs
            .iter_mut()
            .for_each(|input| input.find_sources(self.spec, self.table));
        let columns = self.table.columns.iter().map(|column| &column.name);
        let names: HashSet<String> = columns
            .filter(|name| inputs.iter().all(|input| input.is_source(name)))
            .cloned()
            .collect();
        inputs.iter_mut().for_each(|input| input.keep_sources(&names));
    }

    /// The columns that at least one file has, in table order.
    fn schema(&self, inputs: &[MergeInput<'_>]) -> SchemaRef {
        let is_there = |name: &str| inputs.iter().any(|input| input.columns().index_of(name).is_ok());
        let known = self.table.columns.iter().filter(|column| is_there(&column.name));
        let field = |column: &thalweg_delta::schema::TableColumn| {
            Some(Field::new(&column.name, column.kind.arrow()?, column.nullable))
        };
        Arc::new(Schema::new(known.filter_map(field).collect::<Vec<Field>>()))
    }
}

/// A bucket whose rows wait for their row group to fill.
#[derive(Default)]
struct OpenBucket {
    runs: Vec<RowRun>,
    rows: usize,
    file: Option<(FileWriter, Box<dyn FileSink>)>,
    file_rows: u64,
}

struct BucketWriter<'m, 'f> {
    merge: &'m MergeJob<'m>,
    schema: SchemaRef,
    group_rows: usize,
    new_file: &'f mut dyn FnMut() -> Result<Box<dyn FileSink>, MergeError>,
    open_buckets: BTreeMap<i64, OpenBucket>,
    done: Vec<MergeOutput>,
    /// Rows waiting in all buckets.
    held: usize,
}

impl BucketWriter<'_, '_> {
    fn take(&mut self, run: &RowRun) -> Result<(), MergeError> {
        let (bucket, (least, greatest)) = (self.merge.bucket, run.piece.times);
        let end = run.begin + run.len;
        if bucket.of(least) == bucket.of(greatest) {
            return self.push(bucket.of(least), run, run.begin, end);
        }
        let all = times(&run.piece.rows)?;
        let mut begin = run.begin;
        while let Some(first) = all.get(begin..end).and_then(<[i64]>::first) {
            let of = bucket.of(*first);
            let same = all.get(begin..end).unwrap_or_default().iter();
            let next = begin + same.take_while(|time| bucket.of(**time) == of).count();
            self.push(of, run, begin, next)?;
            begin = next;
        }
        Ok(())
    }

    fn push(&mut self, bucket: i64, run: &RowRun, begin: usize, end: usize) -> Result<(), MergeError> {
        let open = self.open_buckets.entry(bucket).or_default();
        let len = end - begin;
        open.rows += len;
        self.held += len;
        match open.runs.last_mut() {
            Some(last) if Arc::ptr_eq(&last.piece, &run.piece) && last.begin + last.len == begin => last.len += len,
            _ => open.runs.push(RowRun {
                piece: run.piece.clone(),
                begin,
                len,
            }),
        }
        if open.rows >= self.group_rows {
            return self.write_group(bucket);
        }
        // With many open buckets, the fullest is written to free memory.
        if self.held >= 2 * self.group_rows {
            let fullest = self.open_buckets.iter().max_by_key(|(_, open)| open.rows);
            if let Some(fullest) = fullest.map(|(bucket, _)| *bucket) {
                return self.write_group(fullest);
            }
        }
        Ok(())
    }

    fn write_group(&mut self, bucket: i64) -> Result<(), MergeError> {
        if (self.merge.is_stopped)() {
            return Err(MergeError::Stopped);
        }
        let Some(open) = self.open_buckets.get_mut(&bucket) else {
            return Ok(());
        };
        let (runs, rows) = (std::mem::take(&mut open.runs), std::mem::take(&mut open.rows));
        self.held -= rows;
        if open.file.is_none() {
            let writer = FileWriter::new(self.schema.clone(), self.merge.spec.sort, &self.merge.rules)?;
            open.file = Some((writer, (self.new_file)()?));
        }
        let Some((writer, sink)) = &mut open.file else {
            return Ok(());
        };
        let (parts, order) = laid_out(&runs);
        let made = columns(self.merge.spec, &self.schema, &parts)?;
        writer.write_group(&made, &order)?;
        drop(made);
        open.file_rows += rows as u64;
        sink.write(writer.take_bytes())?;
        if writer.written_bytes() >= self.merge.target_bytes {
            self.end_file(bucket)?;
        }
        Ok(())
    }

    fn end_file(&mut self, bucket: i64) -> Result<(), MergeError> {
        let Some(open) = self.open_buckets.get_mut(&bucket) else {
            return Ok(());
        };
        let Some((writer, mut sink)) = open.file.take() else {
            return Ok(());
        };
        let before = writer.written_bytes();
        let (rest, footer) = writer.finish()?;
        let bytes = before + rest.len() as u64;
        sink.write(rest)?;
        sink.finish()?;
        let rows = std::mem::take(&mut open.file_rows);
        self.done.push(MergeOutput {
            sink,
            footer,
            bytes,
            rows,
        });
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<MergeOutput>, MergeError> {
        let buckets: Vec<i64> = self.open_buckets.keys().copied().collect();
        for bucket in buckets {
            if self.open_buckets.get(&bucket).is_some_and(|open| open.rows > 0) {
                self.write_group(bucket)?;
            }
            self.end_file(bucket)?;
        }
        Ok(self.done)
    }
}
