//! Imports named files into tables, each file once.
//!
//! ```text
//! file ── ingest-read: decompress ── memtables ── ingest-store: Parquet beside the tables ── one commit for each table
//! ```
//!
//! A file is identified by the hash of its content, which its commits record: a second run finds it there and changes
//! nothing. Rows go to Parquet files as soon as there are enough, so memory does not depend on the length of the input.
//! These files join a table only after all was read; the next process removes what a killed process leaves. The hash of
//! a stream is known only at its end, so only then is a duplicate detected.

mod csv;
mod error;
mod file_import;
mod format;
mod fuzz;
mod input;
mod json;
mod lines;
mod memtable;
mod parquet_rows;
mod quarantine;
mod report;
mod request_splitter;
mod requests;
mod tables;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use thalweg_kit::clock::unix_nanos;
use thalweg_kit::{WorkFolder, clock, random};
use tokio::runtime::Handle;

use crate::entry::InflateLimits;
use crate::metrics::LakeMetrics;
pub use crate::named_rows::time::check_format;
use crate::signal::Signal;
pub use error::BulkError;
use file_import::{BulkInput, FileImport};
pub use format::{BulkFormat, signal_of_file};
#[doc(hidden)]
pub use fuzz::lines as fuzz_lines;
use input::{ContentId, DecompressingReader, content_of};
use quarantine::Quarantine;
use report::BulkCounts;
pub use report::{BulkProgress, BulkReport, TableReport};
pub use requests::{DecodedRequest, MalformedRequest, RequestDecoder, RequestRules};
use tables::{BulkTables, BulkWriterConfig};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::file::FileRules;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables::{LOGS, METRICS, TRACES, TableSpec};
use thalweg_delta::store::LakeStorage;

/// How files become rows, configured as for receivers (`ingest.*`, `lake.*`).
#[derive(Clone, Debug)]
pub struct BulkOptions {
    /// The memory of rows that triggers a flush.
    pub flush_bytes: usize,
    pub files: FileRules,
    /// By table.
    pub promotions: Vec<(&'static str, AttributePromotion)>,
    pub walk: RecordLimits,
    pub window: ArrivalWindow,
    /// Limits for decompression. `bytes` also limits a request, a line and a row.
    pub inflate: InflateLimits,
    /// Commits between two checkpoints.
    pub checkpoint_interval: i64,
}

impl Default for BulkOptions {
    fn default() -> BulkOptions {
        BulkOptions {
            flush_bytes: 64 << 20,
            files: FileRules::default(),
            promotions: Vec::new(),
            walk: RecordLimits::default(),
            window: ArrivalWindow::default(),
            inflate: InflateLimits::default(),
            checkpoint_interval: 100,
        }
    }
}

/// What to do with files.
#[derive(Clone)]
pub struct BulkRequest {
    pub kind: Option<BulkFormat>,
    pub signal: Option<Signal>,
    /// The table for rows; default `logs`.
    pub table: Option<&'static TableSpec>,
    /// Pairs of a name in the file and the column that it stands for.
    pub renamed: Vec<(String, String)>,
    /// The strftime format of times that are not RFC 3339.
    pub time_format: Option<String>,
    /// The bad lines that a file may have.
    pub bad_max: u64,
    /// Import files again that tables already have.
    pub again: bool,
    /// Read files but write nothing.
    pub dry_run: bool,
    /// Add the rows of a file even if most have no time or no body.
    pub accept_missing: bool,
}

impl Default for BulkRequest {
    fn default() -> BulkRequest {
        BulkRequest {
            kind: None,
            signal: None,
            table: None,
            renamed: Vec::new(),
            time_format: None,
            bad_max: 1000,
            again: false,
            dry_run: false,
            accept_missing: false,
        }
    }
}

/// A source of bytes.
pub enum BulkSource {
    File(PathBuf),
    /// It can be read once, and its length is unknown.
    Stream(Box<dyn Read + Send>),
}

/// Imports files into the tables of a lake. Must not be used on a thread of the runtime.
pub struct BulkImporter {
    requests: Box<dyn RequestDecoder>,
    tables: BulkTables,
    local: PathBuf,
    options: BulkOptions,
    wanted: BulkRequest,
}

impl BulkImporter {
    /// Unfinished rows and bad lines are stored in `local`: the lake's own folder, or that of the data folder if the
    /// lake is on an object store. It is created with the first rows.
    pub fn new(
        site: LakeStorage,
        local: &Path,
        runtime: Handle,
        metrics: LakeMetrics,
        requests: Box<dyn RequestDecoder>,
        options: BulkOptions,
        wanted: BulkRequest,
    ) -> BulkImporter {
        let local = std::path::absolute(local).unwrap_or_else(|_| local.to_owned());
        if !wanted.dry_run {
            WorkFolder::sweep(&staging(&local));
        }
        let tables = BulkTables::new(BulkWriterConfig {
            site,
            files: options.files.clone(),
            promotions: options.promotions.clone(),
            checkpoint_interval: options.checkpoint_interval,
            metrics,
            runtime,
        });
        BulkImporter {
            requests,
            tables,
            local,
            options,
            wanted,
        }
    }

