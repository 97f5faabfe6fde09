//! One message: a payload, its metadata, and the mark left by a stage that failed on it.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Metadata, SourceName, Text, Value, json, key};

/// The content of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// The original, unparsed bytes.
    Raw(Bytes),
    /// A typed value; its text form is JSON (see [`json`]).
    Value(Value),
    /// A value with its time; its text form is `{"value": v, "timestamp_ms": t}`.
    Sample { value: Value, time_ms: i64 },
}

/// Why a stage could not process a message that continues nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub stage: Text,
    pub error: Text,
}

/// One message. Moving it copies about 100 bytes; cloning it copies no text.
#[derive(Clone, Debug)]
pub struct Message {
    pub payload: Payload,
    pub meta: Metadata,
    /// Set by a `mapping`-like stage that failed; cleared by `catch`.
    pub failure: Option<Arc<Failure>>,
    /// Which of several inputs it came from.
    pub source: SourceName,
}

impl Message {
    pub fn new(payload: Payload, meta: Metadata) -> Message {
        Message {
            payload,
            meta,
            failure: None,
            source: SourceName::default(),
        }
    }

    pub fn raw(bytes: impl Into<Bytes>) -> Message {
        Message::new(Payload::Raw(bytes.into()), Metadata::default())
    }

    /// The payload as bytes, rendered if it is typed.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.payload {
            Payload::Raw(bytes) => Cow::Borrowed(bytes),
            typed => {
                let mut out = String::new();
                typed.write_text(&mut out);
                Cow::Owned(out.into_bytes())
            }
        }
    }

    /// The hash of the message's series (its tag), or `None` if it is unknown: then no order is promised.
    pub fn series(&self) -> Option<u64> {
        self.meta
            .shared_map()
            .series()
            .or_else(|| self.meta.get(key::UMH_TOPIC).map(|topic| xxh3_64(topic.as_bytes())))
    }

    /// Approximate memory of the message, including its share of the shared map, for queue limits.
    pub fn memory_bytes(&self) -> usize {
        self.own_bytes() + self.meta.shared_bytes()
    }

    /// Approximate memory of the message alone, without the map that it shares with others of its tag.
    pub fn own_bytes(&self) -> usize {
        let payload = match &self.payload {
            Payload::Raw(bytes) => bytes.len(),
            Payload::Value(value) | Payload::Sample { value, .. } => value.heap_bytes(),
        };
        size_of::<Message>() + payload + self.meta.heap_bytes()
    }
}

impl Payload {
    /// For messages that are kept for long: copies raw bytes, which are often a small slice of a batch or of a log
    /// block and keep all of it in memory.
    pub fn detach(&mut self) {
        if let Payload::Raw(bytes) = self {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }

    /// The text form of a typed payload; raw bytes are appended as UTF-8, with U+FFFD for invalid bytes.
    pub fn write_text(&self, out: &mut String) {
        use std::fmt::Write as _;
        match self {
            Payload::Raw(bytes) => out.push_str(&String::from_utf8_lossy(bytes)),
            Payload::Value(value) => json::write(value, out),
            Payload::Sample { value, time_ms } => {
                out.push_str("{\"value\":");
                json::write(value, out);
                let _ = write!(out, ",\"timestamp_ms\":{time_ms}}}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_long_does_not_keep_what_it_came_in() {
        let batch = Bytes::from(vec![b'7'; 1 << 20]);
        let mut payload = Payload::Raw(batch.slice(5..7));
        assert!(!batch.is_unique());
        payload.detach();
        assert!(batch.is_unique());
        assert!(matches!(payload, Payload::Raw(bytes) if bytes == "77"));
    }

    #[test]
    fn a_message_is_small() {
        assert!(size_of::<Metadata>() <= 40, "{}", size_of::<Metadata>());
        assert!(size_of::<Message>() <= 96, "{}", size_of::<Message>());
    }

    #[test]
    fn a_message_stays_small() {
        assert!(size_of::<Message>() <= 128, "{}", size_of::<Message>());
    }

    #[test]
    fn a_sample_prints_value_and_time() {
        let message = Message::new(
            Payload::Sample {
                value: Value::U64(u64::MAX),
                time_ms: -1,
            },
            Metadata::default(),
        );
        assert_eq!(
            &*message.bytes(),
            br#"{"value":18446744073709551615,"timestamp_ms":-1}"#
        );
    }

    #[test]
    fn metadata_of_one_message_alone_counts_as_its_memory() {
        let entries = (0..10).map(|n| (format!("header{n}").into(), "x".repeat(10_000).into()));
        let map = Arc::new(crate::MetaMap::new(entries, None));
        let message = Message::new(Payload::Value(Value::Null), Metadata::shared(map));
        assert!(message.memory_bytes() > 100_000, "{}", message.memory_bytes());
    }

    #[test]
    fn messages_of_one_topic_are_one_series() {
        let mut a = Message::raw("1");
        assert_eq!(a.series(), None);
        a.meta.set(key::UMH_TOPIC, "umh.v1.x._c.t");
        let mut b = Message::raw("2");
        b.meta.set(key::UMH_TOPIC, "umh.v1.x._c.t");
        assert!(a.series().is_some());
        assert_eq!(a.series(), b.series());
    }
}
