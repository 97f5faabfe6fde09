//! The import of one file: this thread makes rows, and a second one writes them when there are enough.

use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::SystemTime;

use super::error::BulkError;
use super::format::{BulkFormat, signal_of_file};
use super::input::DecompressingReader;
use super::json::BulkJsonReader;
use super::memtable::{BulkBatch, BulkMemtables};
use super::quarantine::Quarantine;
use super::report::{BulkCounts, BulkProgress};
use super::request_splitter::RequestSplitter;
use super::requests::{RequestDecoder, RequestRules};
use super::tables::BulkTables;
use super::{BulkOptions, BulkRequest, csv, file_name, parquet_rows};
use crate::error::AppendError;
use crate::named_rows::missing::MissingFields;
use crate::named_rows::{BadRow, ColumnMapping, NamedRowBuilder, RowRules};
use thalweg_columns::tables::{self, TableSpec};
use thalweg_kit::threads;

/// The input.
pub(super) enum BulkInput {
    Stream(BulkFormat, DecompressingReader),
    /// Parquet is read from its end.
    Parquet {
        file: File,
        path: PathBuf,
        /// When it was opened.
        modified: SystemTime,
    },
}

pub(super) struct FileImport<'a> {
    pub name: &'a str,
    pub wanted: &'a BulkRequest,
    pub options: &'a BulkOptions,
    /// When the import of the file began, in nanoseconds.
    pub arrival: i64,
    pub watched: &'a BulkProgress,
    pub counts: BulkCounts,
    pub quarantine: Quarantine,
}

/// The rows that are not in files yet, and the number of rows of each table including those in files.
pub(super) type ImportedRows = (Vec<BulkBatch>, Vec<(&'static TableSpec, u64)>);

impl FileImport<'_> {
    /// Writes files of rows to the folder. Without a folder nothing is written.
    pub fn read(
        &mut self,
        opened: &mut BulkInput,
        requests: &mut dyn RequestDecoder,
        tables: &mut BulkTables,
        folder: Option<&Path>,
    ) -> Result<ImportedRows, BulkError> {
        requests.begin(&RequestRules {
            limits: self.options.walk,
            window: self.options.window,
            arrival: self.arrival,
            bytes_max: self.options.inflate.bytes,
        });
        let spec = self.wanted.table.unwrap_or(&tables::LOGS);
        let places = ColumnMapping::new(spec, tables.promoted(spec)?, self.wanted.renamed.clone());
        let mut maker = NamedRowBuilder::new(places, self.rules());
        if !self.wanted.accept_missing {
            maker.note_missing();
        }
        let Some(folder) = folder else {
            let mut rows = BulkMemtables::new(self.options.flush_bytes, None);
            self.rows(opened, requests, spec, &mut maker, &mut rows)?;
            return Ok(read(rows));
        };
        std::thread::scope(|scope| {
            let (to, parts) = sync_channel(0);
            let storing = threads::spawn_scoped(scope, "ingest-store", move || tables.stage(&parts, folder))?;
            let mut rows = BulkMemtables::new(self.options.flush_bytes, Some(&to));
            let made = self.rows(opened, requests, spec, &mut maker, &mut rows);
            let read = read(rows);
            drop(to);
            let fault = || BulkError::Table(AppendError::Failed("the writer thread has panicked".to_owned()));
            // Reports first why the writer failed.
            storing.join().unwrap_or_else(|_| Err(fault()))?;
            made.map(|()| read)
        })
    }

    fn rules(&self) -> RowRules {
        RowRules {
            limits: self.options.walk,
            window: self.options.window,
            arrival: self.arrival,
            time_format: self.wanted.time_format.clone(),
        }
    }

    fn rows(
        &mut self,
        opened: &mut BulkInput,
        requests: &mut dyn RequestDecoder,
        spec: &'static TableSpec,
        maker: &mut NamedRowBuilder,
        rows: &mut BulkMemtables<'_>,
    ) -> Result<(), BulkError> {
        let bytes_max = self.options.inflate.bytes;
        match opened {
            BulkInput::Stream(BulkFormat::Otlp, input) => self.requests(input, requests, rows),
            BulkInput::Stream(kind @ (BulkFormat::Json | BulkFormat::JsonLines), input) => {
                let (signal, nesting) = (self.wanted.signal, self.options.walk.nesting);
                let mut json = BulkJsonReader::new(requests, maker, spec, signal, nesting);
                json.read(*kind, input, bytes_max, self, rows)
            }
            BulkInput::Stream(BulkFormat::Csv, input) => csv::read(input, bytes_max, spec, maker, self, rows),
            BulkInput::Parquet { file, .. } => parquet_rows::read(file.try_clone()?, spec, maker, self, rows),
            BulkInput::Stream(BulkFormat::Parquet, _) => Err(BulkError::KindUnknown(
                "Parquet is read from its end, so it cannot come from a pipe; name a file".to_owned(),
            )),
        }?;
        self.tell(rows);
        match maker.missing().and_then(MissingFields::advice) {
            Some(advice) => Err(BulkError::MissingFields { advice }),
            None => Ok(()),
        }
    }

    fn requests(
        &mut self,
        input: impl BufRead,
        requests: &mut dyn RequestDecoder,
        rows: &mut BulkMemtables<'_>,
    ) -> Result<(), BulkError> {
        let mut signal = self.wanted.signal.or_else(|| signal_of_file(file_name(self.name)));
        let mut frames = RequestSplitter::new(input, self.options.inflate.bytes);
        let mut part = Vec::new();
        while frames.next(&mut part)? {
            if signal.is_none() {
                signal = requests.probe(&part)?;
            }
            // A part without a signal has no records.
            let Some(signal) = signal else { continue };
            let decoded = requests.decode(signal, &part, rows.chunk(signal.table()));
            let decoded = decoded.map_err(|malformed| BulkError::Malformed {
                offset: frames.begin() + malformed.offset as u64,
                what: malformed.what,
            })?;
            self.counts.request(&decoded);
            if !self.goes_on(rows) {
                break;
            }
        }
        Ok(())
    }

    /// Counts and quarantines a line, record or row that is rejected. `line` counts from 1.
    pub fn bad(&mut self, line: u64, bad: &BadRow, text: &[u8]) -> Result<(), BulkError> {
        self.counts.rejected(bad.reason.name(), 1);
        self.quarantine.bad(line, &bad.why, text)
    }

    /// Called between rows from time to time. Returns false if the writer has failed.
    pub fn goes_on(&self, rows: &mut BulkMemtables<'_>) -> bool {
        self.tell(rows);
        rows.settle()
    }

    /// The same where rows have names. Returns false also if so many rows lack a time or a body that the others need
    /// not be read.
    pub fn goes_on_with(&self, maker: &NamedRowBuilder, rows: &mut BulkMemtables<'_>) -> bool {
        let is_hopeless = maker.missing().is_some_and(MissingFields::is_hopeless);
        self.goes_on(rows) && !is_hopeless
    }

    fn tell(&self, rows: &BulkMemtables<'_>) {
        let count = rows.rows().map(|(_, rows)| rows).sum();
        self.watched.rows.store(count, Ordering::Relaxed);
        let rejected = self.counts.rejected.values().sum();
        self.watched.rejected.store(rejected, Ordering::Relaxed);
    }
}

fn read(rows: BulkMemtables<'_>) -> ImportedRows {
    let mut specs: Vec<_> = rows.rows().filter(|(_, rows)| *rows > 0).collect();
    // A deterministic order, whatever comes first in a file.
    specs.sort_by_key(|(spec, _)| spec.name);
    (rows.rest(), specs)
}
