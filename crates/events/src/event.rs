//! A message as it lies in the log: the value of a record, whose time is the message's.
//!
//! Flags 1 · position 8 · global position 8 · id 16, or varint length and text · stream, type, data (varint length and bytes
//! each) · metadata up to the end. Numbers are little-endian. Data and metadata are JSON as the client wrote it, without white
//! space between its parts.

use bytes::Bytes;
use thalweg_log::Micros;
use thalweg_log::format::{FieldReader, FieldWriter, varint};

use crate::id::{MessageId, Uuid};

/// The id is no UUID.
const TEXT_ID: u8 = 1;
const HAS_METADATA: u8 = 2;
/// The server made the id, so that no other message has it.
const OWN_ID: u8 = 4;
const IS_FIRST: u8 = 8;
const IS_IMPORTED: u8 = 16;
const KNOWN: u8 = TEXT_ID | HAS_METADATA | OWN_ID | IS_FIRST | IS_IMPORTED;

/// As parts of the bytes it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRef<'a> {
    pub id: IdRef<'a>,
    /// Whether the server made the id.
    pub own_id: bool,
    pub stream: &'a str,
    /// From 0, in its stream.
    pub position: u64,
    /// From 1, in its namespace.
    pub global: u64,
    pub kind: &'a str,
    pub data: &'a str,
    pub metadata: Option<&'a str>,
    pub time: Micros,
    /// Its stream had no message before, whatever its position.
    pub is_first: bool,
    /// It came with its place.
    pub is_imported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRef<'a> {
    Uuid(Uuid),
    Text(&'a str),
}

/// A message that was read, with the bytes it lies in.
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

    /// `None` for bytes that are no message.
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
    /// `None` for bytes that are no message.
    pub fn new(value: Bytes, time: Micros) -> Option<StoredEvent> {
        EventRef::decode(&value, time)?;
        Some(StoredEvent { value, time })
    }

    pub fn bytes(&self) -> usize {
        self.value.len()
    }

    /// As it is, but for its data and metadata: enough to ask a namespace whether it is [still
    /// shown](crate::Namespace::still_shown), in memory of its own.
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
        // It was looked at when it was made.
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
