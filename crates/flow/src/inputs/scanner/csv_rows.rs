//! Rows of a table in text (RFC 4180): each becomes an object named by the first row, or an array of texts. The metadata
//! `csv_row` counts rows from 0, without the header.

use std::io;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use thalweg_config::Fields;
use thalweg_record::{Message, Metadata, Object, Payload, Text, Value};

use super::{ScannedMessages, flagged, invalid};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CsvOptions {
    delimiter: u8,
    has_header: bool,
    continues_on_error: bool,
}

impl CsvOptions {
    pub fn read(f: &mut Fields<'_>) -> CsvOptions {
        let text = f.string("custom_delimiter", ",");
        let delimiter = match text.as_bytes() {
            [one] if one.is_ascii() && !matches!(one, b'"' | b'\r' | b'\n') => *one,
            _ => {
                f.error(
                    "custom_delimiter",
                    "expected one ASCII character such as \";\" or \"\\t\"",
                );
                b','
            }
        };
        let has_header = f.bool("parse_header_row", true);
        // Quotes within fields are always read as they stand.
        f.bool("lazy_quotes", false);
        let continues_on_error = f.bool("continue_on_error", false);
        CsvOptions {
            delimiter,
            has_header,
            continues_on_error,
        }
    }
}

/// Maximum number of fields in a row.
const FIELDS_MAX: usize = 1 << 16;

pub(super) struct CsvRows {
    options: CsvOptions,
    bytes_max: usize,
    reader: Reader,
    /// The text of the row so far, and the length of it.
    text: Vec<u8>,
    length: usize,
    /// The ends of its fields in the text, and their number.
    ends: Vec<usize>,
    count: usize,
    /// The row exceeds a limit, and its beginning is gone.
    is_too_large: bool,
    names: Option<Vec<Text>>,
    /// Fields of the first row.
    width: Option<usize>,
    row: u64,
    /// Why the stream cannot be read on, once the rows before have been passed on.
    failed: Option<io::Error>,
}

impl CsvRows {
    pub fn new(options: &CsvOptions, bytes_max: usize) -> CsvRows {
        CsvRows {
            options: options.clone(),
            bytes_max,
            reader: ReaderBuilder::new().delimiter(options.delimiter).build(),
            text: vec![0; 1024],
            length: 0,
            ends: vec![0; 32],
            count: 0,
            is_too_large: false,
            names: None,
            width: None,
            row: 0,
            failed: None,
        }
    }

    pub fn push(&mut self, mut piece: &[u8], title: &Text) -> io::Result<ScannedMessages> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut found = ScannedMessages::default();
        while !piece.is_empty() && self.failed.is_none() {
            let (_, read) = self.read(piece, title, &mut found);
            piece = piece.get(read..).unwrap_or_default();
        }
        Ok(found)
    }

    pub fn finish(&mut self, title: &Text) -> io::Result<ScannedMessages> {
        let mut found = ScannedMessages::default();
        // An empty piece is the end.
        while self.failed.is_none() && self.read(&[], title, &mut found).0 {}
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    /// Reads up to the end of a row. Returns whether there may be more, and the number of bytes that were used.
    fn read(&mut self, piece: &[u8], title: &Text, found: &mut ScannedMessages) -> (bool, usize) {
        let text = self.text.get_mut(self.length..).unwrap_or_default();
        let ends = self.ends.get_mut(self.count..).unwrap_or_default();
        let (result, read, written, ended) = self.reader.read_record(piece, text, ends);
        self.length += written;
        self.count += ended;
        match result {
            ReadRecordResult::InputEmpty => return (!piece.is_empty(), read),
            ReadRecordResult::OutputFull if self.text.len() >= self.bytes_max => self.forget(),
            ReadRecordResult::OutputFull => {
                let larger = self.text.len().saturating_mul(2).min(self.bytes_max);
                self.text.resize(larger, 0);
            }
            ReadRecordResult::OutputEndsFull if self.ends.len() >= FIELDS_MAX => self.forget(),
            ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
            ReadRecordResult::Record => self.failed = self.end_row(title, found).err(),
            ReadRecordResult::End => return (false, read),
        }
        (true, read)
    }

    /// Leaves out the rest of a row that is too large.
    fn forget(&mut self) {
        self.is_too_large = true;
        (self.length, self.count) = (0, 0);
    }

    fn end_row(&mut self, title: &Text, found: &mut ScannedMessages) -> io::Result<()> {
        let (length, count) = (std::mem::take(&mut self.length), std::mem::take(&mut self.count));
        if std::mem::take(&mut self.is_too_large) || length > self.bytes_max {
            found.too_large += 1;
            self.row += u64::from(self.width.is_some());
            return Ok(());
        }
        let mut start = 0;
        let ends = self.ends.get(..count).unwrap_or_default().iter();
        let fields: Vec<&[u8]> = ends
            .map(|end| {
                let field = self.text.get(start..(*end).min(length)).unwrap_or_default();
                start = *end;
                field
            })
            .collect();
        let width = *self.width.get_or_insert(count);
        if self.options.has_header && self.names.is_none() {
            let names = fields.iter().map(|name| Text::new(String::from_utf8_lossy(name)));
            self.names = Some(names.collect());
            return Ok(());
        }
        let row = self.row;
        self.row += 1;
        let mut message = Message::new(Payload::Raw(bytes::Bytes::new()), Metadata::default());
        message.meta.set("csv_row", row.to_string());
        if count != width {
            let error = format!("row {row} has {count} fields, and the first row {width}");
            if !self.options.continues_on_error {
                let cure = "correct it, or let such rows pass as failed messages with continue_on_error: true";
                return Err(invalid(format!("{error}; {cure}")));
            }
            found.messages.push(flagged(message, title, error));
            return Ok(());
        }
        let values = fields.into_iter().map(value);
        message.payload = Payload::Value(match &self.names {
            Some(names) => names.iter().cloned().zip(values).collect::<Object>().into(),
            None => values.collect::<Vec<Value>>().into(),
        });
        found.messages.push(message);
        Ok(())
    }
}

/// A text, or bytes if it is none.
fn value(field: &[u8]) -> Value {
    match std::str::from_utf8(field) {
        Ok(text) => Value::text(text),
        Err(_) => Value::Bytes(field.into()),
    }
}
