//! The limits of names, ids, appends, imports, documents and pages. Every store checks them before it stores anything,
//! and interfaces use the same numbers and texts, so a limit that changes here changes for all of them.

use std::collections::HashSet;

use thalweg_log::Micros;

use crate::error::{EventsError, Result};
use crate::id::MessageId;
use crate::store::{Append, ImportRecord};

/// The largest position in a stream and the largest global position. Larger numbers are not exact in many clients.
pub const POSITION_MAX: u64 = (1 << 53) - 1;
/// Maximum length in bytes of the name of a stream or a category.
pub const STREAM_BYTES_MAX: usize = 1024;
/// Maximum length in bytes of the type of a message.
pub const TYPE_BYTES_MAX: usize = 255;
/// Maximum length in bytes of an id that is not a UUID.
pub const ID_BYTES_MAX: usize = 255;
/// Maximum length in bytes of the name of a namespace.
pub const NAMESPACE_BYTES_MAX: usize = 255;
pub const APPEND_MESSAGES_MAX: usize = 10_000;
pub const APPEND_STREAMS_MAX: usize = 1000;
/// Maximum size of an append; see [`AppendSize`].
pub const APPEND_BYTES_MAX: usize = 24 << 20;
/// Maximum length of a document: a snapshot of the largest message, and its head.
pub const DOCUMENT_BYTES_MAX: usize = APPEND_BYTES_MAX + (64 << 10);
/// Maximum length of a document's name: that of a stream, and the prefix that identifies the kind of the document.
pub const DOCUMENT_NAME_BYTES_MAX: usize = 1100;
/// Maximum number of messages in a page, whatever was asked for.
pub const PAGE_MESSAGES_MAX: usize = 1000;
/// A page ends after the message that exceeds this size.
pub const PAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum age in a retention rule, in microseconds. A longer one hides nothing either, and this one can be added to
/// any time without overflow.
pub const RETENTION_AGE_MAX: Micros = 1 << 60;

/// A limit that a request does not keep. Nothing of the request is stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenLimit {
    #[error("append exceeds {APPEND_STREAMS_MAX} streams")]
    AppendStreams,
    #[error("append exceeds {APPEND_MESSAGES_MAX} messages")]
    AppendMessages,
    #[error("append exceeds {} MiB", APPEND_BYTES_MAX >> 20)]
    AppendBytes,
    #[error("append.stream '{0}' occurs more than once")]
    RepeatedStream(String),
    /// `bytes_max` is a setting of the server.
    #[error("message size {bytes} exceeds the limit of {bytes_max} bytes")]
    MessageBytes { bytes: usize, bytes_max: usize },
    /// `what` is the name as an error calls it.
    #[error("{what} {fault}")]
    Name { what: &'static str, fault: NameFault },
    #[error("namespace ID contains invalid characters")]
    NamespaceName,
    #[error("{what} {number} is not between {least} and {POSITION_MAX}")]
    Position {
        what: &'static str,
        least: u64,
        number: u64,
    },
    #[error("document exceeds {DOCUMENT_BYTES_MAX} bytes")]
    DocumentBytes,
}

/// What is wrong with a name. The text follows what the name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    #[error("exceeds {0} bytes")]
    TooLong(usize),
    #[error("must not contain U+0000")]
    Null,
}

/// The size of an append, counted while its parts arrive, so that nothing of an append over a limit need be kept.
///
/// A message counts with its type, data and metadata, and the name of its stream with each message. If there is only
/// one message, the name does not count, so that the largest message can be appended to any stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendSize {
    streams: usize,
    messages: usize,
    bytes: usize,
}

impl AppendSize {
    pub fn add_stream(&mut self) -> std::result::Result<(), BrokenLimit> {
        self.streams += 1;
        keeps(self.streams <= APPEND_STREAMS_MAX, BrokenLimit::AppendStreams)
    }

