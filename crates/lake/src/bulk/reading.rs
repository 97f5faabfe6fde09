//! One file on its way, read to its end: rows grow here, and a second thread writes those that are enough.

use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::SystemTime;

use super::error::FileError;
use super::frames::Frames;
use super::growing::{Growing, Part};
use super::input::Input;
use super::json::Json;
use super::kind::{Kind, signal_of_file};
use super::quarantine::Quarantine;
use super::report::{Counts, Watched};
use super::requests::{Requests, probe};
use super::tables::Tables;
use super::{BulkOptions, Wanted, columns, csv, file_name};
use crate::by_name::{BadRow, Places, RowRules, Rows};
use crate::error::AppendError;
use crate::tables::{self, TableSpec};

/// What is read.
pub(super) enum Opened {
    Stream(Kind, Input),
    /// Parquet begins at its end.
    Parquet {
        file: File,
        path: PathBuf,
        /// When it was opened.
        modified: SystemTime,
    },
}

pub(super) struct Reading<'a> {
    pub name: &'a str,
    pub wanted: &'a Wanted,
    pub options: &'a BulkOptions,
    /// When the file was begun, in nanoseconds.
    pub arrival: i64,
    pub watched: &'a Watched,
    pub counts: Counts,
    pub quarantine: Quarantine,
}

/// Rows that are not in files, and how many there are of each table with those that are.
pub(super) type Read = (Vec<Part>, Vec<(&'static TableSpec, u64)>);

impl Reading<'_> {
    /// Files of rows go to the folder; without one nothing is written.
    pub fn read(&mut self, opened: &mut Opened, tables: &mut Tables, folder: Option<&Path>) -> Result<Read, FileError> {
        let spec = self.wanted.table.unwrap_or(&tables::LOGS);
        let places = Places::new(spec, tables.promoted(spec)?, self.wanted.renamed.clone());
        let mut maker = Rows::new(places, self.rules());
        let Some(folder) = folder else {
            let mut rows = Growing::new(self.options.flush_bytes, None);
            self.rows(opened, spec, &mut maker, &mut rows)?;
            return Ok(read(rows));
        };
        std::thread::scope(|scope| {
            let (to, parts) = sync_channel(0);
            let storing = std::thread::Builder::new()
                .name("ingest-store".to_owned())
                .spawn_scoped(scope, move || tables.stage(&parts, folder))?;
            let mut rows = Growing::new(self.options.flush_bytes, Some(&to));
            let made = self.rows(opened, spec, &mut maker, &mut rows);
            let read = read(rows);
            drop(to);
            let fault = || {
                FileError::Table(AppendError::Failed(
                    "the thread that writes files has a fault".to_owned(),
                ))
            };
            // Why nothing more was taken.
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
        opened: &mut Opened,
        spec: &'static TableSpec,
        maker: &mut Rows,
        rows: &mut Growing<'_>,
    ) -> Result<(), FileError> {
        let bytes_max = self.options.inflate.bytes;
        match opened {
            Opened::Stream(Kind::Otlp, input) => self.requests(input, rows),
            Opened::Stream(kind @ (Kind::Json | Kind::JsonLines), input) => {
                let requests = Requests::new(self.options.walk, self.options.window, self.arrival);
                let (signal, nesting) = (self.wanted.signal, self.options.walk.nesting);
                let mut json = Json::new(requests, maker, spec, signal, nesting, bytes_max);
                json.read(*kind, input, bytes_max, self, rows)
            }
            Opened::Stream(Kind::Csv, input) => csv::read(input, bytes_max, spec, maker, self, rows),
            Opened::Parquet { file, .. } => columns::read(file.try_clone()?, spec, maker, self, rows),
            Opened::Stream(Kind::Parquet, _) => Err(FileError::KindUnknown(
                "Parquet is read from its end, so it cannot come from a pipe; name a file".to_owned(),
            )),
        }?;
        self.tell(rows);
        Ok(())
    }

    fn requests(&mut self, input: impl BufRead, rows: &mut Growing<'_>) -> Result<(), FileError> {
        let mut signal = self.wanted.signal.or_else(|| signal_of_file(file_name(self.name)));
        let mut requests = Requests::new(self.options.walk, self.options.window, self.arrival);
        let mut frames = Frames::new(input, self.options.inflate.bytes);
        let mut part = Vec::new();
        while frames.next(&mut part)? {
            if signal.is_none() {
                signal = probe(&part)?;
            }
            // Without one there is no record in it.
            let Some(signal) = signal else { continue };
            let taken = requests.take(signal, &part, rows, &mut self.counts);
            taken.map_err(|malformed| FileError::Malformed {
                offset: frames.begin() + malformed.offset as u64,
                what: malformed.what.to_owned(),
            })?;
            if !self.goes_on(rows) {
                break;
            }
        }
        Ok(())
    }

    /// A line, a record or a row that is in no table; it counts from 1.
    pub fn bad(&mut self, line: u64, bad: &BadRow, text: &[u8]) -> Result<(), FileError> {
        self.counts.rejected(bad.reason, 1);
        self.quarantine.bad(line, &bad.why, text)
    }

    /// To be asked between rows, once in a while. `false`: whoever stores rows has failed.
    pub fn goes_on(&self, rows: &mut Growing<'_>) -> bool {
        self.tell(rows);
        rows.settle()
    }

    fn tell(&self, rows: &Growing<'_>) {
        let count = rows.rows().map(|(_, rows)| rows).sum();
        self.watched.rows.store(count, Ordering::Relaxed);
        let rejected = self.counts.rejected.values().sum();
        self.watched.rejected.store(rejected, Ordering::Relaxed);
    }
}

fn read(rows: Growing<'_>) -> Read {
    let mut specs: Vec<_> = rows.rows().filter(|(_, rows)| *rows > 0).collect();
    // The same tables in the same order, whatever comes first in a file.
    specs.sort_by_key(|(spec, _)| spec.name);
    (rows.rest(), specs)
}
