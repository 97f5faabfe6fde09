//! Settings of a queue: every configuration key with its default and its rule.
//!
//! The input is a mapping from the YAML file or a JSON body, through one reader ([`QueueSettings::read`],
//! [`QueueSettings::patch`]). The output is settings for which every rule holds. [`QueueSettings::to_json`] returns a
//! mapping that reads as the same settings.

mod change;
mod filter;
mod groups;
mod json;
mod log;
mod read;
mod sections;
mod units;

use std::time::Duration;

use smol_str::SmolStr;
use thalweg_log::Durability;

pub use filter::check_filter;
pub use groups::{GroupMode, GroupSettings, GroupStart};
pub use log::{CommitSettings, LogEngine, LogSettings, OnPoison, RecoveryMode};
pub(crate) use read::QUEUE_GROUPS_MAX;
pub(crate) use sections::PARTITIONS_MAX as PROCESS_PARTITIONS_MAX;
pub use sections::QueuesSettings;

pub const PARTITIONS_MAX: u32 = 1000;
/// Below the 32 MiB of a submission, with room for what a dead letter adds.
pub const MESSAGE_BYTES_MAX: u64 = 24 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrdering {
    None,
    /// Messages of one key in order.
    Partition,
    /// All messages of the queue in order.
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    Reject,
    /// Wait for [`QueueSettings::block_timeout`], then reject.
    Block,
    /// Drop the oldest message that is not leased.
    DropOldest,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySettings {
    /// A message is delivered at most `max_retries + 1` times.
    pub max_retries: u32,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    pub multiplier: f64,
    /// Random deviation of the backoff as a fraction, 0 to 1.
    pub jitter: f64,
    /// Since the first delivery; zero: no limit.
    pub total_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterSettings {
    pub enabled: bool,
    /// Also expired messages.
    pub on_expire: bool,
    /// Also messages that [`Overflow::DropOldest`] drops.
    pub on_overflow: bool,
    pub webhook: Option<SmolStr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionMode {
    /// A message is removed when every group has settled it.
    Settled,
    /// A message is removed at a limit.
    Policy,
}

/// A limit of zero means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    pub mode: RetentionMode,
    pub max_age: Duration,
    pub max_bytes: u64,
    pub max_messages: u64,
    /// Messages that stream groups have not read stay too.
    pub protect_streams: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionSettings {
    pub enabled: bool,
    /// Younger records are not compacted.
    pub lag: Duration,
    pub interval: Duration,
    /// How long a tombstone is kept.
    pub tombstone_age: Duration,
}

/// Where zero means "off" or "never", the field says so.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    pub partitions: u32,
    pub ordering: QueueOrdering,
    pub lane_window: u32,
    /// MQTT filters whose publishes are captured.
    pub topics: Vec<SmolStr>,
    pub default_group: SmolStr,
    /// `None`: that of the log.
    pub durability: Option<Durability>,
    /// Bytes.
    pub max_message_size: u64,
    /// Messages; zero: off.
    pub max_depth: u64,
    /// Zero: off.
    pub max_bytes: u64,
    pub overflow: Overflow,
    pub block_timeout: Duration,
    /// Zero: never.
    pub ttl: Duration,
    pub visibility_timeout: Duration,
    pub claim_batch: u32,
    pub max_in_flight: u32,
    pub max_pending: u32,
    pub retry: RetrySettings,
    pub consumer_timeout: Duration,
    /// Zero: off.
    pub dedup_window: Duration,
    pub dlq: DeadLetterSettings,
    /// Zero: never.
    pub group_expiry: Duration,
    pub retention: RetentionSettings,
    pub compaction: CompactionSettings,
    /// Declared groups, which never expire.
    pub groups: Vec<GroupSettings>,
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl Default for QueueSettings {
    fn default() -> QueueSettings {
        QueueSettings {
            partitions: 10,
            ordering: QueueOrdering::Partition,
            lane_window: 1,
            topics: Vec::new(),
            default_group: SmolStr::new_static("default"),
            durability: None,
            max_message_size: 1 << 20,
            max_depth: 100_000,
            max_bytes: 1 << 30,
            overflow: Overflow::Reject,
            block_timeout: Duration::from_secs(10),
            ttl: 168 * HOUR,
            visibility_timeout: Duration::from_secs(30),
            claim_batch: 100,
            max_in_flight: 1000,
            max_pending: 100_000,
            retry: RetrySettings {
                max_retries: 10,
                initial_backoff: Duration::from_secs(5),
                max_backoff: 5 * MINUTE,
                multiplier: 2.0,
                jitter: 0.1,
                total_timeout: 3 * HOUR,
            },
            consumer_timeout: Duration::from_secs(30),
            dedup_window: Duration::ZERO,
            dlq: DeadLetterSettings {
                enabled: true,
                on_expire: false,
                on_overflow: false,
                webhook: None,
            },
            group_expiry: 168 * HOUR,
            retention: RetentionSettings {
                mode: RetentionMode::Settled,
                max_age: Duration::ZERO,
                max_bytes: 0,
                max_messages: 0,
                protect_streams: false,
            },
            compaction: CompactionSettings {
                enabled: false,
                lag: 5 * MINUTE,
                interval: 10 * MINUTE,
                tombstone_age: 24 * HOUR,
            },
            groups: Vec::new(),
        }
    }
}

impl QueueSettings {
    /// Settings of `dlq.<queue>`: every accepted message fits, and only its age removes it.
    pub fn of_dead_letters(queue: &QueueSettings) -> QueueSettings {
        let mut settings = QueueSettings {
            partitions: 1,
            durability: queue.durability,
            max_message_size: MESSAGE_BYTES_MAX,
            ..QueueSettings::unlimited()
        };
        settings.retention.mode = RetentionMode::Policy;
        settings.retention.max_age = 30 * 24 * HOUR;
        settings
    }

    /// Settings of `lake.*`: only disk space limits it, and the lake reads it as a stream.
    pub fn of_lake() -> QueueSettings {
        QueueSettings {
            max_message_size: thalweg_log::SUBMISSION_BYTES_MAX as u64,
            groups: vec![GroupSettings::new("lake", GroupMode::Stream)],
            ..QueueSettings::unlimited()
        }
    }

    /// Keeps all messages, and makes no dead letters.
    fn unlimited() -> QueueSettings {
        let mut settings = QueueSettings {
            max_depth: 0,
            max_bytes: 0,
            ttl: Duration::ZERO,
            ..QueueSettings::default()
        };
        settings.dlq.enabled = false;
        settings
    }
}

/// What the reference says about the section `log` ([`thalweg_config::ReferenceText`]).
pub const LOG_TEXT: &str = include_str!("../reference/section-log.txt");
/// What the reference says about the section `queues`.
pub const QUEUES_TEXT: &str = include_str!("../reference/section-queues.txt");

#[cfg(test)]
mod tests;
