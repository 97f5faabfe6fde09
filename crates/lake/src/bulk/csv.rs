//! Rows of CSV: a header line with column names, then one record per row. A quoted record may span several lines.

use std::cell::Cell as Shared;
use std::io::{self, Read};
use std::rc::Rc;

use csv::{ByteRecord, Position, ReaderBuilder, Terminator, WriterBuilder};

use super::error::BulkError;
use super::file_import::FileImport;
use super::memtable::BulkMemtables;
use crate::named_rows::cell::text;
use crate::named_rows::{BadRow, CellValue, NamedRowBuilder};
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::tables::TableSpec;

/// After this many records it checks whether the rows must be flushed.
const SETTLE_RECORDS: u64 = 512;

/// Reads all records of an input. An empty value is null.
pub(super) fn read(
    input: impl Read,
    bytes_max: usize,
    spec: &'static TableSpec,
    maker: &mut NamedRowBuilder,
    reading: &mut FileImport<'_>,
    rows: &mut BulkMemtables<'_>,
) -> Result<(), BulkError> {
    let left = Rc::new(Shared::new(bytes_max));
    let bounded = RecordLimitReader {
        from: input,
        left: left.clone(),
    };
    let mut reader = ReaderBuilder::new()
        // With `\r\n` as terminator, the reader would count the `\n` to the next record.
        .terminator(Terminator::Any(b'\n'))
        .flexible(true)
        .has_headers(false)
        .from_reader(bounded);
    let mut next = |record: &mut ByteRecord| -> Result<bool, BulkError> {
        left.set(bytes_max);
        let begin = reader.position().line();
        reader
            .read_byte_record(record)
            .map_err(|error| of_reader(error, begin, bytes_max))
    };
    let mut record = ByteRecord::new();
    // The last value of a record keeps the `\r` of its line end.
    let is_blank = |record: &ByteRecord| record.len() == 1 && record.get(0) == Some(b"\r");
    if !next(&mut record)? {
        return Ok(());
    }
    let names = header(&record)?;
    let mut count = 0;
    while next(&mut record)? {
        if is_blank(&record) {
            continue;
        }
        let line = record.position().map_or(0, Position::line);
        let mut changed = RowChangeCounts::default();
        let made = row(&names, &record, spec, maker, rows, &mut changed);
        reading.counts.changed(&changed);
        if let Err(bad) = made {
            reading.bad(line, &bad, &as_text(&record))?;
        }
        count += 1;
        if count % SETTLE_RECORDS == 0 && !reading.goes_on_with(maker, rows) {
            break;
        }
    }
    Ok(())
}

fn header(record: &ByteRecord) -> Result<Vec<String>, BulkError> {
    let mut names = Vec::with_capacity(record.len());
    for (at, name) in record.iter().enumerate() {
        let name = match at {
            0 => name.strip_prefix(super::format::BYTE_ORDER_MARK).unwrap_or(name),
            _ => name,
        };
        let name = std::str::from_utf8(name)
            .map_err(|_| BulkError::NoHeader(format!("name {} in the first line is not UTF-8", at + 1)))?;
        let name = name.trim();
        if name.contains('\r') {
            let what = "lines end with a carriage return alone; write the file with line feeds";
            return Err(BulkError::NoHeader(what.to_owned()));
        }
        if name.is_empty() {
            let at = at + 1;
            return Err(BulkError::NoHeader(format!(
                "column {at} has no name in the first line; a CSV file begins with the names of its columns"
            )));
        }
        if names.iter().any(|known| known == name) {
            return Err(BulkError::NoHeader(format!(
                "two columns are called {name:?} in the first line"
            )));
        }
        names.push(name.to_owned());
    }
    if let [name] = names.as_slice()
        && let Some(other) = [';', '\t', '|'].into_iter().find(|other| name.contains(*other))
    {
        return Err(BulkError::NoHeader(format!(
            "the names in the first line are separated by {other:?}; write the file with commas"
        )));
    }
    Ok(names)
}

fn row(
    names: &[String],
    record: &ByteRecord,
    spec: &'static TableSpec,
    maker: &mut NamedRowBuilder,
    rows: &mut BulkMemtables<'_>,
    changed: &mut RowChangeCounts,
) -> Result<(), BadRow> {
    if record.len() != names.len() {
        let (found, expected) = (record.len(), names.len());
        return Err(BadRow::line(format!(
            "it has {found} values, and the header has {expected} names"
        )));
    }
    maker.begin();
    for (name, value) in names.iter().zip(values(record)) {
        let (value, is_replaced) = text(value);
        changed.utf8_replaced += u64::from(is_replaced);
        match value.is_empty() {
            true => maker.put(name, CellValue::Null)?,
            false => maker.put(name, CellValue::Text(&value))?,
        }
    }
    maker.end(rows.chunk(spec), changed)
}

/// The values without the `\r` of the line end.
fn values(record: &ByteRecord) -> impl Iterator<Item = &[u8]> {
    let last = record.len().saturating_sub(1);
    record.iter().enumerate().map(move |(at, value)| match at == last {
        true => value.strip_suffix(b"\r").unwrap_or(value),
        false => value,
    })
}

fn as_text(record: &ByteRecord) -> Vec<u8> {
    let mut writer = WriterBuilder::new()
        .terminator(Terminator::Any(b'\n'))
        .flexible(true)
        .from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = writer.write_record(values(record));
    let text = writer.into_inner().unwrap_or_default();
    text.trim_ascii_end().to_vec()
}

/// Limits the size of a single record.
struct RecordLimitReader<R> {
    from: R,
    left: Rc<Shared<usize>>,
}

impl<R: Read> Read for RecordLimitReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        match self.left.get().checked_sub(count) {
            Some(left) => self.left.set(left),
            None => return Err(io::Error::other(RecordTooLong)),
        }
        Ok(count)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a record is too long")]
struct RecordTooLong;

fn of_reader(error: csv::Error, begin: u64, bytes_max: usize) -> BulkError {
    match error.into_kind() {
        csv::ErrorKind::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<RecordTooLong>()) => {
            let mib = bytes_max >> 20;
            BulkError::Text(format!(
                "the record that begins in line {begin} has more than {mib} MiB; maybe a quote is not closed"
            ))
        }
        csv::ErrorKind::Io(error) => error.into(),
        // Unreachable: records of any length and of any bytes are accepted.
        other => BulkError::Text(format!("line {begin}: {other:?}")),
    }
}
