//! The merge: rows of sorted files, in the order of all, a run of one file at a time.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::columns::columns;
use super::input::{Input, Keys, Piece, Tally, times};
use crate::delta::schema::TableSchema;
use crate::file::{FileRules, FileWriter, rows_of_group};
use crate::tables::TableSpec;

/// Rows of event time that belong into one file, by their width in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(pub i64);

impl Bucket {
    pub(super) fn of(self, time: i64) -> i64 {
        time.div_euclid(self.0.max(1))
    }
}

/// Where finished bytes of a file go.
pub trait Sink: Send {
    /// The next bytes of the file. They may be written at once or later.
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError>;

    /// The file is durable, and can be read, when this returns.
    fn finish(&mut self) -> Result<(), MergeError>;

    /// Where it can be read.
    fn path(&self) -> &Path;
}

#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("{} cannot be read: {error}", path.display())]
    Input { path: PathBuf, error: String },
    #[error("a file lacks a column that its table is ordered by")]
    NoKey,
    #[error("rows are not what was read: {read:?} went in, {written:?} came out")]
    Mismatch { read: Tally, written: Tally },
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    #[error("cannot write: {0}")]
    Sink(String),
    #[error("it was stopped")]
    Stopped,
}

/// Files of one table and day that become others.
pub struct Merge<'a> {
    pub spec: &'static TableSpec,
    pub table: &'a TableSchema,
    /// In the order of the log.
    pub inputs: &'a [PathBuf],
    pub bucket: Bucket,
    pub rules: FileRules,
    /// Bytes at which a file ends.
    pub target_bytes: u64,
    /// Asked now and then.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
}

/// A file that was made.
pub struct Output {
    pub sink: Box<dyn Sink>,
    pub footer: ParquetMetaData,
    pub bytes: u64,
    pub rows: u64,
}

pub struct Merged {
    pub outputs: Vec<Output>,
    pub tally: Tally,
}

