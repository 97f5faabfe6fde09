//! JSON lines: OTLP requests of any signal, and rows.

use std::io::{BufRead, Read as _};

use memchr::memmem::Finder;

use super::error::BulkError;
use super::file_import::FileImport;
use super::format::{BYTE_ORDER_MARK, BulkFormat};
use super::lines::{JsonValueReader, LineOutcome, LineReader};
use super::memtable::BulkMemtables;
use super::requests::RequestDecoder;
use crate::named_rows::{BadRow, NamedRowBuilder};
use crate::signal::Signal;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::tables::TableSpec;
use thalweg_kit::json_tokens::is_begun;

/// After this many bytes it checks whether the rows must be flushed.
const SETTLE_BYTES: usize = 256 << 10;

/// Makes rows of lines.
pub(super) struct BulkJsonReader<'a> {
    requests: &'a mut dyn RequestDecoder,
    rows: &'a mut NamedRowBuilder,
    spec: &'static TableSpec,
    signal: Option<Signal>,
    /// The nesting limit of a row.
    depth: usize,
    request: Finder<'static>,
}

impl<'a> BulkJsonReader<'a> {
    /// With a `signal`, requests of other signals are bad lines.
    pub fn new(
        requests: &'a mut dyn RequestDecoder,
        rows: &'a mut NamedRowBuilder,
        spec: &'static TableSpec,
        signal: Option<Signal>,
        nesting: usize,
    ) -> BulkJsonReader<'a> {
        BulkJsonReader {
            requests,
            rows,
            spec,
            signal,
            depth: nesting + 1,
            request: Finder::new("\"resource"),
        }
    }

    /// Reads all lines of an input.
    pub fn read(
        &mut self,
        kind: BulkFormat,
        mut input: impl BufRead,
        bytes_max: usize,
        reading: &mut FileImport<'_>,
        rows: &mut BulkMemtables<'_>,
    ) -> Result<(), BulkError> {
        let beginning = input.fill_buf()?;
        let text = beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(beginning);
        // A list may be a single line of any length.
        if kind == BulkFormat::Json && text.trim_ascii_start().first() == Some(&b'[') {
            return self.values(JsonValueReader::new(input, bytes_max), reading, rows);
        }
        let mut lines = LineReader::new(input, bytes_max);
        let mut line = Vec::new();
        let mut unsettled = 0;
        loop {
            let found = lines.next(&mut line)?;
            if lines.number() == 1 {
                let mark = line.starts_with(BYTE_ORDER_MARK);
                line.drain(..if mark { BYTE_ORDER_MARK.len() } else { 0 });
                line.push(b'\n');
                // A JSON string cannot span lines, so a line that ends within a string begins no value.
                let is_begun = found == LineOutcome::Whole && !line.trim_ascii().is_empty() && is_begun(&line);
                if kind == BulkFormat::Json && is_begun {
                    let all = line.as_slice().chain(lines.into_inner());
                    return self.values(JsonValueReader::new(all, bytes_max), reading, rows);
                }
                line.pop();
            }
            match found {
                LineOutcome::End => return Ok(()),
                LineOutcome::TooLong => {
                    let why = format!("the line has more than {} MiB", bytes_max >> 20);
                    reading.bad(lines.number(), &BadRow::line(why), &line)?;
                }
                LineOutcome::Whole if line.trim_ascii().is_empty() => {}
                LineOutcome::Whole => {
                    if let Err(bad) = self.line(&line, reading, rows) {
                        reading.bad(lines.number(), &bad, &line)?;
                    }
                }
            }
            unsettled += line.len() + 1;
            if unsettled >= SETTLE_BYTES {
                unsettled = 0;
                if !reading.goes_on_with(self.rows, rows) {
                    return Ok(());
                }
            }
        }
    }

    fn values(
        &mut self,
        mut values: JsonValueReader<impl BufRead>,
        reading: &mut FileImport<'_>,
        rows: &mut BulkMemtables<'_>,
    ) -> Result<(), BulkError> {
        let (mut value, mut unsettled) = (Vec::new(), 0);
        while values.next(&mut value)? != LineOutcome::End {
            if let Err(bad) = self.line(&value, reading, rows) {
                reading.bad(values.number(), &bad, &value)?;
            }
            unsettled += value.len();
            if unsettled >= SETTLE_BYTES {
                unsettled = 0;
                if !reading.goes_on_with(self.rows, rows) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Imports one object.
    fn line(&mut self, line: &[u8], reading: &mut FileImport<'_>, rows: &mut BulkMemtables<'_>) -> Result<(), BadRow> {
        // A cheap filter: few rows have a member with such a name.
        let signal = self.request.find(line).and_then(|_| self.requests.json_signal(line));
        let Some(signal) = signal else {
            let mut changed = RowChangeCounts::default();
            let done = self.rows.object(line, self.depth, rows.chunk(self.spec), &mut changed);
            reading.counts.changed(&changed);
            return done;
        };
        if let Some(wanted) = self.signal.filter(|wanted| *wanted != signal) {
            let (found, wanted) = (signal.name(), wanted.name());
            return Err(BadRow::line(format!("it has {found}, but --signal is {wanted}")));
        }
        let decoded = self.requests.decode_json(signal, line, rows.chunk(signal.table()));
        reading
            .counts
            .request(&decoded.map_err(|malformed| BadRow::line(malformed.to_string()))?);
        Ok(())
    }
}
