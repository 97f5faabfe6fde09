//! Settings as a mapping with the keys and units of the configuration file.
//!
//! Every field is present, so the mapping reads as equal settings whatever the defaults of that version are. Only
//! fields without a value (`durability`, `webhook`, `filter`) are left out.

use serde_json::{Map, Value, json};
use smol_str::SmolStr;

use super::units::{duration_text, size_text};
use super::{GroupSettings, Overflow, QueueOrdering, QueueSettings, RetentionMode};

impl QueueOrdering {
    pub(super) const ALL: [QueueOrdering; 3] = [QueueOrdering::None, QueueOrdering::Partition, QueueOrdering::Strict];

    pub fn name(self) -> &'static str {
        match self {
            QueueOrdering::None => "none",
            QueueOrdering::Partition => "partition",
            QueueOrdering::Strict => "strict",
        }
    }
}

impl Overflow {
    pub(super) const ALL: [Overflow; 3] = [Overflow::Reject, Overflow::Block, Overflow::DropOldest];

    pub fn name(self) -> &'static str {
        match self {
            Overflow::Reject => "reject",
            Overflow::Block => "block",
            Overflow::DropOldest => "drop-oldest",
        }
    }
}

impl RetentionMode {
    pub(super) const ALL: [RetentionMode; 2] = [RetentionMode::Settled, RetentionMode::Policy];

    pub fn name(self) -> &'static str {
        match self {
            RetentionMode::Settled => "settled",
            RetentionMode::Policy => "policy",
        }
    }
}

impl QueueSettings {
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "partitions": self.partitions,
            "ordering": self.ordering.name(),
            "lane_window": self.lane_window,
            "topics": texts(&self.topics),
            "default_group": self.default_group.as_str(),
            "max_message_size": size_text(self.max_message_size),
            "max_depth": self.max_depth,
            "max_bytes": size_text(self.max_bytes),
            "overflow": self.overflow.name(),
            "block_timeout": duration_text(self.block_timeout),
            "ttl": duration_text(self.ttl),
            "visibility_timeout": duration_text(self.visibility_timeout),
            "claim_batch": self.claim_batch,
            "max_in_flight": self.max_in_flight,
            "max_pending": self.max_pending,
            "consumer_timeout": duration_text(self.consumer_timeout),
            "dedup_window": duration_text(self.dedup_window),
            "group_expiry": duration_text(self.group_expiry),
            "groups": self.groups.iter().map(GroupSettings::to_json).collect::<Vec<_>>(),
        });
        if let Value::Object(fields) = &mut value {
            fields.extend(self.nested());
            optional(
                fields,
                "durability",
                self.durability.map(|durability| durability.name()),
            );
        }
        value
    }

    fn nested(&self) -> [(String, Value); 4] {
        let retry = json!({
            "max_retries": self.retry.max_retries,
            "initial_backoff": duration_text(self.retry.initial_backoff),
            "max_backoff": duration_text(self.retry.max_backoff),
            "multiplier": self.retry.multiplier,
            "jitter": self.retry.jitter,
            "total_timeout": duration_text(self.retry.total_timeout),
        });
        let mut dlq = Map::new();
        dlq.insert("enabled".to_owned(), self.dlq.enabled.into());
        dlq.insert("on_expire".to_owned(), self.dlq.on_expire.into());
        dlq.insert("on_overflow".to_owned(), self.dlq.on_overflow.into());
        optional(&mut dlq, "webhook", self.dlq.webhook.as_deref());
        let retention = json!({
            "mode": self.retention.mode.name(),
            "max_age": duration_text(self.retention.max_age),
            "max_bytes": size_text(self.retention.max_bytes),
            "max_messages": self.retention.max_messages,
            "protect_streams": self.retention.protect_streams,
        });
        let compaction = json!({
            "enabled": self.compaction.enabled,
            "lag": duration_text(self.compaction.lag),
            "interval": duration_text(self.compaction.interval),
            "tombstone_age": duration_text(self.compaction.tombstone_age),
        });
        [
            ("retry".to_owned(), retry),
            ("dlq".to_owned(), Value::Object(dlq)),
            ("retention".to_owned(), retention),
            ("compaction".to_owned(), compaction),
        ]
    }
}

impl GroupSettings {
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("name".to_owned(), self.name.as_str().into());
        fields.insert("mode".to_owned(), self.mode.name().into());
        fields.insert("start".to_owned(), self.start.to_string().into());
        optional(&mut fields, "filter", self.filter.as_deref());
        Value::Object(fields)
    }
}

fn texts(texts: &[SmolStr]) -> Vec<&str> {
    texts.iter().map(SmolStr::as_str).collect()
}

fn optional(fields: &mut Map<String, Value>, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), value.into());
    }
}
