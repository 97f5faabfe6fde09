//! A message as stored in the log: the value of a record, whose time is that of the message.
//!
//! Flags 1 · position 8 · global position 8 · id 16, or varint length and text · stream, type, data (varint length and
//! bytes each) · metadata up to the end. Numbers are little-endian. Data and metadata are JSON as the client wrote it,
//! without whitespace between tokens.

use bytes::Bytes;
use thalweg_kit::varint;
use thalweg_log::Micros;
use thalweg_log::format::{FieldReader, FieldWriter};

use crate::id::{MessageId, Uuid};

/// The id is not a UUID.
const TEXT_ID: u8 = 1;
const HAS_METADATA: u8 = 2;
/// The server made the id, so it is unique.
const OWN_ID: u8 = 4;
const IS_FIRST: u8 = 8;
const IS_IMPORTED: u8 = 16;
const KNOWN: u8 = TEXT_ID | HAS_METADATA | OWN_ID | IS_FIRST | IS_IMPORTED;

/// A message whose fields borrow from its encoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRef<'a> {
    pub id: IdRef<'a>,
    /// Whether the server made the id.
    pub own_id: bool,
    pub stream: &'a str,
    /// Position in its stream, from 0.
    pub position: u64,
    /// Position in its namespace, from 1.
    pub global: u64,
    pub kind: &'a str,
    pub data: &'a str,
    pub metadata: Option<&'a str>,
    pub time: Micros,
    /// Its stream had no message before, whatever its position.
    pub is_first: bool,
    /// It was imported with its position.
    pub is_imported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRef<'a> {
    Uuid(Uuid),
    Text(&'a str),
}

/// A message that was read, with its encoded bytes.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    value: Bytes,
    time: Micros,
}

impl<'a> EventRef<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (data, metadata) = (self.data.as_bytes(), self.metadata.unwrap_or_default());
        out.reserve(64 + self.stream.len() + self.kind.len() + data.len() + metadata.len());
        let mut flags = 0;
        for (set, flag) in [
            (matches!(self.id, IdRef::Text(_)), TEXT_ID),
            (self.metadata.is_some(), HAS_METADATA),
            (self.own_id, OWN_ID),
            (self.is_first, IS_FIRST),
            (self.is_imported, IS_IMPORTED),
        ] {
            flags |= if set { flag } else { 0 };
        }
        FieldWriter(out).u8(flags).u64(self.position).u64(self.global);
        match self.id {
            IdRef::Uuid(uuid) => out.extend_from_slice(&uuid.0),
            IdRef::Text(text) => put(out, text),
        }
        put(out, self.stream);
        put(out, self.kind);
        put(out, self.data);
        out.extend_from_slice(metadata.as_bytes());
    }

    /// `None` if the bytes are not a message.
    pub fn decode(value: &'a [u8], time: Micros) -> Option<EventRef<'a>> {
        let mut take = FieldReader(value);
        let flags = take.u8()?;
        if flags & !KNOWN != 0 {
            return None;
        }
        let (position, global) = (take.u64()?, take.u64()?);
        let id = match flags & TEXT_ID {
            0 => IdRef::Uuid(Uuid(take.bytes()?)),
            _ => IdRef::Text(text(&mut take)?),
        };
        let (stream, kind, data) = (text(&mut take)?, text(&mut take)?, text(&mut take)?);
        let rest = std::str::from_utf8(take.0).ok()?;
        let metadata = match flags & HAS_METADATA {
            0 if rest.is_empty() => None,
            0 => return None,
            _ => Some(rest),
        };
        Some(EventRef {
            id,
            own_id: flags & OWN_ID != 0,
            stream,
            position,
            global,
            kind,
            data,
            metadata,
            time,
            is_first: flags & IS_FIRST != 0,
            is_imported: flags & IS_IMPORTED != 0,
        })
    }
}

pub(crate) fn put(out: &mut Vec<u8>, text: &str) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn text<'a>(take: &mut FieldReader<'a>) -> Option<&'a str> {
    let (len, rest) = varint::take(take.0)?;
    let (text, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *take = FieldReader(rest);
    std::str::from_utf8(text).ok()
}

impl<'a> From<&'a MessageId> for IdRef<'a> {
    fn from(id: &'a MessageId) -> IdRef<'a> {
        match id {
            MessageId::Uuid(uuid) => IdRef::Uuid(*uuid),
            MessageId::Text(text) => IdRef::Text(text),
        }
    }
}

impl From<IdRef<'_>> for MessageId {
    fn from(id: IdRef<'_>) -> MessageId {
        match id {
            IdRef::Uuid(uuid) => MessageId::Uuid(uuid),
            IdRef::Text(text) => MessageId::Text(text.into()),
        }
    }
}

impl StoredEvent {
    /// `None` if the bytes are not a message.
    pub fn new(value: Bytes, time: Micros) -> Option<StoredEvent> {
        EventRef::decode(&value, time)?;
        Some(StoredEvent { value, time })
    }

    pub fn bytes(&self) -> usize {
        self.value.len()
    }

    /// A copy without data and metadata, in memory of its own. It suffices to ask a namespace whether the message is
    /// [still shown](crate::Namespace::still_shown).
    pub fn without_data(&self) -> StoredEvent {
        let (mut value, event) = (Vec::new(), self.event());
        let event = EventRef {
            data: "{}",
            metadata: None,
            ..event
        };
        event.encode(&mut value);
        value.shrink_to_fit();
        StoredEvent {
            value: value.into(),
            time: self.time,
        }
    }

    pub fn event(&self) -> EventRef<'_> {
        // The bytes were validated in `new`.
        EventRef::decode(&self.value, self.time).unwrap_or(EventRef {
            id: IdRef::Text(""),
            own_id: false,
            stream: "",
            position: 0,
            global: 0,
            kind: "",
            data: "{}",
            metadata: None,
            time: self.time,
            is_first: false,
            is_imported: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(
            id in prop_oneof![
                any::<[u8; 16]>().prop_map(|bytes| MessageId::Uuid(Uuid(bytes))),
                ".{0,40}".prop_map(|text| MessageId::Text(text.into())),
            ],
            (stream, kind, data) in (".{0,40}", ".{0,20}", ".{0,200}"),
            metadata in proptest::option::of(".{0,50}"),
            (position, global, time) in any::<(u64, u64, i64)>(),
            (own_id, is_first, is_imported) in any::<(bool, bool, bool)>(),
        ) {
            let event = EventRef {
                id: (&id).into(),
                own_id,
                stream: &stream,
                position,
                global,
                kind: &kind,
                data: &data,
                metadata: metadata.as_deref(),
                time,
                is_first,
                is_imported,
            };
            let mut out = Vec::new();
            event.encode(&mut out);
            prop_assert_eq!(EventRef::decode(&out, time), Some(event));
            for cut in 0..out.len() {
                let _ = EventRef::decode(&out[..cut], time);
            }
        }

        #[test]
        fn no_bytes_break_the_decoder(bytes in any::<Vec<u8>>()) {
            let _ = EventRef::decode(&bytes, 0);
        }
    }
}