    /// Returns when all rows of a file are durable in their tables and visible to every reader.
    pub fn ingest(&mut self, name: &str, source: BulkSource, watched: &BulkProgress) -> Result<BulkReport, BulkError> {
        let start = clock::now();
        let ingested = match source {
            BulkSource::File(path) if std::fs::metadata(&path).map_err(BulkError::Read)?.is_file() => {
                self.file(name, &path, watched)
            }
            BulkSource::File(path) => File::open(path)
                .map_err(BulkError::Read)
                .and_then(|pipe| self.stream(name, Box::new(pipe), watched))
                .and_then(|opened| self.read(name, opened, None, watched)),
            BulkSource::Stream(stream) => self
                .stream(name, stream, watched)
                .and_then(|opened| self.read(name, opened, None, watched)),
        };
        self.tables.forget();
        ingested.map(|report| BulkReport {
            took: start.elapsed(),
            ..report
        })
    }

    /// Returns when all writing has ended.
    pub fn close(self) {
        self.tables.close();
    }

    /// Imports a regular file, which can be hashed in advance.
    fn file(&mut self, name: &str, path: &Path, watched: &BulkProgress) -> Result<BulkReport, BulkError> {
        let content = content_of(path)?;
        watched.size.store(content.bytes, Ordering::Relaxed);
        if !self.wanted.again
            && let Some(report) = self.known(&content)?
        {
            return Ok(report);
        }
        let mut opened = File::open(path).map_err(BulkError::Read)?;
        let kind = self.wanted.kind.or(BulkFormat::of_file(name).0);
        if kind.map_or_else(|| is_parquet(&mut opened), |kind| Ok(kind == BulkFormat::Parquet))? {
            let modified = opened
                .metadata()
                .and_then(|found| found.modified())
                .map_err(BulkError::Read)?;
            let path = path.to_owned();
            let opened = BulkInput::Parquet {
                file: opened,
                path,
                modified,
            };
            return self.read(name, opened, Some(content), watched);
        }
        let opened = self.stream(name, Box::new(opened), watched)?;
        self.read(name, opened, Some(content), watched)
    }

    fn stream(&self, name: &str, from: Box<dyn Read + Send>, watched: &BulkProgress) -> Result<BulkInput, BulkError> {
        let (named, packed) = BulkFormat::of_file(name);
        let mut input = DecompressingReader::begin(from, packed, self.options.inflate, watched.bytes.clone())?;
        let kind = match self.wanted.kind.or(named) {
            Some(kind) => kind,
            None => kind_of(&mut input)?,
        };
        Ok(BulkInput::Stream(kind, input))
    }

    /// The report of a content that its tables have completely.
    fn known(&mut self, content: &ContentId) -> Result<Option<BulkReport>, BulkError> {
        let application = application(content);
        let mut report = BulkReport {
            application: application.clone(),
            bytes: content.bytes,
            ..BulkReport::default()
        };
        let mut wanted = 0;
        for spec in SPECS {
            let Some(known) = self.tables.known(spec, &application)? else {
                continue;
            };
            wanted = known.tables;
            let table = TableReport {
                is_known: true,
                ..TableReport::default()
            };
            report.tables.insert(spec.name, table);
        }
        // A requested table must have it, too: it may have been imported into another one.
        let asked = [self.wanted.table, self.wanted.signal.map(Signal::table)];
        let has = |spec: &&TableSpec| report.tables.contains_key(spec.name);
        let is_whole = wanted > 0 && report.tables.len() as i64 >= wanted && asked.iter().flatten().all(has);
        Ok(is_whole.then_some(report))
    }