impl Merge<'_> {
    /// Files with the rows of all, which were read again and found to be those.
    pub fn run(&self, new_file: &mut dyn FnMut() -> Result<Box<dyn Sink>, MergeError>) -> Result<Merged, MergeError> {
        let keys = Keys::new(self.spec, self.table)?;
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (number, path) in self.inputs.iter().enumerate() {
            inputs.push(Input::open(path, number, self.spec, self.table)?);
        }
        self.choose_copied(&mut inputs);
        let mut read = Tally::default();
        let mut heads = Heads::default();
        for input in &mut inputs {
            if let Some(piece) = input.next(&keys, &mut read)? {
                heads.add(Head::new(piece)?);
            }
        }
        let bytes_per_row = inputs.iter().map(|input| input.bytes_per_row).max().unwrap_or_default();
        let mut outputs = Outputs {
            merge: self,
            schema: self.schema(&inputs),
            group_rows: rows_of_group(&self.rules, bytes_per_row),
            new_file,
            growing: BTreeMap::new(),
            done: Vec::new(),
            held: 0,
        };
        while let Some(mut head) = heads.next() {
            let end = heads.end_of_run(&head);
            outputs.take(&head, end)?;
            head.at = end;
            if head.at == head.piece.rows.num_rows() {
                let input = inputs.get_mut(head.piece.input).ok_or(MergeError::NoKey)?;
                match input.next(&keys, &mut read)? {
                    Some(piece) => head = Head::new(piece)?,
                    None => continue,
                }
            }
            heads.add(head);
        }
        let done = outputs.finish()?;
        let mut written = Tally::default();
        for output in &done {
            written = written.and(Tally::of_file(output.sink.path(), self.spec, self.table, &keys)?);
        }
        match written == read {
            true => Ok(Merged {
                outputs: done,
                tally: read,
            }),
            false => Err(MergeError::Mismatch { read, written }),
        }
    }

    /// Pages are copied of columns that all files have in pages that can be.
    fn choose_copied(&self, inputs: &mut [Input<'_>]) {
        let of_inputs: Vec<HashSet<String>> = inputs
            .iter_mut()
            .map(|input| input.copyable(self.spec, self.rules.zstd_level).into_iter().collect())
            .collect();
        let is_ready = |name: &String| {
            let mut all = inputs.iter().zip(&of_inputs);
            all.all(|(input, copyable)| copyable.contains(name) || input.columns().index_of(name).is_err())
        };
        let names: HashSet<String> = of_inputs
            .iter()
            .flatten()
            .filter(|name| is_ready(name))
            .cloned()
            .collect();
        inputs.iter_mut().for_each(|input| input.copy_only(&names));
    }

    /// Columns that some file has, in the order of the table.
    fn schema(&self, inputs: &[Input<'_>]) -> SchemaRef {
        let is_there = |name: &str| inputs.iter().any(|input| input.columns().index_of(name).is_ok());
        let known = self.table.columns.iter().filter(|column| is_there(&column.name));
        let field = |column: &crate::delta::schema::Column| {
            Some(Field::new(&column.name, column.kind.arrow()?, column.nullable))
        };
        Arc::new(Schema::new(known.filter_map(field).collect::<Vec<Field>>()))
    }
}

/// Rows of one file, of which the next one is known.
struct Head {
    piece: Arc<Piece>,
    times: Times,
    at: usize,
}

/// Of the first and of the last row of a piece.
#[derive(Clone, Copy)]
struct Times {
    least: i64,
    greatest: i64,
}

impl Head {
    fn new(piece: Piece) -> Result<Head, MergeError> {
        let all = times(&piece.rows)?;
        let times = Times {
            least: all.iter().copied().min().unwrap_or_default(),
            greatest: all.iter().copied().max().unwrap_or_default(),
        };
        Ok(Head {
            piece: Arc::new(piece),
            times,
            at: 0,
        })
    }

    fn key(&self, row: usize) -> (&[u8], usize) {
        (self.piece.keys.row(row).data(), self.piece.input)
    }
}

/// The next rows of all files, the least one last.
#[derive(Default)]
struct Heads(Vec<Head>);

impl Heads {
    fn add(&mut self, head: Head) {
        let key = head.key(head.at);
        let place = self.0.partition_point(|other| other.key(other.at) > key);
        self.0.insert(place, head);
    }

    fn next(&mut self) -> Option<Head> {
        self.0.pop()
    }

    /// Of the rows of a file that come before all of the others, the end within its piece.
    fn end_of_run(&self, head: &Head) -> usize {
        let rows = head.piece.rows.num_rows();
        let Some(other) = self.0.last() else { return rows };
        let limit = other.key(other.at);
        let is_before = |row: usize| head.key(row) < limit;
        if is_before(rows - 1) {
            return rows;
        }
        // Runs are short or very long: the step doubles until it is too far.
        let (mut from, mut step) = (head.at, 1);
        while from + step < rows && is_before(from + step) {
            from += step;
            step *= 2;
        }
        let (mut low, mut high) = (from + 1, rows.min(from + step));
        while low < high {
            let middle = low + (high - low) / 2;
            match is_before(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

/// Rows of one piece that lie behind each other in a file that is made.
pub(super) struct Run {
    pub piece: Arc<Piece>,
    pub begin: usize,
    pub len: usize,
}

/// A bucket of which rows wait for their row group.
#[derive(Default)]
struct Growing {
    runs: Vec<Run>,
    rows: usize,
    file: Option<(FileWriter, Box<dyn Sink>)>,
    file_rows: u64,
}

struct Outputs<'m, 'f> {
    merge: &'m Merge<'m>,
    schema: SchemaRef,
    group_rows: usize,
    new_file: &'f mut dyn FnMut() -> Result<Box<dyn Sink>, MergeError>,
    growing: BTreeMap<i64, Growing>,
    done: Vec<Output>,
    /// Rows that wait, of all buckets.
    held: usize,
}

impl Outputs<'_, '_> {
    /// The rows of a piece up to an end.
    fn take(&mut self, head: &Head, end: usize) -> Result<(), MergeError> {
        let bucket = self.merge.bucket;
        if bucket.of(head.times.least) == bucket.of(head.times.greatest) {
            return self.push(bucket.of(head.times.least), head, head.at, end);
        }
        let all = times(&head.piece.rows)?;
        let mut begin = head.at;
        while let Some(first) = all.get(begin..end).and_then(<[i64]>::first) {
            let of = bucket.of(*first);
            let same = all.get(begin..end).unwrap_or_default().iter();
            let next = begin + same.take_while(|time| bucket.of(**time) == of).count();
            self.push(of, head, begin, next)?;
            begin = next;
        }
        Ok(())
    }

    fn push(&mut self, bucket: i64, head: &Head, begin: usize, end: usize) -> Result<(), MergeError> {
        let growing = self.growing.entry(bucket).or_default();
        let len = end - begin;
        growing.rows += len;
        self.held += len;
        match growing.runs.last_mut() {
            Some(last) if Arc::ptr_eq(&last.piece, &head.piece) && last.begin + last.len == begin => last.len += len,
            _ => growing.runs.push(Run {
                piece: head.piece.clone(),
                begin,
                len,
            }),
        }
        if growing.rows >= self.group_rows {
            return self.write_group(bucket);
        }
        // Of many buckets the fullest makes room for all.
        if self.held >= 2 * self.group_rows {
            let fullest = self.growing.iter().max_by_key(|(_, growing)| growing.rows);
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
        let Some(growing) = self.growing.get_mut(&bucket) else {
            return Ok(());
        };
        let (runs, rows) = (std::mem::take(&mut growing.runs), std::mem::take(&mut growing.rows));
        self.held -= rows;
        if growing.file.is_none() {
            let writer = FileWriter::new(self.schema.clone(), self.merge.spec.sort, &self.merge.rules)?;
            growing.file = Some((writer, (self.new_file)()?));
        }
        let Some((writer, sink)) = &mut growing.file else {
            return Ok(());
        };
        let made = columns(self.merge.spec, &self.schema, &runs)?;
        let order: Vec<u32> = (0..rows as u32).collect();
        writer.write_group(&made, &order)?;
        drop(made);
        growing.file_rows += rows as u64;
        sink.write(writer.take_bytes())?;
        if writer.len() >= self.merge.target_bytes {
            self.end_file(bucket)?;
        }
        Ok(())
    }

    fn end_file(&mut self, bucket: i64) -> Result<(), MergeError> {
        let Some(growing) = self.growing.get_mut(&bucket) else {
            return Ok(());
        };
        let Some((writer, mut sink)) = growing.file.take() else {
            return Ok(());
        };
        let before = writer.len();
        let (rest, footer) = writer.finish()?;
        let bytes = before + rest.len() as u64;
        sink.write(rest)?;
        sink.finish()?;
        let rows = std::mem::take(&mut growing.file_rows);
        self.done.push(Output {
            sink,
            footer,
            bytes,
            rows,
        });
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Output>, MergeError> {
        let buckets: Vec<i64> = self.growing.keys().copied().collect();
        for bucket in buckets {
            if self.growing.get(&bucket).is_some_and(|growing| growing.rows > 0) {
                self.write_group(bucket)?;
            }
            self.end_file(bucket)?;
        }
        Ok(self.done)
    }
}
