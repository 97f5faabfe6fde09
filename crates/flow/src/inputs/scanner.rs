//! `scanner`: how a stream of bytes becomes messages. Bytes are decompressed, a byte order mark is skipped, and the rest is
//! cut: at delimiters, into documents, rows or pieces of a size.
//!
//! Files of older form have `codec` and `max_buffer` instead. Whatever the stream contains, memory is bounded: a message
//! has at most its configured size, and decompressed bytes leave in pieces.

mod csv_rows;
mod decompress;
mod json_documents;

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use thalweg_config::{Fields, kind};
use thalweg_record::{Failure, Message, Text};

use super::codec::{Delimiter, DelimiterSplitter, SplitMessages};
use csv_rows::{CsvOptions, CsvRows};
use decompress::{Compression, Decompressor};
use json_documents::JsonDocuments;

/// Default maximum size of a message of a stream.
const MESSAGE_BYTES_MAX: &str = "64MiB";
const CHUNK_BYTES_MAX: i64 = 1 << 30;
/// Maximum nesting of `into`.
const LAYERS_MAX: usize = 4;

/// How streams become messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScannerSpec {
    compression: Option<Compression>,
    skips_bom: bool,
    cut: Cut,
    /// Maximum size of a message.
    bytes_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cut {
    /// Messages without bytes are left out on request.
    Delimited {
        at: Delimiter,
        omits_empty: bool,
    },
    Chunks(usize),
    JsonDocuments,
    Csv(CsvOptions),
}

const SCANNERS: [&str; 7] = [
    "chunker",
    "csv",
    "decompress",
    "json_documents",
    "lines",
    "skip_bom",
    "to_the_end",
];

impl ScannerSpec {
    /// Reads the fields `scanner`, `codec` and `max_buffer`.
    pub fn read(fields: &mut Fields<'_>) -> ScannerSpec {
        let name = fields.string("codec", "lines");
        let bytes_max = usize::try_from(fields.size("max_buffer", MESSAGE_BYTES_MAX)).unwrap_or(usize::MAX);
        let at = Delimiter::of_codec(&name).unwrap_or_else(|why| {
            fields.error("codec", why);
            Delimiter::Lines
        });
        let mut spec = ScannerSpec {
            compression: None,
            skips_bom: false,
            cut: Cut::Delimited { at, omits_empty: false },
            bytes_max,
        };
        let has_codec = fields.has("codec");
        if let Some(scanner) = fields.opt_fields("scanner") {
            if has_codec {
                fields.error(
                    "codec",
                    "scanner says already how the stream is cut; remove one of them",
                );
            }
            spec.read_scanner(scanner, 0);
        }
        spec
    }

    fn read_scanner(&mut self, mut fields: Fields<'_>, layer: usize) {
        let names: Vec<&str> = SCANNERS
            .into_iter()
            .filter(|name| fields.mapping().get(name).is_some())
            .collect();
        if let [_, second, ..] = names.as_slice() {
            fields.error(second, "a scanner has one name; put the inner one into \"into\"");
        }
        for name in SCANNERS {
            let is_given = names.first() == Some(&name);
            // A name may have no value, as in `lines:`.
            let inner = match is_given {
                true => Some(fields.fields(name)),
                false => fields.opt_fields(name),
            };
            if let Some(inner) = inner {
                self.read_kind(name, inner, layer, is_given);
            }
        }
        fields.finish();
    }