    /// Reads to the end and commits. If `content` was hashed in advance, the bytes that are read must match.
    fn read(
        &mut self,
        name: &str,
        mut opened: BulkInput,
        content: Option<ContentId>,
        watched: &BulkProgress,
    ) -> Result<BulkReport, BulkError> {
        let staging = match self.wanted.dry_run {
            true => None,
            false => Some(work_folder(&self.local)?),
        };
        let folder = staging.as_ref().map(WorkFolder::path);
        let mut reading = FileImport {
            name,
            wanted: &self.wanted,
            options: &self.options,
            arrival: unix_nanos(),
            watched,
            counts: BulkCounts::default(),
            quarantine: Quarantine::new(folder, self.wanted.bad_max),
        };
        let read = reading.read(&mut opened, self.requests.as_mut(), &mut self.tables, folder);
        let FileImport { counts, quarantine, .. } = reading;
        let found = match &opened {
            BulkInput::Stream(_, input) => input.content(),
            // Parquet is not read sequentially, so it is not hashed again. A changed file has another modification
            // time.
            BulkInput::Parquet { path, modified, .. } => {
                let now = std::fs::metadata(path).and_then(|found| found.modified());
                content.filter(|_| now.is_ok_and(|now| now == *modified))
            }
        };
        let id = match content.or(found) {
            Some(content) => format!("{:032x}", content.hash).chars().take(ID_DIGITS).collect(),
            None => random::uuid().simple().to_string(),
        };
        let quarantine = quarantine.keep(&self.local, file_name(name), &id)?;
        let (rest, specs) = read.map_err(|error| match error {
            BulkError::TooManyBad { max, line, why, .. } => BulkError::TooManyBad {
                max,
                line,
                why,
                quarantine: quarantine.clone(),
            },
            other => other,
        })?;
        let found = found.ok_or(BulkError::Changed)?;
        if content.is_some_and(|content| content != found) {
            return Err(BulkError::Changed);
        }
        let application = application(&found);
        let mut report = BulkReport {
            bytes: found.bytes,
            rejected: counts.rejected,
            changed: counts.changed,
            quarantine,
            ..BulkReport::default()
        };
        let again = self.wanted.again;
        report.tables = match self.wanted.dry_run {
            true => self.would_commit(&application, &specs)?,
            false => {
                let wanted: Vec<_> = specs.iter().map(|(spec, _)| *spec).collect();
                self.tables.commit(&application, again, rest, &wanted)?
            }
        };
        report.application = application;
        Ok(report)
    }

    fn would_commit(
        &mut self,
        application: &str,
        specs: &[(&'static TableSpec, u64)],
    ) -> Result<BTreeMap<&'static str, TableReport>, BulkError> {
        let mut reports = BTreeMap::new();
        for (spec, rows) in specs {
            let report = TableReport {
                rows: *rows,
                is_known: !self.wanted.again && self.tables.known(spec, application)?.is_some(),
                ..TableReport::default()
            };
            reports.insert(spec.name, report);
        }
        Ok(reports)
    }
}

fn kind_of(input: &mut DecompressingReader) -> Result<BulkFormat, BulkError> {
    let beginning = input.fill_buf()?;
    match BulkFormat::of_beginning(beginning) {
        Some(kind) => Ok(kind),
        // Empty input has no format.
        None if beginning.is_empty() => Ok(BulkFormat::Json),
        None => Err(BulkError::KindUnknown(
            "neither its name nor its first bytes show its format; set --kind binpb, json or csv".to_owned(),
        )),
    }
}

fn is_parquet(file: &mut File) -> Result<bool, BulkError> {
    let mut beginning = [0; 4];
    let is_it = match file.read_exact(&mut beginning) {
        Ok(()) => BulkFormat::of_beginning(&beginning) == Some(BulkFormat::Parquet),
        Err(_) => false,
    };
    file.rewind().map_err(BulkError::Read)?;
    Ok(is_it)
}

/// The tables that files can be imported into.
pub const SPECS: [&TableSpec; 3] = [&LOGS, &METRICS, &TRACES];
/// The digits of the hash in file names.
const ID_DIGITS: usize = 16;

/// The transaction application of a content.
fn application(content: &ContentId) -> String {
    format!("file/{:032x}", content.hash)
}

fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Here each process has a folder for the rows and bad lines of the file that it reads.
fn staging(lake: &Path) -> PathBuf {
    lake.join("_thalweg/ingest")
}

fn work_folder(lake: &Path) -> Result<WorkFolder, BulkError> {
    WorkFolder::new(&staging(lake)).map_err(|source| BulkError::Folder {
        path: lake.to_owned(),
        source,
    })
}