    /// `content`: the size of type, data and metadata.
    pub fn add_message(&mut self, stream: &str, content: usize) -> std::result::Result<(), BrokenLimit> {
        self.messages += 1;
        self.bytes += stream.len() + content;
        keeps(self.messages <= APPEND_MESSAGES_MAX, BrokenLimit::AppendMessages)?;
        let counted = if self.messages == 1 { content } else { self.bytes };
        keeps(counted <= APPEND_BYTES_MAX, BrokenLimit::AppendBytes)
    }
}

fn keeps(is_kept: bool, limit: BrokenLimit) -> std::result::Result<(), BrokenLimit> {
    match is_kept {
        true => Ok(()),
        false => Err(limit),
    }
}

/// The rules for every name: of a stream, a category, a type, a subscription, a consumer.
pub fn name_fault(name: &str, bytes_max: usize) -> Option<NameFault> {
    if name.len() > bytes_max {
        return Some(NameFault::TooLong(bytes_max));
    }
    name.contains('\0').then_some(NameFault::Null)
}

fn check_name(what: &'static str, name: &str, bytes_max: usize) -> std::result::Result<(), BrokenLimit> {
    match name_fault(name, bytes_max) {
        Some(fault) => Err(BrokenLimit::Name { what, fault }),
        None => Ok(()),
    }
}

/// The name of a stream or a category.
pub fn check_stream(name: &str) -> std::result::Result<(), BrokenLimit> {
    check_name("streamName", name, STREAM_BYTES_MAX)
}

pub fn check_type(kind: &str) -> std::result::Result<(), BrokenLimit> {
    check_name("message.type", kind, TYPE_BYTES_MAX)
}

/// An id may contain any character.
pub fn check_id(id: &MessageId) -> std::result::Result<(), BrokenLimit> {
    match id {
        MessageId::Text(text) if text.len() > ID_BYTES_MAX => Err(BrokenLimit::Name {
            what: "id",
            fault: NameFault::TooLong(ID_BYTES_MAX),
        }),
        MessageId::Text(_) | MessageId::Uuid(_) => Ok(()),
    }
}

/// `bytes`: the size of type, data and metadata. `bytes_max`: the setting of the server.
pub fn check_message_size(bytes: usize, bytes_max: usize) -> std::result::Result<(), BrokenLimit> {
    keeps(bytes <= bytes_max, BrokenLimit::MessageBytes { bytes, bytes_max })
}

/// The name of a namespace to create. Names of earlier versions stay valid.
pub fn check_namespace(name: &str) -> std::result::Result<(), BrokenLimit> {
    let is_valid = (1..=NAMESPACE_BYTES_MAX).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\'));
    keeps(is_valid, BrokenLimit::NamespaceName)
}

/// `content`: `None` if the document is to be removed.
pub fn check_document(name: &str, content: Option<&[u8]>) -> std::result::Result<(), BrokenLimit> {
    if name.len() > DOCUMENT_NAME_BYTES_MAX {
        return Err(BrokenLimit::Name {
            what: "document name",
            fault: NameFault::TooLong(DOCUMENT_NAME_BYTES_MAX),
        });
    }
    let bytes = content.map_or(0, <[u8]>::len);
    keeps(bytes <= DOCUMENT_BYTES_MAX, BrokenLimit::DocumentBytes)
}