    /// Reads the fields of a scanner, and takes them over if it is given. Otherwise they are only being described.
    fn read_kind(&mut self, name: &str, mut f: Fields<'_>, layer: usize, is_given: bool) {
        let mut read = self.clone();
        match name {
            "chunker" => {
                let size = f.int_in("size", 0, 0..=CHUNK_BYTES_MAX);
                if is_given && size == 0 {
                    f.error("size", "a chunk has at least one byte; give a size such as 4096");
                }
                read.cut = Cut::Chunks(usize::try_from(size).unwrap_or(usize::MAX).max(1));
            }
            "csv" => {
                read.cut = Cut::Csv(CsvOptions::read(&mut f));
            }
            "decompress" => {
                let names = Compression::NAMES.map(|(name, _)| name);
                // Described as required, which it is once the scanner is given.
                let algorithm = match is_given {
                    true => f.required_one_of("algorithm", &names),
                    false => f.opt_one_of("algorithm", &names),
                };
                if is_given && self.compression.is_some() {
                    f.error(
                        "algorithm",
                        "the stream is decompressed already; a second time is not supported",
                    );
                }
                read.compression = algorithm.and_then(Compression::of);
                read.read_into(&mut f, layer);
            }
            "json_documents" => read.cut = Cut::JsonDocuments,
            "lines" => {
                let delimiter = f.string("custom_delimiter", "");
                let at = match delimiter.as_str() {
                    "" => Delimiter::Lines,
                    text => Delimiter::At(text.as_bytes().to_vec()),
                };
                if let Some(size) = f.opt_size("max_buffer_size") {
                    read.bytes_max = usize::try_from(size).unwrap_or(usize::MAX);
                }
                let omits_empty = f.bool("omit_empty", false);
                read.cut = Cut::Delimited { at, omits_empty };
            }
            "skip_bom" => {
                read.skips_bom = true;
                read.read_into(&mut f, layer);
            }
            _ => read.cut = Delimiter::AllBytes.into(),
        }
        f.finish();
        if is_given {
            *self = read;
        }
    }

    /// Reads what cuts the stream after this layer: by default nothing does.
    fn read_into(&mut self, f: &mut Fields<'_>, layer: usize) {
        self.cut = Delimiter::AllBytes.into();
        let Some(inner) = f.node_or("into", kind::MAPPING, "{to_the_end: {}}") else {
            return;
        };
        // A scanner within a scanner has the same fields again.
        if f.diags().is_describing() {
            return;
        }
        match layer < LAYERS_MAX {
            true => self.read_scanner(Fields::new(&inner, f.diags()), layer + 1),
            false => f.error("into", format!("scanners are nested more than {LAYERS_MAX} deep")),
        }
    }

    /// Starts with a stream. `title` is who marks messages that are wrong.
    pub fn scanner(&self, title: &str) -> io::Result<Scanner> {
        let decompressor = self.compression.map(Decompressor::new).transpose()?;
        let cutter = match &self.cut {
            Cut::Delimited { at, omits_empty } => Cutter::Delimited {
                splitter: DelimiterSplitter::new(at.clone(), self.bytes_max),
                omits_empty: *omits_empty,
            },
            Cut::Chunks(size) => Cutter::Chunks {
                size: *size,
                buffer: BytesMut::new(),
            },
            Cut::JsonDocuments => Cutter::JsonDocuments(JsonDocuments::new(self.bytes_max)),
            Cut::Csv(options) => Cutter::Csv(Box::new(CsvRows::new(options, self.bytes_max))),
        };
        Ok(Scanner {
            decompressor,
            mark: self.skips_bom.then(Vec::new),
            cutter,
            title: title.into(),
        })
    }
}

impl From<Delimiter> for Cut {
    fn from(at: Delimiter) -> Cut {
        Cut::Delimited { at, omits_empty: false }
    }
}

/// Reads one stream.
pub(super) struct Scanner {
    decompressor: Option<Decompressor>,
    /// The first bytes, until it is clear whether they are a byte order mark.
    mark: Option<Vec<u8>>,
    cutter: Cutter,
    title: Text,
}

enum Cutter {
    Delimited {
        splitter: DelimiterSplitter,
        omits_empty: bool,
    },
    Chunks {
        size: usize,
        buffer: BytesMut,
    },
    JsonDocuments(JsonDocuments),
    Csv(Box<CsvRows>),
}

/// What a piece of a stream gives.
#[derive(Debug, Default)]
pub(super) struct ScannedMessages {
    pub messages: Vec<Message>,
    /// Messages that were skipped because they exceed their maximum size.
    pub too_large: usize,
    /// Messages that were skipped because they do not have the form of the stream.
    pub malformed: usize,
}

