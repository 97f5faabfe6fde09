//! Records in the partition of a namespace: messages, documents and clearings.
//!
//! A document is `0x80`, or `0x81` if it was removed · name (varint length and bytes) · revision (varint) · content up
//! to the end. A clearing is `0x40`. Everything else is a message.

use bytes::Bytes;
use thalweg_kit::varint;
use thalweg_log::Micros;
use thalweg_log::format::FieldReader;

use crate::event::{EventRef, put, text};

const DOCUMENT: u8 = 0x80;
const REMOVED: u8 = 1;
const CLEARED: u8 = 0x40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartitionRecord<'a> {
    Event(EventRef<'a>),
    Document(DocumentRef<'a>),
    Cleared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DocumentRef<'a> {
    pub name: &'a str,
    pub revision: u64,
    /// `None` if it was removed.
    pub content: Option<&'a [u8]>,
}

impl<'a> PartitionRecord<'a> {
    /// `None` if the bytes are none of these.
    pub fn decode(value: &'a [u8], time: Micros) -> Option<PartitionRecord<'a>> {
        let flags = *value.first()?;
        if flags == CLEARED {
            return (value.len() == 1).then_some(PartitionRecord::Cleared);
        }
        if flags & DOCUMENT == 0 {
            return EventRef::decode(value, time).map(PartitionRecord::Event);
        }
        if flags & !(DOCUMENT | REMOVED) != 0 {
            return None;
        }
        let mut take = FieldReader(value.get(1..)?);
        let name = text(&mut take)?;
        let (revision, content) = varint::take(take.0)?;
        Some(PartitionRecord::Document(DocumentRef {
            name,
            revision,
            content: (flags & REMOVED == 0).then_some(content),
        }))
    }
}

impl DocumentRef<'_> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let removed = if self.content.is_none() { REMOVED } else { 0 };
        out.push(DOCUMENT | removed);
        put(out, self.name);
        varint::put(out, self.revision);
        out.extend_from_slice(self.content.unwrap_or_default());
    }
}

pub(super) fn cleared() -> [u8; 1] {
    [CLEARED]
}

/// The content and revision of a document record.
pub(super) fn content(value: &Bytes) -> Option<(Bytes, u64)> {
    match PartitionRecord::decode(value, 0)? {
        PartitionRecord::Document(document) => Some((value.slice_ref(document.content?), document.revision)),
        _ => None,
    }
}

/// For the fuzz targets: a decoded record must survive encoding and decoding.
pub fn fuzz(bytes: &[u8]) {
    let mut out = Vec::new();
    match PartitionRecord::decode(bytes, 7) {
        Some(PartitionRecord::Event(event)) => event.encode(&mut out),
        Some(PartitionRecord::Document(document)) => document.encode(&mut out),
        Some(PartitionRecord::Cleared) => out.extend(cleared()),
        None => return,
    }
    assert_eq!(PartitionRecord::decode(&out, 7), PartitionRecord::decode(bytes, 7));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_document_is_read_as_it_was_written(
            name in ".{0,40}", revision in any::<u64>(), content in proptest::option::of(any::<Vec<u8>>()),
        ) {
            let document = DocumentRef { name: &name, revision, content: content.as_deref() };
            let mut out = Vec::new();
            document.encode(&mut out);
            prop_assert_eq!(PartitionRecord::decode(&out, 0), Some(PartitionRecord::Document(document)));
        }

        #[test]
        fn no_bytes_break_the_decoder(bytes in any::<Vec<u8>>()) {
            let _ = PartitionRecord::decode(&bytes, 0);
        }
    }

    #[test]
    fn a_clearing_is_no_message() {
        assert_eq!(PartitionRecord::decode(&cleared(), 0), Some(PartitionRecord::Cleared));
        assert_eq!(EventRef::decode(&cleared(), 0), None);
    }
}
