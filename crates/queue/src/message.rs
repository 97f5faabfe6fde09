//! A message: a payload with a key, properties and times, as producers send it and consumers receive it. Its parts are
//! shared slices of the log's memory, so passing it on copies no payload.

use std::time::Duration;

use bytes::Bytes;
use thalweg_log::clock::Clock;
use thalweg_log::format::record::{Properties, RecordRef};
use thalweg_log::{Micros, Offset};

use crate::hash::lane_hash;
use crate::machine::MessageMeta;

/// Maximum bytes of all property names and values from a producer. The log has room for what a dead letter adds.
pub const PROPERTIES_BYTES_MAX: usize = 64 << 10;

/// The routing key of a message: the topic it was published to.
pub const TOPIC: &str = "x-source-topic";
/// The only group that a message is for.
pub const TARGET_GROUP: &str = "x-target-group";
/// A duplicate within `dedup_window` is not stored.
pub const DEDUP_ID: &str = "dedup-id";
/// The message was a dead letter. Producers cannot set it.
pub(crate) const RESENT: &str = "x-resent";

/// A message as a producer sends it.
#[derive(Clone, Debug, Default)]
pub struct NewMessage {
    pub payload: Bytes,
    /// Messages with the same key go to one partition and keep their order.
    pub key: Option<Bytes>,
    pub properties: Properties,
    /// At most the queue's `ttl`. It starts now, or at `not_before` or `deliver_at` if that is later.
    pub ttl: Option<Duration>,
    /// Not delivered before this, in the queue's time ([`Clock::now`]).
    pub not_before: Option<Micros>,
    /// Like `not_before`, by the wall clock, even if that is set meanwhile.
    pub deliver_at: Option<Micros>,
    /// A second message with the same id within `dedup_window` is not stored.
    pub dedup_id: Option<Box<str>>,
}

/// The lifetime settings of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageLifetime {
    pub ttl: Option<Duration>,
    pub not_before: Option<Micros>,
}

impl NewMessage {
    pub(crate) fn life(&self, clock: &dyn Clock) -> MessageLifetime {
        MessageLifetime {
            ttl: self.ttl,
            not_before: not_before(self.not_before, self.deliver_at, clock),
        }
    }

    /// A message with only a payload.
    pub fn of(payload: impl Into<Bytes>) -> NewMessage {
        NewMessage {
            payload: payload.into(),
            ..NewMessage::default()
        }
    }

    /// Bytes of payload, key and properties.
    pub fn bytes(&self) -> usize {
        let key = self.key.as_ref().map_or(0, Bytes::len);
        self.payload.len() + key + self.properties.as_ref().as_bytes().len()
    }
}

/// A stored message, as consumers receive it.
#[derive(Clone, Debug)]
pub struct Message {
    pub offset: Offset,
    /// When it was appended, in the queue's time.
    pub time: Micros,
    pub payload: Bytes,
    pub key: Option<Bytes>,
    pub properties: Properties,
    /// From `time`, or from `not_before` if that is later.
    pub ttl_ms: Option<u64>,
    /// Not delivered before this. Derived from `deliver_at` with the clock at the time of reading.
    pub not_before: Option<Micros>,
    /// By the wall clock, as the producer set it.
    pub deliver_at: Option<Micros>,
}

impl Message {
    /// Parses a record of the frame body `body`.
    pub fn within(body: &Bytes, record: &RecordRef<'_>, offset: Offset, clock: &dyn Clock) -> Message {
        Message {
            offset,
            time: record.time,
            payload: body.slice_ref(record.value),
            key: record.key.map(|key| body.slice_ref(key)),
            properties: Properties::within(body, record.properties),
            ttl_ms: record.ttl_ms,
            not_before: not_before(record.not_before, record.deliver_at, clock),
            deliver_at: record.deliver_at,
        }
    }