impl From<SplitMessages> for ScannedMessages {
    fn from(split: SplitMessages) -> ScannedMessages {
        ScannedMessages {
            messages: split.messages.into_iter().map(Message::raw).collect(),
            too_large: split.too_large,
            malformed: 0,
        }
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

impl Scanner {
    /// Takes a piece of the stream, or a part of it. What it gives may be a part, too: the caller passes the rest of the
    /// piece, empty or not, until the result is [`ScanStep::NeedsMore`].
    pub fn step(&mut self, piece: &mut &[u8]) -> io::Result<ScanStep> {
        let Some(decompressor) = &mut self.decompressor else {
            if piece.is_empty() {
                return Ok(ScanStep::NeedsMore);
            }
            let all = std::mem::take(piece);
            return self.cut(all).map(ScanStep::Messages);
        };
        let plain = decompressor.step(piece)?;
        match plain.is_empty() && piece.is_empty() {
            true => Ok(ScanStep::NeedsMore),
            false => self.cut(&plain).map(ScanStep::Messages),
        }
    }

    /// Ends the stream: the rest is a message too, unless it is empty.
    pub fn finish(&mut self) -> io::Result<ScannedMessages> {
        let mut found = ScannedMessages::default();
        if let Some(decompressor) = &mut self.decompressor {
            let plain = decompressor.finish()?;
            found.extend(self.cut(&plain)?);
        }
        if let Some(first) = self.mark.take() {
            found.extend(self.cut(&first)?);
        }
        found.extend(match &mut self.cutter {
            Cutter::Delimited { splitter, .. } => splitter.finish().into(),
            Cutter::Chunks { buffer, .. } => {
                let rest = buffer.split().freeze();
                let messages = (!rest.is_empty()).then(|| Message::raw(rest));
                ScannedMessages {
                    messages: messages.into_iter().collect(),
                    ..ScannedMessages::default()
                }
            }
            Cutter::JsonDocuments(documents) => documents.finish(),
            Cutter::Csv(rows) => rows.finish(&self.title)?,
        });
        Ok(found)
    }

    fn cut(&mut self, plain: &[u8]) -> io::Result<ScannedMessages> {
        let Some(first) = &mut self.mark else {
            return self.cut_unmarked(plain);
        };
        let missing = BYTE_ORDER_MARK.len().saturating_sub(first.len()).min(plain.len());
        let (head, rest) = plain.split_at(missing);
        first.extend_from_slice(head);
        if first.len() < BYTE_ORDER_MARK.len() {
            return Ok(ScannedMessages::default());
        }
        let first = self
            .mark
            .take()
            .filter(|first| first != BYTE_ORDER_MARK)
            .unwrap_or_default();
        let mut found = self.cut_unmarked(&first)?;
        found.extend(self.cut_unmarked(rest)?);
        Ok(found)
    }

    fn cut_unmarked(&mut self, plain: &[u8]) -> io::Result<ScannedMessages> {
        if plain.is_empty() {
            return Ok(ScannedMessages::default());
        }
        match &mut self.cutter {
            Cutter::Delimited { splitter, omits_empty } => {
                let mut split = splitter.push(plain);
                if *omits_empty {
                    split.messages.retain(|message| !message.is_empty());
                }
                Ok(split.into())
            }
            Cutter::Chunks { size, buffer } => {
                buffer.extend_from_slice(plain);
                let mut chunks: Vec<Bytes> = Vec::new();
                while buffer.len() >= *size {
                    chunks.push(buffer.split_to(*size).freeze());
                }
                Ok(ScannedMessages {
                    messages: chunks.into_iter().map(Message::raw).collect(),
                    ..ScannedMessages::default()
                })
            }
            Cutter::JsonDocuments(documents) => Ok(documents.push(plain)),
            Cutter::Csv(rows) => rows.push(plain, &self.title),
        }
    }
}

/// The outcome of [`Scanner::step`].
pub(super) enum ScanStep {
    /// There may be more in the piece.
    Messages(ScannedMessages),
    /// The piece is used up.
    NeedsMore,
}

impl ScannedMessages {
    fn extend(&mut self, more: ScannedMessages) {
        self.messages.extend(more.messages);
        self.too_large += more.too_large;
        self.malformed += more.malformed;
    }
}

/// A message that is passed on although it is wrong, with the mark that `catch` reads.
fn flagged(mut message: Message, title: &Text, error: String) -> Message {
    message.failure = Some(Arc::new(Failure {
        stage: title.clone(),
        error: error.into(),
    }));
    message
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests;
