//! Finds the JSON documents of a stream: objects, arrays and single values, with white space or nothing between them.
//!
//! A document passes on as it is written. One that is not JSON, or exceeds its maximum size, is skipped; the next one
//! begins after its closing bracket.

use bytes::{Buf as _, BytesMut};
use thalweg_record::{Message, json};

use super::ScannedMessages;

pub(super) struct JsonDocuments {
    /// From the beginning of the document, or less of one that is too large.
    buffer: BytesMut,
    /// Bytes of the buffer that were looked at.
    scanned: usize,
    within: Within,
    /// Open brackets.
    depth: usize,
    is_too_large: bool,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    /// Between two documents.
    Nothing,
    /// An object or an array.
    Brackets,
    /// A text, here or in brackets.
    Quotes,
    /// A text, after a backslash.
    Escape,
    /// A number, a word, or what is no JSON.
    Word,
}

impl JsonDocuments {
    pub fn new(bytes_max: usize) -> JsonDocuments {
        JsonDocuments {
            buffer: BytesMut::new(),
            scanned: 0,
            within: Within::Nothing,
            depth: 0,
            is_too_large: false,
            bytes_max,
        }
    }

    pub fn push(&mut self, piece: &[u8]) -> ScannedMessages {
        self.buffer.extend_from_slice(piece);
        let mut found = ScannedMessages::default();
        while let Some(byte) = self.buffer.get(self.scanned) {
            if self.ends_before(*byte) {
                self.end(&mut found);
            } else if self.within == Within::Nothing && is_space(*byte) {
                self.buffer.advance(1);
            } else {
                let byte = *byte;
                self.scanned += 1;
                if self.ends_with(byte) {
                    self.end(&mut found);
                }
            }
        }
        if self.buffer.len() > self.bytes_max {
            self.is_too_large = true;
            self.buffer.clear();
            self.scanned = 0;
        }
        found
    }

    pub fn finish(&mut self) -> ScannedMessages {
        let mut found = ScannedMessages::default();
        if self.within != Within::Nothing {
            self.end(&mut found);
        }
        found
    }

    /// Whether the document has ended before this byte, which only a word does.
    fn ends_before(&self, byte: u8) -> bool {
        self.within == Within::Word && (is_space(byte) || matches!(byte, b'{' | b'[' | b'"'))
    }

    /// Takes a byte of a document; whether it is the last one.
    fn ends_with(&mut self, byte: u8) -> bool {
        let around = if self.depth > 0 {
            Within::Brackets
        } else {
            Within::Nothing
        };
        self.within = match (self.within, byte) {
            (Within::Escape, _) => Within::Quotes,
            (Within::Quotes, b'\\') => Within::Escape,
            (Within::Quotes, b'"') => around,
            (Within::Quotes, _) => Within::Quotes,
            (Within::Word, _) => Within::Word,
            (_, b'"') => Within::Quotes,
            (_, b'{' | b'[') => {
                self.depth += 1;
                Within::Brackets
            }
            (Within::Brackets, b'}' | b']') => {
                self.depth -= 1;
                if self.depth > 0 {
                    Within::Brackets
                } else {
                    Within::Nothing
                }
            }
            (Within::Brackets, _) => Within::Brackets,
            (Within::Nothing, _) => Within::Word,
        };
        self.within == Within::Nothing
    }

    /// Takes the document off the buffer.
    fn end(&mut self, found: &mut ScannedMessages) {
        let document = self.buffer.split_to(self.scanned).freeze();
        self.scanned = 0;
        self.depth = 0;
        self.within = Within::Nothing;
        if std::mem::take(&mut self.is_too_large) || document.len() > self.bytes_max {
            found.too_large += 1;
        } else if json::parse(&document).is_ok() {
            found.messages.push(Message::raw(document));
        } else {
            found.malformed += 1;
        }
    }
}

/// White space, and the mark before each document of a JSON text sequence.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x1E)
}