    pub fn record(&self) -> RecordRef<'_> {
        RecordRef {
            time: self.time,
            delta: None,
            key: self.key.as_deref(),
            properties: self.properties.as_ref(),
            ttl_ms: self.ttl_ms,
            not_before: self.not_before.filter(|_| self.deliver_at.is_none()),
            deliver_at: self.deliver_at,
            value: &self.payload,
        }
    }

    pub fn bytes(&self) -> usize {
        let key = self.key.as_ref().map_or(0, Bytes::len);
        self.payload.len() + key + self.properties.as_ref().as_bytes().len()
    }

    /// What a group must know to deliver it. `hint` is where it was found.
    #[inline]
    pub fn passing(&self, group: &str, filter: Option<&str>, hint: u32) -> MessageMeta {
        MessageMeta {
            offset: self.offset,
            lane: self.key.as_deref().map(|key| lane_hash(key).get()),
            expires_at: self.expires_at(),
            not_before: self.not_before,
            skip: !self.is_for(group, filter),
            hint,
        }
    }

    #[inline]
    pub fn expires_at(&self) -> Option<Micros> {
        let ttl = i64::try_from(self.ttl_ms?).ok()?.checked_mul(1000)?;
        // A time in the past is due at once, and the lifetime begins when the message is stored.
        let from = self.not_before.map_or(self.time, |at| at.max(self.time));
        from.checked_add(ttl)
    }

    /// Whether the message is for a group, by its filter and its target.
    pub(crate) fn is_for(&self, group: &str, filter: Option<&str>) -> bool {
        if self.properties.is_empty() {
            // Without a topic only the catch-all filter matches.
            return filter.is_none_or(|filter| filter == "#");
        }
        let properties = self.properties.as_ref();
        let targeted = properties.get(TARGET_GROUP).is_none_or(|target| target == group);
        targeted && filter.is_none_or(|filter| matches(filter, properties.get(TOPIC).unwrap_or_default()))
    }
}

/// When a message may be delivered, in the queue's time. The wall clock may be set between two calls.
pub(crate) fn not_before(by_log: Option<Micros>, by_wall: Option<Micros>, clock: &dyn Clock) -> Option<Micros> {
    by_log.or_else(|| by_wall.map(|at| clock.at_wall(at)))
}

/// Whether an MQTT filter matches a topic: `+` is one level, `#` all that follow.
pub fn matches(filter: &str, topic: &str) -> bool {
    let (mut filters, mut topics) = (filter.split('/'), topic.split('/'));
    loop {
        match (filters.next(), topics.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(level), Some(found)) if level == found => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_as_in_mqtt() {
        for (filter, topic, matched) in [
            ("#", "", true),
            ("#", "a/b", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/#", "b", false),
            ("a/+/c", "a/b/c", true),
            ("a/+", "a", false),
            ("a/+", "a/", true),
            ("+/+", "/", true),
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a", "A", false),
        ] {
            assert_eq!(matches(filter, topic), matched, "{filter} {topic}");
        }
    }

    #[test]
    fn a_message_is_skipped_by_groups_it_is_not_for() {
        let mut message = Message {
            offset: 3,
            time: 1_000_000,
            payload: Bytes::from_static(b"x"),
            key: None,
            properties: Properties::default(),
            ttl_ms: Some(500),
            not_before: None,
            deliver_at: None,
        };
        assert!(!message.passing("a", None, 0).skip);
        assert_eq!(message.expires_at(), Some(1_500_000));
        message.properties = [(TARGET_GROUP, "b"), (TOPIC, "plant/1")].into_iter().collect();
        assert!(message.passing("a", None, 0).skip);
        assert!(!message.passing("b", None, 0).skip);
        assert!(!message.passing("b", Some("plant/+"), 0).skip);
        assert!(message.passing("b", Some("other/+"), 0).skip);
        message.not_before = Some(9_000_000);
        assert_eq!(message.expires_at(), Some(9_500_000));
        message.not_before = Some(7);
        assert_eq!(message.expires_at(), Some(1_500_000));
    }
}