/// Checks what needs no store: sizes, names, and that no stream and no id occurs twice.
pub fn check_append(appends: &[Append<'_>]) -> Result<()> {
    let mut size = AppendSize::default();
    for append in appends {
        size.add_stream()?;
        check_stream(append.stream)?;
        for event in &append.events {
            size.add_message(append.stream, event.content_bytes())?;
            check_type(event.kind)?;
            event.id.as_ref().map_or(Ok(()), check_id)?;
        }
    }
    if appends.len() > 1 {
        each_stream_once(appends)?;
    }
    match size.messages {
        0 | 1 => Ok(()),
        _ => each_id_once(appends),
    }
}

fn each_stream_once(appends: &[Append<'_>]) -> std::result::Result<(), BrokenLimit> {
    let mut streams = HashSet::with_capacity(appends.len());
    match appends.iter().find(|append| !streams.insert(append.stream)) {
        Some(again) => Err(BrokenLimit::RepeatedStream(again.stream.to_owned())),
        None => Ok(()),
    }
}

fn each_id_once(appends: &[Append<'_>]) -> Result<()> {
    let mut ids = HashSet::new();
    for append in appends {
        for (event, position) in append.events.iter().zip(0..) {
            if let Some(id) = &event.id
                && !ids.insert(id)
            {
                return Err(EventsError::IdConflict {
                    id: id.to_string(),
                    stream: append.stream.to_owned(),
                    position,
                });
            }
        }
    }
    Ok(())
}

/// Checks what needs no store: names, ids and positions of the records.
pub fn check_import(batch: &[ImportRecord]) -> std::result::Result<(), BrokenLimit> {
    for import in batch {
        check_stream(&import.stream)?;
        check_type(&import.kind)?;
        import.id.as_ref().map_or(Ok(()), check_id)?;
        check_position("position", 0, import.position)?;
        check_position("global position", 1, import.global)?;
    }
    Ok(())
}

fn check_position(what: &'static str, least: u64, number: u64) -> std::result::Result<(), BrokenLimit> {
    let is_kept = (least..=POSITION_MAX).contains(&number);
    keeps(is_kept, BrokenLimit::Position { what, least, number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ExpectedVersion, NewEvent};

    fn event<'a>(kind: &'a str, data: &'a str) -> NewEvent<'a> {
        NewEvent {
            id: None,
            kind,
            data,
            metadata: None,
        }
    }

    fn append<'a>(stream: &'a str, events: Vec<NewEvent<'a>>) -> Append<'a> {
        Append {
            stream,
            expected: ExpectedVersion::Any,
            events,
        }
    }

    #[test]
    fn the_name_of_a_stream_counts_with_each_message_but_not_with_a_single_one() {
        let largest = "x".repeat(APPEND_BYTES_MAX - 1);
        check_append(&[append("stream", vec![event("T", &largest)])]).unwrap();
        let error = check_append(&[append("stream", vec![event("TT", &largest)])]).unwrap_err();
        assert_eq!(error.to_string(), "append exceeds 24 MiB");
        let half = "x".repeat(APPEND_BYTES_MAX / 2 - 7);
        check_append(&[append("stream", vec![event("T", &half), event("T", &half)])]).unwrap();
        let error = check_append(&[append("stream", vec![event("T", &half), event("TT", &half)])]).unwrap_err();
        assert_eq!(error.to_string(), "append exceeds 24 MiB");
    }

    #[test]
    fn what_occurs_twice_in_an_append_is_refused() {
        let error = check_append(&[append("a", vec![]), append("b", vec![]), append("a", vec![])]).unwrap_err();
        assert_eq!(error.to_string(), "append.stream 'a' occurs more than once");
        let with_id = || NewEvent {
            id: Some(MessageId::of("x")),
            ..event("T", "{}")
        };
        check_append(&[append("a", vec![with_id()])]).unwrap();
        let twice = [
            append("a", vec![event("T", "{}")]),
            append("b", vec![with_id(), with_id()]),
        ];
        let error = check_append(&twice).unwrap_err();
        assert!(
            matches!(&error, EventsError::IdConflict { id, stream, position: 1 } if id == "x" && stream == "b"),
            "{error:?}"
        );
    }

    #[test]
    fn names_of_namespaces_are_no_paths_and_have_no_control_characters() {
        let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
        for name in ["a", "a-b_c", "with space", "é", "...", longest.as_str()] {
            assert_eq!(check_namespace(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a\\b", "a\0", "a\n", "\u{85}", too_long.as_str()] {
            assert_eq!(check_namespace(name), Err(BrokenLimit::NamespaceName), "{name:?}");
        }
    }
}
